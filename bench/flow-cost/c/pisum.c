/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* PiSum: a series that ends in pi squared by six, again and again: 100 times, or as often as the argument says. */
#include <stdlib.h>

#include "bench.h"

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100;
	double sum = 0;

	for (int j = 0; j < rounds; j++) {
		sum = 0;
		for (int k = 1; k <= 10000; k++)
			sum += 1.0 / ((double)k * k);
	}
	result(sum);
	return 0;
}
