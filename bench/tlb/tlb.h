/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What the workloads share: a large array on 4 KiB or 2 MiB pages, and random numbers that are the same everywhere. */
#ifndef KPRISM_BENCH_TLB_H
#define KPRISM_BENCH_TLB_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Zeroed memory, aligned to 2 MiB, between mappings of nobody's, so that the kernel joins it with nothing. With `huge`
 * it asks for transparent huge pages, else it forbids them. */
static inline void *array(size_t bytes, int huge)
{
	const size_t two = 2u << 20;
	size_t room = ((bytes + two - 1) & ~(two - 1)) + 2 * two;
	char *all = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	char *at = (char *)(((uintptr_t)all + two) & ~(uintptr_t)(two - 1));
	if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	madvise(at, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return at;
}

static inline uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return *state = x;
}

/* Argument number n, with suffix K, M or G, or a default. */
static inline uint64_t argument(int argc, char **argv, int n, uint64_t otherwise)
{
	if (n >= argc)
		return otherwise;
	char *end;
	uint64_t value = strtoull(argv[n], &end, 0);
	switch (*end) {
	case 'G': value <<= 10; /* fall through */
	case 'M': value <<= 10; /* fall through */
	case 'K': value <<= 10;
	}
	return value;
}
#endif
