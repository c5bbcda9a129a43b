/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT dispatch. A token is read once and written straight to its final rows: in the tensors of the ranks that can be
 * reached, in the window of those that cannot, which then copy it themselves.
 *
 * Roles, all by ticket: meta (what goes with the rows: ids and weights, always through the window), work (a warp per
 * token), take (meta to the caller's tensors, padding), copy (rows that came through the window). The first warp of a
 * block starts with meta and take while the others move rows: they are all latency and no bandwidth.
 */
#include "kernels/args.h"
#include "kernels/ht_open.h"

/* ---- send ---- */

/* Where a piece of the token goes: which 0 the token, 1 its scales. */
GX_DEV void ht_aim(struct ht *ht, uint32_t which)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR), bytes = which ? a->scale_bytes : a->row_bytes;
	uint32_t in_stage = ep_ht_head(&a->shape, expert_major) + (which ? ht_pad(a->row_bytes) : 0);

	gx_syncwarp(); /* the piece before has been stored */
	for (uint32_t i = gx_lane(); i < ht->topk; i += GX_WARP) {
		uint8_t *dst = NULL;

		if (ht->list.expert[i] >= 0) {
			uint32_t peer = ht_peer(ht, i), first = ht_first(ht, i), row = ht->list.row[i];
			uint64_t to = ht->near_to[2 * peer + which];

			if (ht->near_to[2 * peer] != 0)
				dst = row != EP_HT_NONE && (first || expert_major)
					      ? (uint8_t *)(uintptr_t)(to + (uint64_t)row * bytes)
					      : NULL;
			else if (first && ht->list.flat[i] != EP_HT_NONE)
				dst = ht_staged(ht, peer, ht->list.flat[i]) + in_stage;
		}
		ht->list.dst[i] = dst;
	}
	gx_syncwarp();
}

/* Expert-major: a staged row says which rows it becomes. */
GX_DEV void ht_heads(struct ht *ht)
{
	for (uint32_t i = gx_lane(); i < ht->topk; i += GX_WARP) {
		uint32_t peer, n = 0, first = i;
		uint32_t *head;

		if (ht->list.expert[i] < 0)
			continue;
		peer = ht_peer(ht, i);
		if (ht->near_to[2 * peer] != 0)
			continue;
		while (!ht_first(ht, first))
			first--;
		head = (uint32_t *)ht_staged(ht, peer, ht->list.flat[i]);
		head[1 + i - first] = ht->list.row[i];
		for (uint32_t j = i; i == first && j < ht->topk && ht->list.expert[j] >= 0 && ht_peer(ht, j) == peer;
		     j++)
			n++;
		if (i == first)
			head[0] = n;
	}
}

GX_DEV void ht_send_row(struct ht *ht, const uint8_t *src, uint32_t bytes, uint32_t loaded)
{
	uint32_t room = gx_bulk_room(&ht->bulk);

	for (uint32_t at = 0; at < bytes; at += room) {
		uint32_t n = bytes - at < room ? bytes - at : room;

		if (at > 0 || !loaded)
			gx_bulk_load_own(&ht->bulk, src + at, n);
		gx_bulk_scatter(&ht->bulk, ht->list.dst, ht->topk, at, n);
	}
}

GX_DEV void ht_send_token(struct ht *ht, uint32_t token)
{
	const struct ep_ht_args *a = ht->a;
	const uint8_t *src = a->in + (uint64_t)token * a->row_bytes;
	uint32_t room = gx_bulk_room(&ht->bulk);

	/* The row and its routing come side by side. */
	gx_bulk_load_own(&ht->bulk, src, a->row_bytes < room ? a->row_bytes : room);
	ht_list_load(ht, token);
	ht_aim(ht, 0);
	ht_send_row(ht, src, a->row_bytes, 1);
	if (a->scale_bytes) {
		ht_aim(ht, 1);
		ht_send_row(ht, a->in_scales + (uint64_t)token * a->scale_bytes, a->scale_bytes, 0);
	}
	if (ht_is(ht, EP_HT_EXPERT_MAJOR))
		ht_heads(ht);
}

