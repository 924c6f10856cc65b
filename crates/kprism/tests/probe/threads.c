// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that run in turns: of 90 calls of `ended` two thirds follow a call of `began` with the same token, by the same thread,
// and between the two the other thread made its own call of `began`.

#include <pthread.h>
#include <stddef.h>

enum { CALLS = 90 };

static pthread_barrier_t both;
static volatile long last;

__attribute__((noinline)) void began(long token)
{
	last = token;
}

__attribute__((noinline)) void ended(long token)
{
	last = token;
}

static void *work(void *first)
{
	for (long i = 0; i < CALLS; i++) {
		if (i % 3)
			began((long)first + i);
		pthread_barrier_wait(&both);
		ended((long)first + i);
		pthread_barrier_wait(&both);
	}
	return NULL;
}

int main(void)
{
	pthread_barrier_init(&both, NULL, 2);
	// The second pair of threads comes when the first has ended.
	for (long pair = 0; pair < 2; pair++) {
		pthread_t threads[2];
		for (long t = 0; t < 2; t++)
			pthread_create(&threads[t], NULL, work, (void *)(2000 * pair + 1000 * t + 1000));
		for (long t = 0; t < 2; t++)
			pthread_join(threads[t], NULL);
	}
	return 0;
}
