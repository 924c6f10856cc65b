// SPDX-License-Identifier: MIT OR Apache-2.0
// Two coroutines that go back to main in turn, from a function that they call: each function is called as often as the
// source says, however often it is left and resumed.

#define _GNU_SOURCE
#include <ucontext.h>

#define ROUNDS 50

static ucontext_t main_context, contexts[2];
static char stacks[2][64 * 1024];
static volatile long sink;

__attribute__((noipa)) void step(void)
{
	sink++;
}

__attribute__((noipa)) void wait_for_turn(int me)
{
	for (int i = 0; i < ROUNDS; i++) {
		step();
		swapcontext(&contexts[me], &main_context);
	}
}

__attribute__((noipa)) void coroutine(int me)
{
	wait_for_turn(me);
	sink += me;
}

__attribute__((noipa)) void scheduler(void)
{
	for (int round = 0; round <= ROUNDS; round++)
		for (int i = 0; i < 2; i++)
			swapcontext(&main_context, &contexts[i]);
}

int main(void)
{
	for (int i = 0; i < 2; i++) {
		getcontext(&contexts[i]);
		contexts[i].uc_stack.ss_sp = stacks[i];
		contexts[i].uc_stack.ss_size = sizeof stacks[i];
		contexts[i].uc_link = &main_context;
		makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
	}
	scheduler();
	return 0;
}
