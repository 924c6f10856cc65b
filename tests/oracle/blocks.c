/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A segment by libipt's block decoder, for where its instruction decoder gives up.
 *
 * The two do not agree on all that processors write: a TIP.PGD without IP behind which a near indirect call
 * stands is an error to the one and a plain "tracing went off" to the other. The block decoder tells only how
 * many instructions a block has; their IPs come from walking the block with an instruction decoder over a
 * stream made up of nothing but a PSB+ that states the block's IP. */
#include "oracle.h"

#include <stdlib.h>
#include <string.h>

/* Blocks already walked. Code does not change in segments that come here. */
struct walked {
	struct walked *next;
	uint64_t ip, cr3;
	unsigned count;
	enum pt_exec_mode mode;
	struct pt_insn insns[];
};

static struct walked *cache[1 << 12];

static int read_plain(uint8_t *buffer, size_t size, const struct pt_asid *asid, uint64_t ip, void *context)
{
	const struct code *code = context;
	size_t got = code_read(code, asid->cr3 == pt_asid_no_cr3 ? 0 : asid->cr3, ip, buffer, size);

	return got ? (int)got : -pte_nomap;
}

static size_t put(uint8_t *to, uint64_t value, size_t size)
{
	for (size_t i = 0; i < size; i++)
		to[i] = (uint8_t)(value >> 8 * i);
	return size;
}

/* PSB, PIP, MODE.Exec, FUP, PSBEND. */
static size_t state(uint8_t *to, uint64_t ip, enum pt_exec_mode mode, uint64_t cr3)
{
	size_t at = 0;

	for (unsigned i = 0; i < 8; i++)
		at += put(to + at, 0x8202, 2);
	if (cr3 != pt_asid_no_cr3) {
		at += put(to + at, 0x4302, 2);
		at += put(to + at, cr3 >> 5 << 1, 6);
	}
	at += put(to + at, 0x99, 1);
	at += put(to + at, mode == ptem_64bit ? 1 : mode == ptem_32bit ? 2 : 0, 1);
	at += put(to + at, 0xdd, 1);
	at += put(to + at, ip, 8);
	return at + put(to + at, 0x2302, 2);
}

static const struct walked *walk(const struct pt_config *base, const struct code *code,
				 const struct pt_block *block, uint64_t cr3)
{
	struct walked **head = &cache[(block->ip ^ block->ip >> 12) % (1 << 12)], *found = *head;
	uint8_t bytes[64];
	struct pt_config config = *base;
	struct pt_insn_decoder *decoder;
	struct pt_image *image;
	int status;

	for (; found; found = found->next)
		if (found->ip == block->ip && found->cr3 == cr3 && found->mode == block->mode &&
		    found->count >= block->ninsn)
			return found;
	found = must(calloc(1, sizeof *found + block->ninsn * sizeof *found->insns));
	found->ip = block->ip;
	found->cr3 = cr3;
	found->mode = block->mode;
	config.begin = bytes;
	config.end = bytes + state(bytes, block->ip, block->mode, cr3);
	decoder = must(pt_insn_alloc_decoder(&config));
	image = must(pt_image_alloc(NULL));
	pt_image_set_callback(image, read_plain, (void *)code);
	pt_insn_set_image(decoder, image);
	status = pt_insn_sync_forward(decoder);
	while (status >= 0 && found->count < block->ninsn) {
		struct pt_event event;

		if (status & pts_event_pending) {
			status = pt_insn_event(decoder, &event, sizeof event);
			continue;
		}
		status = pt_insn_next(decoder, &found->insns[found->count], sizeof *found->insns);
		found->count += found->insns[found->count].iclass != ptic_error;
	}
	pt_insn_free_decoder(decoder);
	pt_image_free(image);
	found->next = *head;
	*head = found;
	return found;
}

int decode_blocks(const struct pt_config *config, const struct code *code, struct trail *trail)
{
	struct pt_block_decoder *decoder = must(pt_blk_alloc_decoder(config));
	struct pt_image *image = must(pt_image_alloc(NULL));
	int status;

	pt_image_set_callback(image, read_plain, (void *)code);
	pt_blk_set_image(decoder, image);
	status = pt_blk_sync_forward(decoder);
	while (status >= 0) {
		struct pt_block block;
		struct pt_event event;
		struct pt_asid asid;
		const struct walked *walked;

		if (status & pts_event_pending) {
			status = pt_blk_event(decoder, &event, sizeof event);
			if (status >= 0)
				trail_event(trail, &event);
			continue;
		}
		memset(&block, 0, sizeof block);
		status = pt_blk_next(decoder, &block, sizeof block);
		if (!block.ninsn)
			continue;
		pt_asid_init(&asid);
		pt_blk_asid(decoder, &asid, sizeof asid);
		walked = walk(config, code, &block, asid.cr3);
		if (walked->count < block.ninsn) {
			status = -pte_nomap;
			break;
		}
		for (unsigned i = 0; i < block.ninsn; i++)
			trail_push(trail, &walked->insns[i]);
	}
	pt_blk_free_decoder(decoder);
	pt_image_free(image);
	return status;
}
