/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills in stream order. Device and pinned memory are passed to the driver directly. Pageable host memory is
 * not: the driver would wait inside the call for everything in the stream, without a deadline. It is staged through
 * pinned memory instead, and that wait has a deadline.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/cuda_dev.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

#define STAGE_BYTES ((size_t)256 << 10)

struct ep_cuda_stage {
	pthread_mutex_t lock;
	uint8_t *mem; /* NULL after a copy that never ended: leaked, as the device may still use it */
	pthread_mutex_t peek_lock;
	uint8_t *peek; /* behind mem: a copy of a word that is late harms nobody */
};
#define PEEK_BYTES ((size_t)64)

int ep_cuda_stage_open(struct ep_cuda_dev *dev)
{
	struct ep_cuda_stage *stage = EP_CALLOC(EP_DEV, 1, sizeof(*stage), "the copy stage of a CUDA device");
	void *mem;
	int rc;

	if (!stage)
		return -ENOMEM;
	rc = EP_CU(cuMemHostAlloc, (&mem, STAGE_BYTES + PEEK_BYTES, EP_CU_HOST_PORTABLE | EP_CU_HOST_MAPPED),
		   "for %zu bytes of pinned memory", STAGE_BYTES + PEEK_BYTES);
	if (rc) {
		free(stage);
		return rc;
	}
	stage->mem = mem;
	stage->peek = stage->mem + STAGE_BYTES;
	pthread_mutex_init(&stage->lock, NULL);
	pthread_mutex_init(&stage->peek_lock, NULL);
	dev->stage = stage;
	return 0;
}

void ep_cuda_stage_close(struct ep_cuda_dev *dev, bool context_alive)
{
	if (dev->stage->mem && context_alive)
		EP_CU_NOTE(cuMemFreeHost, (dev->stage->mem));
	pthread_mutex_destroy(&dev->stage->peek_lock);
	pthread_mutex_destroy(&dev->stage->lock);
	free(dev->stage);
}

static int stage_lock(const struct ep_cuda_dev *dev, uint64_t deadline)
{
	struct timespec nap = { .tv_nsec = 50000 };

	while (pthread_mutex_trylock(&dev->stage->lock)) {
		if (ep_now_ns() >= deadline)
			return EP_FAIL(EP_DEV, EP_ETIMEOUT, "GPU %d: timed out behind another copy of pageable memory",
				       dev->dev.ordinal);
		nanosleep(&nap, NULL);
	}
	if (dev->stage->mem)
		return 0;
	pthread_mutex_unlock(&dev->stage->lock);
	return EP_FAIL(EP_DEV, EP_EDEVICE, "GPU %d: an earlier copy of pageable memory never ended; destroy the group",
		       dev->dev.ordinal);
}

static unsigned long long address(const void *ptr)
{
	return (unsigned long long)(uintptr_t)ptr;
}

/* EP_CU_MEMORY_HOST: pinned; 0: pageable host memory, which the driver does not know. */
static unsigned memory_type(const void *ptr)
{
	unsigned type = 0;

	return ep_cu.cuPointerGetAttribute(&type, EP_CU_PTR_MEMORY_TYPE, address(ptr)) ? 0 : type;
}

static bool is_pageable(const void *ptr)
{
	return !memory_type(ptr);
}

/* Registered host memory has another address on some devices; all else has one. */
int ep_cuda_address(struct ep_dev *base, const void *ptr, void **out)
{
	unsigned long long there = address(ptr);
	struct ep_cuda_scope scope;
	int rc = ep_cuda_enter(ep_cuda(base), &scope);
	unsigned type;

	if (rc)
		return rc;
	type = memory_type(ptr);
	if (type == EP_CU_MEMORY_HOST && ep_cu.cuPointerGetAttribute(&there, EP_CU_PTR_DEVICE_POINTER, address(ptr)))
		type = 0;
	ep_cuda_leave(&scope);
	if (!type)
		return -ENOENT;
	*out = (void *)(uintptr_t)there;
	return 0;
}

struct copy {
	uint8_t *dst;
	const uint8_t *src;
	size_t n;
	struct CUstream_st *stream;
	bool dst_pageable, src_pageable;
	uint64_t deadline;
};

static int copy_piece(const struct ep_cuda_dev *dev, const struct copy *c, size_t at, size_t n)
{
	uint8_t *stage = dev->stage->mem;
	const uint8_t *from = c->src_pageable ? stage : c->src + at;
	uint8_t *to = c->dst_pageable ? stage : c->dst + at;
	int rc;

	if (c->src_pageable)
		memcpy(stage, c->src + at, n);
	if (from != to && (rc = EP_CU(cuMemcpyAsync, (address(to), address(from), n, c->stream),
				      "for %zu bytes on GPU %d", n, dev->dev.ordinal)))
		return rc;
	if ((rc = ep_cuda_wait(dev, c->stream, c->deadline)))
		return rc;
	if (c->dst_pageable)
		memcpy(c->dst + at, stage, n);
	return 0;
}

