/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference of HT across nodes on the CPU: the least copies, sums and puts, with the same data, ranks and cores.
 * In dispatch a rank copies its tokens for another node to registered memory, puts them to its relay there in pieces
 * of the library's size, copies those for its own node once per destination, waits for what its clients put, and
 * copies that likewise: to memory that it shares with the destination. In combine it sums its clients' rows, puts the
 * sums home, and sums its own tokens, where rows of other ranks lie in shared memory, too. No routing, no heads, no
 * slots to give back, and nobody waits until the rows of its own node are there.
 */
#include <stdlib.h>
#include <string.h>

#include "perf/ep_perf.h"
#include "perf/ep_perf_wire.h"

#define PIECE 262144u
#define PIECE_ROWS 64u
#define RANKS_MAX 64

struct puts {
	struct seat *seat;
	const struct perf_opts *opts;
	const struct perf_board *board;
	const struct far_nodes *nodes;
	struct ll_shape shape;
	uint64_t *near;	   /* [ranks][tmax]: the ranks of this node that the token goes to, as bits */
	uint64_t *crosses; /* [nodes][tmax]: of own tokens: the ranks of that node */
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

static int crossing(const struct puts *p, const uint64_t *goes)
{
	int n = 0;

	for (int t = 0; t < p->shape.tmax; t++)
		n += goes[t] != 0;
	return n;
}

static int pieces(int rows, size_t bytes)
{
	return (rows + rows_of(bytes) - 1) / rows_of(bytes);
}

/* A row of this rank's tensors. */
static uint8_t *row_at(const struct puts *p, uint8_t *memory, size_t row, size_t bytes)
{
	return memory + row % p->room * bytes;
}

/* The row of a token in another rank's tensors. */
static uint8_t *row_of(const struct puts *p, int rank, int src, int t, size_t bytes)
{
	return perf_shared_rows(p->board, p->opts, rank) + ((size_t)src * (size_t)p->shape.tmax + t) * bytes;
}

/* Of token t of src, to every rank of this node that it goes to. */
static void copy_row(struct puts *p, const uint8_t *from, int src, int t, size_t *to)
{
	size_t bytes = bytes_of(p, PERF_DISPATCH);

	for (uint64_t left = p->near[src * p->shape.tmax + t]; left; left &= left - 1) {
		int rank = __builtin_ctzll(left);

		memcpy(rank == seat_rank(p->seat) ? row_at(p, p->out, (*to)++, bytes) : row_of(p, rank, src, t, bytes),
		       from, bytes);
	}
}

/* The rows of this node for token t of src; more[n]: those that came from other nodes. */
static void sum_rows(struct puts *p, uint8_t *out, int src, int t, const uint8_t *const *more, int n, size_t *from)
{
	size_t bytes = ll_combine_bytes(&p->shape), hidden = p->shape.hidden;

	memset(p->tile, 0, hidden * sizeof(*p->tile));
	for (uint64_t left = p->near[src * p->shape.tmax + t]; left; left &= left - 1) {
		int rank = __builtin_ctzll(left);
		const uint8_t *row = rank == seat_rank(p->seat) ? row_at(p, p->rows, (*from)++, bytes)
								: row_of(p, rank, src, t, bytes);

		perf_row_add(p->tile, row, hidden, p->shape.combine, 1.0f);
	}
	for (int i = 0; i < n; i++)
		perf_row_add(p->tile, more[i], hidden, p->shape.combine, 1.0f);
	perf_row_store(out, p->tile, hidden, p->shape.combine);
}

/* What this rank sends to peer, to its part of the peer's window; goes[tmax]: a row where it is not 0. */
static void lane_put(struct puts *p, int peer, const uint64_t *goes, enum perf_phase phase, size_t *from)
{
	size_t bytes = bytes_of(p, phase), to = (size_t)seat_rank(p->seat) * (size_t)p->shape.tmax * bytes;
	int rows = crossing(p, goes), t = 0;

	for (int row = 0; row < rows; row += rows_of(bytes)) {
		int n = rows - row < rows_of(bytes) ? rows - row : rows_of(bytes);
		uint8_t *staged = wire_stage(p->wire, (size_t)n * bytes);

		for (int i = 0; i < n; i++, t++) {
			while (!goes[t])
				t++;
			if (phase == PERF_DISPATCH)
				memcpy(staged + (size_t)i * bytes, row_at(p, p->rows, (size_t)t, bytes), bytes);
			else
				sum_rows(p, staged + (size_t)i * bytes, peer, t, NULL, 0, from);
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
		copy_row(p, row_at(p, p->rows, (size_t)t, bytes), me, t, &to);
	for (int src = 0; src < p->shape.ranks; src++)
		expected += is_client(p, src) ? (uint64_t)pieces(crossing(p, p->near + src * tmax), bytes) : 0;
	if (wire_wait(p->wire, expected))
		return -1;
	for (int src = 0; src < p->shape.ranks; src++) {
		const uint8_t *from = wire_window(p->wire) + (size_t)src * (size_t)tmax * bytes;

		for (int t = 0; is_client(p, src) && t < tmax; t++) {
			copy_row(p, from, src, t, &to);
			from += p->near[src * tmax + t] ? bytes : 0;
		}
	}
	return 0;
}

/* Own tokens: the rows of the own node, and the sums of the others. */
static void sum_home(struct puts *p, size_t *from)
{
	int me = seat_rank(p->seat), tmax = p->shape.tmax, nodes = far_count(p->nodes, p->shape.ranks);
	size_t bytes = bytes_of(p, PERF_COMBINE);
	const uint8_t *next[RANKS_MAX], *more[RANKS_MAX];

	for (int node = 0; node < nodes; node++)
		next[node] = wire_window(p->wire) +
			     (size_t)far_relay(p->nodes, p->shape.ranks, me, node) * (size_t)tmax * bytes;
	for (int t = 0; t < tmax; t++) {
		int n = 0;

		for (int node = 0; node < nodes; node++)
			if (node != far_node(p->nodes, me) && p->crosses[node * tmax + t]) {
				more[n++] = next[node];
				next[node] += bytes;
			}
		sum_rows(p, row_at(p, p->out, (size_t)t, bytes), me, t, more, n, from);
	}
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
	sum_home(p, &from);
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
		perf_own_plain(p->board, phase, iteration)->host = 1e6 * (world_now() - start);
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
				if (far_node(p->nodes, r) == far_node(p->nodes, me))
					p->near[src * tmax + t] |= (uint64_t)1 << r;
				if (src == me)
					p->crosses[far_node(p->nodes, r) * tmax + t] |= (uint64_t)1 << r;
			}
	ll_inputs_free(in, p->shape.ranks);
	return in ? 0 : -1;
}

static int puts_open(struct puts *p, const struct perf_job *job)
{
	size_t row, ranks;

	perf_shape(p->opts, &p->shape);
	ranks = (size_t)p->shape.ranks;
	if (ranks > RANKS_MAX)
		return seat_fail(p->seat, "-P: %zu ranks; at most %d", ranks, RANKS_MAX);
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
	memset(perf_shared_rows(p->board, p->opts, seat_rank(p->seat)), 1, perf_rows_bytes(p->opts));
	return wire_open(p->seat, p->room * row, p->room * row + 4096, &p->wire);
}

int perf_puts_job(struct seat *seat, const struct perf_job *job)
{
	struct puts p = {
		.seat = seat, .opts = &job->opts, .board = job->board, .nodes = &perf_own(job->board)->nodes
	};

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
