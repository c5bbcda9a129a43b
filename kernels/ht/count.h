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

/* The rank of an expert: by a multiplication, which is one too high at most; a division is many instructions. */
GX_DEV uint32_t ht_rank_of(const struct ht *ht, uint32_t expert)
{
	uint32_t rank = (uint32_t)(expert * ht->share >> 32);

	return rank - (rank * ht->a->shape.per_rank > expert);
}

/* A batch of tokens in the warp's shared memory, [tokens][topk] each. */
struct ht_sort {
	int32_t *id;	    /* as given */
	int32_t *kept;	    /* the id at its last k, else -1 */
	uint32_t *row;	    /* in its place, once ordered: earlier tokens of the piece for that expert */
	int32_t *expert;    /* the kept ones, ascending; -1: no more */
	uint32_t *position; /* their k */
	uint32_t *first;    /* where the first expert of the same rank is */
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

/* Entries of the batch that a lane handles together: every step is a chain of reads of shared memory. */
#define HT_LANE 2u
#define HT_BINS 3u /* of an entry: its expert's, and at the first expert of a rank or node that one's */

/* The k of a lane's entries, which are GX_WARP apart, without a division for each. */
struct ht_ks {
	uint32_t k, step, topk;
};

GX_DEV struct ht_ks ht_ks_begin(const struct ht *ht)
{
	struct ht_ks s = { gx_lane() % ht->topk, GX_WARP % ht->topk, ht->topk };

	return s;
}

GX_DEV uint32_t ht_ks_next(struct ht_ks *s)
{
	uint32_t k = s->k, next = k + s->step;

	s->k = next < s->topk ? next : next - s->topk;
	return k;
}

/* Lanes by (token, k): an expert that occurs twice counts at its last k. */
GX_DEV void ht_keep(struct ht *ht, uint32_t n, const struct ht_sort *w)
{
	struct ht_ks ks = ht_ks_begin(ht);

	GX_ROLL
	for (uint32_t m = gx_lane(); m < n; m += GX_WARP * HT_LANE) {
		int32_t kept[HT_LANE];
		uint32_t left[HT_LANE];

		for (uint32_t u = 0; u < HT_LANE; u++) {
			left[u] = m + u * GX_WARP < n ? ht->topk - ht_ks_next(&ks) : 0;
			kept[u] = left[u] ? w->id[m + u * GX_WARP] : -1;
		}
		GX_ROLL
		for (uint32_t j = 1; j < ht->topk; j++)
			for (uint32_t u = 0; u < HT_LANE; u++) {
				uint32_t later = j < left[u]; /* loaded in any case: no branch */

				later &= w->id[m + (later ? u * GX_WARP + j : 0)] == kept[u];
				kept[u] = later ? -1 : kept[u];
			}
		for (uint32_t u = 0; u < HT_LANE && m + u * GX_WARP < n; u++) {
			w->kept[m + u * GX_WARP] = kept[u];
			w->expert[m + u * GX_WARP] = -1;
			w->flat[m + u * GX_WARP] = EP_HT_NONE;
			if (ht->op.far)
				w->node[m + u * GX_WARP] = EP_HT_NONE;
		}
	}
	gx_syncwarp();
}

/* The bin of the node of kept[k], if that is the token's first expert there; else EP_HT_NONE. */
GX_DEV uint32_t ht_node_bin(const struct ht *ht, const int32_t *kept, uint32_t k)
{
	const struct ep_ht_shape *s = &ht->a->shape;
	const uint32_t *where = ht->a->across.where;
	uint32_t node = where[ht_rank_of(ht, (uint32_t)kept[k])];

	if (node == EP_HT_OWN)
		return EP_HT_NONE;
	for (uint32_t j = 0; j < ht->topk; j++)
		if (kept[j] >= 0 && kept[j] < kept[k] && where[ht_rank_of(ht, (uint32_t)kept[j])] == node)
			return EP_HT_NONE;
	return s->experts + s->nranks + node;
}

/* An entry with a kept expert, m: its rank; k; how many of the token's experts precede it, and how many of lower ranks
 * do. */
struct ht_entry {
	uint32_t rank, k, before, lower;
};

GX_DEV void ht_order_one(struct ht *ht, const struct ht_sort *w, uint32_t m, const struct ht_entry *e)
{
	uint32_t token = m - e->k, to = token + e->before;

	w->expert[to] = w->kept[m];
	w->position[to] = e->k;
	w->first[to] = token + e->lower;
	if (e->before == e->lower)
		w->flat[to] = ht->a->shape.experts + e->rank;
	if (ht->op.far)
		w->node[to] = ht_node_bin(ht, w->kept + token, e->k);
}

GX_DEV void ht_order(struct ht *ht, uint32_t n, const struct ht_sort *w)
{
	struct ht_ks ks = ht_ks_begin(ht);

	GX_ROLL
	for (uint32_t m = gx_lane(); m < n; m += GX_WARP * HT_LANE) {
		/* Unsigned, -1 is above all experts: it counts for none. */
		uint32_t mine[HT_LANE], rank_first[HT_LANE];
		struct ht_entry e[HT_LANE];

		for (uint32_t u = 0; u < HT_LANE; u++) {
			mine[u] = m + u * GX_WARP < n ? (uint32_t)w->kept[m + u * GX_WARP] : UINT32_MAX;
			e[u].rank = ht_rank_of(ht, mine[u]);
			rank_first[u] = e[u].rank * ht->a->shape.per_rank;
			e[u].k = m + u * GX_WARP < n ? ht_ks_next(&ks) : m + u * GX_WARP;
			e[u].before = e[u].lower = 0;
		}
		GX_ROLL
		for (uint32_t j = 0; j < ht->topk; j++)
			for (uint32_t u = 0; u < HT_LANE; u++) {
				uint32_t other = (uint32_t)w->kept[m + u * GX_WARP - e[u].k + j];

				e[u].before += other < mine[u];
				e[u].lower += other < rank_first[u];
			}
		for (uint32_t u = 0; u < HT_LANE; u++)
			if (mine[u] != UINT32_MAX)
				ht_order_one(ht, w, m + u * GX_WARP, &e[u]);
	}
	gx_syncwarp();
}

/* The counts of a lane's bins before this token: one more each. */
GX_DEV void ht_tally_one(const struct ht_sort *w, uint32_t m, const uint32_t *bin, uint32_t *hist)
{
	uint32_t *to[HT_BINS] = { w->row + m, w->flat + m, w->node + m };
	uint32_t n[HT_BINS];

	for (uint32_t i = 0; i < HT_BINS; i++)
		n[i] = bin[i] != EP_HT_NONE ? hist[bin[i]] : 0;
	for (uint32_t i = 0; i < HT_BINS; i++)
		if (bin[i] != EP_HT_NONE) {
			hist[bin[i]] = n[i] + 1;
			*to[i] = n[i];
		}
	gx_syncwarp();
}

/* The only step that goes token by token, and in a token by the warp's width. hist: this piece's counts. A token's bins
 * are distinct: no lanes collide. */
GX_DEV void ht_tally(struct ht *ht, uint32_t n, const struct ht_sort *w, uint32_t *hist)
{
	uint32_t token = 0, first = 0;

	GX_ROLL
	while (token < n) {
		uint32_t m[HT_LANE], bin[HT_LANE][HT_BINS];

		for (uint32_t u = 0; u < HT_LANE; u++) {
			uint32_t has = token < n && first + gx_lane() < ht->topk;

			m[u] = token + first + gx_lane();
			bin[u][0] = has ? (uint32_t)w->expert[m[u]] : EP_HT_NONE; /* -1 is EP_HT_NONE */
			bin[u][1] = has ? w->flat[m[u]] : EP_HT_NONE;
			bin[u][2] = has && ht->op.far ? w->node[m[u]] : EP_HT_NONE;
			first += GX_WARP;
			token += first < ht->topk ? 0 : ht->topk;
			first = first < ht->topk ? first : 0;
		}
		for (uint32_t u = 0; u < HT_LANE; u++)
			ht_tally_one(w, m[u], bin[u], hist);
	}
}

/* To handle_mem; rows are still relative to the piece's first. */
GX_DEV void ht_keep_routing(struct ht *ht, uint64_t at, uint32_t n, const struct ht_sort *w)
{
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR);

