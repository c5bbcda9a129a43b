/* SPDX-License-Identifier: Apache-2.0 */
/* HT dispatch: rows, and the ids and weights that accompany them, to the ranks of the node. */
#ifndef EP_KERNELS_HT_SEND_H
#define EP_KERNELS_HT_SEND_H

#include "kernels/ht/open.h"

/* Across nodes: an expert of another node. */
GX_DEV uint32_t ht_elsewhere(const struct ht *ht, int32_t expert)
{
	return ht->a->across.where[(uint32_t)expert / ht->a->shape.per_rank] != EP_HT_OWN;
}

/* ---- send ---- */

/* Destinations of one part of the token's row; which: 0 the token, 1 its scales. */
GX_DEV void ht_aim(struct ht *ht, uint32_t which)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR), bytes = which ? a->scale_bytes : a->row_bytes;
	uint32_t in_stage = ep_ht_head(&a->shape, expert_major) + (which ? ht_pad(a->row_bytes) : 0);

	gx_syncwarp(); /* the part before has been stored */
	for (uint32_t i = gx_lane(); i < ht->topk; i += GX_WARP) {
		uint8_t *dst = NULL;

		if (ht->list.expert[i] >= 0) {
			uint32_t peer = ht_peer(ht, i), first = ht_first(ht, i), row = ht->list.row[i];
			uint64_t to = ht->near_to[2 * peer + which];

			/* A row beyond the last: none, or one that another rank's counts placed there. */
			if (ht->near_to[2 * peer] != 0)
				dst = row < ht->near_rows[peer] && (first || expert_major)
					      ? (uint8_t *)(uintptr_t)(to + (uint64_t)row * bytes)
					      : NULL;
			else if (first && ht->list.flat[i] < ht->near_rows[peer])
				dst = ht_staged(ht, peer, ht->list.flat[i]) + in_stage;
		}
		ht->list.dst[i] = dst;
	}
	gx_syncwarp();
}

