/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ll/ll.h"

#include <string.h>

#include "kernels/args.h"
#include "nccl_ep_ext.h"
#include "plugin/group/handle.h"
#include "plugin/group/launch.h"
#include "plugin/group/plan.h"
#include "plugin/group/tensor.h"
#include "plugin/ll/mask.h"
#include "plugin/ll/plan.h"
#include "plugin/ll/state.h"
#include "util/error.h"

/* Arguments common to every launch of a handle. */
static int args_common(struct ncclEpHandle *handle, struct ep_ll_args *a)
{
	struct ncclEpGroup *group = handle->group;
	const struct ep_window *win = group->payload.win[group->payload.count - 1];
	uint8_t *mem = handle->mem.data;
	struct ep_ll_mem at;
	int rc = ep_ll_mem("ncclEpDispatch", group, &handle->args, &at);

	if (rc)
		return rc;
	ep_ll_group_args(group, (uint32_t)handle->k, a);
	a->handle = (struct ep_ll_handle *)mem;
	a->number = handle->number;
	a->list = (struct ep_ll_entry *)(mem + at.rows);
	a->home_row = (int32_t *)(mem + at.idx);
	a->sent_slot = (uint32_t *)(mem + at.slot);
	a->back = (struct ep_ll_back *)(mem + at.back);
	a->order = (uint32_t *)(mem + at.order);
	a->window = (uint8_t *const *)win->peer_dev;
	a->buffer_bytes = win->size / 2 / EP_PLAN_ALIGN * EP_PLAN_ALIGN;
	if (handle->args.layout == NCCL_EP_LAYOUT_RANK_MAJOR)
		a->flags |= EP_LL_RANK_MAJOR;
	if (handle->topk_idx.datatype == ncclInt32)
		a->flags |= EP_LL_IDX32;
	return ep_tensor_data(group, &handle->topk_idx, (void **)&a->topk_idx);
}

/* A block per token of this rank, in a combine with far ranks one per part of it, and a warp per row that arrives. */
static size_t useful_blocks(const struct ep_ll_args *a, bool parted)
{
	size_t parts = parted ? EP_LL_PARTS : 1;

	return 1 + a->tokens * parts + (size_t)(a->shape.nranks - 1) * a->shape.tmax / 4;
}

/* Work of single warps: sending a token, or unpacking a row that arrived. */
static size_t useful_rows(const struct ep_ll_args *a)
{
	size_t others = (size_t)(a->shape.nranks - 1) * a->shape.tmax;

	return others > a->tokens ? others : a->tokens + 1;
}

/* The smallest kernel that has all the code a launch needs. */
static enum ep_kernel kernel_of(const struct ep_ll_args *a, bool across, bool combine)
{
	if (a->flags & EP_LL_RARE && across)
		return combine ? EP_K_ll_combine_far_any : EP_K_ll_dispatch_far_any;
	if (a->flags & EP_LL_RARE)
		return combine ? EP_K_ll_combine_any : EP_K_ll_dispatch_any;
	if (across && combine)
		return a->flags & EP_LL_MANY ? EP_K_ll_combine_far : EP_K_ll_combine_far_few;
	if (across)
		return a->tokens > EP_LL_FEW ? EP_K_ll_dispatch_far : EP_K_ll_dispatch_far_few;
	return combine ? EP_K_ll_combine : EP_K_ll_dispatch;
}

static int launch(struct ncclEpHandle *handle, enum ep_kernel kernel, unsigned sms, struct ep_ll_args *a, void *stream)
{
	struct ncclEpGroup *group = handle->group;
	bool dispatch = kernel == EP_K_ll_dispatch;
	struct ep_launch_need need = { .kernel = kernel,
				       .warp_bytes = a->stage + ep_ll_route_bytes(a),
				       .block_bytes = 2 * ep_ll_terms_bytes(a),
				       .blocks = useful_blocks(a, !dispatch && handle->group->link),
				       .rows = dispatch ? useful_rows(a) : 0,
				       .sms = sms };
	struct ep_launch l = { .kernel = kernel, .args = a, .args_size = sizeof(*a), .stream = stream };
	struct ep_launch_plan plan;
	int rc = ep_launch_plan(group, &need, &plan);

	if (rc)
		return rc;
	l.kernel = kernel_of(a, group->link != NULL, !dispatch);
	l.grid = plan.grid;
	l.block = plan.block;
	l.shared = ep_ll_shared_bytes(a, plan.block / group->dev->warp);
	return ep_launch_run(group, &l, &a->counted);
}

