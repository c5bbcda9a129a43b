/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT across simulated nodes, when a rank's puts fail, all or some, when its link is cut, or when (with -g) it is killed
 * in the middle of operations. Until then every result is the oracle's, and so is that of every call that succeeds
 * later; data of every round are new, since a row that never arrived would otherwise look like the last round's. Then
 * every rank gets an error in time that names a rank, also those of nodes that the lost rank relays for; nothing hangs,
 * and a new group works. Exit status 0 or 1.
 */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"

#define RANKS 4
#define FATAL 5		/* the round in which a rank is killed */
#define ROUNDS 2000	/* at most */
#define TIMEOUT 1.5	/* seconds; longer with a real transport, whose threads double the load: */
#define TIMEOUT_NET 3.0 /* (connecting over tcp takes a second) */
#define LATE 1.0	/* what an error may come later */

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

/* On the board. */
struct meet {
	atomic_int all, checked;
	double told[RANKS]; /* when each got its error */
};

static void *killer(void *arg)
{
	uint64_t random = *(const uint64_t *)arg;

	usleep((unsigned)(ll_random(&random) % 1500));
	kill(getpid(), SIGKILL);
	return NULL;
}

static int kill_soon(struct ht_rig *rig, const struct job *job)
{
	static uint64_t seed;
	pthread_t thread;

	seed = job->cfg.data.seed;
	return pthread_create(&thread, NULL, killer, &seed) ? seat_fail(rig->seat, "no thread") : 0;
}

/* Update, dispatch and combine, forward and backward in turn. */
static ncclResult_t round_checked(struct ht_rig *rig, struct meet *meet, int round)
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

static void lose(struct ht_rig *rig, const struct job *job, struct meet *meet)
{
	double end = world_now() + 30;
	ncclResult_t rc = ncclSuccess;
	int rank = seat_rank(rig->seat);
	struct ht_args args;
	char text[512];

	for (int i = 0; rc == ncclSuccess && i < ROUNDS && world_now() < end; i++) {
		if (job->how == KILLED && rank == job->lost && i == FATAL && kill_soon(rig, job))
			return;
		rc = round_checked(rig, meet, i);
	}
	meet->told[rank] = world_now();
	if (job->how == KILLED && rank == job->lost)
		sleep(60); /* for the kill */
	snprintf(text, sizeof(text), "%s", anyEpGetLastError());
	ll_wrong(&rig->verdict, rc != ncclRemoteError && rc != ncclTimeout, "rank %d: returned %s (%s)", rank,
		 ncclGetErrorString(rc), text);
	ll_wrong(&rig->verdict, !strstr(text, "rank "), "rank %d: \"%s\" names no rank", rank, text);
	ll_wrong(&rig->verdict, hows[job->how].named && rank != job->lost && !names(text, job->lost),
		 "rank %d: \"%s\" does not name rank %d", rank, text, job->lost);
	ht_args(rig, 0, HT_DISPATCH, &args);
	ll_wrong(&rig->verdict,
		 ht_call_with(rig, 0, HT_DISPATCH, &args) != rc || strcmp(text, anyEpGetLastError()) != 0,
		 "rank %d: first \"%s\", then \"%s\"", rank, text, anyEpGetLastError());
}

