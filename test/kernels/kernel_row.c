/* SPDX-License-Identifier: Apache-2.0 */
/* The row primitives: all lengths and alignments around their units, and no byte outside the row is written. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel_check.h"
#include "kernels/gx/gx.h"
#include "kernels/host/launch.h"

enum { ROOM = 20000, EDGE = 64, STAGE = 1024 };

struct row_job {
	uint8_t *dst;
	const uint8_t *src;
	size_t n;
	void (*how)(void *dst, const void *src, size_t n);
};

static void copy(void *dst, const void *src, size_t n)
{
	gx_row_copy(dst, src, n);
}

/* As kernels do: a piece into the stage, from there to two destinations. */
static void bulk(void *dst, const void *src, size_t n)
{
	GX_DYN_SHARED(stage);
	struct gx_bulk b;
	size_t room;

	gx_bulk_open(&b, stage, STAGE);
	room = gx_bulk_room(&b);
	for (size_t at = 0; at < n; at += room) {
		uint32_t part = (uint32_t)(n - at < room ? n - at : room);

		gx_bulk_load(&b, (const uint8_t *)src + at, part);
		gx_bulk_store(&b, (uint8_t *)dst + at, 0, part / 3);
		gx_bulk_store(&b, (uint8_t *)dst + at + part / 3, part / 3, part - part / 3);
	}
	gx_bulk_drain(&b);
}

static void row_kernel(const void *args)
{
	const struct row_job *job = args;

	job->how(job->dst, job->src, job->n);
}

static uint8_t src[ROOM], dst[ROOM], want[ROOM];

static void check(void (*how)(void *dst, const void *src, size_t n), size_t n, size_t from, size_t to)
{
	struct row_job job = { dst + EDGE + to, src + from, n, how };

	memset(dst, 0xee, EDGE + to + n + EDGE);
	memset(want, 0xee, EDGE + to + n + EDGE);
	memcpy(want + EDGE + to, src + from, n);
	CHECK(gx_host_launch(row_kernel, &job, 1, GX_WARP, STAGE) == 0, "launch");
	CHECK(memcmp(dst, want, EDGE + to + n + EDGE) == 0, "%zu bytes from offset %zu to offset %zu", n, from, to);
}

int main(void)
{
	static void (*const how[])(void *, const void *, size_t) = { copy, bulk };
	static const size_t lengths[] = { 0,  1,  3,	4,    15,   16,	  17,	31,   33,
					  63, 64, 1000, 1024, 2047, 4096, 4100, 7168, 16385 };
	static const size_t offsets[] = { 0, 1, 4, 8, 15 };

	alarm(240);
	for (size_t i = 0; i < ROOM; i++)
		src[i] = (uint8_t)(i * 2654435761u >> 13);
	for (size_t h = 0; h < sizeof(how) / sizeof(how[0]); h++)
		for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
			for (size_t o = 0; o < 25; o++)
				check(how[h], lengths[l], offsets[o / 5], offsets[o % 5]);
	return check_result("kernel_row");
}
