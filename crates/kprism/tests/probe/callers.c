// SPDX-License-Identifier: MIT OR Apache-2.0
// Functions that call each other a known number of times: `leaf` 3 times from `first`, which `outer` calls twice of these
// times, 4 times from `second`; and itself once.
#include <stdio.h>
#include <unistd.h>

volatile long sum;

__attribute__((noinline)) void leaf(long n)
{
	sum += n;
	if (n == 99)
		leaf(0);
	__asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) void first(long n)
{
	leaf(n);
	__asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) void second(long n)
{
	leaf(n);
	__asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) void outer(long n)
{
	first(n);
	__asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) void down(long n)
{
	if (n > 0)
		down(n - 1);
	else
		leaf(7);
	__asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1) {
		down(40);
		return 0;
	}
	outer(1);
	outer(2);
	first(3);
	for (long n = 10; n < 13; n++)
		second(n);
	second(99);
	return 0;
}
