// SPDX-License-Identifier: MIT OR Apache-2.0
// Static tracepoints (USDT) with arguments of every kind of operand. Both have counters of their listeners: without a
// listener `step` is not even reached. The program prints the values of each round, and whether somebody listened. With a
// second argument it waits so many microseconds in each round, and prints less.
#define _SDT_HAS_SEMAPHORES 1
#include <stdio.h>
#include <stdlib.h>
#include <sys/sdt.h>
#include <unistd.h>

unsigned short app_step_semaphore __attribute__((section(".probes")));
unsigned short app_end_semaphore __attribute__((section(".probes")));

struct item {
	int id;
	const char *name;
} fixed = {3, "three"};
short table[8] = {-1, 2, -3, 4, -5, 6, -7, 8};
long total;

__attribute__((noinline)) int step(int n, struct item *item)
{
	// A local that is no argument of the tracepoint.
	long square = (long)n * n;

	if (app_step_semaphore)
		DTRACE_PROBE4(app, step, n, table[n & 7], item->name, (unsigned short)(n + 65530));
	total += square;
	return square > 50;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 20, wait = argc > 2 ? atoi(argv[2]) : 0, large = 0;

	for (int n = 0; n < rounds; n++) {
		int listened = app_step_semaphore;
		large += step(n, &fixed);
		if (wait)
			usleep(wait);
		else
			printf("%d %ld %d %p %d %d\n", n, (long)n * n, table[n & 7], (void *)fixed.name, (unsigned short)(n + 65530),
			       listened);
	}
	signed char low = (signed char)total;
	DTRACE_PROBE2(app, end, total, low);
	return large == 0;
}
