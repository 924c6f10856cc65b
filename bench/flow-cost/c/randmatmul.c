/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* RandMatMul: a product of large random matrices, in an order of loops that compilers turn into vector instructions:
 * much work, few branches. */
#include "bench.h"

#define N 192

static double a[N][N], b[N][N], c[N][N];

int main(void)
{
	double sum = 0;

	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++) {
			a[i][j] = random_unit();
			b[i][j] = random_unit();
		}
	for (int i = 0; i < N; i++)
		for (int k = 0; k < N; k++)
			for (int j = 0; j < N; j++)
				c[i][j] += a[i][k] * b[k][j];
	for (int i = 0; i < N; i++)
		sum += c[i][i];
	result(sum);
	return 0;
}
