/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks: the ranks that this one no longer sends to or waits for. One block, in stream order with the operations.
 *
 * A clean is a barrier of the remaining ranks over their control pages, so that nothing of it waits on the host: they
 * agree on the highest epoch among them, clear their masks, and write the epoch to every control page, also of masked
 * ranks. A rank that was only slow finds it there before its next dispatch and continues from the same epoch as the
 * others; what it still sends for older epochs is never waited for, and with masks it has slots of its own to write to.
 *
 *   R1 epoch -> number of the clean, in a peer's page	pairs with A1, the peer's wait
 *   R2 epoch -> number of the jump			pairs with A2, in the ranks that were left out
 *
 * A barrier is the same without an agreement:
 *   R3 what the stream did before -> number of the barrier	pairs with A3, the peer's wait
 */
#include "kernels/ll/ll.h"

GX_DEV void ll_mask_query(struct ll *ll, const struct ep_ll_mask_args *m)
{
	for (uint32_t i = gx_tid(); i < m->count; i += gx_threads())
		m->out[m->first + i] = !ll_off(ll, m->first + i) && gx_ld_relaxed_u64(&m->ll.gone[m->first + i]) == 0;
}

GX_DEV void ll_mask_update(struct ll *ll, const struct ep_ll_mask_args *m)
{
	for (uint32_t i = gx_tid(); i < m->count; i += gx_threads())
		gx_st_relaxed_u32(&ll->off[m->first + i], !(m->bits[i / 32] >> (i % 32) & 1));
}

/* An epoch or a number that another rank wrote: no rank is that far ahead, and a signal could not carry larger ones. */
#define LL_AHEAD_MAX ((uint64_t)1 << 40)

GX_DEV uint32_t ll_ahead(uint64_t other, uint64_t mine)
{
	return other > mine && other - mine < LL_AHEAD_MAX;
}

/* Resets everything that other ranks may not have seen, at the new epoch. One thread. */
GX_DEV void ll_restart(struct ll *ll, uint64_t epoch, uint64_t cleans)
{
	struct ep_ll_state *state = ll->a->state;

	state->epoch = epoch;
	state->cleans = cleans;
	state->used[0] = state->used[1] = 0;
	state->busy[0] = state->busy[1] = 0;
	state->behind = 0;
	for (uint32_t r = 0; r < ll->op.nranks; r++)
		gx_st_relaxed_u32(&ll->off[r], 0);
}

GX_DEV void ll_mask_clean(struct ll *ll)
{
	uint32_t n = ll->op.nranks, rank = ll->op.rank;
	uint64_t number = ll->a->state->cleans + 1, epoch = ll->a->state->epoch;

	/* R1 */
	for (uint32_t r0 = gx_warp() * GX_WARP; r0 < n; r0 += gx_threads()) {
		uint32_t r = r0 + gx_lane() < n ? r0 + gx_lane() : LL_NOBODY;

		ll_tell(ll, r, ep_ll_clean_at(n, rank), epoch);
		ll_tell(ll, r, ep_ll_clean_at(n, rank) + EP_LL_CLEAN_NUMBER, number);
	}
	/* A1 */
	for (uint32_t r0 = gx_warp() * GX_WARP; r0 < n; r0 += gx_threads()) {
		uint32_t r = r0 + gx_lane(), waits = r < n && !ll_off(ll, r);

		ll_wait(ll, ep_ll_clean_at(n, waits ? r : 0) + EP_LL_CLEAN_NUMBER, number, waits ? r : LL_NOBODY,
			EP_KPHASE_RECV);
	}
	gx_syncthreads();
	if (gx_warp() != 0)
		return;
	for (uint32_t r = 0; gx_lane() == 0 && r < n; r++) {
		uint64_t other = gx_ld_relaxed_u64(ll_from(ll, r, ep_ll_clean_at(n, r)));

		epoch = !ll_off(ll, r) && ll_ahead(other, epoch) ? other : epoch;
	}
	if (gx_lane() == 0)
		ll_restart(ll, epoch, number);
	epoch = gx_shfl_u64(epoch, 0);
	gx_syncwarp();
	/* R2 */
	for (uint32_t r0 = 0; r0 < n; r0 += GX_WARP) {
		uint32_t r = r0 + gx_lane() < n ? r0 + gx_lane() : LL_NOBODY;

		ll_tell(ll, r, ep_ll_jump_at(n, rank), epoch);
		ll_tell(ll, r, ep_ll_jump_at(n, rank) + EP_LL_CLEAN_NUMBER, number);
	}
}

