/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common to dispatch and combine: opening an operation, its waits, its addresses, its end. kernels/ll/args.h has the
 * layout.
 *
 * Orderings, each with its partner (S: sender, D: destination):
 *   R1 a row written -> send_done	pairs with A1, the same counter: the last finisher is ordered after all rows
 *   R2 signal at D, after A1		pairs with A2, D's wait for S
 *   R3 all of a block -> left		pairs with A3: the last block to leave is ordered after all reads
 *   R4 ack at S, after A3		pairs with A4, S's wait before it writes this buffer again
 *   R5 fill[] -> self_ready, base[] -> src_ready	pair with A5: between warps of this rank
 *   R6 a word that the net wrote was seen -> shown	pairs with A6: the same
 */
#ifndef EP_KERNELS_LL_H
#define EP_KERNELS_LL_H

#include "kernels/op/op.h"
#include "kernels/ll/args.h"

/* The routing of a token in the warp's shared memory, [topk] each. */
struct ll_route {
	int32_t *id;   /* global expert, or -1: dropped, bad, or on a masked rank */
	int32_t *peer; /* its rank */
	int32_t *slot; /* the token's slot on that rank, at the first k routed to the rank; else -1 */
	uint8_t **dst; /* destinations of the current part of the row */
	int32_t *pos;  /* the row's index among this rank's rows for the expert, at its first k; else -1 */
};

struct ll {
	struct gx_op op;
	const struct ep_ll_args *a;
	uint32_t buffer;
	uint32_t direct; /* own rows bypass the window: the operation is one launch, not two halves */
	uint64_t before; /* the epoch whose acks free the buffer; 0: never used */
	uint64_t failed; /* lane 0: the failed word when the launch began */
	uint32_t ticket; /* lane 0: the next row to send */
	uint32_t token;	 /* combine, lane 0 of the last warp: the next token to sum */
	struct ll_route route;
	struct gx_bulk bulk;
	/* counters after the state */
	/* send: rows per destination (combine: rows in the send memory of a far one), per expert */
	uint32_t *rank_rows, *expert_rows;
	uint32_t *src_ticket, *src_claim, *src_ready, *off;
	uint32_t *fill, *base; /* receive: rows per local expert; first row of (source, expert) */
};

GX_DEV uint32_t ll_is(const struct ll *ll, uint32_t flag)
{
	return (ll->a->flags & flag) != 0;
}

/* ---- addresses ---- */

GX_DEV uint32_t ll_far(const struct ll *ll, uint32_t rank)
{
	return ll->op.far && !ll->a->control[rank];
}

GX_DEV uint32_t ll_here(const struct ll *ll, uint32_t rank)
{
	return ll->op.far ? ll->op.far->seat[rank].here : rank;
}

GX_DEV uint32_t ll_there(const struct ll *ll, uint32_t rank)
{
	return ll->op.far ? ll->op.far->seat[rank].there : ll->op.rank;
}

/* Dispatch: where this rank writes rows for peer: peer's window, or this rank's send memory if peer is far. */
GX_DEV uint8_t *ll_out(const struct ll *ll, uint32_t peer)
{
	const struct ep_ll_args *a = ll->a;
	uint64_t area = ep_ll_area(&a->shape, a->row_pitch);

	if (ll_far(ll, peer))
		return a->far.send + ll->buffer * a->far.send_bytes + ll_here(ll, peer) * a->far.send_stride;
	return a->window[peer] + ll->buffer * a->buffer_bytes + ll_there(ll, peer) * area;
}

/* Dispatch: where rows from source arrive. */
GX_DEV uint8_t *ll_in(const struct ll *ll, uint32_t source)
{
	const struct ep_ll_args *a = ll->a;
	uint64_t at = ll_here(ll, source) * ep_ll_area(&a->shape, a->row_pitch);

	if (ll_far(ll, source))
		return a->far.window + ll->buffer * a->far.window_bytes + at;
	return a->window[a->shape.rank] + ll->buffer * a->buffer_bytes + at;
}

/* Offset of a row in an area. */
GX_DEV uint64_t ll_row_at(const struct ll *ll, uint32_t slot)
{
	return ep_ll_source_head(&ll->a->shape) + (uint64_t)slot * ll->a->row_pitch;
}

