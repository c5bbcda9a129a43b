/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LL dispatch. A token is read once and written once per destination rank, into [this rank][slot] of that rank's
 * window; the receiver copies it to its experts. In an operation of one launch, own rows go directly to the output:
 * this rank's rows come first in every expert, so their positions do not depend on other ranks' counts.
 *
 * Roles: send (a warp per token), signal (the warp that finishes last), claim (one warp per source: where its rows
 * start in each expert), unpack (a warp per row). Work is taken by ticket, and a warp receives only when no token is
 * left to send: one resident block can do the whole operation alone. With many tokens for far ranks, some warps of each
 * block begin with those, and the others count (kernels/ll/counts.h) and wait for them.
 */
#include "kernels/ll/counts.h"
#include "kernels/ll/quantise.h"
#include "kernels/ll/receive.h"

/* ---- send ---- */

#define LL_ONE_SENDS 2u /* in so many warps begins with far ranks, the others wait for them */

/* The expert of (token, k), or -1 if nothing is to be sent. */
GX_DEV int32_t ll_expert(struct ll *ll, uint32_t token, uint32_t k)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	int64_t id = ll_topk(ll->a, token, k);

	if (id >= 0 && id < (int64_t)s->experts)
		return ll_off(ll, (uint32_t)id / s->per_rank) ? -1 : (int32_t)id;
	if (id != -1)
		ll_raise(ll, EP_ASYNC_BAD_ID);
	return -1;
}

/* The counter of an expert's rows: own rows that go directly to the output are the first of fill[]. */
GX_DEV uint32_t *ll_counter(struct ll *ll, int32_t id, int32_t peer)
{
	const struct ep_ll_shape *s = &ll->a->shape;

	if (ll->direct && (uint32_t)peer == s->rank)
		return &ll->fill[(uint32_t)id - s->rank * s->per_rank];
	return &ll->expert_rows[id];
}

/* Claims the rows of a token, one k per lane. A rank or expert that occurs twice is claimed at its first k only. */
GX_DEV void ll_claim_rows(struct ll *ll, uint32_t token, uint32_t far)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	struct ll_route *w = &ll->route;
	uint32_t reused = 0;

	for (uint32_t k = gx_lane(); k < s->topk; k += GX_WARP) {
		int32_t id = ll_expert(ll, token, k);

		w->id[k] = id;
		w->peer[k] = id < 0 ? -1 : id / (int32_t)s->per_rank;
	}
	gx_syncwarp();
	for (uint32_t k0 = 0; k0 < s->topk; k0 += GX_WARP) {
		uint32_t k = k0 + gx_lane(), has = k < s->topk, needs;
		int32_t id = has ? w->id[k] : -1, peer = has ? w->peer[k] : -1;
		uint32_t new_id = id >= 0 && (!ll->op.far || ll_far(ll, (uint32_t)peer) == far), new_peer = new_id;
		uint8_t *out = new_id ? ll_out(ll, (uint32_t)peer) : NULL; /* in flight with what follows */

		for (uint32_t j = 0; j < s->topk; j++) { /* as often for all lanes, without a branch */
			new_id &= !(j < k) | (w->id[j] != id);
			new_peer &= !(j < k) | (w->peer[j] != peer);
		}
		/* An own row that goes directly to the output needs no buffer. */
		needs = new_peer && !(ll->direct && (uint32_t)peer == s->rank);
		reused |= gx_ballot((int)needs) != 0;
		if (!ll_wait_free(ll, needs ? (uint32_t)peer : LL_NOBODY))
			new_peer = 0;
		if (!has)
			continue;
		w->out[k] = out;
		w->slot[k] = new_peer ? (int32_t)gx_dev_add_relaxed_u32(&ll->rank_rows[peer], 1) : -1;
		w->pos[k] = new_id ? (int32_t)gx_dev_add_relaxed_u32(ll_counter(ll, id, peer), 1) : -1;
		if (far)
			w->back[k] = new_id ? gx_dev_add_relaxed_u32(&ll->back_rows[peer], 1) : 0;
	}
	gx_syncwarp();
	if (reused)
		gx_fence_proxy(); /* A4: the token's row goes over rows that peers have read */
}

