// SPDX-License-Identifier: MIT OR Apache-2.0
/* `threads N`: N threads, each on a CPU of its own, compute the same. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

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

int main(int argc, char **argv)
{
	pthread_t threads[8];
	int n = argc > 1 ? atoi(argv[1]) : 1;

	for (long i = 0; i < n; i++)
		pthread_create(threads + i, NULL, compute, (void *)i);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
