/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT dispatch across nodes. Three kinds of work, none of which waits inside: forward a step that has arrived to its
 * final places in the node, fill a step for another node, send a token to the ranks of this node. A warp takes the
 * first that it finds, in this order: what has arrived frees slots for others.
 */
#ifndef EP_KERNELS_HT_DISPATCH_ACROSS_H
#define EP_KERNELS_HT_DISPATCH_ACROSS_H

#include "kernels/ht/across.h"
#include "kernels/ht/send.h"

/* ---- to another node ---- */

/* The row's head: the token's experts on that node. Lanes by k. */
GX_DEV void ht_pack_head(struct ht *ht, uint32_t token, uint32_t node, uint8_t *to)
{
	const struct ep_ht_args *a = ht->a;
	struct ep_ht_row *head = (struct ep_ht_row *)to;
	struct ep_ht_entry *entry = (struct ep_ht_entry *)(head + 1);
	uint32_t forward = !ht_is(ht, EP_HT_BACKWARD), n = 0;
	uint64_t at = (uint64_t)token * ht->topk;

	for (uint32_t i0 = 0; i0 < ht->topk; i0 += GX_WARP) {
		uint32_t i = i0 + gx_lane(), there = 0, to_entry;
		uint64_t mask;

		if (i < ht->topk && ht->list.expert[i] >= 0)
			there = a->across.where[ht_peer(ht, i)] == node;
		mask = gx_ballot((int)there);
		to_entry = n + gx_popc(mask & (((uint64_t)1 << gx_lane()) - 1));
		if (there && to_entry < ht->x.entries) {
			entry[to_entry].expert = (uint32_t)ht->list.expert[i];
			entry[to_entry].row = ht->list.row[i];
			entry[to_entry].flat = ht_is(ht, EP_HT_EXPERT_MAJOR) ? ht->list.flat[i] : ht->position[at + i];
			entry[to_entry].weight = forward ? a->in_weights[at + ht->position[at + i]] : 0.0f;
		}
		n += gx_popc(mask);
	}
	if (gx_lane() == 0) {
		head->key = a->call_key;
		head->count = n;
	}
}

/* From this rank's tensor to its memory for the net. loaded: the first part's load is in flight. */
GX_DEV void ht_pack_row(struct ht *ht, const uint8_t *src, uint8_t *dst, uint32_t bytes, uint32_t loaded)
{
	uint32_t room = gx_bulk_room(&ht->bulk);

	for (uint32_t at = 0; at < bytes; at += room) {
		uint32_t n = bytes - at < room ? bytes - at : room;

		if (at > 0 || !loaded)
			gx_bulk_load_own(&ht->bulk, src + at, n);
		gx_bulk_store(&ht->bulk, dst + at, 0, n);
	}
}

GX_DEV void ht_fill_step(struct ht *ht, struct ht_step step)
{
	const struct ep_ht_args *a = ht->a;
	const uint32_t *tokens = ht->x.tokens + (uint64_t)step.channel * a->shape.tmax + ht_step_first(ht, step.number);
	uint32_t rows = ht_step_rows(ht, &ht->x.out, step);
	uint8_t *to = ht_step_at(ht, &ht->x.out, step);

	for (uint32_t i = 0; i < rows; i++, to += ht->x.pitch) {
		uint32_t token = tokens[i];

		ht_fetch(ht, token);
		ht_pack_head(ht, token, step.channel, to);
		ht_pack_row(ht, a->in + (uint64_t)token * a->row_bytes, to + ht->x.head, a->row_bytes, 1);
		if (a->scale_bytes)
			ht_pack_row(ht, a->in_scales + (uint64_t)token * a->scale_bytes,
				    to + ht->x.head + ht_pad(a->row_bytes), a->scale_bytes, 0);
	}
	ht_step_send(ht, step);
}

/* ---- from another node ---- */

/* Whether entry i of a row is what it must be: an expert of this node, above the one before. Another rank wrote it. */
GX_DEV uint32_t ht_entry_good(const struct ht *ht, const struct ep_ht_entry *entry, uint32_t i)
{
	uint32_t expert = entry[i].expert;

	return expert < ht->a->shape.experts && !ht_elsewhere(ht, (int32_t)expert) &&
	       (i == 0 || entry[i - 1].expert < expert);
}