/* Where the token's row for the rank of k is: its slot, or -1: nothing is sent there; how many of its experts there
 * precede k, and how many there are in all. */
struct ll_place {
	int32_t slot;
	uint32_t ordinal, count;
};

GX_DEV struct ll_place ll_place_of(const struct ll *ll, uint32_t k)
{
	const struct ll_route *w = &ll->route;
	struct ll_place place = { -1, 0, 0 };
	int32_t peer = w->peer[k];

	for (uint32_t j = 0; j < ll->a->shape.topk; j++) { /* without a branch: only the first k of a rank has a slot */
		uint32_t sent = (w->peer[j] == peer) & (w->pos[j] >= 0);

		place.slot = w->peer[j] == peer && w->slot[j] > place.slot ? w->slot[j] : place.slot;
		place.ordinal += sent & (j < k);
		place.count += sent;
	}
	return place;
}

/* One lane, with masks: no row returns for k, also if its rank is no longer masked when rows are combined. */
GX_DEV void ll_unsent(struct ll *ll, uint64_t at, uint32_t k, uint32_t far)
{
	int32_t peer = ll->route.peer[k];

	if (ll_is(ll, EP_LL_MASK) && (peer < 0 ? 0 : ll_far(ll, (uint32_t)peer)) == far)
		ll->a->sent_slot[at] = EP_LL_UNSENT;
}

/* The heads of the token's rows, expert-major: each k writes its entry, the first k of a rank the head. */
GX_DEV void ll_heads_expert(struct ll *ll, uint32_t token, uint32_t far)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const struct ll_route *w = &ll->route;

	for (uint32_t k = gx_lane(); k < s->topk; k += GX_WARP) {
		uint64_t at = (uint64_t)token * s->topk + k;
		struct ll_place place = ll_place_of(ll, k);
		uint32_t own = (uint32_t)w->peer[k] == s->rank, *entry;
		struct ep_ll_row_head *head;
		int32_t local;

		if (!far)
			ll->a->home_row[at] = -1;
		if (place.slot < 0)
			ll_unsent(ll, at, k, far);
		if (w->pos[k] < 0 || place.slot < 0)
			continue;
		local = w->id[k] - w->peer[k] * (int32_t)s->per_rank;
		/* also for own rows: a staged combine sends them */
		ll->a->sent_slot[at] = far ? w->back[k] : (uint32_t)place.slot * s->fan + place.ordinal;
		if (own && ll->direct) {
			ll->a->home_row[at] = local * (int32_t)(s->nranks * s->tmax) + w->pos[k];
			continue;
		}
		head = (struct ep_ll_row_head *)(w->out[k] + ll_row_at(ll, (uint32_t)place.slot));
		entry = (uint32_t *)(head + 1) + (uint64_t)3 * place.ordinal;
		entry[0] = (uint32_t)local;
		entry[1] = (uint32_t)w->pos[k];
		entry[2] = far ? k | w->back[k] << EP_LL_K_BITS : k;
		if (w->slot[k] >= 0) {
			head->token = token;
			head->count = place.count;
		}
	}
}

