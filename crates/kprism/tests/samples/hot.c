// SPDX-License-Identifier: MIT OR Apache-2.0
// A program that a compiler cannot guess: which operation is called, which branch is taken.
#include <stdio.h>

typedef unsigned (*operation)(unsigned);

static unsigned add(unsigned x) { return x + 7; }
static unsigned twist(unsigned x) { return (x << 3) ^ (x >> 2); }
static unsigned never(unsigned x) { return x / 3; }

static operation operations[] = { add, twist, never };

static unsigned big(unsigned x, unsigned kind)
{
	if (kind == 77) {
		x = x * 31 + kind;
		x ^= x >> 7;
		x += kind % 11;
		x ^= x << 5;
		x += kind % 13;
		x ^= x >> 3;
		puts("seldom");
	}
	if (x & 1)
		return x * 5 + 1;
	return x + kind;
}

__attribute__((noinline)) static unsigned other(unsigned x)
{
	return big(x, 77) + big(x + 1, 77) + big(x + 2, 3);
}

__attribute__((noinline)) static unsigned loop(unsigned n, unsigned which)
{
	unsigned sum = 0;
	for (unsigned i = 0; i < n; i++) {
		sum += operations[which](i);
		sum = big(sum, i & 7);
		if (i % 1000 == 999)
			sum += other(sum) & 1;
	}
	return sum;
}

int main(int argc, char **argv)
{
	(void)argv;
	printf("%u\n", loop(20000, (unsigned)argc));
	return 0;
}
