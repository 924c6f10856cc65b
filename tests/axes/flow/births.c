// SPDX-License-Identifier: MIT OR Apache-2.0
// Makes COUNT tasks one after another by one way of birth: births fork|vfork|spawn|thread|exec COUNT. Each does the same work.
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static volatile unsigned sink;

__attribute__((noinline)) static unsigned mix(unsigned n) { return n * 2654435761u ^ n >> 7; }

__attribute__((noinline)) static void work(unsigned n)
{
	unsigned (*volatile indirect)(unsigned) = mix;
	for (unsigned i = 0; i < 200; i++)
		sink += i & 3 ? indirect(i + n) : mix(sink);
}

static void *thread(void *n)
{
	work((unsigned)(size_t)n);
	return NULL;
}

static void child(char *self, const char *way, int n)
{
	char number[16];
	snprintf(number, sizeof number, "%d", n);
	char *arguments[] = { self, "work", number, NULL };
	pid_t pid = 0;
	pthread_t id;
	if (!strcmp(way, "thread")) {
		if (pthread_create(&id, NULL, thread, (void *)(size_t)n))
			exit(3);
		pthread_join(id, NULL);
		return;
	}
	if (!strcmp(way, "spawn")) {
		if (posix_spawn(&pid, self, NULL, NULL, arguments, environ))
			exit(3);
	} else if (!strcmp(way, "vfork")) {
		if (!(pid = vfork())) {
			execve(self, arguments, environ);
			_exit(4);
		}
	} else if (!(pid = fork())) {
		if (!strcmp(way, "exec"))
			execve(self, arguments, environ);
		work(n);
		_exit(0);
	}
	int status;
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		exit(5);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	if (!strcmp(argv[1], "work")) {
		work(atoi(argv[2]));
		return 0;
	}
	for (int n = 0; n < atoi(argv[2]); n++)
		child(argv[0], argv[1], n);
	return 0;
}
