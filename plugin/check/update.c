/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/check/check.h"
#include "plugin/check/tensor.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "util/error.h"

enum { TOPK_IDX, COUNTERS, OFFSETS, TOTAL, TENSORS };

static const char *const names[TENSORS] = {
	[TOPK_IDX] = "topk_idx",
	[COUNTERS] = "layout_info->expert_counters",
	[OFFSETS] = "layout_info->expert_offsets",
	[TOTAL] = "layout_info->recv_total_counter",
};

/* clang-format off */
#define IDX { .tensor = TOPK_IDX, .need = EP_REQUIRED, .ndim = 2, .dtypes = I32_64, .dim = { EP_D_T, EP_D_K } }
#define COUNT(t, mask, same, size) \
	{ .tensor = t, .need = EP_OPTIONAL, .ndim = 1, .alike = same, .dtypes = mask, .dim = { size } }
#define I32_64 (EP_DT_I32 | EP_DT_I64)

/* Members of layout_info that a layout does not fill are not looked at. */
static const struct ep_slot ll[] = { IDX };
static const struct ep_slot ht_flat[] = {
	IDX,
	COUNT(COUNTERS, EP_DT_I32, EP_ALIKE_NONE, EP_D_EL),
	COUNT(TOTAL, I32_64, EP_ALIKE_NONE, EP_D_ONE),
};
static const struct ep_slot ht_expert[] = {
	IDX,
	COUNT(COUNTERS, I32_64, EP_ALIKE_COUNTERS, EP_D_EL),
	COUNT(OFFSETS, I32_64, EP_ALIKE_COUNTERS, EP_D_EL),
	COUNT(TOTAL, I32_64, EP_ALIKE_COUNTERS, EP_D_ONE),
};
#define TABLE(t) { t, sizeof(t) / sizeof((t)[0]) }
static const struct {
	const struct ep_slot *slot;
	size_t count;
} tables[] = { TABLE(ll), TABLE(ht_flat), TABLE(ht_expert) };
/* clang-format on */

int ep_check_topk_idx(const char *fn, const ncclEpTensor_t *topk_idx, int *k)
{
	ncclEpTensor_t t;
	int rc = ep_struct_take(EP_S_TENSOR, fn, names[TOPK_IDX], topk_idx, &t);

	if (rc)
		return rc;
	if (t.ndim != 2)
		return EP_BAD_ARG("%s: topk_idx: ndim is %u, must be 2", fn, t.ndim);
	if (!t.sizes)
		return EP_BAD_ARG("%s: topk_idx: sizes is NULL, must point to 2 numbers", fn);
	if (t.sizes[1] < 1 || t.sizes[1] > INT32_MAX)
		return EP_BAD_ARG("%s: topk_idx: sizes[1] is %zu: K is at least 1 and an int", fn, t.sizes[1]);
	*k = (int)t.sizes[1];
	return 0;
}

int ep_check_update(const char *fn, const struct ncclEpHandle *handle, const ncclEpTensor_t *topk_idx,
		    const ncclEpLayoutInfo_t *layout_info, struct ep_update *out)
{
	bool ht = ep_group_ht(handle->group);
	int table = !ht ? 0 : handle->args.layout == NCCL_EP_LAYOUT_FLAT ? 1 : 2;
	struct ep_env env;
	int rc;

	if (!ht && layout_info)
		return EP_BAD_ARG("%s: layout_info must be NULL in LL: its counters are an output of ncclEpDispatch",
				  fn);
	if ((rc = ep_struct_take_opt(EP_S_LAYOUT_INFO, fn, "layout_info", layout_info, &out->info)) ||
	    (rc = ep_check_enum(fn, "layout_info->recv_topk_idx_kind", out->info.recv_topk_idx_kind,
				NCCL_EP_EXPERT_ID_GLOBAL + 1)))
		return rc;
	const ncclEpTensor_t *const tensors[TENSORS] = {
		[TOPK_IDX] = topk_idx,
		[COUNTERS] = out->info.expert_counters,
		[OFFSETS] = out->info.expert_offsets,
		[TOTAL] = out->info.recv_total_counter,
	};
	ep_env_init(&env, fn, names, handle);
	env.sym[EP_D_T].known = false; /* each Update brings its own */
	env.sym[EP_D_K].known = handle->args.k > 0;
	if ((rc = ep_slots_check(&env, tables[table].slot, tables[table].count, tensors)))
		return rc;
	out->topk_idx = topk_idx;
	out->t = env.sym[EP_D_T].value;
	out->k = env.sym[EP_D_K].value;
	if (out->k > (size_t)handle->args.room)
		return EP_BAD_USE("%s: topk_idx: K is %zu, but the handle was made with room for %d: pass num_topk to "
				  "ncclEpInitHandle",
				  fn, out->k, handle->args.room);
	if (handle->staged)
		return EP_BAD_USE("%s: handle: an operation is staged on it: call ncclEpComplete first", fn);
	return 0;
}