GX_DEV void ht_send(struct ht *ht)
{
	uint32_t items = ht->a->tokens + 1, item; /* one for the rank that has no token: it signals too */

	while ((item = ht_take(ht, HT_WORK)) < items) {
		if (item < ht->a->tokens)
			ht_send_token(ht, item);
		if (ht_finished(ht, HT_WORK, items))
			HT_TELL_ALL(ht, done);
	}
}

/* ---- meta ---- */

/* One entry of one token: lanes by (token, position). */
GX_DEV void ht_meta_entry(struct ht *ht, uint64_t token, uint32_t i)
{
	const struct ep_ht_args *a = ht->a;
	uint64_t at = token * ht->topk;
	const int32_t *expert = a->expert + at;
	uint32_t row = a->row[at + i], per_rank = a->shape.per_rank, peer, first = i, n = 1;
	float weight;
	uint8_t *to;

	if (expert[i] < 0 || row == EP_HT_NONE)
		return;
	peer = (uint32_t)expert[i] / per_rank;
	weight = a->in_weights[at + a->position[at + i]];
	to = ht_meta(ht, peer, row);
	if (ht_is(ht, EP_HT_EXPERT_MAJOR)) {
		*(float *)to = weight;
		return;
	}
	while (first > 0 && (uint32_t)expert[first - 1] / per_rank == peer)
		first--;
	((uint32_t *)to)[2 + 2 * (i - first)] = (uint32_t)expert[i] - peer * per_rank;
	((float *)to)[3 + 2 * (i - first)] = weight;
	if (i != first)
		return;
	while (i + n < ht->topk && expert[i + n] >= 0 && (uint32_t)expert[i + n] / per_rank == peer)
		n++;
	*(uint32_t *)to = n;
}

GX_DEV void ht_send_meta(struct ht *ht)
{
	uint32_t tokens = ht->a->tokens, items = (tokens + HT_SPAN - 1) / HT_SPAN + 1, item;

	while ((item = ht_take(ht, HT_META)) < items) {
		uint64_t first = (uint64_t)item * HT_SPAN, end = first + HT_SPAN < tokens ? first + HT_SPAN : tokens;

		for (uint64_t q = first * ht->topk + gx_lane(); q < end * ht->topk; q += GX_WARP)
			ht_meta_entry(ht, q / ht->topk, (uint32_t)(q % ht->topk));
		if (ht_finished(ht, HT_META, items))
			HT_TELL_ALL(ht, meta);
	}
}

/* ---- take: what the caller's small tensors get ---- */

/* Flat rows first to end: ids and weights by position, -1 and 0 where there is none. */
GX_DEV void ht_take_flat(struct ht *ht, uint64_t first, uint64_t end)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t rows = a->handle->rows;
	int64_t shift = ht_is(ht, EP_HT_GLOBAL) ? (int64_t)a->shape.rank * a->shape.per_rank : 0;

	for (uint64_t q = first * ht->topk + gx_lane(); q < end * ht->topk; q += GX_WARP) {
		uint64_t row = q / ht->topk;
		uint32_t i = (uint32_t)(q % ht->topk);
		const uint32_t *meta = (const uint32_t *)ht_meta(ht, a->shape.rank, (uint32_t)row);
		int64_t id = -1;
		float weight = 0.0f;

		if (row < rows && i < meta[0]) {
			id = (int64_t)meta[2 + 2 * i] + shift;
			weight = ((const float *)meta)[3 + 2 * i];
		}
		a->out_idx[q] = id;
		a->out_weights[q] = weight;
	}
}

