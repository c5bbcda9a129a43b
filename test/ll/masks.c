/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that stops for longer than the deadline (by SIGSTOP, so ranks are processes). With masks the others continue
 * with correct sums of what arrived, see the async error, and include the rank again after ncclEpMaskClean; without
 * masks they get an error that names it. And masks set by ncclEpMaskUpdate. Exit status 0 or 1.
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
#define VICTIM (RANKS - 1)

enum when { BEFORE_DISPATCH, BEFORE_COMBINE, IN_COMPLETE };

struct job {
	struct rig_cfg cfg;
	enum when when;
	bool wake_first; /* before the others clear their masks, else after */
	double timeout;	 /* seconds */
	pid_t victim;
};

/* On the board. */
struct meet {
	pid_t pid[RANKS];
	atomic_int survivors[2], all[2], dispatched, timeouts, woken;
};

static void is_answer(struct rig *rig, const char *what, ncclResult_t want, ncclResult_t got)
{
	ll_wrong(&rig->verdict, got != want, "rank %d: %s returned %s, must be %s (%s)", seat_rank(rig->seat), what,
		 ncclGetErrorString(got), ncclGetErrorString(want), anyEpGetLastError());
}

static void flag_is(struct rig *rig, int want)
{
	int got = -1;

	is_answer(rig, "ncclEpGetAsyncError", ncclSuccess, ncclEpGetAsyncError(rig->group, &got));
	ll_wrong(&rig->verdict, got != want, "rank %d: ncclEpGetAsyncError gives %d, must be %d", seat_rank(rig->seat),
		 got, want);
}

/* ---- with masks ---- */

/* The operation in which the victim does not respond. */
static int survive(struct rig *rig, const struct job *job, struct meet *meet)
{
	double start = world_now();

	rig->async = ANYEP_ASYNC_TIMEOUT;
	if (job->when == BEFORE_DISPATCH) {
		rig->active[VICTIM] = false;
		if (rig_script(rig, "DA CA"))
			return -1;
	} else if (job->when == BEFORE_COMBINE) {
		rig->async = 0;
		if (rig_script(rig, "DA") || seat_meet(rig->seat, &meet->dispatched, RANKS))
			return -1;
		rig->active[VICTIM] = false;
		rig->async = ANYEP_ASYNC_TIMEOUT;
		start = world_now();
		if (rig_script(rig, "CA"))
			return -1;
	} else {
		rig->active[VICTIM] = false;
		if (rig_script(rig, "dA xA cA xA"))
			return -1;
	}
	/* One deadline per operation, not per wait; a send half and a receive half have one each. */
	ll_wrong(&rig->verdict, world_now() - start > 3.5 * job->timeout, "rank %d: %.1f s for a deadline of %.1f s",
		 seat_rank(rig->seat), world_now() - start, job->timeout);
	ll_wrong(&rig->verdict, world_now() - start < 0.5 * job->timeout, "rank %d: masked after %.2f s of %.1f",
		 seat_rank(rig->seat), world_now() - start, job->timeout);
	return 0;
}

static int survivor(struct rig *rig, const struct job *job, struct meet *meet)
{
	double start;

	if (survive(rig, job, meet) || rig_check_mask(rig))
		return -1;
	is_answer(rig, "ncclEpErrorClear", ncclSuccess, ncclEpErrorClear(rig->group));
	flag_is(rig, 0);
	rig->async = 0;
	start = world_now();
	rig_set_round(rig, 50);
	for (int i = 0; i < 3; i++)
		if (rig_script(rig, i % 2 ? "dA DB xA CB CA" : "DA CA"))
			return -1;
	ll_wrong(&rig->verdict, world_now() - start > job->timeout, "rank %d: waits for a masked rank",
		 seat_rank(rig->seat));
	if (seat_meet(rig->seat, &meet->survivors[0], RANKS - 1))
		return -1;
	if (job->wake_first && seat_rank(rig->seat) == 0)
		kill(meet->pid[VICTIM], SIGCONT);
	if (job->wake_first && seat_meet(rig->seat, &meet->all[0], RANKS))
		return -1;
	is_answer(rig, "ncclEpMaskClean", ncclSuccess, ncclEpMaskClean(rig->group, rig->shim.stream));
	rig->active[VICTIM] = true;
	if (rig_sync(rig) || rig_check_mask(rig) || seat_meet(rig->seat, &meet->survivors[1], RANKS - 1))
		return -1;
	if (!job->wake_first && seat_rank(rig->seat) == 0)
		kill(meet->pid[VICTIM], SIGCONT);
	return 0;
}

