/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overflow. Under TRAP one row too many fails the receiving rank and all others at once, and one row fewer fails
 * nobody; in eager mode a dispatch with a short output is rejected without losing data; a combine with a short input
 * fails. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"

#define RANKS 4
#define AT_ONCE 5.0 /* seconds; the deadline of a wait is 30 */

struct job {
	struct ht_cfg cfg;
	enum ht_op op;
	bool weights; /* only the weights of combine's inputs are short */
};

static struct ht_cfg cfg_make(bool expert_major, int align)
{
	struct ht_cfg cfg = { .handles = 1, .counters = 32, .spare = LL_ALL, .backward = true, .tell_topk = true };

	cfg.shape = (struct ht_shape){ .base = { .ranks = RANKS,
						 .experts = 3 * RANKS,
						 .topk = 3,
						 .tmax = 12,
						 .hidden = 96,
						 .token = NUM_BF16,
						 .combine = NUM_BF16 },
				       .expert_major = expert_major,
				       .align = align };
	cfg.data = (struct ll_data){ .seed = 31, .fill = LL_FILL_FULL, .route = LL_ROUTE_DROPPED };
	return cfg;
}

/* Rows of the first round by the model, on the rank that receives most, without a capacity. */
static int most_rows(const struct ht_cfg *cfg, int64_t *total)
{
	struct ht_shape shape = cfg->shape;
	struct ll_data data = cfg->data;
	struct ll_input *in;
	struct ht_plan *plan;

	shape.capacity = 0;
	data.seed = ll_seed(cfg->data.seed, 0, 0);
	in = ll_inputs_make(&shape.base, &data);
	plan = in ? ht_plans_make(&shape, in) : NULL;
	*total = 0;
	for (int r = 0; plan && r < RANKS; r++)
		*total = plan[r].total > *total ? plan[r].total : *total;
	ht_plans_free(plan, RANKS);
	ll_inputs_free(in, RANKS);
	return plan ? 0 : -1;
}

static void async_want(struct ht_rig *rig, int want)
{
	int got = -1;

	ht_want(rig, "ncclEpGetAsyncError", ncclSuccess, ncclEpGetAsyncError(rig->group, &got));
	ll_wrong(&rig->verdict, got != want, "ncclEpGetAsyncError gives %d, must be %d", got, want);
}

