/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls and branches whose numbers are known, for the tests of `kprism view`. */
#include <stdio.h>

static unsigned sum;

static inline unsigned twice(unsigned n)
{
	return n * 2;
}

__attribute__((noinline)) static void leaf(unsigned n)
{
	if (n % 4 == 0)
		sum += twice(n);
	else
		sum ^= n; /* <b>bold</b> */
}

__attribute__((noinline)) static void work(unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		leaf(i);
}

int main(void)
{
	work(1000);
	printf("%u\n", sum);
	return 0;
}
