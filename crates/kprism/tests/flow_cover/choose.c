/* A choice by a table; one way is never taken, two are one. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static int choose(int kind, int x)
{
	switch (kind) {
	case 0:
		x = x * 7 + 1;
		break;
	case 1:
		x ^= 0x55;
		break;
	case 2:
		x = rand() + x;
		break;
	case 3:
		x = abs(x) - 12;
		break;
	case 4:
		x = x / 3;
		break;
	case 5:
	case 6:
		printf("%d\n", x);
		break;
	case 7:
		x = -x;
		break;
	default:
		x = 99;
		break;
	}
	return x;
}

int main(void)
{
	int x = 0;

	for (int i = 0; i < 100; i++)
		if (i % 11 != 3)
			x = choose(i % 11, x);
	return x == 12345;
}