static int victim(struct rig *rig, const struct job *job, struct meet *meet)
{
	/* It stops together with its engine, which may still have to send what the others need. */
	if (job->when == BEFORE_COMBINE && (rig_script(rig, "DA") || seat_meet(rig->seat, &meet->dispatched, RANKS)))
		return -1;
	raise(SIGSTOP);
	/* Awake again. */
	if (job->wake_first)
		return seat_meet(rig->seat, &meet->all[0], RANKS);
	if (job->when == BEFORE_COMBINE) {
		is_answer(rig, "Combine of a delayed rank", ncclRemoteError, rig_combine(rig, 0, false));
		is_answer(rig, "ncclEpErrorClear", ncclSuccess, ncclEpErrorClear(rig->group));
	}
	return 0;
}

static int masked_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct meet *meet = seat_board(seat);
	struct rig rig;

	meet->pid[seat_rank(seat)] = getpid();
	if (rig_open(&rig, seat, &job->cfg) || rig_script(&rig, "DA CA") || rig_check_mask(&rig) || seat_barrier(seat))
		goto close;
	rig_set_round(&rig, 10);
	if (seat_rank(seat) == VICTIM ? victim(&rig, job, meet) : survivor(&rig, job, meet))
		goto close;
	if (seat_meet(seat, &meet->all[1], RANKS))
		goto close;
	/* The delayed rank takes part again. */
	rig.async = seat_rank(seat) == VICTIM ? -1 : 0;
	rig_set_round(&rig, 100);
	for (int i = 0; i < 4; i++)
		if (rig_script(&rig, i % 2 ? "dA DB xA CB cA xA" : "DA DB CA CB"))
			goto close;
	rig_check_mask(&rig);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ---- stopped in the middle of an operation ---- */

#define LOOSE 200 /* rounds during which the rank is stopped: their results are undefined */
#define STOP 20
#define LAST 4 /* minimum rounds after the stop */

static void *stopper(void *arg)
{
	const struct job *job = arg;
	uint64_t random = job->cfg.data.seed;

	usleep((unsigned)(ll_random(&random) % 2000));
	kill(job->victim, SIGSTOP);
	return NULL;
}

/* Operations with unchecked results; the victim ends them when it was woken. */
static int loose_rounds(struct rig *rig, const struct job *job, struct meet *meet)
{
	bool is_victim = seat_rank(rig->seat) == VICTIM;
	struct job mine = *job;
	bool started = false, stopped = false;
	pthread_t thread;
	int rc = 0;

	mine.victim = meet->pid[VICTIM];
	for (int i = 0; i < LOOSE && !rc && !(is_victim && atomic_load(&meet->woken)); i++) {
		if (seat_rank(rig->seat) == 0 && i == STOP)
			started = !pthread_create(&thread, NULL, stopper, &mine);
		/* On a busy machine the stop may come late: wait for it, and with us the others. */
		if (started && i == LOOSE - LAST) {
			pthread_join(thread, NULL);
			stopped = true;
		}
		rc = rig_dispatch(rig, 0, false) || rig_combine(rig, 0, false);
	}
	if (started && !stopped)
		pthread_join(thread, NULL);
	else if (!started && seat_rank(rig->seat) == 0)
		return seat_fail(rig->seat, "no rank was stopped: %s", anyEpGetLastError());
	/* The masked rank may get an error; the others must not. */
	if (rc && !is_victim)
		return seat_fail(rig->seat, "%s", anyEpGetLastError());
	return 0;
}

