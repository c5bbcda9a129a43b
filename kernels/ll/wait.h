/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An LL operation as a warp sees it: its addresses, and its waits for other ranks. kernels/ll/ll.h has its orderings.
 */
#ifndef EP_KERNELS_LL_WAIT_H
#define EP_KERNELS_LL_WAIT_H

#include "kernels/op/op.h"
#include "kernels/ll/args.h"
#include "kernels/ll/look.h"

/* The routing of a token in the warp's shared memory, [topk] each. */
struct ll_route {
	int32_t *id;	/* global expert, or -1: dropped, bad, or on a masked rank */
	int32_t *peer;	/* its rank */
	int32_t *slot;	/* the token's slot on that rank, at the first k routed to the rank; else -1 */
	uint8_t **dst;	/* destinations of the current part of the row */
	uint8_t **out;	/* where this rank writes what it sends to the rank: ll_out, loaded early */
	int32_t *pos;	/* the row's index among this rank's rows for the expert, at its first k; else -1 */
	uint32_t *back; /* ... its number among the rows that return from a far rank */
};

struct ll {
	struct gx_op op;
	const struct ep_ll_args *a;
	uint32_t lacks; /* flags that no launch of this kernel has: a constant, so that it has none of their code */
	uint32_t buffer;
	uint32_t direct;  /* own rows bypass the window: the operation is one launch, not two halves */
	uint64_t before;  /* the epoch whose acks free the buffer; 0: never used */
	uint32_t implied; /* ... or, of far ranks, the signal after it */
	uint32_t implies; /* far ranks need no ack of this operation */
	uint64_t freed;	  /* the first 64 ranks whose buffer this warp has seen free, as bits */
	uint64_t failed;  /* lane 0: the failed word when the launch began */
	uint32_t each;	  /* dispatch: rows to a step, or 0: far ranks get everything at once */
	uint32_t ticket;  /* lane 0: the next row to send */
	uint32_t token;	  /* combine, lane 0 of the last warp: the next token to sum */
	struct ll_route route;
	struct gx_bulk bulk;
	/* counters after the state */
	uint32_t *rank_rows, *expert_rows; /* send: rows per destination, per expert */
	uint32_t *back_rows;		   /* dispatch: rows that return from each far rank */
	uint32_t *early_rows, *early_back; /* dispatch: what the last two and expert_rows will be, of far ranks */
	uint32_t *early_experts;
	uint32_t *joined; /* [nranks][ep_ll_joins] rows of a put that have been written */
	uint32_t *src_ticket, *src_claim, *src_ready, *off;
	uint32_t *src_rows;    /* of far sources: their total and rows to a step, read once across PCIe */
	uint32_t *fill, *base; /* receive: rows per local expert; first row of (source, expert) */
};

GX_DEV uint32_t ll_is(const struct ll *ll, uint32_t flag)
{
	return (ll->a->flags & ~ll->lacks & flag) != 0;
}

/* ---- addresses ---- */

/* Of the first ranks without the table: after an acquire its load takes most of a microsecond on a GPU. */
GX_DEV uint32_t ll_is_far(const struct ep_ll_args *a, uint32_t rank)
{
	if (a->shape.nranks <= EP_LL_BITS)
		return (a->near_ranks >> rank & 1) == 0;
	return !a->control[rank];
}

