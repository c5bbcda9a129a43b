/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of LL dispatch: claims of sources, rows from window to experts, and the counters of the caller. */
#ifndef EP_KERNELS_LL_RECEIVE_H
#define EP_KERNELS_LL_RECEIVE_H

#include "kernels/ll/ll.h"

/* The routing of a rank-major row: ids of this rank's experts or -1, and all topk weights. */
GX_DEV void ll_row_routing(struct ll *ll, const int32_t *id, const float *weight, uint32_t row)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t first = a->shape.rank * a->shape.per_rank;

	for (uint32_t k = gx_lane(); k < a->shape.topk; k += GX_WARP) {
		uint64_t at = (uint64_t)row * a->shape.topk + k;
		uint32_t expert = (uint32_t)id[k], local = expert - first;

		if (a->out_idx)
			a->out_idx[at] = local >= a->shape.per_rank ? -1
					 : ll_is(ll, EP_LL_GLOBAL)  ? (int32_t)expert
								    : (int32_t)local;
		if (a->out_weights)
			a->out_weights[at] = weight[k];
	}
}

/* One thread: room for n entries of near sources in the list; the first's number. */
GX_DEV uint32_t ll_list(struct ll *ll, uint32_t n)
{
	return gx_dev_add_relaxed_u32(&ll->a->state->listed, n);
}

/* Rows of a far source come with their heads, in one copy: a load that depends on another costs a microsecond across
 * PCIe. The first of them is loaded while the counts are read. */
GX_DEV uint32_t ll_whole(const struct ll *ll, uint32_t source)
{
	return ll_far(ll, source) && ll->a->row_pitch <= gx_bulk_room(&ll->bulk);
}

#define LL_MALFORMED 2u
#define LL_SPENT (1u << 30) /* in src_claim: all rows of the source are taken */
#define LL_NO_MORE 2u	    /* in src_ready: the warp that claims the source takes all its rows */
#define LL_EACH_SHIFT 24u   /* in src_rows: rows of a rank are fewer than 2^20 */

/* Whether so many rows may return to a far source, from that slot of its window on. */
GX_DEV uint32_t ll_back_fits(const struct ll *ll, uint32_t at, uint32_t rows)
{
	const struct ep_ll_shape *s = &ll->a->shape;

	return rows <= (uint64_t)s->tmax * s->fan &&
	       (s->masked ? at == 0 : (uint64_t)at + rows <= (uint64_t)s->tmax * s->topk);
}

/* What a warp knows of the source that it receives from. */
struct ll_source {
	uint32_t rank, far;
	uint32_t mine;	       /* this warp claims it: it reads the counts, and the first row is its own */
	uint32_t ahead;	       /* the load of that row is in flight */
	uint32_t total, each;  /* rows, and of a far one rows to a step or 0 */
	uint32_t listed, back; /* of a far one: the first entry of what returns to it, and how many there are */
	uint32_t base; /* if mine and there are no more experts than lanes: the first row of the lane's expert */
};

/* All lanes: the entries of a far source, from the list's end on. A combine returns all that is listed, also what no
 * row that came was for: so each is some row that returns to that source. */
GX_DEV void ll_list_far(struct ll *ll, const struct ll_source *from)
{
	for (uint32_t i = gx_lane(); i < from->back; i += GX_WARP) {
		struct ep_ll_entry some = { 0, from->rank, i, 0 };

		*ll_entry(ll->a, 1, (uint64_t)from->listed + i) = some;
	}
}

/* All lanes: whether this warp is the one that claims the source. Own rows come first in each expert, so it also waits
 * until they have been counted. 0: the operation has failed. */
GX_DEV uint32_t ll_claim(struct ll *ll, struct ll_source *from)
{
	uint32_t mine = 0;

	if (gx_lane() == 0)
		mine = gx_dev_add_relaxed_u32(&ll->src_claim[from->rank], 1) == 0;
	from->mine = gx_shfl_u32(mine, 0);
	if (!from->mine || !ll->direct || ll_is(ll, EP_LL_RANK_MAJOR))
		return 1;
	return ll_wait_word(ll, &ll->a->state->self_ready); /* A5 */
}

/* All lanes: the counts of a claimed source to where its rows start in each expert; of a far one also how many return,
 * by one read across PCIe. The load of the first row, if it is here, goes behind it: it takes longer. Whether a count
 * is more than a source can have. */
