/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wakes a host thread that may be asleep, at the cost of a fence and a load if it is not. The word is 1 from when the
 * sleeper is about to sleep, else 0.
 *
 * B1 waker (ep_bell_ring): publish the work, full fence, load the word
 * B2 sleeper (ep_bell_lie_down): store the word, full fence, check for work
 * B1 pairs with B2: at least one side sees the other's store, so no wake-up is missed.
 */
#ifndef EP_UTIL_BELL_H
#define EP_UTIL_BELL_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/clock.h"

static inline void ep_bell_ring(uint32_t *bell)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* B1 */
	if (__builtin_expect(__atomic_load_n(bell, __ATOMIC_RELAXED) == 0, 1))
		return;
	/* Cleared first: other wakers then skip the system call. */
	if (__atomic_exchange_n(bell, 0, __ATOMIC_RELAXED) != 0)
		syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The sleeper then checks for work once more, and sleeps or stands up. */
static inline void ep_bell_lie_down(uint32_t *bell)
{
	__atomic_store_n(bell, 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* B2 */
}

static inline void ep_bell_stand_up(uint32_t *bell)
{
	__atomic_store_n(bell, 0, __ATOMIC_RELAXED);
}

/* At most ns; returns at once if the bell was rung since lie_down. */
static inline void ep_bell_sleep(uint32_t *bell, uint64_t ns)
{
	struct timespec most = ep_timespec(ns);

	syscall(SYS_futex, bell, FUTEX_WAIT_PRIVATE, 1, &most, NULL, 0);
}

#endif
