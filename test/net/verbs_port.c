/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs_port CASE...: what a port or a device reports is acted on at once, and the message names the port, the peer and
 * both addresses. cable: two pairs of devices, one of which loses its link (ip link); chosen: a device whose port is
 * down is not. All others are of the model of test/model/verbs, which raises the events: down: with an event; silent:
 * without one; flap: it is up again, and down later; defer: ACTIVE_DEFER is up, and down later; gid: the address
 * changes; lid: that of InfiniBand; qp: a queue pair fails; fatal: the device, or the UD queue pair; timeout:
 * retransmissions end before NCCL_EP_PEER_LOST_MS. 77: not possible here.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "net/verbs/verbs.h"
#include "test/model/verbs/nic.h"
#include "test/rig/net_rig.h"
#include "util/error.h"

enum { BYTES = 8192, RANKS = 3, PORT_RANK = 1, SOON_MS = 2000 };

static struct {
	const struct nic_stats *stats;
	struct nic_port (*port)(const struct nic_port *change);
	void (*event)(unsigned type, void *element);
} model;

static void says(struct net_rank *me, int peer, const char *words)
{
	const char *why = "";

	EXPECT(me, me->net->ops.queryLastError(me->comm, peer, &why) == -EREMOTEIO);
	if (!strstr(why, words)) {
		EXPECT(me, !"the message has the words");
		fprintf(stderr, "\"%s\" has no \"%s\"\n", why, words);
	}
}

static bool is_lost(struct net_rank *me, int peer)
{
	const char *why;

	return me->net->ops.queryLastError(me->comm, peer, &why) != 0;
}

/* Nobody is lost for that long. */
static void all_live(struct net_rank *me, uint64_t ms)
{
	for (uint64_t end = ep_deadline_ms(ms); ep_now_ns() < end;)
		for (int r = 0; r < me->nranks; r++)
			EXPECT(me, net_put_to(me, r) == 0 && !is_lost(me, r));
}

/* All others are lost within that time, with these words, by waiting alone. */
static void all_lost(struct net_rank *me, uint64_t ms, const char *words)
{
	uint64_t end = ep_deadline_ms(ms);
	char name[16];

	for (int r = 0; r < me->nranks; r++) {
		if (r == me->rank)
			continue;
		while (!is_lost(me, r) && ep_now_ns() < end)
			net_step(me, NULL, NULL);
		snprintf(name, sizeof(name), "rank %d", r);
		says(me, r, name);
		says(me, r, words);
		EXPECT(me, net_put_to(me, r) == -EREMOTEIO);
	}
}

static void port_set(unsigned state, uint16_t lid, uint8_t host)
{
	struct nic_port port = { .state = state, .lid = lid, .host = host };

	model.port(&port);
}

/* The others still reach each other. */
static void others_go_on(struct net_rank *me)
{
	net_meet(me);
	if (me->rank != PORT_RANK)
		for (int r = 0; r < me->nranks; r++)
			EXPECT(me, r == PORT_RANK || net_put_to(me, r) == 0);
	net_meet(me);
}

static void down(struct net_rank *me)
{
	all_live(me, 50);
	net_meet(me);
	if (me->rank == PORT_RANK) {
		port_set(1, 7, 1);
		model.event(IB_EVENT_PORT_ERR, NULL);
		all_lost(me, SOON_MS, "port model0:1 is DOWN");
		says(me, 0, "from model0:1 (192.0.2.1) to 192.0.2.1");
	}
	others_go_on(me);
}

