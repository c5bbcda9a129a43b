/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of LL dispatch: claims of sources, and rows from the window to the experts. */
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

/* All lanes: room for the entries of a far source, from the list's end on; the first's number. A combine returns all
 * that is listed, also what no row that came was for: so each is some row that returns to that source. */
GX_DEV uint32_t ll_list_far(struct ll *ll, uint32_t source, uint32_t rows)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t first = 0;

	if (gx_lane() == 0)
		first = gx_dev_add_relaxed_u32(&a->state->listed_far, rows);
	first = gx_shfl_u32(first, 0);
	for (uint32_t i = gx_lane(); i < rows; i += GX_WARP) {
		struct ep_ll_entry some = { 0, source, i, 0 };

		*ll_entry(a, 1, (uint64_t)first + i) = some;
	}
	return first;
}

/* Rows of a far source come with their heads, in one copy: a load that depends on another costs a microsecond across
 * PCIe. The first of them is loaded while the counts are read. */
GX_DEV uint32_t ll_whole(const struct ll *ll, uint32_t source)
{
	return ll_far(ll, source) && ll->a->row_pitch <= gx_bulk_room(&ll->bulk);
}

#define LL_MALFORMED 2u
#define LL_SPENT (1u << 30) /* in src_claim: all rows of the source are taken */
#define LL_EACH_SHIFT 24u   /* in src_rows: rows of a rank are fewer than 2^20 */

/* Whether so many rows may return to a far source, from that slot of its window on. */
GX_DEV uint32_t ll_back_fits(const struct ll *ll, uint32_t at, uint32_t rows)
{
	const struct ep_ll_shape *s = &ll->a->shape;

	return rows <= (uint64_t)s->tmax * s->fan &&
	       (s->masked ? at == 0 : (uint64_t)at + rows <= (uint64_t)s->tmax * s->topk);
}

/* Where a source's rows start in each expert, and how many a far one has: by the first warp that sees its signal, so
 * that one warp reads them across PCIe. All lanes. 0: the operation has failed; LL_MALFORMED, for one warp: a count of
 * more rows than a source can have. *ahead: rows are here already; then whether the load of the first, which is the
 * claiming warp's, is in flight. *claimed: this is that warp. */
