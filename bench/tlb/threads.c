// SPDX-License-Identifier: MIT OR Apache-2.0
// threads THREADS gups|chase|stride BYTES STEPS: each thread works on a part of one array that is its own: random updates,
// a pointer chase, or loads of one page after another.
#include "tlb.h"
#include <pthread.h>

struct work {
	uint64_t *part;
	uint64_t words, steps, number;
	char kind;
};

static void *run(void *argument)
{
	struct work *w = argument;
	uint64_t state = 88172645463325252u + w->number, sum = 0;
	if (w->kind == 'c') {
		/* One cycle through the first words of all lines (Sattolo), by index. */
		uint64_t lines = w->words / 8;
		for (uint64_t i = 0; i < lines; i++)
			w->part[i * 8] = i;
		for (uint64_t i = lines - 1; i > 0; i--) {
			uint64_t j = next_random(&state) % i, t = w->part[i * 8];
			w->part[i * 8] = w->part[j * 8];
			w->part[j * 8] = t;
		}
	} else {
		for (uint64_t i = 0; i < w->words; i += 512)
			w->part[i] = 1;
	}
	for (uint64_t i = 0, at = 0; i < w->steps; i++) {
		uint64_t r = next_random(&state);
		switch (w->kind) {
		case 'g': w->part[r % w->words] ^= r; break;
		case 'c': at = w->part[at * 8]; sum += at; break;
		default: sum += w->part[i * 512 % w->words];
		}
	}
	return (void *)sum;
}

int main(int argc, char **argv)
{
	uint64_t threads = argument(argc, argv, 1, 2), bytes = argument(argc, argv, 3, 64 << 20);
	uint64_t steps = argument(argc, argv, 4, 1 << 20);
	if (threads < 1 || threads > 64)
		return 1;
	uint64_t *all = array(bytes, 0), words = bytes / 8 / threads & ~(uint64_t)511;
	struct work works[64];
	pthread_t ids[64];
	for (uint64_t t = 0; t < threads; t++) {
		works[t] = (struct work){ all + t * words, words, steps, t, argc > 2 ? argv[2][0] : 'g' };
		if (pthread_create(&ids[t], NULL, run, &works[t]))
			return 1;
	}
	for (uint64_t t = 0; t < threads; t++)
		pthread_join(ids[t], NULL);
	printf("array %#lx %lu part %lu\n", (unsigned long)all, (unsigned long)bytes, (unsigned long)(words * 8));
	return 0;
}
