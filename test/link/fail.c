/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is lost between simulated nodes in the middle of operations: its puts fail, puts to it fail, or (with -g) it
 * is killed. Without masks every other rank gets an error that names a rank; with masks the others mask it and continue
 * with correct sums. Nothing hangs, and a new group works. Also with sleeps of 1 to 50 ms before every operation of
 * every rank. Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/lost.h"
#include "test/oracle/rig.h"

#define LOST 3
#define LOOSE 40 /* rounds during which the rank is lost: their results are undefined */
#define FATAL 12 /* the round in which a rank is killed */
#define LAST 4	 /* rounds that it no longer takes part in, however late the kill comes */
#define KILL_US 2000

enum how { PUTS_FAIL, SOME_FAIL, DROPPED, KILLED };

static const struct {
	const char *name, *options; /* options of faulty */
} hows[] = {
	[PUTS_FAIL] = { "all puts of a rank fail", "fail=1000000,after=150,rank=3" },
	[SOME_FAIL] = { "some puts of a rank fail", "fail=30000,after=8,rank=3" },
	[DROPPED] = { "a rank is dropped", "drop=3,after=150" },
	[KILLED] = { "a rank is killed", "delay=2" },
};

struct job {
	struct rig_cfg cfg;
	enum how how;
	bool naps;
};

/*
 * One dispatch and combine, results unchecked. On many cores 28 rounds take less than the kill's delay: a rank that
 * went through them all would be alive, and not masked, when the others check.
 */
static ncclResult_t round_loose(struct rig *rig, const struct job *job, int round)
{
	ncclResult_t rc;

	if (job->how == KILLED && seat_rank(rig->seat) == LOST && round == FATAL &&
	    lost_kill_soon(rig->seat, job->cfg.data.seed, KILL_US))
		return ncclInternalError;
	if (job->how == KILLED && seat_rank(rig->seat) == LOST && round >= LOOSE - LAST)
		sleep(60);
	rig_nap(rig);
	rc = rig_dispatch(rig, 0, false);
	rig_nap(rig);
	return rc == ncclSuccess ? rig_combine(rig, 0, false) : rc;
}

/* ---- without masks ---- */

static int lose(struct rig *rig, const struct job *job, struct lost_meet *meet)
{
	double end = world_now() + 30;
	ncclResult_t rc = ncclSuccess;
	int rank = seat_rank(rig->seat);
	char text[512];

	for (int i = 0; rc == ncclSuccess && world_now() < end; i++)
		rc = round_loose(rig, job, i);
	meet->told[rank] = world_now();
	snprintf(text, sizeof(text), "%s", anyEpGetLastError());
	lost_check(&rig->verdict, rank, rc, text);
	lost_check_again(&rig->verdict, rank, rig_dispatch(rig, 0, false) == rc, text);
	return 0;
}

/* ---- with masks ---- */

static int survive(struct rig *rig, const struct job *job, struct lost_meet *meet)
{
	for (int i = 0; i < LOOSE; i++)
		if (rig_expect(rig, "an operation with a lost rank", round_loose(rig, job, i)))
			return -1;
	rig->active[LOST] = false;
	if (rig_check_mask(rig) || seat_meet(rig->seat, &meet->survivors, LOST_RANKS - 1))
		return -1;
	if (rig_expect(rig, "ncclEpErrorClear", ncclEpErrorClear(rig->group)))
		return -1;
	rig_set_round(rig, 100);
	for (int i = 0; i < 5; i++)
		if (rig_script(rig, i % 2 ? "dA xA cA xA" : "DA CA"))
			return -1;
	return rig_check_mask(rig);
}

/* The lost rank itself, if alive: its calls return, and an error has a message. */
static void outlive(struct rig *rig, const struct job *job)
{
	for (int i = 0; i < LOOSE; i++) {
		ncclResult_t rc = round_loose(rig, job, i);

		ll_wrong(&rig->verdict, rc != ncclSuccess && !anyEpGetLastError()[0],
			 "the lost rank: %s without a message", ncclGetErrorString(rc));
		if (rc != ncclSuccess)
			return;
	}
}

/* ---- */

static int lost_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct lost_meet *meet = seat_board(seat);
	int present = job->how == KILLED ? LOST_RANKS - 1 : LOST_RANKS;
	struct rig rig;

	if (rig_open(&rig, seat, &job->cfg) || rig_update(&rig, 0) || seat_barrier(seat))
		goto close;
	rig.parted = true;
	rig.naps = job->naps ? ll_seed(job->cfg.data.seed, 78, (uint64_t)seat_rank(seat)) | 1 : 0;
	if (!job->cfg.mask)
		lose(&rig, job, meet);
	else if (seat_rank(seat) == LOST)
		outlive(&rig, job);
	else
		survive(&rig, job, meet);
	if (!seat_failed(seat))
		seat_meet(seat, &meet->all, present);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* A new group on the same ranks, without fault injection. */
static int sound_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig rig;

	if (!rig_open(&rig, seat, &job->cfg) && !rig_script(&rig, "DA CA"))
		rig_check_crossed(&rig);
	rig_close(&rig);
	return rig_tell(&rig);
}

/* With masks nobody gets an error. */
static void job_run(struct lost_run *run, const char *inner, const struct job *job)
{
	struct lost_case c = { .nodes = { .size = { (uint8_t)job->cfg.per_node } },
			       .killed = job->how == KILLED ? LOST : -1,
			       .spread = job->cfg.mask ? 0 : 2 * run->timeout,
			       .lost = lost_job,
			       .sound = sound_job,
			       .job = job,
			       .size = sizeof(*job) };

	snprintf(c.text, sizeof(c.text), "%s: %s%s%s", hows[job->how].name,
		 job->cfg.shape.layout == LL_EXPERT_MAJOR ? "em" : "rm", job->cfg.mask ? ", masks" : "",
		 job->naps ? ", naps" : "");
	snprintf(c.net, sizeof(c.net), "faulty(%s):%s", inner, hows[job->how].options);
	lost_case(run, &c);
}

/* With masks every node is one rank: a rank that only its own node reaches would be neither lost nor present. */
static struct job job_make(enum how how, bool mask, bool naps, int seed)
{
	struct job job = { .how = how, .naps = naps };

	job.cfg =
		(struct rig_cfg){ .handles = 1, .spare = LL_ALL, .mask = mask, .per_node = mask ? 1 : LOST_RANKS / 2 };
	job.cfg.shape = (struct ll_shape){ .layout = naps ? LL_RANK_MAJOR : LL_EXPERT_MAJOR,
					   .ranks = LOST_RANKS,
					   .experts = 2 * LOST_RANKS,
					   .topk = 3,
					   .tmax = 6,
					   .hidden = 128,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 13 + (uint64_t)seed, .fill = LL_FILL_FULL };
	return job;
}

int main(int argc, char **argv)
{
	struct lost_run run = { .program = "link_fail", .seeds = 1 };
	int status = lost_open(&run, argc, argv);

	if (status >= 0)
		return status;
	for (int how = 0; how <= (run.opts.processes && !run.spare ? KILLED : DROPPED); how++)
		for (int i = 0; i < 4 * run.seeds; i++) {
			struct job job = job_make((enum how)how, i & 2, i & 1, i / 4);

			/* If only some puts fail, it is random whom the ranks mask. */
			if (how != SOME_FAIL || !job.cfg.mask)
				job_run(&run, lost_inner(&run, i), &job);
		}
	return lost_close(&run);
}
