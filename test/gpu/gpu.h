/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common to the device tests. They are plain programs (exit 0 passed, 1 failed, 77 skipped) that need nothing but the
 * library's own objects, so that they run on a GPU machine without Criterion.
 */
#ifndef EP_TEST_GPU_H
#define EP_TEST_GPU_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/dev.h"
#include "util/clock.h"
#include "util/error.h"

#define GPU_SKIP 77

static int gpu_failed;

#define CHECK(cond, ...)                                                                     \
	do {                                                                                 \
		if (!(cond)) {                                                               \
			gpu_failed++;                                                        \
			fprintf(stderr, "%s:%d: not true: %s: ", __FILE__, __LINE__, #cond); \
			fprintf(stderr, "" __VA_ARGS__);                                     \
			fprintf(stderr, " [%s]\n", ep_last_error());                         \
		}                                                                            \
	} while (0)
#define REQUIRE(cond, ...)                  \
	do {                                \
		int before_ = gpu_failed;   \
		CHECK(cond, __VA_ARGS__);   \
		if (gpu_failed != before_)  \
			exit(EXIT_FAILURE); \
	} while (0)

/* rc is this failure, and its message contains this word. */
#define CHECK_FAILS(rc, err, word)                                                      \
	do {                                                                            \
		int rc_ = (rc);                                                         \
		CHECK(rc_ == -(err), "returned %d", rc_);                               \
		CHECK(strstr(ep_last_error(), word), "no \"%s\" in the message", word); \
	} while (0)

/* A function of the driver that the library does not need, as a pointer of the given type. */
#define GPU_SYM(type, name) ((type)gpu_sym(name))

static inline void *gpu_sym(const char *name)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *symbol = lib ? dlsym(lib, name) : NULL;

	REQUIRE(symbol, "libcuda.so.1 has no %s", name);
	return symbol;
}

static inline const struct ep_dev_ops *gpu_row(int *count)
{
	const struct ep_dev_ops *row = ep_dev_row(EP_DEV_CUDA);
	int rc = row->count(count);

	if (rc == -ENODEV) {
		printf("skipped: %s\n", ep_last_error());
		exit(GPU_SKIP);
	}
	REQUIRE(rc == 0 && *count > 0, "count returned %d", rc);
	return row;
}

static inline struct ep_dev *gpu_open(int ordinal)
{
	int count;
	const struct ep_dev_ops *row = gpu_row(&count);
	struct ep_dev *dev = NULL;

	REQUIRE(row->open(ordinal, &dev) == 0, "open of GPU %d", ordinal);
	return dev;
}

/* Makes the primary context current, as cudaSetDevice does. */
static inline void gpu_make_current(void)
{
	unsigned (*init)(unsigned) = GPU_SYM(unsigned (*)(unsigned), "cuInit");
	unsigned (*get)(int *, int) = GPU_SYM(unsigned (*)(int *, int), "cuDeviceGet");
	unsigned (*retain)(void **, int) = GPU_SYM(unsigned (*)(void **, int), "cuDevicePrimaryCtxRetain");
	unsigned (*push)(void *) = GPU_SYM(unsigned (*)(void *), "cuCtxPushCurrent_v2");
	void *ctx;
	int device;

	REQUIRE(!init(0) && !get(&device, 0) && !retain(&ctx, device) && !push(ctx), "no primary context");
}

static inline void *gpu_current_context(void)
{
	unsigned (*current)(void **) = GPU_SYM(unsigned (*)(void **), "cuCtxGetCurrent");
	void *ctx = NULL;

	current(&ctx);
	return ctx;
}

/* Copies device memory to the host and waits; the caller compares. */
static inline void gpu_read(struct ep_dev *dev, struct ep_pinned *to, const void *from, size_t n, void *stream)
{
	REQUIRE(n <= to->size, "%zu bytes", n);
	REQUIRE(dev->ops->copy(dev, to->host, from, n, stream) == 0, "copy");
	REQUIRE(dev->ops->sync(dev, stream, ep_deadline_ms(20000)) == 0, "sync");
}

static inline void gpu_write(struct ep_dev *dev, void *to, struct ep_pinned *from, size_t n, void *stream)
{
	REQUIRE(n <= from->size, "%zu bytes", n);
	REQUIRE(dev->ops->copy(dev, to, from->host, n, stream) == 0, "copy");
	REQUIRE(dev->ops->sync(dev, stream, ep_deadline_ms(20000)) == 0, "sync");
}

/* A pattern that depends on seed and position. */
static inline uint8_t gpu_byte(size_t at, unsigned seed)
{
	return (uint8_t)((at * 2654435761u + seed * 40503u) >> 13);
}

static inline void gpu_pattern(uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = gpu_byte(i, seed);
}

/* The first byte that differs; n if none does. */
static inline size_t gpu_differs(const uint8_t *p, size_t n, unsigned seed)
{
	size_t i = 0;

	while (i < n && p[i] == gpu_byte(i, seed))
		i++;
	return i;
}

static inline int gpu_end(const char *name)
{
	printf("%s: %s\n", name, gpu_failed ? "FAILED" : "passed");
	return gpu_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
