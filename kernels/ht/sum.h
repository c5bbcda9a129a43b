/* SPDX-License-Identifier: Apache-2.0 */
/* HT combine: rows for readers that cannot access them, and the sum of a token's rows. */
#ifndef EP_KERNELS_HT_SUM_H
#define EP_KERNELS_HT_SUM_H

#include "kernels/gx/sum.h"
#include "kernels/ht/across.h"
#include "kernels/ht/open.h"

/* ---- rows that came from other nodes ---- */

GX_DEV uint32_t ht_is_across(const struct ht *ht, int32_t expert)
{
	return ht->op.far && ht->a->across.where[(uint32_t)expert / ht->a->shape.per_rank] != EP_HT_OWN;
}

/* The sum of a node, by entry i of the list and the token's number among those for the node. */
GX_DEV const uint8_t *ht_home_row(const struct ht *ht, uint32_t i, uint32_t number)
{
	struct ht_step step = { ht->a->across.where[ht_peer(ht, i)], ht_step_of(ht, number) };

	return ht_step_at(ht, &ht->x.in, step) + (number - ht_step_first(ht, step.number)) * ht->x.pitch;
}

/* Backward: the weight of entry i, from the head of its node's row. */
GX_DEV float ht_home_weight(const struct ht *ht, uint32_t token, uint32_t i)
{
	const uint32_t *where = ht->a->across.where, *cross = ht->x.cross + (uint64_t)token * ht->topk;
	uint32_t node = where[ht_peer(ht, i)], first = i, before = 0;

	for (uint32_t j = 0; j < i; j++)
		if (where[ht_peer(ht, j)] == node) {
			first = before == 0 ? j : first;
			before++;
		}
	return ((const float *)(ht_home_row(ht, first, cross[first]) + sizeof(struct ep_ht_row)))[before];
}

/* ---- serve ---- */

GX_DEV void ht_serve_rows(struct ht *ht, const struct ep_ht_run *run, uint32_t slice)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t room = gx_bulk_room(&ht->bulk);

	for (uint32_t i = slice; i < run->count; i += HT_SLICES) {
		const uint8_t *src = a->in + (uint64_t)(run->first + i) * a->row_bytes;
		uint8_t *dst = ht_staged(ht, a->shape.rank, run->first + i);

		for (uint32_t at = 0; at < a->row_bytes; at += room) {
			uint32_t n = a->row_bytes - at < room ? a->row_bytes - at : room;

			gx_bulk_load_own(&ht->bulk, src + at, n);
			gx_bulk_store(&ht->bulk, dst + at, 0, n);
		}
	}
}

/* The rows that one reader needs and cannot access, in slices; across nodes its relay reads them. */
GX_DEV void ht_serve_reader(struct ht *ht, uint32_t reader, uint32_t slice)
{
	const struct ep_ht_args *a = ht->a;

	if (!ht->serve[ht_via(ht, reader)])
		return;
	if (!ht_is(ht, EP_HT_EXPERT_MAJOR)) {
		ht_serve_rows(ht, &a->from[reader], slice);
		return;
	}
	for (uint32_t e = 0; e < a->shape.per_rank; e++)
		ht_serve_rows(ht, &a->zone[(uint64_t)reader * a->shape.per_rank + e], slice);
}

/* Weights of a span of rows, for their home ranks. */
GX_DEV void ht_serve_weights(struct ht *ht, uint64_t first, uint64_t end)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t wide = ht_is(ht, EP_HT_EXPERT_MAJOR) ? 1 : ht->topk;

	for (uint64_t q = first * wide + gx_lane(); q < end * wide; q += GX_WARP)
		((float *)ht_meta(ht, a->shape.rank, (uint32_t)(q / wide)))[q % wide] = a->in_weights[q];
}

GX_DEV void ht_serve(struct ht *ht)
{
	uint32_t rows = ht->a->handle->rows, item, n = 0;
	uint32_t slices = *ht->any ? ht->op.nranks * HT_SLICES : 0;
	uint32_t spans = ht_is(ht, EP_HT_BACKWARD) ? (rows + HT_SPAN - 1) / HT_SPAN + 1 : 0;

	if (slices + spans == 0)
		return;
	while ((item = ht_take(ht, HT_EXTRA)) < slices + spans) {
		uint64_t first = (uint64_t)(item - slices) * HT_SPAN;

		if (item < slices)
			ht_serve_reader(ht, item / HT_SLICES, item % HT_SLICES);
		else
			ht_serve_weights(ht, first, first + HT_SPAN < rows ? first + HT_SPAN : rows);
		n++;
	}
	if (ht_finished(ht, HT_EXTRA, n, slices + spans))
		HT_TELL_ALL(ht, meta);
}

