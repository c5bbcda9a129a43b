/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Update, dispatch and combine captured into a graph once and replayed with new tokens and routing; every replay is
 * checked. The experts are a copy from dispatch's output to combine's input. Exit status 0, 1, or 77 if the device has
 * no graphs.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"

#define RANKS 4
#define JOB_SECONDS 300.0
#define SETTLE_US 500000 /* many polls of the mapping thread */

struct job {
	struct ht_cfg cfg;
	char ops[8]; /* letters of operations */
	int replays;
	bool warm;    /* backward operations have run once before the capture */
	bool settled; /* every operation has, and processes have mapped each other's memory */
};

static struct ht_cfg cfg_make(bool expert_major, enum ht_where where, uint64_t seed)
{
	struct ht_cfg cfg = { .handles = 1, .where = where, .spare = LL_ALL, .counters = 32 };

	cfg.shape = (struct ht_shape){ .base = { .ranks = RANKS,
						 .experts = 4 * RANKS,
						 .topk = 3,
						 .tmax = 33,
						 .hidden = 512,
						 .token = NUM_BF16,
						 .combine = NUM_BF16 },
				       .expert_major = expert_major,
				       .align = expert_major ? 8 : 0 };
	cfg.shape.capacity = ht_bound(&cfg.shape);
	/* Token counts and tensor sizes are part of the captured arguments. */
	cfg.data = (struct ll_data){ .seed = seed,
				     .fill = LL_FILL_FULL,
				     .route = LL_ROUTE_DROPPED,
				     .fixed_t = cfg.shape.base.tmax,
				     .numeric = true,
				     .echo = true };
	cfg.tall = true;
	cfg.idx64 = expert_major;
	cfg.count = expert_major ? 64 : 0;
	cfg.pinned = where == HT_WINDOW;
	cfg.backward = true;
	return cfg;
}

static enum ht_op op_of(char letter)
{
	int op = 0;

	while (ht_words[op] != letter)
		op++;
	return (enum ht_op)op;
}

static int capture(struct ht_rig *rig, const char *ops, void **graph)
{
	const struct buf *buf = rig->handle[0].buf;
	uint64_t crossed = rig->crossed;

	if (rig->shim.ops->capture_begin(&rig->shim))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	for (; *ops; ops++) {
		if (*ops == 'C' &&
		    rig->shim.ops->copy(&rig->shim, buf[HT_ANSWERS].at, buf[HT_OUT].at, buf[HT_OUT].size))
			return seat_fail(rig->seat, "%s", rig->shim.text);
		if (ht_expect(rig, "an operation under capture", ht_call(rig, 0, op_of(*ops), false)))
			return -1;
	}
	rig->crossed = crossed; /* nothing has run */
	return rig->shim.ops->capture_end(&rig->shim, graph) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
}

/* New data in the same buffers. */
static int load(struct ht_rig *rig, const char *ops)
{
	if (ht_round(rig, 0))
		return -1;
	for (; *ops; ops++)
		if (*ops != 'U' && ht_load(rig, 0, op_of(*ops)))
			return -1;
	return ht_sync(rig);
}

static int replay(struct ht_rig *rig, const char *ops, void *graph)
{
	if (load(rig, ops))
		return -1;
	if (rig->shim.ops->graph_launch(&rig->shim, graph))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	if (ht_sync(rig))
		return -1;
	for (; *ops; ops++) {
		ht_crossed_add(rig, 0, op_of(*ops));
		if (ht_check(rig, 0, op_of(*ops)))
			return -1;
	}
	return 0;
}

static int graph_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	void *graph = NULL;
	struct ht_rig rig;

	if (ht_open(&rig, seat, &job->cfg))
		goto close;
	if (!shim_is_gpu(&rig.shim)) {
		*(int *)seat_board(seat) = 77;
		goto close;
	}
	if (job->warm && (ht_script(&rig, "UA EA BA") || seat_barrier(seat)))
		goto close;
	if (job->settled &&
	    (ht_script(&rig, "UA DA CA EA BA") || ht_sync(&rig) || usleep(SETTLE_US) || seat_barrier(seat)))
		goto close;
	if (ht_sync(&rig) || capture(&rig, job->ops, &graph))
		goto close;
	for (int i = 0; i < job->replays && !rig.verdict.wrong; i++)
		if (replay(&rig, job->ops, graph))
			goto close;
	if (!rig.verdict.wrong)
		ht_check_crossed(&rig, 0);