static void staged_set(struct ncclEpHandle *handle, bool staged)
{
	struct ncclEpGroup *group = handle->group;

	pthread_mutex_lock(&group->lock);
	group->staged += (staged ? 1 : 0) - (handle->staged ? 1 : 0);
	handle->staged = staged;
	pthread_mutex_unlock(&group->lock);
}

/* One launch, or the send half of two; then the arguments are kept for the second half. */
static int run(struct ncclEpHandle *handle, enum ep_kernel kernel, struct ep_ll_args *a, uint32_t stage, bool send_only,
	       void *stream)
{
	unsigned sms = handle->sms[kernel != EP_K_ll_dispatch];
	int rc;

	a->stage = stage;
	a->flags |= EP_LL_SEND | (send_only ? 0 : EP_LL_RECV);
	rc = ep_ll_mask_catch_up(handle->group, kernel == EP_K_ll_dispatch, stream);
	if (rc)
		return rc;
	rc = launch(handle, kernel, sms, a, stream);
	if (rc || !send_only)
		return rc;
	a->flags = (a->flags & ~(uint32_t)EP_LL_SEND) | EP_LL_RECV;
	handle->second = *a;
	handle->second_kernel = kernel;
	handle->second_sms = sms;
	staged_set(handle, true);
	return 0;
}

static uint32_t dtype_size(ncclDataType_t t)
{
	return ep_dtype_info(t)->size;
}

/* Bytes of tokens and scales, in the window and in the tensors. */
static void dispatch_sizes(const struct ep_dispatch *op, struct ep_ll_args *a)
{
	a->hidden = (uint32_t)op->h;
	a->in_bytes = (uint32_t)op->in.tokens->sizes[1] * dtype_size(op->in.tokens->datatype);
	a->row_bytes = a->in_bytes;
	if (op->in.scales)
		a->scale_bytes = (uint32_t)op->in.scales->sizes[1] * dtype_size(op->in.scales->datatype);
	ep_ll_quant_sizes(a, op->cfg.quant_recipe, op->cfg.round_scales);
	a->row_pitch = (uint32_t)ep_ll_align(ep_ll_row_head_bytes(&a->shape, a->flags & EP_LL_RANK_MAJOR) +
					     ep_ll_pad(a->row_bytes) + ep_ll_pad(a->scale_bytes));
}

/* The kernel tests one flag of a dispatch: scales that go out by columns. */
static uint32_t scale_flags(const struct ncclEpHandle *handle, const struct ep_ll_args *a)
{
	static const uint32_t flags[] = {
		[ANYEP_SCALES_COLUMNS] = EP_LL_COLUMNS, [ANYEP_SCALES_EXPONENTS] = EP_LL_COLUMNS | EP_LL_EXPONENTS
	};

	return a->scale_bytes ? flags[handle->scales] : 0;
}

static bool fits(const struct ep_ll_args *a, const struct ep_ll_room *room)
{
	return room->near <= a->buffer_bytes && room->far <= a->far.window_bytes && room->send <= a->far.send_stride;
}

static int ll_dispatch(struct ncclEpHandle *handle, const struct ep_dispatch *op, void *stream)
{
	struct ncclEpGroup *group = handle->group;
	bool rank_major = handle->args.layout == NCCL_EP_LAYOUT_RANK_MAJOR;
	const ncclEpTensor_t *counts = rank_major ? op->info.src_rank_counters : op->info.expert_counters;
	struct ep_ll_room room;
	struct ep_ll_args a;
	uint64_t row;
	uint32_t stage;
	int rc = args_common(handle, &a);

	if (rc)
		return rc;
	dispatch_sizes(op, &a);
	a.flags |= scale_flags(handle, &a);
	a.tokens = (uint32_t)op->t;
	a.waited = handle->waited[0];
	if (op->info.recv_topk_idx_kind == NCCL_EP_EXPERT_ID_GLOBAL)
		a.flags |= EP_LL_GLOBAL;
	if ((rc = ep_tensor_pointer(group, op->in.tokens, &a.in)) ||
	    (rc = ep_tensor_pointer(group, op->in.scales, &a.in_scales)) ||
	    (rc = ep_tensor_pointer(group, op->in.topk_weights, &a.topk_weights)) ||
	    (rc = ep_tensor_pointer(group, op->out.tokens, &a.out)) ||
	    (rc = ep_tensor_pointer(group, op->out.scales, &a.out_scales)) ||
	    (rc = ep_tensor_pointer(group, op->out.topk_weights, &a.out_weights)) ||
	    (rc = ep_tensor_pointer(group, op->out.topk_idx, &a.out_idx)) ||
	    (rc = ep_tensor_pointer(group, counts, &a.out_counts)))
		return rc;
	room = ep_ll_dispatch_room(group, &a.shape, a.row_pitch);
	if (!fits(&a, &room))
		return EP_FAIL(EP_HANDLE, EP_EUSAGE,
			       "ncclEpDispatch: tokens and scales of %u bytes do not fit the window: raise "
			       "config->max_token_bytes (%u)",
			       a.row_bytes + a.scale_bytes, group->cfg.max_token_bytes);
	row = ep_ll_stage_row(&a);
	if (group->link && a.row_pitch > row) /* rows of far ranks come with their heads, in one copy */
		row = a.row_pitch;
	stage = ep_launch_stage(EP_K_ll_dispatch, row, a.flags & EP_LL_QUANTISED);
	rc = run(handle, EP_K_ll_dispatch, &a, stage, op->cfg.send_only, stream);
	if (!rc)
		handle->dispatched = true;
	return rc;
}

