/* SPDX-License-Identifier: Apache-2.0 */
/* LL, one size on one rank: a checked round, the timed rounds, a checked round. */
#include <stdio.h>

#include "perf/ep_perf.h"
#include "test/oracle/rig.h"

/* Weak: a library without this query leaves the figure out. */
#pragma weak anyEpGroupWindowBytes

struct ll_play {
	struct rig rig;
	const struct perf_opts *opts;
	struct perf_rank *out;
	void *graph;
};

static struct rig_cfg cfg_make(const struct perf_job *job)
{
	const struct perf_opts *opts = &job->opts;
	struct rig_cfg cfg = { .handles = 1,
			       .windows = opts->windows,
			       .zero_copy = opts->zero_copy,
			       .sms = opts->sms,
			       .dispatch_sms = opts->dispatch_sms,
			       .combine_sms = opts->combine_sms,
			       .idx64 = true,
			       .spare = 4,
			       .data = perf_data(opts, job->tokens) };

	perf_shape(opts, &cfg.shape);
	/* In a graph experts return what they received: only a copy fits between dispatch and combine. */
	cfg.data.numeric = cfg.data.echo = opts->graph && opts->quant == LL_QUANT_NONE;
	return cfg;
}

static int step(void *arg, enum perf_phase phase)
{
	struct ll_play *play = arg;
	struct rig *rig = &play->rig;

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
		return rig->shim.ops->graph_launch(&rig->shim, play->graph) ? seat_fail(rig->seat, "%s", rig->shim.text)
									    : 0;
	}
}

/* ---- graphs ---- */

static void graph_drop(struct ll_play *play)
{
	if (play->rig.shim.ops)
		play->rig.shim.ops->graph_destroy(&play->rig.shim, play->graph);
	play->graph = NULL;
}

/* With `copy` the experts' copy is part of it, once; the graph without it is timed. */
static int graph_make(struct ll_play *play, bool copy)
{
	struct rig *rig = &play->rig;
	struct rig_handle *h = &rig->handle[0];

	graph_drop(play);
	if (rig->shim.ops->capture_begin(&rig->shim))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	for (int i = 1; i < play->opts->graph_rounds && !copy; i++)
		if (step(play, PERF_DISPATCH) || step(play, PERF_COMBINE))
			return -1;
	if (step(play, PERF_DISPATCH))
		return -1;
	if (copy && rig->shim.ops->copy(&rig->shim, h->buf[RIG_ANSWERS].at, h->buf[RIG_OUT].at, h->buf[RIG_OUT].size))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	if (step(play, PERF_COMBINE))
		return -1;
	return rig->shim.ops->capture_end(&rig->shim, &play->graph) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
}

/* ---- values ---- */

/* Attributes the errors found since the last call to a phase. */
static void charge(struct ll_play *play, enum perf_phase phase)
{
	struct ll_verdict *verdict = &play->rig.verdict;

	if (verdict->wrong && !play->out->wrong[phase])
		fprintf(stderr, "ep_perf: %s\n", verdict->first);
	play->out->wrong[phase] += (int64_t)verdict->wrong;
	*verdict = (struct ll_verdict){ 0 };
}

static int check_graph(struct ll_play *play)
{
	struct rig *rig = &play->rig;

	if (graph_make(play, true) || seat_barrier(rig->seat) || step(play, PERF_GRAPH) || rig_sync(rig) ||
	    rig_check_rows(rig, 0) || rig_check_sums(rig, 0))
		return -1;
	charge(play, PERF_GRAPH);
	return 0;
}

static int check_plain(struct ll_play *play)
{
	bool staged = play->opts->staged, graph = play->opts->graph;
	struct rig *rig = &play->rig;

	if (step(play, staged ? PERF_DISPATCH_SEND : PERF_DISPATCH) || (staged && step(play, PERF_DISPATCH_RECV)) ||
	    rig_sync(rig) || rig_check_rows(rig, 0) || rig_answer(rig, 0) || rig_sync(rig))
		return -1;
	charge(play, graph ? PERF_GRAPH : staged ? PERF_DISPATCH_RECV : PERF_DISPATCH);
	if (step(play, staged ? PERF_COMBINE_SEND : PERF_COMBINE) || (staged && step(play, PERF_COMBINE_RECV)) ||
	    rig_sync(rig) || rig_check_sums(rig, 0))
		return -1;
	charge(play, graph ? PERF_GRAPH : staged ? PERF_COMBINE_RECV : PERF_COMBINE);
	return 0;
}

