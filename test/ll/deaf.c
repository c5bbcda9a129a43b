/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that takes part in nothing, and to which no put completes, over a net that limits puts in flight: with masks
 * the others go on with correct sums, at once after the first deadline, and their masks name it. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define VICTIM (RANKS - 1)
/* Puts to the victim are held after those by which a group checks its net: one to each peer. */
#define CHECKS (RANKS - 1)

struct job {
	struct rig_cfg cfg;
	double timeout; /* seconds */
};

static int survive(struct rig *rig, const struct job *job)
{
	double start = world_now(), first;

	rig->active[VICTIM] = false;
	rig->async = ANYEP_ASYNC_TIMEOUT;
	if (rig_script(rig, "DA CA") || rig_check_mask(rig))
		return -1;
	first = world_now() - start;
	ll_wrong(&rig->verdict, first > 4 * job->timeout, "rank %d: %.1f s for a deadline of %.1f s",
		 seat_rank(rig->seat), first, job->timeout);
	ncclEpErrorClear(rig->group);
	rig->async = 0;
	start = world_now();
	for (int i = 0; i < 6; i++)
		if (rig_script(rig, i % 2 ? "dA DB xA CB CA" : "DA CA"))
			return -1;
	ll_wrong(&rig->verdict, world_now() - start > job->timeout, "rank %d: waits for a masked rank: %.1f s",
		 seat_rank(rig->seat), world_now() - start);
	return rig_check_mask(rig);
}

static int deaf_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig rig;

	if (!rig_open(&rig, seat, &job->cfg) && seat_rank(seat) != VICTIM)
		survive(&rig, job);
	seat_barrier(seat);
	rig.parted = true; /* puts to the victim are left: the group ends with an error that says so */
	rig_close(&rig);
	ll_wrong(&rig.verdict, seat_rank(seat) != VICTIM && !strstr(anyEpGetLastError(), "its puts to rank 3 in time"),
		 "rank %d: \"%s\" does not name the victim", seat_rank(seat), anyEpGetLastError());
	return rig_tell(&rig);
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ll_deaf [-g] [-p PUTS]\n"
		     "  -g  ranks are processes\n"
		     "  -p  limit of puts in flight (1); 0: none\n");
	return status;
}

int main(int argc, char **argv)
{
	struct job job = { .timeout = 1, .cfg = { .handles = 2, .spare = LL_ALL, .mask = true } };
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	char net[FAR_NET_MAX];
	double start;
	int c, puts = 1, rc;

	while ((c = getopt(argc, argv, "gp:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 'g')
			opts.processes = true;
		else if (c == 'p')
			puts = atoi(optarg);
		else
			return usage(stderr, 2);
	}
	snprintf(net, sizeof(net), "faulty(loop):mute=1,to=%d,after=%d,puts=%d", VICTIM, CHECKS, puts);
	far_set(NULL, far_split(RANKS, RANKS), net, 1);
	setenv("NCCL_EP_TIMEOUT_MS", "1000", 1);
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "3000", 1); /* of the end, too */
	setenv("NCCL_EP_ENGINES", "1", 1);
	if (world_open(&opts, &world))
		return 1;
	job.cfg.shape = (struct ll_shape){ .layout = LL_EXPERT_MAJOR,
					   .ranks = RANKS,
					   .experts = 8,
					   .topk = 3,
					   .tmax = 20,
					   .hidden = 512,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	start = world_now();
	rc = world_run(world, RANKS, deaf_job, &job, sizeof(job), 60);
	printf("%s %d puts in flight%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ", puts, rc ? ": " : "",
	       rc ? world_text(world) : "", world_now() - start);
	rc = world_close(world) || rc;
	return rc;
}
