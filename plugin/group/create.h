/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a group, and the growth of its windows. */
#ifndef EP_PLUGIN_CREATE_H
#define EP_PLUGIN_CREATE_H

#include "plugin/group/algo.h"
#include "plugin/group/group.h"

/* Collective. A rank whose own checks failed takes part all the same, with check_rc (a negative errno, its message in
 * ep_last_error()), so that every rank gets the error instead of waiting for it. */
int ep_group_create(ncclComm_t comm, const struct ep_group_cfg *cfg, const ncclEpAllocConfig_t *alloc,
		    const struct ep_algo *algo, int check_rc, struct ncclEpGroup **out);

/* Collective. Everything is released whatever the result says. -EP_EUSAGE (and nothing done) while handles live. */
int ep_group_destroy(struct ncclEpGroup *group);

/* Whether the group's windows are that large. */
bool ep_group_holds(const struct ncclEpGroup *group, const struct ep_need *need);
/* Collective when they are not (the same on all ranks by construction), local otherwise. key is what the ranks must
 * agree on; a difference is -EP_EARG on all of them. An explicit rdma_buffer_size never grows. */
int ep_group_reserve(struct ncclEpGroup *group, const struct ep_need *need, const void *key, size_t key_size);

/* A failure of this rank alone in something collective: the others are told, and the group has failed. */
void ep_group_give_up(struct ncclEpGroup *group, int rc);

#endif
