/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handle and group destroyed right after launches, without synchronising: destroy waits for them, and their results are
 * right. On the CPU also behind a host function that blocks the stream: a while, and longer than the group's timeout,
 * when destroy is an error that names the rank and the memory stays mapped. Ranks are threads, or processes (-g). Exit
 * status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/host/stream.h"
#include "test/oracle/ht_rig.h"
#include "test/oracle/rig.h"

#define RANKS 2
#define LAUNCHES 20

struct job {
	int late_rank; /* launches only after the others have called destroy */
	unsigned block_us;
	bool too_long; /* the stream is blocked for longer than the group's timeout */
};

static void sleeper(void *us)
{
	usleep((unsigned)(uintptr_t)us);
}

/* Operations of a stream start after everything that was enqueued before them. */
static int block(struct shim *shim, const struct job *job)
{
	struct ep_host_stream_head *head = ep_host_stream_head(shim->stream);

	if (!job->block_us)
		return 0;
	return head ? head->enqueue(shim->stream, sleeper, (void *)(uintptr_t)job->block_us) : -1;
}

static void destroyed(const struct job *job, ncclResult_t rc, double seconds, struct ll_verdict *verdict)
{
	const char *text = anyEpGetLastError();

	if (!job->too_long) {
		ll_wrong(verdict, rc != ncclSuccess, "ncclEpGroupDestroy: %s: %s", ncclGetErrorString(rc), text);
		ll_wrong(verdict, seconds > 20, "ncclEpGroupDestroy took %.1f s", seconds);
		return;
	}
	/* Both streams are blocked, so every rank times out itself or is told by the other. */
	ll_wrong(verdict, rc != ncclTimeout && rc != ncclRemoteError, "ncclEpGroupDestroy: %s", ncclGetErrorString(rc));
	ll_wrong(verdict, !strstr(text, "operations have not ended") || !strstr(text, "rank "), "message: %s", text);
	ll_wrong(verdict, seconds > 1.4, "ncclEpGroupDestroy took %.1f s", seconds);
}

static int ll_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .own_stream = true };
	struct rig rig;
	double start;

	cfg.shape = (struct ll_shape){ .layout = LL_EXPERT_MAJOR,
				       .ranks = RANKS,
				       .experts = 4 * RANKS,
				       .topk = 4,
				       .tmax = 64,
				       .hidden = 4096,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL, .route = LL_ROUTE_UNIFORM };
	if (rig_open(&rig, seat, &cfg) || rig_load(&rig, 0) || rig_update(&rig, 0) || rig_sync(&rig) ||
	    block(&rig.shim, job))
		goto close;
	usleep(seat_rank(seat) == job->late_rank ? 100000 : 0);
	for (int i = 0; i < LAUNCHES; i++)
		if (rig_expect(&rig, "ncclEpDispatch", rig_dispatch(&rig, 0, false)))
			goto close;
	start = world_now();
	rig_expect(&rig, "ncclEpHandleDestroy", ncclEpHandleDestroy(rig.handle[0].handle));
	rig.handle[0].handle = NULL;
	destroyed(job, ncclEpGroupDestroy(rig.group), world_now() - start, &rig.verdict);
	rig.group = NULL;
	/* After a timeout the operations still run, over memory that is there, and may have been aborted. */
	usleep(job->too_long ? job->block_us : 0);
	if (!rig_sync(&rig) && !job->too_long)
		rig_check_rows(&rig, 0);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

static int ht_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht_cfg cfg = { .handles = 1, .counters = 32, .spare = LL_ALL, .own_stream = true, .tell_topk = true };
	struct ht_rig rig = { .seat = seat };
	double start;

	cfg.shape = (struct ht_shape){ .base = { .ranks = RANKS,
						 .experts = 4 * RANKS,
						 .topk = 4,
						 .tmax = 64,
						 .hidden = 4096,
						 .token = NUM_BF16,
						 .combine = NUM_BF16 } };
	cfg.data = (struct ll_data){ .seed = 5, .fill = LL_FILL_FULL, .route = LL_ROUTE_UNIFORM };
	cfg.shape.capacity = 1024;
	if (ht_open(&rig, seat, &cfg) || ht_script(&rig, "UA") || ht_load(&rig, 0, HT_DISPATCH) || ht_sync(&rig) ||
	    block(&rig.shim, job))
		goto close;
	usleep(seat_rank(seat) == job->late_rank ? 100000 : 0);
	for (int i = 0; i < LAUNCHES; i++)
		if (ht_expect(&rig, "ncclEpDispatch", ht_call(&rig, 0, HT_DISPATCH, false)))
			goto close;
	start = world_now();
	ht_expect(&rig, "ncclEpHandleDestroy", ncclEpHandleDestroy(rig.handle[0].handle));
	rig.handle[0].handle = NULL;
	destroyed(job, ncclEpGroupDestroy(rig.group), world_now() - start, &rig.verdict);
	rig.group = NULL;
	usleep(job->too_long ? job->block_us : 0);
	if (!ht_sync(&rig) && !job->too_long)
		ht_check(&rig, 0, HT_DISPATCH);
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

static const struct run {
	const char *name;
	world_fn fn;
	bool cpu; /* only there */
	struct job job;
} runs[] = {
	{ "ll, at once", ll_job, false, { .late_rank = -1 } },
	{ "ll, rank 0 late", ll_job, false, { .late_rank = 0 } },
	{ "ll, rank 1 late", ll_job, false, { .late_rank = 1 } },
	{ "ht, at once", ht_job, false, { .late_rank = -1 } },
	{ "ht, rank 0 late", ht_job, false, { .late_rank = 0 } },
	{ "ht, rank 1 late", ht_job, false, { .late_rank = 1 } },
	{ "ll, blocked", ll_job, true, { .late_rank = -1, .block_us = 300000 } },
	{ "ht, blocked", ht_job, true, { .late_rank = -1, .block_us = 300000 } },
	{ "ll, blocked too long", ll_job, true, { .late_rank = -1, .block_us = 1500000, .too_long = true } },
	{ "ht, blocked too long", ht_job, true, { .late_rank = -1, .block_us = 1500000, .too_long = true } },
};

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: destroy_running [-t | -g]\n  -t  ranks are threads (default)   -g  ranks are processes\n");
	return status;
}

int main(int argc, char **argv)
{
	const char *device = getenv("NCCL_EP_DEVICE");
	bool gpu = device && !strcmp(device, "cuda");
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	int c, passed = 0, failed = 0;

	while ((c = getopt(argc, argv, "tgh")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c != 't' && c != 'g')
			return usage(stderr, 2);
		opts.processes = c == 'g';
	}
	if (optind != argc)
		return usage(stderr, 2);
	if (world_open(&opts, &world))
		return 1;
	for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
		const struct run *run = &runs[i];
		int rc;

		if (gpu && run->cpu)
			continue;
		world_setenv(world, "NCCL_EP_TIMEOUT_MS", run->job.too_long ? "500" : "30000");
		if ((rc = world_run(world, RANKS, run->fn, &run->job, sizeof(run->job), 60)))
			printf("FAILED %s: %s\n", run->name, world_text(world));
		passed += !rc;
		failed += rc != 0;
	}
	failed += world_close(world) != 0;
	printf("destroy_running: %d passed, %d failed; %s\n", passed, failed, opts.processes ? "processes" : "threads");
	return failed ? 1 : 0;
}
