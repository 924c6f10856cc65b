/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Decodes each PSB segment with an instruction decoder of its own.
 *
 * A decoder that runs through the whole stream carries state across PSB which a reader that starts there
 * does not have (libipt keeps its return stack, for one), so a stream can be wrong without its noticing.
 *
 * After the last packet of a segment the decoder walks on to the next instruction that needs a packet. That
 * walk crosses the place where the next PSB was written, and the next segment begins there again, at the IP
 * of its PSB+ FUP. So what the walk did from that IP on is dropped; a walk that never meets it means that
 * the two segments do not join, and is counted as a bad seam. */
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Instructions walked without a packet behind the last one. */
#define WALK_LIMIT 1000000u

static const uint8_t psb[16] = { 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82 };

size_t find_psb(const struct blob *pt, size_t from)
{
	for (; from + sizeof psb <= pt->size; from++) {
		if (memcmp(pt->bytes + from, psb, sizeof psb))
			continue;
		/* The bytes before may look like the PSB's first ones: take the last place that matches. */
		while (from + 2 + sizeof psb <= pt->size && !memcmp(pt->bytes + from + 2, psb, sizeof psb))
			from += 2;
		return from;
	}
	return pt->size;
}

/* The packets of one segment that move the flow, and what the memory callback needs to place a read. */
struct segment {
	struct code *code;
	const struct pt_insn_decoder *decoder;
	uint64_t begin; /* in the stream */
	uint64_t *flow; /* offsets in the stream */
	size_t num_flow, space;
	size_t passed; /* of those that the decoder is behind, which only grow */
};

static void find_flow(struct segment *segment, const struct pt_config *config)
{
	struct pt_packet_decoder *decoder = must(pt_pkt_alloc_decoder(config));
	struct pt_packet packet;
	uint64_t offset;

	segment->num_flow = segment->passed = 0;
	for (int status = pt_pkt_sync_set(decoder, 0); status >= 0;) {
		pt_pkt_get_offset(decoder, &offset);
		status = pt_pkt_next(decoder, &packet, sizeof packet);
		switch (status < 0 ? ppt_invalid : packet.type) {
		case ppt_tnt_8: case ppt_tnt_64: case ppt_tip: case ppt_tip_pge: case ppt_tip_pgd:
		case ppt_fup: case ppt_ovf: case ppt_pip: case ppt_mode:
			if (segment->num_flow == segment->space) {
				segment->space = 2 * segment->space + 1024;
				segment->flow = must(realloc(segment->flow, segment->space * sizeof offset));
			}
			segment->flow[segment->num_flow++] = segment->begin + offset;
			break;
		default:
			break;
		}
	}
	pt_pkt_free_decoder(decoder);
}

/* Reads code as seen by the packet that the decoder is at: the last one that moves the flow before the
 * decoder's position, as libipt reads ahead over the others. */
static int read_code(uint8_t *buffer, size_t size, const struct pt_asid *asid, uint64_t ip, void *context)
{
	struct segment *segment = context;
	size_t got;

	if (segment->code->applied < segment->code->num_changes) {
		uint64_t offset = 0;

		pt_insn_get_offset(segment->decoder, &offset);
		while (segment->passed < segment->num_flow && segment->flow[segment->passed] < segment->begin + offset)
			segment->passed++;
		code_advance(segment->code, segment->passed ? segment->flow[segment->passed - 1] : segment->begin);
	}
	got = code_read(segment->code, asid->cr3 == pt_asid_no_cr3 ? 0 : asid->cr3, ip, buffer, size);
	return got ? (int)got : -pte_nomap;
}

/* Whether an instruction cannot be left without a packet. */
static int needs_packet(const struct pt_insn *insn)
{
	unsigned at = 0;

	switch (insn->iclass) {
	case ptic_cond_jump: case ptic_return: case ptic_far_call: case ptic_far_return: case ptic_far_jump:
		return 1;
	case ptic_call: case ptic_jump:
		break;
	default:
		return 0;
	}
	/* Direct or indirect: the opcode byte behind the prefixes. */
	for (; at + 1u < insn->size; at++) {
		uint8_t byte = insn->raw[at];

		if (byte == 0x66 || byte == 0x67 || byte == 0xf2 || byte == 0xf3 || byte == 0x2e || byte == 0x36 ||
		    byte == 0x3e || byte == 0x26 || byte == 0x64 || byte == 0x65)
			continue;
		if (insn->mode == ptem_64bit && (byte & 0xf0) == 0x40)
			continue;
		break;
	}
	return insn->raw[at] == 0xff;
}

/* The IP that the PSB+ at `offset` states, if it does. */
static int psb_ip(const struct pt_config *base, const struct blob *pt, size_t offset, uint64_t *ip)
{
	struct pt_config config = *base;
	struct pt_packet_decoder *decoder;
	struct pt_packet packet;
	int found = 0;

	config.begin = pt->bytes + offset;
	config.end = pt->bytes + pt->size;
	decoder = must(pt_pkt_alloc_decoder(&config));
	pt_pkt_sync_set(decoder, 0);
	while (pt_pkt_next(decoder, &packet, sizeof packet) >= 0 && packet.type != ppt_psbend) {
		if (packet.type != ppt_fup || packet.payload.ip.ipc == pt_ipc_suppressed)
			continue;
		*ip = packet.payload.ip.ip;
		if (packet.payload.ip.ipc == pt_ipc_sext_48)
			*ip = (uint64_t)((int64_t)(*ip << 16) >> 16);
		found = 1;
	}
	pt_pkt_free_decoder(decoder);
	return found;
}