/* A port that works is not read; one that does not is found by what is in flight. */
static void silent(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .peer = 0, .srcMr = me->mr, .dstMr = me->mr, .size = 64 };
	uint32_t reads = model.stats->port_reads;
	void *request = NULL;

	all_live(me, 50);
	EXPECT(me, model.stats->port_reads == reads);
	net_meet(me);
	if (me->rank == PORT_RANK) {
		port_set(1, 7, 1);
		EXPECT(me, me->hot->iput(me->ctx, &put, &request) == 0 && request);
		all_lost(me, SOON_MS, "port model0:1 is DOWN");
		EXPECT(me, net_end(me, request, NULL, NULL) == -EREMOTEIO);
		EXPECT(me, model.stats->port_reads < reads + 20);
	}
	others_go_on(me);
}

static void flap(struct net_rank *me)
{
	uint32_t reads;

	if (me->rank == PORT_RANK)
		model.event(IB_EVENT_PORT_ACTIVE, NULL);
	all_live(me, 50);
	net_meet(me);
	if (me->rank == PORT_RANK) {
		reads = model.stats->port_reads;
		model.event(IB_EVENT_PORT_ERR, NULL);
		NET_UNTIL(me, model.stats->port_reads > reads, NULL, NULL);
		port_set(1, 7, 1);
		EXPECT(me, !is_lost(me, 0));
		all_lost(me, SOON_MS, "port model0:1 is DOWN");
	}
	others_go_on(me);
}

/* The state is read at the event, and again while that is in doubt: both times the port counts as up. */
static void defer(struct net_rank *me)
{
	uint32_t reads = model.stats->port_reads;

	if (me->rank == PORT_RANK) {
		port_set(IB_PORT_ACTIVE_DEFER, 7, 1);
		model.event(IB_EVENT_PORT_ERR, NULL);
	}
	all_live(me, 600);
	if (me->rank == PORT_RANK)
		EXPECT(me, model.stats->port_reads >= reads + 2);
	net_meet(me);
	if (me->rank == PORT_RANK) {
		port_set(1, 7, 1);
		model.event(IB_EVENT_PORT_ERR, NULL);
		all_lost(me, SOON_MS, "port model0:1 is DOWN");
	}
	others_go_on(me);
}

static void gid(struct net_rank *me)
{
	if (me->rank == PORT_RANK)
		model.event(IB_EVENT_GID_CHANGE, NULL); /* of another entry */
	all_live(me, 50);
	net_meet(me);
	if (me->rank == PORT_RANK) {
		port_set(IB_PORT_ACTIVE, 7, 9);
		model.event(IB_EVENT_GID_CHANGE, NULL);
		all_lost(me, SOON_MS, "changed from 192.0.2.1 to 192.0.2.9");
	}
	others_go_on(me);
}

static void lid(struct net_rank *me)
{
	if (me->rank == PORT_RANK)
		model.event(IB_EVENT_LID_CHANGE, NULL);
	all_live(me, 50);
	net_meet(me);
	if (me->rank == PORT_RANK) {
		port_set(IB_PORT_ACTIVE, 12, 1);
		model.event(IB_EVENT_LID_CHANGE, NULL);
		all_lost(me, SOON_MS, "changed from 7 to 12");
		says(me, 0, "from model0:1 (LID 7, ");
		says(me, 0, " to LID 7, ");
	}
	others_go_on(me);
}

static void qp(struct net_rank *me)
{
	struct vb_ctx *ctx = me->ctx;

	all_live(me, 50);
	net_meet(me);
	if (me->rank == PORT_RANK) {
		uint64_t end = ep_deadline_ms(SOON_MS);

		model.event(IB_EVENT_QP_FATAL, ctx->conns[2].qp[0].qp);
		while (!is_lost(me, 2) && ep_now_ns() < end)
			net_step(me, NULL, NULL);
		says(me, 2, "queue pair error");
		says(me, 2, "from model0:1 (192.0.2.1) to 192.0.2.1");
		EXPECT(me, net_put_to(me, 0) == 0);
	}
	others_go_on(me);
}