GX_DEV uint32_t ll_read_counts(struct ll *ll, struct ll_source *from)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const uint32_t *head = (const uint32_t *)ll_in(ll, from->rank), *count = head + EP_LL_COUNTS;
	uint32_t experts = ll_is(ll, EP_LL_RANK_MAJOR) ? 0 : s->per_rank, bad = 0, back_to = 0, each = 0;
	uint32_t next = gx_lane() < experts ? gx_ld_relaxed_u32(&count[gx_lane()]) : 0;
	struct ep_ll_back *to = &ll->a->back[from->rank];

	if (gx_lane() == 0) { /* in flight together with the counts */
		from->total = gx_ld_relaxed_u32(&head[EP_LL_ROWS]);
		back_to = from->far ? gx_ld_relaxed_u32(&head[EP_LL_BACK_AT]) : 0;
		from->back = from->far ? gx_ld_relaxed_u32(&head[EP_LL_BACK]) : 0;
		each = from->far && ll_has_steps(ll) ? gx_ld_relaxed_u32(&head[EP_LL_EACH]) : 0;
	}
	if (from->ahead)
		gx_bulk_load(&ll->bulk, ll_in(ll, from->rank) + ll_row_at(ll, 0), ll->a->row_pitch);
	if (gx_lane() == 0) {
		bad = from->total > s->tmax || each > EP_LL_JOIN_MAX;
		bad |= from->far &&
		       (!ll_back_fits(ll, back_to, from->back) || (experts == 0 && from->back != from->total));
		from->back = bad ? 0 : from->back;
		back_to = bad ? 0 : back_to;
		if (from->far) /* in flight together with the next */
			from->listed = gx_dev_add_relaxed_u32(&ll->a->state->listed_far, from->back);
	}
	for (uint32_t e = gx_lane(); e < experts; e += GX_WARP) {
		uint32_t n = next;

		next = e + GX_WARP < experts ? gx_ld_relaxed_u32(&count[e + GX_WARP]) : 0;
		/* Not added: what the caller reads in out_counts are rows of its tensor. */
		bad |= n > s->tmax;
		n = n > s->tmax ? 0 : n;
		from->base = gx_dev_add_relaxed_u32(&ll->fill[e], n);
		ll->base[(uint64_t)from->rank * s->per_rank + e] = from->base;
	}
	bad = gx_ballot((int)bad) != 0;
	from->total = bad ? 0 : gx_shfl_u32(from->total, 0);
	if (!from->far)
		return bad;
	from->back = gx_shfl_u32(from->back, 0);
	from->each = gx_shfl_u32(each, 0);
	from->listed = gx_shfl_u32(from->listed, 0);
	ll_list_far(ll, from);
	if (gx_lane() == 0) {
		to->to = back_to;
		to->rows = from->back;
		to->listed = from->listed;
	}
	return bad;
}

/* All lanes, when the counts of a source are here. 0: the operation has failed, or another warp takes all rows;
 * LL_MALFORMED, for the claiming warp: a count of more rows than a source can have. ahead: its rows are here, too. */
GX_DEV uint32_t ll_counts(struct ll *ll, struct ll_source *from, uint32_t ahead)
{
	uint32_t *ready = &ll->src_ready[from->rank], bad, word;

	if (!from->mine) {
		word = ll_wait_word(ll, ready); /* A5 */
		if (word == 0 || word == LL_NO_MORE)
			return 0;
		from->total = gx_ld_relaxed_u32(&ll->src_rows[from->rank]);
		if (from->far) {
			from->listed = ll->a->back[from->rank].listed;
			from->back = ll->a->back[from->rank].rows;
		}
		from->each = ll_has_steps(ll) ? from->total >> LL_EACH_SHIFT : 0;
		from->total %= 1u << LL_EACH_SHIFT;
		return 1;
	}
	from->ahead = ahead && ll_whole(ll, from->rank);
	if (from->ahead)
		gx_fence_proxy(); /* A2 */
	bad = ll_read_counts(ll, from);
	if (gx_lane() == 0)
		gx_st_relaxed_u32(&ll->src_rows[from->rank], from->total | from->each << LL_EACH_SHIFT);
	/* The caller is told of it; none, where they are malformed. */
	if (gx_lane() == 0 && from->far && ll_is(ll, EP_LL_RANK_MAJOR))
		gx_st_relaxed_u32(&ll->base[from->rank], from->total);
	gx_syncwarp();
	if (gx_lane() == 0 && from->total <= 1 && ll_whole(ll, from->rank))
		gx_st_relaxed_u32(ready, LL_NO_MORE); /* no other warp uses what this one has noted */
	else if (gx_lane() == 0)
		gx_dev_st_release_u32(ready, 1); /* R5 */
	from->each = ahead ? 0 : from->each;	 /* nothing to wait for */
	return bad ? LL_MALFORMED : 1;
}

