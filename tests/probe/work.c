// SPDX-License-Identifier: MIT OR Apache-2.0
// A little of everything that a kernel does, so that many of its tracepoints are met. What fails for want of a device
// fails: the test counts what was met. Usage: work ROUNDS.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/loop.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static char page[1 << 16];

static void put(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY);
	if (fd >= 0) {
		if (write(fd, text, strlen(text)) < 0)
			errno = 0;
		close(fd);
	}
}

static void ignore(int signal)
{
	(void)signal;
}

static void rest(long ns)
{
	struct timespec time = {0, ns};
	nanosleep(&time, NULL);
}

static void tasks(void)
{
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_NAME, "renamed");
		put("/proc/self/oom_score_adj", "5");
		setpriority(PRIO_PROCESS, 0, 3);
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	waitpid(child, NULL, 0);
	child = fork();
	if (child == 0)
		for (;;)
			pause();
	struct sched_param fifo = {.sched_priority = 2};
	sched_setscheduler(child, SCHED_FIFO, &fifo);
	rest(1000000);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	signal(SIGUSR1, ignore);
	raise(SIGUSR1);
	sched_yield();
}

static void timers(void)
{
	signal(SIGALRM, ignore);
	// Again and again: the first may come before the pause.
	struct itimerval soon = {{0, 20000}, {0, 3000}}, never = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &soon, NULL);
	pause();
	setitimer(ITIMER_REAL, &never, NULL);
	struct itimerval work = {{0, 0}, {0, 5000}};
	signal(SIGVTALRM, ignore);
	setitimer(ITIMER_VIRTUAL, &work, NULL);
	for (volatile long n = 0; n < 20000000; n++)
		;
	timer_t timer;
	struct sigevent event = {.sigev_notify = SIGEV_NONE};
	if (timer_create(CLOCK_BOOTTIME_ALARM, &event, &timer) == 0 ||
	    timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) {
		struct itimerspec at = {{0, 0}, {0, 2000000}};
		timer_settime(timer, 0, &at, NULL);
		rest(4000000);
		timer_delete(timer);
	}
	rest(20000000);
	poll(NULL, 0, 5);
}

static void memory(void)
{
	char *area = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(area, 8 << 20, MADV_HUGEPAGE);
	for (long at = 0; at < 8 << 20; at += 4096)
		area[at] = 1;
	madvise(area, 8 << 20, MADV_COLLAPSE);
	mprotect(area, 1 << 20, PROT_READ);
	area = mremap(area, 8 << 20, 16 << 20, MREMAP_MAYMOVE);
	madvise(area, 1 << 20, MADV_PAGEOUT);
	mlock(area, 1 << 16);
	munmap(area, 16 << 20);
	int fd = open("/proc/self/exe", O_RDONLY);
	char *file = mmap(NULL, 1 << 16, PROT_READ, MAP_PRIVATE, fd, 0);
	volatile char sum = 0;
	for (int at = 0; at < 1 << 16; at += 4096)
		sum += file[at];
	munmap(file, 1 << 16);
	close(fd);
	brk((char *)sbrk(0) + 65536);
	// A kernel's own page fault: its read of memory that is not there yet.
	area = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd = open("/dev/zero", O_RDONLY);
	if (read(fd, area, 1 << 20) < 0)
		errno = 0;
	close(fd);
	munmap(area, 1 << 20);
}

static void files(void)
{
	mkdir("/tmp/w", 0755);
	int fd = open("/tmp/w/file", O_RDWR | O_CREAT | O_TRUNC, 0644);
	for (int n = 0; n < 8; n++)
		if (write(fd, page, sizeof page) < 0)
			break;
	lseek(fd, 0, SEEK_SET);
	while (read(fd, page, sizeof page) > 0)
		;
	flock(fd, LOCK_EX);
	flock(fd, LOCK_UN);
	struct flock lock = {.l_type = F_WRLCK, .l_len = 100};
	fcntl(fd, F_SETLK, &lock);
	pid_t child = fork();
	if (child == 0) {
		struct flock other = {.l_type = F_WRLCK, .l_len = 10};
		fcntl(fd, F_SETLKW, &other);
		_exit(0);
	}
	rest(2000000);
	lock.l_type = F_UNLCK;
	fcntl(fd, F_SETLK, &lock);
	waitpid(child, NULL, 0);
	int reader = open("/tmp/w/file", O_RDONLY);
	signal(SIGIO, ignore);
	close(fd);
	fcntl(reader, F_SETLEASE, F_RDLCK);
	fd = open("/tmp/w/file", O_RDWR | O_NONBLOCK);
	if (fd >= 0)
		close(fd);
	fcntl(reader, F_SETLEASE, F_UNLCK);
	close(reader);
	truncate("/tmp/w/file", 100);
	rename("/tmp/w/file", "/tmp/w/other");
	unlink("/tmp/w/other");
	int ends[2];
	if (pipe(ends) == 0) {
		if (write(ends[1], "text", 4) == 4 && read(ends[0], page, 4) < 0)
			errno = 0;
		close(ends[0]);
		close(ends[1]);
	}
	put("/dev/kmsg", "text for the console\n");
}

