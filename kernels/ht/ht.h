/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common to the operations of HT: opening, waits, addresses, the end. kernels/ht/args.h has the layout.
 *
 * One block opens an operation for all: it publishes this rank's tensors, reads the other ranks', and decides for each
 * peer whether its tensors are accessed directly, and announces that. Then work is taken by ticket: one resident block
 * can do all of it.
 *
 * Orderings, each with its partner (S: source, D: destination):
 *   R1 tensor[] -> entered at D		pairs with A1, D's wait for S: a tensor is not accessed before
 *   R2 way at D				pairs with A2, D's wait; in a dispatch with R5
 *   R3 the opener's result -> ready		pairs with A3, every block of the rank
 *   R4 work done -> finished			pairs with A4, the same counter: the last finisher is ordered after all
 *   R5 meta, done, counts at D, after A4	pair with A5, D's waits
 *   R6 all of a block -> left			pairs with A6: the last block to leave
 */
#ifndef EP_KERNELS_HT_H
#define EP_KERNELS_HT_H

#include "kernels/op/op.h"
#include "kernels/ht/args.h"

enum { HT_WORK, HT_META, HT_TAKE, HT_EXTRA }; /* ticket[] and finished[] */

#define HT_SLICES 128u /* interleaved pieces in which one source's rows are moved */
#define HT_SPAN 32u    /* tokens or rows of a small work item */
#define HT_BATCH 8u    /* loads in flight per lane where work is bound by latency */

/* A token's routing in the warp's shared memory, [topk] each. */
struct ht_list {
	uint8_t **dst;
	int32_t *expert;
	uint32_t *row;
	uint32_t *flat;
};

/* A flow of this operation (kernels/ht/across.h). */
struct ht_flow {
	uint32_t flow, n; /* enum ep_ht_flow; channels */
	struct ep_ht_channel *channel;
	const struct ep_ht_peer *peer;
	const uint32_t *rows; /* of this operation, by channel */
	uint8_t *ring;	      /* of channel 0 */
};

struct ht_across {
	uint32_t *cross;  /* handle_mem, [tokens][topk]: at the first expert of another node: the token's number among
			    * those for that node; else EP_HT_NONE */
	uint32_t *tokens; /* [others][tmax] */
	int32_t *expert;  /* [clients][tmax][entries], what clients sent; -1: no more */
	uint32_t *row;
	uint32_t entries; /* the most of a row */
	uint32_t head, pitch, step_rows;
	uint32_t ramp, sizes; /* short steps of each size, and how many sizes */
	struct ht_flow in, out;
};

struct ht {
	struct gx_op op;
	const struct ep_ht_args *a;
	struct gx_bulk bulk;
	struct ht_list list;
	uint32_t topk;
	/* handle_mem, [tokens][topk] each */
	int32_t *given;	    /* the caller's id; -1: none, or a bad id */
	int32_t *expert;    /* distinct, ascending; -1: no more */
	uint32_t *position; /* the last k with that expert */
	uint32_t *row;	    /* its row on the expert's rank, or EP_HT_NONE */
	uint32_t *flat;	    /* expert-major: the flat row, at each expert */
	struct ht_across x; /* of a group across nodes */
	uint64_t share;	    /* Update: 2^32 / experts of a rank, rounded up */
	uint32_t ticket;    /* of the next token, in lane 0 */
	uint32_t ahead;	    /* that token's row and routing are being loaded */
	/* of the reach table, in the opener: its version, and the last version whose mappings this launch may use */
	uint32_t version, mapped;
	/* after the state */
	struct ep_reach_memo *memo;
	uint64_t *to;	 /* [nranks][2]: addresses of each peer's tensors; 0: through the window */
	uint32_t *serve; /* [nranks]: combine: 1: that peer wants its rows in the window */
	uint32_t *any;	 /* [1]: whether any of them is 1; dispatch: whether rows may come through the window */
	uint32_t *rows;	 /* [nranks]: that may be accessed where to[] says */
	uint32_t *base, *total, *chunk;
	/* the block's shared memory */
	uint64_t *near_to; /* to[], a copy */
	uint8_t **window;
	uint32_t *near_rows; /* rows[], a copy */
};

GX_DEV uint32_t ht_is(const struct ht *ht, uint32_t flag)
{
	return (ht->a->flags & flag) != 0;
}

/* The ranks that this rank maps, itself among them. Constant 0 in kernels for one node: op.far is. */
GX_DEV uint32_t ht_mates(const struct ht *ht)
{
	return ht->op.far ? ht->a->across.mates : ht->op.nranks;
}

