/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/ht.h"

#include <string.h>

#include "kernels/args.h"
#include "nccl_ep_ext.h"
#include "plugin/group/handle.h"
#include "plugin/group/launch.h"
#include "plugin/group/tensor.h"
#include "plugin/ht/plan.h"
#include "plugin/ht/state.h"
#include "util/clock.h"
#include "util/error.h"

#define HIST_MAX 4096u /* bytes of a warp's counts that are worth their shared memory */
#define SYNC_GRACE_NS 500000000ull

static struct ep_ht_shape shape_of(const struct ncclEpHandle *handle)
{
	const struct ncclEpGroup *group = handle->group;
	uint32_t per_rank = (uint32_t)group->experts_per_rank, room = (uint32_t)handle->args.room;

	return (struct ep_ht_shape){
		.rank = (uint32_t)group->rank,
		.nranks = (uint32_t)group->nranks,
		.experts = group->cfg.num_experts,
		.per_rank = per_rank,
		.alignment = (uint32_t)handle->args.alignment,
		.room = room,
		.fan = room < per_rank ? room : per_rank,
		.tmax = group->cfg.max_dispatch,
		.bins = ep_ht_bins_of(group),
	};
}

/* FNV-1a: catches mistakes, not attacks. */
static uint64_t key_of(const uint32_t *word, size_t n)
{
	uint64_t key = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < n; i++)
		key = (key ^ word[i]) * 0x100000001b3ull;
	return key;
}

#define KEY(...) key_of((const uint32_t[]){ __VA_ARGS__ }, sizeof((uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

static bool expert_major(const struct ncclEpHandle *handle)
{
	return handle->args.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
}

static void args_group(const struct ncclEpHandle *handle, struct ep_ht_args *a)
{
	const struct ncclEpGroup *group = handle->group;
	const struct ep_window *win = group->payload.count ? group->payload.win[group->payload.count - 1] : NULL;
	struct ep_page_words *page = ep_page_device(&group->page);
	const struct ep_ht *ht = group->algo_state;

	*a = (struct ep_ht_args){
		.shape = shape_of(handle),
		.state = group->state.ptr,
		.report = &page->report,
		.async = page->async,
		.abort = &page->abort,
		.mine = group->control.peer[group->rank],
		.control = (uint8_t *const *)group->control.peer_dev,
		.window = win ? (uint8_t *const *)win->peer_dev : NULL,
		.near = (struct ep_ht_line *const *)((uint8_t *)group->state.ptr + ep_ht_near_at(group)),
		.lines = (struct ep_ht_line *)((uint8_t *)group->state.ptr + ep_ht_lines_at(group)),
		.reach = ep_reach_device(ep_ht_reach(group)),
		.timeout_ns = group->timeout_ns,
		.flags = (expert_major(handle) ? EP_HT_EXPERT_MAJOR : 0) |
			 (group->cfg.overflow == NCCL_EP_OVERFLOW_DROP ? EP_HT_DROP : 0) |
			 (group->cfg.zero_copy == NCCL_EP_ZERO_COPY_OFF ? EP_HT_STAGE : 0),
	};
	for (int r = 0; r < group->nranks && r < (int)EP_HT_HERE; r++) {
		a->control_here[r] = group->control.peer[r];
		a->window_here[r] = win ? win->peer[r] : NULL;
		a->near_here[r] = ht->near[r];
	}
	ep_ht_across_args(group, &a->across);
}

/* Arguments common to every launch of a handle. */
static int args_common(const char *fn, struct ncclEpHandle *handle, struct ep_ht_args *a)
{
	uint8_t *mem = handle->mem.data;
	struct ep_ht_window window;
	struct ep_ht_mem at;
	int rc;

	if ((rc = ep_ht_mem(fn, handle->group, &handle->args, &at)) ||
	    (rc = ep_ht_window(fn, handle->group, &handle->args, &window)))
		return rc;
	args_group(handle, a);
	a->shape.capacity = (uint32_t)window.row_count;
	a->stage_at = window.stage;
	a->routing_key = KEY(handle->args.layout, a->shape.rank, a->shape.nranks, a->shape.experts, a->shape.tmax,
			     a->shape.capacity, a->shape.alignment);
	a->handle = (struct ep_ht_handle *)mem;
	a->routed = mem + at.routed;
	a->from = (struct ep_ht_run *)(mem + at.from);
	a->zone = (struct ep_ht_run *)(mem + at.zone);
	a->area = (struct ep_ht_run *)(mem + at.area);
	a->filled = (uint32_t *)(mem + at.filled);
	a->across.rows_out = (uint32_t *)(mem + at.rows_out);
	a->across.rows_in = (uint32_t *)(mem + at.rows_in);
	return 0;
}

