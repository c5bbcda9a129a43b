/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LL combine. Rows return to the slot of (token, k) at their home rank, which sums them in k order, in fp32, and rounds
 * once. In an operation of one launch, own rows are read in place.
 *
 * Roles: return (a warp per row), signal (the warp that finishes last), gather (one warp of a block: the terms of its
 * next token), sum (the block's other warps).
 */
#include "kernels/ll/ll.h"
#include "kernels/gx/sum.h"

/* ---- send ---- */

#define LL_ONE_RETURNS 4u /* in so many warps begins with far ranks, the others wait for them */

/* Rows that return to a far home or LL_NOBODY, from their first number on. */
GX_DEV struct far_cmd ll_put_rows(const struct ll *ll, uint32_t home, uint32_t first, uint32_t rows)
{
	const struct ep_ll_args *a = ll->a;
	uint64_t to = 0;

	if (home != LL_NOBODY)
		to = ll_slot_at(ll, ll_there(ll, home), a->back[home].to + first);
	return ll_put(ll, home, to, (uint64_t)first * a->row_pitch, rows * a->row_pitch);
}

/* The i-th command when the row with that number completes a put of `join` rows: the put, and the step behind it if it
 * has one. */
GX_DEV struct far_cmd ll_put_step(const struct ll *ll, uint32_t i, uint32_t home, uint32_t number, uint32_t join)
{
	uint32_t n = ll->op.nranks, step = ll_step_of(ll, ll->a->back[home].rows, number);
	uint64_t at = ep_ll_far_at(n, ep_ll_step_at(n, ll->op.rank, step));

	if (i != 1 || step == EP_LL_STEPS_EACH)
		return ll_put_rows(ll, i == 0 ? home : LL_NOBODY, number - number % join, join);
	return far_to(ll->op.far, home, far_step(ll->op.far, home, at, ll->op.epoch));
}

/* slot: of a far home, the row's number. */
GX_DEV void ll_return_row(struct ll *ll, uint32_t row, uint32_t home, uint32_t slot)
{
	const struct ep_ll_args *a = ll->a;
	const uint8_t *src = a->in + (uint64_t)row * a->row_bytes;
	uint32_t room = gx_bulk_room(&ll->bulk), ok, far = ll_far(ll, home), seen = ll_seen_free(ll, home);
	uint32_t back = far ? a->back[home].rows : 0, join;
	struct far_cmd put;
	uint8_t *dst;

	/* All that needs no free buffer is on its way when that is waited for. */
	gx_bulk_load_own(&ll->bulk, src, a->row_bytes < room ? a->row_bytes : room);
	if (far)
		dst = ll_out(ll, home) + (uint64_t)slot * a->row_pitch;
	else
		dst = a->window[home] + ll->buffer * a->buffer_bytes + ll_slot_at(ll, ll_there(ll, home), slot);
	ok = gx_lane() == 0 && !ll_off(ll, home);
	if (!seen)
		ok = ll_wait_free(ll, ok ? home : LL_NOBODY) && ok;
	if (!gx_shfl_u32(ok, 0)) {
		gx_bulk_row(&ll->bulk); /* no load is in flight when the block ends */
		return;
	}
	ll->freed |= ll_free_bit(home);
	gx_syncwarp();
	if (!seen)
		gx_fence_proxy(); /* A4 */
	for (uint32_t at = 0; at < a->row_bytes; at += room) {
		uint32_t n = a->row_bytes - at < room ? a->row_bytes - at : room;

		if (at > 0)
			gx_bulk_load_own(&ll->bulk, src + at, n);
		gx_bulk_store(&ll->bulk, dst + at, 0, n);
	}
	if (!far)
		return;
	join = ll_join_back(ll, back);
	if (slot - slot % join + join > back)
		return; /* of the last put, which has fewer rows: the last finisher pushes it */
	put = ll_put_step(ll, gx_lane(), home, slot, join);
	gx_bulk_drain(&ll->bulk);
	ok = gx_lane() == 0 && ll_joins(ll, home, slot, join);
	if (!gx_shfl_u32(ok, 0))
		return;
	ll_push(ll, put, 1);
	for (uint32_t i = GX_WARP; i < 2; i += GX_WARP)
		ll_push(ll, ll_put_step(ll, i + gx_lane(), home, slot, join), 0);
}

/* To far ranks, with the rows that no put has carried yet, in one push: a lane for each command. */
GX_DEV void ll_signal_far_ranks(const struct ll *ll)
{
	for (uint32_t i0 = 0; i0 < 2 * ll->op.nranks; i0 += GX_WARP) {
		uint32_t i = i0 + gx_lane(), r = i / 2, far = ll_told(ll, r, 1);
		uint32_t rows = far && i % 2 == 0 ? ll->a->back[r].rows : 0, join = ll_join_back(ll, rows);
		uint32_t rest = rows % join;
		struct far_cmd to = ll_signal_far(ll, far && i % 2 == 1 ? r : LL_NOBODY);

		if (rest != 0)
			to = ll_put_rows(ll, r, rows - rest, rest);
		ll_push(ll, to, i0 == 0);
	}
}

GX_DEV void ll_signal(const struct ll *ll, uint32_t far)
{
	if (far)
		ll_signal_far_ranks(ll);
	else
		ll_signal_near(ll);
}

/* All lanes: how many of the rows for rank r are in each of EP_LL_STEPS_EACH steps. */
GX_DEV uint32_t ll_step_rows(const struct ll *ll, uint32_t r)
{
	return r < ll->op.nranks && ll_far(ll, r) ? (ll->a->back[r].rows + EP_LL_STEPS_EACH - 1) / EP_LL_STEPS_EACH : 0;
}

/* All lanes: the sum of it over all ranks, or 0: far rows return as they are listed, which is as good where every warp
 * has one at most. */
GX_DEV uint32_t ll_step_length(const struct ll *ll, uint32_t rows)
{
	uint32_t n = ll->op.nranks, sum = 0;

	if (!ll_has_steps(ll) || rows <= gx_blocks() * gx_warps())
		return 0;
	for (uint32_t r0 = 0; r0 < n; r0 += GX_WARP) {
		uint32_t some = ll_step_rows(ll, r0 + gx_lane());

		sum += gx_shfl_u32(ll_sum_below(some) + some, GX_WARP - 1);
	}
	return sum;
}

#define LL_NO_ENTRY UINT32_MAX

/*
 * All lanes: the entry of the item-th row that returns to far ranks, or LL_NO_ENTRY. By steps, of each rank in turn:
 * tokens whose rows have low numbers are complete early at their home, which sums them while others arrive. Each rank
 * begins with another one.
 */
GX_DEV uint32_t ll_by_steps(const struct ll *ll, uint32_t item, uint32_t length)
{
	uint32_t n = ll->op.nranks, step = item / length, at = item % length, from = 0;

	for (uint32_t i0 = 0; i0 < n; i0 += GX_WARP) {
		uint32_t i = i0 + gx_lane(), r = (ll->op.rank + i) % n, some = i < n ? ll_step_rows(ll, r) : 0;
		uint32_t before = from + ll_sum_below(some), hit = at - before < some, number = 0, entry = 0;
		uint64_t mask = gx_ballot((int)hit);

		if (hit) {
			number = step * some + at - before;
			entry = number < ll->a->back[r].rows ? ll->a->back[r].listed + number : LL_NO_ENTRY;
		}
		if (mask != 0)
			return gx_shfl_u32(entry, gx_popc((mask & (0 - mask)) - 1));
		from = gx_shfl_u32(before + some, GX_WARP - 1);
	}
	return LL_NO_ENTRY;
}

/*
 * Items of one part: far ranks' rows by steps of that length or, if it is 0, by the list; or near ones' rows and, in a
 * staged operation, (token, k) of this rank, because own rows must not stay in the caller's tensor. Then an empty one,
 * for a rank without rows.
 */
GX_DEV void ll_return_part(struct ll *ll, uint32_t length, uint32_t far, uint32_t rows, uint32_t own)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t items = rows + own + 1, item, n = 0;

	for (; (item = gx_shfl_u32(ll->ticket, 0)) < items; n++) {
		if (item < rows) {
			uint32_t i = length ? ll_by_steps(ll, item, length) : item;

			if (i != LL_NO_ENTRY) {
				const struct ep_ll_entry *e = ll_entry(ll->a, far, i);

				ll_return_row(ll, e->row, e->home, e->slot);
			}
		} else if (item < rows + own && ll->a->home_row[item - rows] >= 0) {
			uint32_t at = item - rows;

			ll_return_row(ll, (uint32_t)ll->a->home_row[at], a->shape.rank,
				      a->shape.masked ? ll->a->sent_slot[at] : at);
		}
		ll_next(ll, far);
	}
	if (ll_finished(ll, far, n, items))
		ll_signal(ll, far);
}

