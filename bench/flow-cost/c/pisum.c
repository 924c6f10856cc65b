/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* PiSum: a series that ends in pi squared by six, again and again. */
#include "bench.h"

int main(void)
{
	double sum = 0;

	for (int j = 0; j < 100; j++) {
		sum = 0;
		for (int k = 1; k <= 10000; k++)
			sum += 1.0 / ((double)k * k);
	}
	result(sum);
	return 0;
}
