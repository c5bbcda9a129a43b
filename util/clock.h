/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_UTIL_CLOCK_H
#define EP_UTIL_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in nanoseconds; deadlines are absolute values of it. */
static inline uint64_t ep_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t ep_deadline_ms(int64_t ms)
{
	return ep_now_ns() + (uint64_t)ms * 1000000ull;
}

/* Milliseconds until the deadline for poll(), rounded up so that it does not return early; 0 if it has passed. */
static inline int ep_left_ms(uint64_t deadline)
{
	uint64_t now = ep_now_ns();

	if (now >= deadline)
		return 0;
	return (int)((deadline - now + 999999) / 1000000);
}

static inline struct timespec ep_timespec(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull) };
}

#endif