GX_DEV uint32_t ll_far(const struct ll *ll, uint32_t rank)
{
	return ll->op.far && ll_is_far(ll->a, rank);
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

/* The rows that other ranks get back: those of far ranks are listed from the end of the room. */
GX_DEV struct ep_ll_entry *ll_entry(const struct ep_ll_args *a, uint32_t far, uint64_t i)
{
	return &a->list[far ? ep_ll_list_room(&a->shape) - 1 - i : i];
}

GX_DEV uint64_t *ll_word(const struct ll *ll, uint32_t rank, uint64_t at)
{
	return (uint64_t *)(ll->a->control[rank] + at);
}

/* Whether many rows between far ranks come by steps, in a dispatch behind their counts. A property of the group, so
 * that all ranks know. */
GX_DEV uint32_t ll_has_steps(const struct ll *ll)
{
	return ll_is(ll, EP_LL_MANY) && !ll->a->shape.masked && ll->op.nranks <= EP_LL_STEPS_RANKS;
}

/* Whether a dispatch notes in which order it sent its tokens, and a combine sums them in that order. */
GX_DEV uint32_t ll_has_order(const struct ll *ll)
{
	return ll_has_steps(ll) && ll->a->tokens > EP_LL_FEW;
}

/* Combine: how many of the rows that return from one rank to another, far one share a put. Both know. */
GX_DEV uint32_t ll_join_back(const struct ll *ll, uint32_t rows)
{
	uint32_t join = (rows + EP_LL_STEPS_EACH - 1) / EP_LL_STEPS_EACH;

	if (rows < 2 * EP_LL_JOIN)
		return ll->a->far.window_pinned ? 1 : EP_LL_JOIN;
	return join < EP_LL_JOIN ? EP_LL_JOIN : join > EP_LL_JOIN_MAX ? EP_LL_JOIN_MAX : join;
}

/* The step that follows the put of that row; EP_LL_STEPS_EACH: only the signal does. */
GX_DEV uint32_t ll_step_of(const struct ll *ll, uint32_t rows, uint32_t number)
{
	uint32_t join = ll_join_back(ll, rows), step = number / join;

	if (!ll_has_steps(ll) || rows < 2 * EP_LL_JOIN || step >= rows / join)
		return EP_LL_STEPS_EACH;
	return step < EP_LL_STEPS_EACH ? step : EP_LL_STEPS_EACH;
}

/* This rank's own: without the table, whose load takes most of a microsecond on a GPU. */
GX_DEV uint64_t *ll_own(const struct ll *ll, uint64_t at)
{
	return (uint64_t *)(ll->a->mine + at);
}

/* Where words that rank writes for this rank arrive. */
GX_DEV uint64_t *ll_from(const struct ll *ll, uint32_t rank, uint64_t at)
{
	if (ll_far(ll, rank))
		return (uint64_t *)(ll->a->far.control + ep_ll_far_at(ll->op.nranks, at));
	return ll_own(ll, at);
}

GX_DEV int64_t ll_topk(const struct ep_ll_args *a, uint32_t token, uint32_t k)
{
	uint64_t i = (uint64_t)token * a->shape.topk + k;

	if (a->flags & EP_LL_IDX32)
		return ((const int32_t *)a->topk_idx)[i];
	return ((const int64_t *)a->topk_idx)[i];
}

/* ---- the operation ---- */

GX_DEV void ll_arrays(struct ll *ll)
{
	const struct ep_ll_shape *s = &ll->a->shape;

	ll->src_ready = (uint32_t *)(ll->a->state + 1);
	ll->rank_rows = ll->src_ready + ep_ll_ready_words(s->nranks);
	ll->src_ticket = ll->rank_rows + s->nranks;
	ll->src_claim = ll->src_ticket + s->nranks;
	ll->expert_rows = ll->src_claim + s->nranks;
	ll->fill = ll->expert_rows + s->experts;
	ll->base = ll->fill + s->per_rank;
	ll->off = ll->base + (uint64_t)s->nranks * s->per_rank;
	ll->src_rows = ll->off + s->nranks;
	ll->back_rows = ll->src_rows + s->nranks;
	ll->early_rows = ll->back_rows + s->nranks;
	ll->early_back = ll->early_rows + s->nranks;
	ll->early_experts = ll->early_back + s->nranks;
	ll->joined = ll->early_experts + s->experts;
}

GX_DEV void ll_begin(struct ll *ll, const struct ep_ll_args *a, uint32_t kind, const struct ep_far *far, uint32_t lacks)
{
	ll->a = a;
	ll->lacks = lacks;
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
	ll->op.failed_afar = ep_ll_far_at(a->shape.nranks, ll->op.failed_at);
	ll->op.limit.deadline = gx_clock_ns() + a->timeout_ns;
	ll->op.limit.abort = a->abort;
	ll->op.limit.gone = NULL;
	/* With masks the failure of another rank does not end this launch: it is masked when it is waited for. */
	ll->op.broken = ll_is(ll, EP_LL_MASK) ? &a->state->broken : NULL;
	ll->op.limit.failed = ll->op.broken ? ll->op.broken : ll_own(ll, ll->op.failed_at);
	ll->op.limit.afar = far ? (const uint64_t *)(a->far.control + ll->op.failed_afar) : NULL;
	ll->op.epoch = a->state->epoch;
}

/* ---- waits ---- */

/* The signal of a rank as a wait saw it. */
GX_DEV uint64_t ll_signalled(const struct ll *ll, uint32_t rank)
{
	uint64_t at = ep_ll_signal_at(rank);

	return gx_ld_relaxed_u64(ll_far(ll, rank) && !ll->a->far.control_pinned ? ll_from(ll, rank, at)
										: ll_own(ll, at));
}

/* Any warp that masks a rank writes off[], so it is never cached. */
GX_DEV uint32_t ll_off(const struct ll *ll, uint32_t rank)
{
	return ll_is(ll, EP_LL_MASK) && gx_ld_relaxed_u32(&ll->off[rank]) != 0;
}

GX_DEV void ll_raise(const struct ll *ll, uint32_t flag)
{
	gx_st_relaxed_u32(&ll->a->async[flag], 1);
}

/* The rank of a wait whose lane has none to wait for. */
#define LL_NOBODY FAR_NOBODY

#define LL_BY_SIGNAL 0x100u /* beside GX_ARRIVED: the signal has come, not only the word that tells of counts */

/*
 * All lanes, each for a word of a rank of its own, near or far; for the word that tells of counts or for the signal,
 * which is looked for more often: counts come long before they are needed, and signals instead of them do not.
 * Who looks does so for all, also for what others wait for, until its own words have come.
 */
GX_SLOW uint32_t ll_wait_far(const struct ep_ll_args *a, uint64_t at, uint64_t value, uint32_t rank, uint64_t deadline,
			     uint32_t masked)
{
	const uint64_t *shown = (const uint64_t *)(a->mine + at), *signal = NULL;
	uint64_t failed = ep_ll_failed_at(a->shape.nranks), next = 0, mask;
	uint32_t waits = rank != LL_NOBODY, far = waits && ll_is_far(a, rank), result = GX_ARRIVED;
	uint32_t words = ep_ll_words_of(a->shape.nranks, at), counts = words == EP_LL_COUNTED, mine = rank;
	struct ll_looker looker = { LL_NO_WORDS, 0 };
	struct gx_limit limit = { deadline, a->abort, NULL, NULL, NULL };

	if (masked) { /* a failed rank is masked when it is waited for */
		limit.gone = waits ? &a->gone[rank] : NULL;
		limit.afar = &a->state->broken;
	} else {
		limit.failed = (const uint64_t *)(a->mine + failed);
		limit.afar = (const uint64_t *)(a->far.control + ep_ll_far_at(a->shape.nranks, failed));
	}
	if (counts) {
		signal = (const uint64_t *)(a->mine + ep_ll_signal_at(rank));
		words = EP_LL_SIGNALS;
	}
	if (words == EP_LL_STEPS)
		mine = (uint32_t)((at - ep_ll_step_at(a->shape.nranks, 0, 0)) / sizeof(uint64_t));
	if (far && !a->far.control_pinned) { /* as fast to poll as the own page */
		shown = (const uint64_t *)(a->far.control + ep_ll_far_at(a->shape.nranks, at));
		if (signal)
			signal = (const uint64_t *)(a->far.control +
						    ep_ll_far_at(a->shape.nranks, ep_ll_signal_at(rank)));
	}
	for (uint32_t spin = 0;; spin++) {
		uint32_t looks = far && looker.held == words, told = signal && spin % 4 == 1;
		uint32_t first, kind = LL_NO_WORDS;

		/* What this warp has seen itself takes no load. */
		if (waits && (looks || !told) &&
		    (looks ? looker.seen : gx_ld_acquire_u64(signal ? signal : shown)) >= value) { /* A6 */
			result = signal ? GX_ARRIVED | LL_BY_SIGNAL : GX_ARRIVED;
			waits = 0;
		}
		if (waits && told)
			waits = gx_ld_acquire_u64(shown) < value; /* A6 */
		if (gx_ballot((int)waits) == 0)
			break;
		mask = gx_ballot(waits && far && a->far.control_pinned);
		first = gx_popc((mask & -mask) - 1) % GX_WARP; /* its kind of words is looked for */
		if (mask != 0)
			kind = gx_shfl_u32(words, first);
		ll_look_on(a, &looker, kind, mine, spin);
		if (mask != 0 && spin % 8 == 6 && gx_shfl_u32(counts, first))
			ll_look(a, EP_LL_COUNTED);
		gx_pause(spin);
		if (waits)
			result = (uint32_t)gx_limit_reached(&limit, spin, &next);
		waits = waits && result == GX_ARRIVED;
	}
	if (looker.held != LL_NO_WORDS)
		ll_look_unlock(a, looker.held);
	gx_syncwarp();
	return result;
}

enum ll_who { LL_UNMASKED, LL_MASKED, LL_ANYONE };

/*
 * One thread. Another rank that has not signalled the operation either, but one since or a later one; or rank if there
 * is none. A far rank is preferred: behind a cut link all ranks are silent, and a near one may be silent because it
 * waits for them.
 */
GX_SLOW uint32_t ll_also_silent(const struct ll *ll, enum ll_who who, uint64_t since, uint32_t rank)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t found = rank;

	for (uint32_t r = 0; r < a->shape.nranks; r++) {
		uint32_t masked = gx_ld_relaxed_u32(&ll->off[r]) != 0;
		uint64_t last = gx_ld_relaxed_u64(ll_from(ll, r, ep_ll_signal_at(r)));

		if (r == rank || r == a->shape.rank || last >= ll->op.epoch || last < since ||
		    (who != LL_ANYONE && masked != (who == LL_MASKED)))
			continue;
		if (ll_far(ll, r))
			return r;
		found = found == rank ? r : found;
	}
	return found;
}

