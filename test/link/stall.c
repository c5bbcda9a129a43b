/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that stalls for a second or more while kernels push: the ring fills up and they wait. Within the deadline
 * everything arrives in the end; otherwise every rank gets an error. With threads or processes (-g), also with sleeps
 * of 1 to 50 ms before every operation of every rank. Exit status 0 or 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define SLOW 1	    /* the rank whose puts stall; threads all share its engine */
#define ENTRIES 128 /* of a ring: less than half the commands of a dispatch of TOKENS */
#define TOKENS 1280 /* EP_LL_JOIN rows share a command */
#define AFTER 160   /* puts: in the first dispatch */

struct job {
	struct rig_cfg cfg;
	bool naps, lost; /* lost: the deadline is shorter than the stall */
	double stall;	 /* seconds */
};

/* On the board, per rank. */
struct told {
	double seconds; /* of the slowest operation */
};

static void nap_begin(struct rig *rig, const struct job *job)
{
	rig->naps = job->naps ? ll_seed(job->cfg.data.seed, 77, (uint64_t)seat_rank(rig->seat)) | 1 : 0;
}

static int recover(struct rig *rig, struct told *told)
{
	for (int i = 0; i < 4; i++) {
		double start = world_now(), took;

		if (rig_script(rig, i % 2 ? "dA xA cA xA" : "DA CA"))
			return -1;
		took = world_now() - start;
		told->seconds = took > told->seconds ? took : told->seconds;
	}
	return rig_check_crossed(rig);
}

/* Until a call fails; then all calls do, with the same message. */
static void lose(struct rig *rig, const struct job *job)
{
	double start = world_now();
	ncclResult_t rc = ncclSuccess, again;
	char text[512];

	if (rig_load(rig, 0) || rig_update(rig, 0))
		return;
	rig->parted = true;
	while (rc == ncclSuccess && world_now() - start < 10 * job->stall) {
		rig_nap(rig);
		rc = rig_dispatch(rig, 0, false);
		rig_nap(rig);
		rc = rc == ncclSuccess ? rig_combine(rig, 0, false) : rc;
	}
	snprintf(text, sizeof(text), "%s", anyEpGetLastError());
	again = rig_dispatch(rig, 0, false);
	ll_wrong(&rig->verdict, rc != ncclTimeout && rc != ncclRemoteError, "rank %d: returned %s (%s)",
		 seat_rank(rig->seat), ncclGetErrorString(rc), text);
	ll_wrong(&rig->verdict, !strstr(text, "rank "), "rank %d: \"%s\" names no rank", seat_rank(rig->seat), text);
	ll_wrong(&rig->verdict, again != rc || strcmp(text, anyEpGetLastError()) != 0,
		 "rank %d: first \"%s\", then \"%s\"", seat_rank(rig->seat), text, anyEpGetLastError());
	ll_wrong(&rig->verdict, world_now() - start > 3 * job->stall, "rank %d: error after %.1f s",
		 seat_rank(rig->seat), world_now() - start);
}

static int stall_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct told *told = (struct told *)seat_board(seat) + seat_rank(seat);
	struct rig rig;

	if (!rig_open(&rig, seat, &job->cfg)) {
		nap_begin(&rig, job);
		if (job->lost)
			lose(&rig, job);
		else
			recover(&rig, told);
	}
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ---- */

struct run {
	struct world *world;
	int passed, failed;
};

static struct job job_make(enum ll_layout layout, bool lost, bool naps)
{
	struct job job = { .lost = lost, .naps = naps, .stall = lost ? 2.5 : 1.0 };

	job.cfg = (struct rig_cfg){ .handles = 1, .spare = 2, .per_node = RANKS / 2 };
	job.cfg.shape = (struct ll_shape){ .layout = layout,
					   .ranks = RANKS,
					   .experts = 2 * RANKS,
					   .topk = 6,
					   .tmax = TOKENS,
					   .hidden = 32,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 9, .fill = LL_FILL_FULL };
	return job;
}

static void run_job(struct run *run, const char *inner, struct job *job)
{
	const struct told *told = world_board(run->world);
	char net[FAR_NET_MAX], text[64] = "";
	double start = world_now(), longest = 0;
	int rc;

	snprintf(net, sizeof(net), "faulty(%s):stall=%d,after=%d,rank=%d", inner, (int)(1000 * job->stall), AFTER,
		 SLOW);
	far_set(run->world, RANKS / 2, net, 0);
	world_setenv(run->world, "NCCL_EP_TIMEOUT_MS", job->lost ? "600" : "30000");
	memset(world_board(run->world), 0, RANKS * sizeof(*told));
	rc = world_run(run->world, RANKS, stall_job, job, sizeof(*job), 60);
	for (int r = 0; r < RANKS; r++)
		longest = told[r].seconds > longest ? told[r].seconds : longest;
	/* Otherwise nothing was tested. */
	if (!rc && !job->lost && longest < 0.9 * job->stall)
		snprintf(text, sizeof(text), "no operation stalled: %.2f s at most", longest);
	rc = rc || text[0];
	printf("%s %s %s %s%s%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ",
	       job->cfg.shape.layout == LL_EXPERT_MAJOR ? "em" : "rm", job->lost ? "told" : "recovers", net,
	       job->naps ? ", naps" : "", rc ? ": " : "", rc ? (text[0] ? text : world_text(run->world)) : "",
	       world_now() - start);
	fflush(stdout);
	run->passed += !rc;
	run->failed += rc != 0;
}

int main(int argc, char **argv)
{
	static const char *const inner[] = { "loop", "loop:unordered=1" };
	struct world_opts opts = { .seats = RANKS, .board = RANKS * sizeof(struct told) };
	struct run run = { 0 };
	char entries[16];

	opts.processes = argc == 2 && !strcmp(argv[1], "-g");
	if (argc > 1 && !opts.processes) {
		fprintf(stderr, "usage: link_stall [-g]\n  -g  ranks are processes (default: threads)\n");
		return 2;
	}
	snprintf(entries, sizeof(entries), "%d", ENTRIES);
	setenv("NCCL_EP_RING_ENTRIES", entries, 1);
	if (world_open(&opts, &run.world))
		return 1;
	for (int i = 0; i < 4; i++) {
		struct job job = job_make(i & 1 ? LL_RANK_MAJOR : LL_EXPERT_MAJOR, i & 2, i & 1);

		run_job(&run, inner[i & 1], &job);
	}
	run.failed += world_close(run.world) != 0;
	printf("link_stall: %d passed, %d failed; %s\n", run.passed, run.failed,
	       opts.processes ? "processes" : "threads");
	return run.failed ? 1 : 0;
}