/* All lanes: the row's entries to the list, and to handle_mem for the combine. 0: it is no row of this call. */
GX_DEV uint32_t ht_unpack_head(struct ht *ht, uint32_t client, uint32_t row, const uint8_t *from)
{
	const struct ep_ht_row *head = (const struct ep_ht_row *)from;
	const struct ep_ht_entry *entry = (const struct ep_ht_entry *)(head + 1);
	uint64_t at = ((uint64_t)client * ht->a->shape.tmax + row) * ht->x.entries;
	uint32_t n = head->count, alike = head->key == ht->a->call_key, bad = n > ht->x.entries;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR);

	gx_syncwarp(); /* the row before no longer uses the list */
	for (uint32_t i = gx_lane(); alike && !bad && i < ht->topk; i += GX_WARP) {
		bad = i < n && !ht_entry_good(ht, entry, i);
		ht->list.expert[i] = i < n ? (int32_t)entry[i].expert : -1;
		ht->list.row[i] = i < n ? entry[i].row : EP_HT_NONE;
		ht->list.flat[i] = i >= n ? EP_HT_NONE : expert_major ? entry[i].flat : entry[i].row;
		if (i < ht->x.entries) {
			ht->x.expert[at + i] = ht->list.expert[i];
			ht->x.row[at + i] = ht->list.row[i];
		}
	}
	bad = gx_ballot((int)(bad || !alike)) != 0;
	if (bad && gx_lane() == 0)
		gx_op_fail(&ht->op, alike ? EP_KERR_COUNT : EP_KERR_SHAPE, ht->x.in.peer[client].rank, EP_KPHASE_RECV);
	gx_syncwarp();
	return !bad;
}

/* As ht_send_row, from what the net wrote. */
GX_DEV void ht_forward_row(struct ht *ht, const uint8_t *src, uint32_t bytes, uint32_t loaded)
{
	uint32_t room = gx_bulk_room(&ht->bulk);

	for (uint32_t at = 0; at < bytes; at += room) {
		uint32_t n = bytes - at < room ? bytes - at : room;

		if (at > 0 || !loaded)
			gx_bulk_load(&ht->bulk, src + at, n);
		gx_bulk_scatter(&ht->bulk, ht->list.dst, ht->topk, at, n);
	}
}

GX_DEV void ht_forward_meta(struct ht *ht, const struct ep_ht_entry *entry)
{
	for (uint32_t i = gx_lane(); i < ht->topk && ht->list.expert[i] >= 0; i += GX_WARP)
		if (ht->list.row[i] < ht->a->shape.capacity)
			ht_meta_entry(ht, ht->list.expert, i, ht->list.row[i], entry[i].weight, entry[i].flat);
}

/* 0: the operation has failed. */
GX_DEV uint32_t ht_forward_step(struct ht *ht, struct ht_step step)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t first = ht_step_first(ht, step.number), rows = ht_step_rows(ht, &ht->x.in, step);
	const uint8_t *from = ht_step_at(ht, &ht->x.in, step);
	uint32_t room = gx_bulk_room(&ht->bulk);

	for (uint32_t i = 0; i < rows; i++, from += ht->x.pitch) {
		const uint8_t *row = from + ht->x.head;

		gx_bulk_load(&ht->bulk, row, a->row_bytes < room ? a->row_bytes : room); /* while the head is read */
		if (!ht_unpack_head(ht, step.channel, first + i, from)) {
			gx_bulk_row(&ht->bulk); /* no load is in flight when the block ends */
			return 0;
		}
		ht_aim(ht, 0);
		ht_forward_row(ht, row, a->row_bytes, 1);
		if (a->scale_bytes) {
			ht_aim(ht, 1);
			ht_forward_row(ht, row + ht_pad(a->row_bytes), a->scale_bytes, 0);
		}
		if (ht_is(ht, EP_HT_EXPERT_MAJOR))
			ht_heads(ht);
		if (!ht_is(ht, EP_HT_BACKWARD))
			ht_forward_meta(ht, (const struct ep_ht_entry *)(from + sizeof(struct ep_ht_row)));
	}
	ht_step_free(ht, step);
	return 1;
}

