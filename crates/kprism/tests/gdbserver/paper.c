// SPDX-License-Identifier: MIT OR Apache-2.0
// The function that "Conditional dynamic and static tracepoints" (Fahem and Dagenais, 2012) measures, in a program: it is
// called as often as the argument says, or for ever, a thousand times a second.
#include <stdlib.h>
#include <unistd.h>

int kgtp_counter = 1;

__attribute__((noinline)) int kgtp_test_function(int counter1, int counter2)
{
	kgtp_counter++;
	return counter1 - counter2;
}

int main(int argc, char **argv)
{
	int counter1 = 0, counter2 = 0, i, loops = argc > 1 ? atoi(argv[1]) : 0;

	for (i = 0; !loops || i < loops; i++) {
		counter1++;
		kgtp_test_function(counter1, counter2);
		counter2++;
		if (!loops)
			usleep(1000);
	}
	return 0;
}
