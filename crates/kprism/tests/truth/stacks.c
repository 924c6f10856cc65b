// SPDX-License-Identifier: MIT OR Apache-2.0
// Two stacks beside main's, switched by hand: main goes to the first, that one to the second, that one back to main. Each is
// left in a function that others called.

#define ROUNDS 50

void switch_to(void **from, void *to);
asm(".text\n"
    ".globl switch_to\n"
    ".type switch_to, @function\n"
    "switch_to:\n"
    "	push %rbp\n	push %rbx\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
    "	mov %rsp, (%rdi)\n"
    "	mov %rsi, %rsp\n"
    "	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbx\n	pop %rbp\n"
    "	ret\n"
    ".size switch_to, . - switch_to\n");

static void *at[3];
static void *stacks[2][8192] __attribute__((aligned(16)));
static volatile long sink;

__attribute__((noipa)) void work(void)
{
	sink++;
}

__attribute__((noipa)) void first_inner(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		work();
		switch_to(&at[1], at[2]);
	}
	sink++;
}

__attribute__((noipa)) void first_middle(void)
{
	first_inner();
	sink++;
}

__attribute__((noipa)) void first(void)
{
	first_middle();
	for (;;)
		switch_to(&at[1], at[0]);
}

__attribute__((noipa)) void second_inner(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		work();
		switch_to(&at[2], at[0]);
	}
	sink++;
}

__attribute__((noipa)) void second(void)
{
	second_inner();
	for (;;)
		switch_to(&at[2], at[0]);
}

static void *prepared(void **stack, void (*entry)(void))
{
	void **top = stack + 8192 - 2;
	*--top = entry;
	return top - 6;
}

__attribute__((noipa)) void turns(void)
{
	for (int i = 0; i < ROUNDS; i++)
		switch_to(&at[0], at[1]);
	sink++;
}

int main(void)
{
	at[1] = prepared(stacks[0], first);
	at[2] = prepared(stacks[1], second);
	turns();
	return 0;
}
