/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How verbs connects: with the first put to a peer and not before, once even when both sides ask at the same time, and
 * whichever datagram is lost. Inspects the net's internals. 77: no device.
 */
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "net/verbs/verbs.h"
#include "test/rig/net_rig.h"

enum { BYTES = 8192, RANKS = 3 };

/* Rank 0 puts to rank 1: that connects these two and not rank 2. */
static void first_put(struct net_rank *me)
{
	const struct vb_ctx *ctx = me->ctx;

	net_meet(me);
	EXPECT(me, ctx->qps_count == 0);
	net_meet(me);
	EXPECT(me, me->rank || net_put_to(me, 1) == 0);
	net_meet(me);
	EXPECT(me, ctx->qps_count == (me->rank < 2));
	EXPECT(me, ctx->ud.sent < 16); /* two, and repetitions while the peer was slow: no endless echo */
	/* A rank connects to itself without datagrams. */
	EXPECT(me, me->rank < 2 || (net_put_to(me, 2) == 0 && ctx->qps_count == 1 && ctx->ud.sent == 0));
}

/* All to all: one connection per pair, not one per request. */
static void at_once(struct net_rank *me)
{
	const struct vb_ctx *ctx = me->ctx;
	uint32_t to = (uint32_t)me->nranks;

	net_meet(me);
	for (int r = 0; r < me->nranks; r++)
		EXPECT(me, net_put_to(me, (me->rank + r) % me->nranks) == 0);
	net_meet(me);
	EXPECT(me, ctx->qps_count == to * ctx->comm->qps);
	EXPECT(me, ctx->ud.sent < 16 * to); /* the same */
	for (uint32_t i = 0; i < ctx->qps_count; i++)
		EXPECT(me, ctx->qps[i]->conn->ready);
}

/* Drops the next datagram received. Completions of sends are counted, as progress does. */
static void lose_one(struct net_rank *me)
{
	struct vb_ctx *ctx = me->ctx;
	uint64_t end = ep_deadline_ms(NET_WAIT_MS);
	struct ib_wc wc;

	while (ep_now_ns() < end) {
		if (ctx->ops->poll_cq(ctx->cq, 1, &wc) != 1) {
			sched_yield();
			continue;
		}
		if (wc.wr_id >> 32 == VB_ID_NOTE_IN)
			return;
		EXPECT(me, wc.wr_id >> 32 == VB_ID_NOTE_OUT);
		ctx->ud.gone++;
	}
	EXPECT(me, !"a datagram came");
}

/* On another context: rank 0 asks rank 1, and datagram number `lost` of the three is dropped. */
static void lost_run(struct net_rank *me, int lost)
{
	ncclEpNetPut_v1_t put = { .peer = 1, .srcMr = me->mr, .dstMr = me->mr, .size = 64 };
	void *request = NULL;

	if (me->rank == 0) {
		EXPECT(me, me->hot->iput(me->ctx, &put, &request) == 0 && !request);
		if (lost == 2)
			lose_one(me);
		EXPECT(me, net_put_to(me, 1) == 0);
	} else if (me->rank == 1) {
		if (lost == 1)
			lose_one(me);
		/* The first one connects, the answer is sent, and the reply to it is lost. */
		if (lost == 3) {
			NET_UNTIL(me, ((struct vb_ctx *)me->ctx)->ud.sent >= 1, NULL, NULL);
			lose_one(me);
		}
	}
	net_meet(me);
	EXPECT(me, me->rank != 1 || net_put_to(me, 0) == 0);
	net_meet(me);
}

static void lost(struct net_rank *me)
{
	void *first = me->ctx;

	for (int i = 1; i <= 3; i++) {
		EXPECT(me, me->net->ops.createContext(me->comm, i, &me->ctx) == 0);
		net_meet(me);
		lost_run(me, i);
		EXPECT(me, me->net->ops.destroyContext(me->ctx) == 0);
		me->ctx = first;
	}
}

int main(void)
{
	static const struct net_case cases[] = {
		{ .spec = "verbs", .ranks = RANKS, .bytes = BYTES, .run = first_put },
		{ .spec = "verbs", .ranks = RANKS, .bytes = BYTES, .run = at_once },
		{ .spec = "verbs:qps=4", .ranks = 6, .bytes = BYTES, .run = at_once },
		{ .spec = "verbs", .ranks = 6, .each = 2, .bytes = BYTES, .run = at_once },
		{ .spec = "verbs:contexts=4", .ranks = RANKS, .bytes = BYTES, .run = lost },
	};
	int errors = 0;

	if (net_absent("verbs"))
		return 77;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		errors += net_run(&cases[i]);
	return errors != 0;
}