GX_DEV void ll_heads_rank(struct ll *ll, uint32_t token, uint32_t far)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const struct ll_route *w = &ll->route;
	const float *weight = ll->a->topk_weights + (uint64_t)token * s->topk;

	for (uint32_t k = 0; k < s->topk; k++) {
		uint64_t at = (uint64_t)token * s->topk + k;
		struct ep_ll_row_head *head;

		if (gx_lane() == 0 && !far)
			ll->a->home_row[at] = -1;
		if (gx_lane() == 0 && w->slot[k] < 0)
			ll_unsent(ll, at, k, far);
		if (w->slot[k] < 0)
			continue;
		if (gx_lane() == 0)
			ll->a->sent_slot[at] = (uint32_t)w->slot[k] * (far ? 1 : s->fan);
		if ((uint32_t)w->peer[k] == s->rank && ll->direct) {
			uint32_t row = s->rank * s->tmax + (uint32_t)w->slot[k];

			if (gx_lane() == 0)
				ll->a->home_row[at] = (int32_t)row;
			ll_row_routing(ll, w->id, weight, row);
			continue;
		}
		head = (struct ep_ll_row_head *)(w->out[k] + ll_row_at(ll, (uint32_t)w->slot[k]));
		for (uint32_t j = gx_lane(); j < s->topk; j += GX_WARP) {
			((int32_t *)(head + 1))[j] = w->id[j];
			((float *)(head + 1))[s->topk + j] = weight[j];
		}
		if (gx_lane() == 0) {
			head->token = token;
			head->count = k;
		}
	}
}

#define LL_NO_ROW (~0u)

/* The output row of k, if that is an own row that goes directly to the output; else LL_NO_ROW. */
GX_DEV uint32_t ll_own_row(const struct ll *ll, uint32_t k)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const struct ll_route *w = &ll->route;
	uint32_t rank_major = ll_is(ll, EP_LL_RANK_MAJOR);

	if (!ll->direct || w->peer[k] != (int32_t)s->rank || (rank_major ? w->slot[k] : w->pos[k]) < 0)
		return LL_NO_ROW;
	if (rank_major)
		return s->rank * s->tmax + (uint32_t)w->slot[k];
	return ((uint32_t)w->id[k] - s->rank * s->per_rank) * s->nranks * s->tmax + (uint32_t)w->pos[k];
}

/* Destinations of one part of the token's row (token or scales), by k: window_at in the window's row, or the output. */
GX_DEV void ll_aim(struct ll *ll, uint64_t window_at, uint8_t *out, uint64_t pitch)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const struct ll_route *w = &ll->route;

	gx_syncwarp(); /* the part before has been stored */
	for (uint32_t k = gx_lane(); k < s->topk; k += GX_WARP) {
		uint8_t *dst = NULL;
		uint32_t row;

		if (!ll->direct || w->peer[k] != (int32_t)s->rank) {
			if (w->slot[k] >= 0)
				dst = w->out[k] + ll_row_at(ll, (uint32_t)w->slot[k]) + window_at;
		} else if (out && (row = ll_own_row(ll, k)) != LL_NO_ROW) {
			dst = out + row * pitch;
		}
		w->dst[k] = dst;
	}
	gx_syncwarp();
}

/* As ll_aim, for the scales of a row: with columns those of own rows are ll_own_columns' part. */
GX_DEV void ll_aim_scales(struct ll *ll, uint64_t window_at)
{
	const struct ep_ll_args *a = ll->a;

	ll_aim(ll, window_at, ll_is(ll, EP_LL_COLUMNS) ? NULL : a->out_scales, a->scale_bytes);
}

/* All lanes, after the token has been sent: the scales are still in the stage, or in the input. At one place for both,
 * since at two sm_90 has too few registers. */
GX_DEV void ll_own_columns(struct ll *ll, uint32_t token)
{
	const struct ep_ll_args *a = ll->a;
	const uint8_t *scales = ll_is(ll, EP_LL_QUANTISED)
					? (const uint8_t *)gx_bulk_row(&ll->bulk) + ep_ll_stage_scales(a)
					: a->in_scales + (uint64_t)token * a->scale_bytes;
	uint32_t topk = a->shape.topk;

	gx_syncwarp();
	for (uint32_t k = gx_lane(); k < topk; k += GX_WARP) {
		uint32_t row = ll_own_row(ll, k);

		ll->route.dst[k] = row != LL_NO_ROW ? ll_column(a, row) : NULL;
	}
	gx_syncwarp();
	ll_columns(ll, (const uint32_t *)scales, topk);
}

