/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An LL and an HT group on one communicator, four handles, one of each layout, in a random order each round: LL
 * operations stay staged while HT operations run, and neither group affects the other. Each against its own oracle.
 * Also across simulated nodes, with the bytes between them. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"
#include "test/oracle/rig.h"

struct job {
	struct rig_cfg ll[2];
	struct ht_cfg ht[2];
	int rounds;
	uint64_t seed;
};

/* Four handles: LL expert-major and rank-major, HT flat and expert-major. */
struct ranks {
	struct rig ll[2];
	struct ht_rig ht[2];
};

/* A step is a handle and a script for it. */
struct step {
	int handle; /* 0 and 1: LL, 2 and 3: HT */
	const char *script;
};

#define STEPS 8
static const struct step orders[][STEPS] = {
	{ { 0, "DA CA" }, { 2, "UA DA CA" }, { 1, "DA CA" }, { 3, "UA DA CA EA BA" } },
	{ { 2, "UA" }, { 0, "dA" }, { 2, "DA" }, { 3, "UA DA" }, { 0, "xA CA" }, { 2, "CA" }, { 3, "CA" } },
	{ { 0, "dA" },
	  { 1, "dA" },
	  { 3, "UA DA CA" },
	  { 1, "xA" },
	  { 0, "xA" },
	  { 2, "UA EA BA" },
	  { 0, "CA" },
	  { 1, "CA" } },
	{ { 3, "UA" }, { 2, "UA" }, { 3, "DA" }, { 1, "DA" }, { 2, "DA" }, { 1, "cA" }, { 3, "CA" }, { 1, "xA" } },
	{ { 1, "dA xA cA" }, { 2, "UA DA EA" }, { 0, "DA" }, { 2, "CA BA" }, { 1, "xA" }, { 0, "CA" } },
	{ { 3, "UA DA" }, { 2, "UA" }, { 3, "EA" }, { 0, "dA" }, { 3, "BA CA" }, { 2, "DA CA" }, { 0, "xA" } },
};
#define ORDERS (sizeof(orders) / sizeof(orders[0]))

static int step_play(struct ranks *r, const struct step *step)
{
	if (step->handle < 2)
		return rig_script(&r->ll[step->handle], step->script);
	return ht_script(&r->ht[step->handle - 2], step->script);
}

static int round_play(struct ranks *r, uint64_t random)
{
	const struct step *order = orders[ll_random(&random) % ORDERS];

	for (int i = 0; i < 2; i++) {
		r->ll[i].cfg.data.fill = r->ht[i].cfg.data.fill = (enum ll_fill)(ll_random(&random) % 4);
		r->ll[i].cfg.data.route = r->ht[i].cfg.data.route = (enum ll_route)(ll_random(&random) % 6);
	}
	for (int i = 0; i < STEPS && order[i].script; i++)
		if (step_play(r, &order[i]))
			return -1;
	return 0;
}

static uint64_t wrong(const struct ranks *r, const char **first)
{
	const struct ll_verdict *all[] = { &r->ll[0].verdict, &r->ll[1].verdict, &r->ht[0].verdict, &r->ht[1].verdict };
	uint64_t sum = 0;

	for (int i = 3; i >= 0; i--) {
		sum += all[i]->wrong;
		if (all[i]->wrong)
			*first = all[i]->first;
	}
	return sum;
}

static int groups_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ranks *r = calloc(1, sizeof(*r));
	const char *first = "";
	int round = 0;

	if (!r)
		return seat_fail(seat, "out of memory");
	for (int i = 0; i < 2; i++) {
		r->ll[i].seat = r->ht[i].seat = seat;
	}
	if (rig_open(&r->ll[0], seat, &job->ll[0]) || ht_open(&r->ht[0], seat, &job->ht[0]) ||
	    rig_join(&r->ll[1], &r->ll[0], &job->ll[1]) || ht_join(&r->ht[1], &r->ht[0], &job->ht[1]))
		goto close;
	for (; round < job->rounds && !wrong(r, &first); round++)
		if (round_play(r, ll_seed(job->seed, 3, (uint64_t)round)))
			break;
	if (!seat_failed(seat))
		ht_check_crossed(&r->ht[0], r->ht[1].crossed);
