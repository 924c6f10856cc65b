// SPDX-License-Identifier: MIT OR Apache-2.0
// Adds up instructions by thread: digest [timed] <LINES. Lines are "NAME TID ADDRESS", or with `timed` "NAME TID SECONDS.NS: ADDRESS";
// names may have spaces. judge.py says what the sums mean.
//
// Out, for each thread: "thread TID COUNT HASH USER_COUNT USER_HASH FIRST LAST", "name NAME" for each of its names, and "at ADDRESS" for
// each address. The idle threads of all CPUs have number 0; what they ran has no order, so no hash. Last "unread COUNT": other lines.
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct names {
	char *name;
	struct names *next;
};

struct thread {
	long tid;
	uint64_t count, hash, user_count, user_hash, first, last;
	struct names *names;
	// Addresses in a table with open addressing; 0 is free.
	uint64_t *places, size, used;
	struct thread *next;
};

static struct thread *threads;

static void *must(void *memory)
{
	if (!memory) {
		perror("digest");
		exit(2);
	}
	return memory;
}

static struct thread *thread(long tid)
{
	for (struct thread *t = threads; t; t = t->next)
		if (t->tid == tid)
			return t;
	struct thread *t = must(calloc(1, sizeof *t));
	t->tid = tid;
	t->hash = t->user_hash = 0xcbf29ce484222325;
	t->size = 1 << 12;
	t->places = must(calloc(t->size, sizeof *t->places));
	t->next = threads;
	return threads = t;
}

static void named(struct thread *t, const char *name)
{
	for (struct names *n = t->names; n; n = n->next)
		if (!strcmp(n->name, name))
			return;
	struct names *n = must(malloc(sizeof *n));
	n->name = must(strdup(name));
	n->next = t->names;
	t->names = n;
}

static uint64_t mixed(uint64_t value)
{
	value ^= value >> 31;
	value *= 0x9e3779b97f4a7c15;
	return value ^ value >> 29;
}

static void place(struct thread *t, uint64_t ip)
{
	uint64_t at = mixed(ip) & (t->size - 1);

	while (t->places[at] && t->places[at] != ip)
		at = (at + 1) & (t->size - 1);
	if (t->places[at])
		return;
	t->places[at] = ip;
	if (++t->used * 2 < t->size)
		return;
	uint64_t *old = t->places, size = t->size;
	t->size *= 2;
	t->used = 0;
	t->places = must(calloc(t->size, sizeof *t->places));
	for (uint64_t i = 0; i < size; i++)
		if (old[i])
			place(t, old[i]);
	free(old);
}

// The word before *end; *end is then where it begins.
static char *word(char *line, char **end)
{
	char *at = *end;
	while (at > line && isspace((unsigned char)at[-1]))
		at--;
	*at = 0;
	while (at > line && !isspace((unsigned char)at[-1]))
		at--;
	return *end = at;
}

int main(int argc, char **argv)
{
	int timed = argc > 1 && !strcmp(argv[1], "timed");
	char *line = NULL, last[64] = "";
	size_t room = 0;
	ssize_t len;
	long last_tid = -1;
	struct thread *t = NULL;
	unsigned long long unread = 0;

	while ((len = getline(&line, &room, stdin)) > 0) {
		char *end = line + len, *name = line;
		char *address = word(line, &end), *time = timed ? word(line, &end) : NULL, *number = word(line, &end);
		while (end > line && isspace((unsigned char)end[-1]))
			end--;
		*end = 0;
		while (isspace((unsigned char)*name))
			name++;
		// perf names every task; kprism leaves it open where no record tells it.
		char *end_of_tid, *end_of_ip;
		long tid = strtol(number, &end_of_tid, 10);
		uint64_t ip = strtoull(address, &end_of_ip, 16);
		if (!*address || !*number || *end_of_tid || *end_of_ip || !*name && !timed) {
			unread++;
			continue;
		}
		if (!t || tid != last_tid || strcmp(name, last)) {
			t = thread(tid);
			last_tid = tid;
			snprintf(last, sizeof last, "%s", name);
			named(t, name);
		}
		t->count++;
		// FNV-1a with a word instead of a byte.
		t->hash = tid ? mixed((t->hash ^ ip) * 0x100000001b3) : 0;
		if (!(ip >> 63)) {
			t->user_count++;
			t->user_hash = mixed((t->user_hash ^ ip) * 0x100000001b3);
		}
		place(t, ip);
		if (timed) {
			char *rest;
			uint64_t ns = strtoull(time, &rest, 10) * 1000000000;
			ns += *rest == '.' ? strtoull(rest + 1, NULL, 10) : 0;
			t->first = t->count == 1 ? ns : t->first;
			t->last = ns;
		}
	}
	for (t = threads; t; t = t->next) {
		printf("thread %ld %llu %llx %llu %llx %llu %llu\n", t->tid, (unsigned long long)t->count,
		       (unsigned long long)t->hash, (unsigned long long)t->user_count, (unsigned long long)t->user_hash,
		       (unsigned long long)t->first, (unsigned long long)t->last);
		for (struct names *n = t->names; n; n = n->next)
			printf("name %s\n", n->name);
		for (uint64_t i = 0; i < t->size; i++)
			if (t->places[i])
				printf("at %llx\n", (unsigned long long)t->places[i]);
	}
	printf("unread %llu\n", unread);
	return ferror(stdin) || fflush(stdout) ? 2 : 0;
}
