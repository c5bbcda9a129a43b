/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/plan.h"

#include <stdint.h>

#include "kernels/args.h"
#include "plugin/group/plan.h"
#include "plugin/ht/nodes.h"

#define ALIGNMENT_MAX ((size_t)1 << 20) /* of a zone: padding is counted in 32 bits */

static size_t fan(const struct ncclEpGroup *group, const struct ep_handle_args *args)
{
	return ep_smaller((size_t)args->room, (size_t)group->experts_per_rank);
}

static bool expert_major(const struct ep_handle_args *args)
{
	return args->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
}

int ep_ht_mem(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, struct ep_ht_mem *out)
{
	size_t r = (size_t)group->nranks, el = expert_major(args) ? (size_t)group->experts_per_rank : 0;
	struct ep_sum s = { false };
	size_t routed = ep_mul(&s, group->cfg.max_dispatch, (size_t)args->room), at = EP_PLAN_HEADER, entries;
	const struct ep_ht_span *span = &ep_ht_nodes(group)->span;
	struct ep_ht_mem m;
	int rc;

	m.from = ep_part(&s, &at, r, sizeof(struct ep_ht_run));
	m.zone = ep_part(&s, &at, ep_mul(&s, r, el), sizeof(struct ep_ht_run));
	m.area = ep_part(&s, &at, el, sizeof(struct ep_ht_run));
	m.filled = ep_part(&s, &at, el, sizeof(uint32_t));
	m.rows_out = ep_part(&s, &at, span->others, sizeof(uint32_t));
	m.rows_in = ep_part(&s, &at, span->most, sizeof(uint32_t));
	m.routed = at;
	for (int i = 0; i < (span->others ? 6 : expert_major(args) ? 5 : 4); i++)
		ep_part(&s, &at, routed, sizeof(uint32_t));
	if (span->others) {
		entries = ep_ht_entries(span, (uint32_t)args->room);
		ep_part(&s, &at, ep_mul(&s, span->others, group->cfg.max_dispatch), sizeof(uint32_t));
		for (int i = 0; i < 2; i++)
			ep_part(&s, &at, ep_mul(&s, ep_mul(&s, span->most, group->cfg.max_dispatch), entries),
				sizeof(uint32_t));
	}
	m.total = at;
	if ((rc = ep_sum_check(&s, fn, args)))
		return rc;
	*out = m;
	return 0;
}

static size_t row_count(struct ep_sum *s, const struct ncclEpGroup *group, const struct ep_handle_args *args)
{
	size_t sent = ep_mul(s, (size_t)group->nranks, group->cfg.max_dispatch);

	if (group->cfg.max_recv)
		return group->cfg.max_recv;
	if (!expert_major(args))
		return sent;
	return ep_add(s, ep_mul(s, sent, fan(group, args)),
		      ep_mul(s, (size_t)group->experts_per_rank, args->alignment - 1));
}

/* Across nodes: the counts of this rank and its clients, between two operations. */
static size_t counts_bytes(const struct ncclEpGroup *group)
{
	const struct ep_ht_span *span = &ep_ht_nodes(group)->span;

	return span->others ? ep_ht_across_counts_at(ep_ht_bins_of(group), 1 + span->most) : 0;
}

int ep_ht_window(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
		 struct ep_ht_window *out)
{
	struct ep_sum s = { false };
	size_t sent = ep_mul(&s, (size_t)group->nranks, group->cfg.max_dispatch), dispatch, combine;
	size_t token = ep_round_up(&s, group->cfg.max_token_bytes, EP_ROW_ALIGN), head = 0;
	struct ep_ht_window w;
	int rc;

	w.row_count = row_count(&s, group, args);
	w.stage = ep_mul(&s, w.row_count, expert_major(args) ? 4 : ep_add(&s, 8, ep_mul(&s, 8, (size_t)args->room)));
	w.stage = ep_round_up(&s, ep_add(&s, w.stage, 1), EP_PLAN_ALIGN);
	if (expert_major(args))
		head = ep_round_up(&s, ep_add(&s, 4, ep_mul(&s, 4, fan(group, args))), EP_ROW_ALIGN);
	dispatch = ep_mul(&s, expert_major(args) ? sent : ep_smaller(sent, w.row_count), ep_add(&s, head + 16, token));
	combine = ep_mul(&s, w.row_count, token);
	if (ep_ht_nodes(group)->near && group->cfg.zero_copy != NCCL_EP_ZERO_COPY_OFF)
		dispatch = combine = 0;
	w.total = ep_larger(ep_add(&s, w.stage, ep_larger(dispatch, combine)), counts_bytes(group));
	if ((rc = ep_sum_check(&s, fn, args)))
		return rc;
	if (w.row_count >= UINT32_MAX || sent >= UINT32_MAX || args->alignment > ALIGNMENT_MAX)
		return EP_BAD_USE("%s: config: %zu rows of a rank are more than 2^32, or an alignment of %zu is more "
				  "than %zu",
				  fn, w.row_count, args->alignment, ALIGNMENT_MAX);
	*out = w;
	return 0;
}

int ep_ht_mem_size(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, size_t *bytes)
{
	struct ep_ht_window window;
	struct ep_ht_mem mem;
	int rc;

	/* The window only to refuse here what ncclEpInitHandle would refuse. */
	if ((rc = ep_ht_mem(fn, group, args, &mem)) || (rc = ep_ht_window(fn, group, args, &window)))
		return rc;
	*bytes = mem.total;
	return 0;
}

/* Rings hold no more than all tokens. */
static int far_need(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
		    struct ep_need *out)
{
	const struct ep_ht_span *span = &ep_ht_nodes(group)->span;
	uint32_t entries = ep_ht_entries(span, (uint32_t)args->room), bins = ep_ht_bins_of(group);
	struct ep_sum s = { false };
	/* Tokens and scales are padded each. */
	size_t token = ep_add(&s, ep_round_up(&s, group->cfg.max_token_bytes, EP_ROW_ALIGN), EP_ROW_ALIGN), rings;
	size_t pitch = ep_add(&s, token, ep_ht_row_head(EP_HT_DISPATCH_IN, entries, 0));
	size_t rows = ep_smaller(ep_ht_step_rows(ep_ht_nodes(group), pitch),
				 (group->cfg.max_dispatch + span->steps - 1) / span->steps);

	rings = ep_mul(&s, (size_t)(span->most + span->others) * span->steps,
		       ep_round_up(&s, ep_mul(&s, rows, pitch), EP_PLAN_ALIGN));
	out->far_window = ep_add(&s, ep_ht_rings_at(span, bins, 1), rings);
	out->far_send = ep_add(&s, ep_ht_rings_at(span, bins, 0), rings);
	return ep_sum_check(&s, fn, args);
}

int ep_ht_need(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, struct ep_need *out)
{
	struct ep_ht_window window;
	int rc = ep_ht_window(fn, group, args, &window);

	if (rc)
		return rc;
	*out = (struct ep_need){ .window = window.total };
	return group->link ? far_need(fn, group, args, out) : 0;
}
