// SPDX-License-Identifier: MIT OR Apache-2.0
// What the way of a hit into a record has to bear: recursion, children that have not touched what their parent's files hold,
// and calls without an end.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// On a page of the program's file that nothing else is on: a child that is forked has not mapped it, and does not read it.
__attribute__((aligned(4096))) static const char alone[4096] = "a string of the file";
struct pair {
	long one, two;
};
__attribute__((aligned(4096))) static const struct pair numbers[256] = {{11, 22}};

__attribute__((noinline)) int deep(int n)
{
	int below = n > 0 ? deep(n - 1) : 0;
	__asm__ volatile("" ::: "memory");
	return below + 1;
}

__attribute__((noinline)) void child(const char *text, const struct pair *pair)
{
	__asm__ volatile("" : : "r"(text), "r"(pair) : "memory");
}

__attribute__((noinline)) long tick(long n)
{
	__asm__ volatile("" ::: "memory");
	return n + 1;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[2]) : 1;

	if (argc > 1 && !strcmp(argv[1], "deep"))
		return deep(count - 1) == count ? 0 : 1;
	if (argc > 1 && !strcmp(argv[1], "fork")) {
		for (int n = 0; n < count; n++) {
			if (fork() == 0) {
				child(alone, numbers);
				_exit(0);
			}
			wait(NULL);
		}
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "crash")) {
		for (long n = 0; n < count; n++)
			tick(n);
		*(volatile int *)0 = 1;
	}
	for (long n = 0;;)
		n = tick(n);
}
