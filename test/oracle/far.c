/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/far.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t pad16(uint64_t bytes)
{
	return (bytes + 15) / 16 * 16;
}

int far_split(int ranks, int nodes)
{
	return nodes > 1 ? (ranks + nodes - 1) / nodes : 0;
}

bool far_splits(int ranks, int nodes)
{
	int per_node = far_split(ranks, nodes);

	return nodes == 1 || (nodes > 1 && (ranks + per_node - 1) / per_node == nodes);
}

void far_net(const char *net, uint64_t seed, char out[FAR_NET_MAX])
{
	if (!strcmp(net, "unordered"))
		snprintf(out, FAR_NET_MAX, "loop:unordered=1");
	else if (!strcmp(net, "faulty"))
		snprintf(out, FAR_NET_MAX, "faulty(loop):seed=%llu,reorder=128,delay=32", (unsigned long long)seed);
	else
		snprintf(out, FAR_NET_MAX, "%s", net);
}

static void spread_set(struct world *world, const char *sizes, const char *net, uint64_t seed)
{
	char spec[FAR_NET_MAX];

	far_net(net, seed, spec);
	if (world) {
		world_setenv(world, "NCCL_EP_RANKS_PER_NODE", sizes);
		world_setenv(world, "NCCL_EP_NET", spec);
	} else {
		setenv("NCCL_EP_RANKS_PER_NODE", sizes, 1);
		setenv("NCCL_EP_NET", spec, 1);
	}
}

void far_set(struct world *world, int per_node, const char *net, uint64_t seed)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", per_node);
	spread_set(world, number, net, seed);
}

void far_set_nodes(struct world *world, const struct far_nodes *nodes, const char *net, uint64_t seed)
{
	char sizes[FAR_TEXT_MAX];

	far_text(nodes, sizes);
	spread_set(world, sizes, net, seed);
}

bool far_from(int per_node, int a, int b)
{
	return per_node && a / per_node != b / per_node;
}

static uint64_t line(uint64_t bytes)
{
	return (bytes + 127) / 128 * 128;
}

static uint64_t row_pitch(const struct ll_shape *shape)
{
	uint64_t k = (uint64_t)shape->topk, local = (uint64_t)(shape->experts / shape->ranks);
	uint64_t entries = shape->layout == LL_RANK_MAJOR ? 8 * k : 12 * (k < local ? k : local);

	return line(line(16 + entries) + pad16(ll_out_bytes(shape)) + pad16(ll_scale_bytes(shape)));
}

/* Tokens with an expert on that rank; each is sent once, however many experts it has there. */
static uint64_t rows_for(const struct ll_shape *shape, const struct ll_input *in, int rank)
{
	uint64_t rows = 0;

	for (int t = 0; t < in->t; t++) {
		int k = 0;

		while (k < shape->topk && ll_owner(shape, NULL, in->idx[t * shape->topk + k]) != rank)
			k++;
		rows += k < shape->topk;
	}
	return rows;
}

uint64_t far_dispatch_bytes(const struct ll_shape *shape, const struct ll_input *in, const bool *active, int rank,
			    int per_node)
{
	uint64_t head = line(16 + 4 * (uint64_t)(shape->experts / shape->ranks)), bytes = 0;

	for (int r = 0; r < shape->ranks; r++)
		if (far_from(per_node, rank, r) && (!active || active[r]))
			bytes += head + rows_for(shape, &in[rank], r) * row_pitch(shape);
	return bytes;
}

uint64_t far_combine_bytes(const struct ll_shape *shape, const struct ll_expect *expect, const bool *active, int rank,
			   int per_node)
{
	uint64_t bytes = 0;

	for (int zone = 0; zone < expect->zones; zone++)
		for (int i = 0; i < expect->count[zone]; i++) {
			int home = expect->row[zone * expect->cap + i].src;

			if (far_from(per_node, rank, home) && (!active || active[home]))
				bytes += pad16(ll_combine_bytes(shape));
		}
	return bytes;
}
