/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ll/ll.h"

#include "kernels/args.h"
#include "util/clock.h"
#include "util/error.h"

#define CLEAN_NS 200000000ull

/* One block: these are words, not rows. */
static int run(struct ncclEpGroup *group, struct ep_ll_mask_args *m, void *stream)
{
	struct ep_dev *dev = group->dev;
	struct ep_launch launch = {
		.kernel = EP_K_ll_mask, .grid = 1, .args = m, .args_size = sizeof(*m), .stream = stream
	};
	int rc;

	launch.block = dev->warp == 1 ? 1 : 4 * dev->warp;
	rc = dev->ops->launch(dev, &launch);
	return rc ? rc : ep_group_check(group);
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
	/* A rank that slept wakes with its engine: what came meanwhile may say that the others went on. */
	if ((rc = ep_uplink_look(group->uplink, ep_now_ns() + group->timeout_ns)))
		return rc;
	mask_args(group, dispatch ? EP_LL_MASK_JUMP : EP_LL_MASK_CHECK, &m);
	return run(group, &m, stream);
}

/* Query and update, as many launches as the ranks need. */
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

int ep_ll_mask_query(struct ncclEpGroup *group, int *device_out, void *stream)
{
	struct ep_ll_mask_args m;

	mask_args(group, EP_LL_MASK_QUERY, &m);
	m.out = device_out;
	return in_slices(group, &m, NULL, stream);
}

int ep_ll_mask_update(struct ncclEpGroup *group, const int *mask, void *stream)
{
	struct ep_ll_mask_args m;

	mask_args(group, EP_LL_MASK_UPDATE, &m);
	return in_slices(group, &m, mask, stream);
}

/* Across nodes the word of a clean is on its way for a while. A rank that was left out should find it when it comes
 * back, so whoever cleans waits a moment; one that comes back sooner is told so by its next operation. */
static int clean_arrives(struct ncclEpGroup *group, void *stream)
{
	const struct ep_dev_ops *ops = group->dev->ops;
	bool capturing = false;
	int rc;

	if (!group->uplink || (rc = ops->capturing(group->dev, stream, &capturing)) || capturing)
		return group->uplink ? rc : 0;
	if ((rc = ops->sync(group->dev, stream, ep_now_ns() + group->timeout_ns + CLEAN_NS)))
		return rc;
	ep_uplink_quiet(group->uplink, ep_now_ns() + CLEAN_NS);
	return 0;
}

int ep_ll_mask_clean(struct ncclEpGroup *group, void *stream)
{
	struct ep_ll_mask_args m;
	int rc;

	mask_args(group, EP_LL_MASK_CLEAN, &m);
	rc = run(group, &m, stream);
	return rc ? rc : clean_arrives(group, stream);
}