/* The highest-numbered clean that any rank announced to this one; 0 if it knows them all. */
GX_DEV uint64_t ll_newer_clean(struct ll *ll, uint64_t *epoch)
{
	uint64_t newest = ll->a->state->cleans;

	for (uint32_t r = 0; r < ll->op.nranks; r++) {
		uint64_t at = ep_ll_jump_at(ll->op.nranks, r);
		uint64_t number = gx_ld_acquire_u64(ll_from(ll, r, at + EP_LL_CLEAN_NUMBER)); /* A2 */

		if (ll_ahead(number, newest)) {
			newest = number;
			*epoch = gx_ld_relaxed_u64(ll_from(ll, r, at));
		}
	}
	return newest > ll->a->state->cleans ? newest : 0;
}

GX_DEV void ll_mask_jump(struct ll *ll, uint32_t dispatch)
{
	struct ep_ll_state *state = ll->a->state;
	uint64_t epoch = 0, number = ll_newer_clean(ll, &epoch);

	if (number == 0)
		return;
	if (dispatch) {
		ll_restart(ll, ll_ahead(epoch, state->epoch) ? epoch : state->epoch, number);
		return;
	}
	state->behind = 1;
	gx_op_report(&ll->op, EP_KERR_BEHIND, ll->op.rank, EP_KPHASE_START);
}

#define LL_BARRIER_BITS 32u /* barriers from a clean to the next */

/* One lane each. With masks, a rank that does not come is masked. */
GX_DEV void ll_barrier_wait(struct ll *ll, uint32_t rank, uint64_t number)
{
	uint64_t at = ep_ll_barrier_at(ll->op.nranks, rank == LL_NOBODY ? 0 : rank), deadline = ll->op.limit.deadline;
	uint32_t masks = ll_is(ll, EP_LL_MASK), result;

	result = ll->op.far ? ll_wait_far(ll->a, at, number, rank, deadline, masks)
			    : ll_wait_near(ll->a, rank == LL_NOBODY ? NULL : ll_own(ll, at), number, rank,
					   deadline); /* A3 */
	if (result == GX_ARRIVED)
		return;
	if (masks) /* at once: a barrier's wait is not extended */
		ll_missed(ll->a, ll->op.epoch, LL_WAIT(ll->op.kind, EP_KPHASE_RECV, ll->op.far), rank, result,
			  LL_EIGHTHS);
	else
		gx_op_fail_wait(&ll->op, result, rank, rank, EP_KPHASE_RECV);
}

GX_DEV void ll_barrier(struct ll *ll)
{
	uint32_t n = ll->op.nranks, rank = ll->op.rank;
	uint64_t first = ll->a->state->cleans << LL_BARRIER_BITS, last = ll->a->state->barriers;
	uint64_t number = (last > first ? last : first) + 1;

	for (uint32_t r0 = gx_warp() * GX_WARP; r0 < n; r0 += gx_threads()) {
		uint32_t r = r0 + gx_lane(), told = r < n && !ll_off(ll, r);

		ll_tell(ll, told ? r : LL_NOBODY, ep_ll_barrier_at(n, rank), number); /* R3 */
	}
	for (uint32_t r0 = gx_warp() * GX_WARP; r0 < n; r0 += gx_threads()) {
		uint32_t r = r0 + gx_lane(), waits = r < n && !ll_off(ll, r);

		ll_barrier_wait(ll, waits ? r : LL_NOBODY, number);
	}
	gx_syncthreads(); /* all threads have read the last number */
	if (gx_tid() == 0)
		ll->a->state->barriers = number;
}

GX_KERNEL(ll_mask)(GX_ARGS(struct ep_ll_mask_args) m)
{
	struct ll ll;

	ll_begin(&ll, &m.ll, m.op == EP_LL_BARRIER ? EP_KIND_BARRIER : EP_KIND_MASK, m.ll.far.ring ? &m.ll.far : NULL,
		 0);
	ll_begun(&ll);
	if (m.op == EP_LL_MASK_QUERY)
		ll_mask_query(&ll, &m);
	else if (m.op == EP_LL_MASK_UPDATE)
		ll_mask_update(&ll, &m);
	else if (m.op == EP_LL_MASK_CLEAN)
		ll_mask_clean(&ll);
	else if (m.op == EP_LL_BARRIER)
		ll_barrier(&ll);
	else if (gx_tid() == 0)
		ll_mask_jump(&ll, m.op == EP_LL_MASK_JUMP);
	gx_syncthreads();
	if (gx_warp() == 0)
		gx_op_tell(&ll.op);
	if (gx_tid() == 0) {
		m.ll.state->broken = 0;
		ll_ended(&ll, m.ll.state->opens + 1);
	}
	gx_op_end(m.ll.counted, &m.ll.state->ended);
}
