/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Operations of a kernel, one by one: files, faults, memory, processes, context switches, and messages through pipes and sockets.
 *
 * usage: ops [TIMES] [OPERATION...]
 *
 * Prints a line for each operation: its name, how often it was done, and nanoseconds of each by the monotonic clock. In
 * the lab's guest a nanosecond is an instruction, or a round of a string instruction: the number is the work of all tasks
 * that take part. No operation waits with nothing to run, as the guest's time would pass then, too.
 * Each operation is done once before the clock starts. Needs `lo` for TCP and UDP. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define FILES "ops-file"

static const char *program;
static char bytes[64 * 1024];

static void must(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "ops: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A partner process that answers each byte, with `in` and `out` as its own ends. */
static pid_t partner(int in, int out)
{
	pid_t child = fork();

	must(child >= 0, "fork");
	if (child == 0) {
		char byte;

		while (read(in, &byte, 1) == 1)
			if (write(out, &byte, 1) != 1)
				break;
		_exit(0);
	}
	return child;
}

/* Sends a byte and waits for the answer, `times` times. */
static void rounds(long times, int in, int out)
{
	char byte = 0;

	while (times--) {
		must(write(out, &byte, 1) == 1, "write");
		must(read(in, &byte, 1) == 1, "read");
	}
}

/* What is measured: `start` makes ready, `once` is the operation `times` times, `end` cleans up. */
struct operation {
	const char *name;
	long most;
	void (*start)(void);
	void (*once)(long times);
	void (*end)(void);
};

static int ends[2][2], to, from, listener;
static pid_t child;
static struct sockaddr_in address;

static void null_call(long times)
{
	while (times--)
		syscall(SYS_getppid);
}

static void io(long times)
{
	int zero = open("/dev/zero", O_RDONLY);
	char byte;

	must(zero >= 0, "/dev/zero");
	while (times--)
		must(read(zero, &byte, 1) == 1, "read");
	close(zero);
}

static void status(long times)
{
	struct stat st;

	while (times--)
		must(stat("/proc", &st) == 0, "stat");
}

static void open_close(long times)
{
	while (times--)
		close(open("/dev/null", O_RDONLY));
}

static void name_of(char *name, long n)
{
	snprintf(name, 64, FILES "-%ld", n);
}

static void create(long times, size_t size)
{
	char name[64];

	while (times--) {
		int file;

		name_of(name, times);
		file = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0600);
		must(file >= 0, name);
		must(size == 0 || write(file, bytes, size) == (ssize_t)size, "write");
		close(file);
	}
}

static void create_0k(long times)
{
	create(times, 0);
}

static void create_10k(long times)
{
	create(times, 10 * 1024);
}

static void delete(long times)
{
	char name[64];

	while (times--) {
		name_of(name, times);
		must(unlink(name) == 0, name);
	}
}

static int mapped;

static void map_start(void)
{
	mapped = open(FILES, O_CREAT | O_TRUNC | O_RDWR, 0600);
	must(mapped >= 0, FILES);
	for (int i = 0; i < 64; i++)
		must(write(mapped, bytes, sizeof bytes) == sizeof bytes, "write");
}

static void map_end(void)
{
	close(mapped);
	unlink(FILES);
}

/* A mapping of 4 MiB of a file, no page of it touched. */
static void map(long times)
{
	while (times--) {
		void *place = mmap(0, 4 << 20, PROT_READ, MAP_SHARED, mapped, 0);

		must(place != MAP_FAILED, "mmap");
		munmap(place, 4 << 20);
	}
}

/* Faults of pages of a file that is in the page cache. A fault may map neighbours of its page too. */
static void file_fault(long times)
{
	long pages = 1024, n;

	while (times > 0) {
		volatile char *place = mmap(0, pages * PAGE, PROT_READ, MAP_SHARED, mapped, 0);

		must(place != MAP_FAILED, "mmap");
		madvise((void *)place, pages * PAGE, MADV_RANDOM);
		for (n = 0; n < pages && n < times; n++)
			(void)place[n * PAGE];
		munmap((void *)place, pages * PAGE);
		times -= n;
	}
}

static void anonymous_fault(long times)
{
	long pages = 1024, n;

	while (times > 0) {
		volatile char *place =
			mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		must(place != MAP_FAILED, "mmap");
		madvise((void *)place, pages * PAGE, MADV_NOHUGEPAGE);
		for (n = 0; n < pages && n < times; n++)
			place[n * PAGE] = 1;
		munmap((void *)place, pages * PAGE);
		times -= n;
	}
}

static sigjmp_buf back;