GX_DEV uint32_t ll_claim_source(struct ll *ll, uint32_t source, uint32_t *ahead, uint32_t *claimed)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const uint32_t *head = (const uint32_t *)ll_in(ll, source), *count = head + EP_LL_COUNTS;
	uint32_t ok = 1, mine = 0, bad = 0, experts = ll_is(ll, EP_LL_RANK_MAJOR) ? 0 : s->per_rank;
	uint32_t total = 0, back_to = 0, back = 0, each = 0, listed;

	if (gx_lane() == 0)
		mine = gx_dev_add_relaxed_u32(&ll->src_claim[source], 1) == 0;
	*claimed = mine = gx_shfl_u32(mine, 0);
	*ahead = *ahead && mine && ll_whole(ll, source);
	if (*ahead) {
		gx_fence_proxy(); /* A2 */
		gx_bulk_load(&ll->bulk, ll_in(ll, source) + ll_row_at(ll, 0), ll->a->row_pitch);
	}
	/* Own rows come first and must have been counted. A5 for self_ready. */
	if (mine && ll->direct && experts)
		ok = ll_wait_word(ll, &ll->a->state->self_ready);
	if (gx_lane() == 0 && mine && ll_far(ll, source)) { /* in flight together with the counts */
		total = gx_ld_relaxed_u32(&head[EP_LL_ROWS]);
		back_to = gx_ld_relaxed_u32(&head[EP_LL_BACK_AT]);
		back = gx_ld_relaxed_u32(&head[EP_LL_BACK]);
		each = ll_has_steps(ll) ? gx_ld_relaxed_u32(&head[EP_LL_EACH]) : 0;
	}
	gx_syncwarp();
	for (uint32_t e = gx_lane(); mine && e < experts; e += GX_WARP) {
		uint32_t n = gx_ld_relaxed_u32(&count[e]);

		/* Not added: what the caller reads in out_counts are rows of its tensor. */
		bad |= n > s->tmax;
		n = n > s->tmax ? 0 : n;
		ll->base[(uint64_t)source * s->per_rank + e] = gx_dev_add_relaxed_u32(&ll->fill[e], n);
	}
	if (gx_lane() == 0 && mine && ll_far(ll, source))
		bad |= !ll_back_fits(ll, back_to, back) || (experts == 0 && back != total) || total > s->tmax ||
		       each > EP_LL_JOIN_MAX;
	bad = gx_ballot((int)bad) != 0;
	if (mine && ll_far(ll, source)) {
		back = bad ? 0 : gx_shfl_u32(back, 0);
		listed = ll_list_far(ll, source, back);
		if (gx_lane() == 0) {
			struct ep_ll_back *to = &ll->a->back[source];

			gx_st_relaxed_u32(&ll->src_rows[source], bad ? 0 : total | each << LL_EACH_SHIFT);
			to->to = bad ? 0 : back_to;
			to->rows = back;
			to->listed = listed;
		}
	}
	gx_syncwarp();
	if (gx_lane() == 0) {
		if (mine)
			gx_dev_add_acqrel_u32(&ll->src_ready[source], 1); /* R5 */
	}
	if (!mine)
		ok = ll_wait_word(ll, &ll->src_ready[source]); /* A5 */
	gx_syncwarp();
	return ok && bad ? LL_MALFORMED : ok;
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
GX_DEV uint32_t ll_place_expert(struct ll *ll, uint32_t source, uint32_t slot, const struct ep_ll_row_head *head,
				uint32_t *rows)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const uint32_t *entry = (const uint32_t *)(head + 1);
	uint32_t listed = 0, ok = 1, far = ll_far(ll, source);
	uint32_t n = ll_once(&head->count), token = ll_once(&head->token);

	*rows = n;
	if (n > s->fan || token >= s->tmax)
		return 0;
	if (gx_lane() == 0 && source != s->rank && !far)
		listed = ll_list(ll, n);
	listed = far ? ll->a->back[source].listed : gx_shfl_u32(listed, 0);
	for (uint32_t i = gx_lane(); i < n; i += GX_WARP) {
		uint32_t e = ll_once(&entry[3 * i]), row = ll_once(&entry[3 * i + 1]);
		uint32_t last = ll_once(&entry[3 * i + 2]), k = far ? last & EP_LL_K_MASK : last;
		uint32_t number = far ? last >> EP_LL_K_BITS : 0;
		uint32_t sane = e < s->per_rank && k < s->topk && (!far || number < ll->a->back[source].rows);
		uint64_t at = (uint64_t)token * s->topk + (sane ? k : 0);

		row += sane ? ll->base[(uint64_t)source * s->per_rank + e] : 0;
		sane = sane && row < s->nranks * s->tmax;
		row = sane ? row + e * s->nranks * s->tmax : 0;
		ok = sane ? ok : 0;
		ll->route.pos[i] = (int32_t)row;
		if (source == s->rank) {
			ll->a->home_row[at] = (int32_t)row;
		} else if (far ? sane : listed + i < ep_ll_list_room(s)) {
			struct ep_ll_entry *to = ll_entry(ll->a, far, listed + (far ? number : i));

			to->row = row;
			to->home = source;
			to->slot = far ? number : s->masked ? slot * s->fan + i : (uint32_t)at;
			to->token = token;
		}
	}
	ok = gx_ballot(!ok) == 0;
	gx_syncwarp();
	return ok;
}

