/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The consumer of a command ring (layout: util/ring.h; producers and memory orderings: kernels/gx/ring.h). Owned by one
 * thread; nothing here waits.
 */
#ifndef EP_PROXY_RING_H
#define EP_PROXY_RING_H

#include <stddef.h>
#include <stdint.h>

#include "util/ring.h"

struct ep_ring {
	struct ep_cmd *entry;
	struct ep_cmd_tail *tail;
	uint32_t entries, shift, step;
	uint64_t at;	   /* next to pop */
	uint64_t credited; /* as published */
	uint64_t done;	   /* as published */
};

/*
 * pinned: ep_cmd_pinned_size(entries) bytes, aligned to 128, not in use. start: the first position of producers and
 * consumer (the caller sets claim and seen of the head to it); not 0 only in tests.
 */
int ep_ring_init(struct ep_ring *ring, void *pinned, uint32_t entries, uint64_t start);

/* The producers' view: the same memory at its device address, and the head in device memory. bell is left NULL. */
struct ep_cmd_ring ep_ring_for_device(const struct ep_ring *ring, void *pinned_dev, struct ep_cmd_head *head);

/*
 * Pops up to max commands, in the order of their claims, with cleared phases. Returns how many; 0 if the next has not
 * arrived. Negative, with a message, if it never will: its producer gave up (-EP_ETIMEOUT, -EP_EREMOTE), or it is not a
 * valid command (-EP_EINTERNAL). All commands before it have then been returned.
 */
int ep_ring_pop(struct ep_ring *ring, struct ep_cmd *out, int max);

/* n more of the popped commands are completed, whichever they are. One store, so batch them. */
int ep_ring_complete(struct ep_ring *ring, uint32_t n);

/* Popped and not completed. The ring is quiet when this is 0 and nothing is left to pop. */
static inline uint64_t ep_ring_pending(const struct ep_ring *ring)
{
	return ring->at - ring->done;
}

#endif
