/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many ranks on many simulated nodes, as threads of one process: dispatch and combine against the oracle, the bytes
 * between nodes, and the memory per rank. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

struct job {
	struct rig_cfg cfg;
	int rounds;
};

/* Rank 0 for all: ranks are alike, except for what transport and engines share. */
static int cost_tell(struct rig *rig, double before, double opened)
{
	int ranks = rig->cfg.shape.ranks;
	size_t window = 0;

	if (rig_expect(rig, "anyEpGroupWindowBytes", anyEpGroupWindowBytes(rig->group, &window)))
		return -1;
	if (seat_rank(rig->seat) == 0)
		printf("# %s: %d ranks on nodes of %d; per rank: windows %zu KiB, resident %.0f KiB of group and "
		       "tensors, "
		       "%.0f KiB after use\n",
		       rig->cfg.shape.layout == LL_EXPERT_MAJOR ? "em" : "rm", ranks, rig->cfg.per_node, window / 1024,
		       (opened - before) / ranks, (world_resident_kib() - before) / ranks);
	return 0;
}

static int scale_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	double before, opened;
	struct rig rig = { .seat = seat };

	if (!seat_comm(seat) || seat_barrier(seat))
		return -1;
	before = world_resident_kib();
	if (seat_barrier(seat) || rig_open(&rig, seat, &job->cfg))
		goto close;
	opened = world_resident_kib();
	for (int i = 0; i < job->rounds; i++)
		if (rig_script(&rig, i % 2 ? "dA xA cA xA" : "DA CA"))
			goto close;
	if (!rig_check_crossed(&rig))
		cost_tell(&rig, before, opened);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

static struct job job_make(enum ll_layout layout, int ranks, int nodes, int rounds)
{
	struct job job = { .rounds = rounds, .cfg = { .handles = 1, .spare = 1, .per_node = far_split(ranks, nodes) } };

	job.cfg.shape = (struct ll_shape){ .layout = layout,
					   .ranks = ranks,
					   .experts = 2 * ranks,
					   .topk = 8,
					   .tmax = 4,
					   .hidden = 128,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 17, .fill = LL_FILL_RANDOM };
	return job;
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: link_scale [-r RANKS] [-N NODES] [-k NET] [-n ROUNDS]\n"
		     "  -r  ranks (64)   -N  simulated nodes (8)   -n  rounds per layout (4)\n"
		     "  -k  transport between them: loop, unordered, faulty or as NCCL_EP_NET\n");
	return status;
}

int main(int argc, char **argv)
{
	int c, ranks = 64, nodes = 8, rounds = 4, failed = 0;
	const char *net = "loop";
	struct world_opts opts = { 0 };
	struct world *world;

	while ((c = getopt(argc, argv, "r:N:k:n:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 'k')
			net = optarg;
		else if (c == 'r' || c == 'N' || c == 'n')
			*(c == 'r' ? &ranks : c == 'N' ? &nodes : &rounds) = atoi(optarg);
		else
			return usage(stderr, 2);
	}
	if (optind != argc || ranks < 4 || rounds < 1 || !far_splits(ranks, nodes))
		return usage(stderr, 2);
	opts.seats = ranks;
	far_set(NULL, far_split(ranks, nodes), net, 1);
	if (world_open(&opts, &world))
		return 1;
	for (int layout = 0; layout < 2; layout++) {
		struct job job = job_make((enum ll_layout)layout, ranks, nodes, rounds);
		double start = world_now();
		int rc = world_run(world, ranks, scale_job, &job, sizeof(job), 600);

		printf("%s %s, %d ranks on %d nodes, %s%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ", layout ? "rm" : "em",
		       ranks, nodes, net, rc ? ": " : "", rc ? world_text(world) : "", world_now() - start);
		failed += rc != 0;
	}
	failed += world_close(world) != 0;
	return failed ? 1 : 0;
}
