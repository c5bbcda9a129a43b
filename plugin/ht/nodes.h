/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks form a node, and which of them relays for whom (kernels/ht/args_across.h). */
#ifndef EP_PLUGIN_HT_NODES_H
#define EP_PLUGIN_HT_NODES_H

#include <stdbool.h>

#include "kernels/args.h"
#include "plugin/group/group.h"

struct ep_reach;

struct ep_ht_nodes {
	struct ep_ht_span span;
	uint32_t own; /* number of this rank's node, by their lowest ranks */
	uint32_t mates, clients;
	uint32_t step_bytes, step_rows; /* the most of a step */
	bool near;			/* in every node all ranks use each other's tensors by plain pointers */
	/* One allocation of so many bytes, in this order; see struct ep_ht_across. NULL where all ranks map each other.
	 */
	size_t bytes;
	struct ep_ht_peer *relay, *client;
	uint32_t *mate, *where, *via, *counted;
};

/* Collective, when control pages are mapped: who maps whom decides. */
int ep_ht_nodes_find(struct ncclEpGroup *group, struct ep_ht_nodes *out);
void ep_ht_nodes_free(struct ep_ht_nodes *nodes);
/* The number of a rank's node. */
uint32_t ep_ht_nodes_of(const struct ep_ht_nodes *nodes, int rank);
/* The ranks that this rank exchanges rows with over the net. */
void ep_ht_nodes_wanted(const struct ep_ht_nodes *nodes, bool *wanted);

/* algo_state. */
struct ep_ht {
	struct ep_ht_nodes nodes;
	struct ep_reach *reach;	   /* may be NULL */
	struct ep_ht_line *near[]; /* [nranks]: the table at ep_ht_near_at */
};

static inline const struct ep_ht_nodes *ep_ht_nodes(const struct ncclEpGroup *group)
{
	return &((const struct ep_ht *)group->algo_state)->nodes;
}

/* Steps and slots of a group of several nodes, by span.others and the devices of all ranks: the same on all of them. */
void ep_ht_steps_find(const struct ncclEpGroup *group, struct ep_ht_nodes *out);
/* Rows of so many bytes that fit into a step; at least 1. */
size_t ep_ht_step_rows(const struct ep_ht_nodes *nodes, size_t row);

/* Counts of a rank. */
uint32_t ep_ht_bins_of(const struct ncclEpGroup *group);

#endif
