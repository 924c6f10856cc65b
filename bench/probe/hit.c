/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * hit work|read N A B: nanoseconds of CPU time of one call of work(A, B), or of one read(2) of B bytes of file A, the
 * least mean of five times N. In the lab a nanosecond is an instruction. With a fifth argument: so many seconds without
 * an end, and how many calls there were.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>

volatile int calls;

/* The paper's function. Not optimised, its first instruction is `push`, which the kernel needs not step over. */
__attribute__((noinline, optimize("O0"))) void work(int counter1, int counter2)
{
	calls += counter1 + counter2;
}

static long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	int reads = !strcmp(argv[1], "read"), a = atoi(argv[3]), b = atoi(argv[4]);
	long n = atol(argv[2]), best = -1;

	if (argc > 5) {
		long end = now(CLOCK_MONOTONIC) + atol(argv[5]) * 1000000000L, all = 0;

		while (now(CLOCK_MONOTONIC) < end) {
			for (long i = 0; i < n; i++)
				if (reads)
					syscall(SYS_read, a, NULL, b);
				else
					work(a, b);
			all += n;
		}
		printf("%ld\n", all);
		return 0;
	}
	for (int round = 0; round < 5; round++) {
		long start = now(CLOCK_THREAD_CPUTIME_ID);

		for (long i = 0; i < n; i++)
			if (reads)
				syscall(SYS_read, a, NULL, b);
			else
				work(a, b);
		long took = (now(CLOCK_THREAD_CPUTIME_ID) - start) / n;

		if (best < 0 || took < best)
			best = took;
	}
	printf("%ld\n", best);
	return 0;
}
