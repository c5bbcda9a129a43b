/* SPDX-License-Identifier: Apache-2.0 */
/* HT, one size on one rank: creation times, a checked round, the timed rounds, a checked round. */
#include <stdio.h>
#include <stdlib.h>

#include "perf/ep_perf.h"
#include "test/oracle/ht_rig.h"

#pragma weak anyEpGroupWindowBytes
#pragma weak anyEpGroupReachCounts
#pragma weak anyEpGroupNodes

struct ht_play {
	struct ht_rig rig;
	const struct perf_opts *opts;
	struct perf_rank *out;
	struct ht_args args[HT_OPS]; /* of the round, made in advance: not part of what is timed */
	void *graph;
};

static const enum ht_op op_of[PERF_PHASES] = {
	[PERF_UPDATE] = HT_UPDATE,	     [PERF_DISPATCH] = HT_DISPATCH,
	[PERF_COMBINE] = HT_COMBINE,	     [PERF_DISPATCH_BWD] = HT_DISPATCH_BWD,
	[PERF_COMBINE_BWD] = HT_COMBINE_BWD,
};
static const enum perf_phase phase_of[HT_OPS] = {
	[HT_UPDATE] = PERF_UPDATE,	     [HT_DISPATCH] = PERF_DISPATCH,
	[HT_COMBINE] = PERF_COMBINE,	     [HT_DISPATCH_BWD] = PERF_DISPATCH_BWD,
	[HT_COMBINE_BWD] = PERF_COMBINE_BWD,
};
static const char *const call_of[HT_OPS] = {
	[HT_UPDATE] = "ncclEpUpdateHandle",
	[HT_DISPATCH] = "ncclEpDispatch",
	[HT_COMBINE] = "ncclEpCombine",
	[HT_DISPATCH_BWD] = "ncclEpDispatch, backward",
	[HT_COMBINE_BWD] = "ncclEpCombine, backward",
};

/* Flat: the worst case. Expert-major: twice the average if less, since the worst case is a copy per local expert: 4 GB
 * per rank for 8 ranks of 4096 tokens. */
static int capacity_of(const struct perf_opts *opts, const struct ht_shape *shape)
{
	long bound = ht_bound(shape), average = (long)opts->last * opts->topk + (long)ht_local(shape) * opts->align;

	if (opts->eager || opts->max_recv)
		return opts->max_recv;
	/* A popular expert may receive all tokens. */
	return (int)(bound < 2 * average || !shape->expert_major || opts->zipf > 0 ? bound : 2 * average);
}

static struct ht_cfg cfg_make(const struct perf_job *job)
{
	const struct perf_opts *opts = &job->opts;
	struct ht_cfg cfg = { .handles = 1,
			      .where = opts->windows ? HT_WINDOW : HT_PLAIN,
			      .separate = opts->separate,
			      .idx64 = true,
			      .counters = 32,
			      .zero_copy = opts->zero_copy,
			      .overflow = opts->drop ? NCCL_EP_OVERFLOW_DROP : NCCL_EP_OVERFLOW_AUTO,
			      .sms = opts->sms,
			      .dispatch_sms = opts->dispatch_sms,
			      .combine_sms = opts->combine_sms,
			      .backward = opts->bwd,
			      .spare = 4,
			      .tell_topk = true,
			      .data = perf_data(opts, job->tokens) };

	perf_shape(opts, &cfg.shape.base);
	cfg.shape.expert_major = opts->layout == PERF_EXPERT_MAJOR;
	cfg.shape.align = opts->align;
	cfg.shape.capacity = capacity_of(opts, &cfg.shape);
	return cfg;
}

static int step(void *arg, enum perf_phase phase)
{
	struct ht_play *play = arg;
	struct ht_rig *rig = &play->rig;
	enum ht_op op = op_of[phase];

	if (phase != PERF_GRAPH)
		return ht_expect(rig, call_of[op], ht_call_with(rig, 0, op, &play->args[op]));
	return rig->shim.ops->graph_launch(&rig->shim, play->graph) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
}

static int graph_make(struct ht_play *play)
{
	struct ht_rig *rig = &play->rig;

	if (rig->shim.ops->capture_begin(&rig->shim))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	if ((play->opts->graph_update && step(play, PERF_UPDATE)) || step(play, PERF_DISPATCH) ||
	    step(play, PERF_COMBINE))
		return -1;
	return rig->shim.ops->capture_end(&rig->shim, &play->graph) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
}

/* The operations of the run, in order; ends with HT_OPS. */
static enum ht_op ops_end(const struct ht_play *play)
{
	return play->opts->bwd ? HT_OPS : HT_DISPATCH_BWD;
}

