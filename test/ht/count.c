/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters at dispatch (count mode): through a handle that had no Update of its own, after an Update without counters;
 * and what is refused, with its message. On a GPU also counters in pageable memory and more SMs than there are. Exit
 * status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "test/oracle/ht_rig.h"

#define RANKS 3

struct job {
	struct ht_cfg cfg;
};

static struct ht_cfg cfg_make(int counters, int count, bool pinned)
{
	struct ht_cfg cfg = { .handles = 1,
			      .counters = counters,
			      .count = count,
			      .pinned = pinned,
			      .extra = 2,
			      .spare = LL_ALL,
			      .caller_mem = true,
			      .backward = true,
			      .back_quant = true,
			      .tell_topk = true };

	cfg.shape = (struct ht_shape){ .base = { .quant = LL_QUANT_FWD,
						 .ranks = RANKS,
						 .experts = 5 * RANKS,
						 .topk = 4,
						 .tmax = 20,
						 .hidden = 512,
						 .token = NUM_E4M3,
						 .scale = NUM_U8,
						 .scale_width = 512 / 32,
						 .combine = NUM_BF16 },
				       .expert_major = true,
				       .align = 16 };
	cfg.data = (struct ll_data){ .seed = 71, .fill = LL_FILL_RANDOM, .route = LL_ROUTE_DROPPED };
	return cfg;
}

static int second_open(struct ht_rig *rig, ncclEpHandle_t *out)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	struct ht_tensor mem;

	config.dispatch_output_per_expert_alignment = (size_t)rig->cfg.shape.align;
	ht_tensor(rig, 0, HT_MEM, &mem);
	if (seat_barrier(rig->seat) || ht_expect(rig, "ncclEpInitHandle",
						 ncclEpInitHandle(out, rig->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &config,
								  rig->cfg.shape.base.topk, &mem.t)))
		return -1;
	return seat_barrier(rig->seat);
}

/* Update by one handle, all the rest by another over the same memory. */
static int second_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	ncclEpHandle_t first, second = NULL;
	struct ht_rig rig;

	if (ht_open(&rig, seat, &job->cfg) || second_open(&rig, &second))
		goto close;
	first = rig.handle[0].handle;
	for (int round = 0; round < 6 && !seat_failed(seat); round++) {
		if (ht_script(&rig, "UA"))
			break;
		rig.handle[0].handle = second;
		ht_script(&rig, round % 2 ? "DA CA EA BA" : "EA DA BA DA CA");
		rig.handle[0].handle = first;
	}
	seat_barrier(seat);
	ht_expect(&rig, "ncclEpHandleDestroy", ncclEpHandleDestroy(second));
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

static void refuse(struct ht_rig *rig, const char *what, enum ht_op op, struct ht_args *args, const char *text)
{
	ht_want(rig, what, ncclInvalidArgument, ht_call_with(rig, 0, op, args));
	ll_wrong(&rig->verdict, !strstr(anyEpGetLastError(), text), "%s: the message is \"%s\", lacks \"%s\"", what,
		 anyEpGetLastError(), text);
}

static void counters_refuse(struct ht_rig *rig)
{
	struct ht_args args;
	int64_t here[8];

	ht_args(rig, 0, HT_DISPATCH, &args);
	args.tensor[HT_SENT_TOTAL].t.datatype = ncclInt32;
	refuse(rig, "counters of two widths", HT_DISPATCH, &args, "recv_total_counter");
	ht_args(rig, 0, HT_DISPATCH, &args);
	args.tensor[HT_SENT_OFFSETS].sizes[0] = (size_t)ht_local(&rig->cfg.shape) - 1;
	refuse(rig, "offsets that are too short", HT_DISPATCH, &args, "at least El = 5");
	ht_args(rig, 0, HT_DISPATCH, &args);
	args.tensor[HT_SENT_COUNTS].t.ndim = 2;
	refuse(rig, "counters of two dimensions", HT_DISPATCH, &args, "expert_counters");
	ht_args(rig, 0, HT_DISPATCH_BWD, &args);
	ht_want(rig, "counters in the backward pass", ncclInvalidArgument,
		ncclEpDispatch(rig->handle[0].handle, &args.dispatch_in, &args.dispatch_out, &args.dispatch_info,
			       &args.dispatch, rig->shim.stream));
	if (!shim_is_gpu(&rig->shim))
		return;
	ht_args(rig, 0, HT_DISPATCH, &args);
	args.tensor[HT_SENT_COUNTS].t.data = here;
	refuse(rig, "pageable counters at dispatch", HT_DISPATCH, &args, "cudaHostAlloc");
	ht_args(rig, 0, HT_UPDATE, &args);
	args.tensor[HT_TOTAL].t.data = here;
	refuse(rig, "pageable counters at Update", HT_UPDATE, &args, "cudaHostAlloc");
}

