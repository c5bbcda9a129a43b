/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detecting lost peers. Some providers report a broken connection, none the end of a peer's process on the same host.
 * So processes on this host are watched, a closing rank says bye, and a peer without progress for NCCL_EP_PEER_LOST_MS
 * is lost.
 */
#include "net/fabric/fabric.h"

bool fab_peer_left(const struct fab_comm *comm, int peer)
{
	return __atomic_load_n(&comm->page[peer].bye, __ATOMIC_RELAXED);
}

static void process_gone(void *arg, int rank)
{
	if (!fab_peer_left(arg, rank))
		ep_base_peer_lost(arg, rank, "its process ended");
}

/* Its posted operations may never complete: they must not count against the limit of the others. */
void fab_conn_drop(struct fab_ctx *ctx, int peer)
{
	struct fab_conn *conn = &ctx->conns[peer];

	if (conn->dropped)
		return;
	conn->dropped = true;
	ctx->live -= conn->open;
}

static void conn_look(struct fab_ctx *ctx, int peer)
{
	struct fab_conn *conn = &ctx->conns[peer];
	struct fab_comm *comm = ctx->comm;

	if (ep_base_is_lost(&comm->base, peer)) {
		fab_conn_drop(ctx, peer);
		return;
	}
	if (conn->open && fab_peer_left(comm, peer)) {
		ep_base_peer_lost(&comm->base, peer, "it has closed its comm");
		return;
	}
	/*
	 * Another peer may be the cause of no room; it must be lost first: twice the time while anything is in flight.
	 */
	if ((conn->open && ctx->clock - conn->since > comm->lost_ns) ||
	    (conn->refused && ctx->clock - (conn->refused - 1) > (ctx->live ? 2 : 1) * comm->lost_ns))
		ep_base_peer_lost(&comm->base, peer, "it %s for %llu ms (NCCL_EP_PEER_LOST_MS)",
				  conn->open ? "acknowledged nothing" : "accepted nothing",
				  (unsigned long long)(comm->lost_ns / 1000000));
}

void fab_peers_look(struct fab_ctx *ctx)
{
	ctx->clock += ep_base_clock_step(&ctx->looked);
	ep_watch_look(&ctx->comm->watch, process_gone, ctx->comm);
	for (int r = 0; r < ctx->comm->base.nranks; r++)
		conn_look(ctx, r);
}
