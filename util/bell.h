/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a thread of the CPU wakes another one that may be asleep, for a fence and a load where it is not. The word is 0
 * while the sleeper is awake, 1 from when it means to sleep.
 *
 * B1 the ringer: what was left for the sleeper, full fence, look at the word
 * B2 the sleeper: the word, full fence, look at what was left
 * One of both sees what the other wrote, so nobody sleeps over what is there (ep_bell_ring, ep_bell_lie_down).
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
	/* Taken back first: others who ring now save themselves the call. */
	if (__atomic_exchange_n(bell, 0, __ATOMIC_RELAXED) != 0)
		syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The sleeper looks at everything once more after this, then sleeps or stands up. */
static inline void ep_bell_lie_down(uint32_t *bell)
{
	__atomic_store_n(bell, 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* B2 */
}

static inline void ep_bell_stand_up(uint32_t *bell)
{
	__atomic_store_n(bell, 0, __ATOMIC_RELAXED);
}

/* At most ns; returns at once if the bell has rung since. */
static inline void ep_bell_sleep(uint32_t *bell, uint64_t ns)
{
	struct timespec most = ep_timespec(ns);

	syscall(SYS_futex, bell, FUTEX_WAIT_PRIVATE, 1, &most, NULL, 0);
}

#endif
