/* SPDX-License-Identifier: Apache-2.0 */
/* LL operations: from checked arguments to a launch. What changes from launch to launch lives in device memory. */
#ifndef EP_PLUGIN_LL_H
#define EP_PLUGIN_LL_H

#include "plugin/check/check.h"
#include "plugin/group/handle.h"

/* The group's counters and epochs; zeroed. */
int ep_ll_open(struct ncclEpGroup *group);

/* What every launch of the group is told, without a handle. */
void ep_ll_group_args(const struct ncclEpGroup *group, uint32_t topk, struct ep_ll_args *out);
/* Lets the kernels report again, after ncclEpErrorClear. */
int ep_ll_clear(struct ncclEpGroup *group);

int ep_ll_dispatch(struct ncclEpHandle *handle, const struct ep_dispatch *op, void *stream);
int ep_ll_combine(struct ncclEpHandle *handle, const struct ep_combine *op, void *stream);
int ep_ll_complete(struct ncclEpHandle *handle, void *stream);

/* With enable_mask, before a dispatch or a combine: whether the others went on without this rank. */
int ep_ll_mask_catch_up(struct ncclEpGroup *group, bool dispatch, void *stream);
int ep_ll_mask_query(struct ncclEpGroup *group, int *device_out, void *stream);
int ep_ll_mask_update(struct ncclEpGroup *group, const int *mask, void *stream);
int ep_ll_mask_clean(struct ncclEpGroup *group, void *stream);

#endif