static int copy_pieces(const struct ep_cuda_dev *dev, const struct copy *c)
{
	int rc = stage_lock(dev, c->deadline);

	if (rc)
		return rc;
	for (size_t at = 0; !rc && at < c->n; at += STAGE_BYTES)
		rc = copy_piece(dev, c, at, c->n - at < STAGE_BYTES ? c->n - at : STAGE_BYTES);
	if (rc == -EP_ETIMEOUT)
		dev->stage->mem = NULL;
	pthread_mutex_unlock(&dev->stage->lock);
	return rc;
}

static int copy_staged(const struct ep_cuda_dev *dev, struct copy *c)
{
	int64_t ms = ep_param_int(EP_P_TIMEOUT_MS);
	bool capturing;
	int rc = ep_cuda_capture_status(dev, c->stream, &capturing);

	if (rc)
		return rc;
	if (capturing)
		return EP_FAIL(EP_DEV, EP_EUSAGE,
			       "GPU %d: a copy in a captured stream needs pinned memory: replays reuse the pointer",
			       dev->dev.ordinal);
	c->deadline = ep_deadline_ms(ms ? ms : 100000);
	return copy_pieces(dev, c);
}

int ep_cuda_copy(struct ep_dev *base, void *dst, const void *src, size_t n, void *stream)
{
	struct copy c = { .dst = dst, .src = src, .n = n, .stream = stream };
	struct ep_cuda_dev *dev = ep_cuda(base);
	struct ep_cuda_scope scope;
	int rc;

	if (!n)
		return 0;
	if ((rc = ep_cuda_enter(dev, &scope)))
		return rc;
	c.dst_pageable = is_pageable(dst);
	c.src_pageable = is_pageable(src);
	if (c.dst_pageable || c.src_pageable)
		rc = copy_staged(dev, &c);
	else
		rc = EP_CU(cuMemcpyAsync, (address(dst), address(src), n, stream), "for %zu bytes on GPU %d", n,
			   base->ordinal);
	ep_cuda_leave(&scope);
	return rc;
}

/* Without a message: who only polls asks again. */
static int peek_wait(const struct ep_cuda_dev *dev, uint64_t deadline)
{
	struct timespec nap = { .tv_nsec = 5000 };
	unsigned result;

	while ((result = ep_cu.cuStreamQuery(dev->work)) == EP_CU_NOT_READY) {
		if (ep_now_ns() >= deadline)
			return -EP_ETIMEOUT;
		nanosleep(&nap, NULL);
	}
	return ep_cu_check_(result, "cuStreamQuery", __FILE__, __LINE__, "when reading a word of GPU %d",
			    dev->dev.ordinal);
}

/* By the device's own stream, which waits for no kernel, unless both share one of the GPU's hardware queues. */
int ep_cuda_peek(struct ep_dev *base, const uint32_t *word, uint64_t deadline_ns, uint32_t *out)
{
	struct ep_cuda_dev *dev = ep_cuda(base);
	struct ep_cuda_stage *stage = dev->stage;
	struct ep_cuda_scope scope;
	int rc = ep_cuda_enter(dev, &scope);

	if (rc)
		return rc;
	pthread_mutex_lock(&stage->peek_lock);
	rc = peek_wait(dev, deadline_ns); /* for one that was late */
	if (!rc)
		rc = EP_CU(cuMemcpyAsync, (address(stage->peek), address(word), sizeof(*word), dev->work),
			   "for a word of GPU %d", base->ordinal);
	if (!rc && !(rc = peek_wait(dev, deadline_ns)))
		memcpy(out, stage->peek, sizeof(*out));
	pthread_mutex_unlock(&stage->peek_lock);
	ep_cuda_leave(&scope);
	return rc;
}

int ep_cuda_fill(struct ep_dev *base, void *dst, int byte, size_t n, void *stream)
{
	struct ep_cuda_scope scope;
	int rc;

	if (!n)
		return 0;
	if ((rc = ep_cuda_enter(ep_cuda(base), &scope)))
		return rc;
	rc = EP_CU(cuMemsetD8Async, (address(dst), (unsigned char)byte, n, stream), "for %zu bytes on GPU %d", n,
		   base->ordinal);
	ep_cuda_leave(&scope);
	return rc;
}