/* Combine: offset of a row in the home rank's buffer; area: the writer's there. */
GX_DEV uint64_t ll_slot_at(const struct ll *ll, uint32_t area, uint32_t slot)
{
	const struct ep_ll_args *a = ll->a;

	return (a->shape.masked ? (uint64_t)area * a->shape.tmax * a->shape.fan + slot : slot) * a->row_pitch;
}

GX_DEV uint64_t *ll_word(const struct ll *ll, uint32_t rank, uint64_t at)
{
	return (uint64_t *)(ll->a->control[rank] + at);
}

/* This rank's own: without the table, whose load takes most of a microsecond on a GPU. */
GX_DEV uint64_t *ll_own(const struct ll *ll, uint64_t at)
{
	return (uint64_t *)(ll->a->mine + at);
}

/* Where words that rank writes for this rank arrive. */
GX_DEV uint64_t *ll_from(const struct ll *ll, uint32_t rank, uint64_t at)
{
	return (uint64_t *)((ll_far(ll, rank) ? ll->a->far.control : ll->a->mine) + at);
}

GX_DEV int64_t ll_topk(const struct ep_ll_args *a, uint32_t token, uint32_t k)
{
	uint64_t i = (uint64_t)token * a->shape.topk + k;

	if (a->flags & EP_LL_IDX32)
		return ((const int32_t *)a->topk_idx)[i];
	return ((const int64_t *)a->topk_idx)[i];
}

/* ---- waits ---- */

/* Any warp that masks a rank writes off[], so it is never cached. */
GX_DEV uint32_t ll_off(const struct ll *ll, uint32_t rank)
{
	return ll_is(ll, EP_LL_MASK) && gx_ld_relaxed_u32(&ll->off[rank]) != 0;
}

GX_DEV void ll_raise(const struct ll *ll, uint32_t flag)
{
	gx_st_relaxed_u32(&ll->a->async[flag], 1);
}

/*
 * One thread. Waits for a word that the net writes: the holder of the lock polls it once and publishes what it saw. It
 * does not hold the lock until the value arrives: the lock is shared, and what others wait for may have to come first.
 */
GX_SLOW uint32_t ll_wait_far(const struct ep_ll_args *a, uint64_t at, uint64_t value, uint32_t rank, uint64_t deadline,
			     uint32_t masked)
{
	const uint64_t *word = (const uint64_t *)(a->far.control + at);
	uint32_t *lock = &a->state->looking[rank % EP_LL_LOOKERS], result = GX_ARRIVED;
	uint64_t *shown = (uint64_t *)(a->mine + at), failed = ep_ll_failed_at(a->shape.nranks), next = 0;
	struct gx_limit limit = { deadline, a->abort, NULL, NULL, NULL };

	if (masked) {
		limit.gone = &a->gone[rank];
	} else { /* with masks, a failed rank is masked when it is waited for */
		limit.failed = (const uint64_t *)(a->mine + failed);
		limit.afar = (const uint64_t *)(a->far.control + failed);
	}
	for (uint32_t spin = 0; result == GX_ARRIVED; spin++) {
		if (gx_ld_acquire_u64(shown) >= value) /* A6 */
			return GX_ARRIVED;
		if (spin % 4 == 0 && gx_dev_cas_acquire_u32(lock, 0, 1) == 0) {
			uint64_t now = gx_ld_acquire_u64(word);

			if (now >= value)
				gx_st_release_u64(shown, now); /* R6 */
			gx_dev_st_release_u32(lock, 0);
			if (now >= value)
				return GX_ARRIVED;
		}
		gx_pause(spin);
		result = (uint32_t)gx_limit_reached(&limit, spin, &next);
	}
	return result;
}

/*
 * One thread. Another rank that has not signalled the operation either, or rank if there is none. A far rank is
 * preferred: behind a cut link all ranks are silent, and a near one may be silent because it waits for them. off NULL:
 * includes masked ranks.
 */
