/* SPDX-License-Identifier: Apache-2.0 */
/* Masks: ranks that LL's operations go on without. */
#ifndef EP_PLUGIN_LL_MASK_H
#define EP_PLUGIN_LL_MASK_H

#include <stdbool.h>

#include "plugin/group/call.h"
#include "plugin/group/group.h"

/* With enable_mask, before a dispatch or a combine: catches up when the others went on without this rank. */
int ep_ll_mask_catch_up(struct ncclEpGroup *group, bool dispatch, void *stream);
/* Of struct ep_algo. */
int ep_ll_mask(struct ncclEpGroup *group, const struct ep_mask *mask, void *stream);

int ep_ll_barrier(struct ncclEpGroup *group, void *stream);

#endif
