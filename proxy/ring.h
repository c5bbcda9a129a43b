/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The consumer's side of a ring of commands (util/ring.h has the layout, kernels/gx/ring.h the producers and the
 * orderings). One thread owns it; nothing here waits.
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
	uint64_t at;	   /* the next to pop */
	uint64_t credited; /* as published */
	uint64_t done;	   /* as published */
};

/*
 * pinned: ep_cmd_pinned_size(entries) bytes, aligned to 128, used by nobody yet. start: the first position, for all
 * who look at the ring (claim and seen of the head are the caller's to set); 0 but in tests.
 */
int ep_ring_init(struct ep_ring *ring, void *pinned, uint32_t entries, uint64_t start);

/* What producers are given: the same memory as the device sees it, and the head in device memory; without a bell. */
struct ep_cmd_ring ep_ring_for_device(const struct ep_ring *ring, void *pinned_dev, struct ep_cmd_head *head);

/*
 * At most max commands, in the order of their claims; phases are cleared. Returns how many, 0 when the next is not
 * there yet. Negative, with a sentence, when it will never be: its producer gave up (-EP_ETIMEOUT, -EP_EREMOTE), or
 * what stands there is no command (-EP_EINTERNAL). What was there before has then been returned.
 */
int ep_ring_pop(struct ep_ring *ring, struct ep_cmd *out, int max);

/* n more of the popped commands are completed by the net, whichever they are: one store, so count before calling. */
int ep_ring_complete(struct ep_ring *ring, uint32_t n);

/* Popped and not completed; a ring is quiet when it is 0 and nothing is left to pop. */
static inline uint64_t ep_ring_pending(const struct ep_ring *ring)
{
	return ring->at - ring->done;
}

#endif