/* A word of a row's head, in memory that a peer writes or in the stage. Acquired before: by the wait, or by the load
 * into the stage. */
GX_DEV uint32_t ll_once(const uint32_t *word)
{
	return *(const volatile uint32_t *)word;
}

/*
 * Records where the rows of an expert-major head go; the warp's route keeps the output rows. *rows is the checked
 * count: the head is in memory that a peer writes, so every word is read once. 0: malformed head. Its entries of a
 * near source are listed too, as some row and slot: with masks a combine may follow, and it returns all that is listed.
 */
GX_DEV uint32_t ll_place_expert(struct ll *ll, const struct ll_source *from, uint32_t slot,
				const struct ep_ll_row_head *head, uint32_t *rows)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const uint32_t *entry = (const uint32_t *)(head + 1);
	uint32_t listed = from->listed, ok = 1, far = from->far, known = from->mine && s->per_rank <= GX_WARP;
	uint32_t n = gx_shfl_u32(ll_once(&head->count), 0), token = ll_once(&head->token);

	*rows = n;
	if (gx_ballot(n > s->fan || token >= s->tmax) != 0)
		return 0;
	if (gx_lane() == 0 && from->rank != s->rank && !far)
		listed = ll_list(ll, n);
	listed = gx_shfl_u32(listed, 0);
	for (uint32_t i0 = 0; i0 < n; i0 += GX_WARP) {
		uint32_t i = i0 + gx_lane(), has = i < n, e = has ? ll_once(&entry[3 * i]) : 0;
		uint32_t row = has ? ll_once(&entry[3 * i + 1]) : 0, last = has ? ll_once(&entry[3 * i + 2]) : 0;
		uint32_t k = far ? last & EP_LL_K_MASK : last, number = far ? last >> EP_LL_K_BITS : 0;
		uint32_t sane = has && e < s->per_rank && k < s->topk && (!far || number < from->back);
		uint64_t at = (uint64_t)token * s->topk + (sane ? k : 0);

		if (known) /* of the lane that read the expert's count: the load would take as long as the row's */
			row += gx_shfl_u32(from->base, e % GX_WARP);
		else if (sane)
			row += ll->base[(uint64_t)from->rank * s->per_rank + e];
		if (!has)
			continue;
		sane = sane && row < s->nranks * s->tmax;
		row = sane ? row + e * s->nranks * s->tmax : 0;
		ok = sane ? ok : 0;
		ll->route.pos[i] = (int32_t)row;
		if (from->rank == s->rank) {
			ll->a->home_row[at] = (int32_t)row;
		} else if (far ? sane : listed + i < ep_ll_list_room(s)) {
			struct ep_ll_entry *to = ll_entry(ll->a, far, listed + (far ? number : i));

			to->row = row;
			to->home = from->rank;
			to->slot = far ? number : s->masked ? slot * s->fan + i : (uint32_t)at;
			to->token = token;
		}
	}
	ok = gx_ballot(!ok) == 0;
	gx_syncwarp();
	return ok;
}

GX_DEV uint32_t ll_place_rank(struct ll *ll, const struct ll_source *from, uint32_t slot,
			      const struct ep_ll_row_head *head)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const int32_t *id = (const int32_t *)(head + 1);
	uint32_t row = from->rank * s->tmax + slot, k = ll_once(&head->count), far = from->far;
	uint32_t token = ll_once(&head->token);
	uint64_t at = (uint64_t)token * s->topk + k;

	if (k >= s->topk || token >= s->tmax)
		return 0;
	if (gx_lane() == 0) {
		ll->route.pos[0] = (int32_t)row;
		if (from->rank == s->rank) {
			ll->a->home_row[at] = (int32_t)row;
		} else {
			uint32_t listed = far ? from->listed + slot : ll_list(ll, 1);
			struct ep_ll_entry *to = ll_entry(ll->a, far, listed);

			to->row = row;
			to->home = from->rank;
			to->slot = far ? slot : s->masked ? slot * s->fan : (uint32_t)at;
			to->token = token;
		}
	}
	ll_row_routing(ll, id, (const float *)(id + s->topk), row);
	gx_syncwarp();
	return 1;
}

