/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/nodes.h"

#include <stdlib.h>
#include <string.h>

#include "util/error.h"

#define RINGS_BYTES (32u << 20) /* of all channels of a direction together */
#define SLOTS_MIN 8u		/* of a channel: some for the net's latency */
#define STEP_MIN 65536u		/* bytes; shorter ones only where all of the group's tokens need no more */

/*
 * A step is a put that a NIC sends at its full rate, and a GPU has many in flight: slots are filled, cross, are emptied
 * and come back (doc/performance.md). On the CPU, engines and ranks share the cores, and every step costs the engines
 * five messages, with the slot's return and the acknowledgements: with steps of 128 and 256 KiB a dispatch over tcp
 * takes 0.83 and 0.73 of the time that it takes with 64.
 */
static const struct {
	uint32_t bytes, rows, slots;
	/* Of all channels together: of a dispatch, of a combine, whose rows are sums and take longer. */
	uint32_t ramp[2];
} steps_gpu = { 131072, 32, EP_HT_STEPS, { 16, 32 } }, steps_cpu = { 262144, 64, 16, { 1, 1 } };

/* All ranks by node. */
struct map {
	uint32_t nranks, nodes;
	uint32_t *node, *local; /* [nranks]: number of its node, index in it */
	uint32_t *size;		/* [nodes] */
	uint32_t *member;	/* [nodes][nranks] */
};

static uint32_t relay_of(const struct map *m, uint32_t rank, uint32_t node)
{
	return m->member[node * m->nranks + m->local[rank] % m->size[node]];
}

/* Clients of a relay that are lower than end. */
static uint32_t clients_below(const struct map *m, uint32_t relay, uint32_t end)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < end; r++)
		n += m->node[r] != m->node[relay] && relay_of(m, r, m->node[relay]) == relay;
	return n;
}

/* A node's index among the nodes other than that of rank. */
static uint32_t other(const struct map *m, uint32_t rank, uint32_t node)
{
	return node == m->node[rank] ? EP_HT_OWN : node - (node > m->node[rank]);
}

/* ---- who maps whom ---- */

static bool bit(const uint8_t *row, uint32_t i)
{
	return row[i / 8] >> (i % 8) & 1;
}

static uint32_t lowest(const uint8_t *row, uint32_t nranks)
{
	uint32_t r = 0;

	while (r < nranks && !bit(row, r))
		r++;
	return r;
}

/* Nodes are numbered by their lowest ranks. */
static int map_fill(struct map *m, const uint8_t *bits, size_t row)
{
	for (uint32_t r = 0; r < m->nranks; r++) {
		uint32_t first = lowest(bits + row * r, m->nranks);

		if (first > r || memcmp(bits + row * first, bits + row * r, row))
			return EP_FAIL(EP_GROUP, EP_EDEVICE,
				       "ncclEpCreateGroup: HT needs nodes in which all ranks map each other, but rank "
				       "%u "
				       "maps other ranks than rank %u, which it maps: let the GPUs of a node reach "
				       "each "
				       "other (NCCL_EP_P2P_DISABLE, containers with part of the GPUs), or use "
				       "NCCL_EP_ALGO_LOW_LATENCY",
				       r, first > r ? r : first);
		m->node[r] = first == r ? m->nodes++ : m->node[first];
		m->local[r] = m->size[m->node[r]]++;
		m->member[m->node[r] * m->nranks + m->local[r]] = r;
	}
	return 0;
}

static int map_make(const struct ncclEpGroup *group, struct map *m, uint32_t **memory)
{
	size_t n = (size_t)group->nranks, row = (n + 7) / 8;
	uint8_t *mine = EP_CALLOC(EP_GROUP, n + 1, row, "who maps whom");
	int rc = mine ? 0 : -ENOMEM;

	*memory = EP_CALLOC(EP_GROUP, 3 * n + n * n, sizeof(uint32_t), "the nodes");
	*m = (struct map){ .nranks = (uint32_t)n, .node = *memory };
	if (*memory && mine) {
		m->local = m->node + n;
		m->size = m->local + n;
		m->member = m->size + n;
		for (size_t r = 0; r < n; r++)
			if (group->control.peer[r])
				mine[r / 8] |= (uint8_t)(1u << (r % 8));
		rc = ep_boot_allgather(group->boot, mine, row, mine + row);
		if (!rc)
			rc = map_fill(m, mine + row, row);
	} else {
		rc = -ENOMEM;
		ep_boot_abort(group->boot, ENOMEM, ep_last_error()); /* the others wait for its row */
	}
	free(mine);
	return rc;
}

/* ---- this rank's tables ---- */

size_t ep_ht_step_rows(const struct ep_ht_nodes *nodes, size_t row)
{
	size_t rows = nodes->step_bytes / row;

	return rows > nodes->step_rows ? nodes->step_rows : rows ? rows : 1;
}

/*
 * The short steps of an operation take no more than half of a channel's slots: otherwise every slot of a small group
 * would have a short step in it, and an operation would wait for slots to come back several times. So its 128 rows of
 * 4 KiB would be 50 steps in 8 slots.
 */
static uint32_t ramp_fit(uint32_t ramp, uint32_t slots)
{
	uint32_t most = slots / 2 / EP_HT_SIZES;

	return ramp < most ? ramp : most;
}

