/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/state.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"
#include "plugin/group/plan.h"
#include "plugin/ht/plan.h"
#include "util/clock.h"
#include "util/error.h"

#define SETUP_MS 10000
#define LINES_KEY 1u /* other keys of the endpoint are addresses */

/* Without room for counts in a group across nodes: there they are in the windows, since it is not known before control
 * pages are mapped how many a rank keeps. */
size_t ep_ht_control(const struct ncclEpGroup *group)
{
	uint32_t n = (uint32_t)group->nranks;

	return ep_ht_counts_at(n, ep_ht_bins(n, group->cfg.num_experts, 0), group->topo.nodes == 1 ? n : 0);
}

size_t ep_ht_far(const struct ncclEpGroup *group)
{
	return ep_ht_far_size(&ep_ht_nodes(group)->span);
}

int ep_ht_wants(struct ncclEpGroup *group, bool *wanted)
{
	size_t near = (size_t)group->nranks * sizeof(struct ep_ht_line *);
	struct ep_ht *ht = EP_CALLOC(EP_GROUP, 1, sizeof(*ht) + near, "the state of HT");
	int rc;

	if (!ht) {
		ep_boot_abort(group->boot, ENOMEM, ep_last_error()); /* the others wait for this rank */
		return -ENOMEM;
	}
	group->algo_state = ht;
	rc = ep_ht_nodes_find(group, &ht->nodes);
	if (!rc)
		ep_ht_nodes_wanted(&ht->nodes, wanted);
	return rc;
}

