// SPDX-License-Identifier: MIT OR Apache-2.0
// The only program of a guest: its init, and /worker, whose system calls and calls of `turn` are known.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TURNS = 500 };

__attribute__((noinline)) static long turn(int number)
{
	char byte;
	int file = open("/init", O_RDONLY);
	long got = read(file, &byte, 1);
	close(file);
	return got + syscall(SYS_getppid) + number;
}

static int worker(void)
{
	volatile long sum = 0;
	for (int number = 0; number < TURNS; number++) {
		sum += turn(number);
		// A child that keeps the name.
		if (number == TURNS / 2) {
			pid_t child = fork();
			if (child == 0)
				_exit(0);
			waitpid(child, NULL, 0);
		}
	}
	return 0;
}

static void work(void)
{
	pid_t child = fork();
	if (child == 0) {
		execl("/worker", "worker", NULL);
		_exit(1);
	}
	waitpid(child, NULL, 0);
}

int main(int count, char **words)
{
	// The kernel passes words of its command line that it does not know as the environment.
	const char *ends = getenv("ends");
	struct utsname facts;

	if (strstr(words[0], "worker"))
		return worker();
	uname(&facts);
	printf("release %s\n", facts.release);
	work();
	work();
	puts("worked");
	fflush(stdout);
	while (ends && !strcmp(ends, "never")) {
		work();
		usleep(20000);
	}
	if (ends && !strcmp(ends, "restart")) {
		sleep(1);
		reboot(RB_AUTOBOOT);
	}
	reboot(RB_POWER_OFF);
	return 1;
}
