// SPDX-License-Identifier: MIT OR Apache-2.0
// One process sleeps a millisecond at a time, another goes from CPU to CPU and sleeps there, and a third one does long work between
// sleeps, which makes some of the first one's late.
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone, noipa))

static volatile long sink;

FUNCTION static void sleep_us(long us)
{
	struct timespec length = { 0, us * 1000 };
	clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL);
}

/* Where there is one CPU, the calls for the other fail. */
FUNCTION static void go_to(int cpu)
{
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	sched_setaffinity(0, sizeof cpus, &cpus);
}

FUNCTION static void work(int rounds) { for (int i = 0; i < rounds; i++) sink += i; }
FUNCTION static void inner(int i) { go_to(i & 1); work(2000); sleep_us(700); go_to(!(i & 1)); work(3000); }
FUNCTION static void outer(int i) { inner(i); work(1000); }

int main(void)
{
	if (fork() == 0) {
		for (int i = 0; i < 40; i++)
			sleep_us(1000);
		_exit(0);
	}
	if (fork() == 0) {
		for (int i = 0; i < 30; i++)
			outer(i);
		_exit(0);
	}
	for (int i = 0; i < 4; i++) {
		sleep_us(6300);
		void *pages = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		munmap(pages, 4 << 20);
	}
	while (wait(NULL) > 0) {}
	return 0;
}
