/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/plan.h"

#include <stdint.h>

#include "kernels/args.h"
#include "plugin/group/plan.h"

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
	size_t routed = ep_mul(&s, group->cfg.max_dispatch, (size_t)args->room), at = EP_PLAN_HEADER;
	struct ep_ht_mem m;
	int rc;

	m.from = ep_part(&s, &at, r, sizeof(struct ep_ht_run));
	m.zone = ep_part(&s, &at, ep_mul(&s, r, el), sizeof(struct ep_ht_run));
	m.area = ep_part(&s, &at, el, sizeof(struct ep_ht_run));
	m.filled = ep_part(&s, &at, el, sizeof(uint32_t));
	m.routed = at;
	for (int i = 0; i < (expert_major(args) ? 5 : 4); i++)
		ep_part(&s, &at, routed, sizeof(uint32_t));
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

/* Whether all ranks use each other's tensors by plain pointers; the same answer on all of them. */
static bool all_near(const struct ncclEpGroup *group)
{
	for (int r = 0; r < group->nranks; r++)
		if (!ep_topo_near(&group->topo, 0, r))
			return false;
	return true;
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
	if (all_near(group) && group->cfg.zero_copy != NCCL_EP_ZERO_COPY_OFF)
		dispatch = combine = 0;
	w.total = ep_add(&s, w.stage, ep_larger(dispatch, combine));
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

int ep_ht_need(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args, struct ep_need *out)
{
	struct ep_ht_window window;
	int rc = ep_ht_window(fn, group, args, &window);

	if (!rc)
		*out = (struct ep_need){ .window = window.total };
	return rc;
}