GX_DEV uint32_t ll_place_rank(struct ll *ll, uint32_t source, uint32_t slot, const struct ep_ll_row_head *head)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const int32_t *id = (const int32_t *)(head + 1);
	uint32_t row = source * s->tmax + slot, k = ll_once(&head->count), far = ll_far(ll, source);
	uint32_t token = ll_once(&head->token);
	uint64_t at = (uint64_t)token * s->topk + k;

	if (k >= s->topk || token >= s->tmax)
		return 0;
	if (gx_lane() == 0) {
		ll->route.pos[0] = (int32_t)row;
		if (source == s->rank) {
			ll->a->home_row[at] = (int32_t)row;
		} else {
			uint32_t listed = far ? ll->a->back[source].listed + slot : ll_list(ll, 1);
			struct ep_ll_entry *to = ll_entry(ll->a, far, listed);

			to->row = row;
			to->home = source;
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
GX_DEV void ll_unpack(struct ll *ll, uint32_t source, uint32_t slot, uint32_t loaded)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t rank_major = ll_is(ll, EP_LL_RANK_MAJOR), ok, n = 1, scales = (uint32_t)ep_ll_pad(a->row_bytes);
	uint32_t head_bytes = (uint32_t)ep_ll_row_head_bytes(&a->shape, rank_major);
	uint32_t whole = ll_whole(ll, source);
	const uint8_t *row = ll_in(ll, source) + ll_row_at(ll, slot);
	const struct ep_ll_row_head *head = (const struct ep_ll_row_head *)row;

	if (whole && !loaded)
		gx_bulk_load(&ll->bulk, row, a->row_pitch);
	if (whole) {
		head = (const struct ep_ll_row_head *)gx_bulk_row(&ll->bulk);
	}
	row += head_bytes;
	ok = rank_major ? ll_place_rank(ll, source, slot, head) : ll_place_expert(ll, source, slot, head, &n);
	if (!ok) { /* never index with what a peer wrote before it was checked */
		if (gx_lane() == 0)
			gx_op_fail(&ll->op, EP_KERR_COUNT, source, EP_KPHASE_RECV);
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
	uint64_t at = ep_ll_counted_at(ll->op.nranks, source);

	*rows = ll_far(ll, source);
	if (!*rows || !ll_has_steps(ll))
		return ll_wait_source(ll, source, ep_ll_signal_at(source));
	if (!ll_wait_source(ll, source, at))
		return 0;
	*rows = !ll_shown(ll, at, ll->op.epoch, 1, gx_lane() == 0);
	return 1;
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

GX_DEV void ll_recv_source(struct ll *ll, uint32_t source)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t ok, slot, total = 0, each = 0, far = ll_far(ll, source), ahead = 0, mine = 0;
	uint32_t first = ll_whole(ll, source);
	uint64_t seen = UINT64_MAX;

	ok = ll_wait_counts(ll, source, &ahead);
	if (ok && (far || !ll_is(ll, EP_LL_RANK_MAJOR)))
		ok = ll_claim_source(ll, source, &ahead, &mine);
	if (ok)
		total = gx_ld_relaxed_u32(far ? &ll->src_rows[source] : (const uint32_t *)ll_in(ll, source));
	if (far) {
		each = ll_has_steps(ll) ? total >> LL_EACH_SHIFT : 0;
		total %= 1u << LL_EACH_SHIFT;
	}
	if (total > a->shape.tmax || ok == LL_MALFORMED) {
		if (gx_lane() == 0)
			gx_op_fail(&ll->op, EP_KERR_COUNT, source, EP_KPHASE_RECV);
		ok = 0;
	}
	if (ahead && (!ok || total == 0))
		gx_bulk_row(&ll->bulk); /* no load is in flight when the block ends */
	if (!ok)
		return;
	if (gx_lane() == 0 && ll_is(ll, EP_LL_RANK_MAJOR))
		gx_st_relaxed_u32(&ll->base[source], total); /* every warp writes the same value */
	gx_fence_proxy();				     /* A2 */
	slot = mine && first ? 0 : first + gx_op_ticket(&ll->src_ticket[source]);
	for (; slot < total; slot = first + gx_op_ticket(&ll->src_ticket[source])) {
		if (each != 0 && !ll_wait_slot(ll, source, slot, total, each, &seen))
			return;
		ll_unpack(ll, source, slot, slot == 0 && ahead);
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

#endif
