/* SPDX-License-Identifier: Apache-2.0 */
/* HT Update, its first step: a warp per piece of the tokens sorts their experts and counts (kernels/ht/update.cu). */
#ifndef EP_KERNELS_HT_COUNT_H
#define EP_KERNELS_HT_COUNT_H

#include "kernels/ht/ht.h"

GX_DEV int64_t ht_given(const struct ep_ht_args *a, uint64_t at)
{
	if (a->flags & EP_HT_IDX32)
		return ((const int32_t *)a->topk_idx)[at];
	return ((const int64_t *)a->topk_idx)[at];
}

/* The caller's id, or -1; raises a flag for bad ones. */
GX_DEV int32_t ht_checked(const struct ht *ht, int64_t id)
{
	if (id >= 0 && id < (int64_t)ht->a->shape.experts)
		return (int32_t)id;
	if (id != -1)
		gx_st_relaxed_u32(&ht->a->async[EP_ASYNC_BAD_ID], 1);
	return -1;
}

/* A batch of tokens in the warp's shared memory, [tokens][topk] each. */
struct ht_sort {
	int32_t *id;	    /* as given */
	int32_t *kept;	    /* the id at its last k, else -1 */
	int32_t *expert;    /* the kept ones, ascending; -1: no more */
	uint32_t *position; /* their k */
	uint32_t *row;	    /* earlier tokens of the piece for that expert */
	/* At the first expert of a rank: its bin, then the piece's earlier tokens for that rank; else EP_HT_NONE. */
	uint32_t *flat;
	/* At the first expert of another node: its bin, then the piece's earlier tokens for that node; else
	 * EP_HT_NONE. Across nodes only. */
	uint32_t *node;
};

/* All loads of a batch in flight together. */
GX_DEV void ht_load_ids(struct ht *ht, uint64_t at, uint32_t n, const struct ht_sort *w)
{
	for (uint32_t q = gx_lane(); q < n; q += GX_WARP * HT_BATCH) {
		int64_t v[HT_BATCH];

		for (uint32_t u = 0; u < HT_BATCH; u++)
			v[u] = q + u * GX_WARP < n ? ht_given(ht->a, at + q + u * GX_WARP) : -1;
		for (uint32_t u = 0; u < HT_BATCH && q + u * GX_WARP < n; u++)
			w->id[q + u * GX_WARP] = ht_checked(ht, v[u]);
	}
	gx_syncwarp();
}

/* Lanes by (token, k): an expert that occurs twice counts at its last k. */
GX_DEV void ht_keep(struct ht *ht, uint32_t n, const struct ht_sort *w)
{
	for (uint32_t m = gx_lane(); m < n; m += GX_WARP) {
		int32_t kept = w->id[m];
		uint32_t end = m - m % ht->topk + ht->topk;

		for (uint32_t j = m + 1; j < end; j++)
			kept = w->id[j] == kept ? -1 : kept;
		w->kept[m] = kept;
		w->expert[m] = -1;
		w->flat[m] = EP_HT_NONE;
		if (ht->op.far)
			w->node[m] = EP_HT_NONE;
	}
	gx_syncwarp();
}

/* The bin of the node of kept[k], if that is the token's first expert there; else EP_HT_NONE. */
GX_DEV uint32_t ht_node_bin(const struct ht *ht, const int32_t *kept, uint32_t k)
{
	const struct ep_ht_shape *s = &ht->a->shape;
	const uint32_t *where = ht->a->across.where;
	uint32_t node = where[(uint32_t)kept[k] / s->per_rank];

	if (node == EP_HT_OWN)
		return EP_HT_NONE;
	for (uint32_t j = 0; j < ht->topk; j++)
		if (kept[j] >= 0 && kept[j] < kept[k] && where[(uint32_t)kept[j] / s->per_rank] == node)
			return EP_HT_NONE;
	return s->experts + s->nranks + node;
}

GX_DEV void ht_order(struct ht *ht, uint32_t n, const struct ht_sort *w)
{
	int32_t per_rank = (int32_t)ht->a->shape.per_rank;

	for (uint32_t m = gx_lane(); m < n; m += GX_WARP) {
		int32_t mine = w->kept[m], rank_first = mine - mine % per_rank;
		uint32_t k = m % ht->topk, to = m - k, first = 1;
		const int32_t *kept = w->kept + to;

		if (mine < 0)
			continue;
		for (uint32_t j = 0; j < ht->topk; j++) {
			uint32_t before = kept[j] >= 0 && kept[j] < mine;

			to += before;
			first = before && kept[j] >= rank_first ? 0 : first;
		}
		w->expert[to] = mine;
		w->position[to] = k;
		if (first)
			w->flat[to] = ht->a->shape.experts + (uint32_t)(mine / per_rank);
		if (ht->op.far)
			w->node[to] = ht_node_bin(ht, kept, k);
	}
	gx_syncwarp();
}