close:
	if (wrong(r, &first))
		seat_fail(seat, "round %d: #wrong %llu: %s", round, (unsigned long long)wrong(r, &first), first);
	ht_close(&r->ht[1]);
	rig_close(&r->ll[1]);
	ht_close(&r->ht[0]);
	rig_close(&r->ll[0]);
	free(r);
	return seat_failed(seat) ? -1 : 0;
}

static void job_make(struct job *job, int ranks, int nodes)
{
	struct ll_shape base = { .ranks = ranks,
				 .experts = 3 * ranks,
				 .topk = ranks > 1 ? 4 : 3,
				 .tmax = 8,
				 .hidden = 200,
				 .token = NUM_BF16,
				 .combine = NUM_BF16 };

	for (int i = 0; i < 2; i++) {
		job->ll[i] = (struct rig_cfg){ .shape = base, .handles = 1, .spare = LL_ALL };
		job->ll[i].shape.layout = i ? LL_RANK_MAJOR : LL_EXPERT_MAJOR;
		job->ll[i].data.seed = job->seed + (uint64_t)i;
		job->ll[i].per_node = far_split(ranks, nodes);
		job->ht[i] = (struct ht_cfg){ .shape = { .base = base, .expert_major = i, .align = 4 * i },
					      .handles = 1,
					      .where = i ? HT_MIXED : HT_PLAIN,
					      .counters = 64,
					      .scribble = true,
					      .spare = LL_ALL,
					      .backward = true };
		job->ht[i].data.seed = job->seed + 10 + (uint64_t)i;
		job->ht[i].shape.nodes.size[0] = (uint8_t)far_split(ranks, nodes);
	}
	/* A group has one capacity. */
	job->ht[0].shape.capacity = job->ht[1].shape.capacity = ht_bound(&job->ht[1].shape);
}

static int usage(FILE *out, int status)
{
	fprintf(out,
		"usage: ht_groups [-t N | -g N] [-N NODES] [-k NET] [-n ROUNDS] [-s SEED] [-o SEED]\n"
		"  -t N, -g N  ranks as threads or as processes (-t 4)   -n  rounds (100)\n"
		"  -N  simulated nodes (1)   -k  transport between them: loop, unordered, faulty or as NCCL_EP_NET\n"
		"  -o  under the emulator: GPU threads in random order\n");
	return status;
}

int main(int argc, char **argv)
{
	struct job job = { .rounds = 100, .seed = 17 };
	struct world_opts opts = { .seats = 4 };
	struct world *world;
	double start = world_now();
	const char *net = "loop";
	int c, rc, nodes = 1;

	_Static_assert(sizeof(struct job) <= WORLD_ARG, "a job must fit into the world's argument");
	while ((c = getopt(argc, argv, "t:g:N:k:n:s:o:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 't' || c == 'g')
			opts.seats = atoi(optarg), opts.processes = c == 'g';
		else if (c == 'n')
			job.rounds = atoi(optarg);
		else if (c == 'N')
			nodes = atoi(optarg);
		else if (c == 'k')
			net = optarg;
		else if (c == 's')
			job.seed = strtoull(optarg, NULL, 0);
		else if (c == 'o' && world_random_order(strtoull(optarg, NULL, 0)))
			return 1;
		else if (c != 'o')
			return usage(stderr, 2);
	}
	if (optind != argc || opts.seats < 1 || job.rounds < 1 || !far_splits(opts.seats, nodes))
		return usage(stderr, 2);
	job_make(&job, opts.seats, nodes);
	if (nodes > 1)
		far_set(NULL, far_split(opts.seats, nodes), net, job.seed);
	if (world_open(&opts, &world))
		return 1;
	rc = world_run(world, opts.seats, groups_job, &job, sizeof(job), 60 + 0.5 * job.rounds);
	if (rc)
		printf("FAILED %s\n", world_text(world));
	printf("ht_groups: %s, %d rounds, %d %s, %.1f s\n", rc ? "failed" : "passed", job.rounds, opts.seats,
	       opts.processes ? "processes" : "threads", world_now() - start);
	return world_close(world) || rc ? 1 : 0;
}
