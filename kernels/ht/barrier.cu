/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT barrier: an Update without tokens, by one block. Its words are those of an Update, and so are the puts to other
 * nodes: a rank that makes another call meanwhile is told so by the key.
 */
#include "kernels/ht/update_across.h"

/* All threads: to this rank's relays that it is here, and from its clients. 0: the operation has failed. */
GX_DEV uint32_t ht_meet_across(struct ht *ht)
{
	const struct ep_ht_across *x = &ht->a->across;
	GX_SHARED uint32_t came;

	if (!ht_is(ht, EP_HT_BARE))
		ht_counts_send(ht);
	for (uint32_t i0 = gx_warp() * GX_WARP; ht_is(ht, EP_HT_BARE) && i0 < x->span.others; i0 += gx_threads()) {
		uint32_t has = i0 + gx_lane() < x->span.others;
		const struct ep_ht_peer *relay = &x->relay[has ? i0 + gx_lane() : 0];
		uint32_t to = has ? relay->rank : FAR_NOBODY;

		gx_fence_sys();
		ht_far_push(ht, to, far_signal(ht->op.far, to, ep_ht_counts_word(relay->there), ht->op.epoch));
	}
	if (gx_warp() == 0) {
		uint32_t ok = ht_counts_wait(ht);

		if (gx_lane() == 0)
			came = ok;
	}
	gx_syncthreads();
	return came;
}

/* One warp: the ranks of the node, each of which has met its clients. */
GX_DEV void ht_meet_mates(struct ht *ht)
{
	for (uint32_t i = gx_lane(); i < ht_mates(ht); i += GX_WARP)
		gx_st_relaxed_u64(&ht_line(ht, ht_mate(ht, i))->key, ht->a->call_key);
	HT_TELL_ALL(ht, counts);
	if (HT_WAIT_ALL(ht, counts, ht->op.epoch, EP_KPHASE_RECV))
		ht_alike(ht);
}

GX_DEV void ht_barrier_run(const struct ep_ht_args *a, const struct ep_far *far, uint8_t *shared)
{
	GX_SHARED uint32_t go;
	struct ht ht;

	ht_begin(&ht, a, EP_KIND_BARRIER, far, 0, shared);
	if (far)
		ht_across_begun(&ht);
	if (gx_warp() == 0) {
		uint32_t free = ht_may_write(&ht);

		if (gx_lane() == 0)
			go = free;
	}
	gx_syncthreads();
	if (go && (!far || ht_meet_across(&ht)) && gx_warp() == 0)
		ht_meet_mates(&ht);
	gx_syncthreads();
	if (far)
		ht_across_end(&ht);
	ht_close(&ht, 0);
}

GX_KERNEL(ht_barrier)(GX_ARGS(struct ep_ht_args) a)
{
	GX_DYN_SHARED(shared);

	ht_barrier_run(&a, NULL, shared);
}

GX_KERNEL(ht_far_barrier)(GX_ARGS(struct ep_ht_args) a)
{
	GX_DYN_SHARED(shared);

	ht_barrier_run(&a, &a.across.far, shared);
}