/* Data of a round for all operations, including combine's inputs: in HT the position of every row is known before. */
static int prepare(struct ht_play *play)
{
	struct ht_rig *rig = &play->rig;

	if (!rig->handle[0].op[HT_UPDATE].loaded && ht_round(rig, 0))
		return -1;
	for (enum ht_op op = HT_DISPATCH; op < ops_end(play); op++)
		if (ht_load(rig, 0, op))
			return -1;
	for (enum ht_op op = HT_UPDATE; op < ops_end(play); op++)
		ht_args(rig, 0, op, &play->args[op]);
	/* A graph outlives its routing: combine's inputs must be large enough for the next routing too. */
	if (play->opts->graph)
		play->args[HT_COMBINE].tensor[HT_ANSWERS].sizes[0] = ht_rows_max(rig, HT_ANSWERS);
	rig->handle[0].op[HT_UPDATE].loaded = false; /* a new round */
	return ht_sync(rig) || seat_barrier(rig->seat) ? -1 : 0;
}

/* ---- values ---- */

static int judge(struct ht_play *play, enum ht_op op)
{
	struct ll_verdict *verdict = &play->rig.verdict;
	int64_t *wrong = &play->out->wrong[play->opts->graph ? PERF_GRAPH : phase_of[op]];

	if (!play->opts->check)
		return 0;
	if (ht_check(&play->rig, 0, op))
		return -1;
	if (verdict->wrong && !*wrong)
		fprintf(stderr, "ep_perf: %s\n", verdict->first);
	*wrong += (int64_t)verdict->wrong;
	*verdict = (struct ll_verdict){ 0 };
	return 0;
}

/* Instantiating a graph may wait for the device: no rank launches while another one still instantiates its own. */
static int round_graph(struct ht_play *play)
{
	if ((!play->opts->graph_update && (step(play, PERF_UPDATE) || ht_sync(&play->rig))) ||
	    seat_barrier(play->rig.seat) || (!play->graph && graph_make(play)) || seat_barrier(play->rig.seat) ||
	    step(play, PERF_GRAPH) || ht_sync(&play->rig))
		return -1;
	for (enum ht_op op = HT_UPDATE; op < ops_end(play); op++)
		if (judge(play, op))
			return -1;
	return 0;
}

/* One checked round. */
static int round_play(struct ht_play *play)
{
	if (prepare(play))
		return -1;
	if (play->opts->graph)
		return round_graph(play);
	for (enum ht_op op = HT_UPDATE; op < ops_end(play); op++)
		if (step(play, phase_of[op]) || ht_sync(&play->rig) || judge(play, op))
			return -1;
	return 0;
}

/* ---- */

/* Dispatch reads own rows once and writes every copy. Combine reads every copy and writes own rows. */
static void facts_bytes(struct ht_play *play)
{
	const struct ht_rig *rig = &play->rig;
	const struct ht_handle *h = &rig->handle[0];
	const struct ht_plan *plan = &h->plan[seat_rank(rig->seat)];
	double row = (double)(ht_row_bytes(rig, HT_OUT) + ht_row_bytes(rig, HT_OUT_SCALES));
	double sum = (double)ht_row_bytes(rig, HT_ANSWERS), own = h->in[seat_rank(rig->seat)].t, rows = 0;
	double others = 0, *bytes = play->out->bytes, *remote = play->out->remote, *traffic = play->out->traffic;

	for (int i = 0; i < plan->rows; i++) {
		rows += plan->row[i].src >= 0;
		others += plan->row[i].src >= 0 && plan->row[i].src != seat_rank(rig->seat);
	}
	bytes[PERF_DISPATCH] = rows * row;
	bytes[PERF_COMBINE] = bytes[PERF_DISPATCH_BWD] = bytes[PERF_COMBINE_BWD] = rows * sum;
	bytes[PERF_GRAPH] = rows * (row + sum);
	remote[PERF_DISPATCH] = others * row;
	remote[PERF_COMBINE] = remote[PERF_DISPATCH_BWD] = remote[PERF_COMBINE_BWD] = others * sum;
	remote[PERF_GRAPH] = others * (row + sum);
	traffic[PERF_DISPATCH] = (own + rows) * row;
	traffic[PERF_COMBINE] = traffic[PERF_DISPATCH_BWD] = traffic[PERF_COMBINE_BWD] = (own + rows) * sum;
	traffic[PERF_GRAPH] = traffic[PERF_DISPATCH] + traffic[PERF_COMBINE];
}

