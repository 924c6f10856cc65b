// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * `threads N`: N threads, each on a CPU of its own, compute the same. `threads wake`: a thread wakes another on an idle CPU and goes on
 * computing; prints the longest of a hundred times until the other one runs, in ns of the guest's clock.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static int event;
static volatile long woken_ns;

static long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void stay_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void *compute(void *cpu)
{
	unsigned n = (long)cpu;

	stay_on((long)cpu);
	for (int i = 0; i < 2000000; i++)
		n = n * 1664525u + 1013904223u;
	return (void *)(long)n;
}

static void *sleeper(void *unused)
{
	unsigned long count;

	stay_on(1);
	for (;;) {
		if (read(event, &count, sizeof count) != sizeof count)
			return NULL;
		woken_ns = now_ns();
	}
}

static long longest_wake(void)
{
	pthread_t thread;
	unsigned long one = 1;
	long longest = 0;

	stay_on(0);
	event = eventfd(0, 0);
	pthread_create(&thread, NULL, sleeper, NULL);
	for (int i = 0; i < 100; i++) {
		usleep(2000);
		woken_ns = 0;
		long from = now_ns();
		if (write(event, &one, sizeof one) != sizeof one)
			return -1;
		while (!woken_ns)
			for (volatile int n = 0; n < 100; n++)
				;
		if (woken_ns - from > longest)
			longest = woken_ns - from;
	}
	return longest;
}

int main(int argc, char **argv)
{
	pthread_t threads[8];
	int n = argc > 1 ? atoi(argv[1]) : 1;

	if (argc > 1 && !strcmp(argv[1], "wake")) {
		printf("%ld\n", longest_wake());
		return 0;
	}
	for (long i = 0; i < n; i++)
		pthread_create(threads + i, NULL, compute, (void *)i);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