/* Far ranks' rows first: they take longest, and near ones are written meanwhile. Two copies of the code: with one,
 * ptxas spills registers where rows are summed. */
GX_DEV void ll_return(struct ll *ll)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t rows = a->handle->rows, own = ll->direct ? 0 : a->tokens * a->shape.topk;
	uint32_t far = ll->op.far != NULL, far_rows = far ? a->handle->far_rows : 0;
	uint32_t length = ll_step_length(ll, far_rows), first, warps, begins, dead;

	far_rows = length ? length * EP_LL_STEPS_EACH : far_rows;
	first = far ? far_rows + 1 : 0;
	warps = ll_far_warps(ll, first, LL_ONE_RETURNS);
	begins = gx_warp() < warps;
	if (warps == gx_warps() && gx_warp() != 0 && gx_warp() * gx_blocks() >= first + rows + own + 1)
		return;
	if (gx_warp() != 0 && begins)
		ll->ticket = gx_op_take(&a->state->send_ticket);
	dead = gx_shfl_u32(gx_lane() == 0 && ll_dead(ll), 0);
	if (far && begins && !dead) {
		ll_return_part(ll, length, 1, far_rows, 0);
		gx_fence_proxy(); /* the end of the part has acquired */
	}
	if (warps < gx_warps())
		gx_syncthreads();
	if (far)
		ll->ticket = gx_op_take(ll_tickets(ll, 0));
	if (!dead)
		ll_return_part(ll, 0, 0, rows, own);
}

