/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a whole warp. Shuffles and ballots exchange values and do not order memory, as on a GPU: only the
 * barrier is announced to TSan. */
#include "kernels/simt/block.h"
#include "kernels/simt/san.h"

/* A poll needs a few operations between two pauses; a warp that makes more does something. */
#define POLLS 12

/* 1 in the lane that came last. */
SIMT_RAW static int warp_meet(struct simt_block *b, struct simt_thread *me, struct simt_warp *w, const char *what,
			      const char *where)
{
	simt_meet_check(b, &w->meet, what, where);
	if (w->lanes != GX_WARP || w->gone > 0)
		simt_die(b, "block %u warp %u: %s at %s with only %u of %u lanes", me->where.block,
			 (unsigned)(me->where.tid / GX_WARP), what, where, w->lanes - w->gone, (unsigned)GX_WARP);
	if (++w->meet.arrived == GX_WARP) {
		w->meet.arrived = 0;
		w->meet.turn ^= 1;
		if (++w->polls > POLLS)
			b->idle = 0;
		simt_wake(b, me->where.tid / GX_WARP * GX_WARP, GX_WARP, SIMT_AT_WARP);
		return 1;
	}
	simt_wait(b, me, SIMT_AT_WARP);
	return 0;
}

static const char a_wait[] = "wait";

/* A lane at a block barrier, while others of its warp wait for something else than the barrier. */
SIMT_RAW void simt_wait_check(struct simt_block *b, const struct simt_thread *me, const char *where)
{
	const struct simt_warp *w = &b->warp[me->where.tid / GX_WARP];

	if (w->meet.arrived > 0 && w->meet.what == a_wait)
		simt_die(b, "block %u: divergent wait: thread %u at the block barrier at %s, others in a wait at %s",
			 me->where.block, me->where.tid, where, w->meet.where);
}

/* No lane waits inside a divergent branch: where lanes run in lockstep, nothing that another lane of its warp has yet
 * to do would ever come. So all lanes meet at every pause. */
SIMT_RAW void simt_pause(const char *where)
{
	struct simt_block *b = simt_block_now();
	struct simt_thread *me = simt_thread_now();
	unsigned first = me->where.tid / GX_WARP * GX_WARP;
	struct simt_warp *w = &b->warp[me->where.tid / GX_WARP];

	for (unsigned i = first; i < first + w->lanes; i++)
		if (b->thread[i].state == SIMT_AT_BLOCK)
			simt_die(b, "block %u: divergent wait: thread %u at %s, others at the block barrier at %s",
				 me->where.block, me->where.tid, where, b->meet.where);
	if (!warp_meet(b, me, w, a_wait, where))
		return;
	w->polls = 0;
	simt_rest(b, me);
}

SIMT_RAW void simt_syncwarp(const char *where)
{
	struct simt_block *b = simt_block_now();
	struct simt_thread *me = simt_thread_now();
	struct simt_warp *w = &b->warp[me->where.tid / GX_WARP];
	unsigned turn = w->meet.turn;
	char *sync = &w->meet.sync[turn];

	san_release(sync);
	simt_acquired_bring(&w->meet, me);
	warp_meet(b, me, w, "warp operation", where);
	simt_acquired_take(&w->meet, turn, me);
	san_acquire(sync);
}

SIMT_RAW uint64_t simt_shfl(uint64_t v, uint32_t src, const char *where)
{
	struct simt_block *b = simt_block_now();
	struct simt_thread *me = simt_thread_now();
	struct simt_warp *w = &b->warp[me->where.tid / GX_WARP];
	uint64_t *slot = w->slot[w->meet.turn];

	slot[me->where.tid % GX_WARP] = v;
	warp_meet(b, me, w, "warp operation", where);
	return slot[src % GX_WARP];
}

SIMT_RAW uint64_t simt_ballot(int p, const char *where)
{
	struct simt_block *b = simt_block_now();
	struct simt_thread *me = simt_thread_now();
	struct simt_warp *w = &b->warp[me->where.tid / GX_WARP];
	uint64_t *slot = w->slot[w->meet.turn], mask = 0;

	slot[me->where.tid % GX_WARP] = p != 0;
	warp_meet(b, me, w, "warp operation", where);
	for (unsigned i = 0; i < GX_WARP; i++)
		mask |= slot[i] << i;
	return mask;
}
