/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several queue pairs per peer: all of them are used, the put that ends a run of quiet ones covers all of them, and
 * with many ranks there are fewer. Quiet puts to many peers do not block a context for ever. Inspects the net's
 * internals. 77: no device.
 */
#include "net/verbs/verbs.h"
#include "test/rig/net_rig.h"

enum { QPS = 4, RUNS = 12, QUIET = 5, BYTES = 1 << 20, PIECE = 64 << 10 };
#define SPEC "verbs:qps=4"

/* Large quiet puts, then a small one: on another queue pair it would complete first. */
static void runs(struct net_rank *me)
{
	const struct vb_conn *conn = &((struct vb_ctx *)me->ctx)->conns[1];
	ncclEpNetPut_v1_t put = { .peer = 1, .srcMr = me->mr, .dstMr = me->mr, .size = PIECE };

	if (me->rank == 0) {
		for (int run = 0; run < RUNS; run++) {
			put.size = PIECE;
			put.flags = NCCL_EP_NET_QUIET;
			for (int i = 0; i < QUIET; i++)
				EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
			put.size = 8;
			put.flags = 0;
			EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
			EXPECT(me, conn->open == 0);
		}
		EXPECT(me, conn->count == QPS);
		for (int k = 0; k < conn->count; k++)
			EXPECT(me, conn->qp[k].posted == RUNS / QPS * (QUIET + 1));
	}
	net_meet(me);
}

/* A context full of quiet puts, with no peer's queue full enough to need a signaled one. */
static void full(struct net_rank *me)
{
	struct vb_ctx *ctx = me->ctx;
	ncclEpNetPut_v1_t put = { .flags = NCCL_EP_NET_QUIET, .srcMr = me->mr, .dstMr = me->mr, .size = 8 };

	ctx->limit = 32;
	for (int i = 0; i < 300; i++)
		for (put.peer = 0; put.peer < me->nranks; put.peer++)
			EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
	EXPECT(me, ctx->open <= ctx->limit);
	net_meet(me);
}

static unsigned qps_of(const struct ep_net *net, int nranks)
{
	struct vb_handle handle = { .qps = 0 };
	void *listener = NULL;

	if (net->ops.listen(net->net, 0, nranks, &handle, &listener))
		return 0;
	net->ops.closeListen(listener);
	return handle.qps;
}

/* Ranks share the NIC's queue pairs: with too many ranks each pair gets one. */
static int share(void)
{
	struct ep_net *net;
	int bad, ranks;

	if (ep_net_open(SPEC, &net))
		return 1;
	ranks = ((struct vb_net *)net->net)->devs[0].attr.max_qp / 16;
	ranks = ranks < 65536 ? ranks : 65536;
	bad = qps_of(net, 2) != QPS || qps_of(net, ranks) >= QPS;
	if (bad)
		fprintf(stderr, "%u queue pairs per peer with 2 ranks, %u with %d\n", qps_of(net, 2),
			qps_of(net, ranks), ranks);
	ep_net_close(net);
	return bad;
}

int main(void)
{
	static const struct net_case spread = { .spec = SPEC, .ranks = 2, .bytes = BYTES, .run = runs };
	static const struct net_case narrow = { .spec = "verbs", .ranks = 3, .bytes = BYTES, .run = full };

	if (net_absent(SPEC))
		return 77;
	return net_run(&spread) + net_run(&narrow) + share() != 0;
}