/* From the input, in pieces that fit the stage; loaded: the first load is in flight. */
GX_DEV void ll_send_row(struct ll *ll, const uint8_t *src, uint32_t bytes, uint32_t loaded)
{
	uint32_t room = gx_bulk_room(&ll->bulk);

	for (uint32_t at = 0; at < bytes; at += room) {
		uint32_t n = bytes - at < room ? bytes - at : room;

		if (at > 0 || !loaded)
			gx_bulk_load_own(&ll->bulk, src + at, n);
		gx_bulk_scatter(&ll->bulk, ll->route.dst, ll->a->shape.topk, at, n);
	}
}

/* The row and its scales are made in the stage. The input row is there too, if it fits. */
GX_DEV void ll_send_quantised(struct ll *ll, const uint8_t *src, uint64_t scales_at)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t in_stage = ep_ll_stage_scales(a);
	const void *row = in_stage >= a->in_bytes ? gx_bulk_row(&ll->bulk) : src;

	ll_quantise(ll, (const uint16_t *)row, in_stage);
	gx_bulk_scatter(&ll->bulk, ll->route.dst, a->shape.topk, 0, a->row_bytes);
	ll_aim_scales(ll, scales_at);
	for (uint32_t k = 0; k < a->shape.topk; k++)
		if (ll->route.dst[k])
			gx_bulk_store(&ll->bulk, ll->route.dst[k], in_stage, a->scale_bytes);
}

/* As ll_put: part of what this rank wrote for peer at ll_out to the same offset of its area there. */
GX_DEV struct far_cmd ll_put_part(const struct ll *ll, uint32_t peer, uint64_t at, uint32_t bytes)
{
	uint64_t area = peer != LL_NOBODY ? ll_there(ll, peer) * ep_ll_area(&ll->a->shape, ll->a->row_pitch) : 0;

	return ll_put(ll, peer, area + at, at, bytes);
}

/* How many rows for one rank share a put. An only token's row goes with the counts, which would wait for its push. */
GX_DEV uint32_t ll_join_rows(const struct ll *ll)
{
	uint32_t n = ll->a->tokens;

	if (ll->each != 0)
		return ll->each;
	return ll->a->far.window_pinned && n > 1 && n <= EP_LL_FEW ? 1 : EP_LL_JOIN;
}

/* With counts ahead of the rows: as many to a step as make EP_LL_STEPS_EACH of the most rows that a rank can get. */
GX_DEV uint32_t ll_rows_each(const struct ll *ll)
{
	uint32_t each = (ll->a->shape.tmax + EP_LL_STEPS_EACH - 1) / EP_LL_STEPS_EACH;

	return each < EP_LL_JOIN ? EP_LL_JOIN : each > EP_LL_JOIN_MAX ? EP_LL_JOIN_MAX : each;
}

/* The step behind the put of these rows for peer, or none. */
GX_DEV struct far_cmd ll_row_step(const struct ll *ll, uint32_t peer, uint32_t step)
{
	uint32_t n = ll->op.nranks;

	return far_to(ll->op.far, step < EP_LL_STEPS_EACH ? peer : LL_NOBODY,
		      far_step(ll->op.far, peer, ep_ll_far_at(n, ep_ll_step_at(n, ll->op.rank, step)), ll->op.epoch));
}

/* The puts that the token's rows complete and, if there are steps, those behind them: a command per lane. Fewer tokens
 * than rows of a put complete none, and are not counted: an atomic with its fence takes a microsecond. */
