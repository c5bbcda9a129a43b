/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT Update: computes where every row goes. Three steps in one launch, by ticket:
 *   count     a warp per piece of the tokens: each token's distinct experts in ascending order, and how many earlier
 *	       tokens of the piece go to the same expert and rank;
 *   exchange  the block that finishes counting: sends its counts to every rank, and computes from every rank's counts
 *	       the first row of this rank in every zone;
 *   place     row = first + tokens of earlier pieces + earlier tokens of the piece.
 * Rows depend on (source rank, token) only: the same routing gives the same rows on any device with any number of
 * blocks.
 */
#include "kernels/ht/count.h"
#include "kernels/ht/update_across.h"

/* ---- exchange: one block ---- */

#define HT_SCAN 32u /* loads in flight */

/* Counts by piece become prefix sums over the earlier pieces, of the bins that place rows; total[]: of all pieces. */
GX_DEV void ht_scan_chunks(struct ht *ht)
{
	uint64_t bins = ht->a->shape.bins, first = ht_is(ht, EP_HT_EXPERT_MAJOR) ? 0 : ht->a->shape.experts;

	for (uint64_t bin = gx_tid(); bin < bins; bin += gx_threads()) {
		uint32_t sum = 0;

		GX_ROLL
		for (uint32_t c = 0; c < EP_HT_CHUNKS; c += HT_SCAN) {
			uint32_t v[HT_SCAN];

			for (uint32_t i = 0; i < HT_SCAN; i++)
				v[i] = ht->chunk[(c + i) * bins + bin];
			for (uint32_t i = 0; i < HT_SCAN; i++) {
				if (bin >= first)
					ht->chunk[(c + i) * bins + bin] = sum;
				sum += v[i];
			}
		}
		ht->total[bin] = sum;
	}
	gx_syncthreads();
}

/* All threads: 0 when the operation has failed. */
GX_DEV uint32_t ht_swap_counts(struct ht *ht)
{
	GX_SHARED uint32_t ok;
	uint64_t bins = ht->a->shape.bins;

	if (ht->op.far && !ht_counts_across(ht))
		return 0;
	for (uint64_t bin = gx_tid(); !ht->op.far && bin < bins; bin += gx_threads()) {
		uint32_t n = ht->total[bin]; /* once: every load is a round trip to the L2 cache */

		for (uint32_t r = 0; r < ht->op.nranks; r++)
			ht_counts(ht, ht_control(ht, r), ht->op.rank)[bin] = n;
	}
	gx_syncthreads();
	if (gx_warp() == 0) {
		uint32_t here;

		for (uint32_t i = gx_lane(); i < ht_mates(ht); i += GX_WARP)
			gx_st_relaxed_u64(&ht_line(ht, ht_mate(ht, i))->key, ht->a->call_key);
		HT_TELL_ALL(ht, counts);
		here = HT_WAIT_ALL(ht, counts, ht->op.epoch, EP_KPHASE_RECV) && ht_alike(ht);
		if (gx_lane() == 0)
			ok = here;
	}
	gx_syncthreads();
	return ok;
}

/* Of HT_BATCH ranks, all loads in flight together; 0 past the last rank. */
GX_DEV void ht_load_counts(const struct ht *ht, uint32_t first, uint64_t bin, uint32_t *out)
{
	for (uint32_t u = 0; u < HT_BATCH; u++)
		out[u] = first + u < ht->op.nranks ? ht_counts_of(ht, first + u)[bin] : 0;
}

/* base[]: rows of lower ranks; total[]: of all ranks. *go becomes 0 if a rank counts more rows than it can have: sums
 * of them would overflow. */
GX_DEV void ht_sum_counts(struct ht *ht, uint32_t *go)
{
	uint64_t bins = ht->a->shape.bins;

	for (uint64_t bin = gx_tid(); bin < bins; bin += gx_threads()) {
		uint32_t before = 0, all = 0, liar = EP_HT_NONE;

		for (uint32_t r0 = 0; r0 < ht->op.nranks; r0 += HT_BATCH) {
			uint32_t v[HT_BATCH];

			ht_load_counts(ht, r0, bin, v);
			for (uint32_t u = 0; u < HT_BATCH; u++) {
				uint32_t bad = v[u] > ht->a->shape.tmax, n = bad ? 0 : v[u];

				liar = bad ? r0 + u : liar;
				before += r0 + u < ht->op.rank ? n : 0;
				all += n;
			}
		}
		if (liar != EP_HT_NONE) {
			gx_op_fail(&ht->op, EP_KERR_COUNT, liar, EP_KPHASE_RECV);
			*go = 0;
		}
		ht->base[bin] = before;
		ht->total[bin] = all;
	}
	gx_syncthreads();
}