static void jump(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static void protection_fault(long times)
{
	static volatile char *place;
	static volatile long left;
	struct sigaction act = { .sa_handler = jump };

	place = mmap(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(place != MAP_FAILED, "mmap");
	sigaction(SIGSEGV, &act, 0);
	left = times;
	sigsetjmp(back, 1);
	if (left-- > 0)
		*place = 1;
	signal(SIGSEGV, SIG_DFL);
	munmap((void *)place, PAGE);
}

static void handler(int signal)
{
	(void)signal;
}

static void install(long times)
{
	struct sigaction act = { .sa_handler = handler };

	while (times--)
		sigaction(SIGUSR1, &act, 0);
}

static void catch(long times)
{
	pid_t me = getpid();

	signal(SIGUSR1, handler);
	while (times--)
		kill(me, SIGUSR1);
}

static void fork_exit(long times)
{
	while (times--) {
		pid_t pid = fork();

		must(pid >= 0, "fork");
		if (pid == 0)
			_exit(0);
		waitpid(pid, 0, 0);
	}
}

static void run(long times, char *const arguments[])
{
	while (times--) {
		pid_t pid = fork();
		int how;

		must(pid >= 0, "fork");
		if (pid == 0) {
			execv(arguments[0], arguments);
			_exit(9);
		}
		waitpid(pid, &how, 0);
		must(WIFEXITED(how) && WEXITSTATUS(how) == 0, arguments[0]);
	}
}

static void fork_exec(long times)
{
	char *arguments[] = { (char *)program, "0", 0 };

	run(times, arguments);
}

static void fork_sh(long times)
{
	char command[4096];
	char *arguments[] = { "/bin/sh", "-c", command, 0 };

	snprintf(command, sizeof command, "%s 0", program);
	run(times, arguments);
}

static void yield(long times)
{
	while (times--)
		sched_yield();
}

static void yielder_start(void)
{
	child = fork();
	must(child >= 0, "fork");
	for (; child == 0;)
		sched_yield();
}

static void reap(void)
{
	kill(child, SIGKILL);
	waitpid(child, 0, 0);
}

static void close_all(void)
{
	close(to);
	if (from != to)
		close(from);
	waitpid(child, 0, 0);
}

static void pipe_start(void)
{
	must(pipe(ends[0]) == 0 && pipe(ends[1]) == 0, "pipe");
	child = fork();
	must(child >= 0, "fork");
	if (child == 0) {
		char byte;

		close(ends[0][1]);
		close(ends[1][0]);
		while (read(ends[0][0], &byte, 1) == 1)
			if (write(ends[1][1], &byte, 1) != 1)
				break;
		_exit(0);
	}
	close(ends[0][0]);
	close(ends[1][1]);
	from = ends[1][0];
	to = ends[0][1];
}

static void unix_start(void)
{
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[0]) == 0, "socketpair");
	child = fork();
	must(child >= 0, "fork");
	if (child == 0) {
		char byte;

		close(ends[0][0]);
		while (read(ends[0][1], &byte, 1) == 1)
			if (write(ends[0][1], &byte, 1) != 1)
				break;
		_exit(0);
	}
	close(ends[0][1]);
	from = to = ends[0][0];
}

static int bound(int kind)
{
	socklen_t size = sizeof address;
	int socket_ = socket(AF_INET, kind | SOCK_CLOEXEC, 0);

	address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	must(socket_ >= 0, "socket");
	must(bind(socket_, (struct sockaddr *)&address, sizeof address) == 0, "bind");
	must(getsockname(socket_, (struct sockaddr *)&address, &size) == 0, "getsockname");
	return socket_;
}

static int connected(int kind)
{
	int one = 1, socket_ = socket(AF_INET, kind | SOCK_CLOEXEC, 0);

	must(socket_ >= 0, "socket");
	must(connect(socket_, (struct sockaddr *)&address, sizeof address) == 0, "connect");
	if (kind == SOCK_STREAM)
		setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return socket_;
}