/* src: the part of the row in the window; from: in the stage, if the whole row is there. */
GX_DEV void ll_spread(struct ll *ll, const uint8_t *src, uint32_t from, uint8_t *out, uint32_t bytes, uint32_t n)
{
	uint32_t room = gx_bulk_room(&ll->bulk);

	gx_syncwarp();
	for (uint32_t i = gx_lane(); i < n; i += GX_WARP)
		ll->route.dst[i] = out + (uint64_t)(uint32_t)ll->route.pos[i] * bytes;
	gx_syncwarp();
	for (uint32_t i = 0; from != 0 && i < n; i++)
		gx_bulk_store(&ll->bulk, ll->route.dst[i], from, bytes);
	if (from != 0)
		return;
	for (uint32_t at = 0; at < bytes; at += room) {
		uint32_t part = bytes - at < room ? bytes - at : room;

		gx_bulk_load(&ll->bulk, src + at, part);
		gx_bulk_scatter(&ll->bulk, ll->route.dst, n, at, part);
	}
}

/* Rows of an expert, or of a source in the rank-major layout: words from one column to the next. */
GX_DEV uint32_t ll_column_words(const struct ep_ll_args *a)
{
	return a->shape.tmax * (a->flags & EP_LL_RANK_MAJOR ? 1 : a->shape.nranks);
}

/* Where the first scale of an output row is, by columns. */
GX_DEV uint8_t *ll_column(const struct ep_ll_args *a, uint32_t row)
{
	uint32_t words = ll_column_words(a), block = row / words;
	uint32_t width = a->scale_bytes / (a->flags & EP_LL_EXPONENTS ? 16 : 4);

	return a->out_scales + ((uint64_t)block * words * width + row - block * words) * 4;
}

/* Four scales, each a power of two. */
GX_DEV uint32_t ll_exponents(const uint32_t *scale)
{
	uint32_t packed = 0;

	for (uint32_t i = 0; i < 4; i++)
		packed |= (ll_once(&scale[i]) >> 23 & 0xffu) << (8 * i);
	return packed;
}

/* All lanes: the scales of a row, in memory or in the stage, to n places of ll_column in the route, skipping NULL. */
GX_DEV void ll_columns(struct ll *ll, const uint32_t *scale, uint32_t n)
{
	uint32_t packed = ll_is(ll, EP_LL_EXPONENTS), width = ll->a->scale_bytes / (packed ? 16 : 4);
	uint64_t words = ll_column_words(ll->a);

	for (uint32_t i = gx_lane(); i < width; i += GX_WARP) {
		uint32_t word = packed ? ll_exponents(&scale[4 * i]) : ll_once(&scale[i]);

		for (uint32_t j = 0; j < n; j++)
			if (ll->route.dst[j])
				((uint32_t *)ll->route.dst[j])[i * words] = word;
	}
}

GX_DEV void ll_spread_columns(struct ll *ll, const uint8_t *scales, uint32_t n)
{
	gx_syncwarp();
	for (uint32_t i = gx_lane(); i < n; i += GX_WARP)
		ll->route.dst[i] = ll_column(ll->a, (uint32_t)ll->route.pos[i]);
	gx_syncwarp();
	ll_columns(ll, (const uint32_t *)scales, n);
}

/* loaded: its load is in flight. */
GX_DEV void ll_unpack(struct ll *ll, const struct ll_source *from, uint32_t slot, uint32_t loaded)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t rank_major = ll_is(ll, EP_LL_RANK_MAJOR), ok, n = 1, scales = (uint32_t)ep_ll_pad(a->row_bytes);
	uint32_t head_bytes = (uint32_t)ep_ll_row_head_bytes(&a->shape, rank_major);
	uint32_t whole = ll_whole(ll, from->rank);
	const uint8_t *row = ll_in(ll, from->rank) + ll_row_at(ll, slot);
	const struct ep_ll_row_head *head = (const struct ep_ll_row_head *)row;

	if (whole && !loaded)
		gx_bulk_load(&ll->bulk, row, a->row_pitch);
	if (whole) {
		head = (const struct ep_ll_row_head *)gx_bulk_row(&ll->bulk);
	}
	row += head_bytes;
	ok = rank_major ? ll_place_rank(ll, from, slot, head) : ll_place_expert(ll, from, slot, head, &n);
	if (!ok) { /* never index with what a peer wrote before it was checked */
		if (gx_lane() == 0)
			ll_fail(ll, EP_KERR_COUNT, from->rank, EP_KPHASE_RECV);
		return;
	}
	if (a->out)
		ll_spread(ll, row, whole ? head_bytes : 0, a->out, a->row_bytes, n);
	if (ll_is(ll, EP_LL_COLUMNS))
		ll_spread_columns(ll, (const uint8_t *)head + head_bytes + scales, n);
	else if (a->scale_bytes)
		ll_spread(ll, row + scales, whole ? head_bytes + scales : 0, a->out_scales, a->scale_bytes, n);
	gx_syncwarp(); /* the next row overwrites this one's route */
}