static void fatal(struct net_rank *me)
{
	struct vb_ctx *ctx = me->ctx;
	uint64_t end = ep_deadline_ms(SOON_MS);
	int rc = 0, n;

	all_live(me, 50);
	net_meet(me);
	if (me->rank == PORT_RANK || me->rank == 2) {
		model.event(me->rank == 2 ? IB_EVENT_QP_FATAL : IB_EVENT_DEVICE_FATAL, ctx->ud.qp);
		for (end = ep_deadline_ms(SOON_MS); !rc && ep_now_ns() < end;)
			rc = me->hot->progress(me->ctx, NULL, 0, &n);
		EXPECT(me, rc == -EIO && strstr(ep_last_error(), "model0:1 (192.0.2.1)"));
		EXPECT(me, strstr(ep_last_error(), me->rank == 2 ? "UD queue pair" : "device fatal"));
	}
	net_meet(me);
}

static uint32_t timeout_wanted;

static void timeout(struct net_rank *me)
{
	EXPECT(me, net_put_to(me, 1 - me->rank) == 0);
	EXPECT(me, model.stats->timeout == timeout_wanted);
}

static int timeout_run(struct net_case *test)
{
	static const struct {
		const char *lost_ms, *timeout, *retries;
		uint32_t want;
	} rows[] = {
		{ NULL, NULL, NULL, 18 },	/* 8.6 s */
		{ NULL, "20", NULL, 19 },	/* 34 s, 17 s */
		{ NULL, "22", "0", 22 },	/* 17 s */
		{ "3000", NULL, NULL, 16 },	/* 2.1 s */
		{ "86400000", "20", NULL, 20 }, /* all of them */
	};
	int errors = 0;

	test->ranks = 2;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *names[] = { "NCCL_EP_PEER_LOST_MS", "NCCL_EP_IB_TIMEOUT", "NCCL_EP_IB_RETRY_CNT" };
		const char *values[] = { rows[i].lost_ms, rows[i].timeout, rows[i].retries };

		for (int k = 0; k < 3; k++)
			if (values[k])
				setenv(names[k], values[k], 1);
			else
				unsetenv(names[k]);
		timeout_wanted = rows[i].want;
		errors += net_run(test);
	}
	return errors;
}

static bool pair(int a, int b)
{
	return a / 2 == b / 2;
}

static int link_down(const struct net_rank *me)
{
	char command[256];

	snprintf(command, sizeof(command),
		 "ip link set $(cat /sys/class/infiniband/%.*s/ports/1/gid_attrs/ndevs/0) down",
		 (int)strcspn(me->props.name, ":"), me->props.name);
	return system(command);
}

static uint64_t *cut; /* shared: ns, when the link was down */

/*
 * Until the peer is lost, or ms after the link was cut. Those who lose it poll, and put nothing meanwhile: soft-RoCE of
 * Linux 6.1 now and then loops in the kernel for ever if packets are sent while the link goes down.
 */
static void cut_await(struct net_rank *me, int peer, uint64_t ms)
{
	uint64_t end = ep_deadline_ms(NET_WAIT_MS), since = 0;

	while (!is_lost(me, peer) && ep_now_ns() < end && (!since || ep_now_ns() - since < ms * 1000000)) {
		if (me->rank > 1)
			EXPECT(me, net_put_to(me, peer) == 0);
		else
			net_step(me, NULL, NULL);
		since = __atomic_load_n(cut, __ATOMIC_RELAXED);
	}
	fprintf(stderr, "cable: rank %d: %s, %lld ms after the cut\n", me->rank, is_lost(me, peer) ? "lost" : "live",
		since ? (long long)(ep_now_ns() - since) / 1000000 : -1);
}