GX_DEV void ll_put_token(struct ll *ll, uint32_t token)
{
	const struct ll_route *w = &ll->route;
	uint32_t join = ll_join_rows(ll), steps = ll->each != 0, full = 0;
	uint32_t cmds = join <= ll->a->tokens ? ll->a->shape.topk << steps : 0;

	for (uint32_t i0 = 0; i0 < cmds; i0 += GX_WARP) {
		uint32_t i = i0 + gx_lane(), k = i >> steps, has = k < ll->a->shape.topk && w->slot[k] >= 0;
		uint32_t slot = has ? (uint32_t)w->slot[k] : 0, peer = has ? (uint32_t)w->peer[k] : LL_NOBODY;
		struct far_cmd to = ll_put_part(ll, peer, ll_row_at(ll, slot - slot % join), join * ll->a->row_pitch);

		if (i & steps)
			to = ll_row_step(ll, peer, slot / join);
		if (i0 == 0)
			gx_bulk_drain(&ll->bulk); /* its barrier orders what all lanes wrote ... */
		if (!(i & steps))
			full = has && ll_joins(ll, peer, slot, join); /* ... before what each lane tells of it */
		if (steps)
			full = gx_shfl_u32(full, gx_lane() & ~1u); /* a warp of one lane has it from before */
		if (!full)
			to.ring = GX_NO_RING;
		if (gx_ballot(to.ring != GX_NO_RING) != 0)
			ll_push(ll, to, 1);
	}
	if (ll_has_order(ll) && gx_lane() == 0)
		ll->a->order[gx_dev_add_relaxed_u32(&ll->a->state->claimed, 1)] = token;
	gx_syncwarp(); /* the next item overwrites this one's route */
}

/* Its rows for far ranks, or those for the others. */
GX_DEV void ll_send_token(struct ll *ll, uint32_t token, uint32_t far)
{
	const struct ep_ll_args *a = ll->a;
	const uint8_t *src = a->in + (uint64_t)token * a->in_bytes;
	uint64_t head = ep_ll_row_head_bytes(&a->shape, ll_is(ll, EP_LL_RANK_MAJOR));
	uint64_t scales_at = head + ep_ll_pad(a->row_bytes);
	uint32_t room = gx_bulk_room(&ll->bulk), quantised = ll_is(ll, EP_LL_QUANTISED);
	uint32_t load = quantised ? a->in_bytes : a->row_bytes;

	/* The routing's atomics and the row's load take about equally long and overlap. So do the heads and the
	 * stores. */
	gx_bulk_load_own(&ll->bulk, src, load < room ? load : room);
	ll_claim_rows(ll, token, far);
	ll_aim(ll, head, a->out, a->row_bytes);
	if (quantised) {
		ll_send_quantised(ll, src, scales_at);
	} else {
		ll_send_row(ll, src, a->row_bytes, 1);
		if (a->scale_bytes) {
			ll_aim_scales(ll, scales_at);
			ll_send_row(ll, a->in_scales + (uint64_t)token * a->scale_bytes, a->scale_bytes, 0);
		}
	}
	if (ll_is(ll, EP_LL_COLUMNS) && ll->direct && !far)
		ll_own_columns(ll, token);
	if (ll_is(ll, EP_LL_RANK_MAJOR))
		ll_heads_rank(ll, token, far);
	else
		ll_heads_expert(ll, token, far);
}

/* What ll_send_counts tells of. */
#define LL_COUNTS 1u
#define LL_ROWS 2u

/*
 * To far ranks: the heads of their areas and, ahead of the rows, the words that tell of them; the rows that no put has
 * carried yet, and the signals behind them. In one push: a lane for each command. A rank of few rows gets one put: its
 * rows follow the head. rows: for the lane's rank, if several share a put.
 */