GX_SLOW uint32_t ll_also_silent(const struct ep_ll_args *a, const struct ep_far *far, const uint32_t *off,
				uint64_t epoch, uint32_t rank)
{
	uint32_t found = rank;

	for (uint32_t r = 0; r < a->shape.nranks; r++) {
		uint32_t afar = far && !a->control[r];
		const uint8_t *page = afar ? far->control : a->mine;

		if (r == rank || r == a->shape.rank || (off && gx_ld_relaxed_u32(&off[r]) != 0) ||
		    gx_ld_relaxed_u64((const uint64_t *)(page + ep_ll_signal_at(r))) >= epoch)
			continue;
		if (afar)
			return r;
		found = found == rank ? r : found;
	}
	return found;
}

/*
 * With masks, at the deadline: whether to extend it by half a timeout. A dying rank may have signalled only some peers.
 * A rank that missed its signal waits until its deadline, and all others then wait for that rank too: it misses one
 * rank, they miss two. So a rank that misses several extends its deadline once, and by then the delayed rank signals. A
 * cut link silences several ranks at once, all of them far, and then every rank misses several: so the wait for a near
 * rank is extended once more while far ranks are silent, masked or not.
 */
GX_DEV uint32_t ll_again(const struct ll *ll, uint32_t rank, uint32_t result, uint32_t phase, uint32_t again)
{
	if (!ll_is(ll, EP_LL_MASK) || result != GX_TIMED_OUT || phase != EP_KPHASE_RECV || ll->op.kind == EP_KIND_MASK)
		return 0;
	if (again == 0 && ll_also_silent(ll->a, ll->op.far, ll->off, ll->op.epoch, rank) != rank)
		return 1;
	return again < 2 && !ll_far(ll, rank) &&
	       ll_far(ll, ll_also_silent(ll->a, ll->op.far, NULL, ll->op.epoch, rank));
}

/* One thread. 0: the rank did not signal; it is masked now (with masks), or the operation has failed (without). */
GX_DEV uint32_t ll_wait(const struct ll *ll, uint64_t at, uint64_t value, uint32_t rank, uint32_t phase)
{
	struct gx_limit limit = ll->op.limit;
	uint32_t result, other, masked = ll_is(ll, EP_LL_MASK);

	if (masked) {
		limit.failed = limit.afar = NULL;
		limit.gone = &ll->a->gone[rank];
	}
	for (uint32_t again = 0;; again++) {
		result = ll_far(ll, rank) ? ll_wait_far(ll->a, at, value, rank, limit.deadline, masked)
					  : (uint32_t)gx_wait(ll_own(ll, at), value, &limit);
		if (result == GX_ARRIVED)
			return 1;
		if (!ll_again(ll, rank, result, phase, again))
			break;
		limit.deadline += ll->a->timeout_ns / 2;
	}
	if (masked && result != GX_ABORTED) {
		gx_st_relaxed_u32(&ll->off[rank], 1);
		ll_raise(ll, EP_ASYNC_TIMEOUT);
		return 0;
	}
	other = result == GX_TIMED_OUT ? ll_also_silent(ll->a, ll->op.far, ll->off, ll->op.epoch, rank) : rank;
	gx_op_fail_wait(&ll->op, result, rank, other, phase);
	return 0;
}

/* One thread, A4: peer has read what this rank last sent it in this buffer. */
GX_DEV uint32_t ll_wait_free(const struct ll *ll, uint32_t peer)
{
	return ll_wait(ll, ep_ll_ack_at(ll->op.nranks, ll->buffer, peer), ll->before, peer, EP_KPHASE_SEND);
}

/* One thread, A2. With masks, a source that is ahead may have continued without this rank, and its rows belong to a
 * later operation. Its jump word, sent before over the same path, tells. */
GX_DEV uint32_t ll_wait_signal(const struct ll *ll, uint32_t source)
{
	uint64_t at = ep_ll_signal_at(source);

	if (!ll_wait(ll, at, ll->op.epoch, source, EP_KPHASE_RECV))
		return 0;
	if (!ll_is(ll, EP_LL_MASK) || gx_ld_relaxed_u64(ll_own(ll, at)) == ll->op.epoch ||
	    gx_ld_acquire_u64(ll_from(ll, source, ep_ll_jump_at(ll->op.nranks, source) + EP_LL_CLEAN_NUMBER)) <=
		    ll->a->state->cleans)
		return 1;
	gx_op_report(&ll->op, EP_KERR_BEHIND, ll->op.rank, EP_KPHASE_RECV);
	return 0;
}

/* ---- to other ranks ---- */