GX_DEV uint32_t ht_mate(const struct ht *ht, uint32_t i)
{
	return ht->op.far ? ht->a->across.mate[i] : i;
}

/* The rank of this node that handles the rows of a rank. */
GX_DEV uint32_t ht_via(const struct ht *ht, uint32_t rank)
{
	return ht->op.far ? ht->a->across.via[rank] : rank;
}

GX_DEV uint32_t ht_pad(uint32_t bytes)
{
	return (bytes + 15) / 16 * 16;
}

/* ---- addresses ---- */

GX_DEV uint8_t *ht_control(const struct ht *ht, uint32_t rank)
{
	return rank < EP_HT_HERE ? ht->a->control_here[rank] : ht->a->control[rank];
}

GX_DEV uint8_t *ht_window(const struct ht *ht, uint32_t rank)
{
	return rank < EP_HT_HERE ? ht->a->window_here[rank] : ht->a->window[rank];
}

/* NULL: not near. */
GX_DEV struct ep_ht_line *ht_near(const struct ht *ht, uint32_t rank)
{
	return rank < EP_HT_HERE ? ht->a->near_here[rank] : ht->a->near[rank];
}

/* The words of this rank in another's control page, and of another in this rank's. */
GX_DEV struct ep_ht_line *ht_line(const struct ht *ht, uint32_t owner)
{
	struct ep_ht_line *near = ht_near(ht, owner);

	return near ? near + ht->op.rank : (struct ep_ht_line *)(ht_control(ht, owner) + ep_ht_line_at(ht->op.rank));
}

GX_DEV struct ep_ht_line *ht_from(const struct ht *ht, uint32_t source)
{
	return ht_near(ht, source) ? ht->a->lines + source : (struct ep_ht_line *)(ht->a->mine + ep_ht_line_at(source));
}

/* What source has counted, in a control page. */
GX_DEV uint32_t *ht_counts(const struct ht *ht, uint8_t *control, uint32_t source)
{
	return (uint32_t *)(control + ep_ht_counts_at(ht->a->shape.nranks, ht->a->shape.bins, source));
}

/* Across nodes: counts in a window. */
GX_DEV uint32_t *ht_counts_in(const struct ht *ht, uint32_t owner, uint32_t index)
{
	return (uint32_t *)(ht_window(ht, owner) + ep_ht_across_counts_at(ht->a->shape.bins, index));
}

/* What source has counted: in this rank's page, or across nodes in the window of the rank that handles its rows. */
GX_DEV const uint32_t *ht_counts_of(const struct ht *ht, uint32_t source)
{
	if (ht->op.far)
		return ht_counts_in(ht, ht_via(ht, source), ht->a->across.counted[source]);
	return ht_counts(ht, ht->a->mine, source);
}

GX_DEV uint8_t *ht_meta(const struct ht *ht, uint32_t owner, uint32_t row)
{
	return ht->window[owner] + row * ep_ht_meta_pitch(ht->topk, ht_is(ht, EP_HT_EXPERT_MAJOR));
}

GX_DEV uint8_t *ht_staged(const struct ht *ht, uint32_t owner, uint32_t row)
{
	return ht->window[owner] + ht->a->stage_at + (uint64_t)row * ht->a->pitch;
}

/* ---- waits ---- */

#define HT_LATER_NS 1000000000u

/*
 * Across nodes waits end in an order, so that the rank that stands still is named, not one that waits for it itself:
 * first those for ranks of the node that have not entered the operation; a quarter later those for ranks of other
 * nodes, since seen from there the relays of a silent rank are silent, too; a quarter later those for ranks of the node
 * that have entered, which may wait for other nodes. A quarter of a second is enough for the news to spread, and two
 * are what a caller can be late.
 */
GX_DEV struct gx_limit ht_limit_later(const struct ht *ht, uint32_t quarters)
{
	struct gx_limit limit = ht->op.limit;
	uint64_t most = ht->a->timeout_ns < HT_LATER_NS ? ht->a->timeout_ns : HT_LATER_NS;

	limit.deadline += most / 4 * quarters;
	return limit;
}

/* All lanes, each for a word of a rank of its own; NULL: none. 0: the operation has failed. */
GX_DEV uint32_t ht_wait(const struct ht *ht, const uint64_t *word, uint64_t value, uint32_t rank, uint32_t phase)
{
	struct gx_limit limit = ht_limit_later(ht, ht->op.far && phase == EP_KPHASE_RECV ? 2 : 0);
	uint32_t result;

	if (gx_ballot(word != NULL) == 0)
		return 1; /* without fetching the wait's code */
	result = (uint32_t)gx_wait(word, value, &limit);
	if (result == GX_ARRIVED)
		return 1;
	gx_op_fail_wait(&ht->op, result, rank, rank, phase);
	return 0;
}