close:
	if (rig.shim.ops)
		rig.shim.ops->graph_destroy(&rig.shim, graph);
	ht_close(&rig);
	if (rig.verdict.wrong)
		seat_fail(seat, "round %d: #wrong %llu: %s", rig.handle[0].round, (unsigned long long)rig.verdict.wrong,
			  rig.verdict.first);
	return seat_failed(seat) ? -1 : 0;
}

/* Orders of operations in a graph; backward ones use the routing of the Update before them. */
static const char *const orders[] = { "UDC", "UDCEB", "UEB", "UDDCC" };

static int run_all(struct world *world, const struct job *how, uint64_t seed, int *passed)
{
	int failed = 0;

	for (int i = 0; i < 8; i++) {
		struct job job = { .cfg = cfg_make(i & 1, i & 2 ? HT_WINDOW : HT_PLAIN, seed + (uint64_t)i),
				   .replays = how->replays,
				   .settled = how->settled,
				   .warm = i & 4 };
		const char *order = orders[(size_t)i / 2 % (sizeof(orders) / sizeof(orders[0]))];
		double start = world_now();
		int rc;

		job.cfg.shape.nodes = how->cfg.shape.nodes;
		memcpy(job.ops, order, strlen(order) + 1);
		rc = world_run(world, RANKS, graph_job, &job, sizeof(job), JOB_SECONDS);
		printf("%s %s %s, %s%s%s%s (%.2f s)\n", rc ? "FAILED" : "ok    ", order,
		       i & 1 ? "expert-major" : "flat", i & 2 ? "windows" : "plain", i & 4 ? ", warm" : "",
		       rc ? ": " : "", rc ? world_text(world) : "", world_now() - start);
		fflush(stdout);
		*passed += !rc;
		failed += rc != 0;
		if (*(int *)world_board(world) == 77)
			break;
	}
	return failed;
}

static int usage(FILE *out, int status)
{
	fprintf(out,
		"usage: ht_graph [-t | -g] [-N NODES] [-k NET] [-n REPLAYS] [-s SEED] [-w]\n"
		"  -t  ranks are threads (default)   -g  ranks are processes   -n  replays per graph (100)\n"
		"  -N  simulated nodes (1)   -k  transport between them: loop, unordered, faulty or as NCCL_EP_NET\n"
		"  -w  map everything before graphs run: memcheck only knows memory that existed at the launch\n");
	return status;
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	struct job how = { .replays = 100 };
	const char *net = "loop";
	int c, passed = 0, failed, skip, nodes = 1;
	uint64_t seed = 41;

	while ((c = getopt(argc, argv, "tgN:k:n:s:wh")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 't' || c == 'g')
			opts.processes = c == 'g';
		else if (c == 'n')
			how.replays = atoi(optarg);
		else if (c == 'N')
			nodes = atoi(optarg);
		else if (c == 'k')
			net = optarg;
		else if (c == 'w')
			how.settled = true;
		else if (c == 's')
			seed = strtoull(optarg, NULL, 0);
		else
			return usage(stderr, 2);
	}
	if (optind != argc || how.replays < 1 || !far_splits(RANKS, nodes))
		return usage(stderr, 2);
	how.cfg.shape.nodes.size[0] = (uint8_t)far_split(RANKS, nodes);
	if (nodes > 1)
		far_set(NULL, far_split(RANKS, nodes), net, seed);
	if (world_open(&opts, &world))
		return 1;
	failed = run_all(world, &how, seed, &passed);
	skip = *(int *)world_board(world);
	if (world_close(world))
		failed++;
	if (skip == 77 && !failed) {
		printf("ht_graph: skipped: graphs need a GPU\n");
		return 77;
	}
	printf("ht_graph: %d passed, %d failed; %s\n", passed, failed, opts.processes ? "processes" : "threads");
	return failed ? 1 : 0;
}