/* Inclusive prefix sum over the lanes. */
GX_DEV uint64_t ht_scan(uint64_t v)
{
	GX_ROLL
	for (uint32_t d = 1; d < GX_WARP; d *= 2) {
		uint64_t low = gx_shfl_u64(v, gx_lane() >= d ? gx_lane() - d : gx_lane());

		v += gx_lane() >= d ? low : 0;
	}
	return v;
}

GX_DEV uint32_t ht_clamp(const struct ht *ht, uint64_t row)
{
	return row < ht->a->shape.capacity ? (uint32_t)row : ht->a->shape.capacity;
}

/* The end of a run. Counts are read again for the runs and may have changed, so a run ends where the sums end. */
GX_DEV uint32_t ht_run_end(uint64_t row, uint32_t end)
{
	return row < end ? (uint32_t)row : end;
}

/* The runs of every source in one zone of this rank. One thread. */
GX_DEV void ht_zone(struct ht *ht, uint32_t e, uint64_t first, uint32_t length)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t bin = a->shape.rank * a->shape.per_rank + e, start = ht_clamp(ht, first);
	uint32_t end = ht_clamp(ht, first + length), rows_end = ht_clamp(ht, first + ht->total[bin]);

	a->area[e].first = start;
	a->area[e].count = end - start;
	a->filled[e] = rows_end - start;
	for (uint32_t r0 = 0; r0 < ht->op.nranks; r0 += HT_BATCH) {
		uint32_t v[HT_BATCH];

		ht_load_counts(ht, r0, bin, v);
		for (uint32_t u = 0; u < HT_BATCH && r0 + u < ht->op.nranks; u++) {
			struct ep_ht_run *run = &a->zone[(uint64_t)(r0 + u) * a->shape.per_rank + e];

			run->first = ht_run_end(first, rows_end);
			run->count = ht_run_end(first + v[u], rows_end) - run->first;
			first += v[u];
		}
	}
}

/* Expert-major, a warp per rank: where its zones begin; base[] becomes the first row. Returns the last zone's end. */
GX_DEV uint64_t ht_zones_of(struct ht *ht, uint32_t rank)
{
	const struct ep_ht_shape *s = &ht->a->shape;
	uint64_t begin = 0;

	for (uint32_t e0 = 0; e0 < s->per_rank; e0 += GX_WARP) {
		uint32_t e = e0 + gx_lane(), bin = rank * s->per_rank + e, length = 0;
		uint64_t end;

		if (e < s->per_rank)
			length = (ht->total[bin] + s->alignment - 1) / s->alignment * s->alignment;
		end = begin + ht_scan(length);
		if (e < s->per_rank) {
			ht->base[bin] = ht_clamp(ht, end - length + ht->base[bin]); /* rows at capacity are dropped */
			if (rank == s->rank)
				ht_zone(ht, e, end - length, length);
		}
		begin = gx_shfl_u64(end, GX_WARP - 1);
	}
	return begin;
}

/* Flat rows by source. */
GX_DEV void ht_sources(struct ht *ht)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t bin = a->shape.experts + a->shape.rank, end_of_all = ht->total[bin];
	uint64_t begin = 0;

	if (!ht_is(ht, EP_HT_EXPERT_MAJOR))
		end_of_all = ht_clamp(ht, end_of_all);
	for (uint32_t r0 = 0; r0 < ht->op.nranks; r0 += GX_WARP) {
		uint32_t r = r0 + gx_lane(), n = r < ht->op.nranks ? ht_counts_of(ht, r)[bin] : 0;
		uint64_t end = begin + ht_scan(n);

		if (r < ht->op.nranks) {
			a->from[r].first = ht_run_end(end - n, end_of_all);
			a->from[r].count = ht_run_end(end, end_of_all) - a->from[r].first;
		}
		begin = gx_shfl_u64(end, GX_WARP - 1);
	}
}

