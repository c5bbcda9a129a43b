/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference of HT across nodes on the CPU: the least copies, sums and puts, with the same data, ranks and cores.
 * In dispatch a rank copies its tokens for another node to registered memory, puts them to its relay there in pieces
 * of the library's size, copies those for its own node once per destination, waits for what its clients put, and
 * copies that likewise. In combine it sums its clients' rows, puts the sums home, and sums its own tokens. No
 * routing, no heads, no slots to give back, and whatever lies in another rank's memory is read from this rank's own.
 */
#include <stdlib.h>
#include <string.h>

#include "perf/ep_perf.h"
#include "perf/ep_perf_wire.h"

#define PIECE 65536u
#define PIECE_ROWS 32u

struct puts {
	struct seat *seat;
	const struct perf_opts *opts;
	const struct far_nodes *nodes;
	struct ll_shape shape;
	int *near,
		*crosses; /* [ranks][tmax]: ranks of this node that the token goes to; [nodes][tmax]: of own tokens */
	struct wire *wire;
	uint8_t *rows, *out; /* of any content */
	size_t room;	     /* rows in each */
	float *tile;
};

static size_t bytes_of(const struct puts *p, enum perf_phase phase)
{
	return phase == PERF_DISPATCH ? ll_out_bytes(&p->shape) + ll_scale_bytes(&p->shape)
				      : ll_combine_bytes(&p->shape);
}

static int rows_of(size_t bytes)
{
	size_t rows = PIECE / bytes;

	return rows > PIECE_ROWS ? (int)PIECE_ROWS : rows ? (int)rows : 1;
}

static bool is_client(const struct puts *p, int src)
{
	int me = seat_rank(p->seat), own = far_node(p->nodes, me);

	return far_node(p->nodes, src) != own && far_relay(p->nodes, p->shape.ranks, src, own) == me;
}

static int crossing(const struct puts *p, const int *counts)
{
	int n = 0;

	for (int t = 0; t < p->shape.tmax; t++)
		n += counts[t] > 0;
	return n;
}

static int pieces(int rows, size_t bytes)
{
	return (rows + rows_of(bytes) - 1) / rows_of(bytes);
}

/* A row of the memory that stands for other ranks' tensors. */
static uint8_t *row_at(const struct puts *p, uint8_t *memory, size_t row, size_t bytes)
{
	return memory + row % p->room * bytes;
}

static void copy_rows(struct puts *p, const uint8_t *from, int copies, size_t *to, size_t bytes)
{
	for (int i = 0; i < copies; i++)
		memcpy(row_at(p, p->out, (*to)++, bytes), from, bytes);
}

static void sum_rows(struct puts *p, uint8_t *out, int terms, size_t *from)
{
	size_t bytes = ll_combine_bytes(&p->shape), n = p->shape.hidden;

	memset(p->tile, 0, n * sizeof(*p->tile));
	for (int i = 0; i < terms; i++)
		perf_row_add(p->tile, row_at(p, p->rows, (*from)++, bytes), n, p->shape.combine, 1.0f);
	perf_row_store(out, p->tile, n, p->shape.combine);
}

/* What this rank sends to peer, to its part of the peer's window; counts[tmax]: a row where it is not 0. */
static void lane_put(struct puts *p, int peer, const int *counts, enum perf_phase phase, size_t *from)
{
	size_t bytes = bytes_of(p, phase), to = (size_t)seat_rank(p->seat) * (size_t)p->shape.tmax * bytes;
	int rows = crossing(p, counts), t = 0;

	for (int row = 0; row < rows; row += rows_of(bytes)) {
		int n = rows - row < rows_of(bytes) ? rows - row : rows_of(bytes);
		uint8_t *staged = wire_stage(p->wire, (size_t)n * bytes);

		for (int i = 0; i < n; i++, t++) {
			while (!counts[t])
				t++;
			if (phase == PERF_DISPATCH)
				memcpy(staged + (size_t)i * bytes, row_at(p, p->rows, (size_t)t, bytes), bytes);
			else
				sum_rows(p, staged + (size_t)i * bytes, counts[t], from);
		}
		wire_put(p->wire, peer, to + (size_t)row * bytes, staged, (size_t)n * bytes);
	}
}

static int dispatch(struct puts *p)
{
	int me = seat_rank(p->seat), tmax = p->shape.tmax;
	size_t bytes = bytes_of(p, PERF_DISPATCH), to = 0;
	uint64_t expected = 0;

	for (int node = 0; node < far_count(p->nodes, p->shape.ranks); node++)
		if (node != far_node(p->nodes, me))
			lane_put(p, far_relay(p->nodes, p->shape.ranks, me, node), p->crosses + node * tmax,
				 PERF_DISPATCH, NULL);
	for (int t = 0; t < tmax; t++)
		copy_rows(p, row_at(p, p->rows, (size_t)t, bytes), p->near[me * tmax + t], &to, bytes);
	for (int src = 0; src < p->shape.ranks; src++)
		expected += is_client(p, src) ? (uint64_t)pieces(crossing(p, p->near + src * tmax), bytes) : 0;
	if (wire_wait(p->wire, expected))
		return -1;
	for (int src = 0; src < p->shape.ranks; src++) {
		const uint8_t *from = wire_window(p->wire) + (size_t)src * (size_t)tmax * bytes;

		for (int t = 0; is_client(p, src) && t < tmax; t++) {
			copy_rows(p, from, p->near[src * tmax + t], &to, bytes);
			from += p->near[src * tmax + t] ? bytes : 0;
		}
	}
	return 0;
}