static int in_flight_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct meet *meet = seat_board(seat);
	struct rig rig;

	meet->pid[seat_rank(seat)] = getpid();
	if (rig_open(&rig, seat, &job->cfg) || rig_script(&rig, "DA CA") || rig_load(&rig, 0) || rig_update(&rig, 0) ||
	    seat_barrier(seat) || loose_rounds(&rig, job, meet))
		goto close;
	if (seat_rank(seat) != VICTIM) {
		rig.active[VICTIM] = false;
		if (rig_check_mask(&rig) || seat_meet(seat, &meet->survivors[0], RANKS - 1))
			goto close;
		is_answer(&rig, "ncclEpErrorClear", ncclSuccess, ncclEpErrorClear(rig.group));
		rig_set_round(&rig, 50);
		for (int i = 0; i < 60; i++) {
			/* The victim wakes during these and continues its interrupted writes. */
			if (i == 20 && seat_rank(seat) == 0) {
				atomic_store(&meet->woken, 1);
				kill(meet->pid[VICTIM], SIGCONT);
			}
			if (rig_script(&rig, "DA CA"))
				goto close;
		}
	}
	if (seat_meet(seat, &meet->all[0], RANKS))
		goto close;
	if (seat_rank(seat) != VICTIM) {
		is_answer(&rig, "ncclEpMaskClean", ncclSuccess, ncclEpMaskClean(rig.group, rig.shim.stream));
		rig.active[VICTIM] = true;
	} else {
		is_answer(&rig, "ncclEpErrorClear", ncclSuccess, ncclEpErrorClear(rig.group));
	}
	if (rig_sync(&rig) || seat_meet(seat, &meet->all[1], RANKS))
		goto close;
	rig_set_round(&rig, 200);
	for (int i = 0; i < 5; i++)
		if (rig_script(&rig, i % 2 ? "DA CA" : "dA DB xA CA CB"))
			goto close;
	rig_check_mask(&rig);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ncclEpMaskUpdate: no wait for the masked rank, no async error, and ncclEpMaskClean includes it again. */
static int by_hand_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct meet *meet = seat_board(seat);
	int mask[RANKS] = { 1, 1, 1, 1 };
	double start;
	struct rig rig;

	mask[VICTIM] = 0;
	if (rig_open(&rig, seat, &job->cfg) || rig_script(&rig, "DA CA") || seat_barrier(seat))
		goto close;
	if (seat_rank(seat) != VICTIM) {
		is_answer(&rig, "ncclEpMaskUpdate", ncclSuccess, ncclEpMaskUpdate(rig.group, mask, rig.shim.stream));
		rig.active[VICTIM] = false;
		start = world_now();
		rig_set_round(&rig, 20);
		if (rig_check_mask(&rig) || rig_script(&rig, "DA CA") || rig_script(&rig, "dA dB xA xB CA CB"))
			goto close;
		ll_wrong(&rig.verdict, world_now() - start > job->timeout, "rank %d: waits for a masked rank",
			 seat_rank(seat));
		flag_is(&rig, 0);
		is_answer(&rig, "ncclEpMaskClean", ncclSuccess, ncclEpMaskClean(rig.group, rig.shim.stream));
		rig.active[VICTIM] = true;
	}
	if (seat_meet(seat, &meet->all[0], RANKS))
		goto close;
	rig_set_round(&rig, 100);
	for (int i = 0; i < 3; i++)
		if (rig_script(&rig, "DA CA"))
			goto close;
	rig_check_mask(&rig);
	mask[0] = 7;
	is_answer(&rig, "a mask of 7", ncclInvalidArgument, ncclEpMaskUpdate(rig.group, mask, rig.shim.stream));
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* The operation that the victim no longer makes, which only rank 0 waits for: it begins to do so a little later. */
static int split_operation(struct rig *rig, const struct job *job)
{
	if (rig_dispatch(rig, 0, true))
		return -1;
	if (seat_rank(rig->seat) == 0)
		usleep((unsigned)(0.03e6 * job->timeout));
	return rig_complete(rig, 0) || rig_combine(rig, 0, false);
}

/* Ranks 1 and 2 have masked the victim, and it them, long ago; rank 0 has not. When it falls silent, rank 0 masks it at
 * the deadline, and the others, who wait for rank 0 meanwhile, must not mask that. */
