/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Fib: Fibonacci numbers by their definition: conditional branches, calls and returns. */
#include "bench.h"

static uint64_t __attribute__((noinline)) fib(uint64_t n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

int main(void)
{
	result((double)fib(26));
	return 0;
}
