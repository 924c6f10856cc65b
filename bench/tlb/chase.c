// SPDX-License-Identifier: MIT OR Apache-2.0
// chase BYTES STEPS: follows pointers between nodes of 64 bytes in random order and adds up what they hold: one
// dependent access after another, as in 429.mcf.
#include "tlb.h"

struct node {
	struct node *next;
	int64_t cost;
	char rest[48];
};

int main(int argc, char **argv)
{
	uint64_t nodes = argument(argc, argv, 1, 128 << 20) / sizeof(struct node), steps = argument(argc, argv, 2, 4 << 20);
	struct node *arena = array(nodes * sizeof(struct node), 0);
	uint32_t *order = array(nodes * 4, 0);
	uint64_t state = 88172645463325252u;
	for (uint64_t i = 0; i < nodes; i++)
		order[i] = (uint32_t)i;
	/* One cycle through all (Sattolo). */
	for (uint64_t i = nodes - 1; i > 0; i--) {
		uint64_t j = next_random(&state) % i;
		uint32_t t = order[i];
		order[i] = order[j];
		order[j] = t;
	}
	for (uint64_t i = 0; i < nodes; i++) {
		arena[order[i]].next = &arena[order[(i + 1) % nodes]];
		arena[order[i]].cost = (int64_t)i;
	}
	int64_t sum = 0;
	struct node *n = arena;
	for (uint64_t i = 0; i < steps; i++) {
		sum += n->cost;
		n = n->next;
	}
	printf("arena %#lx: %ld\n", (unsigned long)arena, (long)sum);
	return 0;
}
