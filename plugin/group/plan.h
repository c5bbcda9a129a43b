/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory things need and where their parts lie; pure arithmetic, checked for overflow. Parts begin at
 * multiples of 128 bytes (a cache line of every GPU).
 */
#ifndef EP_PLUGIN_PLAN_H
#define EP_PLUGIN_PLAN_H

#include <stddef.h>

#include "plugin/check/check.h"

#define EP_PLAN_ALIGN 128
#define EP_PLAN_HEADER 256 /* what the routing is of: magic, T, K, rows; epochs of staged sends */
#define EP_ROW_ALIGN 16
#define EP_ALIGNMENT_MAX ((size_t)1 << 20) /* of a zone: padding is counted in 32 bits */

/*
 * Offsets into handle_mem. fan = min(room, El): rows of one token on one rank in expert-major. A part that the mode has
 * not is empty and shares the next one's offset.
 *
 * LL:	idx		int32 [Tmax, room]	this rank's own row of (token, k)
 *	slot		uint32 [Tmax, room]	where the row of (token, k) comes back
 *	rows		16 bytes x R*Tmax*fan	a received row's way home
 * HT (kernels/ht/args.h says what is in them):
 *	from		8 bytes x [R]
 *	zone		8 bytes x [R, El], area 8 x [El], filled 4 x [El]: expert-major only
 *	routed		4 bytes x [Tmax, room] four times, expert-major five; last, since another handle over the same
 *			memory may have another room
 */
struct ep_plan_handle {
	size_t idx, slot, rows;
	size_t from, zone, area, filled, routed;
	size_t total;
};

/*
 * The LL window: two buffers alike, each the larger of what a dispatch and a combine need, since an operation has one
 * of them for itself. A token crosses once per destination rank, whatever its experts there; scales travel behind it.
 *   dispatch: R * (head [16 + 4 El] and Tmax rows [head 16 + max(8 K, 12 fan), token, 16])
 *   combine:  Tmax * K rows [16, token] at home, one per (token, position); with masks R * Tmax * fan rows, by writer,
 *             so that a rank that wakes late cannot overwrite what another fills.
 * R: the ranks that map each other. For the others the same again in memory of the net, and beside it, for each of
 * them, what leaves: in a dispatch what it gets, in a combine Tmax * fan rows, as many as it may have sent.
 */
struct ep_plan_ll {
	size_t head_stride, row_stride, comb_stride;
	size_t comb_rows;
	size_t buffer;		     /* bytes of one */
	size_t total;		     /* of both */
	size_t far_window, far_send; /* across nodes: what arrives, of one; what leaves for one rank, of one */
};

/*
 * The HT window. What goes with a row (ids and weights) is there for N rows; rows themselves only where a peer cannot
 * be reached, or zero_copy OFF says so: R*Tmax rows [head, token, 16] of a dispatch (flat: at most N), or N of a
 * combine. N is max_recv_tokens_per_rank; in eager mode R*Tmax, expert-major R*Tmax*fan + El*(alignment-1).
 */
struct ep_plan_ht {
	size_t row_count; /* N */
	size_t stage;	  /* where the rows begin */
	size_t total;
};

int ep_plan_ht(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
	       struct ep_plan_ht *out);
int ep_plan_handle(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
		   struct ep_plan_handle *out);
int ep_plan_ll(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
	       struct ep_plan_ll *out);

#endif
