/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a caller may pass, as pure functions: no device, no other rank, nothing written but the copy they hand back.
 * Which code a mistake gets: what is wrong with a pointer, a struct, a tensor or a value by itself is -EP_EARG, also
 * where the limit it breaks was set by the configuration (T > Tmax); what would be right at another time, in another
 * mode or in a later version is -EP_EUSAGE.
 */
#ifndef EP_PLUGIN_CHECK_H
#define EP_PLUGIN_CHECK_H

#include "nccl_ep.h"
#include "util/error.h"

#define EP_BAD_ARG(...) EP_FAIL(EP_HANDLE, EP_EARG, __VA_ARGS__)
#define EP_BAD_USE(...) EP_FAIL(EP_HANDLE, EP_EUSAGE, __VA_ARGS__)

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

/* Copies what the caller's size covers into *dst and zeroes the rest; arg is the parameter's name, for the sentence. */
int ep_struct_take(enum ep_struct_id id, const char *fn, const char *arg, const void *src, void *dst);
/* The same where NULL means all defaults. */
int ep_struct_take_opt(enum ep_struct_id id, const char *fn, const char *arg, const void *src, void *dst);

/* -EP_EARG unless 0 <= value < count; names what was given. */
int ep_check_enum(const char *fn, const char *arg, unsigned value, unsigned count);
int ep_check_pointer(const char *fn, const char *arg, const void *ptr);

/* An operation's arguments after the checks: full-size copies, and the sizes the tensors agreed on. */
struct ep_update {
	const ncclEpTensor_t *topk_idx;
	ncclEpLayoutInfo_t info;
	size_t t, k;
};

struct ep_dispatch {
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info;
	ncclEpDispatchConfig_t cfg;
	size_t t, h, s; /* s: width of a scale row, 0 without scales */
};

struct ep_combine {
	ncclEpCombineInputs_t in;
	ncclEpCombineOutputs_t out;
	ncclEpCombineConfig_t cfg;
	size_t t, h;
};

/* What InitHandle, HandleMemSize and CreateHandle are told; k is -1 where HT leaves it to topk_idx. */
struct ep_handle_args {
	ncclEpLayout_t layout;
	size_t alignment; /* at least 1 */
	int k;
	int room; /* the largest K the handle has room for */
};

int ep_check_group(const ncclEpGroupConfig_t *config, struct ep_group_cfg *cfg, ncclEpAllocConfig_t *alloc);
int ep_check_handle(const char *fn, const struct ncclEpGroup *group, ncclEpLayout_t layout,
		    const ncclEpHandleConfig_t *config, int num_topk, struct ep_handle_args *out);
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
/* Dispatch and combine: nothing staged on the handle, a free buffer in the group. */
int ep_check_staged(const char *fn, const struct ncclEpHandle *handle);
/* For the three mask calls; update, where not NULL, holds one 0 or 1 per rank. */
int ep_check_mask(const char *fn, const struct ncclEpGroup *group, const int *update);

#endif