static int split_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct meet *meet = seat_board(seat);
	int rank = seat_rank(seat), mask[RANKS] = { 1, rank != VICTIM, rank != VICTIM, rank == 0 || rank == VICTIM };
	struct rig rig;

	if (rig_open(&rig, seat, &job->cfg) || rig_script(&rig, "DA CA") || rig_load(&rig, 0) || rig_update(&rig, 0) ||
	    seat_barrier(seat))
		goto close;
	is_answer(&rig, "ncclEpMaskUpdate", ncclSuccess, ncclEpMaskUpdate(rig.group, mask, rig.shim.stream));
	if (rig_sync(&rig) || seat_barrier(seat))
		goto close;
	for (int i = 0; i < LOOSE; i++)
		if (rig_dispatch(&rig, 0, false) || rig_combine(&rig, 0, false))
			goto fail;
	if (rank != VICTIM) {
		if (split_operation(&rig, job))
			goto fail;
		rig.active[VICTIM] = false;
		rig_check_mask(&rig);
	}
	seat_meet(seat, &meet->all[0], RANKS);
	goto close;
fail:
	seat_fail(seat, "%s", anyEpGetLastError());
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ---- without masks ---- */

static void is_lost(struct rig *rig, struct meet *meet, ncclResult_t got, const char *message)
{
	char name[32];
	int flag = -1;

	snprintf(name, sizeof(name), "rank %d", VICTIM);
	ll_wrong(&rig->verdict, got != ncclTimeout && got != ncclRemoteError, "rank %d: returned %s, must be a timeout",
		 seat_rank(rig->seat), ncclGetErrorString(got));
	ll_wrong(&rig->verdict, got == ncclTimeout && !strstr(message, name), "rank %d: \"%s\" does not name %s",
		 seat_rank(rig->seat), message, name);
	atomic_fetch_add(&meet->timeouts, got == ncclTimeout);
	is_answer(rig, "ncclEpGetAsyncError", ncclSuccess, ncclEpGetAsyncError(rig->group, &flag));
	ll_wrong(&rig->verdict, flag != ANYEP_ASYNC_TIMEOUT && flag != ANYEP_ASYNC_REMOTE,
		 "rank %d: ncclEpGetAsyncError gives %d", seat_rank(rig->seat), flag);
	is_answer(rig, "ncclEpErrorClear of a lost group", ncclInvalidUsage, ncclEpErrorClear(rig->group));
}

static int lost_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct meet *meet = seat_board(seat);
	char message[512];
	ncclResult_t rc;
	double start;
	struct rig rig;

	meet->pid[seat_rank(seat)] = getpid();
	if (rig_open(&rig, seat, &job->cfg) || rig_script(&rig, "DA CA") || rig_load(&rig, 0) || rig_update(&rig, 0) ||
	    seat_barrier(seat))
		goto close;
	if (seat_rank(seat) == VICTIM)
		raise(SIGSTOP);
	start = world_now();
	rc = rig_dispatch(&rig, 0, false);
	if (rc == ncclSuccess) { /* on a GPU the next call reports the failure */
		rig_sync(&rig);
		rc = rig_dispatch(&rig, 0, false);
	}
	snprintf(message, sizeof(message), "%s", anyEpGetLastError());
	ll_wrong(&rig.verdict, world_now() - start > 2.5 * job->timeout, "rank %d: an error after %.1f s",
		 seat_rank(seat), world_now() - start);
	is_lost(&rig, meet, rc, message);
	is_answer(&rig, "Dispatch on a lost group", rc, rig_dispatch(&rig, 0, false));
	if (seat_rank(seat) != VICTIM && seat_meet(seat, &meet->survivors[0], RANKS - 1))
		goto close;
	if (seat_rank(seat) == 0) {
		ll_wrong(&rig.verdict, atomic_load(&meet->timeouts) == 0,
			 "no rank got a timeout that names the late rank");
		kill(meet->pid[VICTIM], SIGCONT);
	}
	seat_meet(seat, &meet->all[0], RANKS);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ---- */

struct run {
	struct world *world;
	struct world_opts opts;
	double timeout;
	int repeats, passed, failed;
};