/* The zone that a row of this rank is in. */
GX_DEV uint32_t ht_zone_of(const struct ht *ht, uint32_t row)
{
	uint32_t low = 0, high = ht->a->shape.per_rank - 1;

	while (low < high) { /* the last zone that begins at or before row; empty ones begin where the next does */
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

GX_DEV void ht_zero(uint8_t *to, uint32_t bytes)
{
	for (uint32_t i = gx_lane(); i < bytes; i += GX_WARP)
		to[i] = 0;
}

/* Zeros by the word where the row allows it. */
GX_DEV void ht_zero_row(uint8_t *to, uint32_t bytes)
{
	if ((((uintptr_t)to | bytes) & 3) != 0) {
		ht_zero(to, bytes);
		return;
	}
	for (uint32_t i = gx_lane(); i < bytes / 4; i += GX_WARP)
		((uint32_t *)to)[i] = 0;
}

/* Padding of the zones: piece of the alignment - 1 rows a zone can have at most. */
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

/* Items: spans of rows, then pieces of padding. Padding is at most alignment - 1 rows a zone. */
GX_DEV void ht_take_all(struct ht *ht)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR), pieces = (a->shape.alignment + 2) / 4;
	uint64_t rows = expert_major ? a->handle->rows : a->tail, span = expert_major ? HT_SPAN * 8 : HT_SPAN;
	uint32_t spans = ht_is(ht, EP_HT_BACKWARD) ? 0 : (uint32_t)((rows + span - 1) / span);
	uint32_t items = spans + (expert_major ? a->shape.per_rank * pieces : 0), item, came = 0;

	while ((item = ht_take(ht, HT_TAKE)) < items) {
		if (item >= spans) {
			ht_pad_zone(ht, (item - spans) / pieces, (item - spans) % pieces);
			continue;
		}
		if (!came && !HT_WAIT_ALL(ht, meta, ht->op.epoch, EP_KPHASE_RECV)) /* A5 */
			return;
		came = 1;
		if (expert_major)
			ht_take_expert(ht, item * span, (item + 1) * span < rows ? (item + 1) * span : rows);
		else
			ht_take_flat(ht, item * span, (item + 1) * span < rows ? (item + 1) * span : rows);
	}
}

/* ---- copy: rows that came through the window ---- */

/* To one row (flat) or to those its head names (expert-major). */
GX_DEV void ht_spread(struct ht *ht, uint32_t flat)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR), room = gx_bulk_room(&ht->bulk);
	const uint8_t *src = ht_staged(ht, a->shape.rank, flat);
	const uint32_t *head = (const uint32_t *)src;
	uint32_t n = expert_major ? head[0] : 1;

	n = n < ht->topk ? n : ht->topk; /* another rank wrote it */
	src += ep_ht_head(&a->shape, expert_major);
	for (uint32_t which = 0; which < (a->scale_bytes ? 2u : 1u); which++) {
		uint32_t bytes = which ? a->scale_bytes : a->row_bytes;
		uint8_t *out = which ? a->out_scales : a->out;

		gx_syncwarp();
		for (uint32_t i = gx_lane(); i < n; i += GX_WARP) {
			uint32_t row = expert_major ? head[1 + i] : flat;

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

		for (uint32_t i = item % HT_SLICES; ht->serve[source] && i < a->from[source].count; i += HT_SLICES)
			ht_spread(ht, a->from[source].first + i);
	}
	gx_bulk_drain(&ht->bulk);
}

GX_KERNEL(ht_dispatch)(GX_ARGS(struct ep_ht_args) a)
{
	GX_DYN_SHARED(shared);
	struct ht ht;
	uint32_t go, forward = (a.flags & EP_HT_BACKWARD) == 0;

	ht_begin(&ht, &a, EP_KIND_DISPATCH, a.topk ? a.topk : a.handle->topk, shared);
	go = ht_open(&ht);
	if (go) {
		if (gx_warp() == 0 && forward)
			ht_send_meta(&ht);
		if (gx_warp() == 0 && gx_warps() > 1)
			ht_take_all(&ht);
		ht_send(&ht);
		if (forward)
			ht_send_meta(&ht);
		ht_take_all(&ht);
		ht_copy(&ht);
	}
	if (gx_op_leave(&a.state->left)) /* R6, A6 */
		ht_end(&ht, go);
}
