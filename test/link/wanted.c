/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group whose algorithm puts to some remote ranks only, and in large puts: seats are numbered among those, puts and
 * signals between them arrive, the net's limits for throughput apply, and ranks that disagree about who puts to whom
 * are told so. The algorithm is LL's with another choice of peers, so nothing is dispatched; the net is loop with
 * limits. Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/gx/gx.h"
#include "kernels/op/far.h"
#include "plugin/group/create.h"
#include "plugin/ll/ll.h"
#include "proxy/port.h"
#include "test/oracle/world.h"
#include "util/clock.h"

#define PER_NODE 2
#define PER_NODE_TEXT "2"
#define RANKS 7 /* the last node has one rank, which is a peer of all others */
#define BYTES 4096
#define LIMIT_LL 1000000u
#define LIMIT_HT 3000000u

struct job {
	bool throughput;
	bool odd; /* rank 0 does not want rank 2, which wants it */
};

/* ---- the net: loop with limits ---- */

int __real_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
int __wrap_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
static int (*getProperties)(void *net, int dev, ncclEpNetProperties_v1_t *props);

static int limited(void *net, int dev, ncclEpNetProperties_v1_t *props)
{
	int rc = getProperties(net, dev, props);

	props->lowLatency = (ncclEpNetFlow_v1_t){ .maxBytes = LIMIT_LL };
	props->throughput = (ncclEpNetFlow_v1_t){ .maxBytes = LIMIT_HT };
	return rc;
}

int __wrap_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX])
{
	int rc = __real_ep_net_try(spec, out, why);

	if (rc)
		return rc;
	__atomic_store_n(&getProperties, (*out)->ops.getProperties, __ATOMIC_RELAXED);
	(*out)->ops.getProperties = limited;
	return 0;
}

/* ---- who puts to whom ---- */

static bool is_peer(int a, int b)
{
	bool last = a / PER_NODE == RANKS / PER_NODE || b / PER_NODE == RANKS / PER_NODE;

	return a / PER_NODE != b / PER_NODE && (a % PER_NODE == b % PER_NODE || last);
}

static int peers_want(const struct ncclEpGroup *group, bool *wanted)
{
	for (int r = 0; r < group->nranks; r++)
		wanted[r] = is_peer(group->rank, r);
	return 0;
}

static int peers_want_odd(const struct ncclEpGroup *group, bool *wanted)
{
	peers_want(group, wanted);
	if (group->rank == 0)
		wanted[2] = false;
	return 0;
}

static uint32_t seat_of(int rank, int of)
{
	uint32_t n = 0;

	for (int r = 0; r < of; r++)
		n += r / PER_NODE == rank / PER_NODE ? of / PER_NODE == rank / PER_NODE
						     : is_peer(rank, r) && is_peer(rank, of);
	return n;
}

/* ---- the job ---- */

static void seats_check(struct seat *seat, const struct ep_link *link)
{
	int me = seat_rank(seat);

	for (int r = 0; r < RANKS; r++) {
		bool none = r / PER_NODE != me / PER_NODE && !is_peer(me, r);
		uint32_t here = none ? EP_SEAT_NONE : seat_of(me, r), there = none ? EP_SEAT_NONE : seat_of(r, me);

		if (link->seat[r].here != here || link->seat[r].there != there)
			seat_fail(seat, "rank %d: the seat of rank %d is %u, %u, must be %u, %u", me, r,
				  link->seat[r].here, link->seat[r].there, here, there);
	}
	if (link->near != PER_NODE || link->far != RANKS - 1)
		seat_fail(seat, "rank %d: at most %u near and %u far ranks", me, link->near, link->far);
}

/* Bytes to each peer, then a signal to a word of the control page. */
static int rows_put(struct seat *seat, struct ncclEpGroup *group, const struct ep_far *far)
{
	struct gx_limit limit = { .deadline = ep_deadline_ms(20000) };
	uint64_t abort = 0;

	limit.abort = &abort;
	for (int r = 0; r < RANKS; r++) {
		uint32_t me = (uint32_t)group->rank, peer = (uint32_t)r;
		uint64_t from = group->link->seat[r].here * (uint64_t)BYTES,
			 to = group->link->seat[r].there * (uint64_t)BYTES;

		if (!is_peer(group->rank, r))
			continue;
		memset(far->send + from, 1 + group->rank, BYTES);
		if (far_put(far, me, peer, ep_cmd_put(peer, far->window_place + to, far->send_place + from, BYTES),
			    &limit) ||
		    far_signal(far, me, peer, 8 * me, 1 + me, &limit))
			return seat_fail(seat, "rank %u: the ring did not take a command for rank %d", me, r);
	}
	return 0;
}