/* ---- receive ---- */

/* The rank whose row position k of a token adds, and at: the first position with that row; LL_NOBODY: it adds none. */
GX_DEV uint32_t ll_term_rank(struct ll *ll, uint32_t token, uint32_t k, uint32_t *at)
{
	const struct ep_ll_args *a = ll->a;
	const struct ep_ll_shape *s = &a->shape;
	uint32_t rank_major = ll_is(ll, EP_LL_RANK_MAJOR), first = k, width = rank_major ? s->per_rank : 1;
	int64_t id = ll_topk(a, token, k), low = id; /* of the ids with the same row */
	uint32_t peer = (uint32_t)id / s->per_rank;

	*at = 0;
	if (rank_major)
		low = (int64_t)peer * s->per_rank;
	for (uint32_t j = 0; j < s->topk; j++) { /* as often for all lanes, without a branch */
		uint32_t same = (uint64_t)ll_topk(a, token, j) - (uint64_t)low < width;

		same &= j < first;
		first = same ? j : first;
	}
	if (id < 0 || id >= (int64_t)s->experts)
		return LL_NOBODY;
	/* A rank adds its sum once; an expert that occurs twice adds its one row with both weights. */
	if (rank_major && first != k)
		return LL_NOBODY;
	*at = (uint32_t)(token * s->topk + first);
	return peer;
}

/* The slot of a far rank's row at that position; *at: the word that tells of it. The loads overlap with the wait for
 * it. */