#define LL_CMDS 3u
GX_DEV struct far_cmd ll_last_cmd(struct ll *ll, uint32_t i, uint32_t what, uint32_t rows)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t r = i / LL_CMDS, cmd = i % LL_CMDS, far = ll_told(ll, r, 1), n = ll->op.nranks;
	uint32_t head = (uint32_t)ep_ll_source_head(&a->shape), join = ll_join_rows(ll), rest;
	struct far_cmd to = ll_signal_far(ll, far && cmd == 2 && (what & LL_ROWS) ? r : LL_NOBODY);

	rows = far && join > 1 && (what & LL_ROWS) ? rows : 0;
	rest = rows % join;
	if (far && cmd == 0 && (what & LL_COUNTS))
		to = ll_put_part(ll, r, 0, head + (rest == rows ? rows * a->row_pitch : 0));
	if (far && cmd == 1 && rest != 0) {
		uint32_t from = ll_rest(ll, r, rows, join);

		if (from != 0 || !(what & LL_COUNTS))
			to = ll_put_part(ll, r, ll_row_at(ll, from), rest * a->row_pitch);
	}
	if (far && cmd == 1 && what == LL_COUNTS)
		to = far_to(ll->op.far, r,
			    far_step(ll->op.far, r, ep_ll_far_at(n, ep_ll_counted_at(n, ll->op.rank)), ll->op.epoch));
	return to;
}

/* A peer that gets no rows still gets a head, which must wait for its buffer, too. */
GX_DEV void ll_free_all(struct ll *ll, uint32_t far)
{
	for (uint32_t r0 = 0; r0 < ll->op.nranks; r0 += GX_WARP) {
		uint32_t r = r0 + gx_lane();

		ll_wait_free(ll, ll_told(ll, r, far) ? r : LL_NOBODY);
	}
	gx_syncwarp();
}

/* The counts, then the signals, by the warp that finished that part last; what goes ahead of the rows, by the one that
 * counted last. */
GX_DEV void ll_send_counts(struct ll *ll, uint32_t far, uint32_t what)
{
	uint32_t known = what == (LL_COUNTS | LL_ROWS) && ll->op.nranks <= GX_WARP, rows;
	uint32_t loads = !known && (what & LL_ROWS) && ll_join_rows(ll) > 1;
	struct ll_heads heads = { 0, 0 };

	if (what == LL_COUNTS)
		ll_free_all(ll, far);
	if (what & LL_COUNTS)
		heads = ll_write_counts(ll, far);
	for (uint32_t i = 0; far && i < LL_CMDS * ll->op.nranks; i += GX_WARP) {
		uint32_t r = (i + gx_lane()) / LL_CMDS;
		struct far_cmd to;

		/* Without a load, which takes most of a microsecond. */
		rows = gx_shfl_u32(heads.rows, r % GX_WARP);
		if (loads && r < ll->op.nranks)
			rows = gx_ld_relaxed_u32(&ll->rank_rows[r]);
		to = ll_last_cmd(ll, i + gx_lane(), what, rows);
		ll_push(ll, to, i == 0);
	}
	if (far)
		return;
	ll_signal_near(ll);
	if (gx_lane() == 0 && ll->direct && ll->op.nranks > 1)
		gx_dev_add_acqrel_u32(&ll->a->state->self_ready, 1); /* R5 */
}

/* The items of one part: the tokens, and one more, since a rank without tokens signals too: the wait for all buffers,
 * which whoever finishes last then need not make. How many of them this warp has done. */
GX_DEV uint32_t ll_send_items(struct ll *ll, uint32_t far)
{
	uint32_t items = ll->a->tokens + 1, item, n = 0;

	for (; (item = gx_shfl_u32(ll->ticket, 0)) < items; n++) {
		if (item < ll->a->tokens)
			ll_send_token(ll, item, far);
		else
			ll_free_all(ll, far);
		ll_next(ll, far); /* while the row is on its way */
		if (far && item < ll->a->tokens)
			ll_put_token(ll, item);
	}
	return n;
}

/* One part, by this warp, or its routes where other warps begin with it: one item more, which ends with the counts. */
GX_DEV void ll_send_part(struct ll *ll, uint32_t far, uint32_t begins)
{
	uint32_t early = far && ll->each != 0, items = ll->a->tokens + 1 + early, n = 0;

	if (begins) {
		n = ll_send_items(ll, far);
	} else if (early && ll_count_routes(ll)) {
		ll_send_counts(ll, 1, LL_COUNTS);
		n = 1;
	}
	if (ll_finished(ll, far, n, items))
		ll_send_counts(ll, far, early ? LL_ROWS : LL_COUNTS | LL_ROWS);
}

