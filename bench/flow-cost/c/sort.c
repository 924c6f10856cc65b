/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sort: quicksort of random numbers. */
#include "bench.h"

#define N 5000

static void sort(double *values, int low, int high)
{
	while (low < high) {
		double pivot = values[(low + high) / 2];
		int i = low, j = high;

		while (i <= j) {
			while (values[i] < pivot)
				i++;
			while (values[j] > pivot)
				j--;
			if (i <= j) {
				double swap = values[i];

				values[i++] = values[j];
				values[j--] = swap;
			}
		}
		sort(values, low, j);
		low = i;
	}
}

int main(void)
{
	static double values[N];
	int wrong = 0;

	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < N; i++)
			values[i] = random_unit();
		sort(values, 0, N - 1);
		for (int i = 1; i < N; i++)
			wrong += values[i - 1] > values[i];
	}
	result(wrong);
	return 0;
}
