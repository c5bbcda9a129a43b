/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How verbs connects: everything is made by connect and nothing after it, by one queue pair per pair of ranks however
 * many datagrams it takes, and a peer that does not answer is found there. Inspects the net's internals. With an
 * argument: only answers are lost. 77: no device.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "net/verbs/verbs.h"
#include "test/model/verbs/nic.h"
#include "test/rig/net_rig.h"
#include "util/error.h"

enum { BYTES = 8192, RANKS = 3, HELLOS = 300, LOST_MS = 3000 };

static const struct nic_stats *stats; /* of the model, or NULL */

static void made(struct net_rank *me)
{
	const struct vb_ctx *ctx = me->ctx;
	uint32_t all = (uint32_t)me->nranks * ctx->comm->qps;
	struct nic_stats before = { 0 };

	for (int i = 0; i < ctx->comm->base.contexts; i++)
		EXPECT(me, ctx->comm->ctx[i]->qps_count == all);
	for (uint32_t i = 0; i < ctx->qps_count; i++)
		EXPECT(me, ctx->qps[i]->conn->have && (ctx->qps[i]->conn->ah || ctx->qps[i]->conn->peer == me->rank));
	net_meet(me);
	if (stats)
		before = *stats;
	net_meet(me);
	for (int r = 0; r < me->nranks; r++)
		EXPECT(me, net_put_to(me, (me->rank + r) % me->nranks) == 0);
	net_meet(me);
	EXPECT(me, ctx->qps_count == all);
	EXPECT(me, !stats || (stats->qps == before.qps && stats->ahs == before.ahs));
	EXPECT(me, ctx->ud.sent < 16 * (uint32_t)me->nranks); /* no endless echo */
}

static bool notes_posted(const struct vb_ctx *ctx)
{
	for (uint32_t i = 0; i < ctx->ud.receives; i++)
		if (ctx->ud.missing[i])
			return false;
	return true;
}

/* More datagrams than receives: all of them are posted again, also those that the NIC refuses for a moment. */
static void repeated(struct net_rank *me)
{
	struct vb_ctx *ctx = me->ctx;
	struct vb_conn *conn = &ctx->conns[(me->rank + 1) % me->nranks];
	uint32_t end = ctx->ud.sent + HELLOS;

	while (ctx->ud.sent < end && !me->errors) {
		EXPECT(me, vb_hello_send(conn) == 0);
		NET_UNTIL(me, ctx->ud.sent == ctx->ud.gone, NULL, NULL);
	}
	NET_UNTIL(me, notes_posted(ctx), NULL, NULL);
	net_meet(me);
	EXPECT(me, net_put_to(me, conn->peer) == 0);
}

/* Ranks 0 to `ranks` - 1 connect, of two that listen: the result of the first, and whether all have. */
static int pair_connect(int ranks, uint64_t wait_ms, bool *all)
{
	uint8_t handles[2][NCCL_EP_NET_HANDLE_SIZE] = { { 0 } };
	uint64_t start = ep_now_ns();
	void *listener[2] = { NULL, NULL }, *comm[2] = { NULL, NULL };
	struct ep_net *net;
	int rc;

	if (ep_net_open("verbs", &net))
		return 1;
	rc = net->ops.listen(net->net, 0, 2, handles[0], &listener[0]);
	rc = rc ? rc : net->ops.listen(net->net, 0, 2, handles[1], &listener[1]);
	for (*all = false; !rc && !*all && ep_now_ns() - start < wait_ms * 1000000;) {
		*all = true;
		for (int r = 0; r < ranks && !rc; r++) {
			if (!comm[r])
				rc = net->ops.connect(listener[r], handles, 2, r, &comm[r]);
			*all &= comm[r] != NULL;
		}
	}
	for (int r = 0; r < 2; r++) {
		if (comm[r])
			net->ops.closeComm(comm[r]);
		if (listener[r])
			net->ops.closeListen(listener[r]);
	}
	ep_net_close(net);
	return rc;
}

/* Rank 1 listens, and never connects. */
static int silent(void)
{
	bool all;
	int rc = pair_connect(1, 4ull * LOST_MS, &all);

	printf("silent: %d, \"%s\"\n", rc, ep_last_error());
	return all || rc != -EREMOTEIO || !strstr(ep_last_error(), "rank 1") ||
	       !strstr(ep_last_error(), "did not answer");
}

/* With EP_MODEL_LOSS=2-: each has the other's numbers, and no answer arrives. */
static int unanswered(void)
{
	bool all;
	int rc = pair_connect(2, LOST_MS, &all);

	printf("unanswered: %d, %s\n", rc, all ? "connected" : "not connected");
	return rc || !all;
}

int main(int argc, char **argv)
{
	static const struct net_case cases[] = {
		{ .spec = "verbs", .ranks = RANKS, .bytes = BYTES, .run = made },
		{ .spec = "verbs:qps=4", .ranks = 6, .bytes = BYTES, .run = made },
		{ .spec = "verbs:contexts=4", .ranks = 4, .each = 2, .bytes = BYTES, .run = made },
		{ .spec = "verbs", .ranks = RANKS, .bytes = BYTES, .run = repeated },
	};
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	char lost[16];
	int errors = 0;

	if (net_absent("verbs"))
		return 77;
	(void)argv;
	if (argc > 1)
		return unanswered();
	stats = lib ? dlsym(lib, "ep_model_nic") : NULL;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		errors += net_run(&cases[i]);
	snprintf(lost, sizeof(lost), "%d", LOST_MS);
	setenv("NCCL_EP_PEER_LOST_MS", lost, 1);
	errors += silent();
	return errors != 0;
}
