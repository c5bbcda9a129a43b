/* SPDX-License-Identifier: Apache-2.0 */
/* The API: check the arguments, call what does it, map the result. Messages are set where a failure is found. */
#include "nccl_ep.h"

#include "nccl_ep_ext.h"
#include "plugin/check/check.h"
#include "plugin/group/create.h"
#include "plugin/group/handle.h"
#include "plugin/group/tensor.h"
#include "plugin/ht/ht.h"
#include "plugin/ll/ll.h"
#include "util/error.h"

/* By ncclEpAlgorithm_t. */
static const struct ep_algo *const algos[] = {
	[NCCL_EP_ALGO_LOW_LATENCY] = &ep_ll_algo,
	[NCCL_EP_ALGO_HIGH_THROUGHPUT] = &ep_ht_algo,
};

static ncclResult_t result(int rc)
{
	return (ncclResult_t)ep_result(rc);
}

ncclResult_t ncclEpGetVersion(int *version)
{
	int rc = ep_check_pointer("ncclEpGetVersion", "version", version);

	if (!rc)
		*version = NCCL_EP_VERSION_CODE;
	return result(rc);
}

ncclResult_t ncclEpTensorAlloc(ncclEpTensor_t **tensor, unsigned int ndim, ncclDataType_t datatype, const size_t *sizes,
			       const ncclEpTensorAllocConfig_t *config)
{
	int rc = ep_check_tensor_alloc(ndim, datatype, sizes, config, tensor);

	return result(rc ? rc : ep_tensor_create(ndim, datatype, sizes, tensor));
}

ncclResult_t ncclEpTensorDestroy(ncclEpTensor_t *tensor)
{
	return result(ep_tensor_destroy(tensor));
}

ncclResult_t ncclEpCreateGroup(ncclEpGroup_t *group, ncclComm_t comm, const ncclEpGroupConfig_t *config)
{
	struct ep_group_cfg cfg = { 0 };
	ncclEpAllocConfig_t alloc = { 0 };
	struct ncclEpGroup *made = NULL;
	int rc = ep_check_pointer("ncclEpCreateGroup", "group", group);

	if (group)
		*group = NULL;
	if (!comm)
		return result(ep_check_pointer("ncclEpCreateGroup", "comm", comm));
	if (!rc)
		rc = ep_check_group(config, &cfg, &alloc);
	/* Also with a mistake: the other ranks learn of it in the first exchange. */
	rc = ep_group_create(comm, &cfg, &alloc, algos[cfg.algorithm], rc, &made);
	if (!rc)
		*group = made;
	return result(rc);
}

ncclResult_t ncclEpGroupDestroy(ncclEpGroup_t group)
{
	return result(group ? ep_group_destroy(group) : 0);
}

/* The group exists and has not failed. */
static int group_enter(const char *fn, struct ncclEpGroup *group)
{
	int rc = ep_check_live(fn, "group", EP_LIVE_GROUP, group);

	return rc ? rc : ep_group_check(group);
}

static int handle_enter(const char *fn, struct ncclEpHandle *handle)
{
	int rc = ep_check_live(fn, "handle", EP_LIVE_HANDLE, handle);

	return rc ? rc : ep_group_check(handle->group);
}

ncclResult_t ncclEpHandleMemSize(ncclEpGroup_t group, ncclEpLayout_t layout, const ncclEpHandleConfig_t *config,
				 size_t *size, int num_topk)
{
	static const char fn[] = "ncclEpHandleMemSize";
	struct ep_handle_args args;
	int rc;

	if ((rc = group_enter(fn, group)) || (rc = ep_check_pointer(fn, "size", size)) ||
	    (rc = ep_check_handle(fn, group, layout, config, num_topk, &args)))
		return result(rc);
	return result(group->algo->mem_size(fn, group, &args, size));
}

ncclResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t group, ncclEpLayout_t layout,
			      const ncclEpHandleConfig_t *config, int num_topk, const ncclEpTensor_t *handle_mem)
{
	static const char fn[] = "ncclEpInitHandle";
	struct ep_handle_args args;
	size_t size;
	int rc;

	if ((rc = ep_check_pointer(fn, "handle", handle)))
		return result(rc);
	*handle = NULL;
	if ((rc = group_enter(fn, group)) || (rc = ep_check_handle(fn, group, layout, config, num_topk, &args)) ||
	    (rc = group->algo->mem_size(fn, group, &args, &size)) ||
	    (handle_mem && (rc = ep_check_handle_mem(handle_mem, size))))
		return result(rc);
	return result(ep_handle_init(group, &args, handle_mem, size, handle));
}

ncclResult_t ncclEpUpdateHandle(ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream)
{
	static const char fn[] = "ncclEpUpdateHandle";
	struct ep_update update;
	int rc;

	if ((rc = handle_enter(fn, handle)) || (rc = ep_check_update(fn, handle, topk_idx, layout_info, &update)))
		return result(rc);
	return result(ep_handle_update(handle, &update, stream));
}

/* Init may grow a window and allocate: neither can be captured. */
static int capture_refuse(const char *fn, struct ncclEpGroup *group, void *stream)
{
	bool capturing = false;
	int rc = group->dev->ops->capturing(group->dev, stream, &capturing);

	if (!rc && capturing)
		return EP_BAD_USE("%s: stream: is being captured: make handles before, and capture ncclEpUpdateHandle",
				  fn);
	return rc;
}

/* Everything Update will check is checked before Init, which may be collective. */
static int create_check(const char *fn, struct ncclEpGroup *group, const struct ep_handle_args *args,
			const ncclEpTensor_t *topk_idx, const ncclEpLayoutInfo_t *layout_info, struct ep_update *update)
{
	struct ncclEpHandle draft = { .group = group, .args = *args, .k = args->k };

	return ep_check_update(fn, &draft, topk_idx, layout_info, update);
}

ncclResult_t ncclEpCreateHandle(ncclEpHandle_t *handle, ncclEpGroup_t group, ncclEpLayout_t layout,
				const ncclEpTensor_t *topk_idx, const ncclEpLayoutInfo_t *layout_info,
				const ncclEpHandleConfig_t *config, cudaStream_t stream)
{
	static const char fn[] = "ncclEpCreateHandle";
	struct ncclEpHandle *made = NULL;
	struct ep_handle_args args;
	struct ep_update update;
	size_t size;
	int rc, k;

	if ((rc = ep_check_pointer(fn, "handle", handle)))
		return result(rc);
	*handle = NULL;
	if ((rc = group_enter(fn, group)) || (rc = ep_check_topk_idx(fn, topk_idx, &k)) ||
	    (rc = ep_check_handle(fn, group, layout, config, k, &args)) ||
	    (rc = create_check(fn, group, &args, topk_idx, layout_info, &update)) ||
	    (rc = capture_refuse(fn, group, stream)) || (rc = group->algo->mem_size(fn, group, &args, &size)) ||
	    (rc = ep_handle_init(group, &args, NULL, size, &made)))
		return result(rc);
	if ((rc = ep_handle_update(made, &update, stream))) {
		ep_handle_destroy(made);
		return result(rc);
	}
	*handle = made;
	return ncclSuccess;
}

ncclResult_t ncclEpHandleDestroy(ncclEpHandle_t handle)
{
	return result(handle ? ep_handle_destroy(handle) : 0);
}

ncclResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *inputs,
			    const ncclEpDispatchOutputs_t *outputs, const ncclEpLayoutInfo_t *layout_info,
			    const ncclEpDispatchConfig_t *config, cudaStream_t stream)
{
	struct ep_dispatch op;
	int rc;

	if ((rc = handle_enter("ncclEpDispatch", handle)) ||
	    (rc = ep_check_dispatch(handle, inputs, outputs, layout_info, config, &op)))
		return result(rc);
	return result(handle->group->algo->dispatch(handle, &op, stream));
}

ncclResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *inputs,
			   const ncclEpCombineOutputs_t *outputs, const ncclEpCombineConfig_t *config,
			   cudaStream_t stream)
{
	struct ep_combine op;
	int rc;

	if ((rc = handle_enter("ncclEpCombine", handle)) ||
	    (rc = ep_check_combine(handle, inputs, outputs, config, &op)))
		return result(rc);
	return result(handle->group->algo->combine(handle, &op, stream));
}

ncclResult_t ncclEpComplete(ncclEpHandle_t handle, const ncclEpCompleteConfig_t *config, cudaStream_t stream)
{
	ncclEpCompleteConfig_t cfg;
	int rc;

	if ((rc = handle_enter("ncclEpComplete", handle)) ||
	    (rc = ep_struct_take_opt(EP_S_COMPLETE_CONFIG, "ncclEpComplete", "config", config, &cfg)))
		return result(rc);
	return result(handle->staged ? handle->group->algo->complete(handle, stream) : 0);
}

ncclResult_t ncclEpMaskQuery(ncclEpGroup_t group, int *mask, cudaStream_t stream)
{
	static const char fn[] = "ncclEpMaskQuery";
	int rc;

	if ((rc = group_enter(fn, group)) || (rc = ep_check_pointer(fn, "mask", mask)) ||
	    (rc = ep_check_mask(fn, group, NULL)))
		return result(rc);
	return result(group->algo->mask(group, &(struct ep_mask){ .op = EP_MASK_QUERY, .out = mask }, stream));
}

ncclResult_t ncclEpMaskUpdate(ncclEpGroup_t group, const int *mask, cudaStream_t stream)
{
	static const char fn[] = "ncclEpMaskUpdate";
	int rc;

	if ((rc = group_enter(fn, group)) || (rc = ep_check_pointer(fn, "mask", mask)) ||
	    (rc = ep_check_mask(fn, group, mask)))
		return result(rc);
	return result(group->algo->mask(group, &(struct ep_mask){ .op = EP_MASK_UPDATE, .in = mask }, stream));
}

ncclResult_t ncclEpMaskClean(ncclEpGroup_t group, cudaStream_t stream)
{
	static const char fn[] = "ncclEpMaskClean";
	int rc;

	if ((rc = group_enter(fn, group)) || (rc = ep_check_mask(fn, group, NULL)))
		return result(rc);
	return result(group->algo->mask(group, &(struct ep_mask){ .op = EP_MASK_CLEAN }, stream));
}

static int async_code(int err)
{
	static const struct {
		int err, code;
	} codes[] = { { 0, ANYEP_ASYNC_NONE },
		      { EP_ETIMEOUT, ANYEP_ASYNC_TIMEOUT },
		      { EP_EUSAGE, ANYEP_ASYNC_LIMIT },
		      { EP_EREMOTE, ANYEP_ASYNC_REMOTE } };

	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		if (err == -codes[i].err)
			return codes[i].code;
	return ANYEP_ASYNC_OTHER;
}

_Static_assert((int)ANYEP_ASYNC_TIMEOUT == EP_ASYNC_TIMEOUT && (int)ANYEP_ASYNC_BAD_EXPERT == EP_ASYNC_BAD_ID,
	       "kernels raise flags by these numbers");

ncclResult_t ncclEpGetAsyncError(ncclEpGroup_t group, int *error)
{
	int flag, rc;

	if ((rc = ep_check_live("ncclEpGetAsyncError", "group", EP_LIVE_GROUP, group)) ||
	    (rc = ep_check_pointer("ncclEpGetAsyncError", "error", error)))
		return result(rc);
	flag = ep_group_flag(group);
	*error = flag ? flag : async_code(ep_group_check(group));
	return ncclSuccess;
}

ncclResult_t ncclEpErrorClear(ncclEpGroup_t group)
{
	int rc = ep_check_live("ncclEpErrorClear", "group", EP_LIVE_GROUP, group);

	return result(rc ? rc : ep_group_clear(group));
}