static int combine(struct puts *p)
{
	int me = seat_rank(p->seat), tmax = p->shape.tmax, nodes = far_count(p->nodes, p->shape.ranks);
	size_t bytes = bytes_of(p, PERF_COMBINE), from = 0;
	uint64_t expected = 0;

	for (int src = 0; src < p->shape.ranks; src++)
		if (is_client(p, src))
			lane_put(p, src, p->near + src * tmax, PERF_COMBINE, &from);
	for (int node = 0; node < nodes; node++)
		if (node != far_node(p->nodes, me))
			expected += (uint64_t)pieces(crossing(p, p->crosses + node * tmax), bytes);
	if (wire_wait(p->wire, expected))
		return -1;
	for (int t = 0; t < tmax; t++) {
		int terms = p->near[me * tmax + t];

		for (int node = 0; node < nodes; node++)
			terms += node != far_node(p->nodes, me) && p->crosses[node * tmax + t];
		sum_rows(p, row_at(p, p->out, (size_t)t, bytes), terms, &from);
	}
	return 0;
}

static int phase_time(struct puts *p, enum perf_phase phase, int iteration)
{
	double start;
	int rc;

	wire_begin(p->wire);
	if (seat_barrier(p->seat))
		return -1;
	start = world_now();
	rc = phase == PERF_DISPATCH ? dispatch(p) : combine(p);
	if (!rc && iteration >= 0)
		perf_board_plain(seat_board(p->seat), p->opts, phase, iteration, seat_rank(p->seat))->host =
			1e6 * (world_now() - start);
	return rc;
}

/* Who gets which token: known before the time is taken, as the library knows it from Update. */
static int count_rows(struct puts *p, const struct perf_job *job)
{
	struct ll_data data = perf_data_first(&job->opts, job->tokens);
	struct ll_input *in = ll_inputs_make(&p->shape, &data);
	int me = seat_rank(p->seat), tmax = p->shape.tmax;

	for (int src = 0; in && src < p->shape.ranks; src++)
		for (int t = 0; t < in[src].t; t++)
			for (int r = 0; r < p->shape.ranks; r++) {
				if (!perf_goes_to(&p->shape, &in[src], t, r))
					continue;
				p->near[src * tmax + t] += far_node(p->nodes, r) == far_node(p->nodes, me);
				p->crosses[far_node(p->nodes, r) * tmax + t] += src == me;
			}
	ll_inputs_free(in, p->shape.ranks);
	return in ? 0 : -1;
}

static int puts_open(struct puts *p, const struct perf_job *job)
{
	size_t row, ranks;

	perf_shape(p->opts, &p->shape);
	ranks = (size_t)p->shape.ranks;
	row = bytes_of(p, PERF_DISPATCH) > bytes_of(p, PERF_COMBINE) ? bytes_of(p, PERF_DISPATCH)
								     : bytes_of(p, PERF_COMBINE);
	p->room = (size_t)p->shape.tmax * ranks;
	p->near = calloc(p->room, sizeof(*p->near));
	p->crosses = calloc(p->room, sizeof(*p->crosses)); /* no more nodes than ranks */
	p->rows = malloc(p->room * row);
	p->out = malloc(p->room * row);
	p->tile = malloc(p->shape.hidden * sizeof(*p->tile));
	if (!p->near || !p->crosses || !p->rows || !p->out || !p->tile || count_rows(p, job))
		return seat_fail(p->seat, "out of memory");
	memset(p->rows, 1, p->room * row); /* untouched pages are not real memory */
	memset(p->out, 1, p->room * row);
	return wire_open(p->seat, perf_board_window(seat_board(p->seat), p->opts, 0), p->room * row,
			 p->room * row + 4096, &p->wire);
}

int perf_puts_job(struct seat *seat, const void *arg)
{
	const struct perf_job *job = arg;
	struct puts p = { .seat = seat,
			  .opts = &job->opts,
			  .nodes = &perf_board_rank(seat_board(seat), seat_rank(seat))->nodes };

	if (!puts_open(&p, job))
		for (int i = -job->opts.warmup; i < job->opts.iterations; i++)
			if (phase_time(&p, PERF_DISPATCH, i) || phase_time(&p, PERF_COMBINE, i))
				break;
	wire_close(p.wire);
	free(p.near);
	free(p.crosses);
	free(p.rows);
	free(p.out);
	free(p.tile);
	return seat_failed(seat) ? -1 : 0;
}
