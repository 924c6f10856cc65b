/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A million rounds of a loop: empty (Epsilon), or with a conditional branch that is always taken, to the next
 * instruction (Omega, built with -DOMEGA). What they differ in is the cost of a million TNT bits.
 *
 * With -DALONE -nostdlib it is the loop and nothing else, whatever C library there is: for counts that are exact. */
#ifdef ALONE
#include <stdint.h>
#else
#include "bench.h"
#endif

static uint64_t loop(uint64_t rounds)
{

	__asm__ volatile("1:\n\t"
#ifdef OMEGA
			 "mov $42, %%r8\n\t"
			 "mov $42, %%r9\n\t"
			 "cmp %%r8, %%r9\n\t"
			 "je 2f\n"
			 "2:\n\t"
			 "nop\n\t"
#endif
			 "dec %0\n\t"
			 "jnz 1b"
			 : "+r"(rounds)
			 :
			 : "r8", "r9", "cc");
	return rounds;
}

#ifdef ALONE
void _start(void)
{
	__asm__ volatile("syscall" : : "a"(60), "D"(loop(1000000)));
	__builtin_unreachable();
}
#else
int main(void)
{
	result((double)loop(1000000));
	return 0;
}
#endif
