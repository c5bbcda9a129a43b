/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer's side of a ring (util/ring.h): any number of device threads push, one CPU thread pops.
 *
 * A push claims its entry by one atomic in device memory and then owns it: it must write the entry or mark the ring
 * dead. A producer that gives up waiting for room does so for the other producers in device memory and for the consumer
 * in pinned memory; an unreported hole would silently block everything behind it. Whole warps push: no lane waits for
 * room inside a divergent branch.
 *
 * Orderings (P: producer, C: proxy/ring.c):
 *   R1 data the command refers to -> the entry	P's gx_fence_sys before it stores one, for all that it then pushes:
 *						a fence per command would cost a PCIe round trip each. Pairs with A1,
 *						C's acquire of each half
 *   R2 C has read the entry -> credit		pairs with A2, P's look at credit
 *   R3 the net's completion -> done		pairs with A3 in gx_ring_wait_done
 *   R4 everything before giving up -> dead	pairs with A4, C's acquire of dead
 * A2 is no acquire, nor has a producer read credit itself that relies on seen or on another lane's look. That is
 * enough: its stores depend on the value, no device stores speculatively, and all it must not do is write before C has
 * read.
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

/* A claim that is not decided yet; else enum gx_wait_result. */
#define GX_PENDING 4u

/* One lane: whether the consumer has popped up to `need`. */
GX_DEV uint32_t gx_ring_room(const struct ep_cmd_ring *ring, uint64_t need)
{
	uint64_t credit;

	/* Another producer may have read credit meanwhile; reading it here goes over PCIe. */
	if (gx_ring_reached(gx_ld_relaxed_u64(&ring->head->seen), need))
		return 1;
	credit = gx_ld_look_u64(&ring->tail->credit); /* A2 */
	if (!gx_ring_reached(credit, need))
		return 0;
	/* An older value may overwrite a newer one: the next producer to miss reads credit itself. */
	gx_st_relaxed_u64(&ring->head->seen, credit);
	return 1;
}

/* One lane: a claim of n entries. The reads do not wait for the atomic, nor what follows for any of them. */
struct gx_ring_taken {
	uint64_t seen, dead, first;
};

GX_DEV struct gx_ring_taken gx_ring_ask(const struct ep_cmd_ring *ring, uint32_t n)
{
	struct gx_ring_taken t;

	t.seen = gx_ld_relaxed_u64(&ring->head->seen);
	t.dead = gx_ld_relaxed_u64(&ring->head->dead);
	t.first = gx_dev_add_relaxed_u64(&ring->head->claim, n);
	return t;
}

/* Whether what was asked for is free. */
GX_DEV uint32_t gx_ring_took(const struct ep_cmd_ring *ring, struct gx_ring_taken t, uint32_t n)
{
	if (t.dead != 0)
		return (uint32_t)gx_ring_give_up(ring, t.first, GX_FAILED);
	return gx_ring_reached(t.seen, t.first + n - ring->entries) ? (uint32_t)GX_ARRIVED : GX_PENDING;
}

GX_DEV uint32_t gx_ring_take(const struct ep_cmd_ring *ring, uint32_t n, uint64_t *at)
{
	struct gx_ring_taken t = gx_ring_ask(ring, n);

	*at = t.first;
	return gx_ring_took(ring, t, n);
}

/* One lane, once per iteration of a wait: whether its claim of n entries at `at`, a hole if never filled, has room. */
GX_DEV uint32_t gx_ring_poll(const struct ep_cmd_ring *ring, uint64_t at, uint32_t n, const struct gx_limit *limit,
			     uint32_t spin, uint64_t *next)
{
	enum gx_wait_result result;

	if (gx_ring_room(ring, at + n - ring->entries))
		return GX_ARRIVED;
	result = gx_ring_limit(ring, limit, spin, next);
	return result == GX_ARRIVED ? GX_PENDING : (uint32_t)gx_ring_give_up(ring, at, result);
}

/*
 * A whole warp, for all its lanes the same. Claims n entries, at most EP_CMD_CLAIM_MAX, and waits until they are free;
 * *at is the first. After anything but GX_ARRIVED the ring is dead and nothing may be stored.
 */