#define LL_LATELY 64u /* operations */
#define LL_EIGHTHS 8u /* of a timeout, by which a wait is extended at most */

/*
 * With masks, at the deadline: by how many eighths of a timeout it is extended in all, at most one timeout.
 *
 * A dying rank may have signalled only some peers. A rank that missed its signal waits until its deadline, and all
 * others then wait for that rank too: it misses one rank, they miss two. So a rank that misses several waits longer,
 * and meanwhile the delayed rank signals. Whoever has masked the dying rank before, by other evidence such as a NIC's
 * error or because it once was late for some ranks only, misses just the rank that is delayed by it: so a masked rank
 * counts too, an old one for less, since all ranks may have masked that one. A cut link silences several ranks at once,
 * all of them far, and then every rank misses several: so the wait for a near rank is extended once more while far
 * ranks are silent, masked or not.
 */
GX_DEV uint32_t ll_eighths(const struct ll *ll, uint32_t rank, uint32_t result, uint32_t phase)
{
	uint64_t lately = ll->op.epoch > LL_LATELY ? ll->op.epoch - LL_LATELY : 0;
	uint32_t n = 0;

	if (!ll_is(ll, EP_LL_MASK) || result != GX_TIMED_OUT || phase != EP_KPHASE_RECV || ll->op.kind == EP_KIND_MASK)
		return 0;
	n += ll_also_silent(ll, LL_UNMASKED, 0, rank) != rank ? 3 : 0;
	n += ll_also_silent(ll, LL_MASKED, lately, rank) != rank ? 1 : 0;
	n += ll_also_silent(ll, LL_MASKED, 0, rank) != rank ? 1 : 0;
	n += !ll_far(ll, rank) && ll_far(ll, ll_also_silent(ll, LL_ANYONE, 0, rank)) ? 3 : 0;
	return n;
}