static void tcp_start(void)
{
	int one = 1, other;

	listener = bound(SOCK_STREAM);
	must(listen(listener, 8) == 0, "listen");
	from = to = connected(SOCK_STREAM);
	other = accept(listener, 0, 0);
	must(other >= 0, "accept");
	setsockopt(other, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	close(listener);
	child = fork();
	must(child >= 0, "fork");
	if (child == 0) {
		char byte;

		close(to);
		while (read(other, &byte, 1) == 1)
			if (write(other, &byte, 1) != 1)
				break;
		_exit(0);
	}
	close(other);
}

static void udp_start(void)
{
	struct sockaddr_in mine, other;
	socklen_t size = sizeof mine;
	int theirs = bound(SOCK_DGRAM);

	other = address;
	from = to = bound(SOCK_DGRAM);
	must(getsockname(to, (struct sockaddr *)&mine, &size) == 0, "getsockname");
	must(connect(to, (struct sockaddr *)&other, sizeof other) == 0, "connect");
	must(connect(theirs, (struct sockaddr *)&mine, sizeof mine) == 0, "connect");
	child = partner(theirs, theirs);
	close(theirs);
}

static void udp_end(void)
{
	reap();
	close(to);
}

static void exchange(long times)
{
	rounds(times, from, to);
}

static void connect_start(void)
{
	listener = bound(SOCK_STREAM);
	must(listen(listener, 64) == 0, "listen");
}

/* A connection opened, accepted, and closed from both sides, the client's by a reset: no state is left to time out. */
static void connect_tcp(long times)
{
	struct linger reset = { 1, 0 };

	while (times--) {
		int ours = connected(SOCK_STREAM), theirs = accept(listener, 0, 0);

		must(theirs >= 0, "accept");
		setsockopt(ours, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
		close(ours);
		close(theirs);
	}
}

static void connect_end(void)
{
	close(listener);
}

/* A select of 100 descriptors of one TCP socket, of which none is ready. */
static int selected[100];

static void select_start(void)
{
	listener = bound(SOCK_STREAM);
	must(listen(listener, 8) == 0, "listen");
	for (int i = 0; i < 100; i++)
		selected[i] = dup(listener);
}

static void select_100(long times)
{
	while (times--) {
		struct timeval none = { 0, 0 };
		fd_set set;

		FD_ZERO(&set);
		for (int i = 0; i < 100; i++)
			FD_SET(selected[i], &set);
		must(select(selected[99] + 1, &set, 0, 0, &none) == 0, "select");
	}
}

static void select_end(void)
{
	for (int i = 0; i < 100; i++)
		close(selected[i]);
	close(listener);
}

static const struct operation operations[] = {
	{ "null-call", 100000, 0, null_call, 0 },
	{ "read-1", 100000, 0, io, 0 },
	{ "stat", 100000, 0, status, 0 },
	{ "open-close", 100000, 0, open_close, 0 },
	{ "select-100-tcp", 1000, select_start, select_100, select_end },
	{ "signal-install", 100000, 0, install, 0 },
	{ "signal-catch", 100000, 0, catch, 0 },
	{ "fork-exit", 50, 0, fork_exit, 0 },
	{ "fork-exec", 20, 0, fork_exec, 0 },
	{ "fork-sh", 20, 0, fork_sh, 0 },
	{ "create-0k", 200, 0, create_0k, 0 },
	{ "delete-0k", 200, 0, delete, 0 },
	{ "create-10k", 200, 0, create_10k, 0 },
	{ "delete-10k", 200, 0, delete, 0 },
	{ "mmap-4m", 1000, map_start, map, map_end },
	{ "file-fault", 10000, map_start, file_fault, map_end },
	{ "anon-fault", 10000, 0, anonymous_fault, 0 },
	{ "prot-fault", 10000, 0, protection_fault, 0 },
	{ "yield-2-tasks", 10000, yielder_start, yield, reap },
	{ "pipe", 10000, pipe_start, exchange, close_all },
	{ "af-unix", 10000, unix_start, exchange, close_all },
	{ "tcp", 10000, tcp_start, exchange, close_all },
	{ "udp", 10000, udp_start, exchange, udp_end },
	{ "tcp-connect", 1000, connect_start, connect_tcp, connect_end },
};

static void measure(const struct operation *one, long times)
{
	long long start, end;

	if (times > one->most)
		times = one->most;
	if (one->start)
		one->start();
	/* Creating and deleting go together: a deletion before the clock would have nothing to delete. */
	if (one->once != delete)
		one->once(1);
	start = now();
	one->once(times);
	end = now();
	if (one->end)
		one->end();
	printf("%s %ld %.1f\n", one->name, times, (double)(end - start) / times);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	long times = argc > 1 ? atol(argv[1]) : 500;
	size_t count = sizeof operations / sizeof *operations, done = 0;

	program = argv[0];
	if (times <= 0)
		return 0;
	for (size_t i = 0; i < count; i++) {
		int wanted = argc <= 2;

		for (int a = 2; a < argc; a++)
			wanted |= !strcmp(argv[a], operations[i].name);
		if (wanted) {
			measure(&operations[i], times);
			done++;
		}
	}
	must(done > 0, "no operation of these names");
	return 0;
}
