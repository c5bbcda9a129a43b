/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT dispatch. A token is read once and written directly to its final rows in the tensors of ranks that can be
 * accessed, and to the windows of those that cannot, which then copy it themselves.
 *
 * Roles, all by ticket: meta (ids and weights of the rows, always through the window), work (a warp per token), take
 * (meta to the caller's tensors, padding, counters), copy (rows that came through the window). The first warps of
 * a block start with meta and take while the others move rows: both are bound by latency and need no bandwidth.
 */
#include "kernels/ht/dispatch_across.h"

/* ---- take: the caller's small tensors ---- */

/* Flat rows first to end: ids and weights by position, -1 and 0 where there are none. */
GX_DEV void ht_take_flat(struct ht *ht, uint64_t first, uint64_t end)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t rows = a->handle->rows, n = (uint32_t)(end - first) * ht->topk;
	int64_t shift = ht_is(ht, EP_HT_GLOBAL) ? (int64_t)a->shape.rank * a->shape.per_rank : 0;

	for (uint32_t q = gx_lane(); q < n; q += GX_WARP * HT_BATCH) {
		uint32_t count[HT_BATCH], id[HT_BATCH];
		float weight[HT_BATCH];

		for (uint32_t u = 0; u < HT_BATCH; u++) {
			uint32_t m = q + u * GX_WARP, row = (uint32_t)first + m / ht->topk;
			const uint32_t *meta = (const uint32_t *)ht_meta(ht, a->shape.rank, row) + 2 * (m % ht->topk);

			count[u] = m < n && row < rows ? meta[-2 * (int)(m % ht->topk)] : 0;
			id[u] = m < n && row < rows ? meta[2] : 0;
			weight[u] = m < n && row < rows ? ((const float *)meta)[3] : 0.0f;
		}
		for (uint32_t u = 0; u < HT_BATCH; u++) {
			uint32_t m = q + u * GX_WARP;
			uint32_t here = m % ht->topk < count[u] && id[u] < a->shape.per_rank;
			uint64_t at = first * ht->topk + m;

			if (m >= n)
				break;
			if (first + m / ht->topk < a->tail_idx)
				a->out_idx[at] = here ? (int64_t)id[u] + shift : -1;
			if (first + m / ht->topk < a->tail_weights)
				a->out_weights[at] = here ? weight[u] : 0.0f;
		}
	}
}

/* The same, by the column of the source, which the entries of a row carry. */
GX_DEV void ht_take_in_place(struct ht *ht, uint64_t first, uint64_t end)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t n = (uint32_t)(end - first) * ht->topk;

	for (uint32_t q = gx_lane(); q < n; q += GX_WARP) {
		uint64_t row = first + q / ht->topk, at = first * ht->topk + q;
		const uint32_t *meta = (const uint32_t *)ht_meta(ht, a->shape.rank, (uint32_t)row);
		uint32_t count = row < a->handle->rows ? meta[0] : 0, id = EP_HT_NONE;
		float weight = 0.0f;

		count = count < ht->topk ? count : ht->topk; /* written by another rank */
		for (uint32_t i = 0; i < count; i++) {
			uint32_t word = meta[2 + 2 * i];

			if (word >> 16 != q % ht->topk || (word & 0xffff) >= a->shape.per_rank)
				continue;
			id = word & 0xffff;
			weight = ((const float *)meta)[3 + 2 * i];
		}
		if (row < a->tail_idx)
			a->out_idx[at] = id != EP_HT_NONE ? (int64_t)id : -1;
		if (row < a->tail_weights)
			a->out_weights[at] = weight;
	}
}

