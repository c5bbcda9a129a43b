/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory HT needs and where its parts lie: pure arithmetic. kernels/ht/args.h says what is in the parts. */
#ifndef EP_PLUGIN_HT_PLAN_H
#define EP_PLUGIN_HT_PLAN_H

#include "plugin/group/algo.h"
#include "plugin/group/group.h"

/* Offsets into handle_mem. What a layout does not have is empty and shares the next one's offset. */
struct ep_ht_mem {
	size_t from;	 /* struct ep_ht_run [R] */
	size_t zone;	 /* expert-major: struct ep_ht_run [R][El] */
	size_t area;	 /* expert-major: struct ep_ht_run [El] */
	size_t filled;	 /* expert-major: uint32 [El] */
	size_t rows_out; /* across nodes: uint32 [nodes - 1] */
	size_t rows_in;	 /* across nodes: uint32 [most clients of a rank] */
	size_t routed;	 /* uint32 [Tmax][K] four times, expert-major five, across nodes six and what was relayed; last,
			* since another handle over the same memory may have room for another K */
	size_t total;
};

/*
 * The window. What goes with a row (ids and weights) is there for N rows; rows themselves only where a peer's tensors
 * cannot be reached, or zero_copy is OFF: R*Tmax rows [head, token, 16] of a dispatch (flat: at most N), or N of a
 * combine. N is max_recv_tokens_per_rank; in eager mode R*Tmax, expert-major R*Tmax*fan + El*(alignment-1).
 */
struct ep_ht_window {
	size_t row_count; /* N */
	size_t stage;	  /* where the rows begin */
	size_t total;
};

int ep_ht_mem(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
	      struct ep_ht_mem *out);
int ep_ht_window(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
		 struct ep_ht_window *out);
/* The same for struct ep_algo. */
int ep_ht_mem_size(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, size_t *bytes);
int ep_ht_need(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, struct ep_need *out);

#endif
