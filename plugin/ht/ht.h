/* SPDX-License-Identifier: Apache-2.0 */
/* HT operations: from checked arguments to a launch. What changes from launch to launch lives in device memory. */
#ifndef EP_PLUGIN_HT_H
#define EP_PLUGIN_HT_H

#include "plugin/check/check.h"
#include "plugin/group/handle.h"

/* The group's counters and epochs, zeroed, and what is known of its peers. */
int ep_ht_open(struct ncclEpGroup *group);
/* The window that handles will want, where that is known before there is one; else 0. */
int ep_ht_window(const struct ncclEpGroup *group, size_t *bytes);
/* Lets the kernels report again, after ncclEpErrorClear. */
int ep_ht_clear(struct ncclEpGroup *group);

int ep_ht_update(struct ncclEpHandle *handle, const struct ep_update *update, void *stream);
int ep_ht_dispatch(struct ncclEpHandle *handle, const struct ep_dispatch *op, void *stream);
int ep_ht_combine(struct ncclEpHandle *handle, const struct ep_combine *op, void *stream);

#endif