/* The zone of a row of this rank. */
GX_DEV uint32_t ht_zone_of(const struct ht *ht, uint32_t row)
{
	uint32_t low = 0, high = ht->a->shape.per_rank - 1;

	while (low < high) { /* the last zone that begins at or before row; an empty one begins where the next does */
		uint32_t mid = (low + high + 1) / 2;

		if (ht->a->area[mid].first <= row)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

GX_DEV void ht_take_expert(struct ht *ht, uint64_t first, uint64_t end)
{
	const struct ep_ht_args *a = ht->a;

	for (uint64_t row = first + gx_lane(); row < end; row += GX_WARP) {
		uint32_t e = ht_zone_of(ht, (uint32_t)row);
		uint32_t real = row - a->area[e].first < a->filled[e];

		a->out_weights[row] = real ? *(const float *)ht_meta(ht, a->shape.rank, (uint32_t)row) : 0.0f;
	}
}

GX_DEV void ht_zero_row(uint8_t *to, uint32_t bytes)
{
	union {
		gx_u4 v;
		uint32_t w[4];
	} none = { .w = { 0, 0, 0, 0 } };
	uint32_t vectors = (((uintptr_t)to | bytes) & 15) == 0 ? bytes / 16 : 0;

	for (uint32_t i = gx_lane(); i < vectors; i += GX_WARP)
		gx_st_u4(to + (uint64_t)i * 16, none.v);
	for (uint32_t i = gx_lane(); vectors == 0 && i < bytes; i += GX_WARP)
		to[i] = 0;
}

/* A zone's padding: piece is a group of four of the at most alignment - 1 rows. */
GX_DEV void ht_pad_zone(struct ht *ht, uint32_t e, uint32_t piece)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t first = a->filled[e] + piece * 4, end = first + 4 < a->area[e].count ? first + 4 : a->area[e].count;

	for (uint32_t i = first; i < end; i++) {
		uint64_t row = a->area[e].first + i;

		ht_zero_row(a->out + row * a->row_bytes, a->row_bytes);
		if (a->scale_bytes)
			ht_zero_row(a->out_scales + row * a->scale_bytes, a->scale_bytes);
	}
}

/* Expert-major: what Update wrote or could have written, from the routing it left in the handle. */
GX_DEV void ht_take_counts(const struct ht *ht)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t wide = ht_is(ht, EP_HT_COUNT64);

	for (uint32_t e = gx_lane(); e < a->shape.per_rank; e += GX_WARP) {
		ht_put(a->out_counts, e, a->area[e].count, wide);
		ht_put(a->out_offsets, e, a->area[e].first, wide);
	}
	if (gx_lane() == 0)
		ht_put(a->out_total, 0, a->handle->total, ht_is(ht, EP_HT_TOTAL64));
}

/* Items: spans of rows, pieces of padding, then the counters. */
GX_DEV void ht_take_all(struct ht *ht)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t counted = a->out_counts || a->out_offsets || a->out_total;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR), pieces = (a->shape.alignment + 2) / 4;
	uint32_t tail = a->tail_idx > a->tail_weights ? a->tail_idx : a->tail_weights;
	uint64_t rows = expert_major ? a->handle->rows : tail, span = expert_major ? HT_SPAN * 8 : HT_SPAN;
	uint32_t spans = ht_is(ht, EP_HT_BACKWARD) ? 0 : (uint32_t)((rows + span - 1) / span);
	uint32_t items = spans + (expert_major ? a->shape.per_rank * pieces : 0), item, came = 0;

	while ((item = ht_take(ht, HT_TAKE)) < items + counted) {
		if (item == items) {
			ht_take_counts(ht);
			continue;
		}
		if (item >= spans) {
			ht_pad_zone(ht, (item - spans) / pieces, (item - spans) % pieces);
			continue;
		}
		if (!came && !HT_WAIT_ALL(ht, meta, ht->op.epoch, EP_KPHASE_RECV)) /* A5 */
			return;
		came = 1;
		if (expert_major)
			ht_take_expert(ht, item * span, (item + 1) * span < rows ? (item + 1) * span : rows);
		else if (ht_is(ht, EP_HT_IN_PLACE))
			ht_take_in_place(ht, item * span, (item + 1) * span < rows ? (item + 1) * span : rows);
		else
			ht_take_flat(ht, item * span, (item + 1) * span < rows ? (item + 1) * span : rows);
	}
}

/* ---- copy: rows that came through the window ---- */

