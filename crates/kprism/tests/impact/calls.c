// SPDX-License-Identifier: MIT OR Apache-2.0
// Makes known system calls, each at a place of its own but the last two. Built without a C library, so that
// nothing else is called.

static inline long call(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

#define AT(name) static __attribute__((noinline)) long name

AT(do_getppid)(void) { return call(110, 0, 0, 0, 0, 0, 0); }
AT(do_mmap)(void) { return call(9, 0, 8192, 3, 0x22, -1, 0); }
AT(do_munmap)(long at) { return call(11, at, 8192, 0, 0, 0, 0); }
AT(do_open)(const char *path) { return call(257, -100, (long)path, 0, 0, 0, 0); }
AT(do_read)(long fd, char *to, long n) { return call(0, fd, (long)to, n, 0, 0, 0); }
AT(do_close)(long fd) { return call(3, fd, 0, 0, 0, 0, 0); }
AT(do_any)(long n) { return call(n, 0, 0, 0, 0, 0, 0); }
AT(do_exit)(void) { return call(231, 0, 0, 0, 0, 0, 0); }

void _start(void)
{
	static char buffer[64];
	for (int i = 0; i < 7; i++)
		do_getppid();
	for (int i = 0; i < 5; i++)
		do_munmap(do_mmap());
	long fd = do_open("/dev/zero");
	for (int i = 0; i < 3; i++)
		do_read(fd, buffer, sizeof buffer);
	do_close(fd);
	do_any(102); // getuid
	do_any(104); // getgid
	do_exit();
}
