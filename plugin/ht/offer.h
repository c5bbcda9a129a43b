/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of one node tell each other about their callers' allocations (plugin/ht/own.c and plugin/ht/maps.c). */
#ifndef EP_PLUGIN_OFFER_H
#define EP_PLUGIN_OFFER_H

#include <stdatomic.h>

#include "kernels/args.h"
#include "kernels/dev.h"
#include "plugin/boot/boot.h"
#include "plugin/boot/topo.h"
#include "plugin/group/comm.h"

/* Pointers stay valid until ep_reach_free or ep_reach_abandon. */
struct ep_reach_ctx {
	struct ep_dev *dev;
	struct ep_boot *boot;
	const struct ep_topo *topo;
	const struct ep_comm_calls *calls; /* for memory that the device does not know */
	int rank;
	/* Of struct ep_ht_state, in device memory: operations under way, and the last launch that has ended. */
	const uint32_t *opened, *ended;
	const atomic_uint *launched; /* the last launch; captured ones are not counted */
};

/* The ids that a rank offers now, by slot, in memory that the others map: so that they learn what is gone without a
 * call, also while no operation runs. */
struct ep_board {
	uint32_t changes; /* release (B1), after live */
	uint32_t pad[15];
	uint64_t live[EP_REACH_SLOTS];
};

/* The note of a piece, with its descriptor. */
struct ep_offer {
	struct ep_export export;
	uint32_t pieces; /* of the allocation */
	uint32_t pad;
};

#define EP_OFFER_PIECES 1024u /* per allocation, at most */
#define EP_BOARD_KEY 1u

/* Ids start at EP_REACH_SLOTS, so this is never the board's. */
static inline uint64_t ep_offer_key(uint64_t id, uint32_t piece)
{
	return id * EP_OFFER_PIECES + piece;
}

/* Of the pointer, for threads on other devices; other keys of pointers are addresses and small numbers. */
static inline uint64_t ep_pointer_key(uint64_t id)
{
	return ~id;
}

#endif
