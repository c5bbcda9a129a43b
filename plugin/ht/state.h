/* SPDX-License-Identifier: Apache-2.0 */
/* What HT keeps of a group: counters and epochs in device memory, and tensors of other processes (algo_state). */
#ifndef EP_PLUGIN_HT_STATE_H
#define EP_PLUGIN_HT_STATE_H

#include "plugin/group/group.h"
#include "plugin/ht/reach.h"

/* Of struct ep_algo. */
size_t ep_ht_control(const struct ncclEpGroup *group);
int ep_ht_open(struct ncclEpGroup *group, size_t *window);
void ep_ht_stop(struct ncclEpGroup *group);
void ep_ht_close(struct ncclEpGroup *group);
void ep_ht_abandon(struct ncclEpGroup *group);
int ep_ht_clear(struct ncclEpGroup *group);

/* NULL in *out, and 0, when all ranks of the node are threads of this process, or zero_copy is OFF. */
int ep_ht_reach_open(struct ncclEpGroup *group, struct ep_reach **out);

static inline struct ep_reach *ep_ht_reach(const struct ncclEpGroup *group)
{
	return group->algo_state;
}

/* Offset in the device state of near[R]: 1 where a rank's pointers are good here as they are. */
size_t ep_ht_near_at(const struct ncclEpGroup *group);

#endif