static int ll_combine(struct ncclEpHandle *handle, const struct ep_combine *op, void *stream)
{
	struct ncclEpGroup *group = handle->group;
	struct ep_ll_room room;
	struct ep_ll_args a;
	int rc = args_common(handle, &a);

	if (rc)
		return rc;
	a.tokens = (uint32_t)op->t;
	a.waited = handle->waited[1];
	a.hidden = (uint32_t)op->h;
	a.dtype = ep_tensor_num(op->in.tokens->datatype);
	a.row_bytes = a.in_bytes = (uint32_t)op->h * dtype_size(op->in.tokens->datatype);
	a.row_pitch = (uint32_t)ep_ll_pad(a.row_bytes);
	if ((rc = ep_tensor_pointer(group, op->in.tokens, &a.in)) ||
	    (rc = ep_tensor_pointer(group, op->out.tokens, &a.out)))
		return rc;
	if (!(a.flags & EP_LL_RANK_MAJOR) && (rc = ep_tensor_pointer(group, op->out.topk_weights, &a.topk_weights)))
		return rc;
	room = ep_ll_combine_room(group, &a.shape, a.row_pitch);
	if (!fits(&a, &room))
		return EP_FAIL(EP_HANDLE, EP_EUSAGE,
			       "ncclEpCombine: tokens of %u bytes do not fit the window: raise config->max_token_bytes "
			       "(%u)",
			       a.row_bytes, group->cfg.max_token_bytes);
	return run(handle, EP_K_ll_combine, &a, ep_launch_stage(EP_K_ll_combine, a.row_bytes, false), op->cfg.send_only,
		   stream);
}

static int ll_complete(struct ncclEpHandle *handle, void *stream)
{
	struct ep_ll_args a = handle->second;
	int rc = launch(handle, handle->second_kernel, handle->second_sms, &a, stream);

	/* Also on failure: the staged operation has had its second half. */
	staged_set(handle, false);
	return rc;
}

static int ll_sources(struct ncclEpHandle *handle, const struct ep_sources *out, void *stream)
{
	struct ncclEpGroup *group = handle->group;
	struct ep_ll_source_args m = { .tokens = NULL };
	struct ep_launch l = {
		.kernel = EP_K_ll_sources, .grid = 1, .args = &m, .args_size = sizeof(m), .stream = stream
	};
	int rc = args_common(handle, &m.ll);

	if (rc || (rc = ep_tensor_pointer(group, out->tokens, &m.tokens)) ||
	    (rc = ep_tensor_pointer(group, out->ranges, &m.ranges)))
		return rc;
	m.ll.tokens = (uint32_t)handle->t;
	l.block = group->dev->warp == 1 ? 1 : 4 * group->dev->warp;
	return ep_launch_run(group, &l, &m.ll.counted);
}

/* The routing is read from the caller's topk_idx until the combine. */
static int ll_update(struct ncclEpHandle *handle, const struct ep_update *update, void *stream)
{
	(void)stream;
	ep_tensor_keep(&handle->topk_idx, handle->topk_sizes, update->topk_idx);
	handle->dispatched = false;
	return 0;
}

const struct ep_algo ep_ll_algo = {
	.name = "LL",
	.mode = { "LL", "LL expert-major", "LL rank-major", "LL" },
	.control_size = ep_ll_control,
	.far_size = ep_ll_far,
	.open = ep_ll_open,
	.stop = ep_algo_no_state,
	.close = ep_algo_no_state,
	.abandon = ep_algo_no_state,
	.clear = ep_ll_clear,
	.mask = ep_ll_mask,
	.barrier = ep_ll_barrier,
	.heard = ep_ll_heard,
	.mem_size = ep_ll_mem_size,
	.need = ep_ll_need,
	.update = ll_update,
	.dispatch = ll_dispatch,
	.combine = ll_combine,
	.complete = ll_complete,
	.sources = ll_sources,
};
