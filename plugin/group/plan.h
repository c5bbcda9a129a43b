/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic for sizes of memory, checked for overflow. Parts begin at multiples of 128 bytes, a GPU's cache line. */
#ifndef EP_PLUGIN_PLAN_H
#define EP_PLUGIN_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "plugin/group/call.h"

#define EP_PLAN_ALIGN 128
#define EP_PLAN_HEADER 256 /* of handle_mem: what the routing is of (magic, T, K, rows), epochs of staged sends */
#define EP_ROW_ALIGN 16

/* A sum that remembers an overflow, so that formulas read as such and are judged once at the end. */
struct ep_sum {
	bool over;
};

static inline size_t ep_mul(struct ep_sum *s, size_t a, size_t b)
{
	size_t r;

	s->over |= __builtin_mul_overflow(a, b, &r);
	return r;
}

static inline size_t ep_add(struct ep_sum *s, size_t a, size_t b)
{
	size_t r;

	s->over |= __builtin_add_overflow(a, b, &r);
	return r;
}

static inline size_t ep_round_up(struct ep_sum *s, size_t n, size_t unit)
{
	return ep_add(s, n, unit - 1) / unit * unit;
}

static inline size_t ep_smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline size_t ep_larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Appends count elements and returns where they begin. */
static inline size_t ep_part(struct ep_sum *s, size_t *at, size_t count, size_t each)
{
	size_t begin = *at;

	*at = ep_round_up(s, ep_add(s, begin, ep_mul(s, count, each)), EP_PLAN_ALIGN);
	return begin;
}

static inline int ep_sum_check(const struct ep_sum *s, const char *fn, const struct ep_handle_args *args)
{
	if (!s->over)
		return 0;
	return EP_BAD_USE("%s: config: a handle of layout %d, num_topk %d and alignment %zu would need more than 2^64 "
			  "bytes",
			  fn, (int)args->layout, args->k, args->alignment);
}

#endif
