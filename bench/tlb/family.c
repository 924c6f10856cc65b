// SPDX-License-Identifier: MIT OR Apache-2.0
// family PAGES ROUNDS: a process, a fork that reads the same array, a fork that becomes another program by execve, and a fork
// with two threads. Each line says who walks where: a name, the process, where its array begins and ends.
#include "tlb.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t pages, rounds;
static volatile char *all;

static void say(const char *name)
{
	printf("%s %d %#lx %#lx\n", name, getpid(), (unsigned long)all, (unsigned long)all + pages * 4096);
	fflush(stdout);
}

static void fill(void)
{
	all = array(pages * 4096, 0);
	for (uint64_t i = 0; i < pages; i++)
		all[i * 4096] = 1;
}

static void reads(uint64_t times)
{
	for (uint64_t r = 0; r < times; r++)
		for (uint64_t i = 0; i < pages; i++)
			(void)all[i * 4096];
}

static void *half(void *upper)
{
	uint64_t middle = pages / 2, from = upper ? middle : 0, to = upper ? pages : middle;
	for (uint64_t i = from; i < to; i++)
		all[i * 4096] = 1;
	return NULL;
}

static void wait_for(pid_t child)
{
	int status;
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		exit(1);
}

int main(int argc, char **argv)
{
	pages = argument(argc, argv, 1, 8192);
	rounds = argument(argc, argv, 2, 2);
	if (argc > 3) {
		/* The program that a fork became. */
		fill();
		reads(rounds);
		say("exec");
		return 0;
	}
	fill();
	pid_t child = fork();
	if (!child) {
		reads(rounds);
		say("fork");
		_exit(0);
	}
	wait_for(child);
	child = fork();
	if (!child) {
		execl(argv[0], argv[0], argv[1], argv[2], "again", (char *)NULL);
		_exit(1);
	}
	wait_for(child);
	child = fork();
	if (!child) {
		pthread_t ids[2];
		all = array(pages * 4096, 0);
		for (long upper = 0; upper < 2; upper++)
			if (pthread_create(&ids[upper], NULL, half, (void *)upper))
				_exit(1);
		for (int i = 0; i < 2; i++)
			pthread_join(ids[i], NULL);
		say("threads");
		_exit(0);
	}
	wait_for(child);
	reads(rounds);
	say("first");
	return 0;
}
