/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pretended nodes: how ranks are split into them, the net between them, and, as a model of LL's wire format, the bytes
 * an operation must give to that net: no more, no less.
 */
#ifndef EP_TEST_ORACLE_FAR_H
#define EP_TEST_ORACLE_FAR_H

#include "test/oracle/model.h"
#include "test/oracle/world.h"

#define FAR_NET_MAX 96

/* Ranks of a node, for NCCL_EP_RANKS_PER_NODE: the last node may have fewer. 0: one node. */
int far_split(int ranks, int nodes);
/* Whether that makes exactly so many nodes: 4 ranks make no 3. */
bool far_splits(int ranks, int nodes);

/* NCCL_EP_NET for loop, unordered, or faulty: as much disorder as it can make, by the seed. Else net is one already. */
void far_net(const char *net, uint64_t seed, char out[FAR_NET_MAX]);
/* The environment of all groups to come: before world_open, or between jobs with the world. */
void far_set(struct world *world, int per_node, const char *net, uint64_t seed);

/* Whether a put is between them; per_node 0: never. */
bool far_from(int per_node, int a, int b);
/* Of one call of `rank`; in[ranks], active NULL: all are. */
uint64_t far_dispatch_bytes(const struct ll_shape *shape, const struct ll_input *in, const bool *active, int rank,
			    int per_node);
/* Of the rows that this rank holds. */
uint64_t far_combine_bytes(const struct ll_shape *shape, const struct ll_expect *expect, const bool *active, int rank,
			   int per_node);

#endif