/* All lanes: waits until the word of every rank of the node at this offset of its line is at least value. 0: the
 * operation failed. */
GX_DEV uint32_t ht_wait_all(const struct ht *ht, uint64_t at, uint64_t value, uint32_t phase)
{
	uint32_t bad = 0;

	for (uint32_t i0 = 0; i0 < ht_mates(ht); i0 += GX_WARP) {
		const uint64_t *word = NULL;
		uint32_t r = 0;

		if (i0 + gx_lane() < ht_mates(ht)) {
			r = ht_mate(ht, i0 + gx_lane());
			word = (const uint64_t *)((const uint8_t *)ht_from(ht, r) + at);
		}
		bad |= !ht_wait(ht, word, value, r, phase);
	}
	bad = gx_ballot((int)bad) != 0;
	gx_syncwarp();
	gx_fence_proxy(); /* rows that came through the window may be copied next */
	return !bad;
}

#define HT_WAIT_ALL(ht, member, value, phase) ht_wait_all(ht, offsetof(struct ep_ht_line, member), value, phase)

/* All lanes: whether every rank of the node makes the same call: rows of another size would be written out of bounds.
 * Rows from other nodes have the key with them. */
GX_DEV uint32_t ht_alike(const struct ht *ht)
{
	uint32_t bad = 0;

	for (uint32_t i = gx_lane(); i < ht_mates(ht); i += GX_WARP) {
		uint32_t r = ht_mate(ht, i);

		if (gx_ld_relaxed_u64(&ht_from(ht, r)->key) != ht->a->call_key) {
			gx_op_fail(&ht->op, EP_KERR_SHAPE, r, EP_KPHASE_START);
			bad = 1;
		}
	}
	bad = gx_ballot((int)bad) != 0;
	gx_syncwarp();
	return !bad;
}

/* All lanes of a warp that is ordered after everything: writes the epoch to every rank of the node (R5). */
GX_DEV void ht_tell_all(const struct ht *ht, uint64_t at)
{
	for (uint32_t i = gx_lane(); i < ht_mates(ht); i += GX_WARP)
		gx_st_release_u64((uint64_t *)((uint8_t *)ht_line(ht, ht_mate(ht, i)) + at), ht->op.epoch);
}

#define HT_TELL_ALL(ht, member) ht_tell_all(ht, offsetof(struct ep_ht_line, member))

/* R4, A4. */
GX_DEV uint32_t ht_finished(struct ht *ht, uint32_t which, uint32_t n, uint32_t items)
{
	return gx_op_finished(&ht->bulk, &ht->a->state->finished[which], n, items);
}

GX_DEV uint32_t ht_take(struct ht *ht, uint32_t which)
{
	return gx_op_ticket(&ht->a->state->ticket[which]);
}

/* ---- counters of the caller, of either width, in device or pinned memory; NULL: not wanted ---- */

GX_DEV void ht_put(void *to, uint64_t at, uint64_t value, uint32_t wide)
{
	if (!to)
		return;
	if (wide)
		((int64_t *)to)[at] = (int64_t)value;
	else
		((int32_t *)to)[at] = (int32_t)value;
}

/* ---- beginning and end ---- */

GX_DEV void ht_arrays(struct ht *ht, uint8_t *shared)
{
	const struct ep_ht_args *a = ht->a;
	uint64_t bins = a->shape.bins;
	uint64_t routed = ep_ht_routed_bytes(a->shape.tmax, ht->topk);
	uint8_t *list = shared + (uint64_t)gx_warps() * a->stage + (uint64_t)gx_warp() * a->lane_bytes;

	ht->given = (int32_t *)a->routed;
	ht->expert = (int32_t *)(a->routed + routed);
	ht->position = (uint32_t *)(a->routed + 2 * routed);
	ht->row = (uint32_t *)(a->routed + 3 * routed);
	ht->flat = (uint32_t *)(a->routed + 4 * routed);
	ht->memo = (struct ep_reach_memo *)(a->state + 1);
	ht->to = (uint64_t *)(ht->memo + (uint64_t)a->shape.nranks * EP_REACH_MEMO);
	ht->serve = (uint32_t *)(ht->to + 2 * (uint64_t)a->shape.nranks);
	ht->any = ht->serve + a->shape.nranks;
	ht->rows = ht->serve + 2 * (uint64_t)a->shape.nranks;
	ht->base = ht->serve + 3 * (uint64_t)a->shape.nranks;
	ht->total = ht->base + bins;
	ht->chunk = ht->total + bins;
	ht->near_to = (uint64_t *)(shared + (uint64_t)gx_warps() * (a->stage + a->lane_bytes));
	ht->window = (uint8_t **)(ht->near_to + 2 * (uint64_t)a->shape.nranks);
	ht->near_rows = (uint32_t *)(ht->window + a->shape.nranks);
	ht->list.dst = (uint8_t **)list;
	ht->list.expert = (int32_t *)(ht->list.dst + ht->topk + a->biases);
	ht->list.row = (uint32_t *)(ht->list.expert + ht->topk);
	ht->list.flat = ht->list.row + ht->topk;
}

