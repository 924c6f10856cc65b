/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * jump THREADS ROUNDS [signals] [fork] [seccomp] [forever]: threads that call functions with conditional probes. Prints the sum of what
 * they returned, which does not depend on who watches. With `signals` a timer interrupts a thread every 50 µs, with `fork` the
 * process forks a child that does the same first, with `seccomp` a filter allows all its system calls, with `forever` threads begin anew, and check their sums, until SIGTERM.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

long total = 7;
volatile long handled;
static volatile sig_atomic_t over;
static long rounds;

/* The first instruction is long: mov total(%rip), %rax. */
__attribute__((noinline)) long single(long n, long m)
{
	return total * 3 + n - m;
}

/* The first instructions are short: several are displaced. */
__attribute__((noinline)) long several(long n, long m)
{
	long a = n ^ m;

	if (a & 64)
		a += n >> 3;
	return a + 3;
}

/* Its locals are on the stack, flags and the red zone live across lines. */
__attribute__((noinline, optimize("O0"))) long locals(long n, long m)
{
	long a = n * 3;
	long b = m - n;
	long c = a + b;

	return c * 5;
}

static void on_signal(int number)
{
	(void)number;
	handled++;
}

static void on_end(int number)
{
	(void)number;
	over = 1;
}

static void *work(void *number)
{
	long sum = 0;

	for (long n = 0; n < rounds; n++)
		sum += single(n, (long)number) + several(n, (long)number) + locals(n, (long)number);
	return (void *)sum;
}

static long all(long threads)
{
	pthread_t thread[64];
	long sum = 0;

	for (long i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, work, (void *)i);
	for (long i = 0; i < threads; i++) {
		void *value;

		pthread_join(thread[i], &value);
		sum += (long)value;
	}
	return sum;
}

int main(int argc, char **argv)
{
	long threads = atol(argv[1]), first;
	int signals = 0, forks = 0, forever = 0, status = 0;

	rounds = atol(argv[2]);
	for (int i = 3; i < argc; i++) {
		signals |= !strcmp(argv[i], "signals");
		forks |= !strcmp(argv[i], "fork");
		if (!strcmp(argv[i], "seccomp")) {
			struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
			struct sock_fprog filter = { 1, &all };

			prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
			prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
		}
		forever |= !strcmp(argv[i], "forever");
	}
	signal(SIGTERM, on_end);
	if (signals) {
		struct itimerval each = { { 0, 50 }, { 0, 50 } };
		struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

		sigaction(SIGALRM, &act, NULL);
		setitimer(ITIMER_REAL, &each, NULL);
	}
	if (forks) {
		pid_t child = fork();

		if (!child) {
			printf("%ld\n", all(threads));
			fflush(stdout);
			_exit(0);
		}
		waitpid(child, &status, 0);
	}
	first = all(threads);
	printf("%ld\n", first);
	fflush(stdout);
	while (forever && !over)
		if (all(threads) != first) {
			printf("wrong\n");
			fflush(stdout);
			return 1;
		}
	return status != 0;
}
