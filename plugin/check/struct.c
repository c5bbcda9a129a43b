/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "plugin/check/check.h"
#include "plugin/group/tensor.h"
#include "util/error.h"

static const struct {
	const char *init; /* what a caller should have started from */
	uint32_t magic;
	uint32_t v1, full;
} structs[EP_STRUCTS] = {
/* clang-format off */
#define STRUCT(id, type, magic) [EP_S_##id] = { "NCCL_EP_" #id "_INIT", magic, NCCL_EP_##id##_V1_SIZE, sizeof(type) }
	STRUCT(TENSOR, ncclEpTensor_t, NCCL_EP_TENSOR_MAGIC),
	STRUCT(TENSOR_ALLOC_CONFIG, ncclEpTensorAllocConfig_t, NCCL_EP_MAGIC),
	STRUCT(GROUP_CONFIG, ncclEpGroupConfig_t, NCCL_EP_MAGIC),
	STRUCT(LAYOUT_INFO, ncclEpLayoutInfo_t, NCCL_EP_MAGIC),
	STRUCT(DISPATCH_INPUTS, ncclEpDispatchInputs_t, NCCL_EP_MAGIC),
	STRUCT(DISPATCH_OUTPUTS, ncclEpDispatchOutputs_t, NCCL_EP_MAGIC),
	STRUCT(COMBINE_INPUTS, ncclEpCombineInputs_t, NCCL_EP_MAGIC),
	STRUCT(COMBINE_OUTPUTS, ncclEpCombineOutputs_t, NCCL_EP_MAGIC),
	STRUCT(HANDLE_CONFIG, ncclEpHandleConfig_t, NCCL_EP_MAGIC),
	STRUCT(DISPATCH_CONFIG, ncclEpDispatchConfig_t, NCCL_EP_MAGIC),
	STRUCT(COMBINE_CONFIG, ncclEpCombineConfig_t, NCCL_EP_MAGIC),
	STRUCT(COMPLETE_CONFIG, ncclEpCompleteConfig_t, NCCL_EP_MAGIC),
#undef STRUCT
};
/* clang-format on */

/* Every public struct begins so. */
struct head {
	uint32_t size, magic;
};

int ep_check_pointer(const char *fn, const char *arg, const void *ptr)
{
	return ptr ? 0 : EP_BAD_ARG("%s: %s is NULL", fn, arg);
}

int ep_check_live(const char *fn, const char *arg, enum ep_live_kind kind, const void *ptr)
{
	if (ep_live_has(kind, ptr))
		return 0;
	return ptr ? EP_NOT_LIVE(fn, arg, ptr) : ep_check_pointer(fn, arg, ptr);
}

int ep_check_enum(const char *fn, const char *arg, unsigned value, unsigned count)
{
	if (value < count)
		return 0;
	return EP_BAD_ARG("%s: %s is %d, must be 0 to %u", fn, arg, (int)value, count - 1);
}

static bool magic_ok(enum ep_struct_id id, uint32_t magic)
{
	return magic == structs[id].magic || (id == EP_S_TENSOR && magic == EP_TENSOR_MAGIC_OWNED);
}

int ep_struct_take(enum ep_struct_id id, const char *fn, const char *arg, const void *src, void *dst)
{
	struct head head;
	uint32_t full = structs[id].full;

	if (!src)
		return ep_check_pointer(fn, arg, src);
	memcpy(&head, src, sizeof(head));
	if (head.size < structs[id].v1)
		return EP_BAD_ARG("%s: %s->size is %u, must be at least %u: initialise it with %s", fn, arg, head.size,
				  structs[id].v1, structs[id].init);
	if (id == EP_S_TENSOR && head.magic == EP_TENSOR_MAGIC_GONE)
		return EP_BAD_ARG("%s: %s: has been destroyed by ncclEpTensorDestroy", fn, arg);
	if (!magic_ok(id, head.magic))
		return EP_BAD_ARG("%s: %s->magic is 0x%x, must be 0x%x: initialise it with %s", fn, arg, head.magic,
				  structs[id].magic, structs[id].init);
	memset(dst, 0, full);
	memcpy(dst, src, head.size < full ? head.size : full);
	return 0;
}

int ep_struct_take_opt(enum ep_struct_id id, const char *fn, const char *arg, const void *src, void *dst)
{
	if (src)
		return ep_struct_take(id, fn, arg, src, dst);
	memset(dst, 0, structs[id].full);
	return 0;
}
