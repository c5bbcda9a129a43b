/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/plan.h"

#include <stdbool.h>
#include <stdint.h>

#include "kernels/args.h"
#include "plugin/group/handle.h"
#include "util/error.h"

/* Sums that remember an overflow, so that the arithmetic reads as arithmetic and is asked once at the end. */
struct sum {
	bool over;
};

static size_t mul(struct sum *s, size_t a, size_t b)
{
	size_t r;

	s->over |= __builtin_mul_overflow(a, b, &r);
	return r;
}

static size_t add(struct sum *s, size_t a, size_t b)
{
	size_t r;

	s->over |= __builtin_add_overflow(a, b, &r);
	return r;
}

static size_t round_up(struct sum *s, size_t n, size_t unit)
{
	return add(s, n, unit - 1) / unit * unit;
}

static size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Appends count elements and returns where they begin. */
static size_t part(struct sum *s, size_t *at, size_t count, size_t each)
{
	size_t begin = *at;

	*at = round_up(s, add(s, begin, mul(s, count, each)), EP_PLAN_ALIGN);
	return begin;
}

static int judge(const struct sum *s, const char *fn, const struct ep_handle_args *args)
{
	if (!s->over)
		return 0;
	return EP_BAD_USE("%s: config: a handle of layout %d, num_topk %d and alignment %zu would need more than 2^64 "
			  "bytes",
			  fn, (int)args->layout, args->k, args->alignment);
}

static size_t fan(const struct ncclEpGroup *group, const struct ep_handle_args *args)
{
	return smaller((size_t)args->room, (size_t)group->experts_per_rank);
}

static size_t ht_rows(struct sum *s, const struct ncclEpGroup *group, const struct ep_handle_args *args)
{
	size_t sent = mul(s, (size_t)group->nranks, group->cfg.max_dispatch);

	if (group->cfg.max_recv)
		return group->cfg.max_recv;
	if (args->layout == NCCL_EP_LAYOUT_FLAT)
		return sent;
	return add(s, mul(s, sent, fan(group, args)), mul(s, (size_t)group->experts_per_rank, args->alignment - 1));
}

int ep_plan_handle(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
		   struct ep_plan_handle *out)
{
	bool ht = ep_group_ht(group), expert = ht && args->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	size_t r = (size_t)group->nranks, el = (size_t)group->experts_per_rank, tmax = group->cfg.max_dispatch;
	struct sum s = { false };
	size_t routed = mul(&s, tmax, (size_t)args->room), at = EP_PLAN_HEADER;
	struct ep_plan_handle p;
	int rc;

	p.idx = part(&s, &at, ht ? 0 : routed, sizeof(int32_t));
	p.slot = part(&s, &at, ht ? 0 : routed, sizeof(uint32_t));
	p.rows = part(&s, &at, ht ? 0 : mul(&s, mul(&s, r, tmax), fan(group, args)), sizeof(struct ep_ll_entry));
	p.from = part(&s, &at, ht ? r : 0, sizeof(struct ep_ht_run));
	p.zone = part(&s, &at, expert ? mul(&s, r, el) : 0, sizeof(struct ep_ht_run));
	p.area = part(&s, &at, expert ? el : 0, sizeof(struct ep_ht_run));
	p.filled = part(&s, &at, expert ? el : 0, sizeof(uint32_t));
	p.routed = at;
	for (int i = 0; ht && i < (expert ? 5 : 4); i++)
		part(&s, &at, routed, sizeof(uint32_t));
	p.total = at;
	if ((rc = judge(&s, fn, args)))
		return rc;
	*out = p;
	return 0;
}

/* Whether all ranks see each other's tensors by their addresses; alike on all of them. */
static bool all_near(const struct ncclEpGroup *group)
{
	for (int r = 0; r < group->nranks; r++)
		if (!ep_topo_near(&group->topo, 0, r))
			return false;
	return true;
}