/* Of a wait in an operation; far: the group has far ranks. */
#define LL_WAIT(kind, phase, far) ((kind) | (phase) << 8 | (uint32_t)((far) != NULL) << 16)

/*
 * One thread, after a wait that ended without the word, extended by so many eighths before. Returns by how many it is
 * to be extended in all, if that is more. Else the rank is masked (with masks), or the operation has failed. A launch
 * that has failed masks nobody: its waits end early, and say nothing of the rank. Makes its own struct ll: it is
 * called, because a dozen copies of all this would be a third of a kernel's code.
 */
GX_SLOW uint32_t ll_missed(const struct ep_ll_args *a, uint64_t epoch, uint32_t wait, uint32_t rank, uint32_t result,
			   uint32_t before)
{
	uint32_t phase = wait >> 8 & 0xff, eighths, other;
	struct ll ll;

	ll_begin(&ll, a, wait & 0xff, wait >> 16 ? &a->far : NULL, 0);
	ll.op.epoch = epoch;
	eighths = ll_eighths(&ll, rank, result, phase);
	if (eighths > before)
		return eighths;
	if (ll_is(&ll, EP_LL_MASK) && result != GX_ABORTED && gx_ld_relaxed_u64(&a->state->broken) == 0) {
		gx_st_relaxed_u32(&ll.off[rank], 1);
		ll_raise(&ll, EP_ASYNC_TIMEOUT);
		return before;
	}
	other = result == GX_TIMED_OUT ? ll_also_silent(&ll, LL_UNMASKED, 0, rank) : rank;
	gx_op_fail_wait(&ll.op, result, rank, other, phase);
	return before;
}

