/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT across nodes. A node is a set of ranks that map each other. A token crosses once per destination node, to the rank
 * with the same local index there (modulo the node's size), its relay; the ranks that a relay serves are its clients.
 * The relay writes the row to its final places inside its node, and keeps in handle_mem where they are. In a combine it
 * reads them there, sums them, and one row per (token, node) goes home.
 *
 * A channel has one direction of one operation between a rank and its relay: a ring of slots in the receiver's window
 * and in the sender's memory. A step is one slot: several rows, one put, one signal. Steps are numbered through all
 * operations of the group. A slot has two words: in the receiver's far page "step n has arrived", in the sender's
 * "step n may be overwritten", which frees the sender's memory as well. So no rank waits at the start or end of an
 * operation for ranks of other nodes.
 *
 * The first steps of an operation are short, of 1, 2, 4 and 8 rows, so many of each as `ramp` says: all warps fill
 * their first steps side by side, and the net would have nothing to do until those were full.
 *
 *   far page  failed; counts[client]: epoch; then the words of the channels' slots
 *   window    [clients][2] counts, dispatch rings by client, combine rings by node
 *   send      [2] counts, dispatch rings by node, combine rings by client
 *   row       dispatch: struct ep_ht_row, its entries, token, scales; combine: struct ep_ht_row, backward: weights of
 *	       the same entries, then the sum
 */
#ifndef EP_KERNELS_ARGS_HT_ACROSS_H
#define EP_KERNELS_ARGS_HT_ACROSS_H

#include "kernels/op/far_args.h"

#define EP_HT_STEPS 256u     /* the most slots of a channel */
#define EP_HT_SIZES 4u	     /* of short steps at most */
#define EP_HT_OWN UINT32_MAX /* where[]: a rank of this rank's node */

/* Directions as one rank sees them; a flow's partner at the other end is flow ^ 1. */
enum ep_ht_flow { EP_HT_DISPATCH_IN, EP_HT_DISPATCH_OUT, EP_HT_COMBINE_IN, EP_HT_COMBINE_OUT, EP_HT_FLOWS };

struct ep_ht_row {
	uint64_t key; /* of the call */
	uint32_t count;
	uint32_t pad;
};
EP_SIZE_IS(ep_ht_row, 16);

/* One of a token's experts on the node, ascending. */
struct ep_ht_entry {
	uint32_t expert;
	uint32_t row;  /* as in the routing of the source */
	uint32_t flat; /* expert-major: likewise; flat, where it is the row: the caller's k of the expert */
	float weight;
};
EP_SIZE_IS(ep_ht_entry, 16);

struct ep_ht_channel {
	uint64_t base;	/* steps of earlier operations */
	uint64_t seen;	/* in: steps that have arrived; out: steps whose slots are free again */
	uint32_t taken; /* of this operation's steps; zero between launches */
	uint32_t pad[3];
};
EP_SIZE_IS(ep_ht_channel, 32);

/* The other end of a channel; there: the channel's index among its flow there. */
struct ep_ht_peer {
	uint32_t rank, there;
};
EP_SIZE_IS(ep_ht_peer, 8);

/* The numbers of a group, the same on all ranks. */
struct ep_ht_span {
	uint32_t others;  /* nodes but one; 0: all ranks map each other */
	uint32_t most;	  /* clients of the rank that has most */
	uint32_t wide;	  /* experts of the node that has most */
	uint32_t steps;	  /* slots of a channel */
	uint32_t ramp[2]; /* short steps of each size: of a dispatch, of a combine */
};
EP_SIZE_IS(ep_ht_span, 24);

/* All zero where all ranks map each other. Tables are in device memory. */
struct ep_ht_across {
	struct ep_far far;
	struct ep_ht_span span;
	uint32_t mates, clients;
	const uint32_t *mate;	 /* [mates]: ranks of this node, ascending */
	const uint32_t *where;	 /* [nranks]: index of the rank's node among the others, or EP_HT_OWN */
	const uint32_t *via;	 /* [nranks]: the rank of this node that handles its rows: itself, or its relay */
	const uint32_t *counted; /* [nranks]: index of its counts in the page of via */
	const struct ep_ht_peer *relay;	 /* [others] */
	const struct ep_ht_peer *client; /* [clients] */
	struct ep_ht_channel *channel;	 /* by flow: [most], [others], [others], [most] */
	uint32_t *used;			 /* [others][EP_HT_STEPS]: combine: rows of a step that were summed */
	uint32_t *rows_out;		 /* handle_mem: [others] tokens for each node */
	uint32_t *rows_in;		 /* handle_mem: [clients] tokens from each client */
	uint64_t step_bytes;		 /* from one slot to the next */
};
EP_SIZE_IS(ep_ht_across, 232);

/* Counts of a source: per expert, per rank, and its tokens for each of the other nodes. */
EP_BOTH uint64_t ep_ht_bins(uint32_t nranks, uint32_t experts, uint32_t others)
{
	return (uint64_t)nranks + experts + others;
}

EP_BOTH uint64_t ep_ht_round(uint64_t bytes)
{
	return (bytes + 127) / 128 * 128;
}

/* Offset in the window of counts, between two operations: 0 for those of its owner, 1 + n for those of its client n. */
EP_BOTH uint64_t ep_ht_across_counts_at(uint64_t bins, uint32_t index)
{
	return index * ep_ht_round(bins * 4);
}

/* ---- far page ---- */

EP_BOTH uint64_t ep_ht_counts_word(uint32_t client)
{
	return 128 + (uint64_t)client * 8;
}

/* The first channel of a flow among all of them. */
EP_BOTH uint32_t ep_ht_flow_first(const struct ep_ht_span *s, uint32_t flow)
{
	return (flow >= EP_HT_DISPATCH_OUT ? s->most : 0) + (flow >= EP_HT_COMBINE_IN ? s->others : 0) +
	       (flow >= EP_HT_COMBINE_OUT ? s->others : 0);
}

EP_BOTH uint32_t ep_ht_channels(const struct ep_ht_span *s)
{
	return 2 * (s->most + s->others);
}

EP_BOTH uint64_t ep_ht_slot_word(const struct ep_ht_span *s, uint32_t flow, uint32_t channel, uint32_t slot)
{
	return ep_ht_round(ep_ht_counts_word(s->most)) +
	       ((uint64_t)(ep_ht_flow_first(s, flow) + channel) * s->steps + slot) * 8;
}

EP_BOTH uint64_t ep_ht_far_size(const struct ep_ht_span *s)
{
	return ep_ht_slot_word(s, EP_HT_DISPATCH_IN, ep_ht_channels(s), 0);
}

/* ---- window and send ---- */

/* A rank's counts, after their key. */
EP_BOTH uint64_t ep_ht_vector(uint64_t bins)
{
	return ep_ht_round(16 + bins * 4);
}

/* Where the rings begin: of the window (in), or of the memory to send from. */
EP_BOTH uint64_t ep_ht_rings_at(const struct ep_ht_span *s, uint64_t bins, uint32_t in)
{
	return (in ? 2 * (uint64_t)s->most : 2) * ep_ht_vector(bins);
}

/* A channel's index among the rings of its memory. */
EP_BOTH uint32_t ep_ht_ring_of(const struct ep_ht_span *s, uint32_t flow, uint32_t channel)
{
	return channel + (flow == EP_HT_COMBINE_IN ? s->most : flow == EP_HT_COMBINE_OUT ? s->others : 0);
}

/* The most entries of a row. */
EP_BOTH uint32_t ep_ht_entries(const struct ep_ht_span *s, uint32_t topk)
{
	return topk < s->wide ? topk : s->wide;
}

EP_BOTH uint64_t ep_ht_row_head(uint32_t flow, uint32_t entries, uint32_t backward)
{
	if (flow <= EP_HT_DISPATCH_OUT)
		return sizeof(struct ep_ht_row) + (uint64_t)entries * sizeof(struct ep_ht_entry);
	return sizeof(struct ep_ht_row) + (backward ? ((uint64_t)entries * 4 + 15) / 16 * 16 : 0);
}

/* ---- handle_mem, after the arrays [tokens][topk] ---- */

/* [others][tmax]: the tokens for each node, in order. */
EP_BOTH uint64_t ep_ht_tokens_bytes(const struct ep_ht_span *s, uint64_t tmax)
{
	return ep_ht_round(s->others * tmax * 4);
}

/* [most][tmax][entries], twice: the experts and rows of what a client sent. */
EP_BOTH uint64_t ep_ht_relayed_bytes(const struct ep_ht_span *s, uint64_t tmax, uint32_t entries)
{
	return ep_ht_round(s->most * tmax * entries * 4);
}

#endif