void trail_push(struct trail *trail, const struct pt_insn *insn)
{
	if (trail->count == trail->space) {
		trail->space = 2 * trail->space + 4096;
		trail->ips = must(realloc(trail->ips, trail->space * sizeof *trail->ips));
	}
	if (trail->pending)
		trail->tail = trail->count;
	trail->ips[trail->count++] = insn->ip;
	trail->pending = needs_packet(insn);
	trail->enabled = 1;
}

void trail_event(struct trail *trail, const struct pt_event *event)
{
	switch (event->type) {
	case ptev_enabled:
		trail->enabled = 1;
		break;
	case ptev_disabled: case ptev_async_disabled: case ptev_overflow: case ptev_stop:
		trail->enabled = 0;
		break;
	case ptev_async_branch:
		break;
	default:
		return;
	}
	trail->tail = trail->count;
	trail->pending = 0;
}

/* Decodes until the segment's end. Returns libipt's last status.
 *
 * "End of stream" as a flag means that no packet is left; the walk goes on until one is needed. A jump to
 * itself never needs one, hence the limit. */
static int decode(struct pt_insn_decoder *decoder, struct trail *trail)
{
	int status = pt_insn_sync_forward(decoder);
	unsigned walked = 0;

	while (status >= 0) {
		struct pt_insn insn;
		struct pt_event event;

		while (status & pts_event_pending) {
			status = pt_insn_event(decoder, &event, sizeof event);
			if (status < 0)
				return status;
			trail_event(trail, &event);
		}
		if (status & pts_eos && walked++ == WALK_LIMIT)
			return -pte_eos;
		insn.iclass = ptic_error;
		status = pt_insn_next(decoder, &insn, sizeof insn);
		if (insn.iclass != ptic_error)
			trail_push(trail, &insn);
	}
	return status;
}

static uint64_t fnv1a(const struct trail *trail)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < trail->count; i++)
		for (unsigned byte = 0; byte < 64; byte += 8)
			hash = (hash ^ (trail->ips[i] >> byte & 0xff)) * 0x100000001b3u;
	return hash;
}

uint64_t segments(const struct pt_config *base, const struct blob *pt, struct code *code, int quiet)
{
	struct segment segment = { .code = code };
	struct trail trail = { 0 };
	uint64_t insns = 0, errors = 0, seams = 0, count = 0, by_blocks = 0;
	size_t begin = find_psb(pt, 0), end;

	for (; begin < pt->size; begin = end) {
		struct pt_config config = *base;
		struct pt_insn_decoder *decoder;
		struct pt_image *image = must(pt_image_alloc(NULL));
		uint64_t next_ip, at = 0;
		int status;

		end = find_psb(pt, begin + sizeof psb);
		config.begin = pt->bytes + begin;
		config.end = pt->bytes + end;
		segment.begin = begin;
		if (code->num_changes)
			find_flow(&segment, &config);
		decoder = must(pt_insn_alloc_decoder(&config));
		segment.decoder = decoder;
		pt_image_set_callback(image, read_code, &segment);
		pt_insn_set_image(decoder, image);
		code_advance(code, begin);

		trail.count = trail.tail = 0;
		trail.pending = trail.enabled = 0;
		status = decode(decoder, &trail);
		if (status != -pte_eos && !code->num_changes) {
			struct trail blocks = { 0 };

			if (decode_blocks(&config, code, &blocks) == -pte_eos) {
				free(trail.ips);
				trail = blocks;
				status = -pte_eos;
				by_blocks++;
			} else {
				free(blocks.ips);
			}
		}
		if (status != -pte_eos) {
			pt_insn_get_offset(decoder, &at);
			fprintf(stderr, "%#zx: %s near %#llx\n", begin, pt_errstr(pt_errcode(status)),
				(unsigned long long)(trail.count ? trail.ips[trail.count - 1] : 0));
			fprintf(stderr, "  stream offset %#llx\n", (unsigned long long)(begin + at));
		} else if (trail.enabled && end < pt->size && psb_ip(base, pt, end, &next_ip)) {
			size_t i = trail.tail;

			while (i < trail.count && trail.ips[i] != next_ip)
				i++;
			if (i == trail.count && !(trail.pending == 0 && trail.count == trail.tail)) {
				seams++;
				fprintf(stderr, "%#zx: walk to %#llx does not meet %#llx\n", begin,
					(unsigned long long)trail.ips[trail.count - 1], (unsigned long long)next_ip);
			}
			trail.count = i;
		}
		if (!quiet)
			printf("%zu %zu %016llx %d\n", begin, trail.count, (unsigned long long)fnv1a(&trail),
			       status != -pte_eos);
		insns += trail.count;
		errors += status != -pte_eos;
		count++;
		pt_insn_free_decoder(decoder);
		pt_image_free(image);
	}
	printf("total segments %llu insns %llu errors %llu seams %llu by-blocks %llu\n", (unsigned long long)count,
	       (unsigned long long)insns, (unsigned long long)errors, (unsigned long long)seams,
	       (unsigned long long)by_blocks);
	free(trail.ips);
	free(segment.flow);
	return errors + seams;
}
