/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common to dispatch and combine: opening an operation, what it tells other ranks, its end. kernels/ll/args.h has the
 * layout, kernels/ll/wait.h the waits.
 *
 * Orderings, each with its partner (S: sender, D: destination):
 *   R1 a row written -> send_done, send_far	pairs with A1, the same counter: the last finisher is ordered after all
 *					rows of that part
 *   R2 signal at D, after A1		pairs with A2, D's wait for S
 *   R3 all of a block -> left		pairs with A3: the last block to leave is ordered after all reads
 *   R4 ack at S, after A3		pairs with A4, S's wait before it writes this buffer again; where the ack is
 *					implied (ll_implies), D's next signal, after A3 by stream order, is R4
 *   R5 fill[] -> self_ready, base[] -> src_ready	pair with A5: between warps of this rank
 *   R6 a word that the net wrote was seen -> shown	pairs with A6: the same
 *   R7 a row for a far rank written -> joined	pairs with A7: whoever writes the last row of a full put is ordered
 *					after all its rows; the rows of others go with R1, A1
 *   R8 early_rows[] ... -> counted	pairs with A8: whoever counts last is ordered after all counts
 */
#ifndef EP_KERNELS_LL_H
#define EP_KERNELS_LL_H

#include "kernels/ll/wait.h"

/* ---- to other ranks ---- */

/* All lanes, each with a command of its own or none. fence: as far_push. */
GX_DEV void ll_push(const struct ll *ll, struct far_cmd to, uint32_t fence)
{
	uint32_t rc = far_push(ll->op.far, &to, &ll->op.limit, fence);

	if (rc != 0)
		ll_blame_push(ll->a, ll->op.epoch, LL_WAIT(ll->op.kind, EP_KPHASE_SEND, ll->op.far), rc, to.peer);
}

/* All lanes, each to a rank of its own or LL_NOBODY: writes a word to its control page, ordered after everything the
 * lane has seen and done. */
GX_DEV void ll_tell(const struct ll *ll, uint32_t rank, uint64_t at, uint64_t value)
{
	uint32_t far = rank != LL_NOBODY && ll_far(ll, rank);

	if (rank != LL_NOBODY && !far)
		gx_st_release_u64(ll_word(ll, rank, at), value);
	if (!ll->op.far || gx_ballot((int)far) == 0)
		return;
	ll_push(ll,
		far_to(ll->op.far, far ? rank : FAR_NOBODY,
		       far_signal(ll->op.far, rank, ep_ll_far_at(ll->op.nranks, at), value)),
		1);
}

/* Puts bytes from a far peer's part of the send memory to its window. */
GX_DEV struct far_cmd ll_put(const struct ll *ll, uint32_t peer, uint64_t to, uint64_t from, uint32_t bytes)
{
	const struct ep_far *far = ll->op.far;
	uint64_t part = peer != LL_NOBODY ? ll_here(ll, peer) * far->send_stride : 0;

	return far_to(far, peer,
		      ep_cmd_put(peer, far->window_place + ll->buffer * far->window_bytes + to,
				 far->send_place + ll->buffer * far->send_bytes + part + from, bytes));
}

/*
 * A lane, after its warp's row for a far peer, the number-th, has been written: whether that completes a put of `join`
 * rows (R7, A7), which the lane is to push then. The last put of a peer may have fewer: the last finisher pushes those,
 * and ll_rest forgets that they were counted, if they were.
 */
GX_DEV uint32_t ll_joins(const struct ll *ll, uint32_t peer, uint32_t number, uint32_t join)
{
	uint32_t *joined = &ll->joined[peer * ep_ll_joins(&ll->a->shape) + number / join];

	if (join == 1)
		return 1;
	if (gx_dev_add_acqrel_u32(joined, 1) != join - 1)
		return 0;
	gx_st_relaxed_u32(joined, 0);
	return 1;
}

/* A lane of the last finisher's warp: of `rows` rows for a far peer, the first of those that no put carries yet. */
GX_DEV uint32_t ll_rest(const struct ll *ll, uint32_t peer, uint32_t rows, uint32_t join)
{
	if (rows % join != 0)
		gx_st_relaxed_u32(&ll->joined[peer * ep_ll_joins(&ll->a->shape) + rows / join], 0);
	return rows - rows % join;
}

/* All lanes: waits for another warp of this rank, and returns its word. 0: the operation has failed. Bounded: that warp
 * is running. */
