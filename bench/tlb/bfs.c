// SPDX-License-Identifier: MIT OR Apache-2.0
// bfs SCALE EDGES [COLUMN-PAGES]: breadth-first search over a Kronecker graph of 2^SCALE vertices with EDGES edges each
// (the generator and its probabilities are Graph500's), stored as compressed rows: `rowstarts`, `column`; `pred` is
// what the search finds. COLUMN-PAGES 2M puts `column` alone on huge pages, as the PTAT paper does in 6.2.
#include "tlb.h"

int main(int argc, char **argv)
{
	uint64_t scale = argument(argc, argv, 1, 18), degree = argument(argc, argv, 2, 16);
	int huge = argc > 3 && !strcmp(argv[3], "2M");
	uint64_t vertices = 1ull << scale, edges = vertices * degree;
	uint32_t *from = array(edges * 4, 0), *to = array(edges * 4, 0);
	uint64_t state = 88172645463325252u;
	for (uint64_t e = 0; e < edges; e++) {
		uint64_t i = 0, j = 0;
		for (uint64_t bit = 0; bit < scale; bit++) {
			/* A 0.57, B 0.19, C 0.19, D 0.05. */
			uint64_t r = next_random(&state) % 100;
			i = i << 1 | (r >= 76);
			j = j << 1 | ((r >= 57 && r < 76) || r >= 95);
		}
		/* Scrambled, or neighbours would be numbered alike. */
		from[e] = (uint32_t)((i * 0x9e3779b97f4a7c15u >> 20) & (vertices - 1));
		to[e] = (uint32_t)((j * 0x9e3779b97f4a7c15u >> 20) & (vertices - 1));
	}
	uint64_t *rowstarts = array((vertices + 2) * 8, 0);
	uint32_t *column = array(2 * edges * 4, huge);
	int64_t *pred = array(vertices * 8, 0);
	uint32_t *queue = array(vertices * 4, 0);
	for (uint64_t e = 0; e < edges; e++) {
		rowstarts[from[e] + 2]++;
		rowstarts[to[e] + 2]++;
	}
	for (uint64_t v = 2; v < vertices + 2; v++)
		rowstarts[v] += rowstarts[v - 1];
	for (uint64_t e = 0; e < edges; e++) {
		column[rowstarts[from[e] + 1]++] = to[e];
		column[rowstarts[to[e] + 1]++] = from[e];
	}
	munmap(from, edges * 4);
	munmap(to, edges * 4);
	memset(pred, 0xff, vertices * 8);
	uint64_t head = 0, tail = 0, root = 0;
	while (rowstarts[root] == rowstarts[root + 1])
		root++;
	pred[root] = (int64_t)root;
	queue[tail++] = (uint32_t)root;
	while (head < tail) {
		uint32_t v = queue[head++];
		for (uint64_t e = rowstarts[v]; e < rowstarts[v + 1]; e++) {
			uint32_t w = column[e];
			if (pred[w] < 0) {
				pred[w] = v;
				queue[tail++] = w;
			}
		}
	}
	printf("reached %lu of %lu\n", (unsigned long)tail, (unsigned long)vertices);
	printf("rowstarts %#lx column %#lx pred %#lx queue %#lx\n", (unsigned long)rowstarts, (unsigned long)column,
	       (unsigned long)pred, (unsigned long)queue);
	return 0;
}
