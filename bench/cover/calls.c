/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The operations of the overhead table, each often enough that single interrupts do not matter. Every operation is a
 * system call of its own kind, so that a recording tells them apart. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMES 500
#define FEW 20

static void handler(int signal)
{
	(void)signal;
}

int main(int argc, char **argv)
{
	char byte[1] = { 0 }, page[4096];
	int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
	int pair[2], tube[2], i;
	struct stat st;
	struct pollfd polled[10];

	if (argc > 1)
		return 0;
	if (zero < 0 || null < 0 || pipe(tube) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return 1;
	for (i = 0; i < 10; i++)
		polled[i] = (struct pollfd){ tube[0], POLLIN, 0 };
	for (i = 0; i < TIMES; i++) {
		struct sigaction act = { .sa_handler = handler };
		fd_set set;
		struct timeval now = { 0, 0 };
		void *place;
		int file;

		syscall(SYS_getppid);
		pread(zero, byte, 1, 0);
		pwrite(null, byte, 1, 0);
		stat("/proc/self", &st);
		fstat(zero, &st);
		file = openat(AT_FDCWD, "/dev/null", O_RDONLY);
		close(file);
		FD_ZERO(&set);
		FD_SET(tube[0], &set);
		select(tube[0] + 1, &set, 0, 0, &now);
		poll(polled, 10, 0);
		sigaction(SIGUSR1, &act, 0);
		kill(getpid(), SIGUSR1);
		write(tube[1], page, 1);
		read(tube[0], page, 1);
		sendto(pair[0], page, 1, 0, 0, 0);
		recvfrom(pair[1], page, 1, 0, 0, 0);
		place = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		*(volatile char *)place = 1;
		munmap(place, 65536);
	}
	for (i = 0; i < FEW; i++) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		waitpid(child, 0, 0);
		child = vfork();
		if (child == 0) {
			execl(argv[0], argv[0], "again", (char *)0);
			_exit(1);
		}
		waitpid(child, 0, 0);
	}
	return 0;
}