static int rows_wait(struct seat *seat, const struct ncclEpGroup *group, const struct ep_far *far)
{
	uint64_t deadline = ep_deadline_ms(20000);

	for (int r = 0; r < RANKS; r++) {
		const uint64_t *word = (const uint64_t *)far->control + r;
		const uint8_t *row = far->window + group->link->seat[r].here * (uint64_t)BYTES;

		if (!is_peer(group->rank, r))
			continue;
		while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != 1 + (uint64_t)r)
			if (ep_now_ns() > deadline)
				return seat_fail(seat, "rank %d: no signal from rank %d", group->rank, r);
		for (int i = 0; i < BYTES; i++)
			if (row[i] != 1 + r)
				return seat_fail(seat, "rank %d: byte %d of rank %d is %d", group->rank, i, r, row[i]);
	}
	return 0;
}

static int group_use(struct seat *seat, struct ncclEpGroup *group, const struct job *job)
{
	uint64_t limit = job->throughput ? LIMIT_HT : LIMIT_LL, got;
	struct ep_far far;

	if (!group->link)
		return seat_fail(seat, "rank %d has no link", group->rank);
	seats_check(seat, group->link);
	got = group->link->port[0].port->o.flow.maxBytes * (uint64_t)group->link->ports;
	if (got < limit || got > limit + EP_LINK_PORTS)
		seat_fail(seat, "rank %d: %llu bytes in flight, must be %llu", group->rank, got + 0ull, limit + 0ull);
	if (ep_link_reserve(group->link, RANKS * BYTES, RANKS * BYTES) || seat_barrier(seat))
		return seat_fail(seat, "rank %d: %s", group->rank, ep_last_error());
	ep_link_args(group->link, &far);
	return rows_put(seat, group, &far) || rows_wait(seat, group, &far) || seat_barrier(seat) ? -1 : 0;
}

static int wanted_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ep_algo algo = ep_ll_algo;
	struct ep_group_cfg cfg = { .version = 2,
				    .algorithm = NCCL_EP_ALGO_LOW_LATENCY,
				    .num_experts = RANKS,
				    .max_dispatch = 4,
				    .max_token_bytes = 256 };
	ncclEpAllocConfig_t alloc = { 0 };
	struct ncclEpGroup *group = NULL;
	ncclComm_t comm = seat_comm(seat);
	int rc;

	algo.wants = job->odd ? peers_want_odd : peers_want;
	algo.throughput = job->throughput;
	if (!comm)
		return -1;
	rc = ep_group_create(comm, &cfg, &alloc, &algo, 0, &group);
	if (job->odd) {
		const char *want = "rank 2 connects to rank 0, but rank 0 does not connect to rank 2";
		const char *flip = "rank 0 does not connect to rank 2, but rank 2 connects to rank 0";

		if (!rc || (!strstr(ep_last_error(), want) && !strstr(ep_last_error(), flip)))
			seat_fail(seat, "rank %d: %d, %s", seat_rank(seat), rc, ep_last_error());
		return seat_failed(seat) ? -1 : 0;
	}
	if (rc)
		return seat_fail(seat, "rank %d: %s", seat_rank(seat), ep_last_error());
	group_use(seat, group, job);
	if (ep_group_destroy(group))
		seat_fail(seat, "rank %d: %s", seat_rank(seat), ep_last_error());
	return seat_failed(seat) ? -1 : 0;
}

int main(void)
{
	static const struct {
		const char *net;
		struct job job;
	} rows[] = {
		{ "loop", { .throughput = true } },
		{ "loop:unordered=1", { .throughput = false } },
		{ "loop", { .odd = true } },
	};
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	int failed = 0;

	if (world_open(&opts, &world))
		return 1;
	world_setenv(world, "NCCL_EP_RANKS_PER_NODE", PER_NODE_TEXT);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int rc;

		world_setenv(world, "NCCL_EP_NET", rows[i].net);
		rc = world_run(world, RANKS, wanted_job, &rows[i].job, sizeof(rows[i].job), 60);
		printf("%s %s%s%s%s%s\n", rc ? "FAILED" : "ok    ", rows[i].net,
		       rows[i].job.throughput ? ", throughput" : "", rows[i].job.odd ? ", disagreement" : "",
		       rc ? ": " : "", rc ? world_text(world) : "");
		failed += rc != 0;
	}
	failed += world_close(world) != 0;
	return failed ? 1 : 0;
}
