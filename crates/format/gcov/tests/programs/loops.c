/* Loops within a line, loops of many lines, jumps into loops, functions that begin on one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static inline int clamp(int v, int lo, int hi) { return v < lo ? lo : v > hi ? hi : v; }
static int one(int a) { return a + 1; } static int two(int a) { return a ? one(a) : 2; }
#define PAIR(name) static int name##_in(int x) { int i, s = 0; for (i = 0; i < x; i++) if (i & 1) s += i; else s -= 1; return s; } static int name(int x) { if (x < 0) return -1; return name##_in(x) + (x > 3 ? 1 : 0); }
PAIR(alpha)
PAIR(beta)
int f(int a, int b, int c) { if ((a && b) || c) return 1; return 0; }
static int collatz(int n) { int steps = 0; while (n != 1) { n = n & 1 ? 3 * n + 1 : n / 2; steps++; } return steps; }
static int nested(int n) { int s = 0; for (int i = 0; i < n; i++) for (int j = 0; j < i; j++) { if (j == 3) continue; if (s > 500) goto out; s += j; } out: return s; }
static int never(int x)
{
	if (x > 10)
		return x * 2;
	for (;;) {
		if (x-- < 0)
			break;
	}
	return x;
}
static int state(const char *text)
{
	int s = 0;
	for (; *text; text++) {
		switch (*text) {
		case 'a' ... 'f': s += 1; break;
		case 'x': goto half;
		case 'y':
			s += 3; /* fall through */
		case 'z': s *= 2;
half:
			s++; break;
		default: s--;
		}
		do s += s < 0; while (s < -2);
	}
	return s;
}
static int odd(int n);
static int even(int n) { return n == 0 ? 1 : odd(n - 1); }
static int odd(int n)
{
	return n == 0 ? 0 : even(n - 1);
}
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int main(int argc, char **argv)
{
	int s = 0, values[64];
	for (int i = 0; i < 10; i++) s += f(i & 1, i & 2, argc > 3) + clamp(i, 2, 7);
	for (int i = 1; i < 30; i++) s += collatz(i);
	s += nested(20) + alpha(9) + beta(2) + beta(-1) + two(0) + two(argc);
	s += state("abcxyz hello xx zy") + even(10) + odd(7);
	for (int i = 0; i < 64; i++)
		values[i] = (i * 37) % 64;
	qsort(values, 64, sizeof *values, compare);
	if (argc > 5) { never(argc); puts("never"); }
	if (s == 12345)
		exit(3);
	char *copy = malloc(strlen(argv[0]) + 1); if (!copy) abort(); strcpy(copy, argv[0]); free(copy);
	printf("%d %d\n", s, values[5]);
	return 0;
}
