/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Prints the events that libipt's instruction decoder tells beside the flow, one line each. See README.md. */
#include "oracle.h"

#include <stdio.h>

/* Instructions walked without a packet behind the last one. */
#define WALK_LIMIT 1000000u

struct reader {
	const struct code *code;
};

static int read_code(uint8_t *buffer, size_t size, const struct pt_asid *asid, uint64_t ip, void *context)
{
	const struct reader *reader = context;
	size_t got = code_read(reader->code, asid->cr3 == pt_asid_no_cr3 ? 0 : asid->cr3, ip, buffer, size);

	return got ? (int)got : -pte_nomap;
}

static void place(const struct pt_event *event, uint64_t ip, int has_ip, uint64_t insns)
{
	if (has_ip && !event->ip_suppressed)
		printf(" at %llx after %llu\n", (unsigned long long)ip, (unsigned long long)insns);
	else
		printf(" at - after %llu\n", (unsigned long long)insns);
}

static void print_event(const struct pt_event *event, uint64_t insns)
{
	/* A PSB+ restates these. */
	if (event->status_update)
		return;
	switch (event->type) {
	case ptev_ptwrite:
		printf("ptwrite %u %llx", event->variant.ptwrite.size,
		       (unsigned long long)event->variant.ptwrite.payload);
		place(event, event->variant.ptwrite.ip, 1, insns);
		break;
	case ptev_mwait:
		printf("mwait %x %x", event->variant.mwait.hints, event->variant.mwait.ext);
		place(event, event->variant.mwait.ip, 1, insns);
		break;
	case ptev_exstop:
		printf("exstop");
		place(event, event->variant.exstop.ip, 1, insns);
		break;
	case ptev_pwre:
		printf("pwre %u %u %u", event->variant.pwre.state, event->variant.pwre.sub_state,
		       event->variant.pwre.hw);
		place(event, 0, 0, insns);
		break;
	case ptev_pwrx:
		printf("pwrx %u %u %u", event->variant.pwrx.last, event->variant.pwrx.deepest,
		       event->variant.pwrx.interrupt | event->variant.pwrx.store << 2 |
			       event->variant.pwrx.autonomous << 3);
		place(event, 0, 0, insns);
		break;
	case ptev_cbr:
		printf("cbr %u", event->variant.cbr.ratio);
		place(event, 0, 0, insns);
		break;
	case ptev_mnt:
		printf("mnt %llx", (unsigned long long)event->variant.mnt.payload);
		place(event, 0, 0, insns);
		break;
	default:
		break;
	}
}

int print_events(const struct pt_config *base, const struct blob *pt, const struct code *code)
{
	struct pt_config config = *base;
	struct reader reader = { .code = code };
	struct pt_image *image = must(pt_image_alloc(NULL));
	struct pt_insn_decoder *decoder;
	uint64_t insns = 0;
	unsigned walked = 0;
	int status;

	config.begin = pt->bytes;
	config.end = pt->bytes + pt->size;
	decoder = must(pt_insn_alloc_decoder(&config));
	pt_image_set_callback(image, read_code, &reader);
	pt_insn_set_image(decoder, image);
	status = pt_insn_sync_forward(decoder);
	while (status >= 0) {
		struct pt_insn insn;
		struct pt_event event;

		while (status & pts_event_pending) {
			status = pt_insn_event(decoder, &event, sizeof event);
			if (status < 0)
				break;
			print_event(&event, insns);
		}
		if (status < 0 || ((status & pts_eos) && walked++ == WALK_LIMIT))
			break;
		insn.iclass = ptic_error;
		status = pt_insn_next(decoder, &insn, sizeof insn);
		insns += insn.iclass != ptic_error;
	}
	if (status < 0 && status != -pte_eos)
		fprintf(stderr, "%s after %llu instructions\n", pt_errstr(pt_errcode(status)),
			(unsigned long long)insns);
	pt_insn_free_decoder(decoder);
	pt_image_free(image);
	return status < 0 && status != -pte_eos;
}
