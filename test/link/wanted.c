/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group whose algorithm puts to some remote ranks only, and in large puts: seats are numbered among those, the net
 * connects to no others, puts and signals between them arrive, memory grows with them, the net's limits for throughput
 * apply, and ranks that disagree about who puts to whom are told so. The algorithm is LL's with another choice of
 * peers, so nothing is dispatched; the net is loop with limits. Exit status 0 or 1.
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

#define RANKS 64 /* at most */
#define BYTES 64
#define LIMIT_LL 1000000u
#define LIMIT_HT 3000000u

struct job {
	int ranks, per_node; /* the last node may have fewer */
	uint32_t far;	     /* peers of the rank that has most of them */
	bool throughput;
	bool odd; /* rank 0 does not want rank 2, which wants it */
};

static _Thread_local const struct job *now; /* of this rank's thread */

/* ---- the net: loop with limits ---- */

int __real_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
int __wrap_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
static int (*getProperties)(void *net, int dev, ncclEpNetProperties_v1_t *props);
static int (*connect_inner)(void *listener, const void *handles, int nranks, int rank, void **comm);
static _Thread_local uint32_t connected; /* ranks whose handle this one got */

static int limited(void *net, int dev, ncclEpNetProperties_v1_t *props)
{
	int rc = __atomic_load_n(&getProperties, __ATOMIC_RELAXED)(net, dev, props);

	props->lowLatency = (ncclEpNetFlow_v1_t){ .maxBytes = LIMIT_LL };
	props->throughput = (ncclEpNetFlow_v1_t){ .maxBytes = LIMIT_HT };
	return rc;
}

static int counted(void *listener, const void *handles, int nranks, int rank, void **comm)
{
	static const uint8_t blank[NCCL_EP_NET_HANDLE_SIZE];

	connected = 0;
	for (int r = 0; r < nranks; r++)
		connected += memcmp((const uint8_t *)handles + (size_t)r * sizeof(blank), blank, sizeof(blank)) != 0;
	return __atomic_load_n(&connect_inner, __ATOMIC_RELAXED)(listener, handles, nranks, rank, comm);
}

int __wrap_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX])
{
	int rc = __real_ep_net_try(spec, out, why);

	if (rc)
		return rc;
	__atomic_store_n(&getProperties, (*out)->ops.getProperties, __ATOMIC_RELAXED);
	(*out)->ops.getProperties = limited;
	__atomic_store_n(&connect_inner, (*out)->ops.connect, __ATOMIC_RELAXED);
	(*out)->ops.connect = counted;
	return 0;
}

/* ---- who puts to whom ---- */

static int node_of(int rank)
{
	return rank / now->per_node;
}

/* The rank that a rank of another node uses in this one: that of its own index, modulo the ranks there. */
static int relay_of(int rank, int node)
{
	int first = node * now->per_node, n = now->ranks - first;

	return first + rank % now->per_node % (n < now->per_node ? n : now->per_node);
}

static bool is_peer(int a, int b)
{
	return node_of(a) != node_of(b) && (relay_of(a, node_of(b)) == b || relay_of(b, node_of(a)) == a);
}

static int peers_want(struct ncclEpGroup *group, bool *wanted)
{
	for (int r = 0; r < group->nranks; r++)
		wanted[r] = is_peer(group->rank, r);
	return 0;
}

static int peers_want_odd(struct ncclEpGroup *group, bool *wanted)
{
	peers_want(group, wanted);
	if (group->rank == 0)
		wanted[2] = false;
	return 0;
}

/* Of rank `of` among those of `rank`. */
static uint32_t seat_of(int rank, int of)
{
	bool near = node_of(rank) == node_of(of);
	uint32_t n = 0;

	if (!near && !is_peer(rank, of))
		return EP_SEAT_NONE;
	for (int r = 0; r < of; r++)
		n += near ? node_of(r) == node_of(rank) : is_peer(rank, r);
	return n;
}

/* ---- the job ---- */

static void seats_check(struct seat *seat, const struct ep_link *link)
{
	int me = seat_rank(seat);

	for (int r = 0; r < now->ranks; r++)
		if (link->seat[r].here != seat_of(me, r) || link->seat[r].there != seat_of(r, me))
			seat_fail(seat, "rank %d: the seat of rank %d is %u, %u, must be %u, %u", me, r,
				  link->seat[r].here, link->seat[r].there, seat_of(me, r), seat_of(r, me));
	if (link->near != (uint32_t)now->per_node || link->far != now->far)
		seat_fail(seat, "rank %d: at most %u near and %u far ranks", me, link->near, link->far);
}

/* Without rows. A signal in flight takes 16 bytes at either end, and there may be 512 of them to each peer. */
static void memory_check(struct seat *seat, const struct ep_link *link)
{
	size_t mail = (size_t)link->ports * link->far * 512 * 2 * 16, bytes = ep_link_bytes(link), tables;

	tables = ep_link_tables(link);
	if (seat_rank(seat) == 0)
		printf("# rank 0 of %d, %u peers: %zu KiB of mail and words, %zu KiB of tables\n", now->ranks,
		       link->peers, bytes >> 10, tables >> 10);
	if (bytes > mail + (64 << 10) || tables > 128 << 10 || bytes + tables > 3 << 20)
		seat_fail(seat, "rank %d: %zu bytes of mail and words, %zu of tables", seat_rank(seat), bytes, tables);
}

