/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allgather over the mesh: a data structure without I/O or locks.
 *
 * Each rank's block is sent down its own binomial tree: the rank at distance d from the origin forwards it to distance
 * d + 2^i for every 2^i > d. There are no rounds, and every rank receives every block once, after at most log2 R hops.
 * (Flooding also works and tolerates losses, but each block then crosses every edge: 10 times the work at 1024 ranks.)
 * A dead rank leaves holes in the trees: with `survive` all blocks held are then sent over every edge whose peer is not
 * known to have them, and flooding stays on from there.
 *
 * Collectives are numbered. A rank can be one ahead of another, never two: it completes a collective only with the
 * block that the other contributes after completing the previous one. Blocks are cut into pieces, which arrive in order
 * on every edge, so a count per origin says which ones are there.
 */
#ifndef EP_PLUGIN_BOOT_GATHER_H
#define EP_PLUGIN_BOOT_GATHER_H

#include "plugin/boot/blob.h"

#define EP_GATHER_SLOTS 3 /* the previous collective, this one, the next one */
#define EP_GATHER_STEPS 17
/* Of all blocks of a collective together: what a rank may have to keep before it begins it, from ranks ahead of it. */
#define EP_GATHER_BYTES ((uint64_t)64 << 20)
#define EP_GATHER_LEAST 16384u /* of a block, however many ranks there are */

/* The largest block: a size beyond it is an error, so that no peer can make a rank keep more. */
static inline uint64_t ep_gather_max(uint32_t nranks)
{
	uint64_t share = EP_GATHER_BYTES / nranks;

	return share > EP_GATHER_LEAST ? share : EP_GATHER_LEAST;
}

struct ep_block {
	struct ep_blob *head, *tail;
	uint32_t have; /* pieces */
};

struct ep_gather_slot {
	uint64_t seq;
	uint64_t total; /* bytes per rank, valid once begun */
	bool begun;
	uint32_t waiting; /* blocks neither complete nor excused */
	struct ep_block *block;
};

struct ep_gather_edge {
	uint32_t rank;
	bool up;
	void *user;
	uint32_t *known[EP_GATHER_SLOTS]; /* survive: pieces of each block the peer is known to have */
};

/* Sends a frame over the edge added with `user`; called from any of the functions below. */
typedef int (*ep_gather_emit_fn)(void *ctx, void *user, struct ep_blob *blob);

struct ep_gather {
	uint32_t rank, nranks;
	bool survive, flood;
	uint64_t seq;	 /* the current or next collective */
	uint64_t passed; /* some rank has completed all before this one */
	struct ep_gather_slot slot[EP_GATHER_SLOTS];
	uint64_t *gone_from; /* [nranks] first collective the rank is excused from; UINT64_MAX: none */
	struct ep_gather_edge *edge;
	int edges;
	int out[EP_GATHER_STEPS]; /* edge to rank + 2^i, or -1 */
	ep_gather_emit_fn emit;
	void *ctx;
	uint32_t culprit; /* after -EMSGSIZE: the rank whose size differs */
};

int ep_gather_init(struct ep_gather *g, uint32_t rank, uint32_t nranks, bool survive);
void ep_gather_free(struct ep_gather *g);

/* Returns the edge's number for later calls; numbers are not reused. */
int ep_gather_edge_add(struct ep_gather *g, uint32_t rank, void *user);
void ep_gather_edge_drop(struct ep_gather *g, int edge);

/* Contributes this rank's block. -EMSGSIZE: rank culprit's block has another size. */
int ep_gather_begin(struct ep_gather *g, const void *mine, size_t n);

/* A block frame from an edge. -EPROTO: malformed; -EMSGSIZE as above. Takes its own reference. */
int ep_gather_take(struct ep_gather *g, int edge, struct ep_blob *blob);

/* The rank takes no part in collective `from` and later; 0 for a dead one, whose incomplete blocks stay so. */
int ep_gather_gone(struct ep_gather *g, uint32_t rank, uint64_t from);

/* A rank left after `seq` collectives. A barrier among them is complete for all, whoever's block is missing here: the
 * rank that should have forwarded it may have died, and those that have it may have left. */
void ep_gather_passed(struct ep_gather *g, uint64_t seq);
bool ep_gather_done(const struct ep_gather *g);

/* Copies the complete blocks to all[rank * n] and moves on to the next collective. */
void ep_gather_end(struct ep_gather *g, void *all);

/* The ranks that the current collective waits for, as "3, rank 5 and 7 more"; returns how many. */
uint32_t ep_gather_missing(const struct ep_gather *g, char *buf, size_t size);

/* Whether collective `seq` has started somewhere: begun here, or a block of it has arrived. */
bool ep_gather_seen(const struct ep_gather *g, uint64_t seq);

#endif
