/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detecting lost peers, and device events. The NIC reports a peer that does not acknowledge, after its retries; a
 * closing rank says bye; processes on this host are watched; and a peer without progress for NCCL_EP_PEER_LOST_MS is
 * lost, whatever retries the NIC has left.
 */
#include <stdio.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

#define SWEEP_NS 5000000ull

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

/* Fails all contexts of the comm. */
static void comm_break(struct vb_comm *comm, const char *why)
{
	int none = 0;

	if (!__atomic_compare_exchange_n(&comm->broken, &none, -1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return;
	snprintf(comm->why, sizeof(comm->why), "verbs: rank %d: %s: %s", comm->base.rank, comm->dev->name, why);
	/* R2: pairs with A2 in vb_look: the message is complete. */
	__atomic_store_n(&comm->broken, EIO, __ATOMIC_RELEASE);
}

static void event_take(struct vb_comm *comm, const struct ib_event *event)
{
	const struct vb_qp *qp;

	switch (event->type) {
	case IB_EVENT_CQ_ERR:
		comm_break(comm, "completion queue overrun; is option cq= too small?");
		break;
	case IB_EVENT_SRQ_ERR:
		comm_break(comm, "shared receive queue failed");
		break;
	case IB_EVENT_DEVICE_FATAL:
		comm_break(comm, "device fatal error; see the kernel log");
		break;
	case IB_EVENT_QP_FATAL:
	case IB_EVENT_QP_REQ_ERR:
	case IB_EVENT_QP_ACCESS_ERR:
		qp = event->element.qp->own;
		if (qp)
			ep_base_peer_lost(&comm->base, qp->conn->peer, "queue pair error: %s",
					  event->type == IB_EVENT_QP_ACCESS_ERR
						  ? "it accessed memory that is not registered for it"
						  : "reported by the NIC");
		break;
	case IB_EVENT_PORT_ERR:
		if (event->element.port == comm->dev->port) /* retries may outlast it: no peer is lost yet */
			EP_WARN(EP_NET, "verbs: rank %d: port %s is down; check the cable or ip link", comm->base.rank,
				comm->dev->name);
		break;
	case IB_EVENT_PORT_ACTIVE:
		if (event->element.port == comm->dev->port)
			EP_INFO(EP_NET, "verbs: rank %d: port %s is up", comm->base.rank, comm->dev->name);
		break;
	default:
		break;
	}
}

/* The descriptor is non-blocking. */
static void events_read(struct vb_comm *comm)
{
	struct ib_event event;

	while (!vb_api()->get_async_event(comm->context, &event)) {
		event_take(comm, &event);
		vb_api()->ack_async_event(&event);
	}
}

static void process_gone(void *arg, int rank)
{
	struct vb_comm *comm = arg;

	if (!__atomic_load_n(&comm->peers[rank].left, __ATOMIC_RELAXED))
		ep_base_peer_lost(&comm->base, rank, "its process ended");
}

static void conn_look(struct vb_ctx *ctx, struct vb_conn *conn)
{
	struct vb_comm *comm = ctx->comm;
	int peer = conn->peer;

	if (ep_base_is_lost(&comm->base, peer))
		vb_conn_drop(conn);
	else if (conn->open && __atomic_load_n(&comm->peers[peer].left, __ATOMIC_RELAXED))
		ep_base_peer_lost(&comm->base, peer, "it has closed its comm");
	else if (conn->open && ctx->clock - conn->since > comm->lost_ns)
		ep_base_peer_lost(&comm->base, peer, "it acknowledged nothing for %llu ms (NCCL_EP_PEER_LOST_MS)",
				  (unsigned long long)(comm->lost_ns / 1000000));
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
			ep_base_peer_lost(&comm->base, conn->peer,
					  "it did not answer %s for %llu ms (NCCL_EP_PEER_LOST_MS); check routes, "
					  "firewalls "
					  "(UDP 4791) and NCCL_EP_IB_GID_INDEX",
					  comm->dev->name, (unsigned long long)(comm->lost_ns / 1000000));
		else if (ctx->clock >= conn->ask_next)
			vb_hello_send(conn);
	}
}

int vb_look(struct vb_ctx *ctx)
{
	struct vb_comm *comm = ctx->comm;
	int none = 0, broken;

	ctx->clock += ep_base_clock_step(&ctx->looked);
	if (ctx->asking)
		asking_look(ctx);
	if (ctx->clock - ctx->swept < SWEEP_NS)
		return 0;
	ctx->swept = ctx->clock;
	ep_watch_look(&comm->watch, process_gone, comm);
	if (__atomic_compare_exchange_n(&comm->looking, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
		events_read(comm);
		__atomic_store_n(&comm->looking, 0, __ATOMIC_RELEASE);
	}
	for (uint32_t i = 0; i < ctx->qps_count; i++)
		conn_look(ctx, ctx->qps[i]->conn);
	/* A2: pairs with R2 in comm_break. */
	broken = __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE);
	return broken > 0 ? EP_FAIL(EP_NET, broken, "%s", comm->why) : 0;
}
