/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of `ep_info --check`: a communicator, an LL and an HT group, and a checked round in each. */
#include "perf/ep_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/ht_rig.h"
#include "test/oracle/nodes.h"
#include "test/oracle/rig.h"

/* Weak: NCCL EP itself has none of them. */
#pragma weak anyEpGroupNetTimes
#pragma weak anyEpGroupNodes

#define TOKENS 8
#define HIDDEN 512

struct job {
	struct ep_check_rank *all; /* joined: of this process, as all[rank]; else NULL, and the board has them */
	void (*device)(struct ep_check_rank *rank);
};

__attribute__((visibility("default"))) int ep_check_run(const struct ep_check_job *job, struct ep_check_rank *all,
							char *text, size_t size);

static void shape_make(int ranks, struct ll_shape *out)
{
	int experts = 2 * ranks;

	*out = (struct ll_shape){ .layout = LL_EXPERT_MAJOR,
				  .quant = LL_QUANT_NONE,
				  .ranks = ranks,
				  .experts = experts,
				  .topk = experts < 8 ? experts : 8,
				  .tmax = TOKENS,
				  .hidden = HIDDEN,
				  .token = NUM_BF16,
				  .scale = NUM_F32,
				  .scale_width = HIDDEN / 128,
				  .combine = NUM_BF16 };
}

static struct ll_data data_make(uint64_t seed)
{
	return (struct ll_data){
		.seed = ll_seed(seed, 1, TOKENS), .fill = LL_FILL_FULL, .route = LL_ROUTE_UNIFORM, .fixed_t = TOKENS
	};
}

static double ms_since(double start)
{
	return 1e3 * (world_now() - start);
}

/* ---- */

static int comm_open(struct seat *seat, struct ep_check_rank *out)
{
	double start = world_now();
	ncclComm_t comm;

	out->phase = EP_CHECK_COMM;
	comm = seat_comm(seat);
	if (!comm)
		return -1;
	out->comm_ms = ms_since(start);
	if (ncclCommCuDevice(comm, &out->device) != ncclSuccess)
		return seat_fail(seat, "ncclCommCuDevice: %s", ncclGetLastError(comm));
	return 0;
}

/* The nodes of all ranks, node[ranks], and the transport between them. */
static int group_read(struct seat *seat, ncclEpGroup_t group, int *node, struct ep_check_rank *out)
{
	anyEpNetTimes_t times = ANYEP_NET_TIMES_INIT;
	int rank = seat_rank(seat);

	if (!anyEpGroupNodes || !anyEpGroupNetTimes)
		return 0;
	if (anyEpGroupNodes(group, node, (size_t)seat_ranks(seat)) != ncclSuccess ||
	    anyEpGroupNetTimes(group, &times) != ncclSuccess)
		return seat_fail(seat, "what the group agreed on: %s", anyEpGetLastError());
	out->node = node[rank];
	out->local = 0;
	for (int r = 0; r < rank; r++)
		out->local += node[r] == node[rank];
	snprintf(out->net, sizeof(out->net), "%s", times.net);
	snprintf(out->nic, sizeof(out->nic), "%s", times.device);
	return 0;
}

static int ll_play(struct seat *seat, int *node, struct ep_check_rank *out)
{
	struct rig_cfg cfg = { .handles = 1, .idx64 = true, .spare = 4, .data = data_make(1) };
	struct rig rig;
	double start = world_now();

	out->phase = EP_CHECK_LL_GROUP;
	shape_make(seat_ranks(seat), &cfg.shape);
	if (!rig_open(&rig, seat, &cfg)) {
		out->ll_group_ms = ms_since(start);
		out->phase = EP_CHECK_LL;
		start = world_now();
		if (!group_read(seat, rig.group, node, out) && !rig_script(&rig, "DA CA"))
			out->ll_ms = ms_since(start);
	}
	rig_close(&rig);
	return rig_tell(&rig);
}

/* Sums are rounded node by node, so what must come out depends on the nodes. */
static int ht_play(struct seat *seat, const int *node, struct ep_check_rank *out)
{
	struct ht_cfg cfg = { .handles = 1, .idx64 = true, .counters = 32, .spare = 4, .tell_topk = true };
	struct ht_rig rig;
	double start;

	out->phase = EP_CHECK_HT_GROUP;
	cfg.data = data_make(2);
	shape_make(seat_ranks(seat), &cfg.shape.base);
	cfg.shape.capacity = (int)ht_bound(&cfg.shape);
	out->unchecked = !far_from_map(node, seat_ranks(seat), &cfg.shape.nodes);
	if (!ht_open(&rig, seat, &cfg)) {
		out->ht_group_ms = 1e3 * rig.group_seconds;
		out->phase = EP_CHECK_HT;
		start = world_now();
		if (!out->unchecked && !ht_script(&rig, "UA DA CA"))
			out->ht_ms = ms_since(start);
	}
	ht_close(&rig);
	return ht_tell(&rig);
}

static int rank_main(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ep_check_rank *all = job->all ? job->all : seat_board(seat), *out = all + seat_rank(seat);
	int *node = calloc((size_t)seat_ranks(seat), sizeof(*node));

	if (!node)
		return seat_fail(seat, "out of memory");
	if (!comm_open(seat, out)) {
		job->device(out);
		if (!ll_play(seat, node, out) && !ht_play(seat, node, out))
			out->phase = EP_CHECK_DONE;
	}
	free(node);
	if (seat_failed(seat))
		snprintf(out->error, sizeof(out->error), "%s", seat_text(seat));
	return seat_failed(seat) ? -1 : 0;
}

/* ---- */

static int joined(const struct ep_check_job *job, struct ep_check_rank *all, struct world **out)
{
	struct world_peers peers = {
		.rank = job->rank, .ranks = job->ranks, .local = job->local, .gather = job->gather, .arg = job->arg
	};
	struct job mine = { .all = all, .device = job->device };

	if (world_join(&peers, 0, out))
		return -1;
	return world_run(*out, job->ranks, rank_main, &mine, sizeof(mine), job->seconds);
}

static int alone(const struct ep_check_job *job, struct ep_check_rank *all, struct world **out)
{
	size_t bytes = (size_t)job->ranks * sizeof(*all);
	struct world_opts opts = { .seats = job->ranks, .processes = job->processes, .board = bytes };
	struct job mine = { .device = job->device };
	int rc;

	if (world_open(&opts, out))
		return -1;
	memcpy(world_board(*out), all, bytes);
	rc = world_run(*out, job->ranks, rank_main, &mine, sizeof(mine), job->seconds);
	memcpy(all, world_board(*out), bytes);
	return rc;
}

int ep_check_run(const struct ep_check_job *job, struct ep_check_rank *all, char *text, size_t size)
{
	struct world *world = NULL;
	int rc;

	rc = job->gather ? joined(job, all, &world) : alone(job, all, &world);
	if (rc)
		snprintf(text, size, "%s", world ? world_text(world) : "the ranks could not be started");
	if (world && world_close(world))
		rc = -1;
	return rc;
}
