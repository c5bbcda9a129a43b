/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT across simulated nodes, when a rank stands still inside an operation that it has entered, and still answers pings:
 * its transport blocks. In the other node its relay waits for it, and the others there wait for the relay: all of them
 * must name the rank that stands still, not the relay. Ranks are processes: threads would share the engine that blocks.
 * Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"

#define RANKS 4
#define TIMEOUT 1.0
#define LATE 1.0
#define STALL_MS 3000

struct job {
	struct ht_cfg cfg;
	int lost;
	enum ht_op op; /* in which it stands still */
};

static void stand_still(struct ht_rig *rig, const struct job *job, ncclResult_t rc, double seconds)
{
	const char *text = rc == ncclSuccess ? "" : anyEpGetLastError();
	int rank = seat_rank(rig->seat);
	char name[16];

	/* The ranks of its own node may have all that they need. */
	if (far_node(&job->cfg.shape.nodes, rank) == far_node(&job->cfg.shape.nodes, job->lost))
		return;
	snprintf(name, sizeof(name), "rank %d", job->lost);
	ll_wrong(&rig->verdict, rc != ncclTimeout && rc != ncclRemoteError, "rank %d: returned %s (%s)", rank,
		 ncclGetErrorString(rc), text);
	ll_wrong(&rig->verdict, !strstr(text, name), "rank %d: \"%s\" does not name %s", rank, text, name);
	ll_wrong(&rig->verdict, seconds > TIMEOUT + LATE, "rank %d: error after %.1f s", rank, seconds);
}

static int blame_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht_rig rig;

	if (!ht_open(&rig, seat, &job->cfg) && !seat_barrier(seat))
		for (enum ht_op op = HT_UPDATE; op <= job->op; op++) {
			double start = world_now();
			ncclResult_t rc;

			if (op == HT_UPDATE ? ht_round(&rig, 0) : ht_load(&rig, 0, op))
				break;
			rc = ht_call(&rig, 0, op, false);
			if (op == job->op)
				stand_still(&rig, job, rc, world_now() - start);
			else if (ht_expect(&rig, "an operation before", rc) || ht_check(&rig, 0, op))
				break;
		}
	rig.parted = true;
	ht_close(&rig);
	return ht_tell(&rig);
}

/* One token per rank, which goes to all ranks: the number of puts before an operation is known. */
static struct job job_make(const struct far_nodes *nodes, int lost, enum ht_op op)
{
	struct job job = { .lost = lost, .op = op };

	job.cfg = (struct ht_cfg){ .handles = 1, .spare = LL_ALL, .counters = 32, .tell_topk = true };
	job.cfg.shape = (struct ht_shape){ .base = { .ranks = RANKS,
						     .experts = RANKS,
						     .topk = RANKS,
						     .tmax = 1,
						     .hidden = 64,
						     .token = NUM_BF16,
						     .combine = NUM_BF16 },
					   .nodes = *nodes };
	job.cfg.shape.capacity = ht_bound(&job.cfg.shape);
	job.cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	return job;
}

/* A new world each time: the engine blocks for longer than the job lasts. */
static int run_job(const struct job *job, int after)
{
	static const char *const names[] = {
		[HT_UPDATE] = "update", [HT_DISPATCH] = "dispatch", [HT_COMBINE] = "combine"
	};
	struct world_opts opts = { .seats = RANKS, .processes = true };
	char net[FAR_NET_MAX], sizes[FAR_TEXT_MAX], ms[16];
	double start = world_now();
	struct world *world;
	int rc;

	if (world_open(&opts, &world))
		return 1;
	snprintf(ms, sizeof(ms), "%d", (int)(1000 * TIMEOUT));
	snprintf(net, sizeof(net), "faulty(loop):stall=%d,after=%d,rank=%d", STALL_MS, after, job->lost);
	world_setenv(world, "NCCL_EP_TIMEOUT_MS", ms);
	far_set_nodes(world, &job->cfg.shape.nodes, net, 0);
	rc = world_run(world, RANKS, blame_job, job, sizeof(*job), 60);
	far_text(&job->cfg.shape.nodes, sizes);
	printf("%s rank %d stands still in %s, nodes of %s%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ", job->lost,
	       names[job->op], sizes, rc ? ": " : "", rc ? world_text(world) : "", world_now() - start);
	fflush(stdout);
	return world_close(world) || rc ? 1 : 0;
}

int main(void)
{
	/*
	 * The second has a node of its own, and is the client of one of three relays. Puts before: a probe of every
	 * peer, one and three; Update has counts and a signal; dispatch a row, a signal, and a slot given back per
	 * client.
	 */
	static const struct {
		struct far_nodes nodes;
		int lost, after;
		enum ht_op op;
	} scenes[] = { { { .size = { 2 } }, 3, 1, HT_UPDATE },
		       { { .size = { 2 } }, 3, 3, HT_DISPATCH },
		       { { .size = { 2 } }, 3, 6, HT_COMBINE },
		       { { .size = { 1, 3 } }, 0, 5, HT_DISPATCH } };
	int failed = 0;

	for (int i = 0; i < 4; i++) {
		struct job job = job_make(&scenes[i].nodes, scenes[i].lost, scenes[i].op);

		failed += run_job(&job, scenes[i].after);
	}
	printf("ht_blame: %d failed\n", failed);
	return failed ? 1 : 0;
}
