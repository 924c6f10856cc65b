// SPDX-License-Identifier: MIT OR Apache-2.0
// gups BYTES UPDATES [4K|2M]: updates random words of a table, as HPCC's RandomAccess does.
#include "tlb.h"

int main(int argc, char **argv)
{
	uint64_t words = argument(argc, argv, 1, 256 << 20) / 8, updates = argument(argc, argv, 2, 4 << 20);
	uint64_t *table = array(words * 8, argc > 3 && !strcmp(argv[3], "2M"));
	for (uint64_t i = 0; i < words; i++)
		table[i] = i;
	uint64_t state = 88172645463325252u;
	for (uint64_t i = 0; i < updates; i++) {
		uint64_t r = next_random(&state);
		table[r % words] ^= r;
	}
	uint64_t sum = 0;
	for (uint64_t i = 0; i < words; i += 512)
		sum ^= table[i];
	printf("table %#lx %lu: %#lx\n", (unsigned long)table, words * 8, (unsigned long)sum);
	return 0;
}
