/* SPDX-License-Identifier: Apache-2.0 */
/* Results of the ranks, gathered over the communicator, and the table rows made of them. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "perf/ep_perf.h"

void perf_rank_init(const struct perf_opts *opts, int device, struct perf_rank *out)
{
	*out = (struct perf_rank){
		.window = UINT64_MAX, .group_us = -1, .first_us = -1, .later_us = -1, .device = device
	};
	gethostname(out->host, sizeof(out->host) - 1);
	for (int p = 0; p < PERF_PHASES; p++)
		out->wrong[p] = -1;
	for (const enum perf_phase *p = perf_phases(opts); opts->check && *p != PERF_PHASES; p++)
		if (*p != PERF_DISPATCH_SEND && *p != PERF_COMBINE_SEND)
			out->wrong[*p] = 0;
}

/* ---- the board ---- */

static size_t samples(const struct perf_board *board)
{
	return (size_t)PERF_PHASES * (size_t)board->iterations;
}

static size_t round_up(size_t n)
{
	return (n + 4095) & ~(size_t)4095;
}

int perf_board_open(const struct perf_opts *opts, struct seat *seat, struct perf_board *out)
{
	struct perf_board board = { .iterations = opts->iterations, .shared = seat_board(seat) };

	board.part = sizeof(struct perf_rank) + 2 * samples(&board) * sizeof(struct perf_sample);
	board.own = calloc(1, board.part);
	board.all = calloc((size_t)opts->ranks, board.part);
	if (!board.own || !board.all) {
		perf_board_close(&board);
		return seat_fail(seat, "out of memory for the results of %d iterations", opts->iterations);
	}
	*out = board;
	return 0;
}

void perf_board_close(struct perf_board *board)
{
	free(board->own);
	free(board->all);
	*board = (struct perf_board){ 0 };
}

int perf_board_gather(struct perf_board *board, struct seat *seat)
{
	return seat_gather(seat, board->own, board->part, board->all);
}

static struct perf_sample *sample_in(const struct perf_board *board, uint8_t *part, enum perf_phase phase,
				     int iteration)
{
	struct perf_sample *first = (struct perf_sample *)(void *)(part + sizeof(struct perf_rank));

	return first + (size_t)phase * (size_t)board->iterations + iteration;
}

struct perf_rank *perf_own(const struct perf_board *board)
{
	return (struct perf_rank *)(void *)board->own;
}

struct perf_sample *perf_own_sample(const struct perf_board *board, enum perf_phase phase, int iteration)
{
	return sample_in(board, board->own, phase, iteration);
}

struct perf_sample *perf_own_plain(const struct perf_board *board, enum perf_phase phase, int iteration)
{
	return perf_own_sample(board, phase, iteration) + samples(board);
}

const struct perf_rank *perf_board_rank(const struct perf_board *board, int rank)
{
	return (const struct perf_rank *)(const void *)(board->all + (size_t)rank * board->part);
}

const struct perf_sample *perf_board_sample(const struct perf_board *board, enum perf_phase phase, int iteration,
					    int rank)
{
	return sample_in(board, board->all + (size_t)rank * board->part, phase, iteration);
}

/* ---- memory that ranks of one host share, for the reference programs ---- */

/* Dispatch: one row per token of every rank. Combine: one row per expert choice of this rank's tokens. */
size_t perf_window_bytes(const struct perf_opts *opts)
{
	struct ll_shape shape;
	size_t dispatch, combine;

	perf_shape(opts, &shape);
	dispatch = (size_t)(opts->ranks * opts->last) * (ll_out_bytes(&shape) + ll_scale_bytes(&shape));
	combine = (size_t)(opts->last * opts->topk) * ll_combine_bytes(&shape);
	return round_up(dispatch > combine ? dispatch : combine);
}

/* One row per token of every rank. */
size_t perf_rows_bytes(const struct perf_opts *opts)
{
	struct ll_shape shape;
	size_t dispatch, combine;

	perf_shape(opts, &shape);
	dispatch = ll_out_bytes(&shape) + ll_scale_bytes(&shape);
	combine = ll_combine_bytes(&shape);
	return round_up((size_t)(opts->ranks * opts->last) * (dispatch > combine ? dispatch : combine));
}

