/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that make different calls: a different hidden size, alignment or num_topk on one rank fails all, at once, and
 * nothing is written out of place. With a single rank the error can be cleared. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"

#define RANKS 3
#define AT_ONCE 5.0 /* seconds; the deadline of a wait is 30 */

struct job {
	struct ht_cfg cfg, other; /* other: of rank 1 */
	enum ht_op op;		  /* that must fail */
};

static struct ht_cfg cfg_make(void)
{
	struct ht_cfg cfg = {
		.handles = 1, .counters = 32, .spare = LL_ALL, .tell_topk = true, .max_token_bytes = 256
	};

	cfg.shape = (struct ht_shape){ .base = { .ranks = RANKS,
						 .experts = 4 * RANKS,
						 .topk = 3,
						 .tmax = 12,
						 .hidden = 96,
						 .token = NUM_BF16,
						 .combine = NUM_BF16 } };
	cfg.data = (struct ll_data){ .seed = 7, .fill = LL_FILL_FULL, .route = LL_ROUTE_UNIFORM };
	cfg.shape.expert_major = true;
	cfg.shape.capacity = 4096;
	return cfg;
}

static int unlike_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht_rig rig = { .seat = seat };
	struct ht_args args;
	ncclResult_t rc;
	double start;

	if (ht_open(&rig, seat, seat_rank(seat) == 1 ? &job->other : &job->cfg) ||
	    (job->op != HT_UPDATE && (ht_script(&rig, "UA") || ht_load(&rig, 0, job->op) || ht_sync(&rig))))
		goto close;
	ht_args(&rig, 0, job->op, &args);
	start = world_now();
	rc = ht_outcome(&rig, job->op, &args);
	ll_wrong(&rig.verdict, rc != ncclInvalidUsage && rc != ncclRemoteError, "the call returned %d", (int)rc);
	ll_wrong(&rig.verdict, world_now() - start > AT_ONCE, "it took %.1f s", world_now() - start);
	ll_wrong(&rig.verdict, ncclEpErrorClear(rig.group) == ncclSuccess, "cleared although other ranks have failed");
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

/* One rank: no other has failed. */
static int clear_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht_rig rig = { .seat = seat };
	struct ht_args args;

	if (ht_open(&rig, seat, &job->cfg) || ht_script(&rig, "UA DA") || ht_load(&rig, 0, HT_COMBINE) || ht_sync(&rig))
		goto close;
	ht_args(&rig, 0, HT_COMBINE, &args);
	args.tensor[HT_ANSWERS].sizes[0] = (size_t)rig.handle[0].plan[0].rows - 1;
	ht_want(&rig, "Combine with a short input", ncclInvalidUsage, ht_outcome(&rig, HT_COMBINE, &args));
	ht_want(&rig, "ncclEpErrorClear", ncclSuccess, ncclEpErrorClear(rig.group));
	ht_script(&rig, "CA UA DA CA");
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

struct run {
	struct world *world;
	struct far_nodes nodes;
	int passed, failed;
};

static void run_job(struct run *run, const char *name, int ranks, world_fn fn, struct job *job)
{
	int rc;

	job->cfg.shape.nodes = job->other.shape.nodes = run->nodes;
	rc = world_run(run->world, ranks, fn, job, sizeof(*job), 100);

	printf("%s %s%s%s\n", rc ? "FAILED" : "ok    ", name, rc ? ": " : "", rc ? world_text(run->world) : "");
	fflush(stdout);
	run->passed += !rc;
	run->failed += rc != 0;
}

static void run_all(struct run *run)
{
	struct job job = { .cfg = cfg_make(), .other = cfg_make(), .op = HT_DISPATCH };

	job.other.shape.base.hidden = 48;
	run_job(run, "different hidden size, dispatch", RANKS, unlike_job, &job);
	job.op = HT_COMBINE;
	run_job(run, "different hidden size, combine", RANKS, unlike_job, &job);
	job.other = cfg_make();
	job.op = HT_UPDATE;
	job.other.shape.align = 16;
	run_job(run, "different alignment", RANKS, unlike_job, &job);
	job.other = cfg_make();
	job.cfg.tell_topk = job.other.tell_topk = false;
	job.cfg.init = job.other.init = HT_INIT_AUTO;
	job.other.shape.base.topk = 2;
	run_job(run, "different num_topk", RANKS, unlike_job, &job);
	job.cfg = cfg_make();
	job.cfg.shape.base.ranks = 1;
	job.cfg.shape.base.experts = 4;
	run_job(run, "a single rank clears its error", 1, clear_job, &job);
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS };
	struct run run = { 0 };
	int c;

	while ((c = getopt(argc, argv, "tgN:")) != -1) {
		if (c == '?') {
			fprintf(stderr, "usage: ht_unlike [-t | -g] [-N SIZE]   ranks are threads (default) or "
					"processes, in simulated nodes of SIZE\n");
			return 2;
		}
		if (c == 'N')
			run.nodes.size[0] = (uint8_t)atoi(optarg);
		else
			opts.processes = c == 'g';
	}
	if (run.nodes.size[0])
		far_set_nodes(NULL, &run.nodes, "loop", 0);
	if (world_open(&opts, &run.world))
		return 1;
	run_all(&run);
	if (world_close(run.world))
		run.failed++;
	printf("ht_unlike: %d passed, %d failed\n", run.passed, run.failed);
	return run.failed ? 1 : 0;
}
