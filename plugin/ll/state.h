/* SPDX-License-Identifier: Apache-2.0 */
/* What LL keeps of a group: counters and epochs in device memory, and the arguments that every launch gets. */
#ifndef EP_PLUGIN_LL_STATE_H
#define EP_PLUGIN_LL_STATE_H

#include "kernels/args.h"
#include "plugin/group/algo.h"
#include "plugin/group/group.h"

/* Of struct ep_algo. */
size_t ep_ll_control(const struct ncclEpGroup *group);
size_t ep_ll_far(const struct ncclEpGroup *group);
int ep_ll_open(struct ncclEpGroup *group, struct ep_need *need);
int ep_ll_clear(struct ncclEpGroup *group);
int ep_ll_heard(const struct ncclEpGroup *group, int rank, uint64_t deadline, uint64_t *epoch);

/* Arguments of a launch that belongs to no handle. */
void ep_ll_group_args(const struct ncclEpGroup *group, uint32_t topk, struct ep_ll_args *out);

#endif
