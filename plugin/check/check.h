/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller may pass, as pure functions: no device, no other rank, nothing written but the copy they return. */
#ifndef EP_PLUGIN_CHECK_H
#define EP_PLUGIN_CHECK_H

#include "nccl_ep.h"
#include "nccl_ep_ext.h"
#include "plugin/group/call.h"
#include "util/live.h"

struct ep_group_cfg;

/* The public structs that carry a size and a magic number. */
enum ep_struct_id {
	EP_S_TENSOR,
	EP_S_TENSOR_ALLOC_CONFIG,
	EP_S_GROUP_CONFIG,
	EP_S_LAYOUT_INFO,
	EP_S_DISPATCH_INPUTS,
	EP_S_DISPATCH_OUTPUTS,
	EP_S_COMBINE_INPUTS,
	EP_S_COMBINE_OUTPUTS,
	EP_S_HANDLE_CONFIG,
	EP_S_DISPATCH_CONFIG,
	EP_S_COMBINE_CONFIG,
	EP_S_COMPLETE_CONFIG,
	EP_STRUCTS
};

/* Copies what the caller's size covers into *dst and zeroes the rest; arg is the parameter's name, for messages. */
int ep_struct_take(enum ep_struct_id id, const char *fn, const char *arg, const void *src, void *dst);
/* The same where NULL means all defaults. */
int ep_struct_take_opt(enum ep_struct_id id, const char *fn, const char *arg, const void *src, void *dst);

/* -EP_EARG unless value < count. */
int ep_check_enum(const char *fn, const char *arg, unsigned value, unsigned count);
int ep_check_pointer(const char *fn, const char *arg, const void *ptr);
/* -EP_EARG for NULL and for what has been destroyed; nothing is read there. */
int ep_check_live(const char *fn, const char *arg, enum ep_live_kind kind, const void *ptr);

int ep_check_group(const ncclEpGroupConfig_t *config, struct ep_group_cfg *cfg, ncclEpAllocConfig_t *alloc);
int ep_check_handle(const char *fn, const struct ncclEpGroup *group, ncclEpLayout_t layout,
		    const ncclEpHandleConfig_t *config, int num_topk, struct ep_handle_args *out);
/* Of ncclEpTensorAlloc. */
int ep_check_tensor_alloc(unsigned ndim, ncclDataType_t datatype, const size_t *sizes,
			  const ncclEpTensorAllocConfig_t *config, ncclEpTensor_t *const *tensor);
/* 1D uint8 of at least `need` bytes. */
int ep_check_handle_mem(const ncclEpTensor_t *handle_mem, size_t need);
/* The rank, dtype and K of a topk_idx whose handle does not exist yet. */
int ep_check_topk_idx(const char *fn, const ncclEpTensor_t *topk_idx, int *k);
int ep_check_update(const char *fn, const struct ncclEpHandle *handle, const ncclEpTensor_t *topk_idx,
		    const ncclEpLayoutInfo_t *layout_info, struct ep_update *out);
int ep_check_dispatch(const struct ncclEpHandle *handle, const ncclEpDispatchInputs_t *inputs,
		      const ncclEpDispatchOutputs_t *outputs, const ncclEpLayoutInfo_t *layout_info,
		      const ncclEpDispatchConfig_t *config, struct ep_dispatch *out);
int ep_check_combine(const struct ncclEpHandle *handle, const ncclEpCombineInputs_t *inputs,
		     const ncclEpCombineOutputs_t *outputs, const ncclEpCombineConfig_t *config,
		     struct ep_combine *out);
int ep_check_sources(const struct ncclEpHandle *handle, const ncclEpTensor_t *tokens, const ncclEpTensor_t *ranges,
		     struct ep_sources *out);
/* Of anyEpHandleWaitStats; NULL: both members are. */
int ep_check_wait_stats(const struct ncclEpHandle *handle, const anyEpWaitStats_t *stats, anyEpWaitStats_t *out);
/* Of anyEpHandleBias: the tensors by themselves; ep_check_combine compares them with those of the call. */
int ep_check_bias(const struct ncclEpHandle *handle, const ncclEpTensor_t *const *bias, int count);
/* Dispatch and combine: nothing staged on the handle, a free buffer in the group. */
int ep_check_staged(const char *fn, const struct ncclEpHandle *handle);
/* For the three mask calls; update, where not NULL, holds one 0 or 1 per rank. */
int ep_check_mask(const char *fn, const struct ncclEpGroup *group, const int *update);

#endif
