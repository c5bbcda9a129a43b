/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ll/plan.h"

#include "plugin/group/plan.h"

struct ep_ll_shape ep_ll_shape_of(const struct ncclEpGroup *group, uint32_t topk)
{
	uint32_t per_rank = (uint32_t)group->experts_per_rank;

	return (struct ep_ll_shape){
		.rank = (uint32_t)group->rank,
		.nranks = (uint32_t)group->nranks,
		.experts = group->cfg.num_experts,
		.per_rank = per_rank,
		.tmax = group->cfg.max_dispatch,
		.topk = topk,
		.fan = topk < per_rank ? topk : per_rank,
		.masked = group->cfg.enable_mask,
	};
}

struct ep_ll_room ep_ll_dispatch_room(const struct ncclEpGroup *group, const struct ep_ll_shape *s, uint64_t pitch)
{
	uint64_t area = ep_ll_area(s, pitch), far = ep_group_far(group);

	return (struct ep_ll_room){ ep_group_near(group) * area, far * area, far ? area : 0 };
}

struct ep_ll_room ep_ll_combine_room(const struct ncclEpGroup *group, const struct ep_ll_shape *s, uint64_t pitch)
{
	uint32_t far = ep_group_far(group);

	return (struct ep_ll_room){
		.near = ep_ll_combine_slots(s, ep_group_near(group)) * pitch,
		.far = far ? ep_ll_combine_slots(s, far) * pitch : 0,
		.send = far ? (uint64_t)s->tmax * s->fan * pitch : 0, /* as many as it may have sent here */
	};
}

int ep_ll_mem(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, struct ep_ll_mem *out)
{
	struct ep_ll_shape shape = ep_ll_shape_of(group, (uint32_t)args->room);
	struct ep_sum s = { false };
	size_t routed = ep_mul(&s, shape.tmax, shape.topk), at = EP_PLAN_HEADER;
	struct ep_ll_mem m;
	int rc;

	ep_mul(&s, ep_mul(&s, shape.nranks, shape.tmax), shape.fan); /* what ep_ll_list_room multiplies */
	m.idx = ep_part(&s, &at, routed, sizeof(int32_t));
	m.slot = ep_part(&s, &at, routed, sizeof(uint32_t));
	m.back = ep_part(&s, &at, ep_group_far(group) ? shape.nranks : 0, sizeof(struct ep_ll_back));
	m.order = ep_part(&s, &at, ep_group_far(group) ? shape.tmax : 0, sizeof(uint32_t));
	m.rows = ep_part(&s, &at, ep_ll_list_room(&shape), sizeof(struct ep_ll_entry));
	m.total = at;
	if ((rc = ep_sum_check(&s, fn, args)))
		return rc;
	*out = m;
	return 0;
}

int ep_ll_mem_size(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, size_t *bytes)
{
	struct ep_ll_mem mem;
	int rc = ep_ll_mem(fn, group, args, &mem);

	if (!rc)
		*bytes = mem.total;
	return rc;
}

/* The largest rows there can be, of either layout. 16 more than the parts: token and scales are padded each, and only
 * their sum is known to fit. */
static uint64_t dispatch_pitch(const struct ep_ll_shape *s, uint64_t token)
{
	return ep_ll_align(16 + ep_larger(ep_ll_row_head_bytes(s, 0), ep_ll_row_head_bytes(s, 1)) + token);
}

/* 64-bit products of kernels/ll/args.h are exact where this bound of them all is. */
static void bound(struct ep_sum *s, const struct ep_ll_shape *shape, uint64_t pitch)
{
	size_t rows = ep_mul(s, shape->tmax, ep_larger(shape->topk, shape->fan));
	size_t area = ep_add(s, ep_ll_source_head(shape), ep_mul(s, rows, pitch));

	ep_mul(s, 2 * (size_t)shape->nranks, ep_add(s, area, EP_PLAN_ALIGN));
}

/* What a row's head and a command can hold. */
static int far_check(const char *fn, const struct ncclEpGroup *group, const struct ep_ll_shape *s, uint64_t pitch)
{
	uint64_t most = (uint64_t)1 << (32 - EP_LL_K_BITS), rows = (uint64_t)s->tmax * s->fan;

	if (!ep_group_far(group))
		return 0;
	if (s->topk > EP_LL_K_MASK || rows > most)
		return EP_FAIL(EP_HANDLE, EP_EUSAGE,
			       "%s: top-%u of %u tokens is too much for LL between nodes (at most top-%u, and "
			       "%llu rows of one rank on another, here %llu): use HT, or a group for fewer tokens",
			       fn, s->topk, s->tmax, EP_LL_K_MASK, most + 0ull, rows + 0ull);
	if (pitch > EP_CMD_LENGTH_MAX / EP_LL_JOIN_MAX)
		return EP_FAIL(EP_HANDLE, EP_EUSAGE,
			       "%s: tokens of %u bytes (max_token_bytes) are too large for LL between nodes: use "
			       "HT, or tokens of less than 2 MiB",
			       fn, group->cfg.max_token_bytes);
	return 0;
}

int ep_ll_need(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, struct ep_need *out)
{
	struct ep_ll_shape shape = ep_ll_shape_of(group, (uint32_t)args->room);
	struct ep_sum s = { false };
	uint64_t token = ep_round_up(&s, group->cfg.max_token_bytes, EP_ROW_ALIGN), pitch;
	struct ep_ll_room there, back;
	int rc;

	pitch = dispatch_pitch(&shape, token);
	bound(&s, &shape, pitch);
	if ((rc = ep_sum_check(&s, fn, args)) || (rc = far_check(fn, group, &shape, pitch)))
		return rc;
	there = ep_ll_dispatch_room(group, &shape, pitch);
	back = ep_ll_combine_room(group, &shape, 16 + token);
	out->window = 2 * ep_round_up(&s, ep_larger(there.near, back.near), EP_PLAN_ALIGN);
	out->far_window = 2 * ep_round_up(&s, ep_larger(there.far, back.far), EP_PLAN_ALIGN);
	out->far_send = 2 * ep_group_far(group) * ep_round_up(&s, ep_larger(there.send, back.send), EP_PLAN_ALIGN);
	return 0;
}

void ep_ll_far_divide(const struct ncclEpGroup *group, struct ep_far *far)
{
	const struct ep_link *link = group->link;

	if (!link)
		return;
	far->window_bytes = link->window_bytes / 2 / EP_PLAN_ALIGN * EP_PLAN_ALIGN;
	far->send_stride = link->send_bytes / 2 / link->far / EP_PLAN_ALIGN * EP_PLAN_ALIGN;
	far->send_bytes = link->far * far->send_stride;
}
