/* SPDX-License-Identifier: Apache-2.0 */
#include "rowsig_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"

#define UNTOUCHED 0xee
#define BAD(r, ...)                                                                  \
	(fprintf(stderr, "rank %d of %d, row %llu: ", (r)->rank, (r)->world->nranks, \
		 (unsigned long long)(r)->world->row),                               \
	 fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), -1)

static uint32_t mix(uint32_t a, uint32_t b)
{
	uint64_t h = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15ull;

	h ^= h >> 29;
	h *= 0xbf58476d1ce4e5b9ull;
	return (uint32_t)(h >> 32);
}

static uint32_t row_seed(const struct rowsig_world *w, int source, int dest, int epoch, uint32_t i)
{
	return mix(mix(w->seed + (uint32_t)epoch, (uint32_t)source * 65537u + (uint32_t)dest), i);
}

/* A quarter of the pairs has no rows, some have the maximum. */
uint32_t rowsig_count(const struct rowsig_world *w, int source, int dest, int epoch)
{
	uint32_t h = row_seed(w, source, dest, epoch, ~0u);

	if (h % 4 == 0)
		return 0;
	return h % 8 == 1 ? w->cap : h / 8 % (w->cap + 1);
}

static void row_fill(uint8_t *row, uint64_t n, uint32_t seed)
{
	for (uint64_t k = 0; k < n; k++)
		row[k] = (uint8_t)((seed + (uint32_t)k * 2654435761u) >> 23);
}

static uint64_t control_bytes(const struct rowsig_world *w)
{
	return (ep_rowsig_control_size((uint32_t)w->nranks) + 127) / 128 * 128;
}

uint64_t rowsig_window_bytes(const struct rowsig_world *w)
{
	return control_bytes(w) + ep_rowsig_window_size(w->row, w->cap, (uint32_t)w->nranks);
}

static uint64_t rows_bytes(const struct rowsig_world *w)
{
	return (uint64_t)w->nranks * w->cap * w->row;
}

static int alloc_all(struct rowsig_rank *r)
{
	const struct rowsig_world *w = r->world;
	const struct ep_dev_ops *ops = r->dev->ops;
	uint32_t n = (uint32_t)w->nranks;
	size_t rows = rows_bytes(w) + w->skew + 1;
	const struct {
		struct ep_mem *mem;
		size_t size;
	} wanted[] = {
		{ &r->window, rowsig_window_bytes(w) },
		{ &r->state, ep_rowsig_state_size(n) },
		{ &r->tables, 2 * n * sizeof(void *) },
		{ &r->in, rows },
		{ &r->out, rows },
		{ &r->counts, 2 * n * sizeof(uint32_t) },
	};

	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		if (ops->mem_alloc(r->dev, wanted[i].size, wanted[i].mem) != 0)
			return BAD(r, "mem_alloc: %s", ep_last_error());
	if (ops->pinned_alloc(r->dev, sizeof(struct ep_kernel_report) + sizeof(uint64_t), &r->pinned) != 0)
		return BAD(r, "pinned_alloc: %s", ep_last_error());
	r->expect = malloc(rows);
	r->seen = malloc(rows);
	return r->expect && r->seen ? 0 : BAD(r, "out of memory");
}

static void args_fill(struct rowsig_rank *r)
{
	const struct rowsig_world *w = r->world;
	uint32_t *counts = r->counts.ptr;
	uint64_t **tables = r->tables.ptr;
	struct ep_kernel_report *report = r->pinned.dev;

	r->args = (struct ep_rowsig_args){
		.in = (uint8_t *)r->in.ptr + w->skew,
		.out = (uint8_t *)r->out.ptr + w->skew,
		.count = counts,
		.got = counts + w->nranks,
		.window = (uint8_t *const *)tables,
		.control = tables + w->nranks,
		.state = r->state.ptr,
		.report = report,
		.abort = (uint64_t *)(report + 1),
		.timeout_ns = (uint64_t)w->timeout_ms * 1000000,
		.row = w->row,
		.rank = (uint32_t)r->rank,
		.nranks = (uint32_t)w->nranks,
		.cap = w->cap,
		.slices = w->slices,
		.stage = w->stage,
		.single = w->single,
	};
}

int rowsig_open(struct rowsig_rank *r, const struct rowsig_world *world, int rank)
{
	const struct ep_dev_ops *ops = ep_dev_row(world->kind);

	*r = (struct rowsig_rank){ .world = world, .rank = rank };
	if (ops->open(0, &r->dev) != 0)
		return BAD(r, "open: %s", ep_last_error());
	if (ops->stream_create(r->dev, &r->stream) != 0)
		return BAD(r, "stream_create: %s", ep_last_error());
	if (alloc_all(r) != 0)
		return -1;
	args_fill(r);
	return 0;
}

static int settle(struct rowsig_rank *r, const char *what)
{
	if (r->dev->ops->sync(r->dev, r->stream, ep_deadline_ms(60000)) != 0)
		return BAD(r, "%s: %s", what, ep_last_error());
	return 0;
}

int rowsig_connect(struct rowsig_rank *r, void *const *window)
{
	int n = r->world->nranks;
	void **table = calloc(2 * (size_t)n, sizeof(*table));
	int rc = -1;

	for (int i = 0; table && i < n; i++) {
		table[i] = (uint8_t *)window[i] + control_bytes(r->world);
		table[n + i] = window[i];
	}
	if (table && r->dev->ops->copy(r->dev, r->tables.ptr, table, 2 * (size_t)n * sizeof(*table), r->stream) == 0)
		rc = settle(r, "copying the tables");
	free(table);
	return rc;
}