/* Where other processes find the tensors of this launch, and which of theirs it may touch: memory mapped after a launch
 * is not guaranteed to it. */
static int args_reach(struct ncclEpGroup *group, const void *tokens, struct ep_ht_args *a, void *stream)
{
	struct ep_reach *reach = ep_ht_reach(group);
	bool capturing = false;
	int rc;

	if (reach && (rc = group->dev->ops->capturing(group->dev, stream, &capturing)))
		return rc;
	ep_reach_place(reach, tokens, (size_t)a->limit * a->row_bytes, capturing, &a->place[0]);
	ep_reach_place(reach, a->out_scales, (size_t)a->limit * a->scale_bytes, capturing, &a->place[1]);
	a->mapped = capturing ? EP_REACH_CAPTURED : ep_reach_version(reach);
	return 0;
}

/* The pitch of a row in the stage, and how many the window has: never more than it was made for. */
static void args_stage(const struct ncclEpHandle *handle, struct ep_ht_args *a, uint32_t head)
{
	const struct ncclEpGroup *group = handle->group;
	uint64_t bytes = group->payload.win[group->payload.count - 1]->size - a->stage_at, rows;

	a->pitch = head + (a->row_bytes + 15) / 16 * 16 + (a->scale_bytes + 15) / 16 * 16;
	rows = a->pitch ? bytes / a->pitch : 0;
	a->stage_rows = rows < UINT32_MAX ? (uint32_t)rows : UINT32_MAX;
}

static int launch(struct ncclEpHandle *handle, enum ep_kernel kernel, struct ep_ht_args *a, void *stream)
{
	struct ncclEpGroup *group = handle->group;
	struct ep_launch_need need = { .kernel = kernel,
				       .warp_bytes = a->stage + a->lane_bytes,
				       .block_bytes = ep_ht_table_bytes(a->shape.nranks),
				       .blocks = kernel == EP_K_ht_update ? EP_HT_CHUNKS : SIZE_MAX };
	struct ep_launch l = { .kernel = kernel, .args = a, .args_size = sizeof(*a), .stream = stream };
	struct ep_launch_plan plan;
	int rc;

	if (kernel != EP_K_ht_update)
		need.sms = handle->sms[kernel == EP_K_ht_combine];
	if ((rc = ep_launch_plan(group, &need, &plan)))
		return rc;
	if (group->link)
		l.kernel = kernel == EP_K_ht_update	? EP_K_ht_far_update
			   : kernel == EP_K_ht_dispatch ? EP_K_ht_far_dispatch
							: EP_K_ht_far_combine;
	l.grid = plan.grid;
	l.block = plan.block;
	l.shared = plan.block / group->dev->warp * need.warp_bytes + need.block_bytes;
	return ep_launch_run(group, &l, &a->counted);
}

static uint32_t lists(const struct ncclEpHandle *handle, const struct ep_ht_args *a)
{
	return (uint32_t)ep_ht_list_bytes(a->topk ? a->topk : (uint32_t)handle->args.room, a->biases);
}

static uint32_t wide(const ncclEpTensor_t *tensor, uint32_t flag)
{
	return tensor && tensor->datatype == ncclInt64 ? flag : 0;
}

/* The counters of a call, as kernels see them. */
struct counters {
	void *counts, *offsets, *total;
	uint32_t flags;
};