/* One thread: the operation fails. Makes its own struct ll and is called for the same reason. wait: of LL_WAIT. */
GX_SLOW void ll_blame(const struct ep_ll_args *a, uint64_t epoch, uint32_t wait, struct gx_blame blame)
{
	struct ll ll;

	ll_begin(&ll, a, wait & 0xff, wait >> 16 ? &a->far : NULL, 0);
	ll.op.epoch = epoch;
	gx_op_blame(&ll.op, blame);
}

GX_SLOW void ll_blame_push(const struct ep_ll_args *a, uint64_t epoch, uint32_t wait, uint32_t result, uint32_t peer)
{
	struct ll ll;

	ll_begin(&ll, a, wait & 0xff, wait >> 16 ? &a->far : NULL, 0);
	ll.op.epoch = epoch;
	gx_op_fail_push(&ll.op, result, peer);
}

GX_DEV void ll_fail(const struct ll *ll, uint32_t code, uint32_t rank, uint32_t phase)
{
	ll_blame(ll->a, ll->op.epoch, LL_WAIT(ll->op.kind, phase, ll->op.far),
		 (struct gx_blame){ code, phase, rank, rank });
}

/* All lanes, each for a word of its own, or NULL. */
GX_SLOW uint32_t ll_wait_near(const struct ep_ll_args *a, const uint64_t *word, uint64_t value, uint32_t rank,
			      uint64_t deadline)
{
	struct gx_limit limit = { deadline, a->abort, NULL, NULL, NULL };

	if (a->flags & EP_LL_MASK) { /* of this launch, and as rarely as gone */
		limit.afar = &a->state->broken;
		limit.gone = word ? &a->gone[rank] : NULL;
	} else {
		limit.failed = (const uint64_t *)(a->mine + ep_ll_failed_at(a->shape.nranks));
	}
	return (uint32_t)gx_wait(word, value, &limit);
}

#define LL_SIGNALLED 2u

/*
 * All lanes, each for a word of its own. rank LL_NOBODY: nothing is waited for, and the answer is 1; LL_SIGNALLED too,
 * if it was for counts and all rows are here. 0: the rank did not signal; it is masked now (with masks), or the
 * operation has failed (without).
 */
