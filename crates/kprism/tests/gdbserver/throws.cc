// SPDX-License-Identifier: MIT OR Apache-2.0
// Throws as often as its first argument says, and waits so many microseconds each time as the second one says: libstdc++'s
// static tracepoints `libstdcxx:throw` and `libstdcxx:catch` are met so often.
#include <cstdlib>
#include <stdexcept>
#include <unistd.h>

int main(int argc, char **argv)
{
	int caught = 0, wait = argc > 2 ? atoi(argv[2]) : 0;
	for (int n = 0; n < atoi(argv[1]); n++) {
		try {
			throw std::runtime_error("thrown");
		} catch (const std::exception &) {
			caught++;
		}
		if (wait)
			usleep(wait);
	}
	return caught == 0;
}