static int counters_find(const char *fn, const struct ncclEpHandle *handle, const ncclEpLayoutInfo_t *info,
			 struct counters *out)
{
	const ncclEpTensor_t *counts = info->expert_counters, *total = info->recv_total_counter;
	const ncclEpTensor_t *offsets = expert_major(handle) ? info->expert_offsets : NULL;
	const struct ncclEpGroup *group = handle->group;
	int rc;

	if ((rc = ep_tensor_counter(fn, group, "layout_info->expert_counters", counts, &out->counts)) ||
	    (rc = ep_tensor_counter(fn, group, "layout_info->expert_offsets", offsets, &out->offsets)) ||
	    (rc = ep_tensor_counter(fn, group, "layout_info->recv_total_counter", total, &out->total)))
		return rc;
	out->flags = wide(counts, EP_HT_COUNT64) | wide(offsets, EP_HT_COUNT64) | wide(total, EP_HT_TOTAL64);
	return 0;
}

static void counters_give(struct ep_ht_args *a, const struct counters *c)
{
	a->out_counts = c->counts;
	a->out_offsets = c->offsets;
	a->out_total = c->total;
	a->flags |= c->flags;
}

static int ht_update(struct ncclEpHandle *handle, const struct ep_update *update, void *stream)
{
	struct ncclEpGroup *group = handle->group;
	struct counters counters;
	struct ep_ht_args a;
	uint32_t hist = ep_ht_bins_of(group) * 4;
	int rc;

	if ((rc = counters_find("ncclEpUpdateHandle", handle, &update->info, &counters)) ||
	    (rc = args_common("ncclEpUpdateHandle", handle, &a)) ||
	    (rc = ep_tensor_pointer(group, update->topk_idx, &a.topk_idx)))
		return rc;
	counters_give(&a, &counters);
	a.tokens = (uint32_t)update->t;
	a.topk = (uint32_t)update->k;
	a.lane_bytes = (uint32_t)ep_ht_sort_bytes(a.topk) + (hist <= HIST_MAX ? (hist + 15) / 16 * 16 : 0);
	a.flags |= update->topk_idx->datatype == ncclInt32 ? EP_HT_IDX32 : 0;
	a.call_key = KEY(EP_K_ht_update, handle->args.layout, a.topk, a.shape.alignment);
	return launch(handle, EP_K_ht_update, &a, stream);
}

/* Of no handle: a routing of nothing. */
static int ht_barrier(struct ncclEpGroup *group, void *stream)
{
	const struct ncclEpHandle none = { .group = group,
					   .args = { .layout = NCCL_EP_LAYOUT_FLAT, .alignment = 1, .room = 1 } };
	struct ep_launch_need need = { .kernel = EP_K_ht_barrier, .blocks = 1 };
	struct ep_launch l = { .kernel = group->link ? EP_K_ht_far_barrier : EP_K_ht_barrier, .stream = stream };
	struct ep_launch_plan plan;
	struct ep_ht_args a;
	int rc;

	args_group(&none, &a);
	a.routed = a.mine; /* never read */
	a.flags |= group->payload.count ? 0 : EP_HT_BARE;
	a.call_key = KEY(EP_K_ht_barrier);
	need.block_bytes = ep_ht_table_bytes(a.shape.nranks);
	if ((rc = ep_launch_plan(group, &need, &plan)))
		return rc;
	l.args = &a;
	l.args_size = sizeof(a);
	l.grid = plan.grid;
	l.block = plan.block;
	l.shared = need.block_bytes;
	return ep_launch_run(group, &l, &a.counted);
}

static int heights_check(const ncclEpDispatchOutputs_t *out, uint64_t rows)
{
	const struct {
		const char *name;
		const ncclEpTensor_t *tensor;
	} all[] = { { "tokens", out->tokens },
		    { "topk_weights", out->topk_weights },
		    { "scales", out->scales },
		    { "topk_idx", out->topk_idx } };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i].tensor && all[i].tensor->sizes[0] < rows)
			return EP_BAD_ARG("ncclEpDispatch: outputs->%s: has %zu rows, but the routing gives this rank "
					  "%llu: size the outputs by recv_total_counter",
					  all[i].name, all[i].tensor->sizes[0], (unsigned long long)rows);
	return 0;
}

