/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ll/state.h"

#include "plugin/ll/plan.h"
#include "util/clock.h"

#define SETUP_MS 10000

size_t ep_ll_control(const struct ncclEpGroup *group)
{
	return ep_ll_control_size((uint32_t)group->nranks);
}

size_t ep_ll_far(const struct ncclEpGroup *group)
{
	return ep_ll_far_size((uint32_t)group->nranks);
}

int ep_ll_open(struct ncclEpGroup *group, struct ep_need *need)
{
	struct ep_ll_shape shape = ep_ll_shape_of(group, 1);

	int rc = group->dev->ops->mem_alloc(group->dev, ep_ll_state_size(&shape, ep_group_far(group)), &group->state);

	(void)need; /* handles grow it, unless rdma_buffer_size says how large it is */
	if (!rc)
		group->ended = &((struct ep_ll_state *)group->state.ptr)->ended;
	return rc;
}

void ep_ll_group_args(const struct ncclEpGroup *group, uint32_t topk, struct ep_ll_args *out)
{
	struct ep_page_words *page = ep_page_device(&group->page);

	*out = (struct ep_ll_args){
		.shape = ep_ll_shape_of(group, topk),
		.state = group->state.ptr,
		.control = (uint8_t *const *)group->control.peer_dev,
		.mine = group->control.mine.ptr,
		.report = &page->report,
		.async = page->async,
		.abort = &page->abort,
		.gone = page->gone,
		.timeout_ns = group->timeout_ns,
		.flags = group->cfg.enable_mask ? EP_LL_MASK : 0,
	};
	for (int r = 0; r < group->nranks && r < (int)EP_LL_BITS; r++)
		out->near_ranks |= (uint64_t)(group->control.peer[r] != NULL) << r;
	if (group->link && group->cfg.max_dispatch > EP_LL_FEW)
		out->flags |= EP_LL_MANY;
	ep_link_args(group->link, &out->far);
	ep_ll_far_divide(group, &out->far);
}

int ep_ll_clear(struct ncclEpGroup *group)
{
	uint32_t n = (uint32_t)group->nranks;
	uint8_t *failed = (uint8_t *)group->control.mine.ptr + ep_ll_failed_at(n);
	struct ep_ll_shape shape = ep_ll_shape_of(group, 1);
	size_t joined = ep_ll_state_size(&shape, 0), all = ep_ll_state_size(&shape, ep_group_far(group));
	struct ep_ll_state *state = group->state.ptr;
	const struct ep_dev_ops *ops = group->dev->ops;
	int rc = ops->fill(group->dev, &state->errors, 0, sizeof(state->errors), group->stream);

	if (!rc)
		rc = ops->fill(group->dev, failed, 0, sizeof(uint64_t), group->stream);
	if (!rc && all > joined) /* a launch that failed leaves puts that lack rows */
		rc = ops->fill(group->dev, (uint8_t *)state + joined, 0, all - joined, group->stream);
	if (!rc)
		rc = ep_link_clear(group->link, ep_ll_far_at(n, ep_ll_failed_at(n)));
	return rc ? rc : ops->sync(group->dev, group->stream, ep_deadline_ms(SETUP_MS));
}

/* Its signal: all its rows of the operation are here. Of this rank itself the acknowledgements, which follow the rows
 * that it has received. */
int ep_ll_heard(const struct ncclEpGroup *group, int rank, uint64_t deadline, uint64_t *epoch)
{
	uint32_t n = (uint32_t)group->nranks, r = (uint32_t)rank;
	const uint8_t *page = group->control.mine.ptr;
	uint64_t at = ep_ll_signal_at(r), other = 0;
	struct ep_far far;
	int rc;

	if (rank == group->rank) {
		if ((rc = ep_group_peek(group, (const uint64_t *)(page + ep_ll_ack_at(n, 1, r)), deadline, &other)))
			return rc;
		at = ep_ll_ack_at(n, 0, r);
	} else if (!group->control.peer[rank]) {
		ep_link_args(group->link, &far);
		page = far.control;
		at = ep_ll_far_at(n, at);
	}
	rc = ep_group_peek(group, (const uint64_t *)(page + at), deadline, epoch);
	if (!rc && other > *epoch)
		*epoch = other;
	return rc;
}
