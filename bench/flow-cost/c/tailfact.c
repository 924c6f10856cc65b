/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* TailFact: factorials by tail calls whose target is known at run time only, so every call is an indirect jump and
 * every indirect jump a TIP packet. */
#include "bench.h"

typedef uint64_t step(uint64_t n, uint64_t product);

static step even, odd;
/* Volatile: the compiler may not see where the calls lead. */
static step *volatile steps[2] = { even, odd };

static uint64_t even(uint64_t n, uint64_t product)
{
	return n ? steps[1](n - 1, product * n) : product;
}

static uint64_t odd(uint64_t n, uint64_t product)
{
	return n ? steps[0](n - 1, product * n) : product;
}

int main(void)
{
	uint64_t sum = 0;

	for (int i = 0; i < 50000; i++)
		sum += steps[0](20, 1);
	result((double)sum);
	return 0;
}
