/* SPDX-License-Identifier: Apache-2.0 */
/* One size of the table on one rank: a checked round, the timed ones, a checked round. */
#include <stdlib.h>
#include <string.h>

#include "perf/ep_perf.h"

/* A library that has no such query yet leaves the figure out. */
#pragma weak ncclEpGroupWindowBytes

/* The longest list of phases, and what ends it. */
#define STEPS_MAX 4

static struct rig_cfg cfg_make(const struct perf_job *job)
{
	const struct perf_opts *opts = &job->opts;
	struct rig_cfg cfg = { .handles = 1, .windows = opts->windows, .sms = opts->sms, .idx64 = true, .spare = 4 };

	perf_shape(opts, &cfg.shape);
	cfg.data = (struct ll_data){ .seed = ll_seed(opts->seed, 1, (uint64_t)job->tokens),
				     .fill = job->tokens ? LL_FILL_FULL : LL_FILL_NONE,
				     .fixed_t = job->tokens };
	/* In a graph an expert answers with what it got: a copy is all that fits between dispatch and combine. */
	cfg.data.numeric = cfg.data.echo = opts->graph && opts->quant == LL_QUANT_NONE;
	return cfg;
}

static int step(struct rig *rig, enum perf_phase phase, void *graph)
{
	switch (phase) {
	case PERF_DISPATCH:
	case PERF_DISPATCH_SEND:
		return rig_expect(rig, "ncclEpDispatch", rig_dispatch(rig, 0, phase == PERF_DISPATCH_SEND));
	case PERF_COMBINE:
	case PERF_COMBINE_SEND:
		return rig_expect(rig, "ncclEpCombine", rig_combine(rig, 0, phase == PERF_COMBINE_SEND));
	case PERF_DISPATCH_RECV:
	case PERF_COMBINE_RECV:
		return rig_expect(rig, "ncclEpComplete", rig_complete(rig, 0));
	default:
		return rig->shim.ops->graph_launch(&rig->shim, graph) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
	}
}

/* ---- graphs ---- */

/* With `copy` the experts answer in it; without it is what is timed. */
static int graph_make(struct rig *rig, bool copy, void **graph)
{
	struct rig_handle *h = &rig->handle[0];

	if (rig->shim.ops->capture_begin(&rig->shim))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	if (step(rig, PERF_DISPATCH, NULL))
		return -1;
	if (copy && rig->shim.ops->copy(&rig->shim, h->buf[RIG_ANSWERS].at, h->buf[RIG_OUT].at, h->buf[RIG_OUT].size))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	if (step(rig, PERF_COMBINE, NULL))
		return -1;
	return rig->shim.ops->capture_end(&rig->shim, graph) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
}

/* ---- values ---- */

static int check_graph(struct rig *rig, struct perf_rank *out)
{
	void *graph = NULL;
	uint64_t before;
	int rc = -1;

	if (graph_make(rig, true, &graph) || seat_barrier(rig->seat) || step(rig, PERF_GRAPH, graph) || rig_sync(rig) ||
	    rig_check_rows(rig, 0))
		goto destroy;
	out->wrong[0] += before = rig->verdict.wrong;
	if (rig_check_sums(rig, 0))
		goto destroy;
	out->wrong[1] += rig->verdict.wrong - before;
	rc = 0;
destroy:
	rig->shim.ops->graph_destroy(&rig->shim, graph);
	return rc;
}

static int check_plain(struct rig *rig, const struct perf_opts *opts, struct perf_rank *out)
{
	uint64_t before;

	if (step(rig, opts->staged ? PERF_DISPATCH_SEND : PERF_DISPATCH, NULL) ||
	    (opts->staged && step(rig, PERF_DISPATCH_RECV, NULL)) || rig_sync(rig) || rig_check_rows(rig, 0) ||
	    rig_answer(rig, 0) || rig_sync(rig))
		return -1;
	out->wrong[0] += before = rig->verdict.wrong;
	if (step(rig, opts->staged ? PERF_COMBINE_SEND : PERF_COMBINE, NULL) ||
	    (opts->staged && step(rig, PERF_COMBINE_RECV, NULL)) || rig_sync(rig) || rig_check_sums(rig, 0))
		return -1;
	out->wrong[1] += rig->verdict.wrong - before;
	return 0;
}

static int check(struct rig *rig, const struct perf_opts *opts, struct perf_rank *out)
{
	struct ll_verdict all = rig->verdict;
	int rc;

	if (!opts->check)
		return 0;
	rig->verdict = (struct ll_verdict){ 0 };
	if ((!rig->handle[0].loaded && rig_load(rig, 0)) || rig_update(rig, 0) || rig_sync(rig))
		return -1;
	rig->handle[0].loaded = false;
	rc = rig->cfg.data.echo ? check_graph(rig, out) : check_plain(rig, opts, out);
	if (!all.wrong && rig->verdict.wrong)
		fprintf(stderr, "ep_perf: %s\n", rig->verdict.first);
	return rc;
}

/* ---- times ---- */

