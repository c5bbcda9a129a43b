/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/state.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"
#include "plugin/ht/plan.h"
#include "util/clock.h"
#include "util/error.h"

#define SETUP_MS 10000
#define LINES_KEY 1u /* other keys of the endpoint are addresses */

size_t ep_ht_control(const struct ncclEpGroup *group)
{
	return ep_ht_control_size((uint32_t)group->nranks, group->cfg.num_experts);
}

static size_t line_round(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

size_t ep_ht_near_at(const struct ncclEpGroup *group)
{
	return line_round(ep_ht_state_size((uint32_t)group->nranks, group->cfg.num_experts));
}

size_t ep_ht_lines_at(const struct ncclEpGroup *group)
{
	return line_round(ep_ht_near_at(group) + (size_t)group->nranks * sizeof(void *));
}

static int near_copy(struct ncclEpGroup *group, struct ep_ht_line *const *near)
{
	const struct ep_dev_ops *ops = group->dev->ops;
	size_t bytes = (size_t)group->nranks * sizeof(*near);
	struct ep_pinned staging;
	int rc = ops->pinned_alloc(group->dev, bytes, &staging);

	if (rc)
		return rc;
	memcpy(staging.host, near, bytes);
	rc = ops->copy(group->dev, (uint8_t *)group->state.ptr + ep_ht_near_at(group), staging.host, bytes,
		       group->stream);
	if (!rc)
		rc = ops->sync(group->dev, group->stream, ep_deadline_ms(SETUP_MS));
	ops->pinned_free(group->dev, &staging);
	return rc;
}

/* Collective. The addresses are looked up in this process, not exchanged: a rank on the way could change them. They
 * stay on offer until the group's endpoint closes. */
static int near_fill(struct ncclEpGroup *group, struct ep_ht *ht)
{
	size_t bytes = (size_t)group->nranks * sizeof(struct ep_ht_line);
	uint8_t *mine = (uint8_t *)group->state.ptr + ep_ht_lines_at(group);
	void *lines = NULL;
	int rc;

	if ((rc = ep_boot_ptr_offer(group->boot, LINES_KEY, mine, bytes)) || (rc = ep_boot_barrier(group->boot)))
		return rc;
	for (int r = 0; r < group->nranks; r++) {
		if (!ep_topo_near(&group->topo, group->rank, r))
			continue;
		if (ep_boot_ptr_find(group->boot, r, &group->topo.rank[r].fds, LINES_KEY, bytes, &lines))
			return EP_FAIL(EP_GROUP, EP_EREMOTE, "rank %d, of the process of rank %d, has left it", r,
				       group->rank);
		ht->near[r] = lines;
	}
	return near_copy(group, ht->near);
}

/* Both layouts fit, so that no handle makes the window grow. In eager mode an expert-major handle needs far more than a
 * flat one, and without num_topk a routing may be as wide as all experts: then the first handle decides. */
static int window_known(const struct ncclEpGroup *group, size_t *bytes)
{
	static const char fn[] = "ncclEpCreateGroup";
	int room = (int)group->cfg.num_topk;
	struct ep_handle_args flat = { NCCL_EP_LAYOUT_FLAT, 1, room, room };
	struct ep_handle_args expert = { NCCL_EP_LAYOUT_EXPERT_MAJOR, 1, room, room };
	struct ep_ht_window one, other;
	int rc;

	if (!group->cfg.max_recv || !group->cfg.num_topk)
		return 0;
	if ((rc = ep_ht_window(fn, group, &flat, &one)) || (rc = ep_ht_window(fn, group, &expert, &other)))
		return rc;
	*bytes = one.total > other.total ? one.total : other.total;
	return 0;
}

int ep_ht_reach_open(struct ncclEpGroup *group, struct ep_reach **out)
{
	const struct ep_ht_state *state = group->state.ptr;
	struct ep_reach_ctx ctx = { .dev = group->dev,
				    .boot = group->boot,
				    .topo = &group->topo,
				    .calls = &group->comm.calls,
				    .rank = group->rank,
				    .opened = &state->opened,
				    .ended = &state->ended,
				    .launched = &group->launched };

	*out = NULL;
	return group->cfg.zero_copy == NCCL_EP_ZERO_COPY_OFF ? 0 : ep_reach_open(&ctx, out);
}

int ep_ht_open(struct ncclEpGroup *group, size_t *window)
{
	size_t ranks = (size_t)group->nranks, size = ep_ht_lines_at(group) + ranks * sizeof(struct ep_ht_line);
	struct ep_ht *ht = EP_CALLOC(EP_GROUP, 1, sizeof(*ht) + ranks * sizeof(ht->near[0]), "the state of HT");
	int rc;

	if (!ht)
		return -ENOMEM;
	group->algo_state = ht;
	if ((rc = group->dev->ops->mem_alloc(group->dev, size, &group->state)))
		return rc;
	group->ended = &((struct ep_ht_state *)group->state.ptr)->ended;
	if ((rc = near_fill(group, ht)) || (rc = ep_ht_reach_open(group, &ht->reach)))
		return rc;
	return window_known(group, window);
}

void ep_ht_stop(struct ncclEpGroup *group)
{
	ep_reach_close(ep_ht_reach(group));
}

void ep_ht_close(struct ncclEpGroup *group)
{
	ep_reach_free(ep_ht_reach(group));
	free(group->algo_state);
}

void ep_ht_abandon(struct ncclEpGroup *group)
{
	ep_reach_abandon(ep_ht_reach(group));
	free(group->algo_state);
}

int ep_ht_clear(struct ncclEpGroup *group)
{
	struct ep_ht_state *state = group->state.ptr;
	const struct ep_dev_ops *ops = group->dev->ops;
	int rc = ops->fill(group->dev, &state->errors, 0, sizeof(state->errors), group->stream);

	if (!rc)
		rc = ops->fill(group->dev, group->control.peer[group->rank], 0, sizeof(uint64_t), group->stream);
	return rc ? rc : ops->sync(group->dev, group->stream, ep_deadline_ms(SETUP_MS));
}

/* By halves, the upper one until it stays: a peek reads a word, and waits for no stream. */
static int count_read(struct ncclEpGroup *group, const uint64_t *count, uint64_t *out)
{
	const struct ep_dev_ops *ops = group->dev->ops;
	const uint32_t *half = (const uint32_t *)count;
	uint64_t deadline = ep_deadline_ms(SETUP_MS);
	uint32_t low, high, again = 0;
	int rc;

	do {
		high = again;
		if ((rc = ops->peek(group->dev, half, deadline, &low)) ||
		    (rc = ops->peek(group->dev, half + 1, deadline, &again)))
			return rc;
	} while (high != again);
	*out = (uint64_t)high << 32 | low;
	return 0;
}

int ep_ht_counts(struct ncclEpGroup *group, struct ep_ht_counts *out)
{
	const struct ep_ht_state *state = group->state.ptr;
	int rc;

	if ((rc = count_read(group, &state->direct, &out->direct)) ||
	    (rc = count_read(group, &state->staged, &out->staged)))
		return rc != -EP_ETIMEOUT ? rc
					  : EP_FAIL(EP_GROUP, EP_ETIMEOUT,
						    "rank %d: its device did not copy a counter within %d s",
						    group->rank, SETUP_MS / 1000);
	ep_reach_counts(ep_ht_reach(group), &out->reach);
	return 0;
}