GX_DEV uint32_t ll_far_slot(const struct ll *ll, uint32_t peer, uint32_t k, uint64_t *at)
{
	const struct ep_ll_back *back = &ll->a->back[peer];
	uint32_t number = ll->a->sent_slot[k], from = back->from, step = ll_step_of(ll, back->come, number);

	if (step != EP_LL_STEPS_EACH)
		*at = ep_ll_step_at(ll->op.nranks, peer, step);
	return from + number;
}

/* Whether the row of rank peer at that position returns. */
GX_DEV uint32_t ll_returns(const struct ll *ll, uint32_t peer, uint32_t k)
{
	return !ll_off(ll, peer) && !(ll_is(ll, EP_LL_MASK) && ll->a->sent_slot[k] == EP_LL_UNSENT);
}

/* As ll_wait: the row of rank peer at that position, or NULL. */
GX_DEV const uint8_t *ll_term(struct ll *ll, uint32_t peer, uint32_t k)
{
	const struct ep_ll_args *a = ll->a;
	const struct ep_ll_shape *s = &a->shape;
	uint32_t own = peer == s->rank && ll->direct;
	uint32_t waits = peer != LL_NOBODY && !own && ll_returns(ll, peer, k), far = waits && ll_far(ll, peer);
	uint64_t at = waits ? ep_ll_signal_at(peer) : 0;
	uint32_t slot = 0, ok;

	if (far)
		slot = ll_far_slot(ll, peer, k, &at);
	ok = ll_wait_rows(ll, waits ? peer : LL_NOBODY, at);
	if (own)
		return a->home_row[k] < 0 ? NULL : a->in + (uint64_t)(uint32_t)a->home_row[k] * a->row_bytes;
	if (!waits || !ok)
		return NULL;
	if (!far)
		slot = s->masked ? a->sent_slot[k] : k;
	at = ll_slot_at(ll, ll_here(ll, peer), slot);
	return far ? a->far.window + ll->buffer * a->far.window_bytes + at
		   : a->window[s->rank] + ll->buffer * a->buffer_bytes + at;
}

/* The terms of one token, in the block's shared memory. */
struct ll_terms {
	const uint8_t **row;
	float *weight;
	uint32_t *token; /* and which part of it */
};

/* After the warps' stages, which hold the copy engine's mbarriers. */
GX_DEV struct ll_terms ll_terms_at(const struct ll *ll, uint8_t *shared, uint32_t which)
{
	const struct ep_ll_args *a = ll->a;
	uint8_t *at = shared + ep_ll_terms_at(a, gx_warps()) + (uint64_t)which * ep_ll_terms_bytes(a);
	struct ll_terms terms;

	terms.row = (const uint8_t **)at;
	terms.weight = (float *)(terms.row + a->shape.topk);
	terms.token = (uint32_t *)(terms.weight + a->shape.topk);
	return terms;
}

/* Where far ranks' rows may be across PCIe and blocks are more than tokens, several share a token. In a node that gains
 * nothing, and the loop that sums has no register to spare. With masks not: one block may mask a rank whose row another
 * one still adds. */
GX_DEV uint32_t ll_parts(const struct ll *ll)
{
	uint32_t share = ll->op.far && !ll_is(ll, EP_LL_MASK) && GX_WARP > 1;
	uint32_t n = ll->a->tokens, parts = share && n != 0 ? gx_blocks() / n : 1;

	return parts > EP_LL_PARTS ? EP_LL_PARTS : parts == 0 ? 1 : parts;
}