GX_DEV uint32_t ll_wait_word(const struct ll *ll, const uint32_t *word)
{
	uint32_t came = 0, failed = 0;

	for (uint32_t spin = 0;; spin++) {
		if (gx_lane() == 0)
			came = gx_ld_acquire_u32(word);
		came = gx_shfl_u32(came, 0);
		if (came)
			break;
		if (gx_lane() == 0)
			failed = spin % 32 == 31 && gx_ld_relaxed_u32(ll->op.errors) != 0;
		if (gx_shfl_u32(failed, 0))
			return 0;
		gx_pause(spin);
	}
	gx_syncwarp();
	return came;
}

/* All lanes: the sum of the lanes below. */
GX_DEV uint32_t ll_sum_below(uint32_t n)
{
	uint32_t sum = n;

	GX_ROLL
	for (uint32_t d = 1; d < GX_WARP; d *= 2) {
		uint32_t lower = gx_shfl_u32(sum, gx_lane() >= d ? gx_lane() - d : gx_lane());

		sum += gx_lane() >= d ? lower : 0;
	}
	return sum - n;
}

/* ---- beginning and end ---- */

/* The least recently used free buffer; 2 when staged operations hold both. Not by parity of the epoch: two handles in a
 * legal order could then wait for each other. */
GX_DEV uint32_t ll_pick(const struct ep_ll_state *state)
{
	if (state->busy[0] != 0)
		return state->busy[1] != 0 ? 2 : 1;
	if (state->busy[1] != 0)
		return 0;
	return state->used[1] < state->used[0];
}

/* All threads. Engines spin from here to ll_ended. */
GX_DEV void ll_begun(const struct ll *ll)
{
	if (ll->op.far && gx_block() == 0 && gx_tid() == 0)
		gx_st_relaxed_u32(&ll->op.far->open->begun, ll->a->state->opens + 1);
}

/* One thread of the launch, whatever became of it. */
GX_DEV void ll_ended(const struct ll *ll, uint32_t opens)
{
	if (!ll->op.far)
		return;
	ll->a->state->opens = opens;
	gx_st_relaxed_u32(&ll->op.far->open->ended, opens);
}

/*
 * Whether far ranks need no ack of this operation. It is one launch, so this rank has read everything when its next
 * operation begins; and as no staged operation holds the other buffer, the next one uses that and signals without
 * waiting for this one. All ranks make the same operations, so a sender knows it too.
 */
GX_DEV uint32_t ll_implies(const struct ll *ll)
{
	return ll->op.far && ll->buffer < 2 && ll->direct && !ll_is(ll, EP_LL_MASK) &&
	       ll->a->state->busy[ll->buffer ^ 1] == 0;
}

/* All threads. 0: this launch must do nothing. The state is stable: the last block to leave advances it. */
GX_DEV uint32_t ll_open(struct ll *ll, const struct ep_ll_args *a, uint32_t kind, const struct ep_far *far,
			uint32_t lacks, uint8_t *shared)
{
	ll_begin(ll, a, kind, far, lacks);
	/* These loads and the first tickets are independent: all are issued before the first result is used. */
	ll->failed = gx_lane() == 0 ? gx_ld_relaxed_u64(ll->op.limit.failed) : 0;
	ll->ticket = gx_warp() == 0 && ll_is(ll, EP_LL_SEND) ? gx_op_take(&a->state->send_ticket) : 0;
	ll->token = kind == EP_KIND_COMBINE && gx_tid() == gx_threads() - GX_WARP && ll_is(ll, EP_LL_RECV)
			    ? gx_dev_add_relaxed_u32(&a->state->recv_ticket, 1)
			    : 0;
	ll->op.epoch = ll_is(ll, EP_LL_SEND) ? a->state->epoch + 1 : a->handle->epoch;
	ll->buffer = ll_is(ll, EP_LL_SEND) ? ll_pick(a->state) : a->handle->buffer;
	ll->before = ll->buffer < 2 ? a->state->used[ll->buffer] : 0;
	ll->freed = 0;
	ll->each = 0;
	ll->implied = far && ll->buffer < 2 && a->state->implied[ll->buffer] != 0;
	ll->implies = ll_implies(ll);
	ll_begun(ll);
	gx_bulk_open(&ll->bulk, shared, a->stage);
	ll->route.dst =
		(uint8_t **)(shared + (uint64_t)gx_warps() * a->stage + (uint64_t)gx_warp() * ep_ll_route_bytes(a));
	ll->route.out = ll->route.dst + a->shape.topk;
	ll->route.id = (int32_t *)(ll->route.out + a->shape.topk);
	ll->route.peer = ll->route.id + a->shape.topk;
	ll->route.slot = ll->route.peer + a->shape.topk;
	ll->route.pos = ll->route.slot + a->shape.topk;
	ll->route.back = (uint32_t *)(ll->route.pos + a->shape.topk);
	if (ll->buffer > 1) {
		/* Reported here only: every rank that follows the same order detects it by itself. */
		if (gx_tid() == 0)
			gx_op_report(&ll->op, EP_KERR_STAGED, a->shape.rank, EP_KPHASE_START);
		return 0;
	}
	if (ll_is(ll, EP_LL_MASK) && a->state->behind != 0)
		return 0;
	/* A receive half without a send half: a replayed graph that holds only the receive half. */
	if (!ll_is(ll, EP_LL_SEND) && a->handle->staged != a->number)
		return 0;
	return 1;
}