/* To one row (flat) or to those listed in its head (expert-major). */
GX_DEV void ht_spread(struct ht *ht, uint32_t flat)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR), room = gx_bulk_room(&ht->bulk);
	const uint8_t *src = ht_staged(ht, a->shape.rank, flat);
	const uint32_t *head = (const uint32_t *)src;
	uint32_t n = expert_major ? gx_ld_relaxed_u32(head) : 1;

	n = n < a->shape.fan ? n : a->shape.fan; /* written by another rank */
	n = n < ht->topk ? n : ht->topk;
	src += ep_ht_head(&a->shape, expert_major);
	for (uint32_t which = 0; which < (a->scale_bytes ? 2u : 1u); which++) {
		uint32_t bytes = which ? a->scale_bytes : a->row_bytes;
		uint8_t *out = which ? a->out_scales : a->out;

		gx_syncwarp();
		for (uint32_t i = gx_lane(); i < n; i += GX_WARP) {
			uint32_t row = expert_major ? gx_ld_relaxed_u32(&head[1 + i]) : flat;

			ht->list.dst[i] = row < a->handle->rows ? out + (uint64_t)row * bytes : NULL;
		}
		gx_syncwarp();
		for (uint32_t at = 0; at < bytes; at += room) {
			uint32_t part = bytes - at < room ? bytes - at : room;

			gx_bulk_load(&ht->bulk, src + (which ? ht_pad(a->row_bytes) : 0) + at, part);
			gx_bulk_scatter(&ht->bulk, ht->list.dst, n, at, part);
		}
	}
}

GX_DEV void ht_copy(struct ht *ht)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t items = ht->op.nranks * HT_SLICES, item;

	if (*ht->any == 0 || !HT_WAIT_ALL(ht, done, ht->op.epoch, EP_KPHASE_RECV)) /* A5 */
		return;
	while ((item = ht_take(ht, HT_EXTRA)) < items) {
		uint32_t source = item / HT_SLICES;
		/* Written before done. */
		uint32_t staged = gx_ld_relaxed_u64(&ht_from(ht, ht_via(ht, source))->way) & 1;

		for (uint32_t i = item % HT_SLICES; staged && i < a->from[source].count; i += HT_SLICES)
			ht_spread(ht, a->from[source].first + i);
	}
	gx_bulk_drain(&ht->bulk);
}

/* Warps of a block that begin with meta: the fewer ranks, the shorter it takes to move the rows that hide it. */
GX_DEV uint32_t ht_early(const struct ep_ht_args *a)
{
	return a->shape.nranks < 4 ? 4 / a->shape.nranks : 1;
}

GX_DEV void ht_dispatch_run(const struct ep_ht_args *a, const struct ep_far *far, uint8_t *shared)
{
	struct ht ht;
	uint32_t go, forward = (a->flags & EP_HT_BACKWARD) == 0, early = gx_warp() < ht_early(a);

	ht_begin(&ht, a, EP_KIND_DISPATCH, far, a->topk ? a->topk : a->handle->topk, shared);
	if (far)
		ht_across_begin(&ht);
	if (!far && !early)
		ht_send_ahead(&ht);
	go = ht_open(&ht);
	if (!far && !go)
		gx_bulk_stage(&ht.bulk); /* the load in flight completes before the block ends */
	if (go && far) {
		ht_dispatch_across(&ht);
	} else if (go) {
		if (early && forward)
			ht_send_meta(&ht);
		if (early && gx_warps() > ht_early(a))
			ht_take_all(&ht);
		if (early)
			ht.ticket = gx_op_take(&a->state->ticket[HT_WORK]);
		ht_send(&ht);
		if (forward)
			ht_send_meta(&ht);
	}
	if (go) {
		ht_take_all(&ht);
		ht_copy(&ht);
	}
	if (gx_op_leave(&a->state->left)) { /* R6, A6 */
		if (far)
			ht_across_end(&ht);
		if (far && go && gx_tid() == 0)
			a->handle->relayed = 1;
		ht_end(&ht, go);
	}
}

GX_KERNEL(ht_dispatch)(GX_ARGS(struct ep_ht_args) a)
{
	GX_DYN_SHARED(shared);

	ht_dispatch_run(&a, NULL, shared);
}

GX_KERNEL(ht_far_dispatch)(GX_ARGS(struct ep_ht_args) a)
{
	GX_DYN_SHARED(shared);

	ht_dispatch_run(&a, &a.across.far, shared);
}
