/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' accesses to the table of mapped allocations, on the host: on the CPU device addresses are the same. */
#ifndef EP_TEST_REACH_TABLE_H
#define EP_TEST_REACH_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "kernels/args.h"
#include "util/clock.h"

static inline void nap_ms(int ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

/* Polls the condition for at most 20 s; whether it holds. Evaluated once per poll, so it may have side effects. */
#define UNTIL(cond)                                                \
	({                                                         \
		uint64_t until_ = ep_deadline_ms(20000);           \
		bool holds_;                                       \
		while (!(holds_ = (cond)) && ep_now_ns() < until_) \
			nap_ms(1);                                 \
		holds_;                                            \
	})

static inline const struct ep_reach_entry *reach_entry(const struct ep_reach_table *t, int owner, uint64_t id)
{
	return &t->entry[(size_t)owner * EP_REACH_SLOTS + id % EP_REACH_SLOTS];
}

/* NULL: not mapped. */
static inline uint8_t *reach_find(const struct ep_reach_table *t, int owner, uint64_t id)
{
	const struct ep_reach_entry *e = reach_entry(t, owner, id);

	if (__atomic_load_n(&e->id, __ATOMIC_ACQUIRE) != id)
		return NULL;
	return (uint8_t *)(uintptr_t)__atomic_load_n(&e->base, __ATOMIC_RELAXED);
}

/* False: the slot is taken. */
static inline bool reach_want(struct ep_reach_table *t, unsigned slot, uint32_t owner, uint64_t id)
{
	struct ep_reach_want *w = &t->wanted[slot % EP_REACH_WANTED];

	if (__atomic_load_n(&w->id, __ATOMIC_ACQUIRE))
		return false;
	__atomic_store_n(&w->owner, owner, __ATOMIC_RELAXED);
	__atomic_store_n(&w->id, id, __ATOMIC_RELEASE);
	return true;
}

/* Requests until it is mapped, or until the timeout. */
static inline uint8_t *reach_get(struct ep_reach_table *t, int owner, uint64_t id, int ms)
{
	uint64_t deadline = ep_deadline_ms(ms);
	uint8_t *base;

	while (!(base = reach_find(t, owner, id)) && ep_now_ns() < deadline) {
		reach_want(t, 0, (uint32_t)owner, id);
		nap_ms(1);
	}
	return base;
}

#endif