/* Eager mode: the number of rows routed to this rank is known on the device only. */
static int eager_check(struct ncclEpHandle *handle, const struct ep_dispatch *op, void *stream)
{
	struct ncclEpGroup *group = handle->group;
	const struct ep_dev_ops *ops = group->dev->ops;
	const struct ep_ht_handle *there = handle->mem.data, *seen = &ep_page_words(&group->page)->seen;
	bool capturing = false;
	int rc = ops->capturing(group->dev, stream, &capturing);

	if (rc)
		return rc;
	if (capturing)
		return EP_BAD_USE(
			"ncclEpDispatch: stream: is being captured, but in eager mode (max_recv_tokens_per_rank "
			"AUTO) dispatch must read the row count: set max_recv_tokens_per_rank");
	if ((rc = ops->copy(group->dev, &ep_page_words(&group->page)->seen, there, sizeof(*there), stream)) ||
	    /* A little longer than the kernels before it take: they say who did not answer. */
	    (rc = ops->sync(group->dev, stream, ep_now_ns() + group->timeout_ns + SYNC_GRACE_NS)) ||
	    (rc = ep_group_check(group)))
		return rc;
	return seen->magic == EP_HT_MAGIC ? heights_check(&op->out, seen->total) : 0;
}

static uint32_t row_bytes(const ncclEpTensor_t *tensor)
{
	return tensor ? (uint32_t)ep_tensor_row_bytes(tensor) : 0;
}

static int dispatch_tensors(struct ncclEpGroup *group, const struct ep_dispatch *op, struct ep_ht_args *a)
{
	int rc;

	if ((rc = ep_tensor_pointer(group, op->in.tokens, &a->in)) ||
	    (rc = ep_tensor_pointer(group, op->in.scales, &a->in_scales)) ||
	    (rc = ep_tensor_pointer(group, op->in.topk_weights, &a->in_weights)) ||
	    (rc = ep_tensor_pointer(group, op->out.tokens, &a->out)) ||
	    (rc = ep_tensor_pointer(group, op->out.scales, &a->out_scales)) ||
	    (rc = ep_tensor_pointer(group, op->out.topk_weights, &a->out_weights)) ||
	    (rc = ep_tensor_pointer(group, op->out.topk_idx, &a->out_idx)))
		return rc;
	return 0;
}

static uint32_t smaller(size_t a, uint32_t b)
{
	return a < b ? (uint32_t)a : b;
}

static int ht_dispatch(struct ncclEpHandle *handle, const struct ep_dispatch *op, void *stream)
{
	struct ncclEpGroup *group = handle->group;
	bool backward = op->cfg.pass_direction == NCCL_EP_BWD_PASS;
	struct counters counters = { 0 };
	struct ep_ht_args a;
	int rc;

	/* Flat has them at Update only. */
	if (expert_major(handle) && (rc = counters_find("ncclEpDispatch", handle, &op->info, &counters)))
		return rc;
	if ((rc = args_common("ncclEpDispatch", handle, &a)) ||
	    (!group->cfg.max_recv && (rc = eager_check(handle, op, stream))))
		return rc;
	if ((rc = dispatch_tensors(group, op, &a)))
		return rc;
	counters_give(&a, &counters);
	a.tokens = (uint32_t)op->t;
	a.topk = handle->k > 0 ? (uint32_t)handle->k : backward ? 0 : (uint32_t)op->in.topk_weights->sizes[1];
	a.limit = smaller(op->out.tokens->sizes[0], UINT32_MAX);
	if (!backward && !expert_major(handle)) {
		uint32_t most = group->cfg.max_recv ? group->cfg.max_recv : UINT32_MAX;

		a.tail_idx = smaller(op->out.topk_idx->sizes[0], most);
		a.tail_weights = smaller(op->out.topk_weights->sizes[0], most);
	}
	a.row_bytes = row_bytes(op->in.tokens);
	a.scale_bytes = row_bytes(op->in.scales);
	if ((rc = args_reach(group, a.out, &a, stream)))
		return rc;
	args_stage(handle, &a, ep_ht_head(&a.shape, expert_major(handle)));
	a.stage = ep_launch_stage(EP_K_ht_dispatch, a.row_bytes, false);
	a.lane_bytes = lists(handle, &a);
	a.flags |= (backward ? EP_HT_BACKWARD : 0) |
		   (op->info.recv_topk_idx_kind == NCCL_EP_EXPERT_ID_GLOBAL ? EP_HT_GLOBAL : 0) |
		   (op->info.recv_topk_idx_kind == ANYEP_EXPERT_ID_IN_PLACE ? EP_HT_IN_PLACE : 0);
	a.call_key =
		KEY(EP_K_ht_dispatch, handle->args.layout, backward, (uint32_t)op->in.tokens->datatype, a.row_bytes,
		    op->in.scales ? (uint32_t)op->in.scales->datatype + 1 : 0, a.scale_bytes, a.flags & EP_HT_IN_PLACE);
	return launch(handle, EP_K_ht_dispatch, &a, stream);
}