/* What reaches a block device goes through requests, the page cache and its writeback. */
static void block(void)
{
	int file = open("/tmp/disk", O_RDWR | O_CREAT, 0600), fd = open("/dev/loop0", O_RDWR);
	if (ftruncate(file, 4 << 20) != 0 || ioctl(fd, LOOP_SET_FD, file) != 0)
		return;
	for (int n = 0; n < 16; n++)
		if (write(fd, page, sizeof page) < 0)
			break;
	fsync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	lseek(fd, 0, SEEK_SET);
	for (int n = 0; n < 4; n++)
		if (read(fd, page, sizeof page) < 0)
			break;
	if (write(fd, page, sizeof page) < 0)
		errno = 0;
	close(fd);
	fd = open("/dev/loop0", O_RDWR | O_DIRECT);
	void *direct = aligned_alloc(4096, 1 << 20);
	memset(direct, 1, 1 << 20);
	if (pwrite(fd, direct, 1 << 20, 0) < 0)
		errno = 0;
	free(direct);
	sync();
	ioctl(fd, LOOP_CLR_FD, 0);
	close(fd);
	close(file);
}

static struct sockaddr_in local(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

static void sockets(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	ioctl(fd, SIOCSIFFLAGS, &up);
	struct sockaddr_in here = local(4000), nowhere = local(4999);
	bind(fd, (void *)&here, sizeof here);
	sendto(fd, "text", 4, 0, (void *)&here, sizeof here);
	recv(fd, page, 4, MSG_DONTWAIT);
	// Nobody is there: ICMP tells.
	sendto(fd, "text", 4, 0, (void *)&nowhere, sizeof nowhere);
	int small = 1;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	for (int n = 0; n < 40; n++)
		sendto(fd, page, 1000, 0, (void *)&here, sizeof here);
	close(fd);
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0) {
		if (write(pair[0], "text", 4) == 4 && read(pair[1], page, 4) < 0)
			errno = 0;
		close(pair[0]);
		close(pair[1]);
	}
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	struct sockaddr_in port = local(4001);
	bind(listener, (void *)&port, sizeof port);
	listen(listener, 4);
	pid_t child = fork();
	if (child == 0) {
		int client = socket(AF_INET, SOCK_STREAM, 0);
		connect(client, (void *)&port, sizeof port);
		for (int n = 0; n < 20; n++)
			send(client, page, sizeof page, 0);
		_exit(0);
	}
	int peer = accept(listener, NULL, NULL);
	while (recv(peer, page, sizeof page, 0) > 0)
		;
	close(peer);
	waitpid(child, NULL, 0);
	// Refused: a reset is sent, and received.
	int refused = socket(AF_INET, SOCK_STREAM, 0);
	connect(refused, (void *)&nowhere, sizeof nowhere);
	close(refused);
	close(listener);
}

static void rings(void)
{
	struct io_uring_params params = {0};
	int fd = syscall(SYS_io_uring_setup, 4, &params);
	if (fd < 0)
		return;
	size_t size = params.sq_off.array + params.sq_entries * 4;
	char *ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQ_RING);
	struct io_uring_sqe *entries = mmap(NULL, 4 * sizeof *entries, PROT_READ | PROT_WRITE,
					    MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQES);
	int file = open("/proc/self/exe", O_RDONLY);
	memset(entries, 0, 2 * sizeof *entries);
	entries[0].opcode = IORING_OP_NOP;
	entries[1].opcode = IORING_OP_READ;
	entries[1].flags = IOSQE_ASYNC;
	entries[1].fd = file;
	entries[1].addr = (unsigned long)page;
	entries[1].len = 4096;
	unsigned *array = (unsigned *)(ring + params.sq_off.array);
	array[0] = 0;
	array[1] = 1;
	__atomic_store_n((unsigned *)(ring + params.sq_off.tail), 2, __ATOMIC_RELEASE);
	syscall(SYS_io_uring_enter, fd, 2, 2, IORING_ENTER_GETEVENTS, NULL, 0);
	close(file);
	munmap(entries, 4 * sizeof *entries);
	munmap(ring, size);
	close(fd);
}

static void groups(void)
{
	mkdir("/tmp/cg", 0755);
	mount("none", "/tmp/cg", "cgroup2", 0, NULL);
	mkdir("/tmp/cg/a", 0755);
	pid_t child = fork();
	if (child == 0) {
		put("/tmp/cg/a/cgroup.procs", "0");
		put("/tmp/cg/a/cgroup.freeze", "1");
		_exit(0);
	}
	// However late the child freezes.
	do {
		rest(1000000);
		put("/tmp/cg/a/cgroup.freeze", "0");
	} while (waitpid(child, NULL, WNOHANG) == 0);
	rmdir("/tmp/cg/a");
	umount("/tmp/cg");
}

static void system_wide(void)
{
	put("/proc/sys/vm/compact_memory", "1");
	put("/proc/sys/vm/drop_caches", "3");
	int done = system("modprobe dummy && rmmod dummy");
	(void)done;
	unshare(CLONE_NEWNS | CLONE_NEWUTS);
}

int main(int argc, char **argv)
{
	void (*all[])(void) = {tasks, timers, memory, files, block, sockets, rings, groups, system_wide};
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	puts("begun");
	fflush(stdout);
	for (int round = 0; round < rounds; round++)
		for (unsigned n = 0; n < sizeof all / sizeof *all; n++) {
			all[n]();
			while (waitpid(-1, NULL, WNOHANG) > 0)
				;
		}
	return 0;
}
