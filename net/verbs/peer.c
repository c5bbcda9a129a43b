/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detecting lost peers. The NIC reports a peer that does not acknowledge, after its retries; a closing rank says bye;
 * processes on this host are watched; a port that is down loses all (event.c); and a peer without progress for
 * NCCL_EP_PEER_LOST_MS is lost, whatever retries the NIC has left.
 */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

#define SWEEP_NS 5000000ull
#define STALL_NS 500000000ull /* without an acknowledgement: is the port up? */

const char *vb_status_text(unsigned status)
{
	static const struct {
		unsigned status;
		const char *text;
	} texts[] = {
		{ IB_WC_LOC_LEN_ERR, "local length error: the put is longer than the NIC allows" },
		{ IB_WC_LOC_QP_OP_ERR, "local queue pair operation error" },
		{ IB_WC_LOC_PROT_ERR, "local protection error: the source is no longer registered" },
		{ IB_WC_WR_FLUSH_ERR, "flushed after an earlier error" },
		{ IB_WC_BAD_RESP_ERR, "bad response" },
		{ IB_WC_LOC_ACCESS_ERR, "local access error" },
		{ IB_WC_REM_INV_REQ_ERR, "remote invalid request" },
		{ IB_WC_REM_ACCESS_ERR,
		  "remote access error (bad rkey or range): the registration is gone or another one" },
		{ IB_WC_REM_OP_ERR, "remote operation error" },
		{ IB_WC_RETRY_EXC_ERR,
		  "it does not acknowledge (retries exceeded); check its process, cable, PFC/ECN, GID; "
		  "NCCL_EP_IB_TIMEOUT, NCCL_EP_IB_RETRY_CNT" },
		{ IB_WC_RNR_RETRY_EXC_ERR, "it has no receives posted (RNR retries exceeded); its engine is stuck" },
		{ IB_WC_REM_ABORT_ERR, "remote abort" },
		{ IB_WC_FATAL_ERR, "fatal error of the NIC" },
		{ IB_WC_RESP_TIMEOUT_ERR, "response timeout" },
		{ IB_WC_GENERAL_ERR, "general error" },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].status == status)
			return texts[i].text;
	return "unknown status";
}

static void address_text(const struct vb_comm *comm, uint16_t lid, const union ib_gid *gid, char *text, size_t n)
{
	char address[INET6_ADDRSTRLEN];

	vb_gid_text(gid, address);
	if (comm->dev->roce)
		snprintf(text, n, "%s", address);
	else
		snprintf(text, n, "LID %u, %s", lid, address);
}

int vb_peer_lost(struct vb_comm *comm, int peer, const char *fmt, ...)
{
	const struct vb_handle *to = &comm->peers[peer].handle;
	char reason[256], mine[INET6_ADDRSTRLEN + 16], theirs[INET6_ADDRSTRLEN + 16];
	va_list args;

	if (ep_base_is_lost(&comm->base, peer)) /* every flushed completion comes here */
		return -EP_EREMOTE;
	va_start(args, fmt);
	vsnprintf(reason, sizeof(reason), fmt, args);
	va_end(args);
	address_text(comm, comm->dev->link.lid, &comm->dev->gid.gid, mine, sizeof(mine));
	address_text(comm, to->lid, &to->gid, theirs, sizeof(theirs));
	return ep_base_peer_lost(&comm->base, peer, "from %s (%s) to %s: %s", comm->dev->name, mine, theirs, reason);
}

static void process_gone(void *arg, int rank)
{
	struct vb_comm *comm = arg;

	if (!__atomic_load_n(&comm->peers[rank].left, __ATOMIC_RELAXED))
		vb_peer_lost(comm, rank, "its process ended");
}

static void conn_look(struct vb_ctx *ctx, struct vb_conn *conn)
{
	struct vb_comm *comm = ctx->comm;
	int peer = conn->peer;

	if (ep_base_is_lost(&comm->base, peer))
		vb_conn_drop(conn);
	else if (conn->open && __atomic_load_n(&comm->peers[peer].left, __ATOMIC_RELAXED))
		vb_peer_lost(comm, peer, "it has closed its comm");
	else if (conn->open && ctx->clock - conn->since > comm->lost_ns)
		vb_peer_lost(comm, peer, "it acknowledged nothing for %llu ms (NCCL_EP_PEER_LOST_MS)",
			     (unsigned long long)(comm->lost_ns / 1000000));
	else if (conn->open && ctx->clock - conn->since > STALL_NS)
		__atomic_store_n(&comm->stalled, 1, __ATOMIC_RELAXED);
}

static void asking_look(struct vb_ctx *ctx)
{
	struct vb_comm *comm = ctx->comm;

	for (struct vb_conn **at = &ctx->asking, *conn; (conn = *at);) {
		if (conn->ready || ep_base_is_lost(&comm->base, conn->peer)) {
			*at = conn->next_asking;
			conn->asking = false;
			continue;
		}
		at = &conn->next_asking;
		if (ctx->clock - conn->asked > comm->lost_ns)
			vb_peer_lost(comm, conn->peer,
				     "it did not answer for %llu ms (NCCL_EP_PEER_LOST_MS); check routes, firewalls "
				     "(UDP 4791) and NCCL_EP_IB_GID_INDEX",
				     (unsigned long long)(comm->lost_ns / 1000000));
		else if (ctx->clock >= conn->ask_next)
			vb_hello_send(conn);
	}
}

int vb_look(struct vb_ctx *ctx)
{
	struct vb_comm *comm = ctx->comm;
	int broken;

	ctx->clock += ep_base_clock_step(&ctx->looked);
	if (ctx->asking)
		asking_look(ctx);
	if (ctx->clock - ctx->swept < SWEEP_NS)
		return 0;
	ctx->swept = ctx->clock;
	ep_watch_look(&comm->watch, process_gone, comm);
	vb_events_look(comm);
	for (uint32_t i = 0; i < ctx->qps_count; i++)
		conn_look(ctx, ctx->qps[i]->conn);
	/* A2: pairs with R2 in comm_break of event.c. */
	broken = __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE);
	return broken > 0 ? EP_FAIL(EP_NET, broken, "%s", comm->why) : 0;
}
