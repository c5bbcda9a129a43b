/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a whole warp. Shuffles and ballots exchange values and do not order memory, as on a GPU: only the
 * barrier is announced to TSan. */
#include "kernels/simt/block.h"
#include "kernels/simt/san.h"

SIMT_RAW static void warp_meet(struct simt_block *b, struct simt_thread *me, struct simt_warp *w, const char *where)
{
	simt_meet_check(b, &w->meet, "warp operation", where);
	if (w->lanes != GX_WARP || w->gone > 0)
		simt_die(b, "block %u warp %u: warp operation at %s with only %u of %u lanes", me->where.block,
			 (unsigned)(me->where.tid / GX_WARP), where, w->lanes - w->gone, (unsigned)GX_WARP);
	if (++w->meet.arrived == GX_WARP) {
		w->meet.arrived = 0;
		w->meet.turn ^= 1;
		simt_wake(b, me->where.tid / GX_WARP * GX_WARP, GX_WARP, SIMT_AT_WARP);
	} else {
		simt_wait(b, me, SIMT_AT_WARP);
	}
}

SIMT_RAW void simt_syncwarp(const char *where)
{
	struct simt_block *b = simt_block_now();
	struct simt_thread *me = simt_thread_now();
	struct simt_warp *w = &b->warp[me->where.tid / GX_WARP];
	char *sync = &w->meet.sync[w->meet.turn];

	san_release(sync);
	warp_meet(b, me, w, where);
	san_acquire(sync);
}

SIMT_RAW uint64_t simt_shfl(uint64_t v, uint32_t src, const char *where)
{
	struct simt_block *b = simt_block_now();
	struct simt_thread *me = simt_thread_now();
	struct simt_warp *w = &b->warp[me->where.tid / GX_WARP];
	uint64_t *slot = w->slot[w->meet.turn];

	slot[me->where.tid % GX_WARP] = v;
	warp_meet(b, me, w, where);
	return slot[src % GX_WARP];
}

SIMT_RAW uint64_t simt_ballot(int p, const char *where)
{
	struct simt_block *b = simt_block_now();
	struct simt_thread *me = simt_thread_now();
	struct simt_warp *w = &b->warp[me->where.tid / GX_WARP];
	uint64_t *slot = w->slot[w->meet.turn], mask = 0;

	slot[me->where.tid % GX_WARP] = p != 0;
	warp_meet(b, me, w, where);
	for (unsigned i = 0; i < GX_WARP; i++)
		mask |= slot[i] << i;
	return mask;
}
