/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is lost between simulated nodes in the middle of operations: its puts fail, puts to it fail, or (with -g) it
 * is killed. Without masks every other rank gets an error that names a rank; with masks the others mask it and continue
 * with correct sums. Nothing hangs, and a new group works. Also with sleeps of 1 to 50 ms before every operation of
 * every rank. Exit status 0 or 1.
 */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define LOST 3
#define LOOSE 40    /* rounds during which the rank is lost: their results are undefined */
#define FATAL 12    /* the round in which a rank is killed */
#define LAST 4	    /* rounds that it no longer takes part in, however late the kill comes */
#define TIMEOUT 1.5 /* seconds; longer with a real transport, whose threads double the load: */
#define TIMEOUT_NET 3.0

enum how { PUTS_FAIL, SOME_FAIL, DROPPED, KILLED };

static const struct {
	const char *name, *options; /* options of faulty */
} hows[] = {
	[PUTS_FAIL] = { "all puts of a rank fail", "fail=1000000,after=150,rank=3" },
	[SOME_FAIL] = { "some puts of a rank fail", "fail=30000,rank=3" },
	[DROPPED] = { "a rank is dropped", "drop=3,after=150" },
	[KILLED] = { "a rank is killed", "delay=2" },
};

struct job {
	struct rig_cfg cfg;
	enum how how;
	bool naps;
};

/* On the board. */
struct meet {
	atomic_int survivors, all;
	double told[RANKS]; /* when each got its error */
};

static void *killer(void *arg)
{
	uint64_t random = *(const uint64_t *)arg;

	usleep((unsigned)(ll_random(&random) % 2000));
	kill(getpid(), SIGKILL);
	return NULL;
}

/*
 * One dispatch and combine, results unchecked. On many cores 28 rounds take less than the kill's delay: a rank that
 * went through them all would be alive, and not masked, when the others check.
 */
static ncclResult_t round_loose(struct rig *rig, const struct job *job, int round)
{
	ncclResult_t rc;
	pthread_t thread;

	if (job->how == KILLED && seat_rank(rig->seat) == LOST && round == FATAL &&
	    pthread_create(&thread, NULL, killer, (void *)(uintptr_t)&job->cfg.data.seed))
		return ncclInternalError;
	if (job->how == KILLED && seat_rank(rig->seat) == LOST && round >= LOOSE - LAST)
		sleep(60);
	rig_nap(rig);
	rc = rig_dispatch(rig, 0, false);
	rig_nap(rig);
	return rc == ncclSuccess ? rig_combine(rig, 0, false) : rc;
}

/* ---- without masks ---- */

static int lose(struct rig *rig, const struct job *job, struct meet *meet)
{
	double end = world_now() + 30;
	ncclResult_t rc = ncclSuccess;
	char text[512];

	for (int i = 0; rc == ncclSuccess && world_now() < end; i++)
		rc = round_loose(rig, job, i);
	meet->told[seat_rank(rig->seat)] = world_now();
	snprintf(text, sizeof(text), "%s", anyEpGetLastError());
	ll_wrong(&rig->verdict, rc != ncclRemoteError && rc != ncclTimeout, "rank %d: returned %s (%s)",
		 seat_rank(rig->seat), ncclGetErrorString(rc), text);
	ll_wrong(&rig->verdict, !strstr(text, "rank "), "rank %d: \"%s\" names no rank", seat_rank(rig->seat), text);
	ll_wrong(&rig->verdict, rig_dispatch(rig, 0, false) != rc || strcmp(text, anyEpGetLastError()) != 0,
		 "rank %d: first \"%s\", then \"%s\"", seat_rank(rig->seat), text, anyEpGetLastError());
	return 0;
}

/* ---- with masks ---- */

