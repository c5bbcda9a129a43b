/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many ranks on many simulated nodes, or few with so many tokens that the rings between nodes wrap again and again: all
 * operations against the oracle, the bytes between nodes, and the memory per rank. Exit status 0, 1, or 77 where the
 * process may not open enough files.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"

struct job {
	struct ht_cfg cfg;
	int rounds, sharers;
};

/* Rank 0 for all: ranks are alike, except for what transport and engines share. `sharers` ranks are in its process. */
static int cost_tell(struct ht_rig *rig, int sharers, double before, double opened)
{
	const struct ht_shape *shape = &rig->cfg.shape;
	int ranks = shape->base.ranks;
	size_t window = 0;

	if (ht_expect(rig, "anyEpGroupWindowBytes", anyEpGroupWindowBytes(rig->group, &window)))
		return -1;
	if (seat_rank(rig->seat) == 0)
		printf("# %s: %d ranks on %d nodes; per rank: windows %zu KiB, resident %.0f KiB of group and tensors, "
		       "%.0f KiB after use\n",
		       shape->expert_major ? "em" : "flat", ranks, far_count(&shape->nodes, ranks), window / 1024,
		       (opened - before) / sharers, (world_resident_kib() - before) / sharers);
	fflush(stdout);
	return 0;
}

static int scale_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht_rig rig = { .seat = seat };
	double before, opened;

	if (!seat_comm(seat) || seat_barrier(seat))
		return -1;
	before = world_resident_kib();
	if (seat_barrier(seat) || ht_open(&rig, seat, &job->cfg))
		goto close;
	opened = world_resident_kib();
	for (int i = 0; i < job->rounds; i++)
		if (ht_script(&rig, i % 2 ? "UA EA BA" : "UA DA CA"))
			goto close;
	if (!ht_check_crossed(&rig, 0))
		cost_tell(&rig, job->sharers, before, opened);
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

struct opts {
	int ranks, nodes, tokens, hidden, topk, sms, rounds;
	const char *net;
	bool processes;
};

static struct job job_make(const struct opts *opts, bool expert_major)
{
	struct job job = { .rounds = opts->rounds, .sharers = opts->processes ? 1 : opts->ranks };

	job.cfg = (struct ht_cfg){ .handles = 1, .spare = 1, .counters = 32, .backward = true, .tell_topk = true };
	job.cfg.sms = opts->sms;
	job.cfg.shape = (struct ht_shape){ .base = { .ranks = opts->ranks,
						     .experts = 2 * opts->ranks,
						     .topk = opts->topk,
						     .tmax = opts->tokens,
						     .hidden = (size_t)opts->hidden,
						     .token = NUM_BF16,
						     .combine = NUM_BF16 },
					   .expert_major = expert_major };
	job.cfg.shape.nodes.size[0] = (uint8_t)far_split(opts->ranks, opts->nodes);
	job.cfg.shape.capacity = ht_bound(&job.cfg.shape);
	job.cfg.data = (struct ll_data){ .seed = 17, .fill = opts->tokens > 64 ? LL_FILL_FULL : LL_FILL_RANDOM };
	return job;
}

#define FILES 64 /* per rank: 46 of 64 ranks, 50 of 128 */

/* Threads have their descriptors in one process. Not 0: its limit cannot be raised that far. */
static int files_raise(const struct opts *opts)
{
	rlim_t need = (rlim_t)opts->ranks * FILES;
	struct rlimit limit;

	if (opts->processes || getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= need)
		return 0;
	limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
	if (!setrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur >= need)
		return 0;
	fprintf(stderr,
		"ht_scale: %d ranks as threads need about %llu open files, but the hard limit is %llu: raise it "
		"(ulimit -Hn), or use processes (-g)\n",
		opts->ranks, (unsigned long long)need, (unsigned long long)limit.rlim_max);
	return -1;
}

static int run_all(const struct opts *opts)
{
	struct world_opts world_opts = { .seats = opts->ranks, .processes = opts->processes };
	struct world *world;
	int failed = 0;

	far_set(NULL, far_split(opts->ranks, opts->nodes), opts->net, 1);
	if (world_open(&world_opts, &world))
		return 1;
	for (int em = 0; em < 2; em++) {
		struct job job = job_make(opts, em);
		double start = world_now();
		int rc = world_run(world, opts->ranks, scale_job, &job, sizeof(job), 600);

		printf("%s %s, %d ranks on %d nodes, %d tokens, %s%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ",
		       em ? "em" : "flat", opts->ranks, opts->nodes, opts->tokens, opts->net, rc ? ": " : "",
		       rc ? world_text(world) : "", world_now() - start);
		fflush(stdout);
		failed += rc != 0;
	}
	failed += world_close(world) != 0;
	return failed ? 1 : 0;
}

static int usage(FILE *out, int status)
{
	fprintf(out,
		"usage: ht_scale [-g] [-r RANKS] [-N NODES] [-b TOKENS] [-x HIDDEN] [-e TOPK] [-m SMS] [-n ROUNDS]\n"
		"                [-k NET] [-o SEED]\n"
		"  -g  ranks are processes (default: threads, which need 64 files each)\n"
		"  -r  ranks (64)   -N  simulated nodes (8)   -b  tokens per rank (4)   -x  hidden size (64)\n"
		"  -e  experts per token (8)   -m  SMs (automatic)   -n  rounds per layout (4)\n"
		"  -k  transport between them: loop, unordered, faulty or as NCCL_EP_NET\n"
		"  -o  under the emulator: GPU threads in random order\n");
	return status;
}

int main(int argc, char **argv)
{
	struct opts opts = { 64, 8, 4, 64, 8, 0, 4, "loop", false };
	const struct {
		char letter;
		int *value;
	} numbers[] = { { 'r', &opts.ranks }, { 'N', &opts.nodes }, { 'b', &opts.tokens }, { 'x', &opts.hidden },
			{ 'e', &opts.topk },  { 'm', &opts.sms },   { 'n', &opts.rounds } };
	int c;

	while ((c = getopt(argc, argv, "gr:N:b:x:e:m:n:k:o:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 'g')
			opts.processes = true;
		else if (c == 'k')
			opts.net = optarg;
		else if (c == 'o' && world_random_order(strtoull(optarg, NULL, 0)))
			return 1;
		else if (c == '?')
			return usage(stderr, 2);
		for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
			if (c == numbers[i].letter)
				*numbers[i].value = atoi(optarg);
	}
	if (optind != argc || opts.ranks < 2 || opts.rounds < 1 || opts.tokens < 1 || opts.hidden < 1 ||
	    opts.topk < 1 || opts.topk > 2 * opts.ranks || !far_splits(opts.ranks, opts.nodes))
		return usage(stderr, 2);
	return files_raise(&opts) ? 77 : run_all(&opts);
}