static int trap_job(struct seat *seat, const void *arg)
{
	struct ht_cfg cfg = ((const struct job *)arg)->cfg;
	struct ht_args args;
	struct ht_rig rig = { .seat = seat };
	int64_t most;
	double start;
	bool mine;

	if (most_rows(&cfg, &most))
		return seat_fail(seat, "out of memory");
	cfg.shape.capacity = (int)most; /* exactly what arrives */
	if (ht_open(&rig, seat, &cfg) || ht_script(&rig, "UA DA CA EA BA"))
		goto close;
	ht_close(&rig);
	if (ht_tell(&rig))
		return -1;
	cfg.shape.capacity = (int)most - 1;
	if (ht_open(&rig, seat, &cfg))
		goto close;
	mine = rig.handle[0].plan[seat_rank(seat)].total > cfg.shape.capacity;
	ht_args(&rig, 0, HT_UPDATE, &args);
	start = world_now();
	ht_want(&rig, mine ? "Update with a row too many" : "Update while another rank has a row too many",
		mine ? ncclInvalidUsage : ncclRemoteError, ht_outcome(&rig, HT_UPDATE, &args));
	ll_wrong(&rig.verdict, world_now() - start > AT_ONCE, "it took %.1f s", world_now() - start);
	ll_wrong(&rig.verdict, !*anyEpGetLastError(), "the failure has no message");
	async_want(&rig, mine ? ANYEP_ASYNC_LIMIT : ANYEP_ASYNC_REMOTE);
	/* The group stays failed, and reports it without waiting. */
	ht_args(&rig, 0, HT_DISPATCH, &args);
	ht_want(&rig, "Dispatch after it", mine ? ncclInvalidUsage : ncclRemoteError,
		ht_call_with(&rig, 0, HT_DISPATCH, &args));
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

/* Dispatch in both directions with an output one row short; the others wait until it is called again. */
static int eager_job(struct seat *seat, const void *arg)
{
	static const enum ht_buf_id outputs[][3] = { { HT_OUT, HT_OUT_IDX, HT_OUT_WEIGHTS },
						     { HT_OUT_BACK, HT_OUT_BACK, HT_OUT_BACK } };
	const struct job *job = arg;
	bool late = seat_rank(seat) == 1, bwd = job->op == HT_DISPATCH_BWD;
	struct ht_args args;
	struct ht_rig rig;

	if (ht_open(&rig, seat, &job->cfg) || ht_script(&rig, "UA") || ht_load(&rig, 0, job->op))
		goto close;
	for (int i = 0; late && i < (bwd ? 1 : 3); i++) {
		enum ht_buf_id id = outputs[bwd][i];

		ht_args(&rig, 0, job->op, &args);
		args.tensor[id].sizes[0] = (size_t)rig.handle[0].plan[1].rows - 1;
		if (args.tensor[id].t.ndim) /* expert-major has no topk_idx */
			ht_want(&rig, "Dispatch with a short output", ncclInvalidArgument,
				ht_call_with(&rig, 0, job->op, &args));
	}
	/* The script repeats the call, with the data in place. */
	ht_script(&rig, bwd ? "EA" : "DA");
	if (!seat_failed(seat))
		ht_script(&rig, "CA BA UA DA CA");
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

static int short_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	bool mine = seat_rank(seat) == 1;
	struct ht_args args;
	struct ht_rig rig;
	double start;

	/* Across nodes ranks do not wait for each other at the end of an operation: the failure of the next one would
	 * end it. */
	if (ht_open(&rig, seat, &job->cfg) || ht_script(&rig, "UA DA CA BA") || ht_load(&rig, 0, job->op) ||
	    ht_sync(&rig) || seat_barrier(seat))
		goto close;
	ht_args(&rig, 0, job->op, &args);
	for (int id = HT_ANSWERS; mine && id < HT_BUFS; id++)
		if (id == HT_BACK_WEIGHTS || (!job->weights && (id == HT_ANSWERS || id == HT_BACK_ANSWERS)))
			args.tensor[id].sizes[0] = (size_t)rig.handle[0].plan[1].rows - 1;
	start = world_now();
	ht_want(&rig, mine ? "Combine with a short input" : "Combine while another rank's input is short",
		mine ? ncclInvalidUsage : ncclRemoteError, ht_outcome(&rig, job->op, &args));
	ll_wrong(&rig.verdict, world_now() - start > AT_ONCE, "it took %.1f s", world_now() - start);
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

struct run {
	struct world *world;
	struct far_nodes nodes;
	int passed, failed;
};

static void run_job(struct run *run, const char *name, world_fn fn, struct job *job)
{
	double start = world_now();
	int rc;

	job->cfg.shape.nodes = run->nodes;
	rc = world_run(run->world, RANKS, fn, job, sizeof(*job), 200);

	printf("%s %s, %s, align %d%s%s (%.2f s)\n", rc ? "FAILED" : "ok    ", name,
	       job->cfg.shape.expert_major ? "expert-major" : "flat", job->cfg.shape.align, rc ? ": " : "",
	       rc ? world_text(run->world) : "", world_now() - start);
	fflush(stdout);
	run->passed += !rc;
	run->failed += rc != 0;
}

static void run_layout(struct run *run, bool expert_major, int align)
{
	struct job job = { .cfg = cfg_make(expert_major, align) };

	for (int where = HT_PLAIN; where <= HT_WINDOW; where++) {
		job.cfg.where = (enum ht_where)where;
		job.cfg.data.route = LL_ROUTE_ONE_RANK;
		run_job(run, "a row too many under TRAP", trap_job, &job);
		job.cfg.data.route = LL_ROUTE_UNIFORM;
		for (int i = 0; i < 2; i++) {
			job.cfg.shape.capacity = 0;
			job.op = i ? HT_DISPATCH_BWD : HT_DISPATCH;
			run_job(run, i ? "eager: a short output, backward" : "eager: a short output", eager_job, &job);
			job.cfg.shape.capacity = i ? ht_bound(&job.cfg.shape) : 0;
			job.op = i ? HT_COMBINE_BWD : HT_COMBINE;
			run_job(run, i ? "a short input of combine, backward" : "a short input of combine", short_job,
				&job);
		}
		job.weights = true;
		run_job(run, "short weights of combine, backward", short_job, &job);
		job.weights = false;
	}
}

static int usage(FILE *out, int status)
{
	fprintf(out,
		"usage: ht_overflow [-t | -g] [-N NODES] [-k NET]\n"
		"  -t  ranks are threads (default)   -g  ranks are processes\n"
		"  -N  simulated nodes (1)   -k  transport between them: loop, unordered, faulty or as NCCL_EP_NET\n");
	return status;
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS };
	const char *net = "loop";
	struct run run = { 0 };
	int c, nodes = 1;

	while ((c = getopt(argc, argv, "tgN:k:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 't' || c == 'g')
			opts.processes = c == 'g';
		else if (c == 'N')
			nodes = atoi(optarg);
		else if (c == 'k')
			net = optarg;
		else
			return usage(stderr, 2);
	}
	if (optind != argc || !far_splits(RANKS, nodes))
		return usage(stderr, 2);
	run.nodes.size[0] = (uint8_t)far_split(RANKS, nodes);
	if (nodes > 1)
		far_set(NULL, run.nodes.size[0], net, 1);
	if (world_open(&opts, &run.world))
		return 1;
	run_layout(&run, false, 0);
	run_layout(&run, true, 0);
	run_layout(&run, true, 16);
	if (world_close(run.world))
		run.failed++;
	printf("ht_overflow: %d passed, %d failed; %s\n", run.passed, run.failed,
	       opts.processes ? "processes" : "threads");
	return run.failed ? 1 : 0;
}
