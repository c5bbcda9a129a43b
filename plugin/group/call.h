/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call after the checks: full-size copies of the caller's structs, and the sizes that its tensors agreed on. The
 * checks (plugin/check) fill these, the algorithms (plugin/ll, plugin/ht) read them.
 */
#ifndef EP_PLUGIN_CALL_H
#define EP_PLUGIN_CALL_H

#include <stddef.h>

#include "nccl_ep.h"
#include "util/error.h"

/*
 * The result of a mistake: what is wrong with a pointer, a struct, a tensor or a value by itself is EP_BAD_ARG, also
 * where the limit it exceeds was set by the configuration (T > Tmax); what would be right at another time, in another
 * mode or in a later version is EP_BAD_USE.
 */
#define EP_BAD_ARG(...) EP_FAIL(EP_HANDLE, EP_EARG, __VA_ARGS__)
#define EP_BAD_USE(...) EP_FAIL(EP_HANDLE, EP_EUSAGE, __VA_ARGS__)
#define EP_NOT_LIVE(fn, arg, ptr)                                                                     \
	EP_BAD_ARG("%s: %s: %p does not exist: it has been destroyed, or was never created", fn, arg, \
		   (const void *)(ptr))

/* Of InitHandle, HandleMemSize and CreateHandle. */
struct ep_handle_args {
	ncclEpLayout_t layout;
	size_t alignment; /* at least 1 */
	int k;		  /* -1: HT takes it from topk_idx */
	int room;	  /* the largest K the handle has room for */
};

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

/* Device memory, as struct ep_ll_source_args has it. */
struct ep_sources {
	const ncclEpTensor_t *tokens, *ranges;
};

struct ep_mask {
	enum { EP_MASK_QUERY, EP_MASK_UPDATE, EP_MASK_CLEAN } op;
	const int *in; /* update: 1 active, 0 masked, by rank */
	int *out;      /* query: device memory */
};

#endif
