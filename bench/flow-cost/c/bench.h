/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the micro-benchmarks share: a random number generator whose numbers are the same everywhere, and a way to
 * print a result, so that no compiler leaves the work out and every machine can be seen to do the same. */
#include <stdint.h>
#include <stdio.h>

static uint64_t state = 88172645463325252u;

/* Marsaglia, "Xorshift RNGs", 2003. */
static uint64_t random_bits(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* From 0 to 1. */
static double random_unit(void)
{
	return (double)(random_bits() >> 11) * 0x1p-53;
}

static void result(double value)
{
	(void)random_unit;
	printf("%.9g\n", value);
}
