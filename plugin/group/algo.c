/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/algo.h"

#include "plugin/group/handle.h"
#include "plugin/ht/ht.h"
#include "plugin/ll/ll.h"
#include "util/error.h"

int ep_op_update_ht(struct ncclEpHandle *handle, const struct ep_update *update, void *stream)
{
	return ep_ht_update(handle, update, stream);
}

int ep_op_dispatch(struct ncclEpHandle *handle, const struct ep_dispatch *op, void *stream)
{
	return ep_group_ht(handle->group) ? ep_ht_dispatch(handle, op, stream) : ep_ll_dispatch(handle, op, stream);
}

int ep_op_combine(struct ncclEpHandle *handle, const struct ep_combine *op, void *stream)
{
	return ep_group_ht(handle->group) ? ep_ht_combine(handle, op, stream) : ep_ll_combine(handle, op, stream);
}

int ep_op_complete(struct ncclEpHandle *handle, void *stream)
{
	return ep_ll_complete(handle, stream); /* HT stages nothing */
}

int ep_op_mask_query(struct ncclEpGroup *group, int *mask, void *stream)
{
	return ep_ll_mask_query(group, mask, stream);
}

int ep_op_mask_update(struct ncclEpGroup *group, const int *mask, void *stream)
{
	return ep_ll_mask_update(group, mask, stream);
}

int ep_op_mask_clean(struct ncclEpGroup *group, void *stream)
{
	return ep_ll_mask_clean(group, stream);
}