static size_t line_round(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

size_t ep_ht_near_at(const struct ncclEpGroup *group)
{
	return line_round(ep_ht_state_size((uint32_t)group->nranks, ep_ht_bins_of(group)));
}

size_t ep_ht_lines_at(const struct ncclEpGroup *group)
{
	return line_round(ep_ht_near_at(group) + (size_t)group->nranks * sizeof(void *));
}

/* Across nodes: the channels, the counters of summed rows, the tables. */
static size_t channels_at(const struct ncclEpGroup *group)
{
	return line_round(ep_ht_lines_at(group) + (size_t)group->nranks * sizeof(struct ep_ht_line));
}

static size_t used_at(const struct ncclEpGroup *group)
{
	return line_round(channels_at(group) +
			  ep_ht_channels(&ep_ht_nodes(group)->span) * sizeof(struct ep_ht_channel));
}

static size_t tables_at(const struct ncclEpGroup *group)
{
	return line_round(used_at(group) + (size_t)ep_ht_nodes(group)->span.others * EP_HT_STEPS * sizeof(uint32_t));
}

void ep_ht_across_args(const struct ncclEpGroup *group, struct ep_ht_across *out)
{
	const struct ep_ht_nodes *nodes = ep_ht_nodes(group);
	uint64_t rings = (uint64_t)(nodes->span.most + nodes->span.others) * nodes->span.steps, in, send;
	uint8_t *state = group->state.ptr;
	const uint8_t *from = (const uint8_t *)nodes->relay;

	*out = (struct ep_ht_across){ .span = nodes->span, .mates = nodes->mates, .clients = nodes->clients };
	if (!group->link)
		return;
	ep_link_args(group->link, &out->far);
	in = group->link->window_bytes - ep_ht_rings_at(&nodes->span, ep_ht_bins_of(group), 1);
	send = group->link->send_bytes - ep_ht_rings_at(&nodes->span, ep_ht_bins_of(group), 0);
	out->step_bytes = (in < send ? in : send) / rings / EP_PLAN_ALIGN * EP_PLAN_ALIGN;
	out->channel = (struct ep_ht_channel *)(state + channels_at(group));
	out->used = (uint32_t *)(state + used_at(group));
	state += tables_at(group);
	out->relay = (const struct ep_ht_peer *)state;
	out->client = (const struct ep_ht_peer *)(state + ((const uint8_t *)nodes->client - from));
	out->mate = (const uint32_t *)(state + ((const uint8_t *)nodes->mate - from));
	out->where = (const uint32_t *)(state + ((const uint8_t *)nodes->where - from));
	out->via = (const uint32_t *)(state + ((const uint8_t *)nodes->via - from));
	out->counted = (const uint32_t *)(state + ((const uint8_t *)nodes->counted - from));
}

static int state_copy(struct ncclEpGroup *group, size_t at, const void *from, size_t bytes)
{
	const struct ep_dev_ops *ops = group->dev->ops;
	struct ep_pinned staging;
	int rc = ops->pinned_alloc(group->dev, bytes, &staging);

	if (rc)
		return rc;
	memcpy(staging.host, from, bytes);
	rc = ops->copy(group->dev, (uint8_t *)group->state.ptr + at, staging.host, bytes, group->stream);
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
	return state_copy(group, ep_ht_near_at(group), ht->near, (size_t)group->nranks * sizeof(ht->near[0]));
}

/* Both layouts fit, so that no handle makes the window grow. In eager mode an expert-major handle needs far more than a
 * flat one, and without num_topk a routing may be as wide as all experts: then the first handle decides. */
static int need_known(const struct ncclEpGroup *group, struct ep_need *need)
{
	static const char fn[] = "ncclEpCreateGroup";
	int room = (int)group->cfg.num_topk;
	struct ep_handle_args flat = { NCCL_EP_LAYOUT_FLAT, 1, room, room };
	struct ep_handle_args expert = { NCCL_EP_LAYOUT_EXPERT_MAJOR, 1, room, room };
	struct ep_need one, other;
	int rc;

	if (!group->cfg.max_recv || !group->cfg.num_topk)
		return 0;
	if ((rc = ep_ht_need(fn, group, &flat, &one)) || (rc = ep_ht_need(fn, group, &expert, &other)))
		return rc;
	*need = one.window > other.window ? one : other; /* over the net both need the same */
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

int ep_ht_open(struct ncclEpGroup *group, struct ep_need *need)
{
	struct ep_ht *ht = group->algo_state;
	size_t size = tables_at(group) + ht->nodes.bytes;
	int rc;

	if ((rc = group->dev->ops->mem_alloc(group->dev, size, &group->state)))
		return rc;
	group->ended = &((struct ep_ht_state *)group->state.ptr)->ended;
	if ((rc = near_fill(group, ht)) || (rc = ep_ht_reach_open(group, &ht->reach)))
		return rc;
	if (ht->nodes.relay && (rc = state_copy(group, tables_at(group), ht->nodes.relay, ht->nodes.bytes)))
		return rc;
	return need_known(group, need);
}

void ep_ht_stop(struct ncclEpGroup *group)
{
	ep_reach_close(ep_ht_reach(group));
}

static void ht_free(struct ep_ht *ht)
{
	if (ht)
		ep_ht_nodes_free(&ht->nodes);
	free(ht);
}

void ep_ht_close(struct ncclEpGroup *group)
{
	ep_reach_free(ep_ht_reach(group));
	ht_free(group->algo_state);
}

void ep_ht_abandon(struct ncclEpGroup *group)
{
	ep_reach_abandon(ep_ht_reach(group));
	ht_free(group->algo_state);
}

int ep_ht_clear(struct ncclEpGroup *group)
{
	struct ep_ht_state *state = group->state.ptr;
	const struct ep_dev_ops *ops = group->dev->ops;
	int rc = ops->fill(group->dev, &state->errors, 0, sizeof(state->errors), group->stream);

	if (!rc)
		rc = ops->fill(group->dev, group->control.peer[group->rank], 0, sizeof(uint64_t), group->stream);
	if (!rc)
		rc = ep_link_clear(group->link, 0);
	return rc ? rc : ops->sync(group->dev, group->stream, ep_deadline_ms(SETUP_MS));
}

int ep_ht_counts(struct ncclEpGroup *group, struct ep_ht_counts *out)
{
	const struct ep_ht_state *state = group->state.ptr;
	uint64_t deadline = ep_deadline_ms(SETUP_MS);
	int rc;

	if ((rc = ep_group_peek(group, &state->direct, deadline, &out->direct)) ||
	    (rc = ep_group_peek(group, &state->staged, deadline, &out->staged)) ||
	    (rc = ep_group_peek(group, &state->crossed[0], deadline, &out->crossed[0])) ||
	    (rc = ep_group_peek(group, &state->crossed[1], deadline, &out->crossed[1])))
		return rc != -EP_ETIMEOUT ? rc
					  : EP_FAIL(EP_GROUP, EP_ETIMEOUT,
						    "rank %d: its device did not copy a counter within %d s",
						    group->rank, SETUP_MS / 1000);
	ep_reach_counts(ep_ht_reach(group), &out->reach);
	return 0;
}

/* Of another node only the counts of a client: steps of its rows are numbered through all operations. */
static int heard_afar(const struct ncclEpGroup *group, int rank, uint64_t deadline, uint64_t *epoch)
{
	const struct ep_ht_nodes *nodes = ep_ht_nodes(group);
	struct ep_far far;

	ep_link_args(group->link, &far);
	for (uint32_t i = 0; far.control && i < nodes->clients; i++)
		if (nodes->client[i].rank == (uint32_t)rank)
			return ep_group_peek(group, (const uint64_t *)(far.control + ep_ht_counts_word(i)), deadline,
					     epoch);
	return -ENOENT;
}

int ep_ht_heard(const struct ncclEpGroup *group, int rank, uint64_t deadline, uint64_t *epoch)
{
	const struct ep_ht *ht = group->algo_state;
	const uint8_t *mine = group->control.peer[group->rank];
	const struct ep_ht_line *line = (const struct ep_ht_line *)(mine + ep_ht_line_at((uint32_t)rank));
	const struct ep_ht_line *near =
		(const struct ep_ht_line *)((const uint8_t *)group->state.ptr + ep_ht_lines_at(group));
	uint64_t words[4], last = 0;
	int rc;

	if (!group->control.peer[rank])
		return heard_afar(group, rank, deadline, epoch);
	line = ht->near[rank] ? near + rank : line;
	if ((rc = ep_group_peek(group, &line->done, deadline, &words[0])) ||
	    (rc = ep_group_peek(group, &line->counts, deadline, &words[1])) ||
	    (rc = ep_group_peek(group, &line->entered, deadline, &words[2])) ||
	    (rc = ep_group_peek(group, &line->meta, deadline, &words[3])))
		return rc;
	for (int i = 0; i < (rank == group->rank ? 1 : 4); i++)
		last = words[i] > last ? words[i] : last;
	*epoch = last;
	return 0;
}