/* All lanes: the source has written its word at that place. */
GX_DEV uint32_t ll_wait_source(struct ll *ll, uint32_t source, uint64_t at)
{
	uint32_t ok = ll_wait_rows(ll, gx_lane() == 0 ? source : LL_NOBODY, at);

	ok = gx_shfl_u32(ok, 0);
	gx_syncwarp();
	return ok;
}

/* All lanes: the counts of a source or all its rows are here. *rows: all rows of a far one are. */
GX_DEV uint32_t ll_wait_counts(struct ll *ll, uint32_t source, uint32_t *rows)
{
	uint32_t ok;

	*rows = ll_far(ll, source);
	if (!*rows || !ll_has_steps(ll))
		return ll_wait_source(ll, source, ep_ll_signal_at(source));
	ok = ll_wait_source(ll, source, ep_ll_counted_at(ll->op.nranks, source));
	*rows = (ok & LL_SIGNALLED) != 0;
	return ok != 0;
}

/* All lanes: the row in that slot of a source, of `total`, has come. *seen: the last word waited for. */
GX_DEV uint32_t ll_wait_slot(struct ll *ll, uint32_t source, uint32_t slot, uint32_t total, uint32_t each,
			     uint64_t *seen)
{
	uint32_t step = slot / each, told = step < total / each && step < EP_LL_STEPS_EACH;
	uint64_t at = told ? ep_ll_step_at(ll->op.nranks, source, step) : ep_ll_signal_at(source);

	if (at == *seen)
		return 1;
	*seen = at;
	if (!ll_wait_source(ll, source, at))
		return 0;
	gx_fence_proxy(); /* A2 */
	return 1;
}

/*
 * All lanes: waits until the source's counts are here, and reads them. The warp that claims it waits for its word, the
 * others for that warp: it is running, and ends its wait or fails. Not so with masks, where a wait may end for one warp
 * only: there the source is claimed by who has seen its word. 0: the source or the operation is lost, or no row is
 * left.
 */
GX_DEV uint32_t ll_await_source(struct ll *ll, struct ll_source *from)
{
	uint32_t claims = from->far || !ll_is(ll, EP_LL_RANK_MAJOR), early = claims && !ll_is(ll, EP_LL_MASK);
	uint32_t ahead = 0, ok = 1;

	if (early)
		ok = ll_claim(ll, from);
	if (ok && (from->mine || !early))
		ok = ll_wait_counts(ll, from->rank, &ahead);
	if (ok && claims && !early)
		ok = ll_claim(ll, from);
	if (ok && claims)
		ok = ll_counts(ll, from, ahead);
	else if (ok)
		from->total = gx_ld_relaxed_u32((const uint32_t *)ll_in(ll, from->rank));
	if (from->total <= ll->a->shape.tmax && ok != LL_MALFORMED)
		return ok;
	if (gx_lane() == 0)
		ll_fail(ll, EP_KERR_COUNT, from->rank, EP_KPHASE_RECV);
	return 0;
}

/* The next row of a source that no warp has taken: tickets rise, so behind the last row there is none. */
GX_DEV uint32_t ll_next_slot(struct ll *ll, const struct ll_source *from, uint32_t slot, uint32_t first)
{
	return slot < from->total ? first + gx_op_ticket(&ll->src_ticket[from->rank]) : slot;
}

GX_DEV void ll_recv_source(struct ll *ll, uint32_t source)
{
	struct ll_source from = { source, ll_far(ll, source), 0, 0, 0, 0, 0, 0, 0 };
	uint32_t ok = ll_await_source(ll, &from), first = ll_whole(ll, source), slot;
	uint64_t seen = UINT64_MAX;

	if (from.ahead && (!ok || from.total == 0))
		gx_bulk_row(&ll->bulk); /* no load is in flight when the block ends */
	if (!ok)
		return;
	if (gx_lane() == 0 && ll_is(ll, EP_LL_RANK_MAJOR))
		gx_st_relaxed_u32(&ll->base[source], from.total); /* every warp writes the same value */
	gx_fence_proxy();					  /* A2 */
	slot = from.mine && first ? 0 : ll_next_slot(ll, &from, first, first);
	for (; slot < from.total; slot = ll_next_slot(ll, &from, slot + 1, first)) {
		if (from.each != 0 && !ll_wait_slot(ll, source, slot, from.total, from.each, &seen))
			return;
		ll_unpack(ll, &from, slot, slot == 0 && from.ahead);
	}
	if (gx_lane() == 0)
		gx_st_relaxed_u32(&ll->src_claim[source], LL_SPENT);
}

