// SPDX-License-Identifier: MIT OR Apache-2.0
// Prints what a probe collects of it: for each call, the parameters, two locals, a global, a string, a structure. With
// a number as argument it does so for ever, as often a second.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum colour { RED, GREEN = 5, BLUE };

struct item {
	int id;
	unsigned flags : 3, kind : 5;
	enum colour colour;
	char name[16];
	double weight;
};

long total;
unsigned long sum;

__attribute__((noinline)) long work(int n, const char *who, struct item *item)
{
	int a = n - 50;
	long b = 3L * n % 17;
	total += a * b;
	printf("%d %d %ld %ld %s %d %u %u %d %s %.2f\n", n, a, b, total, who, item->id, item->flags, item->kind,
	       item->colour, item->name, item->weight); // PROBE
	return total + item->id;
}

__attribute__((noinline)) int busy(int n)
{
	sum += n * 7;
	return n % 3;
}

int main(int argc, char **argv)
{
	int often = argc > 1 ? atoi(argv[1]) : 0;
	struct item item = { 0, 5, 17, GREEN, "first", 1.5 };
	int n;

	if (argc > 2) {
		for (n = 0; n < often; n++)
			busy(n);
		return 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (n = 0; often || n < 100; n++) {
		char who[32];
		snprintf(who, sizeof who, "caller %d", n);
		item.id = n * n;
		item.flags = n;
		item.colour = n % 2 ? BLUE : GREEN;
		item.weight = n / 4.0;
		work(n, who, &item);
		if (often)
			usleep(1000000 / often);
	}
	return 3;
}