void ep_ht_steps_find(const struct ncclEpGroup *group, struct ep_ht_nodes *out)
{
	uint32_t others = out->span.others, most = steps_cpu.slots;
	size_t slots, enough;

	out->step_bytes = steps_cpu.bytes;
	out->step_rows = steps_cpu.rows;
	memcpy(out->span.ramp, steps_cpu.ramp, sizeof(out->span.ramp));
	for (int r = 0; r < group->nranks; r++)
		if (group->topo.rank[r].dev.kind != EP_DEV_HOST) {
			out->step_bytes = steps_gpu.bytes;
			out->step_rows = steps_gpu.rows;
			for (int i = 0; i < 2; i++)
				out->span.ramp[i] = (steps_gpu.ramp[i] + others - 1) / others;
			most = steps_gpu.slots;
		}
	while (out->step_bytes > STEP_MIN && (size_t)others * SLOTS_MIN * out->step_bytes > RINGS_BYTES)
		out->step_bytes /= 2;
	slots = RINGS_BYTES / out->step_bytes / others;
	slots = slots < most ? slots : most;
	/* No more than hold all tokens. */
	enough = group->cfg.max_dispatch / ep_ht_step_rows(out, group->cfg.max_token_bytes) + 1;
	slots = slots < enough ? slots : enough;
	out->span.steps = slots < SLOTS_MIN ? SLOTS_MIN : (uint32_t)slots;
	for (int i = 0; i < 2; i++)
		out->span.ramp[i] = ramp_fit(out->span.ramp[i], out->span.steps);
}

static void span_find(const struct ncclEpGroup *group, const struct map *m, struct ep_ht_nodes *out)
{
	uint32_t largest = 0;

	out->span.others = m->nodes - 1;
	out->near = true;
	for (uint32_t r = 0; r < m->nranks; r++) {
		uint32_t clients = clients_below(m, r, m->nranks), node = m->node[r];

		out->span.most = clients > out->span.most ? clients : out->span.most;
		largest = m->size[node] > largest ? m->size[node] : largest;
		out->near &= ep_topo_near(&group->topo, (int)m->member[node * m->nranks], (int)r);
	}
	out->span.wide = largest * (uint32_t)group->experts_per_rank;
	if (out->span.others)
		ep_ht_steps_find(group, out);
}

static void tables_fill(const struct map *m, uint32_t me, struct ep_ht_nodes *out)
{
	uint32_t own = m->node[me], client = 0;

	memcpy(out->mate, m->member + own * m->nranks, out->mates * sizeof(uint32_t));
	for (uint32_t r = 0; r < m->nranks; r++) {
		bool here = m->node[r] == own;

		out->where[r] = other(m, me, m->node[r]);
		out->via[r] = here ? r : relay_of(m, r, own);
		out->counted[r] = here ? 0 : 1 + clients_below(m, out->via[r], r);
		if (!here && out->via[r] == me)
			out->client[client++] = (struct ep_ht_peer){ r, other(m, r, own) };
	}
	for (uint32_t n = 0; n < m->nodes; n++)
		if (n != own) {
			uint32_t relay = relay_of(m, me, n);

			out->relay[other(m, me, n)] = (struct ep_ht_peer){ relay, clients_below(m, relay, me) };
		}
}

static int tables_make(const struct map *m, uint32_t me, struct ep_ht_nodes *out)
{
	size_t peers;

	out->own = m->node[me];
	out->mates = m->size[out->own];
	out->clients = clients_below(m, me, m->nranks);
	peers = (size_t)out->span.others + out->clients;
	/* Peers first: they are aligned to 8. */
	out->bytes = peers * sizeof(struct ep_ht_peer) + (3 * (size_t)m->nranks + out->mates) * sizeof(uint32_t);
	out->relay = EP_CALLOC(EP_GROUP, 1, out->bytes, "the nodes' tables");
	if (!out->relay)
		return -ENOMEM;
	out->client = out->relay + out->span.others;
	out->mate = (uint32_t *)(out->client + out->clients);
	out->where = out->mate + out->mates;
	out->via = out->where + m->nranks;
	out->counted = out->via + m->nranks;
	tables_fill(m, me, out);
	return 0;
}

int ep_ht_nodes_find(struct ncclEpGroup *group, struct ep_ht_nodes *out)
{
	uint32_t *memory;
	struct map m;
	int rc = map_make(group, &m, &memory);

	*out = (struct ep_ht_nodes){ .mates = (uint32_t)group->nranks };
	if (!rc)
		span_find(group, &m, out);
	if (!rc && out->span.others) {
		rc = tables_make(&m, (uint32_t)group->rank, out);
		EP_INFO(EP_GROUP, "rank %d: HT over %u nodes: %u ranks in its own, %u relays, %u clients", group->rank,
			m.nodes, out->mates, out->span.others, out->clients);
	}
	free(memory);
	return rc;
}

void ep_ht_nodes_free(struct ep_ht_nodes *nodes)
{
	free(nodes->relay);
	nodes->relay = NULL;
}

uint32_t ep_ht_nodes_of(const struct ep_ht_nodes *nodes, int rank)
{
	uint32_t where = nodes->where ? nodes->where[rank] : EP_HT_OWN;

	return where == EP_HT_OWN ? nodes->own : where + (where >= nodes->own);
}

void ep_ht_nodes_wanted(const struct ep_ht_nodes *nodes, bool *wanted)
{
	for (uint32_t i = 0; nodes->relay && i < nodes->span.others; i++)
		wanted[nodes->relay[i].rank] = true;
	for (uint32_t i = 0; nodes->relay && i < nodes->clients; i++)
		wanted[nodes->client[i].rank] = true;
}

uint32_t ep_ht_bins_of(const struct ncclEpGroup *group)
{
	return (uint32_t)ep_ht_bins((uint32_t)group->nranks, group->cfg.num_experts, ep_ht_nodes(group)->span.others);
}