static int lost_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct meet *meet = seat_board(seat);
	struct ht_rig rig;

	if (!ht_open(&rig, seat, &job->cfg) && !seat_barrier(seat)) {
		rig.parted = true;
		lose(&rig, job, meet);
		if (!seat_failed(seat))
			seat_meet(seat, &meet->all, job->how == KILLED ? RANKS - 1 : RANKS);
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

struct run {
	struct world_opts opts;
	struct world *world; /* NULL: a new one for the next job */
	int only;	     /* case number; -1: all */
	const char *net;     /* instead of loop, or NULL */
	bool spare;	     /* no rank is killed */
	double timeout;
	int number, passed, failed, checked;
};

/* Errors spread: the first rank to fail tells the others, so nobody waits for its own deadline. */
static double spread(const struct meet *meet, const struct job *job)
{
	double first = 0, last = 0;

	for (int r = 0; r < RANKS; r++) {
		if (job->how == KILLED && r == job->lost)
			continue;
		first = first == 0 || meet->told[r] < first ? meet->told[r] : first;
		last = meet->told[r] > last ? meet->told[r] : last;
	}
	return last - first;
}

static int run_once(struct run *run, const struct job *job, const char *net, char *text, size_t room)
{
	double late;
	char ms[16];
	int rc;

	if (!run->world && world_open(&run->opts, &run->world))
		exit(1);
	snprintf(ms, sizeof(ms), "%d", (int)(1000 * run->timeout));
	world_setenv(run->world, "NCCL_EP_TIMEOUT_MS", ms);
	far_set_nodes(run->world, &job->cfg.shape.nodes, net, 0);
	memset(world_board(run->world), 0, sizeof(struct meet));
	if (job->how == KILLED)
		world_doom(run->world, job->lost);
	rc = world_run(run->world, RANKS, lost_job, job, sizeof(*job), 60);
	snprintf(text, room, "%s", world_text(run->world));
	run->checked += ((struct meet *)world_board(run->world))->checked;
	late = spread(world_board(run->world), job);
	if (!rc && late > run->timeout + LATE) {
		snprintf(text, room, "the last rank got its error %.1f s after the first", late);
		rc = -1;
	}
	if (job->how == KILLED || world_lost(run->world)) {
		rc = world_close(run->world) || rc ? -1 : 0;
		run->world = NULL;
		return rc;
	}
	far_set_nodes(run->world, &job->cfg.shape.nodes, run->net ? run->net : "loop", 0);
	if (!rc && (rc = world_run(run->world, RANKS, sound_job, job, sizeof(*job), 60)))
		snprintf(text, room, "a new group: %s", world_text(run->world));
	return rc;
}

static void run_job(struct run *run, const char *inner, const struct job *job)
{
	unsigned after = 100 + (unsigned)(ll_seed(job->cfg.data.seed, 5, 5) % 1500); /* puts */
	char net[FAR_NET_MAX], sizes[FAR_TEXT_MAX], text[600];
	double start = world_now();
	int number = run->number++, rc;

	if (run->only >= 0 && run->only != number)
		return;
	if (job->how == KILLED)
		snprintf(net, sizeof(net), "faulty(%s):delay=2", inner);
	else
		snprintf(net, sizeof(net), "faulty(%s):%s=%d,after=%u,seed=%u", inner, hows[job->how].options,
			 job->lost, after, (unsigned)job->cfg.data.seed);
	far_text(&job->cfg.shape.nodes, sizes);
	rc = run_once(run, job, net, text, sizeof(text));
	printf("%s %d %s: rank %d, %s, nodes of %s, %s%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ", number,
	       hows[job->how].name, job->lost, job->cfg.shape.expert_major ? "em" : "flat", sizes, net, rc ? ": " : "",
	       rc ? text : "", world_now() - start);
	fflush(stdout);
	run->passed += !rc;
	run->failed += rc != 0;
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
	job.cfg.shape = (struct ht_shape){ .base = { .ranks = RANKS,
						     .experts = 2 * RANKS,
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

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ht_fail [-g] [-c CASE] [-n SEEDS] [-k NET] [-s]\n"
		     "  -g  ranks are processes (default: threads)   -c  only this case   -n  seeds (2)\n"
		     "  -k  this transport instead of loop           -s  without killing ranks\n");
	return status;
}

int main(int argc, char **argv)
{
	struct run run = { .opts = { .seats = RANKS, .board = sizeof(struct meet) }, .only = -1 };
	int c, seeds = 2;

	while ((c = getopt(argc, argv, "gc:n:k:sh")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 'g')
			run.opts.processes = true;
		else if (c == 'c')
			run.only = atoi(optarg);
		else if (c == 'n')
			seeds = atoi(optarg);
		else if (c == 'k')
			run.net = optarg;
		else if (c == 's')
			run.spare = true;
		else
			return usage(stderr, 2);
	}
	if (optind != argc || seeds < 1)
		return usage(stderr, 2);
	run.timeout = run.net ? TIMEOUT_NET : TIMEOUT;
	for (int how = 0; how <= (run.opts.processes && !run.spare ? KILLED : CUT); how++)
		for (int i = 0; i < 4 * seeds; i++) {
			struct job job = job_make((enum how)how, i % 4, i / 4);

			run_job(&run, run.net ? run.net : i & 1 ? "loop:unordered=1" : "loop", &job);
		}
	if (run.world && world_close(run.world))
		run.failed++;
	printf("ht_fail: %d passed, %d failed, %d operations checked; %s\n", run.passed, run.failed, run.checked,
	       run.opts.processes ? "processes" : "threads");
	/* With nothing checked it would prove nothing. */
	return run.failed || (run.only < 0 && run.checked < 50 * seeds) ? 1 : 0;
}
