/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the net verbs connects: with the first put to a peer and not before, once also when both ask at the same time,
 * and in spite of datagrams that get lost, whichever it is. Looks at the net from inside. 77: no device.
 */
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "net/verbs/verbs.h"
#include "test/rig/net_rig.h"

enum { BYTES = 8192, RANKS = 3 };

/* Rank 0 puts to rank 1: that makes a lane for both, and none for rank 2. */
static void first_put(struct net_rank *me)
{
	const struct vb_ctx *ctx = me->ctx;

	net_meet(me);
	EXPECT(me, ctx->qps_count == 0);
	net_meet(me);
	EXPECT(me, me->rank || net_put_to(me, 1) == 0);
	net_meet(me);
	EXPECT(me, ctx->qps_count == (me->rank < 2));
	EXPECT(me, ctx->ud.sent < 16); /* two, and what was asked again while the other was slow: no echo */
	/* And to itself it takes no datagrams at all. */
	EXPECT(me, me->rank < 2 || (net_put_to(me, 2) == 0 && ctx->qps_count == 1 && ctx->ud.sent == 0));
}

/* Everybody to everybody: one lane to each, and not one for each who asked. */
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
		EXPECT(me, ctx->qps[i]->lane->ready);
}

/* The next datagram that arrives is lost. Completions of our own are counted, as progress would. */
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

/* On a context of its own: rank 0 asks rank 1, and datagram number `lost` of the three that it takes does not arrive.
 */
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
		/* The first makes the lane, the answer goes out, and what comes back to it is lost. */
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
