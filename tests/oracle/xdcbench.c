/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Times libxdc (github.com/nyx-fuzz/libxdc), the fuzzers' decoder: a peer for kprism's flow decoder on the streams
 * that it reads, which have neither RET compression nor timing packets. It gives a bitmap of edges rather than a flow.
 *
 *     xdcbench RUNS FILE.pt xpages.txt
 *
 * Cold is the first decode of a new decoder, warm the second one of the same decoder: best of RUNS, CPU time. The hash
 * is of the bitmap, as libxdc's own tester prints it. */
#include "oracle.h"

#include <libxdc.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#define BITMAP 0x10000u

static const char *const results[] = {
	"success", "success with overflows", "code missing", "error", "unknown packet",
};

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Pages sorted by address, for the callback. */
struct pages {
	struct page **list;
	size_t count;
};

static int by_address(const void *left, const void *right)
{
	const struct page *a = *(struct page *const *)left, *b = *(struct page *const *)right;

	return a->va < b->va ? -1 : a->va > b->va;
}

static struct pages sort_pages(const struct code *code)
{
	struct pages pages = { NULL, 0 };
	size_t space = 0;

	for (size_t i = 0; i < sizeof code->buckets / sizeof *code->buckets; i++)
		for (struct page *page = code->buckets[i]; page; page = page->next) {
			if (pages.count == space)
				pages.list = must(realloc(pages.list, (space = 2 * space + 64) * sizeof *pages.list));
			pages.list[pages.count++] = page;
		}
	if (!pages.count)
		die("no code");
	qsort(pages.list, pages.count, sizeof *pages.list, by_address);
	return pages;
}

static void *fetch(void *context, uint64_t va, bool *found)
{
	const struct pages *pages = context;
	struct page key = { .va = va & ~(uint64_t)(PAGE - 1) }, *wanted = &key, **page;

	page = bsearch(&wanted, pages->list, pages->count, sizeof *pages->list, by_address);
	*found = page != NULL;
	return page ? (*page)->bytes : NULL;
}

int main(int argc, char **argv)
{
	static struct code code;
	static uint8_t bitmap[BITMAP];
	struct blob pt;
	struct pages pages;
	uint64_t cold = UINT64_MAX, warm = UINT64_MAX, hash = 0, filter[4][2] = { { 0, 0 } };
	decoder_result_t result = decoder_error;
	int runs = argc == 4 ? atoi(argv[1]) : 0;

	if (runs <= 0)
		die("usage: xdcbench RUNS FILE.pt xpages.txt");
	pt = read_file(argv[2]);
	code_load_pages(&code, argv[3]);
	pages = sort_pages(&code);
	filter[0][0] = pages.list[0]->va;
	filter[0][1] = pages.list[pages.count - 1]->va + PAGE;
	/* libxdc looks for its end mark behind the stream. */
	pt.bytes[pt.size] = PT_TRACE_END;
	for (int i = 0; i < runs; i++) {
		libxdc_t *decoder = libxdc_init(filter, fetch, &pages, bitmap, BITMAP);
		uint64_t start, middle;

		must(decoder);
		memset(bitmap, 0, sizeof bitmap);
		start = now();
		result = libxdc_decode(decoder, pt.bytes, pt.size);
		middle = now();
		hash = libxdc_bitmap_get_hash(decoder);
		if (middle - start < cold)
			cold = middle - start;
		libxdc_bitmap_reset(decoder);
		start = now();
		libxdc_decode(decoder, pt.bytes, pt.size);
		middle = now();
		if (middle - start < warm)
			warm = middle - start;
		libxdc_free(decoder);
	}
	printf("libxdc: cold_ns %llu warm_ns %llu runs %d hash %#llx %s\n", (unsigned long long)cold,
	       (unsigned long long)warm, runs, (unsigned long long)hash, results[result]);
	return result > decoder_success_pt_overflow;
}