/* The caller's counters, and the head of the handle. */
GX_DEV void ht_publish(struct ht *ht, uint64_t total)
{
	const struct ep_ht_args *a = ht->a;
	uint32_t flat = !ht_is(ht, EP_HT_EXPERT_MAJOR), wide = ht_is(ht, EP_HT_COUNT64);

	for (uint32_t e = gx_tid(); e < a->shape.per_rank; e += gx_threads()) {
		uint32_t n = flat ? ht->total[a->shape.rank * a->shape.per_rank + e] : a->area[e].count;

		ht_put(a->out_counts, e, n, wide);
		if (!flat)
			ht_put(a->out_offsets, e, a->area[e].first, wide);
	}
	if (gx_tid() != 0)
		return;
	ht_put(a->out_total, 0, total, ht_is(ht, EP_HT_TOTAL64));
	a->handle->magic = EP_HT_MAGIC;
	a->handle->key = a->routing_key;
	a->handle->tokens = a->tokens;
	a->handle->topk = ht->topk;
	a->handle->rows = ht_clamp(ht, total);
	a->handle->total = total;
	a->handle->relayed = 0;
}

/* One warp: a rank with more rows than its capacity, preferably this one; UINT32_MAX: none. serve[] has the warps'
 * results. */
GX_DEV uint32_t ht_overflown(const struct ht *ht)
{
	uint32_t over = UINT32_MAX;
	uint64_t mask;

	for (uint32_t r = gx_lane(); r < ht->op.nranks; r += GX_WARP)
		over = ht->serve[r] != 0 && (over == UINT32_MAX || r == ht->op.rank) ? r : over;
	mask = gx_ballot(over == ht->op.rank);
	if (mask == 0)
		mask = gx_ballot(over != UINT32_MAX);
	return mask == 0 ? UINT32_MAX : gx_shfl_u32(over, gx_popc((mask & -mask) - 1));
}

/* Every rank detects every overflow by itself: no rank needs to be notified. */
GX_DEV uint32_t ht_check_overflow(struct ht *ht)
{
	GX_SHARED uint32_t over;

	if (gx_warp() == 0) {
		uint32_t rank = ht_is(ht, EP_HT_DROP) ? UINT32_MAX : ht_overflown(ht);

		if (gx_lane() == 0 && rank != UINT32_MAX)
			gx_op_report(&ht->op, rank == ht->op.rank ? EP_KERR_OVERFLOW : EP_KERR_REMOTE, rank,
				     EP_KPHASE_START);
		if (gx_lane() == 0)
			over = rank;
	}
	gx_syncthreads();
	return over == UINT32_MAX;
}

/* All threads of the block. HT_GO or HT_STOP; *rows: of this rank, padding included, before any are dropped. */
GX_DEV uint32_t ht_exchange(struct ht *ht, uint64_t *rows)
{
	GX_SHARED uint64_t total;
	GX_SHARED uint32_t go;
	const struct ep_ht_shape *s = &ht->a->shape;

	/* By the last warp, which has few or no bins to scan. */
	if (gx_warp() == gx_warps() - 1) {
		uint32_t free = ht_may_write(ht);

		if (gx_lane() == 0)
			go = free;
	}
	ht_scan_chunks(ht);
	if (!go || !ht_swap_counts(ht))
		return HT_STOP;
	ht_sum_counts(ht, &go); /* every thread has read go */
	if (!go)
		return HT_STOP;
	for (uint32_t r = gx_warp(); r < s->nranks; r += gx_warps()) {
		uint64_t end = ht_is(ht, EP_HT_EXPERT_MAJOR) ? ht_zones_of(ht, r) : ht->total[s->experts + r];

		if (gx_lane() == 0)
			ht->serve[r] = end > s->capacity;
		if (gx_lane() == 0 && r == s->rank)
			total = end;
	}
	gx_syncthreads();
	*rows = total;
	return ht_check_overflow(ht) ? HT_GO : HT_STOP;
}

/* What no other block waits for: runs while they assign rows to the tokens. */
GX_DEV void ht_conclude(struct ht *ht, uint64_t total)
{
	if (gx_warp() == 0)
		ht_sources(ht);
	gx_syncthreads();
	if (gx_warp() == 0)
		HT_TELL_ALL(ht, done); /* the counts have been read */
	ht_publish(ht, total);
}

/* ---- place ---- */

#define HT_PLACE 4u /* entries of a lane, all loads in flight together */

