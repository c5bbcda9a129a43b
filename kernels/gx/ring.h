/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer's side of a ring (util/ring.h): any number of device threads push, one CPU thread pops.
 *
 * A push claims its entry by one atomic in device memory and then owns it: it must write the entry or mark the ring
 * dead. A producer that gives up waiting for room does so for the other producers in device memory and for the consumer
 * in pinned memory; an unreported hole would silently block everything behind it.
 *
 * Orderings (P: producer, C: proxy/ring.c):
 *   R1 data the command refers to -> the entry	P's gx_fence_sys before it pushes, one for all commands it then pushes:
 *						a fence per command would cost a PCIe round trip each. Pairs with A1,
 *						C's acquire of each half
 *   R2 C has read the entry -> credit		pairs with A2, P's acquire of credit
 *   R3 the net's completion -> done		pairs with A3 in gx_ring_wait_done
 *   R4 everything before giving up -> dead	pairs with A4, C's acquire of dead
 * A producer that relies on seen has not acquired credit itself. That is enough: its stores depend on the value it
 * read, no device stores speculatively, and all it must not do is write before C has read.
 */
#ifndef EP_KERNELS_GX_RING_H
#define EP_KERNELS_GX_RING_H

#include "kernels/gx/gx.h"
#include "util/ring.h"

typedef char gx_ring_warp_claims_at_once_[GX_WARP <= EP_CMD_CLAIM_MAX ? 1 : -1];

/* Whether position a is at or past b; they are never 2^63 apart. */
GX_DEV int gx_ring_reached(uint64_t a, uint64_t b)
{
	return (int64_t)(a - b) >= 0;
}

/* Only the first producer to give up is reported to the consumer: the others merely found the ring dead. */
GX_DEV enum gx_wait_result gx_ring_give_up(const struct ep_cmd_ring *ring, uint64_t at, enum gx_wait_result why)
{
	if (gx_dev_add_relaxed_u64(&ring->head->dead, 1) == 0)
		gx_st_release_u64(&ring->tail->dead, EP_CMD_DEAD(at, why)); /* R4 */
	return why;
}

/* gx_limit_reached for the waits here, as rarely: a read of device memory between two polls costs a third of a poll. */
GX_DEV enum gx_wait_result gx_ring_limit(const struct ep_cmd_ring *ring, const struct gx_limit *limit, uint32_t spin,
					 uint64_t *next)
{
	if (spin % 64 == 63 && gx_ld_relaxed_u64(&ring->head->dead) != 0)
		return GX_FAILED;
	return gx_limit_reached(limit, spin, next);
}

/* Waits until the consumer has popped up to `need`; `at` is the caller's claim, a hole if it never does. */
GX_DEV enum gx_wait_result gx_ring_wait_room(const struct ep_cmd_ring *ring, uint64_t at, uint64_t need,
					     const struct gx_limit *limit)
{
	enum gx_wait_result result;
	uint64_t credit, next = 0;

	for (uint32_t spin = 0;; spin++) {
		/* Another producer may have read credit meanwhile; reading it here goes over PCIe. */
		if (gx_ring_reached(gx_ld_relaxed_u64(&ring->head->seen), need))
			return GX_ARRIVED;
		credit = gx_ld_acquire_u64(&ring->tail->credit); /* A2 */
		if (gx_ring_reached(credit, need)) {
			/* An older value may overwrite a newer one: the next producer to miss reads credit itself. */
			gx_st_relaxed_u64(&ring->head->seen, credit);
			return GX_ARRIVED;
		}
		gx_pause(spin);
		result = gx_ring_limit(ring, limit, spin, &next);
		if (result != GX_ARRIVED)
			return gx_ring_give_up(ring, at, result);
	}
}

/*
 * One thread. Claims n entries, at most EP_CMD_CLAIM_MAX, and waits until they are free; *at is the first. After
 * anything but GX_ARRIVED the ring is dead and nothing may be stored. The reads do not wait for the atomic.
 */
GX_DEV enum gx_wait_result gx_ring_claim(const struct ep_cmd_ring *ring, uint32_t n, const struct gx_limit *limit,
					 uint64_t *at)
{
	uint64_t seen = gx_ld_relaxed_u64(&ring->head->seen), dead = gx_ld_relaxed_u64(&ring->head->dead);
	uint64_t first = gx_dev_add_relaxed_u64(&ring->head->claim, n), need = first + n - ring->entries;

	*at = first;
	if (dead != 0)
		return gx_ring_give_up(ring, first, GX_FAILED);
	if (gx_ring_reached(seen, need))
		return GX_ARRIVED;
	return gx_ring_wait_room(ring, first, need, limit);
}

/*
 * Into a claimed entry, after a gx_fence_sys for the data the command refers to (R1). The caller calls
 * gx_bell(ring->bell) after the last one: a fence for each command would cost the host more than the stores.
 */
GX_DEV void gx_ring_store(const struct ep_cmd_ring *ring, uint64_t at, struct ep_cmd cmd)
{
	uint64_t phase = ep_cmd_phase(at, ring->shift);

	gx_st_fenced_u64x2(ring->entry[at & (ring->entries - 1)].half, cmd.half[0] | phase, cmd.half[1] | phase);
}

/* One thread, one command. */
GX_DEV enum gx_wait_result gx_ring_push(const struct ep_cmd_ring *ring, struct ep_cmd cmd, const struct gx_limit *limit)
{
	enum gx_wait_result result;
	uint64_t at;

	result = gx_ring_claim(ring, 1, limit, &at);
	if (result == GX_ARRIVED) {
		gx_ring_store(ring, at, cmd);
		gx_bell(ring->bell);
	}
	return result;
}

/* A whole warp: the commands of its first n lanes, in lane order, with one atomic. */
GX_DEV enum gx_wait_result gx_ring_push_warp(const struct ep_cmd_ring *ring, struct ep_cmd cmd, uint32_t n,
					     const struct gx_limit *limit)
{
	uint32_t result = GX_ARRIVED;
	uint64_t at = 0;

	if (gx_lane() == 0)
		result = (uint32_t)gx_ring_claim(ring, n, limit, &at);
	result = gx_shfl_u32(result, 0);
	at = gx_shfl_u64(at, 0);
	if (result == GX_ARRIVED && gx_lane() < n) {
		gx_ring_store(ring, at + gx_lane(), cmd);
		gx_bell(ring->bell);
	}
	return (enum gx_wait_result)result;
}

/* One thread. Waits until the net has completed as many commands as precede this position. One poll at a time: with
 * four in flight a round trip took 5.9 us instead of 2.9, as they keep the cache line from the engine. The caller may
 * then overwrite the sources, so A3 needs to order stores only. */
GX_DEV enum gx_wait_result gx_ring_wait_done(const struct ep_cmd_ring *ring, uint64_t position,
					     const struct gx_limit *limit)
{
	enum gx_wait_result result;
	uint64_t next = 0;

	for (uint32_t spin = 0;; spin++) {
		if (gx_ring_reached(gx_ld_look_u64(&ring->tail->done), position)) /* A3 */
			return GX_ARRIVED;
		gx_pause(spin);
		result = gx_ring_limit(ring, limit, spin, &next);
		if (result != GX_ARRIVED)
			return result;
	}
}

/* One thread. Waits until everything claimed before the call is completed. */
GX_DEV enum gx_wait_result gx_ring_quiet(const struct ep_cmd_ring *ring, const struct gx_limit *limit)
{
	return gx_ring_wait_done(ring, gx_ld_relaxed_u64(&ring->head->claim), limit);
}

#endif
