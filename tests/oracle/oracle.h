/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* ptoracle: decodes PT streams with Intel's libipt, so that kprism's encoder and decoder can be held against
 * a decoder that shares no code with them. See README.md for what it prints. */
#ifndef PTORACLE_H
#define PTORACLE_H

#include <intel-pt.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE 4096u

/* A whole file in memory. */
struct blob {
	uint8_t *bytes;
	size_t size;
};

/* One page of code in one address space (0: the kernel's half, or any space when a user address). */
struct page {
	uint64_t asid, va;
	struct page *next; /* of the same hash */
	uint8_t known[PAGE / 8];
	uint8_t bytes[PAGE];
};

/* Bytes that replace others from a stream offset on. */
struct change {
	uint64_t offset, asid, va;
	const uint8_t *bytes;
	size_t size;
	size_t index;
};

/* All code of one stream. Pages hold what is valid at the offset last asked for. */
struct code {
	struct page *buckets[1 << 14];
	struct change *changes; /* by offset */
	size_t num_changes, applied;
	struct blob dict; /* `changes` points into it */
};

/* Reads a whole file; exits with a message on failure. */
struct blob read_file(const char *path);
void *must(void *allocation);
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Code from code.dict and a cpuN.map, from a list of pages (`tgid va size file`), from a raw file. */
void code_load_streams(struct code *code, const char *dict, const char *map);
void code_load_pages(struct code *code, const char *list);
void code_load_raw(struct code *code, const char *path, uint64_t va);
/* Applies the changes up to a stream offset; offsets must not decrease. */
void code_advance(struct code *code, uint64_t offset);
/* Copies known bytes, across pages, and returns how many. */
size_t code_read(const struct code *code, uint64_t cr3, uint64_t va, uint8_t *buffer, size_t size);

/* Offset of the first PSB at or after `from`; the size when there is none. */
size_t find_psb(const struct blob *pt, size_t from);

/* The executed instructions of a segment. */
struct trail {
	uint64_t *ips;
	size_t count, space;
	size_t tail; /* index behind the last instruction that a packet moved the flow on from */
	int pending; /* the last instruction needs a packet, not known to have come */
	int enabled;
};

void trail_push(struct trail *trail, const struct pt_insn *insn);
void trail_event(struct trail *trail, const struct pt_event *event);
/* Decodes the segment in `config` with the block decoder. Returns libipt's last status. */
int decode_blocks(const struct pt_config *config, const struct code *code, struct trail *trail);

/* Decodes every PSB segment on its own; returns the number of errors. */
uint64_t segments(const struct pt_config *base, const struct blob *pt, struct code *code, int quiet);
/* Prints the events that libipt tells beside the flow of the whole stream; returns 1 after an error. */
int print_events(const struct pt_config *base, const struct blob *pt, const struct code *code);
/* Times libipt's block decoder and packet decoder over the whole stream. */
void block_bench(const struct pt_config *base, const struct blob *pt, const struct code *code, unsigned runs);

#endif
