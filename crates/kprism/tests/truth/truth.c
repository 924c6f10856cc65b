// SPDX-License-Identifier: MIT OR Apache-2.0
// A program whose calls, instructions and system calls are known exactly. The numbers are mirrored in
// ../truth.rs. Built with -O1 so that frames look like real ones; nothing may be inlined or merged.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone, noipa))

static volatile long sink;
static jmp_buf back;

// Exactly four instructions, the return included.
long leaf(void);
__asm__(".text\n.globl leaf\n.type leaf,@function\nleaf: mov $1,%eax\nadd $2,%eax\nnop\nret\n.size leaf,.-leaf");

// Exactly 2 + 100 * 2 + 1 instructions: a loop of a hundred rounds.
long spin(void);
__asm__(".text\n.globl spin\n.type spin,@function\nspin: mov $100,%ecx\nxor %eax,%eax\n"
	"1: sub $1,%ecx\njne 1b\nret\n.size spin,.-spin");

// A tail call: jumps to leaf, which returns to our caller.
long tail(void);
__asm__(".text\n.globl tail\n.type tail,@function\ntail: jmp leaf\n.size tail,.-tail");

FUNCTION void repeat(int n) { for (int i = 0; i < n; i++) sink += leaf(); }
FUNCTION long recurse(int depth) { return depth ? 1 + recurse(depth - 1) : leaf(); }
FUNCTION void on_signal_inner(void) { sink += spin(); }
FUNCTION void on_signal(int number) { sink += number; on_signal_inner(); }
FUNCTION void interrupted(void) { sink++; raise(SIGUSR1); sink += leaf(); }
FUNCTION void deep3(void) { sink += leaf(); longjmp(back, 1); }
FUNCTION void deep2(void) { deep3(); sink++; }
FUNCTION void deep1(void) { deep2(); sink++; }
FUNCTION void jumper(void) { if (!setjmp(back)) deep1(); sink += leaf(); }
FUNCTION void child(void) { for (int i = 0; i < 11; i++) sink += spin(); }
FUNCTION void faulting(volatile char *fresh) { for (int i = 0; i < 64; i++) fresh[i * 4096] = 1; sink += leaf(); }

int main(void)
{
	struct sigaction action = { .sa_handler = on_signal };

	sigaction(SIGUSR1, &action, NULL);
	repeat(1000);
	for (int i = 0; i < 7; i++) sink += recurse(50);
	for (int i = 0; i < 5; i++) interrupted();
	for (int i = 0; i < 20; i++) jumper();
	for (int i = 0; i < 30; i++) sink += tail();
	for (int i = 0; i < 3; i++) faulting(malloc(64 * 4096));
	for (int i = 0; i < 123; i++) syscall(SYS_getppid);
	for (int i = 0; i < 17; i++) syscall(SYS_getpriority, 0, 0);
	for (int i = 0; i < 4; i++) {
		pid_t pid = fork();
		if (!pid) { child(); _exit(0); }
		waitpid(pid, NULL, 0);
	}
	return 0;
}