static int inputs(struct rowsig_rank *r, int epoch)
{
	const struct rowsig_world *w = r->world;
	const struct ep_dev_ops *ops = r->dev->ops;
	uint32_t counts[1024];
	size_t n = (size_t)w->nranks;

	for (int d = 0; d < w->nranks; d++) {
		counts[d] = rowsig_count(w, r->rank, d, epoch);
		for (uint32_t i = 0; i < counts[d]; i++)
			row_fill(r->expect + ((uint64_t)d * w->cap + i) * w->row, w->row,
				 row_seed(w, r->rank, d, epoch, i));
		counts[d] += r->lie;
	}
	if (ops->copy(r->dev, r->counts.ptr, counts, n * sizeof(*counts), r->stream) != 0 ||
	    ops->fill(r->dev, (uint32_t *)r->counts.ptr + n, UNTOUCHED, n * sizeof(*counts), r->stream) != 0 ||
	    ops->copy(r->dev, (void *)r->args.in, r->expect, rows_bytes(w), r->stream) != 0 ||
	    ops->fill(r->dev, r->out.ptr, UNTOUCHED, rows_bytes(w) + w->skew + 1, r->stream) != 0)
		return BAD(r, "copying the inputs: %s", ep_last_error());
	return settle(r, "copying the inputs");
}

int rowsig_launch(struct rowsig_rank *r, int epoch)
{
	const struct rowsig_world *w = r->world;
	struct ep_launch launch = {
		.kernel = EP_K_rowsig,
		.grid = w->grid,
		.block = w->warps * r->dev->warp,
		.shared = (size_t)w->warps * w->stage,
		.args = &r->args,
		.args_size = sizeof(r->args),
		.stream = r->stream,
	};

	if (inputs(r, epoch) != 0)
		return -1;
	if (r->dev->ops->launch(r->dev, &launch) != 0)
		return BAD(r, "launch: %s", ep_last_error());
	return settle(r, "the kernel");
}

static int verify_source(struct rowsig_rank *r, int epoch, int source, uint32_t got)
{
	const struct rowsig_world *w = r->world;
	uint32_t count = rowsig_count(w, source, r->rank, epoch);
	uint8_t *want = r->expect;

	if (got != count)
		return BAD(r, "epoch %d: %u rows from rank %d, not %u", epoch, got, source, count);
	for (uint32_t i = 0; i < w->cap; i++) {
		const uint8_t *row = r->seen + w->skew + ((uint64_t)source * w->cap + i) * w->row;

		if (i < count)
			row_fill(want, w->row, row_seed(w, source, r->rank, epoch, i));
		else
			memset(want, UNTOUCHED, w->row);
		if (memcmp(row, want, w->row) != 0)
			return BAD(r, "epoch %d: row %u of %u from rank %d is not what was sent", epoch, i, count,
				   source);
	}
	return 0;
}

int rowsig_verify(struct rowsig_rank *r, int epoch)
{
	const struct rowsig_world *w = r->world;
	const struct ep_kernel_report *report = rowsig_report(r);
	uint32_t code = __atomic_load_n(&report->code, __ATOMIC_ACQUIRE); /* pairs with the kernel's release of code */
	uint64_t n = rows_bytes(w) + w->skew + 1;
	uint32_t got[1024];

	if (code != EP_KERR_NONE)
		return BAD(r, "epoch %d: the kernel reports error %u in phase %u for rank %u", epoch, code,
			   report->phase, report->rank);
	if (r->dev->ops->copy(r->dev, r->seen, r->out.ptr, n, r->stream) != 0 ||
	    r->dev->ops->copy(r->dev, got, r->args.got, (size_t)w->nranks * sizeof(*got), r->stream) != 0 ||
	    settle(r, "copying the outputs") != 0)
		return BAD(r, "copying the outputs: %s", ep_last_error());
	for (int s = 0; s < w->nranks; s++)
		if (verify_source(r, epoch, s, got[s]) != 0)
			return -1;
	for (uint32_t i = 0; i < w->skew; i++)
		if (r->seen[i] != UNTOUCHED)
			return BAD(r, "epoch %d: a byte before the output was written", epoch);
	return r->seen[n - 1] == UNTOUCHED ? 0 : BAD(r, "epoch %d: the byte after the output was written", epoch);
}

int rowsig_run(struct rowsig_rank *r)
{
	const struct rowsig_world *w = r->world;

	for (int epoch = 1; epoch <= w->epochs; epoch++) {
		uint32_t h = mix(w->seed ^ 0x5a5a, (uint32_t)(epoch * 1024 + r->rank));

		if (w->stalls && h % 4 == 0)
			usleep(h / 4 % 3000);
		if (rowsig_launch(r, epoch) != 0 || rowsig_verify(r, epoch) != 0)
			return -1;
	}
	return 0;
}

void rowsig_close(struct rowsig_rank *r)
{
	const struct ep_dev_ops *ops;

	if (!r->dev)
		return;
	ops = r->dev->ops;
	ops->stream_destroy(r->dev, r->stream);
	ops->mem_free(r->dev, &r->window);
	ops->mem_free(r->dev, &r->state);
	ops->mem_free(r->dev, &r->tables);
	ops->mem_free(r->dev, &r->in);
	ops->mem_free(r->dev, &r->out);
	ops->mem_free(r->dev, &r->counts);
	ops->pinned_free(r->dev, &r->pinned);
	ops->close(r->dev);
	free(r->expect);
	free(r->seen);
}
