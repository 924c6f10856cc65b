// SPDX-License-Identifier: MIT OR Apache-2.0
// chase BYTES STEPS [malloc]: follows pointers between nodes of 64 bytes in random order and adds up what they hold: one
// dependent access after another, as in 429.mcf. The nodes are one array, or each allocated by itself.
#include "tlb.h"

struct node {
	struct node *next;
	int64_t cost;
	char rest[48];
};

int main(int argc, char **argv)
{
	uint64_t nodes = argument(argc, argv, 1, 128 << 20) / sizeof(struct node), steps = argument(argc, argv, 2, 4 << 20);
	int scattered = argc > 3 && !strcmp(argv[3], "malloc");
	struct node *arena = scattered ? NULL : array(nodes * sizeof(struct node), 0);
	struct node **all = array(nodes * sizeof(*all), 0);
	uint32_t *order = array(nodes * 4, 0);
	uint64_t state = 88172645463325252u;
	for (uint64_t i = 0; i < nodes; i++) {
		all[i] = scattered ? malloc(sizeof(struct node)) : &arena[i];
		order[i] = (uint32_t)i;
	}
	/* One cycle through all (Sattolo). */
	for (uint64_t i = nodes - 1; i > 0; i--) {
		uint64_t j = next_random(&state) % i;
		uint32_t t = order[i];
		order[i] = order[j];
		order[j] = t;
	}
	for (uint64_t i = 0; i < nodes; i++) {
		all[order[i]]->next = all[order[(i + 1) % nodes]];
		all[order[i]]->cost = (int64_t)i;
	}
	int64_t sum = 0;
	struct node *n = all[0];
	for (uint64_t i = 0; i < steps; i++) {
		sum += n->cost;
		n = n->next;
	}
	printf("arena %#lx: %ld\n", (unsigned long)arena, (long)sum);
	return 0;
}
