/* SPDX-License-Identifier: Apache-2.0 */
/* Primitives common to all devices, built on those of the device's header. */
#ifndef EP_KERNELS_GX_WAIT_H
#define EP_KERNELS_GX_WAIT_H

enum gx_wait_result { GX_ARRIVED, GX_TIMED_OUT, GX_ABORTED, GX_FAILED };

/* What ends a wait that is not satisfied. Taken once when the operation starts: all its waits share the deadline. */
struct gx_limit {
	uint64_t deadline;	/* of gx_clock_ns */
	const uint64_t *abort;	/* 1 + the rank at fault, written by the host: pinned memory; may be NULL */
	const uint64_t *failed; /* written by a near rank that failed: this rank's control page; may be NULL */
	const uint64_t *afar;	/* the same for far ranks: may be pinned; may be NULL */
	const uint64_t *gone;	/* written by the host when the awaited rank is dead: pinned; may be NULL */
};

#define GX_HOST_LOOK_NS 2000000u /* between polls of the host's words */

GX_DEV uint32_t gx_warp(void)
{
	return gx_tid() / GX_WARP;
}

GX_DEV uint32_t gx_warps(void)
{
	return gx_threads() / GX_WARP;
}

/*
 * Called once per iteration of a wait's loop: how the wait must end, or GX_ARRIVED to continue. next belongs to the
 * wait, 0 at its start. The host's words are polled every 2 ms only: on a GPU each poll is a read over PCIe, and with
 * all warps polling at every 32nd iteration a dispatch of two ranks took 830 us instead of 64.
 */
GX_DEV enum gx_wait_result gx_limit_reached(const struct gx_limit *limit, uint32_t spin, uint64_t *next)
{
	uint64_t now;

	if (spin % 64 != 63)
		return GX_ARRIVED;
	if (limit->failed && gx_ld_relaxed_u64(limit->failed) != 0)
		return GX_FAILED;
	now = gx_clock_ns();
	if (now > limit->deadline)
		return GX_TIMED_OUT;
	if (*next == 0)
		*next = now + GX_HOST_LOOK_NS;
	if (now < *next)
		return GX_ARRIVED;
	*next = now + GX_HOST_LOOK_NS;
	if (limit->abort && gx_ld_relaxed_u64(limit->abort) != 0)
		return GX_ABORTED;
	if (limit->afar && gx_ld_relaxed_u64(limit->afar) != 0)
		return GX_FAILED;
	if (limit->gone && gx_ld_relaxed_u64(limit->gone) != 0)
		return GX_FAILED;
	return GX_ARRIVED;
}

/*
 * All lanes of a warp, each until its own word is at least value; NULL: it has nothing to wait for, and the result is
 * GX_ARRIVED. The acquire pairs with the release that wrote the word; the barrier extends it to the warp. All lanes
 * stay until the last one's wait has ended: no lane waits inside a divergent branch, where an AMD wavefront runs no
 * other lane.
 */
GX_DEV enum gx_wait_result gx_wait(const uint64_t *word, uint64_t value, const struct gx_limit *limit)
{
	enum gx_wait_result result = GX_ARRIVED;
	uint32_t waits = word != NULL;
	uint64_t next = 0;

	for (uint32_t spin = 0;; spin++) {
		waits = waits && gx_ld_acquire_u64(word) < value;
		if (gx_ballot((int)waits) == 0)
			break;
		gx_pause(spin);
		if (waits)
			result = gx_limit_reached(limit, spin, &next);
		waits = waits && result == GX_ARRIVED;
	}
	gx_syncwarp();
	return result;
}

#endif
