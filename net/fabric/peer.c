/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is still there. Providers tell of a broken connection, some of them, and of a peer's death on the same host none
 * does; so processes of this host are watched, a rank that closes says so, and what moves nothing for
 * NCCL_EP_PEER_LOST_MS is lost.
 */
#include <stdio.h>
#include <string.h>

#include "net/fabric/fabric.h"
#include "util/clock.h"
#include "util/error.h"

#define STEP_MAX 1000000000ull /* a look's on the clock: that we were stopped is no reason to lose peers */

int fab_peer_lost(struct fab_comm *comm, int peer, const char *what)
{
	struct fab_peer *p = &comm->peers[peer];
	int none = 0;

	if (!__atomic_compare_exchange_n(&p->failed, &none, -1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return -EP_EREMOTE;
	snprintf(p->why, sizeof(p->why), "fabric: rank %d %s", peer, what);
	/* R1: pairs with A1 in fab_queryLastError (fabric.c). */
	__atomic_store_n(&p->failed, EP_EREMOTE, __ATOMIC_RELEASE);
	if (comm->closing) /* who goes first is no news */
		return -EP_EREMOTE;
	return EP_FAIL(EP_NET, EP_EREMOTE, "%s", p->why);
}

bool fab_peer_failed(const struct fab_comm *comm, int peer)
{
	return __atomic_load_n(&comm->peers[peer].failed, __ATOMIC_RELAXED);
}

bool fab_peer_left(const struct fab_comm *comm, int peer)
{
	return __atomic_load_n(&comm->page[peer].bye, __ATOMIC_RELAXED);
}

static void process_gone(void *arg, int rank)
{
	if (!fab_peer_left(arg, rank))
		fab_peer_lost(arg, rank, "is gone: its process ended");
}

/* What is open at the provider may never come back: it must not take the room of others. */
void fab_lane_drop(struct fab_ctx *ctx, int peer)
{
	struct fab_lane *lane = &ctx->lanes[peer];

	if (lane->dropped)
		return;
	lane->dropped = true;
	ctx->live -= lane->open;
}

static void lane_look(struct fab_ctx *ctx, int peer)
{
	struct fab_lane *lane = &ctx->lanes[peer];
	struct fab_comm *comm = ctx->comm;
	char what[96];

	if (fab_peer_failed(comm, peer)) {
		fab_lane_drop(ctx, peer);
		return;
	}
	if (lane->open && fab_peer_left(comm, peer)) {
		fab_peer_lost(comm, peer, "has closed its side");
		return;
	}
	/* No room may be another peer's doing, who is lost first: twice as long while anything is on its way. */
	if ((lane->open && ctx->clock - lane->since > comm->lost_ns) ||
	    (lane->refused && ctx->clock - (lane->refused - 1) > (ctx->live ? 2 : 1) * comm->lost_ns)) {
		snprintf(what, sizeof(what), "has %s for %llu ms (NCCL_EP_PEER_LOST_MS)",
			 lane->open ? "acknowledged nothing" : "taken nothing",
			 (unsigned long long)(comm->lost_ns / 1000000));
		fab_peer_lost(comm, peer, what);
	}
}

void fab_peers_look(struct fab_ctx *ctx)
{
	uint64_t now = ep_now_ns(), step = now - ctx->looked;

	if (ctx->looked)
		ctx->clock += step < STEP_MAX ? step : STEP_MAX;
	ctx->looked = now;
	ep_watch_look(&ctx->comm->watch, process_gone, ctx->comm);
	for (int r = 0; r < ctx->comm->nranks; r++)
		lane_look(ctx, r);
}
