/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations that move data, behind the checks: arguments are as ep_check_ left them, the state allows the call.
 */
#ifndef EP_PLUGIN_OP_H
#define EP_PLUGIN_OP_H

#include "plugin/check/check.h"

int ep_op_update_ht(struct ncclEpHandle *handle, const struct ep_update *update, void *stream);
int ep_op_dispatch(struct ncclEpHandle *handle, const struct ep_dispatch *op, void *stream);
int ep_op_combine(struct ncclEpHandle *handle, const struct ep_combine *op, void *stream);
/* Something is staged on the handle. */
int ep_op_complete(struct ncclEpHandle *handle, void *stream);
int ep_op_mask_query(struct ncclEpGroup *group, int *mask, void *stream);
int ep_op_mask_update(struct ncclEpGroup *group, const int *mask, void *stream);
int ep_op_mask_clean(struct ncclEpGroup *group, void *stream);

#endif
