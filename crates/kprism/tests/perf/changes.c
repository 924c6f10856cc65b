// SPDX-License-Identifier: MIT OR Apache-2.0
// Code that differs between processes: children of fork rewrite their copies of a generated page, whose parent goes on with its own;
// a debugger sets breakpoints in the text of children, steps over them, and runs the same function itself.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 5 };

static volatile int sum;

__attribute__((noinline, aligned(64))) int broken(int n)
{
	sum += n;
	sum ^= 3;
	return sum;
}

// mov $value, %eax; some nops; ret
static void generate(uint8_t *code, uint32_t value)
{
	*code++ = 0xb8;
	memcpy(code, &value, 4);
	memset(code + 4, 0x90, value % 16);
	code[4 + value % 16] = 0xc3;
}

static uint32_t run(uint8_t *code)
{
	return ((uint32_t (*)(void))code)();
}

static int rewritten(void)
{
	int wrong = 0;
	uint8_t *code = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	generate(code, 0x1001);
	wrong += run(code) != 0x1001;
	for (int i = 0; i < CHILDREN; i++) {
		pid_t child = fork();
		int status;

		if (!child) {
			generate(code, 0x2008 + i);
			_exit(run(code) != (uint32_t)0x2008 + i);
		}
		waitpid(child, &status, 0);
		wrong += status != 0;
		wrong += run(code) != 0x1001;
	}
	return wrong;
}

static int stepped(void)
{
	int hits = 0;

	for (int i = 0; i < CHILDREN; i++) {
		pid_t child = fork();
		int status;

		if (!child) {
			ptrace(PTRACE_TRACEME, 0, 0, 0);
			raise(SIGSTOP);
			broken(1);
			broken(2);
			_exit(0);
		}
		waitpid(child, &status, 0);
		long own = ptrace(PTRACE_PEEKTEXT, child, broken, 0);
		long breakpoint = (own & ~0xffL) | 0xcc;

		ptrace(PTRACE_POKETEXT, child, broken, breakpoint);
		ptrace(PTRACE_CONT, child, 0, 0);
		while (waitpid(child, &status, 0) > 0 && WIFSTOPPED(status)) {
			struct user_regs_struct regs;

			hits++;
			ptrace(PTRACE_GETREGS, child, 0, &regs);
			regs.rip--;
			ptrace(PTRACE_SETREGS, child, 0, &regs);
			ptrace(PTRACE_POKETEXT, child, broken, own);
			ptrace(PTRACE_SINGLESTEP, child, 0, 0);
			waitpid(child, &status, 0);
			ptrace(PTRACE_POKETEXT, child, broken, breakpoint);
			ptrace(PTRACE_CONT, child, 0, 0);
		}
		broken(5);
	}
	return hits;
}

int main(void)
{
	int wrong = rewritten(), hits = stepped();

	printf("%d wrong, %d hits\n", wrong, hits);
	return wrong || hits != 2 * CHILDREN;
}
