// SPDX-License-Identifier: MIT OR Apache-2.0
// A program of which all system calls are known: 100 getppid, 20 times open, fstat, read until the end, close; 30 writes to a
// pipe and reads from it; 64 pages touched.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	static char buffer[4096];
	struct stat found;
	int pipes[2];

	for (int i = 0; i < 100; i++)
		syscall(SYS_getppid);
	for (int i = 0; i < 20; i++) {
		int fd = open("/etc/kprism-work", O_RDONLY);

		if (fd < 0 || fstat(fd, &found))
			return 1;
		while (read(fd, buffer, sizeof(buffer)) > 0)
			;
		close(fd);
	}
	if (pipe(pipes))
		return 1;
	for (int i = 0; i < 30; i++)
		if (write(pipes[1], buffer, 64) != 64 || read(pipes[0], buffer, 64) != 64)
			return 1;
	char *memory = mmap(0, 64 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return 1;
	for (int i = 0; i < 64; i++)
		memory[i << 12] = 1;
	return munmap(memory, 64 << 12);
}