/* A token is read twice where there are far ranks: what goes to near ones would delay its puts. Both parts are one copy
 * of the code: with two, ll_dispatch_far had 21664 instructions of sm_90 instead of 15568. */
GX_DEV void ll_send(struct ll *ll)
{
	uint32_t far = ll->op.far != NULL, first = far ? ll->a->tokens + 1 : 0, dead;
	uint32_t warps = ll_far_warps(ll, first, LL_ONE_SENDS), begins = gx_warp() < warps, later = gx_warps() - warps;

	/* Tokens spread over blocks before a block takes a second one. */
	if (later == 0 && gx_warp() != 0 && gx_warp() * gx_blocks() > first + ll->a->tokens)
		return;
	if (gx_warp() != 0 && begins)
		ll->ticket = gx_op_take(&ll->a->state->send_ticket);
	dead = gx_shfl_u32(gx_lane() == 0 && ll_dead(ll), 0);
	if (later != 0 && ll_has_steps(ll))
		ll->each = ll_rows_each(ll);
	GX_ROLL
	for (;; far = 0) {
		if (!dead)
			ll_send_part(ll, far, !far || begins);
		if (!far)
			return;
		gx_fence_proxy(); /* the end of the part has acquired, and so has the end of counting */
		if (later != 0)
			gx_syncthreads();
		ll->ticket = gx_op_take(ll_tickets(ll, 0));
	}
}

/* receives: flags of which only the receiving half has the code, beside those that the kernel lacks. */
GX_DEV void ll_dispatch_run(const struct ep_ll_args *a, const struct ep_far *far, uint32_t lacks, uint32_t receives,
			    uint8_t *shared)
{
	struct ll ll;
	uint32_t go = ll_open(&ll, a, EP_KIND_DISPATCH, far, lacks, shared);

	ll.lacks = lacks | receives;
	if (go && (a->flags & EP_LL_SEND))
		ll_send(&ll);
	ll.lacks = lacks;
	if (go && (a->flags & EP_LL_RECV))
		ll_recv(&ll);
	if (!gx_op_leave(&a->state->left)) /* R3, A3 */
		return;
	if (go && (a->flags & EP_LL_RECV))
		ll_publish(&ll);
	gx_syncthreads();
	if (go && (a->flags & EP_LL_SEND))
		ll_end_send(&ll);
	if (go && (a->flags & EP_LL_RECV))
		ll_end_recv(&ll);
	ll_close(&ll);
}

/* Five kernels. One without far ranks has none of the code for them (0.7 us of 15.5 in a dispatch, 1.2 of 12.8 in a
 * combine, as every block runs it once), and those that most launches need have only theirs. */
GX_KERNEL_WARPS(ll_dispatch, EP_LL_DISPATCH_WARPS)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_dispatch_run(&a, NULL, EP_LL_RARE | EP_LL_MANY, 0, shared);
}

GX_KERNEL_WARPS(ll_dispatch_any, EP_LL_DISPATCH_WARPS)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_dispatch_run(&a, NULL, EP_LL_MANY, 0, shared);
}

/* For a rank with few tokens, also in a group for many: it sends without steps, as the others learn from its words and
 * heads, and the code for them takes longer to fetch than to run. */
GX_KERNEL_WARPS(ll_dispatch_far_few, EP_LL_DISPATCH_WARPS)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_dispatch_run(&a, &a.far, EP_LL_RARE, EP_LL_MANY, shared);
}

GX_KERNEL_WARPS(ll_dispatch_far, EP_LL_DISPATCH_WARPS)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_dispatch_run(&a, &a.far, EP_LL_RARE, 0, shared);
}

GX_KERNEL_WARPS(ll_dispatch_far_any, EP_LL_DISPATCH_WARPS)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);

	ll_dispatch_run(&a, &a.far, 0, 0, shared);
}
