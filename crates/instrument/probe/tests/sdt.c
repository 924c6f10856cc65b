/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Static tracepoints with arguments of every kind of operand, one of them with a counter of its listeners. */
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#include <stdio.h>

unsigned short demo_plain_semaphore __attribute__((section(".probes")));
unsigned short demo_asked_semaphore __attribute__((section(".probes")));

struct item {
	int id;
	char name[8];
};
int table[4] = {10, 20, 30, 40};

__attribute__((noinline)) int work(int n, struct item *item)
{
	long wide = (long)n * 100000000L;
	signed char small = (signed char)(n - 5);
	STAP_PROBE5(demo, plain, n, item->name, wide, table[n & 3], 4711);
	if (demo_asked_semaphore)
		STAP_PROBE2(demo, asked, small, item);
	return n * 2 + small;
}

int main(void)
{
	struct item item = {7, "sample"};
	int sum = 0, listened = 0;
	/* A probe reads only memory that is there: nobody else touches this page before. */
	__asm__ volatile("" : : "r"(*(volatile int *)table));
	for (int i = 0; i < 20; i++) {
		item.id = i;
		listened += demo_asked_semaphore > 0;
		sum += work(i, &item);
	}
	printf("%d %d\n", sum, listened);
	return 0;
}
