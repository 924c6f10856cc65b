// SPDX-License-Identifier: MIT OR Apache-2.0
// One process sleeps a millisecond at a time, and another one does long work between sleeps, which makes some of the first one's late.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void sleep_us(long us)
{
	struct timespec length = { 0, us * 1000 };
	clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL);
}

int main(void)
{
	if (fork() == 0) {
		for (int i = 0; i < 40; i++)
			sleep_us(1000);
		_exit(0);
	}
	for (int i = 0; i < 3; i++) {
		sleep_us(9300);
		void *pages = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		munmap(pages, 4 << 20);
	}
	return wait(NULL) < 0;
}