/* Seen by the caller: ranks start each phase together, and it is over when the stream is idle. */
static int time_host(struct rig *rig, const struct perf_opts *opts, void *graph)
{
	for (int i = -opts->warmup; i < opts->iterations; i++)
		for (const enum perf_phase *phase = perf_phases(opts); *phase != PERF_PHASES; phase++) {
			double start;

			if (seat_barrier(rig->seat))
				return -1;
			start = world_now();
			if (step(rig, *phase, graph) || rig_sync(rig))
				return -1;
			if (i >= 0)
				*perf_board_sample(seat_board(rig->seat), opts, *phase, i, seat_rank(rig->seat)) =
					(struct perf_sample){ .device = -1, .host = 1e6 * (world_now() - start) };
		}
	return 0;
}

static int event_at(struct rig *rig, void *event)
{
	return rig->shim.ops->event_record(&rig->shim, event) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
}

/* All of them ahead: making one takes longer than an operation. */
static int events_make(struct rig *rig, void *(*event)[STEPS_MAX + 1], int rounds)
{
	for (int i = 0; i < rounds; i++)
		for (int p = 0; p <= STEPS_MAX; p++)
			if (rig->shim.ops->event_create(&rig->shim, &event[i][p]))
				return seat_fail(rig->seat, "%s", rig->shim.text);
	return 0;
}

/* Seen by the device: everything is launched ahead, with an event before and behind each phase. */
static int time_device(struct rig *rig, const struct perf_opts *opts, void *graph)
{
	const enum perf_phase *phases = perf_phases(opts);
	int rounds = opts->warmup + opts->iterations, rc = -1;
	void *(*event)[STEPS_MAX + 1] = calloc((size_t)rounds, sizeof(*event));

	if (!event)
		return seat_fail(rig->seat, "no memory");
	if (events_make(rig, event, rounds) || seat_barrier(rig->seat))
		goto destroy;
	for (int i = 0; i < rounds; i++) {
		if (event_at(rig, event[i][0]))
			goto destroy;
		for (int p = 0; phases[p] != PERF_PHASES; p++)
			if (step(rig, phases[p], graph) || event_at(rig, event[i][p + 1]))
				goto destroy;
	}
	if (rig_sync(rig))
		goto destroy;
	for (int i = opts->warmup; i < rounds; i++)
		for (int p = 0; phases[p] != PERF_PHASES; p++) {
			struct perf_sample *sample = perf_board_sample(seat_board(rig->seat), opts, phases[p],
								       i - opts->warmup, seat_rank(rig->seat));

			if (rig->shim.ops->event_elapsed(&rig->shim, event[i][p], event[i][p + 1], &sample->device)) {
				seat_fail(rig->seat, "%s", rig->shim.text);
				goto destroy;
			}
		}
	rc = 0;
destroy:
	for (int i = 0; i < rounds; i++)
		for (int p = 0; p <= STEPS_MAX; p++)
			if (event[i][p])
				rig->shim.ops->event_destroy(&rig->shim, event[i][p]);
	free(event);
	return rc;
}

/* ---- */

static void facts(struct rig *rig, struct perf_rank *out)
{
	const struct ll_input *in = &rig->handle[0].in[seat_rank(rig->seat)];
	const struct ll_shape *shape = &rig->cfg.shape;
	size_t window = 0;

	out->gpu = shim_is_gpu(&rig->shim);
	for (int z = 0; z < rig->handle[0].expect.zones; z++)
		out->rows += (uint64_t)rig->handle[0].expect.count[z];
	for (int t = 0; t < in->t; t++)
		for (int r = 0; r < shape->ranks; r++)
			for (int k = 0; k < shape->topk; k++)
				if (ll_owner(shape, NULL, in->idx[t * shape->topk + k]) == r) {
					out->pairs++;
					break;
				}
	out->window = UINT64_MAX;
	if (ncclEpGroupWindowBytes && ncclEpGroupWindowBytes(rig->group, &window) == ncclSuccess)
		out->window = window;
}

int perf_ll_job(struct seat *seat, const void *arg)
{
	const struct perf_job *job = arg;
	const struct perf_opts *opts = &job->opts;
	struct perf_rank *out = perf_board_rank(seat_board(seat), seat_rank(seat));
	struct rig_cfg cfg = cfg_make(job);
	void *graph = NULL;
	struct rig rig;

	*out = (struct perf_rank){ 0 };
	if (rig_open(&rig, seat, &cfg) || rig_update(&rig, 0) || rig_sync(&rig))
		goto close;
	facts(&rig, out);
	if (opts->graph && !out->gpu)
		seat_fail(seat, "-G 1: graphs need a GPU");
	if (seat_failed(seat) || check(&rig, opts, out) || seat_barrier(seat))
		goto close;
	if (opts->graph && graph_make(&rig, false, &graph))
		goto close;
	if (time_host(&rig, opts, graph) || (out->gpu && time_device(&rig, opts, graph)))
		goto close;
	check(&rig, opts, out);
close:
	if (rig.shim.ops)
		rig.shim.ops->graph_destroy(&rig.shim, graph);
	rig_close(&rig);
	return seat_failed(seat) ? -1 : 0;
}