static void run_job(struct run *run, const char *name, world_fn fn, const struct job *job)
{
	double start = world_now();
	int rc;

	memset(world_board(run->world), 0, sizeof(struct meet));
	rc = world_run(run->world, RANKS, fn, job, sizeof(*job), 120);
	printf("%s %s %s%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ",
	       job->cfg.shape.layout == LL_EXPERT_MAJOR ? "em" : "rm", name, rc ? ": " : "",
	       rc ? world_text(run->world) : "", world_now() - start);
	fflush(stdout);
	run->passed += !rc;
	run->failed += rc != 0;
	if (!rc)
		return;
	/* The next case starts with new ranks. */
	for (int r = 0; r < RANKS; r++)
		kill(world_pid(run->world, r), SIGCONT);
	world_close(run->world);
	if (world_open(&run->opts, &run->world))
		exit(1);
}

static void run_layout(struct run *run, enum ll_layout layout)
{
	static const struct {
		const char *name;
		enum when when;
		bool wake_first;
	} cases[] = {
		{ "stops before a dispatch, wakes before the clean", BEFORE_DISPATCH, true },
		{ "stops before a dispatch, wakes after the clean", BEFORE_DISPATCH, false },
		{ "stops before a combine, wakes before the clean", BEFORE_COMBINE, true },
		{ "stops before a combine, wakes after the clean", BEFORE_COMBINE, false },
		{ "stops before a staged dispatch", IN_COMPLETE, true },
	};
	struct job job = { .timeout = run->timeout, .cfg = { .handles = 2, .spare = LL_ALL, .mask = true } };

	job.cfg.shape = (struct ll_shape){ .layout = layout,
					   .ranks = RANKS,
					   .experts = 8,
					   .topk = 3,
					   .tmax = 6,
					   .hidden = 512,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		job.when = cases[i].when;
		job.wake_first = cases[i].wake_first;
		run_job(run, cases[i].name, masked_job, &job);
	}
	for (int i = 0; i < run->repeats; i++) {
		job.cfg.data.seed++;
		run_job(run, "stops during an operation", in_flight_job, &job);
	}
	run_job(run, "masks by hand", by_hand_job, &job);
	run_job(run, "silent for one rank, masked by the others long ago", split_job, &job);
	job.cfg.mask = false;
	run_job(run, "stops without masks", lost_job, &job);
}

static int usage(FILE *out, int status)
{
	fprintf(out,
		"usage: ll_masks [-T SECONDS] [-n COUNT] [-N NODES [-k NET]]\n"
		"  -T  deadline of every operation (1.5)\n"
		"  -n  stops during an operation, per layout (3)\n"
		"  -N  simulated nodes (1)   -k  transport between them: loop, unordered, faulty or as NCCL_EP_NET\n");
	return status;
}

int main(int argc, char **argv)
{
	struct run run = { .opts = { .seats = RANKS, .processes = true, .board = sizeof(struct meet) },
			   .timeout = 1.5 };
	const char *net = "loop";
	char ms[32];
	int c, nodes = 1;

	run.repeats = 3;
	while ((c = getopt(argc, argv, "T:n:N:k:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 'T')
			run.timeout = atof(optarg);
		else if (c == 'n')
			run.repeats = atoi(optarg);
		else if (c == 'N')
			nodes = atoi(optarg);
		else if (c == 'k')
			net = optarg;
		else
			return usage(stderr, 2);
	}
	if (optind != argc || run.timeout <= 0 || !far_splits(RANKS, nodes))
		return usage(stderr, 2);
	far_set(NULL, far_split(RANKS, nodes), net, 1);
	snprintf(ms, sizeof(ms), "%d", (int)(1000 * run.timeout));
	setenv("NCCL_EP_TIMEOUT_MS", ms, 1);
	if (world_open(&run.opts, &run.world))
		return 1;
	for (int layout = 0; layout < 2; layout++)
		run_layout(&run, (enum ll_layout)layout);
	if (world_close(run.world))
		run.failed++;
	printf("ll_masks: %d passed, %d failed\n", run.passed, run.failed);
	return run.failed ? 1 : 0;
}
