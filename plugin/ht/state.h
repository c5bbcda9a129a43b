/* SPDX-License-Identifier: Apache-2.0 */
/* What HT keeps of a group: counters and epochs in device memory, and tensors of other processes (algo_state). */
#ifndef EP_PLUGIN_HT_STATE_H
#define EP_PLUGIN_HT_STATE_H

#include "plugin/group/algo.h"
#include "plugin/group/group.h"
#include "plugin/ht/nodes.h"
#include "plugin/ht/reach.h"

/* Of struct ep_algo. */
size_t ep_ht_control(const struct ncclEpGroup *group);
size_t ep_ht_far(const struct ncclEpGroup *group);
int ep_ht_wants(struct ncclEpGroup *group, bool *wanted);
int ep_ht_open(struct ncclEpGroup *group, struct ep_need *need);
void ep_ht_stop(struct ncclEpGroup *group);
void ep_ht_close(struct ncclEpGroup *group);
void ep_ht_abandon(struct ncclEpGroup *group);
int ep_ht_clear(struct ncclEpGroup *group);
int ep_ht_heard(const struct ncclEpGroup *group, int rank, uint64_t deadline, uint64_t *epoch);

/* NULL in *out, and 0, when all ranks of the node are threads of this process, or zero_copy is OFF. */
int ep_ht_reach_open(struct ncclEpGroup *group, struct ep_reach **out);

struct ep_ht_counts {
	uint64_t direct, staged, crossed[2]; /* of struct ep_ht_state */
	struct ep_reach_counts reach;
};

int ep_ht_counts(struct ncclEpGroup *group, struct ep_ht_counts *out);

static inline struct ep_reach *ep_ht_reach(const struct ncclEpGroup *group)
{
	const struct ep_ht *ht = group->algo_state;

	return ht ? ht->reach : NULL;
}

/* Offsets in the device state: near[R], the lines of ranks whose pointers are good here as they are, NULL for the rest;
 * and this rank's own lines, [R]. No other process maps the state, and what only near ranks write there is trusted. */
size_t ep_ht_near_at(const struct ncclEpGroup *group);
size_t ep_ht_lines_at(const struct ncclEpGroup *group);

/* Arguments of kernels across nodes; zero where all ranks map each other. */
void ep_ht_across_args(const struct ncclEpGroup *group, struct ep_ht_across *out);

#endif