/* A failed group moves no more rows: its windows may hold half an operation. Evaluated by one lane for its warp, or by
 * one thread for its block: a peer may fail at any moment, and lanes must not diverge over it. */
GX_DEV uint32_t ll_dead(const struct ll *ll)
{
	if (ll->failed == 0 || ll_is(ll, EP_LL_MASK))
		return 0;
	ll_blame(ll->a, ll->op.epoch, LL_WAIT(ll->op.kind, EP_KPHASE_START, ll->op.far),
		 gx_blame_remote(ll->failed, EP_KPHASE_START));
	return 1;
}

/*
 * One warp of the launch, before it receives: adds up how long it waits for each source. One at a time, because in
 * ll_wait_far all lanes wait until the last has its word. A kernel's cost without it is one test of an argument.
 */
GX_DEV void ll_count_waits(const struct ll *ll, uint64_t *waited)
{
	uint32_t n = ll->op.nranks;

	if (gx_shfl_u32(gx_lane() == 0 && ll_dead(ll), 0))
		return;
	for (uint32_t i = 1; i < n; i++) {
		uint32_t source = (ll->op.rank + i) % n, waits = gx_lane() == 0 && !ll_off(ll, source);
		uint64_t from = gx_clock_ns();

		ll_wait_signal(ll, waits ? source : LL_NOBODY);
		if (waits)
			gx_dev_add_relaxed_u64(&waited[source], gx_clock_ns() - from);
		gx_syncwarp();
	}
}

GX_DEV void ll_clear(uint32_t *from, uint64_t n)
{
	for (uint64_t i = gx_tid(); i < n; i += gx_threads())
		from[i] = 0;
}

GX_DEV void ll_end_send(struct ll *ll)
{
	const struct ep_ll_args *a = ll->a;

	ll_clear(ll->rank_rows, a->shape.nranks);
	ll_clear(ll->expert_rows, a->shape.experts);
	if (ll->op.far)
		ll_clear(ll->back_rows, a->shape.nranks);
	if (ll->op.far && ll->each != 0)
		ll_clear(ll->early_rows, 2ull * a->shape.nranks + a->shape.experts);
	if (ll->op.far && ll_is(ll, EP_LL_MASK)) /* a rank that was masked meanwhile did not get all its rows */
		ll_clear(ll->joined, a->shape.nranks * ep_ll_joins(&a->shape));
	if (gx_tid() != 0)
		return;
	a->state->send_done = a->state->send_far = a->state->claimed = 0;
	a->state->counted = a->state->count_ticket = 0;
	a->state->epoch = ll->op.epoch;
	a->state->used[ll->buffer] = ll->op.epoch;
	a->state->implied[ll->buffer] = ll->implies;
	if (ll_is(ll, EP_LL_RECV))
		return;
	a->state->busy[ll->buffer] = 1;
	a->handle->epoch = ll->op.epoch;
	a->handle->buffer = ll->buffer;
	a->handle->staged = a->number;
}