bool perf_needs_shared(const struct perf_opts *opts)
{
	return opts->memcpy || (opts->puts && opts->algorithm == PERF_HT);
}

size_t perf_shared_bytes(const struct perf_opts *opts)
{
	if (!perf_needs_shared(opts))
		return 0;
	return (size_t)opts->ranks * (opts->memcpy ? perf_window_bytes(opts) : perf_rows_bytes(opts));
}

uint8_t *perf_shared_window(const struct perf_board *board, const struct perf_opts *opts, int rank)
{
	return board->shared + (size_t)rank * perf_window_bytes(opts);
}

uint8_t *perf_shared_rows(const struct perf_board *board, const struct perf_opts *opts, int rank)
{
	return board->shared + (size_t)rank * perf_rows_bytes(opts);
}

/* ---- rows ---- */

enum what { DEVICE, HOST, PLAIN };

static double one(const struct perf_board *board, const struct perf_opts *opts, enum perf_phase phase, int iteration,
		  enum what what)
{
	double slowest = -1;

	for (int r = 0; r < opts->ranks; r++) {
		const struct perf_sample *s =
			perf_board_sample(board, phase, iteration, r) + (what == PLAIN ? samples(board) : 0);
		double us = what == DEVICE ? s->device : s->host;

		slowest = us > slowest ? us : slowest;
	}
	return slowest;
}

/*
 * Device times: each rank's own average, of the slowest rank. Operations follow each other without a barrier, so a rank
 * that begins one early waits in it, and by as much the next is shorter: the slowest of every iteration would count
 * that twice, and the phases would add up to more than the time that passed.
 */
static double device_average(const struct perf_board *board, const struct perf_opts *opts, enum perf_phase phase)
{
	double slowest = -1;

	for (int r = 0; r < opts->ranks; r++) {
		double sum = 0;

		for (int i = 0; i < opts->iterations; i++)
			sum += perf_board_sample(board, phase, i, r)->device;
		slowest = sum / opts->iterations > slowest ? sum / opts->iterations : slowest;
	}
	return slowest;
}

/* Host times, for which all ranks begin together: the slowest rank of each iteration, averaged; best gets the fastest
 * iteration. */
static double average(const struct perf_board *board, const struct perf_opts *opts, enum perf_phase phase,
		      enum what what, double *best)
{
	double sum = 0;

	*best = one(board, opts, phase, 0, what);
	for (int i = 0; i < opts->iterations; i++) {
		double us = one(board, opts, phase, i, what);

		sum += us;
		*best = us < *best ? us : *best;
	}
	return sum / opts->iterations;
}

/* Of the slowest ranks; -1 without memory. */
static void percentiles(const struct perf_board *board, const struct perf_opts *opts, enum perf_phase phase,
			enum what what, struct perf_row *out)
{
	double *us = calloc((size_t)opts->iterations, sizeof(*us));

	out->p50_us = out->p99_us = -1;
	for (int i = 0; us && i < opts->iterations; i++)
		us[i] = one(board, opts, phase, i, what);
	if (us) {
		out->p50_us = perf_percentile(us, opts->iterations, 0.5);
		out->p99_us = perf_percentile(us, opts->iterations, 0.99);
	}
	free(us);
}

/* Ranks that share a GPU share its memory bandwidth, so their bytes add up. With several GPUs there is no limit. */
static bool has_limit(const struct perf_opts *opts, const struct perf_board *board)
{
	int device = perf_board_rank(board, 0)->device;

	for (int r = 1; r < opts->ranks; r++)
		if (perf_board_rank(board, r)->device != device)
			return false;
	return device >= 0;
}

static double limit_us(const struct perf_opts *opts, const struct perf_board *board, enum perf_phase phase)
{
	double traffic = 0;

	for (int r = 0; r < opts->ranks; r++)
		traffic += perf_board_rank(board, r)->traffic[phase];
	return traffic > 0 && has_limit(opts, board) ? traffic / (1e3 * opts->bandwidth) : -1;
}