/*
 * All lanes: the number, from i on, of the next source that may have rows left. Near sources first. Each warp starts at
 * a different one: a late one does not delay them all. A source whose rows are all taken takes 3 us to visit, and all
 * warps would visit all sources. The mark needs no order: it only saves a visit.
 */
GX_DEV uint32_t ll_next_source(struct ll *ll, uint32_t at, uint32_t i, uint32_t end)
{
	uint32_t n = ll->op.nranks;

	for (; i < end; i += GX_WARP) {
		uint32_t j = i + gx_lane(), source = (ll->op.rank + at + j) % n;
		uint32_t has = j < end && !(source == ll->op.rank && ll->direct) && !ll_off(ll, source) &&
			       (!ll->op.far || ll_far(ll, source) == (j >= n)) &&
			       gx_ld_relaxed_u32(&ll->src_claim[source]) < LL_SPENT;
		uint64_t mask = gx_ballot((int)has);

		if (mask != 0)
			return i + gx_popc((mask & (0 - mask)) - 1);
	}
	return end;
}

GX_DEV void ll_recv(struct ll *ll)
{
	uint32_t n = ll->op.nranks, at = gx_block() * gx_warps() + gx_warp(), end = ll->op.far ? 2 * n : n;

	if (ll->a->waited && at == 0)
		ll_count_waits(ll, ll->a->waited);
	if (gx_shfl_u32(gx_lane() == 0 && ll_dead(ll), 0))
		return;
	for (uint32_t i = 0; (i = ll_next_source(ll, at, i, end)) < end; i++)
		ll_recv_source(ll, (ll->op.rank + at + i) % n);
	gx_bulk_drain(&ll->bulk);
}

/* The caller's counters: rows per expert, or per source, with the ids of unused rows set to -1. The last block. */
GX_DEV void ll_publish(struct ll *ll)
{
	const struct ep_ll_args *a = ll->a;
	const struct ep_ll_shape *s = &a->shape;
	uint32_t rank_major = ll_is(ll, EP_LL_RANK_MAJOR);
	/* in flight together with the counts */
	uint32_t listed = gx_tid() == 0 ? gx_ld_relaxed_u32(&a->state->listed) : 0;
	uint32_t listed_far = gx_tid() == 0 ? gx_ld_relaxed_u32(&a->state->listed_far) : 0;

	for (uint32_t e = gx_tid(); !rank_major && a->out_counts && e < s->per_rank; e += gx_threads())
		a->out_counts[e] = (int32_t)gx_ld_relaxed_u32(&ll->fill[e]);
	for (uint32_t r = gx_warp(); rank_major && r < s->nranks; r += gx_warps()) {
		uint32_t own = r == s->rank && ll->direct;
		uint32_t rows = gx_ld_relaxed_u32(own ? &ll->rank_rows[r] : &ll->base[r]);
		uint32_t took = gx_ld_relaxed_u32(&ll->src_ticket[r]), read = gx_ld_relaxed_u32(&ll->src_ready[r]);
		uint32_t n = own || (took | read) != 0 ? rows : 0; /* of one that did not come, base[] is of before */

		if (gx_lane() == 0 && a->out_counts)
			a->out_counts[r] = (int32_t)n;
		for (uint64_t i = (uint64_t)n * s->topk + gx_lane(); a->out_idx && i < (uint64_t)s->tmax * s->topk;
		     i += GX_WARP)
			a->out_idx[(uint64_t)r * s->tmax * s->topk + i] = -1;
	}
	/* No row returns to a source that did not come, and a combine may follow. */
	for (uint32_t r = gx_tid(); ll_is(ll, EP_LL_MASK) && r < s->nranks; r += gx_threads())
		if (ll_far(ll, r) && gx_ld_relaxed_u32(&ll->src_ready[r]) == 0)
			a->back[r].rows = a->back[r].to = 0;
	if (gx_tid() == 0) {
		a->handle->rows = listed;
		a->handle->far_rows = listed_far;
	}
}

#endif
