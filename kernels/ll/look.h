/* SPDX-License-Identifier: Apache-2.0 */
/* Looking for the words of far ranks, which the net writes to pinned memory: one warp at a time, for all. */
#ifndef EP_KERNELS_LL_LOOK_H
#define EP_KERNELS_LL_LOOK_H

#include "kernels/gx/gx.h"
#include "kernels/ll/args.h"

#define LL_LOOK 4u /* loads in flight per lane */

/* All lanes: whether this warp has the lock of that kind of words now. hurry: asks without looking at it first, which
 * takes as long. */
GX_DEV uint32_t ll_look_lock(const struct ep_ll_args *a, uint32_t words, uint32_t hurry)
{
	uint32_t *lock = &a->state->looking[words], taken = 0;

	if (gx_lane() == 0)
		taken = (hurry || gx_ld_relaxed_u32(lock) == 0) && gx_dev_cas_acquire_u32(lock, 0, 1) == 0;
	taken = gx_shfl_u32(taken, 0);
	gx_syncwarp();
	return taken;
}

/* Without an order: a fence here would delay what the warp has waited for. So the next one may take an old `was`, or a
 * store of this one come behind the next one's; then a word is shown once more, by whoever looks next. */
GX_DEV void ll_look_unlock(const struct ep_ll_args *a, uint32_t words)
{
	gx_syncwarp();
	if (gx_lane() == 0)
		gx_st_relaxed_u32(&a->state->looking[words], 0);
}

/* All lanes, with the lock: reads all words of the kind, and shows what is new. What is shown is loaded while the words
 * are. mine: the number of a word; returns that one, or 0 if there is none. */
GX_DEV uint64_t ll_look_at(const struct ep_ll_args *a, uint32_t words, uint32_t mine)
{
	uint32_t n = a->shape.nranks;
	uint64_t seen = 0;
	uint64_t at = words == EP_LL_COUNTED	? ep_ll_counted_at(n, 0)
		      : words == EP_LL_STEPS	? ep_ll_step_at(n, 0, 0)
		      : words == EP_LL_BARRIERS ? ep_ll_barrier_at(n, 0)
		      : words == EP_LL_CLEANS	? ep_ll_clean_at(n, 0) + EP_LL_CLEAN_NUMBER
						: (uint64_t)words * n * EP_LL_LINE;
	const uint64_t *from = (const uint64_t *)(a->far.control + ep_ll_far_at(n, at));
	uint64_t step = words == EP_LL_CLEANS || words == EP_LL_BARRIERS ? 2 : 1, line = EP_LL_LINE;

	if (words == EP_LL_STEPS) {
		n *= EP_LL_STEPS_EACH;
		line = 8;
	}
	for (uint32_t r0 = 0; r0 < n; r0 += GX_WARP * LL_LOOK) {
		uint64_t was[LL_LOOK], now[LL_LOOK];

		for (uint32_t u = 0; u < LL_LOOK; u++) {
			uint32_t r = r0 + u * GX_WARP + gx_lane();

			was[u] = r < n ? gx_ld_relaxed_u64((uint64_t *)(a->mine + at + r * line)) : 0;
		}
		for (uint32_t u = 0; u < LL_LOOK; u++) {
			uint32_t r = r0 + u * GX_WARP + gx_lane();

			now[u] = r < n ? gx_ld_acquire_u64(&from[r * step]) : 0;
		}
		for (uint32_t u = 0; u < LL_LOOK; u++) {
			uint32_t r = r0 + u * GX_WARP + gx_lane();

			if (now[u] > was[u])
				gx_dev_st_release_u64((uint64_t *)(a->mine + at + r * line), now[u]); /* R6 */
		}
		for (uint32_t u = 0; u < LL_LOOK; u++) {
			uint64_t word = gx_shfl_u64(now[u], mine % GX_WARP);

			seen = mine - (r0 + u * GX_WARP) < GX_WARP ? word : seen;
		}
	}
	gx_syncwarp(); /* another lane may have acquired it */
	return seen;
}

/* All lanes: one look, unless another warp looks. */
GX_DEV void ll_look(const struct ep_ll_args *a, uint32_t words)
{
	if (!ll_look_lock(a, words, 0))
		return;
	ll_look_at(a, words, 0);
	ll_look_unlock(a, words);
}

#define LL_NO_WORDS EP_LL_WORDS

struct ll_looker {
	uint32_t held; /* the kind of words whose lock this warp has, or LL_NO_WORDS */
	uint64_t seen; /* of that kind, the word that the lane waits for */
};

/*
 * All lanes, once per iteration of a wait for words of that kind, or of none: looks, if it has the lock or gets it, and
 * keeps it: a reader that polls what it has shown itself before it reads again finds a word microseconds later. mine:
 * as for ll_look_at.
 */
GX_DEV void ll_look_on(const struct ep_ll_args *a, struct ll_looker *looker, uint32_t words, uint32_t mine,
		       uint32_t spin)
{
	if (looker->held != words && looker->held != LL_NO_WORDS) {
		ll_look_unlock(a, looker->held);
		looker->held = LL_NO_WORDS;
	}
	if (looker->held != words && spin % 4 == 0 && ll_look_lock(a, words, spin == 0))
		looker->held = words;
	if (looker->held != LL_NO_WORDS)
		looker->seen = ll_look_at(a, words, mine);
}

#endif
