/* SPDX-License-Identifier: Apache-2.0 */
/* Where ranks leave their figures, and how rows are made of them. */
#include "perf/ep_perf.h"

const char *const perf_phase_names[PERF_PHASES] = {
	[PERF_DISPATCH] = "dispatch",
	[PERF_COMBINE] = "combine",
	[PERF_DISPATCH_SEND] = "dispatch send",
	[PERF_DISPATCH_RECV] = "dispatch recv",
	[PERF_COMBINE_SEND] = "combine send",
	[PERF_COMBINE_RECV] = "combine recv",
	[PERF_GRAPH] = "graph",
};

const enum perf_phase *perf_phases(const struct perf_opts *opts)
{
	static const enum perf_phase whole[] = { PERF_DISPATCH, PERF_COMBINE, PERF_PHASES };
	static const enum perf_phase halves[] = { PERF_DISPATCH_SEND, PERF_DISPATCH_RECV, PERF_COMBINE_SEND,
						  PERF_COMBINE_RECV, PERF_PHASES };
	static const enum perf_phase graph[] = { PERF_GRAPH, PERF_PHASES };

	return opts->graph ? graph : opts->staged ? halves : whole;
}

void perf_shape(const struct perf_opts *opts, struct ll_shape *shape)
{
	*shape = (struct ll_shape){ .layout = opts->layout,
				    .quant = opts->quant,
				    .ranks = opts->ranks,
				    .experts = opts->experts,
				    .topk = opts->topk,
				    .tmax = opts->last,
				    .hidden = opts->hidden,
				    .token = opts->quant == LL_QUANT_FWD ? NUM_E4M3 : opts->dtype,
				    .scale = NUM_F32,
				    .scale_width = opts->hidden / 128,
				    .combine = opts->dtype };
}

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

/* Dispatch: a row from every token of every rank. Combine: a row for every choice of this rank's tokens. */
static size_t window_bytes(const struct perf_opts *opts)
{
	struct ll_shape shape;
	size_t dispatch, combine;

	perf_shape(opts, &shape);
	dispatch = (size_t)(opts->ranks * opts->last) * (ll_out_bytes(&shape) + ll_scale_bytes(&shape));
	combine = (size_t)(opts->last * opts->topk) * ll_combine_bytes(&shape);
	return round_up(dispatch > combine ? dispatch : combine);
}

size_t perf_board_size(const struct perf_opts *opts)
{
	return head_bytes(opts) + (opts->memcpy ? (size_t)opts->ranks * window_bytes(opts) : 0);
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
	return (uint8_t *)board + head_bytes(opts) + (size_t)rank * window_bytes(opts);
}

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

/* All ranks share the GPU's memory. Dispatch: own rows read, window written and read, outputs written. Combine: inputs
 * read, window written and read, sums written. */
static double limit_us(const struct perf_opts *opts, void *board, int tokens, enum perf_phase phase)
{
	struct ll_shape shape;
	double rows = 0, pairs = 0, dispatch, combine, out;

	perf_shape(opts, &shape);
	for (int r = 0; r < opts->ranks; r++) {
		rows += (double)perf_board_rank(board, r)->rows;
		pairs += (double)perf_board_rank(board, r)->pairs;
	}
	out = (double)(ll_out_bytes(&shape) + ll_scale_bytes(&shape));
	dispatch = (double)opts->ranks * tokens * (double)ll_in_bytes(&shape) + 2 * pairs * out + rows * out;
	combine = (3 * rows + (double)opts->ranks * tokens) * (double)ll_combine_bytes(&shape);
	if (phase == PERF_GRAPH)
		return (dispatch + combine) / (1e3 * opts->bandwidth);
	if (phase != PERF_DISPATCH && phase != PERF_COMBINE)
		return -1;
	return (phase == PERF_DISPATCH ? dispatch : combine) / (1e3 * opts->bandwidth);
}

static int64_t wrong_of(const struct perf_opts *opts, void *board, enum perf_phase phase)
{
	bool dispatch = phase == PERF_DISPATCH || phase == PERF_DISPATCH_RECV || phase == PERF_GRAPH;
	bool combine = phase == PERF_COMBINE || phase == PERF_COMBINE_RECV || phase == PERF_GRAPH;
	int64_t wrong = 0;

	if (!opts->check || (!dispatch && !combine))
		return -1;
	for (int r = 0; r < opts->ranks; r++) {
		wrong += dispatch ? (int64_t)perf_board_rank(board, r)->wrong[0] : 0;
		wrong += combine ? (int64_t)perf_board_rank(board, r)->wrong[1] : 0;
	}
	return wrong;
}

void perf_row_make(const struct perf_opts *opts, void *board, int tokens, enum perf_phase phase, struct perf_row *out)
{
	bool gpu = perf_board_rank(board, 0)->gpu,
	     combine = phase == PERF_COMBINE || phase == PERF_COMBINE_SEND || phase == PERF_COMBINE_RECV;
	struct ll_shape shape;
	double rows = 0, row;

	perf_shape(opts, &shape);
	for (int r = 0; r < opts->ranks; r++)
		rows += (double)perf_board_rank(board, r)->rows / opts->ranks;
	row = (double)(ll_out_bytes(&shape) + ll_scale_bytes(&shape));
	if (phase == PERF_GRAPH)
		row += (double)ll_combine_bytes(&shape);
	else if (combine)
		row = (double)ll_combine_bytes(&shape);
	*out = (struct perf_row){ .tokens = tokens,
				  .phase = phase,
				  .bytes = rows * row,
				  .beside_us = -1,
				  .beside_best_us = -1,
				  .wrong = wrong_of(opts, board, phase) };
	out->host_us = average(board, opts, phase, HOST, &out->best_us);
	out->device_us = gpu ? average(board, opts, phase, DEVICE, &out->best_us) : -1;
	if (gpu)
		out->beside_us = out->beside_best_us = limit_us(opts, board, tokens, phase);
	else if (opts->memcpy && (phase == PERF_DISPATCH || phase == PERF_COMBINE))
		out->beside_us = average(board, opts, phase, PLAIN, &out->beside_best_us);
	out->algbw = out->bytes / 1e3 / (out->device_us > 0 ? out->device_us : out->host_us);
}
