/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of argument checks: a fake group (two ranks, no network, a device that does nothing), and calls that must
 * fail with a result, a message that names the argument, and no output written.
 */
#ifndef EP_TEST_BAD_ARGS_H
#define EP_TEST_BAD_ARGS_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_ep.h"
#include "nccl_ep_ext.h"
#include "plugin/check/check.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "plugin/ht/ht.h"
#include "plugin/ht/nodes.h"
#include "plugin/ll/ll.h"
#include "util/error.h"

enum { R = 2, E = 8, EL = 4, TMAX = 8, T = 5, K = 3, H = 512, N = 24, MAX_BYTES = 4096 };

static bool fake_captured;

static int fake_capturing(struct ep_dev *dev, void *stream, bool *out)
{
	(void)dev, (void)stream;
	*out = fake_captured;
	return 0;
}

static int fake_stream_create(struct ep_dev *dev, void **out)
{
	(void)dev;
	*out = NULL;
	return 0;
}

static void fake_stream_destroy(struct ep_dev *dev, void *stream)
{
	(void)dev, (void)stream;
}

static int fake_fill(struct ep_dev *dev, void *dst, int byte, size_t n, void *stream)
{
	(void)dev, (void)dst, (void)byte, (void)n, (void)stream;
	return 0;
}

static int fake_sync(struct ep_dev *dev, void *stream, uint64_t deadline_ns)
{
	(void)dev, (void)stream, (void)deadline_ns;
	return 0;
}

static const void *fake_pageable; /* what the device cannot access */

static int fake_address(struct ep_dev *dev, const void *ptr, void **out)
{
	(void)dev;
	if (ptr == fake_pageable)
		return -ENOENT;
	*out = (void *)(uintptr_t)ptr;
	return 0;
}

static ncclResult_t fake_window(ncclComm_t comm, ncclWindow_t win, void **out)
{
	(void)comm;
	*out = win;
	return ncclSuccess;
}

/* An address that the API accepts; those of a stack are used again. */
static inline void fake_live(enum ep_live_kind kind, const void *ptr)
{
	if (!ep_live_has(kind, ptr))
		cr_assert_eq(ep_live_add(kind, ptr), 0);
}

struct fake {
	_Alignas(16) struct ncclEpGroup group;
	struct ep_dev dev;
	struct ep_dev_ops ops;
	struct ep_window window, *windows[1];
	struct ep_topo_rank ranks[R];
	_Alignas(struct ep_ht) uint8_t ht[sizeof(struct ep_ht) + R * sizeof(struct ep_ht_line *)];
};

static inline struct ep_ht_nodes *fake_nodes(struct fake *f)
{
	return &((struct ep_ht *)f->ht)->nodes;
}

static inline void fake_init(struct fake *f, ncclEpAlgorithm_t algorithm)
{
	memset(f, 0, sizeof(*f));
	f->group.cfg = (struct ep_group_cfg){ .version = 2,
					      .algorithm = algorithm,
					      .num_experts = E,
					      .max_dispatch = TMAX,
					      .max_recv = algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT ? N : 0,
					      .max_token_bytes = MAX_BYTES,
					      .overflow = NCCL_EP_OVERFLOW_TRAP };
	f->group.algo = algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT ? &ep_ht_algo : &ep_ll_algo;
	f->group.algo_state = algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT ? f->ht : NULL;
	*fake_nodes(f) = (struct ep_ht_nodes){ .mates = R, .near = true };
	f->group.nranks = R;
	f->group.topo = (struct ep_topo){ .nranks = R, .rank = f->ranks };
	f->group.experts_per_rank = EL;
	f->ops = (struct ep_dev_ops){ .capturing = fake_capturing,
				      .stream_create = fake_stream_create,
				      .stream_destroy = fake_stream_destroy,
				      .fill = fake_fill,
				      .sync = fake_sync,
				      .address = fake_address };
	f->group.comm.calls.window = fake_window;
	f->dev.ops = &f->ops;
	f->group.dev = &f->dev;
	f->window.size = (size_t)1 << 40; /* large enough for every handle */
	f->windows[0] = &f->window;
	f->group.payload = (struct ep_window_list){ .count = 1, .win = f->windows };
	pthread_mutex_init(&f->group.lock, NULL);
	pthread_mutex_init(&f->group.error_lock, NULL);
	fake_captured = false;
	fake_live(EP_LIVE_GROUP, &f->group);
}

