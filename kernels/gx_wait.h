/* SPDX-License-Identifier: Apache-2.0 */
/* Words every device shares, written in those of its own header. */
#ifndef EP_KERNELS_GX_WAIT_H
#define EP_KERNELS_GX_WAIT_H

enum gx_wait_result { GX_ARRIVED, GX_TIMED_OUT, GX_ABORTED, GX_FAILED };

/* What ends a wait that is not answered. Taken once when the operation starts: all its waits share the deadline. */
struct gx_limit {
	uint64_t deadline;	/* of gx_clock_ns */
	const uint64_t *abort;	/* the host writes it: pinned memory */
	const uint64_t *failed; /* a rank that failed writes it: this rank's control page */
};

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
 * or block is told by a barrier. The other words are looked at every 32nd time only: on a GPU the abort word is a read
 * over PCIe, a microsecond each.
 */
GX_DEV enum gx_wait_result gx_wait(const uint64_t *word, uint64_t value, const struct gx_limit *limit)
{
	for (uint32_t spin = 0;; spin++) {
		if (gx_ld_acquire_u64(word) >= value)
			return GX_ARRIVED;
		if (spin % 32 == 31) {
			if (gx_ld_relaxed_u64(limit->failed) != 0)
				return GX_FAILED;
			if (gx_ld_relaxed_u64(limit->abort) != 0)
				return GX_ABORTED;
			if (gx_clock_ns() > limit->deadline)
				return GX_TIMED_OUT;
		}
		gx_pause(spin);
	}
}

#endif