static int combine_biases(const struct ncclEpHandle *handle, struct ep_ht_args *a)
{
	int rc = 0;

	for (int i = 0; i < handle->biases && !rc; i++)
		rc = ep_tensor_pointer(handle->group, &handle->bias[i], &a->bias[i]);
	a->biases = (uint32_t)handle->biases;
	return rc;
}

static int ht_combine(struct ncclEpHandle *handle, const struct ep_combine *op, void *stream)
{
	struct ncclEpGroup *group = handle->group;
	bool backward = op->cfg.pass_direction == NCCL_EP_BWD_PASS;
	struct ep_ht_args a;
	int rc = args_common("ncclEpCombine", handle, &a);

	if (rc)
		return rc;
	if ((rc = ep_tensor_pointer(group, op->in.tokens, &a.in)) ||
	    (rc = ep_tensor_pointer(group, op->out.tokens, &a.out)) || (rc = combine_biases(handle, &a)))
		return rc;
	if (backward && ((rc = ep_tensor_pointer(group, op->in.topk_weights, &a.in_weights)) ||
			 (rc = ep_tensor_pointer(group, op->out.topk_weights, &a.out_weights))))
		return rc;
	a.tokens = (uint32_t)op->t;
	a.topk = handle->k > 0 ? (uint32_t)handle->k : backward ? (uint32_t)op->out.topk_weights->sizes[1] : 0;
	a.limit = smaller(op->in.tokens->sizes[0], UINT32_MAX);
	if (backward)
		a.limit = smaller(op->in.topk_weights->sizes[0], a.limit);
	a.hidden = (uint32_t)op->h;
	a.dtype = ep_tensor_num(op->in.tokens->datatype);
	a.row_bytes = row_bytes(op->in.tokens);
	if ((rc = args_reach(group, a.in, &a, stream)))
		return rc;
	args_stage(handle, &a, 0);
	a.stage = ep_launch_stage(EP_K_ht_combine, a.row_bytes, false);
	a.lane_bytes = lists(handle, &a);
	a.flags |= backward ? EP_HT_BACKWARD : 0;
	a.call_key = KEY(EP_K_ht_combine, handle->args.layout, backward, a.dtype, a.row_bytes);
	return launch(handle, EP_K_ht_combine, &a, stream);
}

const struct ep_algo ep_ht_algo = {
	.name = "HT",
	.mode = { "HT", "HT expert-major", "HT", "HT flat" },
	.sms = 24, /* bandwidth needs no more, and training wants the rest for its GEMMs */
	.host_windows = true,
	.throughput = true,
	.fails_all = true,
	.control_size = ep_ht_control,
	.far_size = ep_ht_far,
	.wants = ep_ht_wants,
	.open = ep_ht_open,
	.stop = ep_ht_stop,
	.close = ep_ht_close,
	.abandon = ep_ht_abandon,
	.clear = ep_ht_clear,
	.mask = ep_algo_no_mask,
	.barrier = ht_barrier,
	.heard = ep_ht_heard,
	.mem_size = ep_ht_mem_size,
	.need = ep_ht_need,
	.update = ht_update,
	.dispatch = ht_dispatch,
	.combine = ht_combine,
	.complete = ep_algo_no_stage,
	.sources = ep_algo_no_sources,
};