/* Entries of a piece, starting at at; before[]: tokens of earlier pieces by bin. */
GX_DEV void ht_place_entries(struct ht *ht, uint64_t at, uint64_t end, const uint32_t *before)
{
	const struct ep_ht_shape *s = &ht->a->shape;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR);
	uint32_t e[HT_PLACE], row[HT_PLACE], flat[HT_PLACE]; /* e: -1, no expert, is EP_HT_NONE */

	for (uint32_t u = 0; u < HT_PLACE; u++) {
		e[u] = at + u * GX_WARP < end ? (uint32_t)ht->expert[at + u * GX_WARP] : EP_HT_NONE;
		row[u] = e[u] != EP_HT_NONE ? ht->row[at + u * GX_WARP] : 0;
		flat[u] = e[u] != EP_HT_NONE && expert_major ? ht->flat[at + u * GX_WARP] : 0;
	}
	for (uint32_t u = 0; u < HT_PLACE; u++) {
		uint32_t rank_bin = s->experts + ht_rank_of(ht, e[u]), bin = expert_major ? e[u] : rank_bin;
		uint64_t to = e[u] != EP_HT_NONE ? (uint64_t)row[u] + ht->base[bin] + before[bin] : 0;

		row[u] = to < s->capacity ? (uint32_t)to : EP_HT_NONE;
		flat[u] += e[u] != EP_HT_NONE && expert_major ? ht->base[rank_bin] + before[rank_bin] : 0;
	}
	for (uint32_t u = 0; u < HT_PLACE; u++) {
		if (e[u] == EP_HT_NONE)
			continue;
		ht->row[at + u * GX_WARP] = row[u];
		if (expert_major)
			ht->flat[at + u * GX_WARP] = flat[u];
	}
}

/* Tokens for other nodes: their numbers among those for the node, and back. */
GX_DEV void ht_place_crossing(struct ht *ht, uint64_t at, uint64_t end, const uint32_t *before)
{
	const struct ep_ht_shape *s = &ht->a->shape;

	for (; at < end; at += GX_WARP) {
		uint32_t earlier = ht->x.cross[at], node;

		if (earlier == EP_HT_NONE)
			continue;
		node = ht->a->across.where[ht_rank_of(ht, (uint32_t)ht->expert[at])];
		earlier += before[s->experts + s->nranks + node];
		ht->x.cross[at] = earlier;
		ht->x.tokens[(uint64_t)node * s->tmax + earlier] = (uint32_t)(at / ht->topk);
	}
}

GX_DEV void ht_place_chunk(struct ht *ht, uint32_t chunk)
{
	const struct ep_ht_shape *s = &ht->a->shape;
	const uint32_t *before = ht->chunk + chunk * s->bins;
	uint64_t end = (uint64_t)ht_chunk_first(ht, chunk + 1) * ht->topk;
	uint64_t at = (uint64_t)ht_chunk_first(ht, chunk) * ht->topk + gx_lane();

	if (ht->op.far)
		ht_place_crossing(ht, at, end, before);
	for (; at < end; at += GX_WARP * HT_PLACE)
		ht_place_entries(ht, at, end, before);
}

GX_DEV void ht_update_run(const struct ep_ht_args *a, const struct ep_far *far, uint8_t *shared)
{
	uint32_t chunk;
	struct ht ht;

	ht_begin(&ht, a, EP_KIND_UPDATE, far, a->topk, shared);
	ht.share = (uint64_t)(UINT32_MAX / a->shape.per_rank) + 1;
	if (far)
		ht_across_begin(&ht);
	if (ht_count(&ht)) {
		uint64_t total = 0;
		uint32_t go = ht_exchange(&ht, &total);

		gx_syncthreads();
		if (gx_tid() == 0 && go != HT_GO)
			a->handle->magic = 0; /* rows were counted but not placed */
		if (gx_tid() == 0)
			gx_dev_add_acqrel_u32(&a->state->ready, go); /* R3 */
		if (go == HT_GO)
			ht_conclude(&ht, total);
	}
	if (ht_ready(&ht))
		while ((chunk = ht_take(&ht, HT_TAKE)) < EP_HT_CHUNKS)
			ht_place_chunk(&ht, chunk);
	if (gx_op_leave(&a->state->left)) { /* R6, A6 */
		if (far)
			ht_across_end(&ht);
		ht_close(&ht, 0);
	}
}

/* Two kernels, so that a group in one node has none of the code for several. */
GX_KERNEL(ht_update)(GX_ARGS(struct ep_ht_args) a)
{
	GX_DYN_SHARED(shared);

	ht_update_run(&a, NULL, shared);
}

GX_KERNEL(ht_far_update)(GX_ARGS(struct ep_ht_args) a)
{
	GX_DYN_SHARED(shared);

	ht_update_run(&a, &a.across.far, shared);
}