/* ---- inside the node ---- */

GX_DEV void ht_send_here(struct ht *ht, uint32_t token)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t room = gx_bulk_room(&ht->bulk), any = 0;

	ht_list_load(ht, token);
	for (uint32_t i = gx_lane(); i < ht->topk; i += GX_WARP)
		any |= ht->list.expert[i] >= 0 && !ht_elsewhere(ht, ht->list.expert[i]);
	if (gx_ballot((int)any) == 0)
		return;
	gx_bulk_load_own(&ht->bulk, a->in + (uint64_t)token * a->row_bytes, a->row_bytes < room ? a->row_bytes : room);
	ht->ahead = 1;
	ht_send_token(ht, token);
}

/* ---- all of it ---- */

/* One thread: the rank of another node for which this rank waits. */
GX_DEV uint32_t ht_awaited(const struct ht *ht)
{
	uint32_t c = ht_untaken(ht, &ht->x.in);

	if (c < ht->x.in.n)
		return ht->x.in.peer[c].rank;
	c = ht_untaken(ht, &ht->x.out);
	return c < ht->x.out.n ? ht->x.out.peer[c].rank : EP_HT_NONE;
}

/* All lanes: does one piece of work; *here becomes 0 when no more tokens are left. One warp of a block keeps an eye on
 * what comes while tokens are left: the others would look only when they have nothing else to do. Not the first, which
 * begins with the meta. */
GX_DEV enum ht_found ht_dispatch_some(struct ht *ht, uint32_t *here, uint32_t *bad)
{
	struct ht_step in = ht_step_take(ht, &ht->x.in), out;

	if (ht_step_is(in)) {
		*bad = !ht_forward_step(ht, in);
		return HT_DONE_SOME;
	}
	out = ht_step_take(ht, &ht->x.out);
	if (ht_step_is(out)) {
		ht_fill_step(ht, out);
		return HT_DONE_SOME;
	}
	if (*here) {
		uint32_t item = ht_take(ht, HT_WORK);

		*here = item <= ht->a->tokens; /* one more: a rank without tokens signals too */
		if (item < ht->a->tokens)
			ht_send_here(ht, item);
		if (*here && gx_warp() == gx_warps() - 1)
			ht_look(ht, 1);
	}
	if (*here)
		return HT_DONE_SOME;
	return in.channel == HT_NO_MORE && out.channel == HT_NO_MORE ? HT_NOTHING_LEFT : HT_NOTHING_YET;
}

GX_DEV void ht_dispatch_across(struct ht *ht)
{
	uint32_t forward = !ht_is(ht, EP_HT_BACKWARD), here = 1, bad = 0;
	uint32_t items = ht->a->tokens + 1 + forward + (uint32_t)ht_steps_of(ht, &ht->x.in) +
			 (uint32_t)ht_steps_of(ht, &ht->x.out);
	struct ht_idle idle = { 0, 0 };
	enum ht_found found;
	uint32_t n;

	/* Which slots are free: what came since the last operation looked is not known yet. */
	if (gx_warp() == gx_warps() - 1)
		ht_look(ht, 1);
	/* As in one node: the other warps fill the first steps meanwhile. */
	n = forward && gx_warp() == 0 ? ht_send_meta(ht) : 0;

	while (!bad && (found = ht_dispatch_some(ht, &here, &bad)) != HT_NOTHING_LEFT) {
		enum gx_wait_result result;

		if (found == HT_DONE_SOME) {
			idle.spin = 0;
			n++;
			continue;
		}
		result = ht_idle(ht, &idle);
		bad = result != GX_ARRIVED;
		if (bad && gx_lane() == 0)
			ht_idle_fail(ht, result, ht_awaited(ht));
	}
	if (!bad && ht_finished(ht, HT_WORK, n, items)) {
		HT_TELL_ALL(ht, meta);
		HT_TELL_ALL(ht, done);
	}
}

#endif
