/* SPDX-License-Identifier: Apache-2.0 */
/* Words every device shares, written in those of its own header. */
#ifndef EP_KERNELS_GX_WAIT_H
#define EP_KERNELS_GX_WAIT_H

enum gx_wait_result { GX_ARRIVED, GX_TIMED_OUT, GX_ABORTED, GX_FAILED };

/* What ends a wait that is not answered. Taken once when the operation starts: all its waits share the deadline. */
struct gx_limit {
	uint64_t deadline;	/* of gx_clock_ns */
	const uint64_t *abort;	/* the host writes it: pinned memory */
	const uint64_t *failed; /* a rank that failed writes it: this rank's control page; may be NULL */
	const uint64_t *gone;	/* the host writes it when the awaited rank's process has ended: pinned; may be NULL */
};

#define GX_HOST_LOOK_NS 2000000u /* between looks at the host's words */

GX_DEV uint32_t gx_warp(void)
{
	return gx_tid() / GX_WARP;
}

GX_DEV uint32_t gx_warps(void)
{
	return gx_threads() / GX_WARP;
}

/*
 * Waits until the word is at least value; the acquire pairs with the release that wrote it. For one thread: its warp
 * or block is told by a barrier. The words of the host are looked at every 2 ms only: on a GPU each look is a read over
 * PCIe, and with all warps looking at every 32nd poll a dispatch of two ranks took 830 instead of 64 us.
 */
GX_DEV enum gx_wait_result gx_wait(const uint64_t *word, uint64_t value, const struct gx_limit *limit)
{
	uint64_t now, next = 0;

	for (uint32_t spin = 0;; spin++) {
		if (gx_ld_acquire_u64(word) >= value)
			return GX_ARRIVED;
		gx_pause(spin);
		if (spin % 64 != 63)
			continue;
		if (limit->failed && gx_ld_relaxed_u64(limit->failed) != 0)
			return GX_FAILED;
		now = gx_clock_ns();
		if (now > limit->deadline)
			return GX_TIMED_OUT;
		if (next == 0)
			next = now + GX_HOST_LOOK_NS;
		if (now < next)
			continue;
		next = now + GX_HOST_LOOK_NS;
		if (gx_ld_relaxed_u64(limit->abort) != 0)
			return GX_ABORTED;
		if (limit->gone && gx_ld_relaxed_u64(limit->gone) != 0)
			return GX_FAILED;
	}
}

#endif