/* The next token's terms, by one warp, one k per lane, while the other warps sum the token before. */
GX_DEV void ll_gather_terms(struct ll *ll, const struct ll_terms *terms, uint32_t parts)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t ticket = gx_shfl_u32(ll->token, 0), token = ticket / parts;

	/* In the order in which rows return; of no use where each block has one token at most. */
	if (ll_has_order(ll) && token < a->tokens && a->tokens > gx_blocks())
		token = a->order[token];
	if (gx_lane() == 0) {
		terms->token[0] = token;
		terms->token[1] = ticket % parts;
		ll->token = gx_dev_add_relaxed_u32(&a->state->recv_ticket, 1);
	}
	if (token >= a->tokens)
		return;
	for (uint32_t k0 = 0; k0 < a->shape.topk; k0 += GX_WARP) {
		uint32_t k = k0 + gx_lane(), at = 0, has = k < a->shape.topk;
		float w = has && a->topk_weights ? a->topk_weights[(uint64_t)token * a->shape.topk + k] : 1.0f;
		uint32_t peer = has ? ll_term_rank(ll, token, k, &at) : LL_NOBODY;
		const uint8_t *row = ll_term(ll, peer, at);

		if (has) {
			terms->row[k] = row;
			terms->weight[k] = w;
		}
	}
}

/* The last warp gathers, the others sum; a block of one warp does both. */
GX_DEV void ll_sum(struct ll *ll, uint8_t *shared)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t ahead = gx_warp() == gx_warps() - 1, alone = gx_warps() == 1, parts = ll_parts(ll);
	uint32_t threads = gx_threads() - (alone ? 0 : GX_WARP);
	struct sum sum = { NULL, NULL, NULL, a->shape.topk, a->hidden, 0, threads * parts };

	if (ahead && gx_lane() == 0 && ll_dead(ll))
		ll->token = UINT32_MAX;
	gx_syncthreads(); /* every warp's stage is idle */
	if (ahead && a->waited && gx_block() == 0)
		ll_count_waits(ll, a->waited);
	if (ahead) {
		struct ll_terms first = ll_terms_at(ll, shared, 0);

		ll_gather_terms(ll, &first, parts);
	}
	for (uint32_t which = 0;; which ^= 1) {
		struct ll_terms now = ll_terms_at(ll, shared, which), next = ll_terms_at(ll, shared, which ^ 1);

		gx_syncthreads(); /* these terms are complete, and the previous set has been read */
		if (*now.token >= a->tokens)
			return;
		if (ahead)
			ll_gather_terms(ll, &next, parts);
		sum.out = a->out + (uint64_t)*now.token * a->row_bytes;
		sum.term = now.row;
		sum.weight = now.weight;
		/* By whole warps, which load neighbouring bytes. */
		sum.tid = ll->op.far ? (gx_warp() * parts + now.token[1]) * GX_WARP + gx_lane() : gx_tid();
		if (alone || !ahead)
			sum_rows(&sum, a->dtype);
	}
}

GX_DEV void ll_combine_run(const struct ep_ll_args *a, const struct ep_far *far, uint32_t lacks, uint8_t *shared)
{
	struct ll ll;
	uint32_t go = ll_open(&ll, a, EP_KIND_COMBINE, far, lacks, shared);

	if (go && (a->flags & EP_LL_SEND))
		ll_return(&ll);
	if (go && (a->flags & EP_LL_RECV))
		ll_sum(&ll, shared);
	if (!gx_op_leave(&a->state->left)) /* R3, A3 */
		return;
	if (go && (a->flags & EP_LL_SEND))
		ll_end_send(&ll);
	if (go && (a->flags & EP_LL_RECV))
		ll_end_recv(&ll);
	ll_close(&ll);
}

/* Five kernels, as for dispatch. */
GX_KERNEL(ll_combine)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_combine_run(&a, NULL, EP_LL_RARE | EP_LL_MANY, shared);
}

GX_KERNEL(ll_combine_any)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_combine_run(&a, NULL, EP_LL_MANY, shared);
}

GX_KERNEL(ll_combine_far_few)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_combine_run(&a, &a.far, EP_LL_RARE | EP_LL_MANY, shared);
}

GX_KERNEL(ll_combine_far)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_combine_run(&a, &a.far, EP_LL_RARE, shared);
}

GX_KERNEL(ll_combine_far_any)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_combine_run(&a, &a.far, 0, shared);
}
