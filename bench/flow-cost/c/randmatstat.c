/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* RandMatStat: statistics over traces of powers of small random matrices. */
#include <math.h>
#include <string.h>

#include "bench.h"

#define N 5
#define ROUNDS 100

/* Box and Muller, "A note on the generation of random normal deviates", 1958. */
static double random_normal(void)
{
	return sqrt(-2 * log(1 - random_unit())) * cos(2 * 3.14159265358979323846 * random_unit());
}

static void multiply(int n, int m, const double *a, const double *b, double *c)
{
	for (int i = 0; i < n; i++)
		for (int j = 0; j < n; j++) {
			double sum = 0;

			for (int k = 0; k < m; k++)
				sum += a[i * m + k] * b[k * n + j];
			c[i * n + j] = sum;
		}
}

/* The trace of the fourth power of m' m, where m has the given rows and columns. */
static double trace(int rows, int columns, const double *m)
{
	double turned[4 * N * N], a[16 * N * N], b[16 * N * N], sum = 0;

	for (int i = 0; i < rows; i++)
		for (int j = 0; j < columns; j++)
			turned[j * rows + i] = m[i * columns + j];
	multiply(columns, rows, turned, m, a);
	multiply(columns, columns, a, a, b);
	multiply(columns, columns, b, b, a);
	for (int i = 0; i < columns; i++)
		sum += a[i * columns + i];
	return sum;
}

static double spread(const double *values)
{
	double mean = 0, square = 0;

	for (int i = 0; i < ROUNDS; i++)
		mean += values[i] / ROUNDS;
	for (int i = 0; i < ROUNDS; i++)
		square += (values[i] - mean) * (values[i] - mean);
	return sqrt(square / (ROUNDS - 1)) / mean;
}

int main(void)
{
	double wide[ROUNDS], square[ROUNDS];

	for (int i = 0; i < ROUNDS; i++) {
		double m[4 * N * N];

		for (int j = 0; j < 4 * N * N; j++)
			m[j] = random_normal();
		wide[i] = trace(N, 4 * N, m);
		square[i] = trace(2 * N, 2 * N, m);
	}
	result(spread(wide) + spread(square));
	return 0;
}
