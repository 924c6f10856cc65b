/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * load SECONDS PROCESSES: system calls, page faults, new processes and new memory in a random order, all the time;
 * all of it goes when it is killed. Prints how often work() was called, and with an n that 3 divides.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct calls {
	unsigned long all, third, sum;
};

static struct calls *calls;

__attribute__((noinline)) void work(unsigned long n)
{
	__atomic_fetch_add(&calls->all, 1, __ATOMIC_RELAXED);
	if (n % 3 == 0)
		__atomic_fetch_add(&calls->third, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&calls->sum, n, __ATOMIC_RELAXED);
}

static unsigned long random_number(unsigned long *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void go(unsigned long seed, time_t end)
{
	static char buffer[65536];
	int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
	struct timespec nap = { 0, 300000 };
	struct stat found;

	while (time(NULL) < end) {
		unsigned long n = random_number(&seed);
		size_t size = n >> 8 & 0x3fff;

		switch (n % 16) {
		case 0 ... 3:
			if (read(zero, buffer, size) < 0)
				exit(1);
			break;
		case 4 ... 6:
			if (write(null, buffer, size) < 0)
				exit(1);
			break;
		case 7: {
			int fd = open("/etc/passwd", O_RDONLY);

			if (read(fd, buffer, size) < 0)
				exit(1);
			close(fd);
			break;
		}
		case 8:
			stat("/etc/hostname", &found);
			break;
		case 9: {
			char *p = mmap(NULL, 8 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

			for (int i = 0; i < 8; i++)
				p[i << 12] = 1;
			munmap(p, 8 << 12);
			break;
		}
		case 10:
			if (n >> 32 & 1)
				nanosleep(&nap, NULL);
			break;
		case 11:
			if ((n >> 32) % 8 == 0) {
				pid_t child = fork();

				if (child == 0) {
					work(n >> 40);
					_exit(0);
				}
				waitpid(child, NULL, 0);
			}
			break;
		default:
			work(n >> 32);
		}
	}
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atol(argv[1]) : 1);
	int processes = argc > 2 ? atoi(argv[2]) : 2;

	calls = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (calls == MAP_FAILED)
		return 1;
	for (int i = 0; i < processes; i++) {
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			go(0x9e3779b97f4a7c15 * (i + 1) ^ (unsigned long)getpid() << 20, end);
			_exit(0);
		}
	}
	while (wait(NULL) > 0)
		;
	printf("%lu %lu\n", calls->all, calls->third);
	return 0;
}