GX_DEV enum gx_wait_result gx_ring_claim(const struct ep_cmd_ring *ring, uint32_t n, const struct gx_limit *limit,
					 uint64_t *at)
{
	uint32_t found = GX_ARRIVED, now;
	uint64_t first = 0, next = 0;

	if (gx_lane() == 0)
		found = gx_ring_take(ring, n, &first);
	for (uint32_t spin = 0; (now = gx_shfl_u32(found, 0)) == GX_PENDING; spin++) {
		gx_pause(spin);
		if (gx_lane() == 0)
			found = gx_ring_poll(ring, first, n, limit, spin, &next);
	}
	*at = gx_shfl_u64(first, 0);
	return (enum gx_wait_result)now;
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

/* As id. */
#define GX_NO_RING UINT32_MAX

/*
 * A whole warp: a command of each lane that has one, to a ring of its own; id: the ring's number, GX_NO_RING: the lane
 * has none, and the result is GX_ARRIVED. fence: R1 is made here, where it takes no longer than the claim. Lanes of the
 * same ring push in lane order, with one atomic: their first claims and polls for all of them.
 *
 * All lanes wait together, but whoever has room stores at once. If a warp kept its claims in one ring while it waits
 * for room in another, two warps could wait for each other; and a lane's own claim may be what another one waits for.
 */
GX_DEV enum gx_wait_result gx_ring_push_lanes(const struct ep_cmd_ring *ring, uint32_t id, struct ep_cmd cmd,
					      const struct gx_limit *limit, uint32_t fence)
{
	struct gx_ring_taken taken = { 0, 0, 0 };
	uint64_t same = gx_match_u32(id), at = 0, next = 0, mine;
	uint32_t first = gx_popc((same & -same) - 1), n = gx_popc(same), waits = id != GX_NO_RING, now;
	uint32_t claims = waits && gx_lane() == first, found = GX_ARRIVED;

	if (claims)
		taken = gx_ring_ask(ring, n);
	if (fence)
		gx_fence_sys(); /* R1 */
	if (claims)
		found = gx_ring_took(ring, taken, n);
	at = taken.first;
	mine = gx_shfl_u64(at, first) + gx_popc(same & (((uint64_t)1 << gx_lane()) - 1));
	for (uint32_t spin = 0;; spin++) {
		now = gx_shfl_u32(found, first);
		if (waits && now == GX_ARRIVED) {
			gx_ring_store(ring, mine, cmd);
			gx_bell(ring->bell);
		}
		waits = waits && now == GX_PENDING;
		if (gx_ballot((int)waits) == 0)
			return (enum gx_wait_result)now;
		gx_pause(spin);
		if (claims && found == GX_PENDING)
			found = gx_ring_poll(ring, at, n, limit, spin, &next);
	}
}

/* A whole warp: one command, its first lane's. */
GX_DEV enum gx_wait_result gx_ring_push(const struct ep_cmd_ring *ring, struct ep_cmd cmd, const struct gx_limit *limit)
{
	enum gx_wait_result result;
	uint64_t at;

	result = gx_ring_claim(ring, 1, limit, &at);
	if (result == GX_ARRIVED && gx_lane() == 0) {
		gx_ring_store(ring, at, cmd);
		gx_bell(ring->bell);
	}
	return result;
}

/* A whole warp: the commands of its first n lanes, in lane order, with one atomic. */
GX_DEV enum gx_wait_result gx_ring_push_warp(const struct ep_cmd_ring *ring, struct ep_cmd cmd, uint32_t n,
					     const struct gx_limit *limit)
{
	enum gx_wait_result result;
	uint64_t at;

	result = gx_ring_claim(ring, n, limit, &at);
	if (result == GX_ARRIVED && gx_lane() < n) {
		gx_ring_store(ring, at + gx_lane(), cmd);
		gx_bell(ring->bell);
	}
	return result;
}

/* A whole warp. Waits until the net has completed as many commands as precede this position. One poll at a time: with
 * four in flight a round trip took 5.9 us instead of 2.9, as they keep the cache line from the engine. The caller may
 * then overwrite the sources, so A3 needs to order stores only. */
GX_DEV enum gx_wait_result gx_ring_wait_done(const struct ep_cmd_ring *ring, uint64_t position,
					     const struct gx_limit *limit)
{
	uint32_t found = GX_ARRIVED, now;
	uint64_t next = 0;

	for (uint32_t spin = 0;; spin++) {
		if (gx_lane() == 0 && !gx_ring_reached(gx_ld_look_u64(&ring->tail->done), position)) { /* A3 */
			found = (uint32_t)gx_ring_limit(ring, limit, spin, &next);
			found = found == GX_ARRIVED ? GX_PENDING : found;
		} else {
			found = GX_ARRIVED;
		}
		now = gx_shfl_u32(found, 0);
		if (now != GX_PENDING)
			return (enum gx_wait_result)now;
		gx_pause(spin);
	}
}

/* A whole warp. Waits until everything claimed before the call is completed. */
GX_DEV enum gx_wait_result gx_ring_quiet(const struct ep_cmd_ring *ring, const struct gx_limit *limit)
{
	uint64_t claimed = gx_lane() == 0 ? gx_ld_relaxed_u64(&ring->head->claim) : 0;

	return gx_ring_wait_done(ring, claimed, limit);
}

#endif