GX_DEV uint32_t ll_wait(const struct ll *ll, uint64_t at, uint64_t value, uint32_t rank, uint32_t phase)
{
	uint64_t deadline = ll->op.limit.deadline;
	uint32_t ok = 1, eighths = 0;

	while (gx_ballot(rank != LL_NOBODY) != 0) {
		const uint64_t *word = rank != LL_NOBODY ? ll_own(ll, at) : NULL;
		uint32_t result, before = eighths;

		if (ll->op.far)
			result = ll_wait_far(ll->a, at, value, rank, deadline, ll_is(ll, EP_LL_MASK));
		else
			result = ll_wait_near(ll->a, word, value, rank, deadline);
		if (result % LL_BY_SIGNAL == GX_ARRIVED) {
			rank = LL_NOBODY;
			ok |= result & LL_BY_SIGNAL ? LL_SIGNALLED : 0;
			continue;
		}
		eighths = ll_missed(ll->a, ll->op.epoch, LL_WAIT(ll->op.kind, phase, ll->op.far), rank, result, before);
		deadline += ll->a->timeout_ns / 8 * (eighths - before);
		if (eighths == before) {
			rank = LL_NOBODY;
			ok = 0;
		}
	}
	return ok;
}

/* All lanes, each for a word of its own, of groups with far ranks: whether all have come, as the last wait that looked
 * for them or the net has shown. */
GX_DEV uint32_t ll_shown(const struct ll *ll, uint64_t at, uint64_t value, uint32_t far, uint32_t waits)
{
	const uint8_t *word = ll->a->mine + at;

	if (far && !ll->a->far.control_pinned)
		word = ll->a->far.control + ep_ll_far_at(ll->op.nranks, at);
	waits = waits && gx_ld_acquire_u64((const uint64_t *)word) < value; /* A6 */
	return gx_ballot((int)waits) == 0;
}

/* As ll_wait, A4: peer has read what this rank last sent it in this buffer. */
GX_DEV uint32_t ll_wait_free(const struct ll *ll, uint32_t peer)
{
	uint64_t at = 0, value = ll->before;
	uint32_t far = 0;

	if (value == 0)
		peer = LL_NOBODY;
	if (peer != LL_NOBODY)
		far = ll_far(ll, peer);
	if (far && ll->implied) {
		at = ep_ll_signal_at(peer);
		value++;
	} else if (peer != LL_NOBODY) {
		at = ep_ll_ack_at(ll->op.nranks, ll->buffer, peer);
	}
	/* Mostly they have, and the wait itself is long for a GPU. */
	if (ll->op.far && ll_shown(ll, at, value, far, peer != LL_NOBODY))
		return 1;
	return ll_wait(ll, at, value, peer, EP_KPHASE_SEND);
}

/* Whether the warp has waited for peer's buffer in this launch, and fenced what it writes there. */
GX_DEV uint32_t ll_seen_free(const struct ll *ll, uint32_t peer)
{
	return peer < 64 && (ll->freed >> peer & 1) != 0;
}

GX_DEV uint64_t ll_free_bit(uint32_t peer)
{
	return peer < 64 ? (uint64_t)1 << peer : 0;
}

/* As ll_wait, A2: for the word at that place. With masks, a source that is ahead may have continued without this rank,
 * and its rows belong to a later operation. Its jump word, sent before over the same path, tells. */
GX_DEV uint32_t ll_wait_rows(const struct ll *ll, uint32_t source, uint64_t at)
{
	uint32_t ok = ll_wait(ll, at, ll->op.epoch, source, EP_KPHASE_RECV);

	if (!ok)
		return 0;
	if (!ll_is(ll, EP_LL_MASK) || source == LL_NOBODY || ll_signalled(ll, source) == ll->op.epoch ||
	    gx_ld_acquire_u64(ll_from(ll, source, ep_ll_jump_at(ll->op.nranks, source) + EP_LL_CLEAN_NUMBER)) <=
		    ll->a->state->cleans)
		return ok;
	gx_op_report(&ll->op, EP_KERR_BEHIND, ll->op.rank, EP_KPHASE_RECV);
	return 0;
}

GX_DEV uint32_t ll_wait_signal(const struct ll *ll, uint32_t source)
{
	return ll_wait_rows(ll, source, source == LL_NOBODY ? 0 : ep_ll_signal_at(source));
}

#endif
