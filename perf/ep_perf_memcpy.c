/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference on the CPU: the minimum copies of dispatch and combine by memcpy, with the same data, ranks and cores.
 * A token is copied once to each other rank's window and from there to its experts' rows; own rows are copied directly.
 * In combine each row is copied to its home rank, which sums them. No headers, no counts, no handshake except a barrier
 * where receivers must wait. With puts, these rows are staged in registered memory, put one by one, and waited for by
 * their immediates.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "perf/ep_perf.h"
#include "perf/ep_perf_wire.h"

struct plain {
	struct seat *seat;
	const struct perf_opts *opts;
	const struct perf_board *board;
	struct ll_shape shape;
	struct ll_input *in;
	struct ll_expect expect;
	uint8_t *out, *answers, *own, *sums; /* own: results for own tokens */
	size_t out_size, answers_size, own_size, sums_size;
	float *tile;
	struct wire *wire;	      /* NULL: windows are shared memory */
	uint64_t rows_in, answers_in; /* expected from other ranks */
};

/* Outputs are as large as the library's; untouched pages cost nothing. */
static uint8_t *pages(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

static size_t row_bytes(const struct plain *p)
{
	return ll_out_bytes(&p->shape) + ll_scale_bytes(&p->shape);
}

/* Offset in a window. */
static size_t row_at(const struct plain *p, int src, int token)
{
	return ((size_t)src * (size_t)p->shape.tmax + (size_t)token) * row_bytes(p);
}

static size_t home_at(const struct plain *p, int token, int k)
{
	return ((size_t)token * (size_t)p->shape.topk + (size_t)k) * ll_combine_bytes(&p->shape);
}

static const uint8_t *window(const struct plain *p)
{
	return p->wire ? wire_window(p->wire) : perf_shared_window(p->board, p->opts, seat_rank(p->seat));
}

static void row_send(const struct plain *p, int peer, size_t to, const uint8_t *from, size_t bytes)
{
	uint8_t *staged;

	if (!p->wire) {
		memcpy(perf_shared_window(p->board, p->opts, peer) + to, from, bytes);
		return;
	}
	staged = wire_stage(p->wire, bytes);
	memcpy(staged, from, bytes);
	wire_put(p->wire, peer, to, staged, bytes);
}

static int rows_wait(const struct plain *p, uint64_t rows)
{
	return p->wire ? wire_wait(p->wire, rows) : seat_barrier(p->seat);
}

/* The first k of a token on this rank, or -1. */
static int first_of(const struct plain *p, const struct ll_input *in, int token, int rank)
{
	for (int k = 0; k < p->shape.topk; k++)
		if (ll_owner(&p->shape, NULL, in->idx[token * p->shape.topk + k]) == rank)
			return k;
	return -1;
}

/* memcpy does not quantise: rows are copied at their size on the wire. */
static const uint8_t *token_row(const struct plain *p, int token)
{
	return p->in[seat_rank(p->seat)].tokens + (size_t)token * ll_in_bytes(&p->shape);
}

static int plain_dispatch(struct plain *p)
{
	int me = seat_rank(p->seat);
	size_t bytes = ll_out_bytes(&p->shape);

	for (int t = 0; t < p->in[me].t; t++)
		for (int r = 0; r < p->shape.ranks; r++)
			if (r != me && first_of(p, &p->in[me], t, r) >= 0)
				row_send(p, r, row_at(p, me, t), token_row(p, t), bytes);
	if (rows_wait(p, p->rows_in))
		return -1;
	for (int z = 0; z < p->expect.zones; z++)
		for (int i = 0; i < p->expect.count[z]; i++) {
			size_t at = (size_t)z * (size_t)p->expect.cap + (size_t)i;
			struct ll_row row = p->expect.row[at];

			memcpy(p->out + at * bytes,
			       row.src == me ? token_row(p, row.token) : window(p) + row_at(p, row.src, row.token),
			       bytes);
		}
	return 0;
}

/* Which of the token's choices the row of zone z is. */
static int place_of(const struct plain *p, int z, struct ll_row row)
{
	int me = seat_rank(p->seat), local = p->shape.experts / p->shape.ranks;
	const int64_t *idx = p->in[row.src].idx + row.token * p->shape.topk;

	if (p->shape.layout == LL_RANK_MAJOR)
		return first_of(p, &p->in[row.src], row.token, me);
	for (int k = 0; k < p->shape.topk; k++)
		if (idx[k] == (int64_t)me * local + z)
			return k;
	return 0;
}

static int plain_combine(struct plain *p)
{
	int me = seat_rank(p->seat);
	const struct ll_input *in = &p->in[me];
	size_t bytes = ll_combine_bytes(&p->shape), n = p->shape.hidden;

	for (int z = 0; z < p->expect.zones; z++)
		for (int i = 0; i < p->expect.count[z]; i++) {
			size_t at = (size_t)z * (size_t)p->expect.cap + (size_t)i;
			struct ll_row row = p->expect.row[at];

			if (row.src != me)
				row_send(p, row.src, home_at(p, row.token, place_of(p, z, row)),
					 p->answers + at * bytes, bytes);
		}
	if (rows_wait(p, p->answers_in))
		return -1;
	for (int t = 0; t < in->t; t++) {
		memset(p->tile, 0, n * sizeof(*p->tile));
		for (int k = 0; k < p->shape.topk; k++) {
			int owner = ll_owner(&p->shape, NULL, in->idx[t * p->shape.topk + k]);

			if (owner < 0 || (p->shape.layout == LL_RANK_MAJOR && first_of(p, in, t, owner) != k))
				continue;
			/* Own rows are read in place, each from its own memory. */
			perf_row_add(p->tile,
				     owner == me ? p->own + (size_t)(t * p->shape.topk + k) * bytes
						 : window(p) + home_at(p, t, k),
				     n, p->shape.combine, in->weight[t * p->shape.topk + k]);
		}
		perf_row_store(p->sums + (size_t)t * bytes, p->tile, n, p->shape.combine);
	}
	return 0;
}

static int plain_open(struct plain *p, const struct perf_job *job)
{
	struct ll_data data = perf_data_first(&job->opts, job->tokens);
	size_t rows;

	perf_shape(p->opts, &p->shape);
	p->in = ll_inputs_make(&p->shape, &data);
	if (!p->in || ll_expect_dispatch(&p->shape, p->in, NULL, seat_rank(p->seat), &p->expect))
		return seat_fail(p->seat, "out of memory");
	rows = (size_t)p->expect.zones * (size_t)p->expect.cap;
	p->out_size = rows * row_bytes(p);
	p->answers_size = rows * ll_combine_bytes(&p->shape);
	p->own_size = (size_t)(p->shape.tmax * p->shape.topk) * ll_combine_bytes(&p->shape);
	p->sums_size = (size_t)p->shape.tmax * ll_combine_bytes(&p->shape);
	p->out = pages(p->out_size);
	p->answers = pages(p->answers_size);
	p->own = pages(p->own_size);
	p->sums = pages(p->sums_size);
	p->tile = malloc(p->shape.hidden * sizeof(*p->tile));
	if (!p->out || !p->answers || !p->own || !p->sums || !p->tile)
		return seat_fail(p->seat, "out of memory");
	return 0;
}

/* Staging: one row per rank and token, or one result per choice. */
static int plain_connect(struct plain *p)
{
	size_t row = row_bytes(p), answer = ll_combine_bytes(&p->shape) * (size_t)p->shape.topk;
	int me = seat_rank(p->seat);

	for (int r = 0; r < p->shape.ranks; r++)
		for (int t = 0; r != me && t < p->in[r].t; t++)
			p->rows_in += first_of(p, &p->in[r], t, me) >= 0;
	for (int i = 0; i < p->in[me].t * p->shape.topk; i++) {
		int t = i / p->shape.topk, owner = ll_owner(&p->shape, NULL, p->in[me].idx[i]);

		if (owner >= 0 && owner != me)
			p->answers_in += p->shape.layout != LL_RANK_MAJOR ||
					 first_of(p, &p->in[me], t, owner) == i % p->shape.topk;
	}
	return wire_open(p->seat, perf_window_bytes(p->opts),
			 (size_t)(p->shape.ranks * p->shape.tmax) * (row > answer ? row : answer) + 4096, &p->wire);
}

static void plain_close(struct plain *p)
{
	wire_close(p->wire);
	ll_inputs_free(p->in, p->shape.ranks);
	ll_expect_free(&p->expect);
	if (p->out)
		munmap(p->out, p->out_size);
	if (p->answers)
		munmap(p->answers, p->answers_size);
	if (p->own)
		munmap(p->own, p->own_size);
	if (p->sums)
		munmap(p->sums, p->sums_size);
	free(p->tile);
}

static int plain_time(struct plain *p, enum perf_phase phase, int iteration)
{
	double start;
	int rc;

	if (p->wire)
		wire_begin(p->wire);
	if (seat_barrier(p->seat))
		return -1;
	start = world_now();
	rc = phase == PERF_DISPATCH ? plain_dispatch(p) : plain_combine(p);
	if (!rc && iteration >= 0)
		perf_own_plain(p->board, phase, iteration)->host = 1e6 * (world_now() - start);
	return rc;
}

int perf_plain_job(struct seat *seat, const struct perf_job *job)
{
	struct plain p = { .seat = seat, .opts = &job->opts, .board = job->board };

	if (!plain_open(&p, job) && (!job->opts.puts || !plain_connect(&p))) {
		/* Rows written before, as an expert would: untouched pages are not real memory. */
		for (int z = 0; z < p.expect.zones; z++)
			memset(p.answers + (size_t)z * (size_t)p.expect.cap * ll_combine_bytes(&p.shape), 1,
			       (size_t)p.expect.count[z] * ll_combine_bytes(&p.shape));
		memset(p.own, 1, p.own_size);
		for (int i = -job->opts.warmup; i < job->opts.iterations; i++)
			if (plain_time(&p, PERF_DISPATCH, i) || plain_time(&p, PERF_COMBINE, i))
				break;
	}
	plain_close(&p);
	return seat_failed(seat) ? -1 : 0;
}