static int survive(struct rig *rig, const struct job *job, struct meet *meet)
{
	for (int i = 0; i < LOOSE; i++)
		if (rig_expect(rig, "an operation with a lost rank", round_loose(rig, job, i)))
			return -1;
	rig->active[LOST] = false;
	if (rig_check_mask(rig) || seat_meet(rig->seat, &meet->survivors, RANKS - 1))
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
	struct meet *meet = seat_board(seat);
	int present = job->how == KILLED ? RANKS - 1 : RANKS;
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

struct run {
	struct world_opts opts;
	struct world *world; /* NULL: a new one for the next job */
	int only;	     /* case number; -1: all */
	const char *net;     /* instead of loop, or NULL */
	bool spare;	     /* no rank is killed */
	double timeout;
	int number, passed, failed;
};

/* Errors spread: the first rank to fail tells the others, so nobody waits for its own deadline. */
static double spread(const struct meet *meet, const struct job *job)
{
	double first = 0, last = 0;

	for (int r = 0; r < RANKS; r++) {
		if (job->how == KILLED && r == LOST)
			continue;
		first = first == 0 || meet->told[r] < first ? meet->told[r] : first;
		last = meet->told[r] > last ? meet->told[r] : last;
	}
	return job->cfg.mask ? 0 : last - first;
}

static int run_once(struct run *run, const struct job *job, const char *net, char *text, size_t room)
{
	char ms[16];
	int rc;

	if (!run->world && world_open(&run->opts, &run->world))
		exit(1);
	snprintf(ms, sizeof(ms), "%d", (int)(1000 * run->timeout));
	world_setenv(run->world, "NCCL_EP_TIMEOUT_MS", ms);
	far_set(run->world, job->cfg.per_node, net, 0);
	memset(world_board(run->world), 0, sizeof(struct meet));
	if (job->how == KILLED)
		world_doom(run->world, LOST);
	rc = world_run(run->world, RANKS, lost_job, job, sizeof(*job), 90);
	snprintf(text, room, "%s", world_text(run->world));
	if (!rc && spread(world_board(run->world), job) > 2 * run->timeout) {
		snprintf(text, room, "the last rank got its error %.1f s after the first",
			 spread(world_board(run->world), job));
		rc = -1;
	}
	if (job->how == KILLED || world_lost(run->world)) {
		rc = world_close(run->world) || rc ? -1 : 0;
		run->world = NULL;
		return rc;
	}
	far_set(run->world, job->cfg.per_node, run->net ? run->net : "loop", 0);
	if (!rc && (rc = world_run(run->world, RANKS, sound_job, job, sizeof(*job), 60)))
		snprintf(text, room, "a new group: %s", world_text(run->world));
	return rc;
}

static void run_job(struct run *run, const char *inner, const struct job *job)
{
	char net[FAR_NET_MAX], text[600];
	double start = world_now();
	int number = run->number++, rc;

	if (run->only >= 0 && run->only != number)
		return;
	snprintf(net, sizeof(net), "faulty(%s):%s", inner, hows[job->how].options);
	rc = run_once(run, job, net, text, sizeof(text));
	printf("%s %d %s: %s%s, nodes of %d, %s%s%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ", number,
	       hows[job->how].name, job->cfg.shape.layout == LL_EXPERT_MAJOR ? "em" : "rm",
	       job->cfg.mask ? ", masks" : "", job->cfg.per_node, net, job->naps ? ", naps" : "", rc ? ": " : "",
	       rc ? text : "", world_now() - start);
	fflush(stdout);
	run->passed += !rc;
	run->failed += rc != 0;
}

/* With masks every node is one rank: a rank that only its own node reaches would be neither lost nor present. */
static struct job job_make(enum how how, bool mask, bool naps)
{
	struct job job = { .how = how, .naps = naps };

	job.cfg = (struct rig_cfg){ .handles = 1, .spare = LL_ALL, .mask = mask, .per_node = mask ? 1 : RANKS / 2 };
	job.cfg.shape = (struct ll_shape){ .layout = naps ? LL_RANK_MAJOR : LL_EXPERT_MAJOR,
					   .ranks = RANKS,
					   .experts = 2 * RANKS,
					   .topk = 3,
					   .tmax = 6,
					   .hidden = 128,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 13, .fill = LL_FILL_FULL };
	return job;
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: link_fail [-g] [-c CASE] [-k NET] [-s]\n"
		     "  -g  ranks are processes (default: threads)   -c  only this case\n"
		     "  -k  this transport instead of loop           -s  without killing ranks\n");
	return status;
}

int main(int argc, char **argv)
{
	struct run run = { .opts = { .seats = RANKS, .board = sizeof(struct meet) }, .only = -1 };
	int c;

	while ((c = getopt(argc, argv, "gc:k:sh")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 'g')
			run.opts.processes = true;
		else if (c == 'c')
			run.only = atoi(optarg);
		else if (c == 'k')
			run.net = optarg;
		else if (c == 's')
			run.spare = true;
		else
			return usage(stderr, 2);
	}
	if (optind != argc)
		return usage(stderr, 2);
	run.timeout = run.net ? TIMEOUT_NET : TIMEOUT;
	for (int how = 0; how <= (run.opts.processes && !run.spare ? KILLED : DROPPED); how++)
		for (int i = 0; i < 4; i++) {
			struct job job = job_make((enum how)how, i & 2, i & 1);

			/* If only some puts fail, it is random whom the ranks mask. */
			if (how != SOME_FAIL || !job.cfg.mask)
				run_job(&run, run.net ? run.net : i & 1 ? "loop:unordered=1" : "loop", &job);
		}
	if (run.world && world_close(run.world))
		run.failed++;
	printf("link_fail: %d passed, %d failed; %s\n", run.passed, run.failed,
	       run.opts.processes ? "processes" : "threads");
	return run.failed ? 1 : 0;
}