/* One thread. Writes a word to a rank's control page, ordered after everything this thread has seen and done. */
GX_DEV void ll_tell(const struct ll *ll, uint32_t rank, uint64_t at, uint64_t value)
{
	if (!ll_far(ll, rank)) {
		gx_st_release_u64(ll_word(ll, rank, at), value);
		return;
	}
	gx_fence_sys();
	if (far_signal(ll->op.far, ll->op.rank, rank, at, value, &ll->op.limit) != 0)
		gx_op_fail(&ll->op, EP_KERR_RING, rank, EP_KPHASE_SEND);
}

/* One thread, after a gx_fence_sys: puts bytes from peer's part of the send memory to its window. */
GX_DEV void ll_put(const struct ll *ll, uint32_t peer, uint64_t to, uint64_t from, uint32_t bytes)
{
	const struct ep_far *far = ll->op.far;
	struct ep_cmd put =
		ep_cmd_put(peer, far->window_place + ll->buffer * far->window_bytes + to,
			   far->send_place + ll->buffer * far->send_bytes + ll_here(ll, peer) * far->send_stride + from,
			   bytes);

	if (far_put(far, ll->op.rank, peer, put, &ll->op.limit) != 0)
		gx_op_fail(&ll->op, EP_KERR_RING, peer, EP_KPHASE_SEND);
}

/* One thread: waits for another warp of this rank. Bounded: that warp is running, or the operation has failed. */
GX_DEV uint32_t ll_wait_word(const struct ll *ll, const uint32_t *word)
{
	for (uint32_t spin = 0; gx_ld_acquire_u32(word) == 0; spin++) {
		if (spin % 32 == 31 && gx_ld_relaxed_u32(ll->op.errors) != 0)
			return 0;
		gx_pause(spin);
	}
	return 1;
}

/* ---- beginning and end ---- */

GX_DEV void ll_arrays(struct ll *ll)
{
	const struct ep_ll_shape *s = &ll->a->shape;

	ll->rank_rows = (uint32_t *)(ll->a->state + 1);
	ll->src_ticket = ll->rank_rows + s->nranks;
	ll->src_claim = ll->src_ticket + s->nranks;
	ll->src_ready = ll->src_claim + s->nranks;
	ll->expert_rows = ll->src_ready + s->nranks;
	ll->fill = ll->expert_rows + s->experts;
	ll->base = ll->fill + s->per_rank;
	ll->off = ll->base + (uint64_t)s->nranks * s->per_rank;
}

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

GX_DEV void ll_begin(struct ll *ll, const struct ep_ll_args *a, uint32_t kind, const struct ep_far *far)
{
	ll->a = a;
	ll_arrays(ll);
	ll->direct = (a->flags & (EP_LL_SEND | EP_LL_RECV)) == (EP_LL_SEND | EP_LL_RECV);
	ll->op.rank = a->shape.rank;
	ll->op.nranks = a->shape.nranks;
	ll->op.kind = kind;
	ll->op.report = a->report;
	ll->op.errors = &a->state->errors;
	ll->op.control = a->control;
	ll->op.far = far;
	ll->op.failed_at = ep_ll_failed_at(a->shape.nranks);
	ll->op.limit.deadline = gx_clock_ns() + a->timeout_ns;
	ll->op.limit.abort = a->abort;
	ll->op.limit.gone = NULL;
	ll->op.limit.failed = ll_own(ll, ll->op.failed_at);
	ll->op.limit.afar = ll->op.far ? (const uint64_t *)(a->far.control + ll->op.failed_at) : NULL;
	ll->op.epoch = a->state->epoch;
}

/* All threads. Engines spin from here to ll_ended. */
GX_DEV void ll_begun(const struct ll *ll)
{
	if (ll->op.far && gx_block() == 0 && gx_tid() == 0)
		gx_st_relaxed_u32(&ll->op.far->open->begun, ll->a->state->opens + 1);
}

/* One thread of the launch, whatever became of it. */
GX_DEV void ll_ended(const struct ll *ll)
{
	if (ll->op.far)
		gx_st_relaxed_u32(&ll->op.far->open->ended, ++ll->a->state->opens);
}

