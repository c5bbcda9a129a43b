/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of one rank that overwrites memory of the others through its own mappings, while they run operations. */
#ifndef EP_TEST_SCRIBBLE_LIAR_H
#define EP_TEST_SCRIBBLE_LIAR_H

#include <pthread.h>
#include <stdatomic.h>

#include "test/scribble/field.h"

struct liar {
	const struct ncclEpGroup *group;
	struct field field;
	uint64_t seed;
	bool flip;	 /* the old value returns at once: what was checked changes before it is used */
	unsigned nap_us; /* between writes; 0: none */
	atomic_ulong written;
	atomic_bool stop, begun;
	pthread_t thread;
};

/* Returns after the first write: 0 or -1. */
int liar_start(struct liar *liar);
void liar_stop(struct liar *liar);

#endif
