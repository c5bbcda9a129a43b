/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of different layouts and top-k on one group: the window grows for the larger one while the smaller one is in
 * use, then both work side by side, also with staged operations; a window of a size set by the caller never grows.
 * Against the oracle, with threads or processes (-g). Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "test/oracle/rig.h"

#define RANKS 3

struct job {
	enum ll_layout first, second;
	bool mask;
	unsigned long buffer;
};

static struct rig_cfg cfg_make(const struct job *job, enum ll_layout layout, int topk, enum num_type type)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .mask = job->mask, .buffer_bytes = job->buffer };

	cfg.shape = (struct ll_shape){ .layout = layout,
				       .ranks = RANKS,
				       .experts = 4 * RANKS,
				       .topk = topk,
				       .tmax = 7,
				       .hidden = 384,
				       .token = type,
				       .combine = type };
	cfg.data = (struct ll_data){ .seed = 21 + (uint64_t)topk, .fill = LL_FILL_RANDOM, .route = LL_ROUTE_DROPPED };
	cfg.max_token_bytes = 384 * 4;
	return cfg;
}

static void want(struct rig *rig, const char *what, ncclResult_t want, ncclResult_t got)
{
	ll_wrong(&rig->verdict, got != want, "%s returned %s, must be %s (%s)", what, ncclGetErrorString(got),
		 ncclGetErrorString(want), anyEpGetLastError());
}

/* Small and large alternate, with different data, so that a misplaced row is detected. */
static int take_turns(struct rig *small, struct rig *large)
{
	return rig_script(small, "DA") || rig_script(large, "DA") || rig_script(small, "CA") ||
	       rig_script(large, "CA") || rig_script(small, "dA") || rig_script(large, "DA CA") ||
	       rig_script(small, "xA cA") || rig_script(large, "dA xA") || rig_script(small, "xA") ||
	       rig_script(large, "CA");
}

static int grow_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig_cfg cfg = cfg_make(job, job->first, 2, NUM_BF16);
	struct rig small, large = { .seat = seat };
	ncclEpHandle_t handle = NULL;

	if (rig_open(&small, seat, &cfg) || rig_script(&small, "DA CA") || rig_script(&small, "dA"))
		goto close;
	/* A window in use by a staged operation cannot move. */
	want(&small, "a larger handle during a staged operation", ncclInvalidUsage,
	     ncclEpInitHandle(&handle, small.group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 4 * RANKS, NULL));
	if (rig_script(&small, "xA CA") || rig_script(&small, "DA"))
		goto close;
	/* Between a dispatch and its combine it can. */
	cfg = cfg_make(job, job->second, 4 * RANKS, NUM_F32);
	if (rig_join(&large, &small, &cfg) || rig_script(&small, "CA"))
		goto close;
	for (int i = 0; i < 4; i++)
		if (take_turns(&small, &large))
			break;
close:
	if (large.cfg.handles)
		rig_close(&large);
	if (large.verdict.wrong && !small.verdict.wrong)
		small.verdict = large.verdict;
	rig_close(&small);
	return rig_tell(&small);
}

/* Size set by the caller: what fits works, what does not is rejected by each rank without communication. */
static int fixed_job(struct seat *seat, const void *arg)
{
	struct job job = *(const struct job *)arg;
	struct rig_cfg cfg = cfg_make(&job, job.first, 2, NUM_BF16);
	ncclEpHandle_t handle = NULL;
	struct rig rig;

	if (rig_open(&rig, seat, &cfg))
		goto close;
	want(&rig, "a handle too large for rdma_buffer_size", ncclInvalidUsage,
	     seat_rank(seat) == 1 ? ncclInvalidUsage
				  : ncclEpInitHandle(&handle, rig.group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 4096, NULL));
	ll_wrong(&rig.verdict, handle != NULL, "a rejected handle is not NULL");
	for (int i = 0; i < 3; i++)
		if (rig_script(&rig, "DA CA") || rig_script(&rig, "dA xA cA xA"))
			break;
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ll_handles [-t | -g]\n  -t  ranks are threads (default)   -g  ranks are processes\n");
	return status;
}

int main(int argc, char **argv)
{
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
	for (int i = 0; i < 12; i++) {
		struct job job = {
			.first = i & 1, .second = i >> 1 & 1, .mask = i >> 2 & 1, .buffer = i < 8 ? 0 : 1 << 20
		};
		int rc = world_run(world, RANKS, i < 8 ? grow_job : fixed_job, &job, sizeof(job), 200);

		if (rc)
			printf("FAILED %s, %s then %s%s: %s\n", i < 8 ? "grow" : "fixed", job.first ? "rm" : "em",
			       job.second ? "rm" : "em", job.mask ? ", masks" : "", world_text(world));
		passed += !rc;
		failed += rc != 0;
	}
	if (world_close(world))
		failed++;
	printf("ll_handles: %d passed, %d failed; %s\n", passed, failed, opts.processes ? "processes" : "threads");
	return failed ? 1 : 0;
}
