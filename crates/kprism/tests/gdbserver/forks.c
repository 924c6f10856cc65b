// SPDX-License-Identifier: MIT OR Apache-2.0
// Forks and vforks as often as its argument says, in turn, and prints the number of each child that shared its memory.
// Built without libraries of the guest.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 10;

	for (int n = 0; n < rounds; n++) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
		child = vfork();
		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
		printf("child %d\n", child);
	}
	return 0;
}