	GX_ROLL
	for (uint32_t m = gx_lane(); m < n; m += GX_WARP) {
		uint32_t some = w->expert[m] >= 0, flat = some ? w->flat[w->first[m]] : EP_HT_NONE;

		ht->given[at + m] = w->id[m];
		ht->expert[at + m] = w->expert[m];
		ht->position[at + m] = some ? w->position[m] : 0;
		ht->row[at + m] = some && expert_major ? w->row[m] : flat;
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
	w.row = (uint32_t *)w.kept;
	w.expert = w.kept + n;
	w.position = (uint32_t *)(w.expert + n);
	w.first = w.position + n;
	w.flat = w.first + n;
	w.node = w.flat + n;
	return w;
}

GX_DEV void ht_clear(uint32_t *hist, uint64_t bins)
{
	GX_ROLL
	for (uint64_t i = gx_lane(); i < bins; i += GX_WARP)
		hist[i] = 0;
	gx_syncwarp();
}

/* The warp's counts in shared memory, if they fit: in global memory each step is a round trip to the L2 cache. All 0
 * between pieces. */
GX_DEV uint32_t *ht_hist(const struct ht *ht)
{
	uint64_t used = ep_ht_sort_bytes(ht->topk);

	return ht->a->lane_bytes > used ? (uint32_t *)((uint8_t *)ht->list.dst + used) : NULL;
}

GX_DEV void ht_count_chunk(struct ht *ht, uint32_t chunk)
{
	uint64_t bins = ht->a->shape.bins;
	uint32_t end = ht_chunk_first(ht, chunk + 1), batch = ep_ht_batch(ht->topk);
	uint32_t *out = ht->chunk + chunk * bins, *near = ht_hist(ht);
	struct ht_sort sort = ht_sort_at(ht);

	if (!near)
		ht_clear(out, bins);
	for (uint32_t t = ht_chunk_first(ht, chunk); t < end; t += batch) {
		uint64_t at = (uint64_t)t * ht->topk;
		uint32_t n = (end - t < batch ? end - t : batch) * ht->topk;

		ht_load_ids(ht, at, n, &sort);
		ht_keep(ht, n, &sort);
		ht_order(ht, n, &sort);
		if (near)
			ht_tally(ht, n, &sort, near); /* known to be shared memory */
		else
			ht_tally(ht, n, &sort, out);
		ht_keep_routing(ht, at, n, &sort);
	}
	GX_ROLL
	for (uint64_t i = gx_lane(); near && i < bins; i += GX_WARP) {
		out[i] = near[i];
		near[i] = 0;
	}
	gx_syncwarp();
}

/* All threads: 1 for the one block that is ordered after every piece (R4, A4). */
GX_DEV uint32_t ht_count(struct ht *ht)
{
	GX_SHARED uint32_t mine, last;
	uint32_t chunk, next = gx_op_take(&ht->a->state->ticket[HT_WORK]), n = 0;

	if (gx_tid() == 0)
		mine = 0;
	if (ht_hist(ht))
		ht_clear(ht_hist(ht), ht->a->shape.bins); /* while the ticket comes */
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
