/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/handle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "plugin/group/grow.h"
#include "plugin/group/tensor.h"
#include "util/error.h"
#include "util/live.h"

const char *ep_handle_mode(const struct ncclEpHandle *handle)
{
	return handle->group->algo->mode[handle->args.layout & 3];
}

/* What ranks must agree on before a window may grow for them together. */
struct reserve_key {
	uint32_t layout;
	int32_t num_topk;
	uint64_t alignment;
};

static int window_reserve(struct ncclEpGroup *group, const struct ep_handle_args *args)
{
	struct reserve_key key = { args->layout, args->k, args->alignment };
	struct ep_need need;
	int rc = group->algo->need("ncclEpInitHandle", group, args, &need);

	if (rc)
		return rc;
	if (group->staged && !ep_group_holds(group, &need))
		return EP_BAD_USE("ncclEpInitHandle: group: the window must grow for this handle, but %d operations "
				  "are staged in it: call ncclEpComplete first",
				  group->staged);
	return ep_group_reserve(group, &need, &key, sizeof(key));
}

/* Before window_reserve: where that is collective, the others are waiting in it. */
static int failed_early(struct ncclEpGroup *group, const struct ep_handle_args *args, int rc)
{
	struct ep_need need;

	if (!group->algo->need("ncclEpInitHandle", group, args, &need) && !ep_group_holds(group, &need))
		ep_group_give_up(group, rc);
	return rc;
}

static int mem_take(struct ncclEpHandle *handle, const ncclEpTensor_t *handle_mem, size_t size)
{
	void *ptr;
	int rc;

	if (handle_mem) {
		ep_tensor_keep(&handle->mem, handle->mem_sizes, handle_mem);
		return ep_tensor_data(handle->group, handle_mem, &handle->mem.data);
	}
	pthread_mutex_lock(&handle->group->lock);
	rc = ep_pool_get(&handle->group->pool, size, &ptr);
	pthread_mutex_unlock(&handle->group->lock);
	if (rc)
		return rc;
	handle->mem_owned = true;
	handle->mem_sizes[0] = size;
	handle->mem = (ncclEpTensor_t){ .size = NCCL_EP_TENSOR_SIZE,
					.magic = NCCL_EP_TENSOR_MAGIC,
					.ndim = 1,
					.datatype = ncclUint8,
					.data = ptr,
					.sizes = handle->mem_sizes };
	return 0;
}

static void mem_give(struct ncclEpHandle *handle)
{
	if (!handle->mem_owned)
		return;
	pthread_mutex_lock(&handle->group->lock);
	ep_pool_put(&handle->group->pool, handle->mem.data);
	pthread_mutex_unlock(&handle->group->lock);
}

int ep_handle_init(struct ncclEpGroup *group, const struct ep_handle_args *args, const ncclEpTensor_t *handle_mem,
		   size_t mem_size, struct ncclEpHandle **out)
{
	struct ncclEpHandle *handle = EP_CALLOC(EP_HANDLE, 1, sizeof(*handle), "a handle");
	int rc;

	if (!handle)
		return failed_early(group, args, -ENOMEM);
	if ((rc = ep_live_add(EP_LIVE_HANDLE, handle))) {
		failed_early(group, args, rc);
		goto free_handle;
	}
	handle->group = group;
	handle->args = *args;
	handle->k = args->k;
	if (getrandom(&handle->number, sizeof(handle->number), 0) != (ssize_t)sizeof(handle->number)) {
		rc = EP_FAIL(EP_HANDLE, errno, "ncclEpInitHandle: getrandom: %s", strerror(errno));
		failed_early(group, args, rc);
		goto free_handle;
	}
	/* First: it is collective, and a rank that failed before it would leave the others waiting. */
	if ((rc = window_reserve(group, args)))
		goto free_handle;
	if ((rc = mem_take(handle, handle_mem, mem_size)))
		goto free_handle;
	pthread_mutex_lock(&group->lock);
	group->handles++;
	pthread_mutex_unlock(&group->lock);
	*out = handle;
	return 0;
free_handle:
	ep_live_drop(EP_LIVE_HANDLE, handle);
	free(handle);
	return rc;
}

int ep_handle_destroy(struct ncclEpHandle *handle)
{
	struct ncclEpGroup *group;

	if (!ep_live_hold(EP_LIVE_HANDLE, handle))
		return EP_NOT_LIVE("ncclEpHandleDestroy", "handle", handle);
	if (handle->staged) {
		ep_live_back(EP_LIVE_HANDLE, handle);
		return EP_BAD_USE(
			"ncclEpHandleDestroy: handle: an operation is staged on it: call ncclEpComplete first");
	}
	group = handle->group;
	mem_give(handle);
	pthread_mutex_lock(&group->lock);
	group->handles--;
	pthread_mutex_unlock(&group->lock);
	ep_live_drop(EP_LIVE_HANDLE, handle);
	free(handle);
	return 0;
}

int ep_handle_update(struct ncclEpHandle *handle, const struct ep_update *update, void *stream)
{
	int rc = handle->group->algo->update(handle, update, stream);

	if (rc)
		return rc;
	handle->t = update->t;
	handle->k = (int)update->k;
	handle->updated = true;
	return 0;
}
