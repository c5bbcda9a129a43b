/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many rounds of dispatch and combine with random routing, token counts and order of operations, and sometimes a rank
 * that sleeps up to 50 ms before one of them. No wrong value, no hang, no memory growth. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/ll/orders.h"
#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define WARM 100	/* rounds until memory use is stable */
#define GROWTH_KIB 4096 /* more is a leak: 10 KiB per round would be 4 MiB after 400 */

/* Sanitizers keep freed memory on purpose. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

struct job {
	struct rig_cfg cfg;
	int rounds;
};

/* Parameters of the round: the same on all ranks, drawn from the seed. */
static const char *round_draw(struct rig *rig, uint64_t *random)
{
	const char *order = ll_orders[ll_random(random) % LL_ORDERS];
	int words = 1, rank;

	for (const char *at = order; *at; at++)
		words += *at == ' ';
	rig->cfg.data.fill = (enum ll_fill)(ll_random(random) % (LL_FILL_NONE + 1));
	rig->cfg.data.route = (enum ll_route)(ll_random(random) % (LL_ROUTE_ONE_RANK + 1));
	rank = (int)(ll_random(random) % (uint64_t)rig->cfg.shape.ranks);
	rig->stall_at = 1 + (int)(ll_random(random) % (uint64_t)words);
	rig->stall_us = (unsigned)(ll_random(random) % 50001);
	if (rank != seat_rank(rig->seat) || ll_random(random) % 16)
		rig->stall_at = 0;
	return order;
}

static int soak_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	uint64_t random = job->cfg.data.seed;
	long first = 0, last = 0;
	struct rig rig;
	int round = 0;

	if (!rig_open(&rig, seat, &job->cfg))
		for (; round < job->rounds; round++) {
			/* Ranks draw different numbers of values, so each round starts a new sequence. */
			uint64_t now = ll_seed(random, 9, (uint64_t)round);

			if (round == WARM)
				first = world_resident_kib();
			if (rig_script(&rig, round_draw(&rig, &now)) || rig.verdict.wrong)
				break;
		}
	last = world_resident_kib();
	if (round == job->rounds)
		rig_check_crossed(&rig);
	if (rig.verdict.wrong)
		seat_fail(seat, "round %d: #wrong %llu: %s", round, (unsigned long long)rig.verdict.wrong,
			  rig.verdict.first);
	else if (!SANITIZED && first && last > first + GROWTH_KIB)
		seat_fail(seat, "memory grew from %ld to %ld KiB between round %d and %d", first, last, WARM, round);
	if (seat_rank(seat) == 0)
		printf("# rank 0: %d rounds, resident %ld KiB after %d, %ld KiB at the end\n", round, first, WARM,
		       last);
	fflush(stdout);
	rig_close(&rig);
	return seat_failed(seat) ? -1 : 0;
}

static int usage(FILE *out, int status)
{
	fprintf(out,
		"usage: ll_soak [-t N | -g N] [-n ROUNDS] [-s SEED] [-l em|rm] [-m] [-N NODES [-k NET]]\n"
		"  -t N, -g N  ranks as threads or as processes (-t 4)   -n  rounds (300)   -m  with masks\n"
		"  -N  simulated nodes (1)   -k  transport between them: loop, unordered, faulty or as NCCL_EP_NET\n");
	return status;
}

int main(int argc, char **argv)
{
	struct job job = { .rounds = 300, .cfg = { .handles = 2, .spare = LL_ALL } };
	struct world_opts opts = { .seats = 4 };
	struct world *world;
	double start = world_now();
	const char *net = "loop";
	int c, rc, nodes = 1;

	job.cfg.data.seed = 11;
	while ((c = getopt(argc, argv, "t:g:n:s:l:mN:k:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 't' || c == 'g')
			opts.seats = atoi(optarg), opts.processes = c == 'g';
		else if (c == 'n')
			job.rounds = atoi(optarg);
		else if (c == 's')
			job.cfg.data.seed = strtoull(optarg, NULL, 0);
		else if (c == 'l' && (!strcmp(optarg, "em") || !strcmp(optarg, "rm")))
			job.cfg.shape.layout = optarg[0] == 'e' ? LL_EXPERT_MAJOR : LL_RANK_MAJOR;
		else if (c == 'm')
			job.cfg.mask = true;
		else if (c == 'N')
			nodes = atoi(optarg);
		else if (c == 'k')
			net = optarg;
		else
			return usage(stderr, 2);
	}
	if (optind != argc || opts.seats < 1 || job.rounds < 1 || !far_splits(opts.seats, nodes))
		return usage(stderr, 2);
	job.cfg.per_node = far_split(opts.seats, nodes);
	far_set(NULL, job.cfg.per_node, net, job.cfg.data.seed);
	job.cfg.shape = (struct ll_shape){ .layout = job.cfg.shape.layout,
					   .ranks = opts.seats,
					   .experts = 3 * opts.seats,
					   .topk = 4,
					   .tmax = 8,
					   .hidden = 256,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.shape.topk = job.cfg.shape.experts < 4 ? job.cfg.shape.experts : 4;
	if (world_open(&opts, &world))
		return 1;
	rc = world_run(world, opts.seats, soak_job, &job, sizeof(job), 60 + 0.5 * job.rounds);
	if (rc)
		printf("FAILED %s\n", world_text(world));
	printf("ll_soak: %s, %d rounds, %d %s, %.1f s\n", rc ? "failed" : "passed", job.rounds, opts.seats,
	       opts.processes ? "processes" : "threads", world_now() - start);
	return world_close(world) || rc ? 1 : 0;
}