/* One more handle of the same group, whose windows exist. */
static int facts_handle(struct ht_play *play)
{
	struct ht_rig *rig = &play->rig;
	ncclEpLayout_t layout = rig->cfg.shape.expert_major ? NCCL_EP_LAYOUT_EXPERT_MAJOR : NCCL_EP_LAYOUT_FLAT;
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpHandle_t handle = NULL;
	double start;

	config.dispatch_output_per_expert_alignment = (size_t)rig->cfg.shape.align;
	if (seat_barrier(rig->seat))
		return -1;
	start = world_now();
	if (ht_expect(rig, "ncclEpInitHandle",
		      ncclEpInitHandle(&handle, rig->group, layout, &config, rig->cfg.shape.base.topk, NULL)))
		return -1;
	play->out->later_us = 1e6 * (world_now() - start);
	return ht_expect(rig, "ncclEpHandleDestroy", ncclEpHandleDestroy(handle));
}

/* Sums are rounded node by node, so what must come out depends on them. */
static int facts_nodes(struct ht_play *play)
{
	struct ht_rig *rig = &play->rig;
	int ranks = seat_ranks(rig->seat), *node = calloc((size_t)ranks, sizeof(*node)), rc = 0;

	if (!node)
		return seat_fail(rig->seat, "out of memory");
	if (anyEpGroupNodes && ht_expect(rig, "anyEpGroupNodes", anyEpGroupNodes(rig->group, node, (size_t)ranks)))
		rc = -1;
	else if (!far_from_map(node, ranks, &rig->cfg.shape.nodes) && play->opts->check)
		rc = seat_fail(rig->seat, "the check knows ranks in order or dealt to nodes in turn only: use -c 0");
	else if (play->opts->puts && far_count(&rig->cfg.shape.nodes, ranks) == 1)
		rc = seat_fail(rig->seat, "-P: all ranks are in one node: set NCCL_EP_RANKS_PER_NODE");
	play->out->nodes = rig->cfg.shape.nodes;
	free(node);
	return rc;
}

static int facts(struct ht_play *play)
{
	struct ht_rig *rig = &play->rig;
	size_t window = 0;
	int device = -1;

	if (ncclCommCuDevice(rig->comm, &device) != ncclSuccess)
		return seat_fail(rig->seat, "ncclCommCuDevice: %s", ncclGetLastError(rig->comm));
	perf_rank_init(play->opts, device, play->out);
	play->out->group_us = 1e6 * rig->group_seconds;
	play->out->first_us = 1e6 * rig->handle[0].init_seconds;
	if (anyEpGroupWindowBytes && anyEpGroupWindowBytes(rig->group, &window) == ncclSuccess)
		play->out->window = window;
	if (play->opts->graph && device < 0)
		return seat_fail(rig->seat, "-G 1: graphs need a GPU");
	return facts_nodes(play) || facts_handle(play) ? -1 : 0;
}

/* Which way the tensors went: in place, or through the window. */
static void reach_print(struct ht_play *play)
{
	anyEpReachCounts_t c = ANYEP_REACH_COUNTS_INIT;

	if (seat_rank(play->rig.seat) || seat_ranks(play->rig.seat) == 1 || !anyEpGroupReachCounts ||
	    anyEpGroupReachCounts(play->rig.group, &c) != ncclSuccess)
		return;
	printf("# rank 0: %llu tensors of other ranks in place, %llu staged; %llu allocations mapped\n",
	       (unsigned long long)c.direct, (unsigned long long)c.staged, (unsigned long long)c.mapped);
	if (c.crossedDispatch || c.crossedCombine)
		printf("# rank 0: %llu tokens and %llu sums to other nodes\n", (unsigned long long)c.crossedDispatch,
		       (unsigned long long)c.crossedCombine);
	fflush(stdout);
}

int perf_ht_job(struct seat *seat, const struct perf_job *job)
{
	struct ht_cfg cfg = cfg_make(job);
	struct ht_play play = { .opts = &job->opts, .out = perf_own(job->board) };
	struct perf_play timed = perf_play_of(job, seat, &play.rig.shim, step, &play);

	if (ht_open(&play.rig, seat, &cfg) || facts(&play) || round_play(&play))
		goto close;
	facts_bytes(&play);
	if (seat_barrier(seat) || perf_time(&timed) || perf_far_run(&timed, play.rig.group, play.out))
		goto close;
	reach_print(&play);
	if (job->opts.check)
		round_play(&play);
close:
	if (play.rig.shim.ops)
		play.rig.shim.ops->graph_destroy(&play.rig.shim, play.graph);
	ht_close(&play.rig);
	return seat_failed(seat) ? -1 : 0;
}
