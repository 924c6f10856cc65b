/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Times libipt's block decoder: the peer for kprism's flow decoder.
 *
 * Code is given to libipt as it is meant to be, in file sections, since its block cache belongs to sections:
 * neighbouring pages become one section, small holes filled. Changes of code are left out, so errors are
 * printed, and a stream that patches code is no fair subject. */
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Holes up to this size are filled with zeros rather than splitting a section. */
#define HOLE (1u << 20)

static uint64_t now(void)
{
	struct timespec time;

	/* CPU time: the machine may be busy with other things. */
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int by_address(const void *left, const void *right)
{
	const struct page *a = *(const struct page *const *)left, *b = *(const struct page *const *)right;

	if (a->asid != b->asid)
		return a->asid < b->asid ? -1 : 1;
	return a->va < b->va ? -1 : a->va > b->va;
}

static void add_section(struct pt_image *image, struct pt_image_section_cache *cache, const char *folder,
			const struct page **pages, size_t count)
{
	static unsigned number;
	char path[64];
	struct pt_asid asid;
	uint64_t base = pages[0]->va, size = pages[count - 1]->va - base + PAGE;
	FILE *file;
	int status;

	snprintf(path, sizeof path, "%s/%u", folder, number++);
	file = fopen(path, "wb");
	for (size_t i = 0; i < count; i++)
		if (!file || fseek(file, (long)(pages[i]->va - base), SEEK_SET) ||
		    fwrite(pages[i]->bytes, 1, PAGE, file) != PAGE)
			die("cannot write %s", path);
	fclose(file);
	pt_asid_init(&asid);
	asid.cr3 = pages[0]->asid ? pages[0]->asid : pt_asid_no_cr3;
	status = pt_iscache_add_file(cache, path, 0, size, base);
	if (status > 0)
		status = pt_image_add_cached(image, cache, status, &asid);
	if (status < 0)
		die("section at %#llx: %s", (unsigned long long)base, pt_errstr(pt_errcode(status)));
}

static struct pt_image *sections(const struct code *code, const char *folder)
{
	struct pt_image *image = must(pt_image_alloc("code"));
	struct pt_image_section_cache *cache = must(pt_iscache_alloc(NULL));
	const struct page **pages = NULL;
	size_t count = 0, space = 0, start = 0;

	for (size_t i = 0; i < sizeof code->buckets / sizeof *code->buckets; i++)
		for (const struct page *page = code->buckets[i]; page; page = page->next) {
			if (count == space)
				pages = must(realloc(pages, (space = 2 * space + 1024) * sizeof *pages));
			pages[count++] = page;
		}
	/* Without it, libipt unmaps a section, and forgets its blocks, each time the flow leaves it. */
	pt_iscache_set_limit(cache, (uint64_t)1 << 32);
	if (count)
		qsort(pages, count, sizeof *pages, by_address);
	for (size_t i = 1; i <= count; i++)
		if (i == count || pages[i]->asid != pages[start]->asid || pages[i]->va - pages[i - 1]->va > HOLE) {
			add_section(image, cache, folder, pages + start, i - start);
			start = i;
		}
	free(pages);
	return image;
}

struct tally {
	uint64_t blocks, insns, errors;
};

static struct tally run_blocks(const struct pt_config *config, struct pt_image *image)
{
	struct pt_block_decoder *decoder = must(pt_blk_alloc_decoder(config));
	struct tally tally = { 0, 0, 0 };
	int status;

	pt_blk_set_image(decoder, image);
	while ((status = pt_blk_sync_forward(decoder)) >= 0) {
		while (status >= 0) {
			struct pt_block block;
			struct pt_event event;

			while (status >= 0 && status & pts_event_pending)
				status = pt_blk_event(decoder, &event, sizeof event);
			if (status < 0)
				break;
			block.ninsn = 0;
			status = pt_blk_next(decoder, &block, sizeof block);
			tally.insns += block.ninsn;
			tally.blocks += block.ninsn != 0;
		}
		tally.errors += status < 0 && status != -pte_eos;
	}
	pt_blk_free_decoder(decoder);
	return tally;
}

static uint64_t run_packets(const struct pt_config *config, uint64_t *branches)
{
	struct pt_packet_decoder *decoder = must(pt_pkt_alloc_decoder(config));
	struct pt_packet packet;
	uint64_t packets = 0;

	*branches = 0;
	while (pt_pkt_sync_forward(decoder) >= 0)
		while (pt_pkt_next(decoder, &packet, sizeof packet) >= 0) {
			packets++;
			if (packet.type == ppt_tnt_8 || packet.type == ppt_tnt_64)
				*branches += packet.payload.tnt.bit_size;
			else if (packet.type == ppt_tip)
				*branches += 1;
		}
	pt_pkt_free_decoder(decoder);
	return packets;
}

void block_bench(const struct pt_config *base, const struct blob *pt, const struct code *code, unsigned runs)
{
	char folder[] = "/tmp/ptoracle.XXXXXX", remove[64];
	struct pt_config config = *base;
	struct pt_image *image;
	struct tally tally = { 0, 0, 0 };
	uint64_t branches = 0, packets = 0, cold = 0, best = UINT64_MAX, best_packets = UINT64_MAX;

	if (!mkdtemp(folder))
		die("cannot make %s", folder);
	image = sections(code, folder);
	config.begin = pt->bytes;
	config.end = pt->bytes + pt->size;
	for (unsigned i = 0; i < runs; i++) {
		uint64_t start = now(), middle;

		tally = run_blocks(&config, image);
		middle = now();
		if (!i)
			cold = middle - start;
		if (middle - start < best)
			best = middle - start;
		packets = run_packets(&config, &branches);
		if (now() - middle < best_packets)
			best_packets = now() - middle;
	}
	printf("libipt blocks: cold_ns %llu best_ns %llu runs %u blocks %llu insns %llu branches %llu errors %llu\n",
	       (unsigned long long)cold, (unsigned long long)best, runs, (unsigned long long)tally.blocks,
	       (unsigned long long)tally.insns, (unsigned long long)branches, (unsigned long long)tally.errors);
	printf("libipt packets: best_ns %llu packets %llu bytes %zu\n", (unsigned long long)best_packets,
	       (unsigned long long)packets, pt->size);
	pt_image_free(image);
	snprintf(remove, sizeof remove, "rm -r %s", folder);
	if (system(remove))
		fprintf(stderr, "left behind: %s\n", folder);
}