int ep_plan_ht(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
	       struct ep_plan_ht *out)
{
	bool expert = args->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	struct sum s = { false };
	size_t sent = mul(&s, (size_t)group->nranks, group->cfg.max_dispatch), dispatch, combine;
	size_t token = round_up(&s, group->cfg.max_token_bytes, EP_ROW_ALIGN), head = 0;
	struct ep_plan_ht p;
	int rc;

	p.row_count = ht_rows(&s, group, args);
	p.stage = mul(&s, p.row_count, expert ? 4 : add(&s, 8, mul(&s, 8, (size_t)args->room)));
	p.stage = round_up(&s, add(&s, p.stage, 1), EP_PLAN_ALIGN);
	if (expert)
		head = round_up(&s, add(&s, 4, mul(&s, 4, fan(group, args))), EP_ROW_ALIGN);
	dispatch = mul(&s, expert ? sent : smaller(sent, p.row_count), add(&s, head + 16, token));
	combine = mul(&s, p.row_count, token);
	if (all_near(group) && group->cfg.zero_copy != NCCL_EP_ZERO_COPY_OFF)
		dispatch = combine = 0;
	p.total = add(&s, p.stage, dispatch > combine ? dispatch : combine);
	if ((rc = judge(&s, fn, args)))
		return rc;
	if (p.row_count >= UINT32_MAX || sent >= UINT32_MAX || args->alignment > EP_ALIGNMENT_MAX)
		return EP_BAD_USE("%s: config: %zu rows of a rank are more than 2^32, or an alignment of %zu is more "
				  "than %zu",
				  fn, p.row_count, args->alignment, (size_t)EP_ALIGNMENT_MAX);
	*out = p;
	return 0;
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Rows that so many writers may send back at once. */
static size_t ll_slots(struct sum *s, const struct ncclEpGroup *group, const struct ep_handle_args *args,
		       size_t writers)
{
	size_t tmax = group->cfg.max_dispatch;

	return group->cfg.enable_mask ? mul(s, mul(s, writers, tmax), fan(group, args))
				      : mul(s, tmax, (size_t)args->room);
}

int ep_plan_ll(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
	       struct ep_plan_ll *out)
{
	size_t el = (size_t)group->experts_per_rank, tmax = group->cfg.max_dispatch;
	size_t k = (size_t)args->room, entries = 8 * k, area, back, token, far = ep_group_far(group);
	struct sum s = { false };
	struct ep_plan_ll p;
	int rc;

	if (entries < 12 * fan(group, args))
		entries = 12 * fan(group, args);
	token = round_up(&s, group->cfg.max_token_bytes, EP_ROW_ALIGN);
	p.head_stride = round_up(&s, 16 + 4 * el, EP_ROW_ALIGN);
	/* 16 more: token and scales are padded each, and only their sum is known to fit. */
	p.row_stride = add(&s, add(&s, 16 + 16, round_up(&s, entries, EP_ROW_ALIGN)), token);
	p.comb_stride = add(&s, 16, token);
	area = add(&s, p.head_stride, mul(&s, tmax, p.row_stride));
	back = mul(&s, mul(&s, tmax, fan(group, args)), p.comb_stride);
	p.comb_rows = ll_slots(&s, group, args, ep_group_near(group));
	p.buffer = larger(mul(&s, ep_group_near(group), area), mul(&s, p.comb_rows, p.comb_stride));
	p.buffer = round_up(&s, p.buffer, EP_PLAN_ALIGN);
	p.total = mul(&s, 2, p.buffer);
	p.far_window = larger(mul(&s, far, area), mul(&s, ll_slots(&s, group, args, far), p.comb_stride));
	p.far_window = far ? round_up(&s, p.far_window, EP_PLAN_ALIGN) : 0;
	p.far_send = far ? round_up(&s, larger(area, back), EP_PLAN_ALIGN) : 0;
	mul(&s, 2 * far, p.far_send);
	if ((rc = judge(&s, fn, args)))
		return rc;
	*out = p;
	return 0;
}
