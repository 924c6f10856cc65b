/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* ParseInt: random numbers written as text and read again. */
#include <stdlib.h>

#include "bench.h"

int main(void)
{
	uint64_t wrong = 0;

	for (int i = 0; i < 10000; i++) {
		uint32_t number = (uint32_t)random_bits();
		char text[16];

		snprintf(text, sizeof text, "%x", number);
		wrong += strtoul(text, NULL, 16) != number;
	}
	result((double)wrong);
	return 0;
}