static int check(struct ll_play *play)
{
	struct rig *rig = &play->rig;

	if (!play->opts->check)
		return 0;
	if ((!rig->handle[0].loaded && rig_load(rig, 0)) || rig_update(rig, 0) || rig_sync(rig))
		return -1;
	rig->handle[0].loaded = false;
	return rig->cfg.data.echo ? check_graph(play) : check_plain(play);
}

/* ---- */

/* (token, destination rank) */
static double pairs_of(const struct ll_shape *shape, const struct ll_input *in)
{
	double pairs = 0;

	for (int t = 0; t < in->t; t++)
		for (int r = 0; r < shape->ranks; r++)
			pairs += perf_goes_to(shape, in, t, r);
	return pairs;
}

/* Dispatch reads own rows, writes and reads the window, writes outputs. Combine reads inputs, writes and reads the
 * window, writes sums. */
static void facts(struct ll_play *play)
{
	const struct rig_handle *h = &play->rig.handle[0];
	const struct ll_shape *shape = &play->rig.cfg.shape;
	const struct ll_input *in = &h->in[seat_rank(play->rig.seat)];
	double row = (double)(ll_out_bytes(shape) + ll_scale_bytes(shape)), sum = (double)ll_combine_bytes(shape);
	double rows = 0, others = 0, *bytes = play->out->bytes, *remote = play->out->remote;
	double *traffic = play->out->traffic;
	size_t window = 0;

	for (int z = 0; z < h->expect.zones; z++)
		for (int i = 0; i < h->expect.count[z]; i++, rows++)
			others += h->expect.row[z * h->expect.cap + i].src != seat_rank(play->rig.seat);
	bytes[PERF_DISPATCH] = bytes[PERF_DISPATCH_SEND] = bytes[PERF_DISPATCH_RECV] = rows * row;
	bytes[PERF_COMBINE] = bytes[PERF_COMBINE_SEND] = bytes[PERF_COMBINE_RECV] = rows * sum;
	bytes[PERF_GRAPH] = rows * (row + sum);
	remote[PERF_DISPATCH] = remote[PERF_DISPATCH_SEND] = remote[PERF_DISPATCH_RECV] = others * row;
	remote[PERF_COMBINE] = remote[PERF_COMBINE_SEND] = remote[PERF_COMBINE_RECV] = others * sum;
	remote[PERF_GRAPH] = others * (row + sum);
	traffic[PERF_DISPATCH] = in->t * (double)ll_in_bytes(shape) + (2 * pairs_of(shape, in) + rows) * row;
	traffic[PERF_COMBINE] = (3 * rows + in->t) * sum;
	traffic[PERF_GRAPH] = traffic[PERF_DISPATCH] + traffic[PERF_COMBINE];
	if (anyEpGroupWindowBytes && anyEpGroupWindowBytes(play->rig.group, &window) == ncclSuccess)
		play->out->window = window;
}

static int device_of(struct rig *rig)
{
	int device = -1;

	return ncclCommCuDevice(rig->comm, &device) == ncclSuccess ? device : -1;
}

int perf_ll_job(struct seat *seat, const struct perf_job *job)
{
	struct rig_cfg cfg = cfg_make(job);
	struct ll_play play = { .opts = &job->opts, .out = perf_own(job->board) };
	struct perf_play timed = perf_play_of(job, seat, &play.rig.shim, step, &play);

	if (rig_open(&play.rig, seat, &cfg) || rig_update(&play.rig, 0) || rig_sync(&play.rig))
		goto close;
	perf_rank_init(&job->opts, device_of(&play.rig), play.out);
	facts(&play);
	if (job->opts.graph && !shim_is_gpu(&play.rig.shim))
		seat_fail(seat, "-G 1: graphs need a GPU");
	if (seat_failed(seat) || check(&play) || seat_barrier(seat))
		goto close;
	if ((job->opts.graph && graph_make(&play, false)) || perf_time(&timed) ||
	    perf_far_run(&timed, play.rig.group, play.out))
		goto close;
	check(&play);
close:
	graph_drop(&play);
	rig_close(&play.rig);
	return seat_failed(seat) ? -1 : 0;
}
