/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ll/mask.h"

#include "kernels/args.h"
#include "plugin/group/launch.h"
#include "plugin/ll/state.h"
#include "util/clock.h"
#include "util/error.h"

#define CLEAN_NS 200000000ull

/* One block: masks are a few words. */
static int run(struct ncclEpGroup *group, struct ep_ll_mask_args *m, void *stream)
{
	struct ep_dev *dev = group->dev;
	struct ep_launch launch = {
		.kernel = EP_K_ll_mask, .grid = 1, .args = m, .args_size = sizeof(*m), .stream = stream
	};

	launch.block = dev->warp == 1 ? 1 : 4 * dev->warp;
	return ep_launch_run(group, &launch, &m->ll.counted);
}

static void mask_args(const struct ncclEpGroup *group, enum ep_ll_mask_op op, struct ep_ll_mask_args *m)
{
	*m = (struct ep_ll_mask_args){ .op = op };
	ep_ll_group_args(group, 1, &m->ll);
}

int ep_ll_mask_catch_up(struct ncclEpGroup *group, bool dispatch, void *stream)
{
	struct ep_ll_mask_args m;
	int rc;

	if (!group->cfg.enable_mask)
		return 0;
	/* A rank that slept wakes with its engine: signals that arrived meanwhile may say that the others went on. */
	if ((rc = ep_link_poll(group->link, ep_now_ns() + group->timeout_ns)))
		return rc;
	mask_args(group, dispatch ? EP_LL_MASK_JUMP : EP_LL_MASK_CHECK, &m);
	return run(group, &m, stream);
}

/* Query and update: EP_LL_MASK_BITS ranks per launch. */
static int in_slices(struct ncclEpGroup *group, struct ep_ll_mask_args *m, const int *mask, void *stream)
{
	uint32_t n = (uint32_t)group->nranks;
	int rc = 0;

	for (m->first = 0; !rc && m->first < n; m->first += m->count) {
		m->count = n - m->first < EP_LL_MASK_BITS ? n - m->first : EP_LL_MASK_BITS;
		for (uint32_t i = 0; mask && i < m->count; i++) {
			uint32_t bit = 1u << (i % 32);

			m->bits[i / 32] = (m->bits[i / 32] & ~bit) | (mask[m->first + i] ? bit : 0);
		}
		rc = run(group, m, stream);
	}
	return rc;
}

/* Across nodes the notice of a clean takes a while to arrive. A masked rank should find it when it comes back, so the
 * rank that cleans waits a moment; one that comes back sooner learns it from its next operation. */
static int clean_arrives(struct ncclEpGroup *group, void *stream)
{
	const struct ep_dev_ops *ops = group->dev->ops;
	bool capturing = false;
	int rc;

	if (!group->link || (rc = ops->capturing(group->dev, stream, &capturing)) || capturing)
		return group->link ? rc : 0;
	if ((rc = ops->sync(group->dev, stream, ep_now_ns() + group->timeout_ns + CLEAN_NS)))
		return rc;
	ep_link_quiet(group->link, ep_now_ns() + CLEAN_NS);
	return 0;
}

int ep_ll_mask(struct ncclEpGroup *group, const struct ep_mask *mask, void *stream)
{
	static const enum ep_ll_mask_op ops[] = { [EP_MASK_QUERY] = EP_LL_MASK_QUERY,
						  [EP_MASK_UPDATE] = EP_LL_MASK_UPDATE,
						  [EP_MASK_CLEAN] = EP_LL_MASK_CLEAN };
	struct ep_ll_mask_args m;
	int rc;

	mask_args(group, ops[mask->op], &m);
	m.out = mask->out;
	if (mask->op != EP_MASK_CLEAN)
		return in_slices(group, &m, mask->in, stream);
	rc = run(group, &m, stream);
	return rc ? rc : clean_arrives(group, stream);
}

int ep_ll_barrier(struct ncclEpGroup *group, void *stream)
{
	struct ep_ll_mask_args m;

	mask_args(group, EP_LL_BARRIER, &m);
	return run(group, &m, stream);
}