/* The log would print every error provoked here. */
static inline void bad_args_quiet(void)
{
	setenv("NCCL_EP_DEBUG", "NONE", 1);
}

/* The message must name the function and the argument; it is cleared afterwards, so that an old one cannot pass. */
static inline void expect_fail(ncclResult_t is, ncclResult_t must, const char *fn, const char *arg, const char *what)
{
	const char *text = anyEpGetLastError();

	cr_expect_eq(is, must, "%s: %s: result %d, must be %d (%s)", fn, what, (int)is, (int)must, text);
	cr_expect(strstr(text, fn) && strstr(text, arg), "%s: %s: the message does not name %s: \"%s\"", fn, what, arg,
		  text);
	ep_last_error_set("");
}
#define EXPECT_ARG(call, fn, arg)                                         \
	do {                                                              \
		ep_last_error_set("");                                    \
		expect_fail((call), ncclInvalidArgument, fn, arg, #call); \
	} while (0)
#define EXPECT_USE(call, fn, arg)                                      \
	do {                                                           \
		ep_last_error_set("");                                 \
		expect_fail((call), ncclInvalidUsage, fn, arg, #call); \
	} while (0)
#define EXPECT_OK(call) \
	cr_expect_eq((call), ncclSuccess, #call ": must succeed, fails with \"%s\"", anyEpGetLastError())

/*
 * Size and magic of a struct: too small or wrong ones are rejected, larger sizes are accepted. call(ctx) makes the call
 * that must name `arg`; good(ctx) runs the same call's checks, 0 if they pass.
 */
typedef ncclResult_t (*call_fn)(void *ctx);
typedef int (*good_fn)(void *ctx);

static inline void walk_struct(void *head, unsigned v1, const char *fn, const char *arg, call_fn call, good_fn good,
			       void *ctx)
{
	static const unsigned magics[] = { 0, 1, 0xFFFFFFFFu, 0xDEADBEEFu };
	unsigned *size = head, *magic = size + 1, keep_size = *size, keep_magic = *magic;
	const unsigned shorts[] = { 0, 1, 4, v1 - 1 }, longs[] = { keep_size, keep_size + 1, 1u << 20, 0xFFFFFFFFu };

	for (size_t i = 0; i < sizeof(shorts) / sizeof(shorts[0]); i++) {
		*size = shorts[i];
		expect_fail(call(ctx), ncclInvalidArgument, fn, arg, "short size");
	}
	for (size_t i = 0; i < sizeof(longs) / sizeof(longs[0]); i++) {
		*size = longs[i];
		cr_expect_eq(good(ctx), 0, "%s: %s of size %u must pass: %s", fn, arg, longs[i], anyEpGetLastError());
	}
	*size = keep_size;
	for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++) {
		*magic = magics[i];
		expect_fail(call(ctx), ncclInvalidArgument, fn, arg, "wrong magic");
	}
	/* The magic of a struct in a tensor and vice versa. */
	*magic = keep_magic == NCCL_EP_MAGIC ? NCCL_EP_TENSOR_MAGIC : NCCL_EP_MAGIC;
	expect_fail(call(ctx), ncclInvalidArgument, fn, arg, "the other magic");
	*magic = keep_magic;
	cr_expect_eq(good(ctx), 0, "%s: %s: the good call fails: %s", fn, arg, anyEpGetLastError());
}

#endif
