/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks are split into nodes, and who relays HT's rows between them. */
#ifndef EP_TEST_ORACLE_NODES_H
#define EP_TEST_ORACLE_NODES_H

#include <stdbool.h>
#include <stdint.h>

#define FAR_SIZES 8
#define FAR_TEXT_MAX 40

/* Nodes by their sizes in ranks; the last before a 0 repeats, as in NCCL_EP_RANKS_PER_NODE. All 0: one node. */
struct far_nodes {
	uint8_t size[FAR_SIZES];
	uint8_t dealt; /* not 0: so many nodes, to which the ranks are dealt in turn; only real ones can be like that */
};

int far_node(const struct far_nodes *nodes, int rank);
/* The index of a rank among those of its node. */
int far_local(const struct far_nodes *nodes, int rank);
int far_count(const struct far_nodes *nodes, int ranks); /* of nodes */
/* The rank of `node` through which the rows between it and `src` go. */
int far_relay(const struct far_nodes *nodes, int ranks, int src, int node);
/* From the node of each rank; false: neither in order nor dealt, or too many sizes. */
bool far_from_map(const int *node, int ranks, struct far_nodes *out);
/* The value of NCCL_EP_RANKS_PER_NODE. */
void far_text(const struct far_nodes *nodes, char out[FAR_TEXT_MAX]);

#endif
