// SPDX-License-Identifier: MIT OR Apache-2.0
// Four threads that call one function at the same time.
#include <pthread.h>
#include <stdio.h>

#define CALLS 50

__attribute__((noinline)) long step(long thread, long n)
{
	long value = 1000 * thread + n; // STEP
	asm volatile("" : "+r"(value));
	return value;
}

static void *work(void *thread)
{
	for (long n = 0; n < CALLS; n++)
		step((long)thread, n);
	return NULL;
}

int main(void)
{
	pthread_t threads[4];
	for (long n = 0; n < 4; n++)
		pthread_create(&threads[n], NULL, work, (void *)n);
	for (long n = 0; n < 4; n++)
		pthread_join(threads[n], NULL);
	puts("done");
	return 0;
}
