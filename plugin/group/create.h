/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a group. */
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

#endif
