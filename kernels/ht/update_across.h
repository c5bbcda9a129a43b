/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT Update across nodes. A rank puts its counts to its relays, one put per node; each relay copies those of its
 * clients to its window, where its node reads them. Two buffers: a rank's counts of one Update are sent after it has
 * seen its relays' of the Update before, which were sent when those of the one before that had been copied.
 */
#ifndef EP_KERNELS_HT_UPDATE_ACROSS_H
#define EP_KERNELS_HT_UPDATE_ACROSS_H

#include "kernels/ht/across.h"

/* One warp: waits until counts may be written. The operation before may have been an Update whose counts a slower rank
 * still reads. */
GX_DEV uint32_t ht_may_write(struct ht *ht)
{
	uint32_t dead = gx_lane() == 0 && ht_dead(ht);

	if (gx_ballot((int)dead) != 0)
		return 0;
	return ht->a->state->settled == ht->op.epoch - 1 || HT_WAIT_ALL(ht, done, ht->op.epoch - 1, EP_KPHASE_SEND);
}

/* Where the counts of a client are put: an offset in the window. */
GX_DEV uint64_t ht_vector_at(const struct ht *ht, uint32_t client)
{
	return (2 * (uint64_t)client + (ht->a->state->updates & 1)) * ep_ht_vector(ht->a->shape.bins);
}

/* All threads: this rank's own counts, to its window and to its relays. */
GX_DEV void ht_counts_send(struct ht *ht)
{
	const struct ep_ht_across *x = &ht->a->across;
	uint64_t bins = ht->a->shape.bins, from = (ht->a->state->updates & 1) * ep_ht_vector(bins);
	uint32_t *own = ht_counts_in(ht, ht->op.rank, 0), *out = (uint32_t *)(x->far.send + from);

	for (uint64_t bin = gx_tid(); bin < bins; bin += gx_threads())
		own[bin] = out[4 + bin] = ht->total[bin];
	if (gx_tid() == 0)
		*(uint64_t *)out = ht->a->call_key;
	gx_syncthreads();
	for (uint32_t i0 = gx_warp() * GX_WARP; i0 < x->span.others; i0 += gx_threads()) {
		uint32_t has = i0 + gx_lane() < x->span.others;
		const struct ep_ht_peer *relay = &x->relay[has ? i0 + gx_lane() : 0];
		uint32_t to = has ? relay->rank : FAR_NOBODY;
		struct ep_cmd put = ep_cmd_put(to, x->far.window_place + ht_vector_at(ht, relay->there),
					       x->far.send_place + from, (uint32_t)ep_ht_vector(bins));

		gx_fence_sys();
		ht_far_push(ht, to, put);
		ht_far_push(ht, to, far_signal(ht->op.far, to, ep_ht_counts_word(relay->there), ht->op.epoch));
	}
}

/* One warp: waits for the counts of the clients. 0: the operation has failed. */
GX_DEV uint32_t ht_counts_wait(struct ht *ht)
{
	const struct ep_ht_across *x = &ht->a->across;
	struct gx_limit limit = ht_limit_later(ht, 1);
	uint32_t bad = 0;

	for (uint32_t c0 = 0; c0 < x->clients; c0 += GX_WARP) {
		uint32_t c = c0 + gx_lane(), has = c < x->clients, result;
		const uint8_t *word = has ? x->far.control + ep_ht_counts_word(c) : NULL;

		result = (uint32_t)gx_wait((const uint64_t *)word, ht->op.epoch, &limit);
		if (result != GX_ARRIVED)
			gx_op_fail_wait(&ht->op, result, x->client[c].rank, x->client[c].rank, EP_KPHASE_RECV);
		bad |= result != GX_ARRIVED;
		if (bad || !has || ht_is(ht, EP_HT_BARE))
			continue;
		if (*(const uint64_t *)(x->far.window + ht_vector_at(ht, c)) != ht->a->call_key) {
			gx_op_fail(&ht->op, EP_KERR_SHAPE, x->client[c].rank, EP_KPHASE_START);
			bad = 1;
		}
	}
	bad = gx_ballot((int)bad) != 0;
	gx_syncwarp();
	return !bad;
}

/* All threads: the clients' counts to this rank's window, and how many rows go to and come from other nodes. */
GX_DEV void ht_counts_keep(struct ht *ht)
{
	const struct ep_ht_across *x = &ht->a->across;
	const struct ep_ht_shape *s = &ht->a->shape;

	for (uint64_t i = gx_tid(); i < x->clients * (uint64_t)s->bins; i += gx_threads()) {
		uint32_t c = (uint32_t)(i / s->bins), bin = (uint32_t)(i % s->bins);
		uint32_t n = ((const uint32_t *)(x->far.window + ht_vector_at(ht, c)))[4 + bin];

		ht_counts_in(ht, ht->op.rank, 1 + c)[bin] = n;
		if (bin == s->experts + s->nranks + x->client[c].there)
			x->rows_in[c] = n < s->tmax ? n : s->tmax;
	}
	for (uint32_t i = gx_tid(); i < x->span.others; i += gx_threads())
		x->rows_out[i] = ht->total[s->experts + s->nranks + i];
}

/* All threads: 0 when the operation has failed. */
GX_DEV uint32_t ht_counts_across(struct ht *ht)
{
	GX_SHARED uint32_t came;

	ht_counts_send(ht);
	if (gx_warp() == 0) {
		uint32_t ok = ht_counts_wait(ht);

		if (gx_lane() == 0)
			came = ok;
	}
	gx_syncthreads();
	if (came)
		ht_counts_keep(ht);
	gx_syncthreads();
	return came;
}

#endif
