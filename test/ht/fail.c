/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT across simulated nodes, when a rank's puts fail, all or some, when its link is cut, or when (with -g) it is killed
 * in the middle of operations. Until then every result is the oracle's, and so is that of every call that succeeds
 * later; data of every round are new, since a row that never arrived would otherwise look like the last round's. Then
 * every rank gets an error in time that names a rank, also those of nodes that the lost rank relays for; nothing hangs,
 * and a new group works. Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/ht_rig.h"
#include "test/oracle/lost.h"

#define FATAL 5	    /* the round in which a rank is killed */
#define ROUNDS 2000 /* at most */
#define LATE 1.0    /* seconds that an error may come later */
#define KILL_US 1500

enum how { PUTS_FAIL, SOME_FAIL, CUT, KILLED };

static const struct {
	const char *name, *options; /* options of faulty */
	bool named;		    /* all others name it */
} hows[] = {
	[PUTS_FAIL] = { "all puts of a rank fail", "fail=1000000,rank", false },
	[SOME_FAIL] = { "some puts of a rank fail", "fail=20000,rank", false },
	[CUT] = { "the link of a rank is cut", "drop", true },
	[KILLED] = { "a rank is killed", NULL, true },
};

struct job {
	struct ht_cfg cfg;
	enum how how;
	int lost;
};

/* Update, dispatch and combine, forward and backward in turn. */
static ncclResult_t round_checked(struct ht_rig *rig, struct lost_meet *meet, int round)
{
	static const enum ht_op ops[2][3] = { { HT_UPDATE, HT_DISPATCH, HT_COMBINE },
					      { HT_UPDATE, HT_DISPATCH_BWD, HT_COMBINE_BWD } };

	for (int i = 0; i < 3; i++) {
		enum ht_op op = ops[round % 2][i];
		ncclResult_t rc;

		if (op == HT_UPDATE ? ht_round(rig, 0) : ht_load(rig, 0, op))
			return ncclInternalError;
		rc = ht_call(rig, 0, op, false);
		if (rc != ncclSuccess)
			return rc;
		if (ht_check(rig, 0, op))
			return ncclInternalError;
		meet->checked++;
	}
	return ncclSuccess;
}

/* A rank may be a digit only. */
static bool names(const char *text, int rank)
{
	char name[16];

	snprintf(name, sizeof(name), "rank %d", rank);
	return strstr(text, name) != NULL;
}

static void lose(struct ht_rig *rig, const struct job *job, struct lost_meet *meet)
{
	double end = world_now() + 30;
	ncclResult_t rc = ncclSuccess;
	int rank = seat_rank(rig->seat);
	struct ht_args args;
	char text[512];

	for (int i = 0; rc == ncclSuccess && i < ROUNDS && world_now() < end; i++) {
		if (job->how == KILLED && rank == job->lost && i == FATAL &&
		    lost_kill_soon(rig->seat, job->cfg.data.seed, KILL_US))
			return;
		rc = round_checked(rig, meet, i);
	}
	meet->told[rank] = world_now();
	if (job->how == KILLED && rank == job->lost)
		sleep(60); /* for the kill */
	snprintf(text, sizeof(text), "%s", anyEpGetLastError());
	lost_check(&rig->verdict, rank, rc, text);
	ll_wrong(&rig->verdict, hows[job->how].named && rank != job->lost && !names(text, job->lost),
		 "rank %d: \"%s\" does not name rank %d", rank, text, job->lost);
	ht_args(rig, 0, HT_DISPATCH, &args);
	lost_check_again(&rig->verdict, rank, ht_call_with(rig, 0, HT_DISPATCH, &args) == rc, text);
}

static int lost_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct lost_meet *meet = seat_board(seat);
	struct ht_rig rig;

	if (!ht_open(&rig, seat, &job->cfg) && !seat_barrier(seat)) {
		rig.parted = true;
		lose(&rig, job, meet);
		if (!seat_failed(seat))
			seat_meet(seat, &meet->all, job->how == KILLED ? LOST_RANKS - 1 : LOST_RANKS);
	}
	ht_close(&rig);
	return ht_tell(&rig);
}

/* A new group on the same ranks, without fault injection. */
static int sound_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht_rig rig;

	if (!ht_open(&rig, seat, &job->cfg) && !ht_script(&rig, "UA DA CA EA BA"))
		ht_check_crossed(&rig, 0);
	ht_close(&rig);
	return ht_tell(&rig);
}

static void job_run(struct lost_run *run, const char *inner, const struct job *job)
{
	unsigned after = 100 + (unsigned)(ll_seed(job->cfg.data.seed, 5, 5) % 1500); /* puts */
	struct lost_case c = { .nodes = job->cfg.shape.nodes,
			       .killed = job->how == KILLED ? job->lost : -1,
			       .spread = run->timeout + LATE,
			       .lost = lost_job,
			       .sound = sound_job,
			       .job = job,
			       .size = sizeof(*job) };

	snprintf(c.text, sizeof(c.text), "%s: rank %d, %s", hows[job->how].name, job->lost,
		 job->cfg.shape.expert_major ? "em" : "flat");
	if (job->how == KILLED)
		snprintf(c.net, sizeof(c.net), "faulty(%s):delay=2", inner);
	else
		snprintf(c.net, sizeof(c.net), "faulty(%s):%s=%d,after=%u,seed=%u", inner, hows[job->how].options,
			 job->lost, after, (unsigned)job->cfg.data.seed);
	lost_case(run, &c);
}

/* The lost rank is a relay of one rank, the only one of its node, or one of several clients of a relay. */
static struct job job_make(enum how how, int i, int seed)
{
	static const struct {
		struct far_nodes nodes;
		int lost;
	} scenes[] = { { { .size = { 2 } }, 3 },
		       { { .size = { 1, 3 } }, 0 },
		       { { .size = { 3, 1 } }, 1 },
		       { { .size = { 1 } }, 2 } };
	struct job job = { .how = how, .lost = scenes[i].lost };

	job.cfg = (struct ht_cfg){ .handles = 1, .spare = LL_ALL, .counters = 32, .backward = true, .tell_topk = true };
	job.cfg.shape = (struct ht_shape){ .base = { .ranks = LOST_RANKS,
						     .experts = 2 * LOST_RANKS,
						     .topk = 3,
						     .tmax = 40,
						     .hidden = 128,
						     .token = NUM_BF16,
						     .combine = NUM_BF16 },
					   .expert_major = i & 1,
					   .nodes = scenes[i].nodes };
	job.cfg.shape.capacity = ht_bound(&job.cfg.shape);
	job.cfg.data = (struct ll_data){ .seed = 13 + (uint64_t)(4 * seed + i), .fill = LL_FILL_FULL };
	return job;
}

int main(int argc, char **argv)
{
	struct lost_run run = { .program = "ht_fail", .seeds = 2 };
	int status = lost_open(&run, argc, argv);

	if (status >= 0)
		return status;
	for (int how = 0; how <= (run.opts.processes && !run.spare ? KILLED : CUT); how++)
		for (int i = 0; i < 4 * run.seeds; i++) {
			struct job job = job_make((enum how)how, i % 4, i / 4);

			job_run(&run, lost_inner(&run, i), &job);
		}
	status = lost_close(&run);
	/* With nothing checked it would prove nothing. */
	return run.only < 0 && run.checked < 50 * run.seeds ? 1 : status;
}
