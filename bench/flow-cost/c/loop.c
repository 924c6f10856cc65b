/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A million rounds of a loop: empty (Epsilon), or with a conditional branch that is always taken, to the next
 * instruction (Omega, built with -DOMEGA). What they differ in is the cost of a million TNT bits. */
#include "bench.h"

int main(void)
{
	uint64_t rounds = 1000000;

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
	result((double)rounds);
	return 0;
}
