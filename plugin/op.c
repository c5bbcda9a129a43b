/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/op.h"

#include "plugin/handle.h"
#include "plugin/ll.h"
#include "util/error.h"

static int not_built(const char *fn)
{
	return EP_BAD_USE("%s: the arguments are right, but this version of the library does not move data yet", fn);
}

int ep_op_update_ht(struct ncclEpHandle *handle, const struct ep_update *update, void *stream)
{
	(void)handle, (void)update, (void)stream;
	return not_built("ncclEpUpdateHandle (HT)");
}

int ep_op_dispatch(struct ncclEpHandle *handle, const struct ep_dispatch *op, void *stream)
{
	if (!ep_group_ht(handle->group))
		return ep_ll_dispatch(handle, op, stream);
	return not_built("ncclEpDispatch (HT)");
}

int ep_op_combine(struct ncclEpHandle *handle, const struct ep_combine *op, void *stream)
{
	if (!ep_group_ht(handle->group))
		return ep_ll_combine(handle, op, stream);
	return not_built("ncclEpCombine (HT)");
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
