// SPDX-License-Identifier: MIT OR Apache-2.0
// stride PAGES ROUNDS [4K|2M]: writes the first word of every page once, then reads them in order, ROUNDS times.
// Prints where the array begins and ends. What misses is known in advance, which makes it a test of everything.
#include "tlb.h"

int main(int argc, char **argv)
{
	uint64_t pages = argument(argc, argv, 1, 8192), rounds = argument(argc, argv, 2, 3);
	int huge = argc > 3 && !strcmp(argv[3], "2M");
	size_t bytes = huge ? 2u << 20 : 4096;
	volatile char *a = array(pages * bytes, huge);
	for (uint64_t i = 0; i < pages; i++)
		a[i * bytes] = 1;
	uint64_t sum = 0;
	for (uint64_t r = 0; r < rounds; r++)
		for (uint64_t i = 0; i < pages; i++)
			sum += a[i * bytes];
	printf("%#lx %#lx %lu\n", (unsigned long)a, (unsigned long)a + pages * bytes, (unsigned long)sum);
	return sum != pages * rounds;
}