GX_DEV void ll_end_recv(struct ll *ll)
{
	const struct ep_ll_args *a = ll->a;

	uint64_t at = ep_ll_ack_at(a->shape.nranks, ll->buffer, a->shape.rank);

	/* R4. For this rank itself, stream order is enough. */
	for (uint32_t r0 = gx_warp() * GX_WARP; r0 < a->shape.nranks; r0 += gx_threads()) {
		uint32_t r = r0 + gx_lane(), other = r < a->shape.nranks && r != a->shape.rank;

		if (r == a->shape.rank)
			gx_st_relaxed_u64(ll_own(ll, at), ll->op.epoch);
		other = other && !ll_off(ll, r) && !(ll_far(ll, r) && ll->implies);
		ll_tell(ll, other ? r : LL_NOBODY, at, ll->op.epoch);
	}
	ll_clear(ll->src_ticket, 2ull * a->shape.nranks);
	ll_clear(ll->src_ready, a->shape.nranks);
	ll_clear(ll->fill, a->shape.per_rank);
	if (gx_tid() != 0)
		return;
	a->state->self_ready = a->state->listed = a->state->listed_far = 0;
	if (!ll_is(ll, EP_LL_SEND)) {
		a->state->busy[ll->buffer] = 0;
		a->handle->staged = 0;
	}
}

/* Whether the last finisher of that part signals rank: direct rows need no signal. */
GX_DEV uint32_t ll_told(const struct ll *ll, uint32_t rank, uint32_t far)
{
	return rank < ll->op.nranks && !ll_off(ll, rank) && (rank != ll->op.rank || !ll->direct) &&
	       (!ll->op.far || ll_far(ll, rank) == far);
}

/* The last finisher's warp: signals the ranks of this node, after all rows for them (A1, R2). */
GX_DEV void ll_signal_near(const struct ll *ll)
{
	for (uint32_t r = gx_lane(); r < ll->op.nranks; r += GX_WARP)
		if (ll_told(ll, r, 0))
			gx_st_release_u64(ll_word(ll, r, ep_ll_signal_at(ll->op.rank)), ll->op.epoch);
}

/* The signal to a far rank or LL_NOBODY. It needs no fence: the rows' puts are in the same ring before it, each after
 * its own. */
GX_DEV struct far_cmd ll_signal_far(const struct ll *ll, uint32_t rank)
{
	uint64_t at = ep_ll_far_at(ll->op.nranks, ep_ll_signal_at(ll->op.rank));

	return far_to(ll->op.far, rank, far_signal(ll->op.far, rank, at, ll->op.epoch));
}

/* Last of all in the launch, by all threads of the last block, also after a failure. */
GX_DEV void ll_close(struct ll *ll)
{
	struct ep_ll_state *state = ll->a->state;
	uint32_t opens = state->opens + 1; /* in flight with what gx_op_tell loads */

	if (ll->op.far)
		gx_syncthreads(); /* what failed in this block has been noted */
	if (gx_warp() == 0)
		gx_op_tell(&ll->op);
	if (gx_tid() == 0) {
		state->left = state->send_ticket = state->near_ticket = state->recv_ticket = 0;
		state->broken = 0;
		ll_ended(ll, opens);
	}
	gx_op_end(ll->a->counted, &state->ended);
}

/* R1, A1. Of the items for far ranks, or of the others. */
GX_DEV uint32_t ll_finished(struct ll *ll, uint32_t far, uint32_t n, uint32_t items)
{
	return gx_op_finished(&ll->bulk, far ? &ll->a->state->send_far : &ll->a->state->send_done, n, items);
}

/*
 * How many warps of each block take items for far ranks: one in `part`, or all if there are few items. All at once
 * would share the memory's bandwidth, no put be complete until nearly all are, and the wire begin late.
 */
GX_DEV uint32_t ll_far_warps(const struct ll *ll, uint32_t items, uint32_t part)
{
	uint32_t some = gx_warps() / part;

	return ll_is(ll, EP_LL_MANY) && some != 0 && items > gx_blocks() * some ? some : gx_warps();
}

/*
 * The tickets of that part. Each has its own: a warp that ends the part for far ranks would else hold an item of the
 * other one meanwhile, and receivers wait for all of those (a dispatch of one token over loop took 6 us more).
 */
GX_DEV uint32_t *ll_tickets(const struct ll *ll, uint32_t far)
{
	return ll->op.far && !far ? &ll->a->state->near_ticket : &ll->a->state->send_ticket;
}

/* All lanes, when an item's stores are on their way; not earlier: it would keep the next one from an idle warp. */
GX_DEV void ll_next(struct ll *ll, uint32_t far)
{
	gx_syncwarp(); /* the next item overwrites this one's route */
	ll->ticket = gx_op_take(ll_tickets(ll, far));
}

#endif
