/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry of live objects (util/live.h): what was added is found while the table grows under other threads, what
 * was dropped or is held is not, and kinds do not mix. Prints the time of a lookup. Exit status 0 or 1.
 */
#include "util/live.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/clock.h"

enum { THREADS = 4, EACH = 3000, ROUNDS = 4, LOOKUPS = 2000000 };

static atomic_int failures;

#define CHECK(cond)                                                                        \
	do {                                                                               \
		if (!(cond)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
			atomic_fetch_add(&failures, 1);                                    \
		}                                                                          \
	} while (0)

static void *worker(void *arg)
{
	char *base = arg;

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < EACH; i++) {
			CHECK(!ep_live_has(EP_LIVE_GROUP, base + 16 * i));
			CHECK(!ep_live_add(EP_LIVE_GROUP, base + 16 * i));
		}
		for (int i = 0; i < EACH; i++) {
			CHECK(ep_live_has(EP_LIVE_GROUP, base + 16 * i));
			CHECK(!ep_live_has(EP_LIVE_HANDLE, base + 16 * i));
			CHECK(!ep_live_has(EP_LIVE_GROUP, base + 16 * i + 1));
		}
		for (int i = 0; i < EACH; i++) {
			if (i % 2 == 0)
				CHECK(ep_live_hold(EP_LIVE_GROUP, base + 16 * i));
			CHECK(ep_live_has(EP_LIVE_GROUP, base + 16 * i) == (i % 2 != 0));
			ep_live_drop(EP_LIVE_GROUP, base + 16 * i);
			CHECK(!ep_live_hold(EP_LIVE_GROUP, base + 16 * i));
		}
	}
	return NULL;
}

static void hold_and_back(void *one)
{
	CHECK(!ep_live_hold(EP_LIVE_HANDLE, one));
	CHECK(!ep_live_add(EP_LIVE_HANDLE, one));
	CHECK(ep_live_hold(EP_LIVE_HANDLE, one));
	CHECK(!ep_live_hold(EP_LIVE_HANDLE, one) && !ep_live_has(EP_LIVE_HANDLE, one));
	ep_live_back(EP_LIVE_HANDLE, one);
	CHECK(ep_live_has(EP_LIVE_HANDLE, one));
	ep_live_drop(EP_LIVE_HANDLE, one);
	CHECK(!ep_live_has(EP_LIVE_HANDLE, one) && !ep_live_has(EP_LIVE_HANDLE, NULL));
}

/* With 16 objects, as of 8 ranks in a process with a handle each. */
static double lookup_ns(char *mem)
{
	uint64_t start;
	int found = 0;

	for (int i = 0; i < 16; i++)
		CHECK(!ep_live_add(EP_LIVE_HANDLE, mem + 512 * i));
	start = ep_now_ns();
	for (int i = 0; i < LOOKUPS; i++)
		found += ep_live_has(EP_LIVE_HANDLE, mem + 512 * (i % 16));
	CHECK(found == LOOKUPS);
	return (double)(ep_now_ns() - start) / LOOKUPS;
}

int main(void)
{
	char *mem = aligned_alloc(16, 16 * THREADS * EACH);
	pthread_t thread[THREADS];

	if (!mem)
		return 1;
	hold_and_back(mem);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, worker, mem + 16 * i * EACH));
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	printf("live: %.1f ns per lookup, %d failed\n", lookup_ns(mem), atomic_load(&failures));
	free(mem);
	return atomic_load(&failures) != 0;
}