/* Expert-major: the head of a staged row lists its output rows. */
GX_DEV void ht_heads(struct ht *ht)
{
	for (uint32_t i = gx_lane(); i < ht->topk; i += GX_WARP) {
		uint32_t peer, n = 0, first = i;
		uint32_t *head;

		if (ht->list.expert[i] < 0)
			continue;
		peer = ht_peer(ht, i);
		if (ht->near_to[2 * peer] != 0 || ht->list.flat[i] >= ht->near_rows[peer])
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

/* loaded: the first part's load is in flight. */
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

/* The loads of the row and of its routing overlap. */
GX_DEV void ht_fetch(struct ht *ht, uint32_t token)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t room = gx_bulk_room(&ht->bulk);

	gx_bulk_load_own(&ht->bulk, a->in + (uint64_t)token * a->row_bytes, a->row_bytes < room ? a->row_bytes : room);
	ht_list_load(ht, token);
}

GX_DEV void ht_send_token(struct ht *ht, uint32_t token)
{
	const struct ep_ht_args *a = ht->a;

	if (!ht->ahead)
		ht_fetch(ht, token);
	ht->ahead = 0;
	ht_aim(ht, 0);
	ht_send_row(ht, a->in + (uint64_t)token * a->row_bytes, a->row_bytes, 1);
	if (a->scale_bytes) {
		ht_aim(ht, 1);
		ht_send_row(ht, a->in_scales + (uint64_t)token * a->scale_bytes, a->scale_bytes, 0);
	}
	if (ht_is(ht, EP_HT_EXPERT_MAJOR))
		ht_heads(ht);
}

/* Before the operation is open: what does not depend on other ranks. */
GX_DEV void ht_send_ahead(struct ht *ht)
{
	ht->ticket = gx_op_take(&ht->a->state->ticket[HT_WORK]);
	ht->ahead = gx_shfl_u32(ht->ticket, 0) < ht->a->tokens;
	if (ht->ahead)
		ht_fetch(ht, gx_shfl_u32(ht->ticket, 0));
}

/* ticket: the first one, in lane 0. */
GX_DEV void ht_send(struct ht *ht)
{
	uint32_t items = ht->a->tokens + 1, item, n = 0; /* one more: a rank without tokens signals too */

	while ((item = gx_shfl_u32(ht->ticket, 0)) < items) {
		ht->ticket = gx_op_take(&ht->a->state->ticket[HT_WORK]); /* overlaps with the row's stores */
		if (item < ht->a->tokens)
			ht_send_token(ht, item);
		n++;
	}
	if (ht_finished(ht, HT_WORK, n, items))
		HT_TELL_ALL(ht, done);
}

/* ---- meta ---- */

/* Entry i of the token whose experts are given; column: the caller's k of it. */
GX_DEV void ht_meta_entry(struct ht *ht, const int32_t *expert, uint32_t i, uint32_t row, float weight, uint32_t column)
{
	uint32_t per_rank = ht->a->shape.per_rank, peer = (uint32_t)expert[i] / per_rank, first = i, n = 1;
	uint8_t *to = ht_meta(ht, peer, row);

	if (ht_is(ht, EP_HT_EXPERT_MAJOR)) {
		*(float *)to = weight;
		return;
	}
	while (first > 0 && (uint32_t)expert[first - 1] / per_rank == peer)
		first--;
	((uint32_t *)to)[2 + 2 * (i - first)] =
		((uint32_t)expert[i] - peer * per_rank) | (ht_is(ht, EP_HT_IN_PLACE) ? column << 16 : 0);
	((float *)to)[3 + 2 * (i - first)] = weight;
	if (i != first)
		return;
	while (i + n < ht->topk && expert[i + n] >= 0 && (uint32_t)expert[i + n] / per_rank == peer)
		n++;
	*(uint32_t *)to = n;
}

/* n entries starting at at, lanes by (token, position): all loads are issued before the first result is used. */
GX_DEV void ht_meta_entries(struct ht *ht, uint64_t at, uint32_t n)
{
	const struct ep_ht_args *a = ht->a;

	for (uint32_t q = gx_lane(); q < n; q += GX_WARP * HT_BATCH) {
		uint32_t row[HT_BATCH], position[HT_BATCH], m;
		float weight[HT_BATCH];

		for (uint32_t u = 0; u < HT_BATCH; u++) {
			m = q + u * GX_WARP;
			row[u] = m < n ? ht->row[at + m] : EP_HT_NONE; /* also where there is no expert */
			position[u] = m < n && ht->expert[at + m] >= 0 ? ht->position[at + m] : 0;
			if (ht->op.far && row[u] != EP_HT_NONE && ht_elsewhere(ht, ht->expert[at + m]))
				row[u] = EP_HT_NONE; /* goes with the row */
		}
		for (uint32_t u = 0; u < HT_BATCH; u++) {
			m = q + u * GX_WARP;
			weight[u] = row[u] != EP_HT_NONE ? a->in_weights[at + m - m % ht->topk + position[u]] : 0.0f;
		}
		for (uint32_t u = 0; u < HT_BATCH; u++) {
			m = q + u * GX_WARP;
			if (row[u] != EP_HT_NONE)
				ht_meta_entry(ht, ht->expert + at + m - m % ht->topk, m % ht->topk, row[u], weight[u],
					      position[u]);
		}
	}
}

/* 1 in the warp that finished it, if no other warp is about to. Across nodes its news wait for the relayed rows'. */
GX_DEV uint32_t ht_send_meta(struct ht *ht)
{
	uint32_t tokens = ht->a->tokens, items = (tokens + HT_SPAN - 1) / HT_SPAN + 1, item, n = 0;

	while ((item = ht_take(ht, HT_META)) < items) {
		uint32_t first = item * HT_SPAN;

		if (first < tokens)
			ht_meta_entries(ht, (uint64_t)first * ht->topk,
					(tokens - first < HT_SPAN ? tokens - first : HT_SPAN) * ht->topk);
		n++;
	}
	if (!ht_finished(ht, HT_META, n, items))
		return 0;
	if (!ht->op.far)
		HT_TELL_ALL(ht, meta);
	return 1;
}

#endif
