// SPDX-License-Identifier: MIT OR Apache-2.0
// Does one kind of work in a guest, and tells the guest's time at its end to the nanosecond: works forks|timers|files|pipes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int over, wild;
static char *pages;
static int there[2], back[2];

enum { PAGES = 16384, WRITTEN = 2000 };

static void echo(void)
{
	char byte;
	if (pipe(there) || pipe(back))
		exit(3);
	if (!fork()) {
		close(there[1]);
		while (read(there[0], &byte, 1) == 1)
			if (write(back[1], &byte, 1) != 1)
				_exit(4);
		_exit(0);
	}
	close(there[0]);
}

static void call(void)
{
	char byte = 0;
	struct pollfd answer = { back[0], POLLIN, 0 };
	if (write(there[1], &byte, 1) != 1 || poll(&answer, 1, 1000) != 1 || read(back[0], &byte, 1) != 1)
		exit(5);
}

static void *sleeps(void *us)
{
	struct timespec time = { 0, (long)(size_t)us * 1000 };
	for (int i = 0; i < 40; i++)
		nanosleep(&time, NULL);
	return NULL;
}

static void *writes(void *unused)
{
	struct timespec time = { 0, 1000000 };
	for (unsigned i = 0; !over; i++)
		if (wild)
			pages[i * 7 % WRITTEN * 4096] = i;
		else
			nanosleep(&time, NULL);
	return unused;
}

// Threads write to pages that a fork protects meanwhile: through entries of a TLB that are out of date, if it still has them. How many
// it has depends on its size; before each fork little of it is used for a while.
static void forks(void)
{
	pthread_t threads[3];
	volatile unsigned sink = 0;
	pages = malloc(PAGES * 4096);
	memset(pages, 1, PAGES * 4096);
	echo();
	for (int i = 0; i < 3; i++)
		if (pthread_create(&threads[i], NULL, writes, NULL))
			exit(3);
	for (int i = 0; i < 36; i++) {
		for (int turn = 0; turn < 20 << i % 6; turn++) {
			call();
			for (unsigned n = 0; n < 20000; n++)
				sink += n;
		}
		wild = 1;
		usleep(10000);
		pid_t pid = fork();
		if (!pid)
			_exit(0);
		if (pid < 0 || waitpid(pid, NULL, 0) != pid)
			exit(4);
		wild = 0;
	}
	over = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
}

static void timers(void)
{
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, sleeps, (void *)(size_t)(130 + 1170 * i)))
			exit(3);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

static void files(void)
{
	static char data[300000];
	for (int i = 0; i < 40; i++) {
		char name[32];
		snprintf(name, sizeof name, "/tmp/works.%d", i);
		int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (file < 0 || write(file, data, sizeof data) != sizeof data)
			exit(4);
		char *map = mmap(NULL, sizeof data, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (map == MAP_FAILED)
			exit(5);
		for (unsigned at = 0; at < sizeof data; at += 4096)
			map[at]++;
		munmap(map, sizeof data);
		close(file);
		unlink(name);
	}
}

static void pipes(void)
{
	echo();
	for (int i = 0; i < 2000; i++)
		call();
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	!strcmp(kind, "forks") ? forks() : !strcmp(kind, "timers") ? timers() : !strcmp(kind, "files") ? files() : pipes();
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC_RAW, &time);
	printf("%s: over at %lld.%09ld\n", kind, (long long)time.tv_sec, time.tv_nsec);
	return 0;
}
