/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Canny's edge detector over a drawn picture. Built twice, without and with optimisation: CannyNoOptimize and
 * CannyOptimize. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"

#define W 160
#define H 120
#define AT(x, y) ((y) * W + (x))

static float picture[W * H], blurred[W * H], strength[W * H];
static unsigned char direction[W * H], edge[W * H];

/* Discs and some noise. */
static void draw(void)
{
	for (int y = 0; y < H; y++)
		for (int x = 0; x < W; x++) {
			int a = (x - 50) * (x - 50) + (y - 60) * (y - 60);
			int b = (x - 110) * (x - 110) + (y - 50) * (y - 50);

			picture[AT(x, y)] = (a < 900 ? 150 : 20) + (b < 625 ? 80 : 0) + 8 * (float)random_unit();
		}
}

static void blur(void)
{
	static const float weights[5] = { 1, 4, 6, 4, 1 };

	for (int y = 2; y < H - 2; y++)
		for (int x = 2; x < W - 2; x++) {
			float sum = 0;

			for (int j = -2; j <= 2; j++)
				for (int i = -2; i <= 2; i++)
					sum += weights[i + 2] * weights[j + 2] * picture[AT(x + i, y + j)];
			blurred[AT(x, y)] = sum / 256;
		}
}

static void gradients(void)
{
	for (int y = 3; y < H - 3; y++)
		for (int x = 3; x < W - 3; x++) {
			const float *p = blurred + AT(x, y);
			float dx = p[1 - W] + 2 * p[1] + p[1 + W] - p[-1 - W] - 2 * p[-1] - p[-1 + W];
			float dy = p[W - 1] + 2 * p[W] + p[W + 1] - p[-W - 1] - 2 * p[-W] - p[-W + 1];
			float ax = fabsf(dx), ay = fabsf(dy);

			strength[AT(x, y)] = sqrtf(dx * dx + dy * dy);
			/* The tangents of 22.5 and 67.5 degrees. */
			direction[AT(x, y)] = ay < 0.4142f * ax ? 0 : ay > 2.4142f * ax ? 2 : (dx > 0) == (dy > 0) ? 1 : 3;
		}
}

static void thin(void)
{
	static const int ahead[4] = { 1, W + 1, W, W - 1 };

	for (int y = 4; y < H - 4; y++)
		for (int x = 4; x < W - 4; x++) {
			const float *p = strength + AT(x, y);
			int step = ahead[direction[AT(x, y)]];

			edge[AT(x, y)] = *p < p[step] || *p < p[-step] ? 0 : *p > 120 ? 2 : *p > 60;
		}
}

/* Weak edges stay where a strong one touches them. */
static int follow(void)
{
	int changed = 0;

	for (int y = 4; y < H - 4; y++)
		for (int x = 4; x < W - 4; x++) {
			const unsigned char *p = edge + AT(x, y);

			if (*p != 1)
				continue;
			if (p[1] == 2 || p[-1] == 2 || p[W] == 2 || p[-W] == 2 || p[W + 1] == 2 || p[W - 1] == 2 ||
			    p[-W + 1] == 2 || p[-W - 1] == 2) {
				edge[AT(x, y)] = 2;
				changed++;
			}
		}
	return changed;
}

int main(void)
{
	int edges = 0;

	draw();
	blur();
	gradients();
	thin();
	while (follow())
		continue;
	for (int i = 0; i < W * H; i++)
		edges += edge[i] == 2;
	result(edges);
	return 0;
}