/* far: NULL in the kernels for one node, so that they have none of the code for several. */
GX_DEV void ht_begin(struct ht *ht, const struct ep_ht_args *a, uint32_t kind, const struct ep_far *far, uint32_t topk,
		     uint8_t *shared)
{
	ht->a = a;
	ht->topk = topk < a->shape.room ? topk : a->shape.room; /* the caller may have overwritten handle_mem */
	ht->ticket = ht->ahead = 0;
	ht->version = ht->mapped = 0;
	ht_arrays(ht, shared);
	ht->op.rank = a->shape.rank;
	ht->op.nranks = a->shape.nranks;
	ht->op.kind = kind;
	ht->op.report = a->report;
	ht->op.errors = &a->state->errors;
	ht->op.control = a->control;
	ht->op.failed_at = 0;
	ht->op.broken = NULL;
	ht->op.epoch = a->state->epoch + 1;
	ht->op.limit.deadline = gx_clock_ns() + a->timeout_ns;
	ht->op.limit.abort = a->abort;
	ht->op.limit.gone = NULL;
	ht->op.far = far;
	ht->op.failed_afar = 0;
	ht->op.limit.afar = far ? (const uint64_t *)far->control : NULL;
	ht->op.limit.failed = (const uint64_t *)a->mine;
	gx_bulk_open(&ht->bulk, shared, a->stage);
}

/* One thread: whether an earlier operation failed, here or on another rank. A failed group moves no more rows. */
GX_DEV uint32_t ht_dead(const struct ht *ht)
{
	uint32_t errors = gx_ld_relaxed_u32(ht->op.errors);
	uint64_t failed = gx_ld_relaxed_u64(ht->op.limit.failed);

	if (errors != 0)
		return 1;
	if (failed == 0 && ht->op.limit.afar)
		failed = gx_ld_relaxed_u64(ht->op.limit.afar);
	if (failed != 0)
		gx_op_fail_remote(&ht->op, failed, EP_KPHASE_START);
	return failed != 0;
}

#define HT_GO 1u
#define HT_STOP 2u

/* All threads: the opener's result. Bounded: the opener is running, and its waits are bounded. */
GX_DEV uint32_t ht_ready(const struct ht *ht)
{
	GX_SHARED uint32_t go;

	if (gx_warp() == 0) {
		uint32_t ready = 0, now;

		for (uint32_t spin = 0;; spin++) {
			if (gx_lane() == 0)
				ready = gx_ld_acquire_u32(&ht->a->state->ready); /* A3 */
			now = gx_shfl_u32(ready, 0);
			if (now != 0)
				break;
			gx_pause(spin);
		}
		if (gx_lane() == 0)
			go = now;
	}
	gx_syncthreads();
	return go == HT_GO;
}

/* The last block: resets all counters and ends the epoch; settled: every rank is done with it. */
GX_DEV void ht_close(const struct ht *ht, uint32_t settled)
{
	struct ep_ht_state *state = ht->a->state;

	/* Also after a failure: ranks that continue must not wait for this operation. */
	if (!settled && gx_warp() == 0)
		HT_TELL_ALL(ht, done);
	if (ht->op.far)
		gx_syncthreads(); /* what failed in this block has been noted */
	if (gx_warp() == 0)
		gx_op_tell(&ht->op);
	gx_syncthreads();
	if (gx_tid() == 0) {
		for (uint32_t i = 0; i < 4; i++)
			state->ticket[i] = state->finished[i] = 0;
		state->ready = state->left = 0;
		gx_st_relaxed_u32(&state->opened, 0); /* the host polls it */
		state->epoch = ht->op.epoch;
		if (settled)
			state->settled = ht->op.epoch;
	}
	gx_op_end(ht->a->counted, &state->ended);
}

#endif
