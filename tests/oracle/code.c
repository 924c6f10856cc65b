/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Code bytes by (address space, address), with changes by stream offset.
 *
 * The map's records come in stream order. One without the conflict flag adds bytes that were never known
 * before, and counts from the stream's start. One with it replaces bytes from its offset on. */
#include "oracle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("ptoracle: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(2);
}

void *must(void *allocation)
{
	if (!allocation)
		die("out of memory");
	return allocation;
}

struct blob read_file(const char *path)
{
	struct blob blob = { NULL, 0 };
	FILE *file = fopen(path, "rb");
	long size;

	if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET))
		die("cannot read %s", path);
	blob.size = (size_t)size;
	blob.bytes = must(malloc(blob.size + 1));
	if (fread(blob.bytes, 1, blob.size, file) != blob.size)
		die("cannot read all of %s", path);
	fclose(file);
	return blob;
}

static struct page **bucket(const struct code *code, uint64_t asid, uint64_t va)
{
	uint64_t key = (va / PAGE ^ asid << 7) * 0x9e3779b97f4a7c15u;

	return (struct page **)&code->buckets[key >> 50];
}

static struct page *find_page(const struct code *code, uint64_t asid, uint64_t va)
{
	struct page *page = *bucket(code, asid, va);

	while (page && (page->va != va || page->asid != asid))
		page = page->next;
	return page;
}

static struct page *make_page(struct code *code, uint64_t asid, uint64_t va)
{
	struct page *page = find_page(code, asid, va), **head;

	if (!page) {
		head = bucket(code, asid, va);
		page = must(calloc(1, sizeof *page));
		page->asid = asid;
		page->va = va;
		page->next = *head;
		*head = page;
	}
	return page;
}

static int known(const struct page *page, size_t at)
{
	return page->known[at / 8] >> at % 8 & 1;
}

/* Stores bytes; those already known only when told to. */
static void store(struct code *code, uint64_t asid, uint64_t va, const uint8_t *bytes, size_t size, int over)
{
	for (size_t i = 0; i < size; i++) {
		struct page *page = make_page(code, asid, (va + i) & ~(uint64_t)(PAGE - 1));
		size_t at = (va + i) % PAGE;

		if (over || !known(page, at))
			page->bytes[at] = bytes[i];
		page->known[at / 8] |= (uint8_t)(1u << at % 8);
	}
}

static uint64_t le(const uint8_t *bytes, unsigned size)
{
	uint64_t value = 0;

	while (size--)
		value = value << 8 | bytes[size];
	return value;
}

/* By offset; records of the same offset as they come. */
static int in_order(const void *left, const void *right)
{
	const struct change *a = left, *b = right;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return a->index < b->index ? -1 : a->index > b->index;
}

void code_load_streams(struct code *code, const char *dict_path, const char *map_path)
{
	struct blob dict = read_file(dict_path), map = read_file(map_path);
	size_t *records = NULL, count = 0, space = 0;

	if (dict.size < 8 || memcmp(dict.bytes, "KPDICT01", 8))
		die("%s: offset 0: expected KPDICT01", dict_path);
	if (map.size < 8 || memcmp(map.bytes, "KPMAP001", 8))
		die("%s: offset 0: expected KPMAP001", map_path);
	for (size_t pos = 8; pos < dict.size; count++) {
		size_t size;

		if (dict.size - pos < 16 || dict.size - pos - 16 < (size = le(dict.bytes + pos + 4, 2)))
			die("%s: offset %zu: record cut short", dict_path, pos);
		if (le(dict.bytes + pos, 4) != count)
			die("%s: offset %zu: expected id %zu", dict_path, pos, count);
		if (count == space)
			records = must(realloc(records, (space = 2 * space + 1024) * sizeof *records));
		records[count] = pos;
		pos += 16 + size;
	}
	code->dict = dict;
	code->changes = must(calloc((map.size - 8) / 32 + 1, sizeof *code->changes));
	for (size_t pos = 8; pos < map.size; pos += 32) {
		struct change change;
		uint64_t id;

		if (map.size - pos < 32)
			die("%s: offset %zu: record cut short", map_path, pos);
		id = le(map.bytes + pos + 24, 4);
		if (id >= count)
			die("%s: offset %zu: no fragment %llu", map_path, pos, (unsigned long long)id);
		change.offset = le(map.bytes + pos, 8);
		change.asid = le(map.bytes + pos + 8, 8);
		change.va = le(map.bytes + pos + 16, 8);
		change.bytes = dict.bytes + records[id] + 16;
		change.size = le(dict.bytes + records[id] + 4, 2);
		/* Also a change, where nothing was known before: libipt looks one instruction ahead. */
		store(code, change.asid, change.va, change.bytes, change.size, 0);
		if (le(map.bytes + pos + 28, 4) & 1) {
			change.index = code->num_changes;
			code->changes[code->num_changes++] = change;
		}
	}
	qsort(code->changes, code->num_changes, sizeof *code->changes, in_order);
	free(records);
	free(map.bytes);
}

void code_load_raw(struct code *code, const char *path, uint64_t va)
{
	struct blob blob = read_file(path);

	store(code, 0, va, blob.bytes, blob.size, 1);
	free(blob.bytes);
}

void code_load_pages(struct code *code, const char *list)
{
	const char *slash = strrchr(list, '/');
	int folder = slash ? (int)(slash - list) : 0;
	FILE *file = fopen(list, "r");
	char name[512], path[4096];
	unsigned long long va, size;

	if (!file)
		die("cannot read %s", list);
	while (fscanf(file, "%*u %llx %llu %511s", &va, &size, name) == 3) {
		snprintf(path, sizeof path, "%.*s/%s", folder ? folder : 1, folder ? list : ".", name);
		code_load_raw(code, path, va);
	}
	fclose(file);
}

void code_advance(struct code *code, uint64_t offset)
{
	while (code->applied < code->num_changes && code->changes[code->applied].offset <= offset) {
		const struct change *change = &code->changes[code->applied++];

		store(code, change->asid, change->va, change->bytes, change->size, 1);
	}
}

/* The page of code at an address in this space. */
static const struct page *page_at(const struct code *code, uint64_t cr3, uint64_t va)
{
	uint64_t base = va & ~(uint64_t)(PAGE - 1), asid = va >> 63 ? 0 : cr3 & 0xffffffffff000u;
	const struct page *page = find_page(code, asid, base);

	/* User code in space 0 is seen from every space: an import that knows of one process. */
	return !page && asid ? find_page(code, 0, base) : page;
}

size_t code_read(const struct code *code, uint64_t cr3, uint64_t va, uint8_t *buffer, size_t size)
{
	const struct page *page = page_at(code, cr3, va);
	size_t got = 0;

	while (page && got < size) {
		size_t at = (va + got) % PAGE;

		if (!known(page, at))
			break;
		buffer[got++] = page->bytes[at];
		if (at == PAGE - 1)
			page = page_at(code, cr3, va + got);
	}
	return got;
}
