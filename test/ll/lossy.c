/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts that fail at random in the middle of operations, for many seeds, with masks and without. An operation may fail,
 * or mask ranks; a rank whose call returned ncclSuccess with all ranks in its mask has exactly the oracle's rows and
 * sums. The data of every round are new: a row that never arrived would otherwise look like the last round's. Exit
 * status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define ROUNDS 24

struct job {
	struct rig_cfg cfg;
};

/* On the board. */
struct meet {
	atomic_int all, ended, checked; /* ended: ranks that got an error, or masked another */
};

static ncclResult_t round_update(struct rig *rig)
{
	struct rig_tensor idx;

	rig_tensor(rig, 0, RIG_IDX, &idx);
	return ncclEpUpdateHandle(rig->handle[0].handle, &idx.t, NULL, rig->shim.stream);
}

/* Whether the result counts: no error, and nobody is masked here. */
static bool op_counts(struct rig *rig, ncclResult_t rc)
{
	int mask[RANKS] = { 1, 1, 1, 1 };

	if (rc == ncclSuccess && rig->cfg.mask)
		rc = ncclEpMaskQuery(rig->group, mask, rig->shim.stream);
	return rc == ncclSuccess && mask[0] && mask[1] && mask[2] && mask[3];
}

/* False: this rank has seen a fault, and what follows is undefined. */
static bool round_checked(struct rig *rig, struct meet *meet)
{
	if (rig_load(rig, 0) || round_update(rig) != ncclSuccess || !op_counts(rig, rig_dispatch(rig, 0, false)) ||
	    rig_check_rows(rig, 0) || rig_answer(rig, 0))
		return false;
	meet->checked++;
	if (!op_counts(rig, rig_combine(rig, 0, false)) || rig_check_sums(rig, 0))
		return false;
	meet->checked++;
	return true;
}

static int lossy_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct meet *meet = seat_board(seat);
	struct rig rig;
	int round = 0;

	if (!rig_open(&rig, seat, &job->cfg)) {
		rig.parted = true;
		while (round < ROUNDS && round_checked(&rig, meet))
			round++;
		meet->ended += round < ROUNDS;
		if (!seat_failed(seat))
			seat_meet(seat, &meet->all, RANKS);
	}
	rig_close(&rig);
	return rig_tell(&rig);
}

/* With masks every node is one rank, as in link_fail. */
static struct job job_make(uint64_t seed, bool mask)
{
	struct job job = { .cfg = { .handles = 1, .spare = LL_ALL, .mask = mask, .per_node = mask ? 1 : RANKS / 2 } };

	job.cfg.shape = (struct ll_shape){ .layout = seed % 2 ? LL_RANK_MAJOR : LL_EXPERT_MAJOR,
					   .ranks = RANKS,
					   .experts = 2 * RANKS,
					   .topk = 3,
					   .tmax = 6,
					   .hidden = 128,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = seed, .fill = LL_FILL_FULL };
	return job;
}

struct run {
	struct world *world;
	const char *inner;
	unsigned rate; /* of a million puts */
	int failed, struck, operations;
};

static void run_seed(struct run *run, uint64_t seed, bool mask)
{
	struct job job = job_make(seed, mask);
	struct meet *meet = world_board(run->world);
	char net[FAR_NET_MAX];

	snprintf(net, sizeof(net), "faulty(%s):seed=%llu,fail=%u,after=8", run->inner, (unsigned long long)seed,
		 run->rate);
	far_set(run->world, job.cfg.per_node, net, 0);
	*meet = (struct meet){ 0 };
	if (world_run(run->world, RANKS, lossy_job, &job, sizeof(job), 60)) {
		printf("FAILED %s%s: %s\n", net, mask ? ", masks" : "", world_text(run->world));
		run->failed++;
	}
	run->struck += meet->ended > 0;
	run->operations += meet->checked;
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ll_lossy [-g] [-s FIRST] [-n SEEDS] [-f RATE] [-k NET]\n"
		     "  -g  ranks are processes (default: threads)   -k  this transport instead of loop\n"
		     "  -s, -n  seeds (40 from 1)   -f  puts that fail, of a million (3000)\n");
	return status;
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS, .board = sizeof(struct meet) };
	struct run run = { .inner = "loop", .rate = 3000 };
	double start = world_now();
	int c, first = 1, seeds = 40;

	while ((c = getopt(argc, argv, "gs:n:f:k:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 'g')
			opts.processes = true;
		else if (c == 's')
			first = atoi(optarg);
		else if (c == 'n')
			seeds = atoi(optarg);
		else if (c == 'f')
			run.rate = (unsigned)atoi(optarg);
		else if (c == 'k')
			run.inner = optarg;
		else
			return usage(stderr, 2);
	}
	if (optind != argc || seeds < 1)
		return usage(stderr, 2);
	setenv("NCCL_EP_TIMEOUT_MS", "200", 0);
	if (world_open(&opts, &run.world))
		return 1;
	for (int mask = 0; mask < 2; mask++)
		for (int i = 0; i < seeds; i++)
			run_seed(&run, (uint64_t)(first + i), mask);
	printf("ll_lossy: %d runs, %d struck, %d failed, %d operations checked, %.1f s\n", 2 * seeds, run.struck,
	       run.failed, run.operations, world_now() - start);
	/* Without faults, or with nothing checked, it would prove nothing. */
	return world_close(run.world) || run.failed || run.struck < seeds / 2 || run.operations < 10 * seeds ? 1 : 0;
}