/* All lanes: waits until what this rank reads from windows has been written. */
GX_DEV uint32_t ht_served(struct ht *ht)
{
	uint32_t bad = 0;

	for (uint32_t i0 = 0; i0 < ht_mates(ht); i0 += GX_WARP) {
		uint32_t has = i0 + gx_lane() < ht_mates(ht), r = ht_mate(ht, has ? i0 + gx_lane() : 0);

		has = has && ((ht->near_to[2 * r] == 0 && ht_may_stage(ht, r)) || ht_is(ht, EP_HT_BACKWARD));
		bad |= !ht_wait(ht, has ? &ht_from(ht, r)->meta : NULL, ht->op.epoch, r, EP_KPHASE_RECV); /* A5 */
	}
	bad = gx_ballot((int)bad) != 0;
	gx_syncwarp();
	return !bad;
}

/* ---- sum ---- */

/* The rows to sum, in order, without gaps; returns their number. cross: the token's numbers among those of other nodes,
 * whose rows come at the first expert there; NULL: rows of this node only. */
GX_DEV uint32_t ht_terms(struct ht *ht, const uint32_t *cross, const uint8_t **term)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR), n = 0;

	for (uint32_t i0 = 0; i0 < ht->topk; i0 += GX_WARP) {
		uint32_t i = i0 + gx_lane(), take = 0;
		const uint8_t *at = NULL;
		uint64_t mask;

		if (i < ht->topk && ht->list.expert[i] >= 0 && (expert_major || ht_first(ht, i))) {
			uint32_t peer = ht_peer(ht, i), row = ht->list.row[i];
			uint64_t to = ht->near_to[2 * peer];

			take = row < ht->near_rows[peer]; /* else none, or misplaced by another rank's counts */
			if (take)			  /* a rank of another node has no window here */
				at = to ? (const uint8_t *)(uintptr_t)(to + (uint64_t)row * a->row_bytes)
					: ht_staged(ht, peer, row);
		}
		if (cross && i < ht->topk && cross[i] != EP_HT_NONE) {
			take = 1;
			at = ht_home_row(ht, i, cross[i]) + ht->x.head;
		}
		mask = gx_ballot((int)take);
		if (take)
			term[n + gx_popc(mask & (((uint64_t)1 << gx_lane()) - 1))] = at;
		n += gx_popc(mask);
	}
	gx_syncwarp();
	return n;
}

/* Backward: the weight that came back for each of the caller's k. */
GX_DEV void ht_weights(struct ht *ht, uint32_t token)
{
	const struct ep_ht_args *a = ht->a;

	for (uint32_t k = gx_lane(); k < ht->topk; k += GX_WARP) {
		uint64_t at = (uint64_t)token * ht->topk + k;
		int32_t id = ht->given[at];
		uint32_t i = 0, first;
		float weight = 0.0f;

		while (i < ht->topk && ht->list.expert[i] != id)
			i++;
		if (id >= 0 && i < ht->topk && ht->list.row[i] != EP_HT_NONE && ht_is_across(ht, id)) {
			weight = ht_home_weight(ht, token, i);
		} else if (id >= 0 && i < ht->topk && ht->list.row[i] != EP_HT_NONE) {
			for (first = i; !ht_is(ht, EP_HT_EXPERT_MAJOR) && !ht_first(ht, first);)
				first--;
			weight = ((const float *)ht_meta(ht, ht_peer(ht, i), ht->list.row[i]))[i - first];
		}
		a->out_weights[at] = weight;
	}
}

/* The biases' rows, which come before all others; returns their number. Terms like any other: the loops over terms have
 * no case for them. Complete with the barrier of ht_terms. */
GX_DEV uint32_t ht_bias_terms(const struct ht *ht, uint32_t token, const uint8_t **term)
{
	const struct ep_ht_args *a = ht->a;

	for (uint32_t i = gx_lane(); i < a->biases; i += GX_WARP)
		term[i] = a->bias[i] + (uint64_t)token * a->row_bytes;
	return a->biases;
}

GX_DEV void ht_sum_token(struct ht *ht, uint32_t token)
{
	const struct ep_ht_args *a = ht->a;
	const uint8_t **term = (const uint8_t **)ht->list.dst;
	struct sum sum = { NULL, NULL, NULL, 0, a->hidden, gx_lane(), GX_WARP };

	if (!ht->ahead)
		ht_list_load(ht, token);
	ht->ahead = 0;
	sum.out = a->out + (uint64_t)token * a->row_bytes;
	sum.term = term;
	sum.terms = ht_bias_terms(ht, token, term);
	sum.terms += ht_terms(ht, ht->op.far ? ht->x.cross + (uint64_t)token * ht->topk : NULL, term + sum.terms);
	sum_rows_plain(&sum, a->dtype);
	if (ht_is(ht, EP_HT_BACKWARD))
		ht_weights(ht, token);
}

#endif