/* All threads. 0: this launch must do nothing. The state is stable: the last block to leave advances it. */
GX_DEV uint32_t ll_open(struct ll *ll, const struct ep_ll_args *a, uint32_t kind, const struct ep_far *far,
			uint8_t *shared)
{
	ll_begin(ll, a, kind, far);
	/* These loads and the first tickets are independent: all are issued before the first result is used. */
	ll->failed = gx_lane() == 0 ? gx_ld_relaxed_u64(ll->op.limit.failed) : 0;
	ll->ticket = gx_warp() == 0 && ll_is(ll, EP_LL_SEND) ? gx_op_take(&a->state->send_ticket) : 0;
	ll->token = kind == EP_KIND_COMBINE && gx_tid() == gx_threads() - GX_WARP && ll_is(ll, EP_LL_RECV)
			    ? gx_dev_add_relaxed_u32(&a->state->recv_ticket, 1)
			    : 0;
	ll->op.epoch = ll_is(ll, EP_LL_SEND) ? a->state->epoch + 1 : a->handle->epoch;
	ll->buffer = ll_is(ll, EP_LL_SEND) ? ll_pick(a->state) : a->handle->buffer;
	ll->before = ll->buffer < 2 ? a->state->used[ll->buffer] : 0;
	ll_begun(ll);
	gx_bulk_open(&ll->bulk, shared, a->stage);
	ll->route.dst =
		(uint8_t **)(shared + (uint64_t)gx_warps() * a->stage + (uint64_t)gx_warp() * ep_ll_route_bytes(a));
	ll->route.id = (int32_t *)(ll->route.dst + a->shape.topk);
	ll->route.peer = ll->route.id + a->shape.topk;
	ll->route.slot = ll->route.peer + a->shape.topk;
	ll->route.pos = ll->route.slot + a->shape.topk;
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
	gx_op_fail_remote(&ll->op, ll->failed, EP_KPHASE_START);
	return 1;
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
	if (gx_tid() != 0)
		return;
	a->state->send_done = 0;
	a->state->epoch = ll->op.epoch;
	a->state->used[ll->buffer] = ll->op.epoch;
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
	for (uint32_t r = gx_tid(); r < a->shape.nranks; r += gx_threads())
		if (r == a->shape.rank)
			gx_st_relaxed_u64(ll_own(ll, at), ll->op.epoch);
		else if (!ll_off(ll, r))
			ll_tell(ll, r, at, ll->op.epoch);
	ll_clear(ll->src_ticket, 3ull * a->shape.nranks);
	ll_clear(ll->fill, a->shape.per_rank);
	if (gx_tid() != 0)
		return;
	a->state->self_ready = a->state->listed = 0;
	if (!ll_is(ll, EP_LL_SEND)) {
		a->state->busy[ll->buffer] = 0;
		a->handle->staged = 0;
	}
}

/* The last finisher's warp: signals every rank, after all rows of this operation (A1, R2). */
GX_DEV void ll_signal(struct ll *ll)
{
	for (uint32_t r = gx_lane(); r < ll->op.nranks; r += GX_WARP)
		if (!ll_off(ll, r) && (r != ll->op.rank || !ll->direct)) /* direct rows need no signal */
			ll_tell(ll, r, ep_ll_signal_at(ll->op.rank), ll->op.epoch);
}

/* Last of all in the launch, by one thread of the last block, also after a failure. */
GX_DEV void ll_close(struct ll *ll)
{
	struct ep_ll_state *state = ll->a->state;

	if (gx_tid() == 0) {
		state->left = state->send_ticket = state->recv_ticket = 0;
		ll_ended(ll);
	}
	gx_op_end(ll->a->counted, &state->ended);
}

/* Whether this warp finished the last item (R1, A1). All lanes; the warp's rows are drained first. The next ticket is
 * taken during the drain, not earlier: it would keep a row from an idle warp. */
GX_DEV uint32_t ll_finished(struct ll *ll, uint32_t items)
{
	uint32_t done = 0;

	ll->ticket = gx_op_take(&ll->a->state->send_ticket);
	gx_bulk_drain(&ll->bulk);
	if (gx_lane() == 0)
		done = gx_dev_add_acqrel_u32(&ll->a->state->send_done, 1) == items - 1;
	done = gx_shfl_u32(done, 0);
	gx_syncwarp();
	return done;
}

#endif