/* Ranks 0 and 1 lose their link, 2 and 3 do not. */
static void cable(struct net_rank *me)
{
	int peer = me->rank ^ 1;
	char words[64];

	for (int i = 0; i < 20; i++)
		EXPECT(me, net_put_to(me, peer) == 0);
	net_meet(me);
	if (me->rank == 0) {
		EXPECT(me, link_down(me) == 0);
		__atomic_store_n(cut, ep_now_ns(), __ATOMIC_RELAXED);
	}
	cut_await(me, peer, me->rank > 1 ? 300 : SOON_MS);
	if (me->rank > 1) {
		EXPECT(me, !is_lost(me, peer));
		return;
	}
	snprintf(words, sizeof(words), "from %s (10.11.0.%d) to 10.11.0.%d: port", me->props.name, me->rank + 1,
		 peer + 1);
	says(me, peer, words);
	says(me, peer, " is DOWN");
	EXPECT(me, net_put_to(me, peer) == -EREMOTEIO);
}

static int cable_run(struct net_case *test)
{
	test->ranks = 4;
	test->peers = pair;
	cut = mmap(NULL, sizeof(*cut), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (cut == MAP_FAILED)
		return 1;
	setenv("NET_SPREAD", "1", 1);
	return net_run(test);
}

/* test/vm took the first pair down before. */
static void chosen(struct net_rank *me)
{
	int count = 0;

	EXPECT(me, me->net->ops.devices(me->net->net, &count) == 0 && count == 2);
	EXPECT(me, !strcmp(me->props.name, me->rank ? "rxe3:1" : "rxe2:1"));
	EXPECT(me, net_put_to(me, me->rank ^ 1) == 0);
}

static int chosen_run(struct net_case *test)
{
	test->ranks = 2;
	setenv("NET_SPREAD", "1", 1);
	return net_run(test);
}

static const struct {
	const char *name, *nic; /* nic: only of this model */
	void (*run)(struct net_rank *me);
	int (*rig)(struct net_case *test); /* NULL: net_run */
	bool real;
} cases[] = {
	{ "down", NULL, down, NULL, false },
	{ "silent", NULL, silent, NULL, false },
	{ "flap", NULL, flap, NULL, false },
	{ "defer", NULL, defer, NULL, false },
	{ "gid", "mlx5", gid, NULL, false },
	{ "lid", "ib", lid, NULL, false },
	{ "qp", NULL, qp, NULL, false },
	{ "fatal", NULL, fatal, NULL, false },
	{ "timeout", NULL, timeout, timeout_run, false },
	{ "cable", NULL, cable, cable_run, true },
	{ "chosen", NULL, chosen, chosen_run, true },
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

static int case_run(int i)
{
	struct net_case test = { .spec = "verbs", .ranks = RANKS, .each = 1, .bytes = BYTES, .run = cases[i].run };
	const char *mine = getenv("EP_MODEL_NIC");
	uint64_t start = ep_now_ns();
	int errors;

	if (cases[i].real == (model.port != NULL) || (cases[i].nic && strcmp(cases[i].nic, mine ? mine : "")))
		return 77;
	errors = cases[i].rig ? cases[i].rig(&test) : net_run(&test);
	printf("%s: %s, %llu ms\n", cases[i].name, errors ? "FAILED" : "ok",
	       (unsigned long long)((ep_now_ns() - start) / 1000000));
	return errors ? 1 : 0;
}

int main(int argc, char **argv)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	bool any = false;
	int failed = 0;

	setvbuf(stdout, NULL, _IOLBF, 0); /* not printed again by the ranks */
	setenv("NCCL_EP_PEER_LOST_MS", "5000", 1);
	if (argc < 2 || !lib || net_absent("verbs"))
		return 77;
	model.stats = dlsym(lib, "ep_model_nic");
	*(void **)&model.port = dlsym(lib, "ep_model_port");
	*(void **)&model.event = dlsym(lib, "ep_model_event");
	for (int k = 1; k < argc; k++)
		for (int i = 0; i < CASES; i++) {
			int rc = strcmp(argv[k], cases[i].name) ? 77 : case_run(i);

			any |= rc != 77;
			failed |= rc == 1;
		}
	return failed ? 1 : any ? 0 : 77;
}