/* The only step that goes token by token. hist: this piece's counts. A token's bins are distinct: no lanes collide. */
GX_DEV void ht_tally(struct ht *ht, uint32_t n, const struct ht_sort *w, uint32_t *hist)
{
	for (uint32_t to = 0; to < n; to += ht->topk) {
		for (uint32_t m = to + gx_lane(); m < to + ht->topk; m += GX_WARP) {
			int32_t e = w->expert[m];
			uint32_t bin = w->flat[m];

			if (e >= 0) {
				w->row[m] = hist[e];
				hist[e] = w->row[m] + 1;
			}
			if (bin != EP_HT_NONE) {
				w->flat[m] = hist[bin];
				hist[bin] = w->flat[m] + 1;
			}
			if (ht->op.far && w->node[m] != EP_HT_NONE) {
				bin = w->node[m];
				w->node[m] = hist[bin];
				hist[bin] = w->node[m] + 1;
			}
		}
		gx_syncwarp();
	}
}

/* To handle_mem; rows are still relative to the piece's first. */
GX_DEV void ht_keep_routing(struct ht *ht, uint64_t at, uint32_t n, const struct ht_sort *w)
{
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR);

	for (uint32_t m = gx_lane(); m < n; m += GX_WARP) {
		uint32_t first = m, flat = EP_HT_NONE;

		if (w->expert[m] >= 0) {
			while (w->flat[first] == EP_HT_NONE) /* the first of the rank precedes it */
				first--;
			flat = w->flat[first];
		}
		ht->given[at + m] = w->id[m];
		ht->expert[at + m] = w->expert[m];
		ht->position[at + m] = w->expert[m] >= 0 ? w->position[m] : 0;
		ht->row[at + m] = w->expert[m] < 0 ? EP_HT_NONE : expert_major ? w->row[m] : flat;
		if (expert_major)
			ht->flat[at + m] = flat;
		if (ht->op.far)
			ht->x.cross[at + m] = w->node[m];
	}
	gx_syncwarp();
}

GX_DEV uint32_t ht_chunk_first(const struct ht *ht, uint32_t chunk)
{
	return (uint32_t)((uint64_t)ht->a->tokens * chunk / EP_HT_CHUNKS);
}

GX_DEV struct ht_sort ht_sort_at(const struct ht *ht)
{
	uint64_t n = (uint64_t)ep_ht_batch(ht->topk) * ht->topk;
	struct ht_sort w;

	w.id = (int32_t *)ht->list.dst;
	w.kept = w.id + n;
	w.expert = w.kept + n;
	w.position = (uint32_t *)(w.expert + n);
	w.row = w.position + n;
	w.flat = w.row + n;
	w.node = w.flat + n;
	return w;
}

/* Counts are in the warp's shared memory if they fit: in global memory each step is a round trip to the L2 cache. */
GX_DEV void ht_count_chunk(struct ht *ht, uint32_t chunk)
{
	const struct ep_ht_args *a = ht->a;
	uint64_t bins = a->shape.bins, used = ep_ht_sort_bytes(ht->topk);
	uint32_t *out = ht->chunk + chunk * bins, end = ht_chunk_first(ht, chunk + 1), batch = ep_ht_batch(ht->topk);
	uint32_t *hist = a->lane_bytes > used ? (uint32_t *)((uint8_t *)ht->list.dst + used) : out;
	struct ht_sort sort = ht_sort_at(ht);

	GX_ROLL
	for (uint64_t i = gx_lane(); i < bins; i += GX_WARP)
		hist[i] = 0;
	gx_syncwarp();
	for (uint32_t t = ht_chunk_first(ht, chunk); t < end; t += batch) {
		uint64_t at = (uint64_t)t * ht->topk;
		uint32_t n = (end - t < batch ? end - t : batch) * ht->topk;

		ht_load_ids(ht, at, n, &sort);
		ht_keep(ht, n, &sort);
		ht_order(ht, n, &sort);
		ht_tally(ht, n, &sort, hist);
		ht_keep_routing(ht, at, n, &sort);
	}
	for (uint64_t i = gx_lane(); hist != out && i < bins; i += GX_WARP)
		out[i] = hist[i];
	gx_syncwarp();
}

/* All threads: 1 for the one block that is ordered after every piece (R4, A4). */
GX_DEV uint32_t ht_count(struct ht *ht)
{
	GX_SHARED uint32_t mine, last;
	uint32_t chunk, next = gx_op_take(&ht->a->state->ticket[HT_WORK]), n = 0;

	if (gx_tid() == 0)
		mine = 0;
	gx_syncthreads();
	while ((chunk = gx_shfl_u32(next, 0)) < EP_HT_CHUNKS) {
		next = gx_op_take(&ht->a->state->ticket[HT_WORK]);
		ht_count_chunk(ht, chunk);
		n++;
	}
	if (gx_lane() == 0 && n > 0 && gx_dev_add_acqrel_u32(&ht->a->state->finished[HT_WORK], n) + n == EP_HT_CHUNKS)
		mine = 1;
	gx_syncthreads();
	if (gx_tid() == 0)
		last = mine;
	gx_syncthreads();
	return last;
}

#endif
