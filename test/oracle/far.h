/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated nodes (NCCL_EP_RANKS_PER_NODE): how ranks are split into them, the transport between them, and, as a model
 * of LL's wire format, the exact number of bytes that an operation gives to that transport.
 */
#ifndef EP_TEST_ORACLE_FAR_H
#define EP_TEST_ORACLE_FAR_H

#include "test/oracle/model.h"
#include "test/oracle/nodes.h"
#include "test/oracle/world.h"

#define FAR_NET_MAX 96

/* Ranks per node; the last node may have fewer. 0: one node. */
int far_split(int ranks, int nodes);
/* Whether that makes exactly this many nodes: 4 ranks do not make 3. */
bool far_splits(int ranks, int nodes);

/* NCCL_EP_NET for loop, unordered, or faulty (maximum reordering, by the seed); other values are kept. */
void far_net(const char *net, uint64_t seed, char out[FAR_NET_MAX]);
/* Sets the environment of later groups: before world_open, or between jobs of the world. */
void far_set(struct world *world, int per_node, const char *net, uint64_t seed);
void far_set_nodes(struct world *world, const struct far_nodes *nodes, const char *net, uint64_t seed);

/* Whether ranks a and b are on different nodes; per_node 0: never. */
bool far_from(int per_node, int a, int b);
/* Bytes of one dispatch of `rank`; in[ranks], active NULL: all are. */
uint64_t far_dispatch_bytes(const struct ll_shape *shape, const struct ll_input *in, const bool *active, int rank,
			    int per_node);
/* Bytes of one combine of the rows that this rank holds. */
uint64_t far_combine_bytes(const struct ll_shape *shape, const struct ll_expect *expect, const bool *active, int rank,
			   int per_node);

#endif