/* Bytes to each peer, then a signal to a word of the control page. */
static int rows_put(struct seat *seat, struct ncclEpGroup *group, const struct ep_far *far)
{
	struct gx_limit limit = { .deadline = ep_deadline_ms(20000) };
	uint64_t abort = 0;

	limit.abort = &abort;
	for (int r = 0; r < now->ranks; r++) {
		uint32_t me = (uint32_t)group->rank, peer = (uint32_t)r;
		uint64_t from = group->link->seat[r].here * (uint64_t)BYTES,
			 to = group->link->seat[r].there * (uint64_t)BYTES;
		struct far_cmd cmd[2];

		if (!is_peer(group->rank, r))
			continue;
		memset(far->send + from, 1 + group->rank, BYTES);
		cmd[0] = far_to(far, peer, ep_cmd_put(peer, far->window_place + to, far->send_place + from, BYTES));
		cmd[1] = far_to(far, peer, far_signal(far, peer, 8 * me, 1 + me));
		if (far_push(far, &cmd[0], &limit, 1) || far_push(far, &cmd[1], &limit, 1))
			return seat_fail(seat, "rank %u: the ring did not take a command for rank %d", me, r);
	}
	return 0;
}

static int rows_wait(struct seat *seat, const struct ncclEpGroup *group, const struct ep_far *far)
{
	uint64_t deadline = ep_deadline_ms(20000);

	for (int r = 0; r < now->ranks; r++) {
		const uint64_t *word = (const uint64_t *)far->control + r;
		const uint8_t *row = far->window + group->link->seat[r].here * (uint64_t)BYTES;

		if (!is_peer(group->rank, r))
			continue;
		while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != 1 + (uint64_t)r)
			if (ep_now_ns() > deadline)
				return seat_fail(seat, "rank %d: no signal from rank %d", group->rank, r);
		for (int i = 0; i < BYTES; i++)
			if (row[i] != (uint8_t)(1 + r))
				return seat_fail(seat, "rank %d: byte %d of rank %d is %d", group->rank, i, r, row[i]);
	}
	return 0;
}

/* Of even nodes: ports share the peers, though a rank's peers may all be odd or all be even. */
static void rings_check(struct seat *seat, const struct ep_link *link)
{
	struct ep_port_counts counts;

	for (int i = 0; i < link->ports && now->ranks % now->per_node == 0; i++) {
		ep_port_counts(link->port[i].port, &counts);
		if (counts.commands < 2 * (link->peers / (uint32_t)link->ports))
			seat_fail(seat, "rank %d: %llu commands went through port %d", seat_rank(seat),
				  counts.commands + 0ull, i);
	}
}

static int group_use(struct seat *seat, struct ncclEpGroup *group, const struct job *job)
{
	uint64_t limit = job->throughput ? LIMIT_HT : LIMIT_LL, got;
	struct ep_far far;

	if (!group->link)
		return seat_fail(seat, "rank %d has no link", group->rank);
	seats_check(seat, group->link);
	memory_check(seat, group->link);
	if (connected != group->link->peers + 1)
		seat_fail(seat, "rank %d: connected to %u ranks, with %u peers", group->rank, connected,
			  group->link->peers);
	got = group->link->port[0].port->o.flow.maxBytes * (uint64_t)group->link->ports;
	if (got < limit || got > limit + EP_LINK_PORTS)
		seat_fail(seat, "rank %d: %llu bytes in flight, must be %llu", group->rank, got + 0ull, limit + 0ull);
	if (ep_link_reserve(group->link, now->far * BYTES, now->far * BYTES) || seat_barrier(seat))
		return seat_fail(seat, "rank %d: %s", group->rank, ep_last_error());
	ep_link_args(group->link, &far);
	if (rows_put(seat, group, &far) || rows_wait(seat, group, &far) || seat_barrier(seat))
		return -1;
	rings_check(seat, group->link);
	return 0;
}

static int wanted_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ep_algo algo = ep_ll_algo;
	struct ep_group_cfg cfg = { .version = 2,
				    .algorithm = NCCL_EP_ALGO_LOW_LATENCY,
				    .num_experts = (uint32_t)job->ranks,
				    .max_dispatch = 4,
				    .max_token_bytes = 256 };
	ncclEpAllocConfig_t alloc = { 0 };
	struct ncclEpGroup *group = NULL;
	ncclComm_t comm = seat_comm(seat);
	int rc;

	now = job;
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
		const char *net, *per_node;
		struct job job;
	} rows[] = {
		{ "loop", "2", { .ranks = 7, .per_node = 2, .far = 6, .throughput = true } },
		{ "loop:unordered=1", "3", { .ranks = 8, .per_node = 3, .far = 4 } },
		{ "loop", "2", { .ranks = 7, .per_node = 2, .far = 6, .odd = true } },
		{ "loop:unordered=1", "4", { .ranks = RANKS, .per_node = 4, .far = 15, .throughput = true } },
		{ "loop:unordered=1", "1", { .ranks = RANKS, .per_node = 1, .far = 63, .throughput = true } },
	};
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	int failed = 0;

	if (world_open(&opts, &world))
		return 1;
	world_setenv(world, "NCCL_EP_ENGINES", "2");
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct job *job = &rows[i].job;
		int rc;

		world_setenv(world, "NCCL_EP_NET", rows[i].net);
		world_setenv(world, "NCCL_EP_RANKS_PER_NODE", rows[i].per_node);
		rc = world_run(world, job->ranks, wanted_job, job, sizeof(*job), 60);
		printf("%s %s, %d ranks on nodes of %d%s%s%s%s\n", rc ? "FAILED" : "ok    ", rows[i].net, job->ranks,
		       job->per_node, job->throughput ? ", throughput" : "", job->odd ? ", disagreement" : "",
		       rc ? ": " : "", rc ? world_text(world) : "");
		failed += rc != 0;
	}
	failed += world_close(world) != 0;
	return failed ? 1 : 0;
}
