/* SPDX-License-Identifier: Apache-2.0 */
/* The growth of a group's windows. */
#ifndef EP_PLUGIN_GROW_H
#define EP_PLUGIN_GROW_H

#include "plugin/group/algo.h"
#include "plugin/group/group.h"

struct ep_window_ctx ep_group_window_ctx(struct ncclEpGroup *group);
/* Collective. */
int ep_group_payload_add(struct ncclEpGroup *group, size_t bytes);

/* Whether the group's windows are that large. */
bool ep_group_holds(const struct ncclEpGroup *group, const struct ep_need *need);
/* Collective when they are not (the same on all ranks by construction), local otherwise. key is what the ranks must
 * agree on; a difference is -EP_EARG on all of them. An explicit rdma_buffer_size never grows. */
int ep_group_reserve(struct ncclEpGroup *group, const struct ep_need *need, const void *key, size_t key_size);

#endif
