/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory LL needs and where its parts lie: pure arithmetic, over the layout of kernels/ll/args.h. */
#ifndef EP_PLUGIN_LL_PLAN_H
#define EP_PLUGIN_LL_PLAN_H

#include "kernels/args.h"
#include "plugin/group/algo.h"
#include "plugin/group/group.h"

/* Offsets into handle_mem. */
struct ep_ll_mem {
	size_t idx;   /* int32 [Tmax][K]: this rank's own row of (token, k) */
	size_t slot;  /* uint32 [Tmax][K]: where the row of (token, k) comes back */
	size_t back;  /* struct ep_ll_back [R], in a group with remote ranks */
	size_t order; /* uint32 [Tmax], likewise: tokens in the order of their rows */
	size_t rows;  /* struct ep_ll_entry [R * Tmax * min(K, El)]: a received row's way home */
	size_t total;
};

/*
 * Bytes of one of the two buffers: of the window, of what remote ranks write, and of what leaves for one remote rank. A
 * buffer holds a dispatch or a combine, whichever is larger.
 */
struct ep_ll_room {
	uint64_t near, far, send;
};

struct ep_ll_shape ep_ll_shape_of(const struct ncclEpGroup *group, uint32_t topk);

/* Rows of this pitch. A token crosses once per destination rank, whatever its experts there. */
struct ep_ll_room ep_ll_dispatch_room(const struct ncclEpGroup *group, const struct ep_ll_shape *s, uint64_t pitch);
/* At home one row per (token, position). With masks a row per writer, so that a masked rank that wakes late overwrites
 * nothing that another rank fills. */
struct ep_ll_room ep_ll_combine_room(const struct ncclEpGroup *group, const struct ep_ll_shape *s, uint64_t pitch);

int ep_ll_mem(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
	      struct ep_ll_mem *out);
/* The same for struct ep_algo. */
int ep_ll_mem_size(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, size_t *bytes);
int ep_ll_need(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, struct ep_need *out);
/* The link's memory: two buffers of each; of what leaves a part for each remote rank. */
void ep_ll_far_divide(const struct ncclEpGroup *group, struct ep_far *far);

#endif