/* A GPU has fewer SMs; the CPU device takes any number. */
static void sms_refuse(struct ht_rig *rig)
{
	ncclResult_t want = shim_is_gpu(&rig->shim) ? ncclInvalidUsage : ncclSuccess;
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	config.num_experts = RANKS;
	config.max_dispatch_tokens_per_rank = config.max_recv_tokens_per_rank = 1;
	config.max_token_bytes = 16;
	for (int i = 0; i < 2; i++) {
		ncclEpGroup_t group = NULL;

		config.dispatch_num_sms = i ? 0 : 60000;
		config.combine_num_sms = i ? 60000 : 0;
		ht_want(rig, "ncclEpCreateGroup with 60000 SMs", want, ncclEpCreateGroup(&group, rig->comm, &config));
		ht_want(rig, "ncclEpGroupDestroy", ncclSuccess, ncclEpGroupDestroy(group));
	}
}

static int refuse_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht_rig rig;

	if (ht_open(&rig, seat, &job->cfg) || ht_script(&rig, "UA DA") || seat_barrier(seat))
		goto close;
	counters_refuse(&rig);
	sms_refuse(&rig);
	ht_script(&rig, "DA CA EA BA UA DA");
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

struct run {
	struct world *world;
	int passed, failed;
};

static void run_job(struct run *run, const char *name, world_fn fn, const struct job *job)
{
	double start = world_now();
	int rc = world_run(run->world, RANKS, fn, job, sizeof(*job), 100);

	printf("%s %s, capacity %d%s%s (%.2f s)\n", rc ? "FAILED" : "ok    ", name, job->cfg.shape.capacity,
	       rc ? ": " : "", rc ? world_text(run->world) : "", world_now() - start);
	fflush(stdout);
	run->passed += !rc;
	run->failed += rc != 0;
}

static void run_all(struct run *run)
{
	struct job job = { .cfg = cfg_make(0, 64, true) };
	int most = ht_bound(&job.cfg.shape);

	run_job(run, "a second handle counts, eager", second_job, &job);
	job.cfg.shape.capacity = most;
	run_job(run, "a second handle counts", second_job, &job);
	job.cfg = cfg_make(64, 32, false);
	job.cfg.overflow = NCCL_EP_OVERFLOW_DROP;
	job.cfg.shape.capacity = most / 6;
	run_job(run, "a second handle counts, rows dropped", second_job, &job);
	job.cfg = cfg_make(64, 64, true);
	job.cfg.shape.capacity = most;
	job.cfg.tall = true; /* all three counters are given */
	run_job(run, "refusals", refuse_job, &job);
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ht_count [-t | -g]\n  -t  ranks are threads (default)   -g  ranks are processes\n");
	return status;
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS };
	struct run run = { 0 };
	int c;

	while ((c = getopt(argc, argv, "tgh")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c != 't' && c != 'g')
			return usage(stderr, 2);
		opts.processes = c == 'g';
	}
	if (optind != argc)
		return usage(stderr, 2);
	if (world_open(&opts, &run.world))
		return 1;
	run_all(&run);
	if (world_close(run.world))
		run.failed++;
	printf("ht_count: %d passed, %d failed; %s\n", run.passed, run.failed,
	       opts.processes ? "processes" : "threads");
	return run.failed ? 1 : 0;
}