void perf_row_make(const struct perf_opts *opts, const struct perf_board *board, int tokens, enum perf_phase phase,
		   struct perf_row *out)
{
	bool gpu = perf_board_rank(board, 0)->device >= 0;

	*out = (struct perf_row){ .tokens = tokens, .phase = phase, .device_us = -1, .beside_us = -1, .wrong = -1 };
	for (int r = 0; r < opts->ranks; r++) {
		const struct perf_rank *rank = perf_board_rank(board, r);

		out->bytes += rank->bytes[phase] / opts->ranks;
		out->remote += rank->remote[phase] / opts->ranks;
		if (rank->wrong[phase] >= 0)
			out->wrong = rank->wrong[phase] + (out->wrong > 0 ? out->wrong : 0);
	}
	out->host_us = average(board, opts, phase, HOST, &out->best_us);
	if (gpu) {
		average(board, opts, phase, DEVICE, &out->best_us);
		out->device_us = device_average(board, opts, phase);
		out->beside_us = limit_us(opts, board, phase);
	}
	percentiles(board, opts, phase, gpu ? DEVICE : HOST, out);
	out->beside_best_us = out->beside_us;
	if ((opts->memcpy || opts->puts) && !gpu && (phase == PERF_DISPATCH || phase == PERF_COMBINE))
		out->beside_us = average(board, opts, phase, PLAIN, &out->beside_best_us);
	perf_far_row(opts, board, phase, out);
	out->algbw = out->bytes / 1e3 / (gpu ? out->device_us : out->host_us);
	out->busbw = out->remote / 1e3 / (gpu ? out->device_us : out->host_us);
}

static void each_times(const struct perf_board *board, const struct perf_opts *opts, enum perf_phase phase, double *us,
		       struct perf_each *out)
{
	bool gpu = perf_board_rank(board, out->rank)->device >= 0;

	for (int i = 0; i < opts->iterations; i++) {
		const struct perf_sample *s = perf_board_sample(board, phase, i, out->rank);

		us[i] = gpu ? s->device : s->host;
		out->mean_us += us[i] / opts->iterations;
	}
	out->p50_us = perf_percentile(us, opts->iterations, 0.5);
	out->p99_us = perf_percentile(us, opts->iterations, 0.99);
	out->worst_us = us[opts->iterations - 1];
}

int perf_each_make(const struct perf_opts *opts, const struct perf_board *board, enum perf_phase phase,
		   struct perf_each *out)
{
	double *us = calloc((size_t)opts->iterations, sizeof(*us));

	if (!us)
		return -1;
	for (int r = 0; r < opts->ranks; r++) {
		const struct perf_rank *rank = perf_board_rank(board, r);

		out[r] = (struct perf_each){ .rank = r,
					     .bytes = rank->bytes[phase],
					     .remote = rank->remote[phase],
					     .window = rank->window,
					     .wrong = rank->wrong[phase] };
		snprintf(out[r].host, sizeof(out[r].host), "%.*s", (int)sizeof(rank->host) - 1, rank->host);
		each_times(board, opts, phase, us, &out[r]);
	}
	free(us);
	return 0;
}

void perf_facts_make(const struct perf_opts *opts, const struct perf_board *board, struct perf_facts *out)
{
	const struct perf_rank *rank = perf_board_rank(board, 0);

	*out = (struct perf_facts){ .device = rank->device >= 0 ? "cuda" : "host",
				    .beside = has_limit(opts, board) ? "limit" : "",
				    .window = rank->window,
				    .net = rank->net,
				    .group_us = rank->group_us,
				    .first_us = rank->first_us,
				    .later_us = rank->later_us };
	if (rank->device < 0 && (opts->memcpy || opts->puts))
		out->beside = opts->memcpy ? "memcpy" : "puts";
	for (int r = 1; r < opts->ranks; r++) {
		rank = perf_board_rank(board, r);
		out->window = rank->window > out->window ? rank->window : out->window;
		out->group_us = rank->group_us > out->group_us ? rank->group_us : out->group_us;
		out->first_us = rank->first_us > out->first_us ? rank->first_us : out->first_us;
		out->later_us = rank->later_us > out->later_us ? rank->later_us : out->later_us;
	}
}
