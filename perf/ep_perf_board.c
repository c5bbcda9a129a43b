/* SPDX-License-Identifier: Apache-2.0 */
/* Results of the ranks in shared memory, and the table rows made of them. */
#include "perf/ep_perf.h"
#include "perf/ep_perf_wire.h"

void perf_rank_init(const struct perf_opts *opts, int device, struct perf_rank *out)
{
	*out = (struct perf_rank){
		.window = UINT64_MAX, .group_us = -1, .first_us = -1, .later_us = -1, .device = device
	};
	for (int p = 0; p < PERF_PHASES; p++)
		out->wrong[p] = -1;
	for (const enum perf_phase *p = perf_phases(opts); opts->check && *p != PERF_PHASES; p++)
		if (*p != PERF_DISPATCH_SEND && *p != PERF_COMBINE_SEND)
			out->wrong[*p] = 0;
}

/* ---- the board ---- */

static size_t samples(const struct perf_opts *opts)
{
	return (size_t)PERF_PHASES * (size_t)opts->iterations * (size_t)opts->ranks;
}

static size_t round_up(size_t n)
{
	return (n + 4095) & ~(size_t)4095;
}

static size_t head_bytes(const struct perf_opts *opts)
{
	return round_up((size_t)WORLD_SEATS * sizeof(struct perf_rank) +
			2 * samples(opts) * sizeof(struct perf_sample));
}

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

static size_t shared_bytes(const struct perf_opts *opts)
{
	return opts->memcpy ? perf_window_bytes(opts) : opts->puts ? WIRE_CARD : 0;
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

size_t perf_board_size(const struct perf_opts *opts)
{
	size_t rows = opts->puts && opts->algorithm == PERF_HT ? perf_rows_bytes(opts) : 0;

	return head_bytes(opts) + (size_t)opts->ranks * (shared_bytes(opts) + rows);
}

struct perf_rank *perf_board_rank(void *board, int rank)
{
	return (struct perf_rank *)board + rank;
}

struct perf_sample *perf_board_sample(void *board, const struct perf_opts *opts, enum perf_phase phase, int iteration,
				      int rank)
{
	struct perf_sample *first = (struct perf_sample *)(void *)perf_board_rank(board, WORLD_SEATS);

	return first + ((size_t)phase * (size_t)opts->iterations + (size_t)iteration) * (size_t)opts->ranks + rank;
}

struct perf_sample *perf_board_plain(void *board, const struct perf_opts *opts, enum perf_phase phase, int iteration,
				     int rank)
{
	return perf_board_sample(board, opts, phase, iteration, rank) + samples(opts);
}

uint8_t *perf_board_window(void *board, const struct perf_opts *opts, int rank)
{
	return (uint8_t *)board + head_bytes(opts) + (size_t)rank * shared_bytes(opts);
}

uint8_t *perf_board_rows(void *board, const struct perf_opts *opts, int rank)
{
	return perf_board_window(board, opts, opts->ranks) + (size_t)rank * perf_rows_bytes(opts);
}

/* ---- rows ---- */

enum what { DEVICE, HOST, PLAIN };

static double one(void *board, const struct perf_opts *opts, enum perf_phase phase, int iteration, enum what what)
{
	double slowest = -1;

	for (int r = 0; r < opts->ranks; r++) {
		const struct perf_sample *s = what == PLAIN ? perf_board_plain(board, opts, phase, iteration, r)
							    : perf_board_sample(board, opts, phase, iteration, r);
		double us = what == DEVICE ? s->device : s->host;

		slowest = us > slowest ? us : slowest;
	}
	return slowest;
}

/* The slowest rank of each iteration, averaged; best gets the fastest iteration. */
static double average(void *board, const struct perf_opts *opts, enum perf_phase phase, enum what what, double *best)
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

/* Ranks that share a GPU share its memory bandwidth, so their bytes add up. With several GPUs there is no limit. */
static bool has_limit(const struct perf_opts *opts, void *board)
{
	int device = perf_board_rank(board, 0)->device;

	for (int r = 1; r < opts->ranks; r++)
		if (perf_board_rank(board, r)->device != device)
			return false;
	return device >= 0;
}

static double limit_us(const struct perf_opts *opts, void *board, enum perf_phase phase)
{
	double traffic = 0;

	for (int r = 0; r < opts->ranks; r++)
		traffic += perf_board_rank(board, r)->traffic[phase];
	return traffic > 0 && has_limit(opts, board) ? traffic / (1e3 * opts->bandwidth) : -1;
}

void perf_row_make(const struct perf_opts *opts, void *board, int tokens, enum perf_phase phase, struct perf_row *out)
{
	bool gpu = perf_board_rank(board, 0)->device >= 0;

	*out = (struct perf_row){ .tokens = tokens, .phase = phase, .device_us = -1, .beside_us = -1, .wrong = -1 };
	for (int r = 0; r < opts->ranks; r++) {
		const struct perf_rank *rank = perf_board_rank(board, r);

		out->bytes += rank->bytes[phase] / opts->ranks;
		if (rank->wrong[phase] >= 0)
			out->wrong = rank->wrong[phase] + (out->wrong > 0 ? out->wrong : 0);
	}
	out->host_us = average(board, opts, phase, HOST, &out->best_us);
	if (gpu) {
		out->device_us = average(board, opts, phase, DEVICE, &out->best_us);
		out->beside_us = limit_us(opts, board, phase);
	}
	out->beside_best_us = out->beside_us;
	if ((opts->memcpy || opts->puts) && !gpu && (phase == PERF_DISPATCH || phase == PERF_COMBINE))
		out->beside_us = average(board, opts, phase, PLAIN, &out->beside_best_us);
	perf_far_row(opts, board, phase, out);
	out->algbw = out->bytes / 1e3 / (gpu ? out->device_us : out->host_us);
}

void perf_facts_make(const struct perf_opts *opts, void *board, struct perf_facts *out)
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
		out->group_us = rank->group_us > out->group_us ? rank->group_us : out->group_us;
		out->first_us = rank->first_us > out->first_us ? rank->first_us : out->first_us;
		out->later_us = rank->later_us > out->later_us ? rank->later_us : out->later_us;
	}
}
