/* Code as people write it: each statement on a line of its own. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct word {
	struct word *next;
	unsigned count;
	char text[16];
};

#define BUCKETS 7
#define FOR_EACH(word, head) for (word = head; word; word = word->next)

static struct word *table[BUCKETS];
static unsigned total;

static inline unsigned mix(unsigned hash, char c)
{
	return hash * 31 + (unsigned char)c;
}

static unsigned hash_of(const char *text)
{
	unsigned hash = 5381;

	while (*text)
		hash = mix(hash, *text++);
	return hash % BUCKETS;
}

static struct word *find(const char *text)
{
	struct word *word;

	FOR_EACH(word, table[hash_of(text)]) {
		if (strcmp(word->text, text) == 0)
			return word;
	}
	return NULL;
}

static void add(const char *text)
{
	struct word *word = find(text);
	unsigned bucket;

	total++;
	if (word) {
		word->count++;
		return;
	}
	word = calloc(1, sizeof(*word));
	if (!word) {
		fprintf(stderr, "no memory\n");
		exit(1);
	}
	strncpy(word->text, text, sizeof(word->text) - 1);
	word->count = 1;
	bucket = hash_of(text);
	word->next = table[bucket];
	table[bucket] = word;
}

static int classify(int c)
{
	switch (c) {
	case 'a':
	case 'e':
	case 'i':
	case 'o':
	case 'u':
		return 1;
	case '.':
	case ',':
		return 2;
	case 'z':
		return 3;
	default:
		if (isdigit(c))
			return 4;
		break;
	}
	return 0;
}

static void split(const char *text)
{
	char word[16];
	unsigned length = 0;

	for (;; text++) {
		if (isalpha((unsigned char)*text) &&
		    length < sizeof(word) - 1) {
			word[length++] = tolower((unsigned char)*text);
			continue;
		}
		if (length > 0) {
			word[length] = 0;
			add(word);
			length = 0;
		}
		if (!*text)
			break;
	}
}

static void sort(unsigned *values, int n)
{
	int i, j;

	for (i = 1; i < n; i++) {
		unsigned value = values[i];

		for (j = i; j > 0 && values[j - 1] > value; j--)
			values[j] = values[j - 1];
		values[j] = value;
	}
}

static int unused(int x)
{
	if (x > 3)
		return x;
	do {
		x++;
	} while (x < 10);
	return x + 1;
}

static int fib(int n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

int main(int argc, char **argv)
{
	static const char text[] = "The quick brown fox, the lazy dog. A dog is a dog, the fox is quick: 42 foxes "
				   "incomprehensibilities";
	unsigned counts[64], n = 0, kinds[5] = { 0 };
	struct word *word;
	int i;

	for (i = 0; i < 20; i++)
		split(text);
	for (i = 0; text[i]; i++)
		kinds[classify(text[i])]++;
	for (i = 0; i < BUCKETS; i++) {
		FOR_EACH(word, table[i]) {
			if (n == 64)
				break;
			counts[n++] = word->count;
		}
	}
	sort(counts, n);
	if (argc > 3)
		printf("%d\n", unused(argc));
	printf("%u words, %u times, most %u, %u vowels, fib %d\n", n, total, counts[n - 1], kinds[1],
	       fib(12));
	return argv[0] == NULL;
}
