/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is still there. A NIC tells of a peer that does not acknowledge, after its retries; a closing rank says so; ends
 * of processes on this host are watched; and what moves nothing for NCCL_EP_PEER_LOST_MS is lost, whatever the NIC
 * hopes for. Events of the device are read here too.
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
		{ IB_WC_LOC_LEN_ERR, "a put is longer than the NIC allows" },
		{ IB_WC_LOC_QP_OP_ERR, "the NIC found its own queue pair inconsistent" },
		{ IB_WC_LOC_PROT_ERR, "a put's source is not registered any more (local protection)" },
		{ IB_WC_WR_FLUSH_ERR, "the queue pair was flushed after an earlier error" },
		{ IB_WC_BAD_RESP_ERR, "the answer made no sense" },
		{ IB_WC_LOC_ACCESS_ERR, "the local memory does not allow it" },
		{ IB_WC_REM_INV_REQ_ERR, "the peer's NIC calls the request invalid" },
		{ IB_WC_REM_ACCESS_ERR,
		  "the peer's memory refused it (bad rkey or range): its registration is gone, or was never this" },
		{ IB_WC_REM_OP_ERR, "the peer's NIC could not carry it out" },
		{ IB_WC_RETRY_EXC_ERR,
		  "does not acknowledge (retries exceeded): it or the path is gone: check its process, cable, PFC/ECN, "
		  "GID; NCCL_EP_IB_TIMEOUT, NCCL_EP_IB_RETRY_CNT" },
		{ IB_WC_RNR_RETRY_EXC_ERR, "has no receives posted (RNR retries exceeded): it is stuck" },
		{ IB_WC_REM_ABORT_ERR, "the peer aborted it" },
		{ IB_WC_FATAL_ERR, "the NIC failed" },
		{ IB_WC_RESP_TIMEOUT_ERR, "the answer did not come in time" },
		{ IB_WC_GENERAL_ERR, "the NIC says only that it failed" },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].status == status)
			return texts[i].text;
	return "an error without a name";
}

/* Nothing goes on, in no context of the comm. */
static void comm_break(struct vb_comm *comm, const char *why)
{
	int none = 0;

	if (!__atomic_compare_exchange_n(&comm->broken, &none, -1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return;
	snprintf(comm->why, sizeof(comm->why), "verbs: rank %d: %s: %s", comm->base.rank, comm->dev->name, why);
	/* R2: pairs with A2 in vb_look: the sentence is complete. */
	__atomic_store_n(&comm->broken, EIO, __ATOMIC_RELEASE);
}

static void event_take(struct vb_comm *comm, const struct ib_event *event)
{
	const struct vb_qp *qp;

	switch (event->type) {
	case IB_EVENT_CQ_ERR:
		comm_break(comm, "a completion queue has overrun: completions are lost (option cq= is too small?)");
		break;
	case IB_EVENT_SRQ_ERR:
		comm_break(comm, "a shared receive queue has failed");
		break;
	case IB_EVENT_DEVICE_FATAL:
		comm_break(comm, "the device has failed: look at the kernel's log");
		break;
	case IB_EVENT_QP_FATAL:
	case IB_EVENT_QP_REQ_ERR:
	case IB_EVENT_QP_ACCESS_ERR:
		qp = event->element.qp->own;
		if (qp)
			ep_base_peer_lost(&comm->base, qp->lane->peer, "broke its queue pair: %s",
					  event->type == IB_EVENT_QP_ACCESS_ERR ? "it put to where it may not"
										: "the NIC reports an error of it");
		break;
	case IB_EVENT_PORT_ERR:
		if (event->element.port == comm->dev->port) /* retries may outlast it, so nobody is lost yet */
			EP_WARN(EP_NET, "verbs: rank %d: port %s went down: check the cable or ip link",
				comm->base.rank, comm->dev->name);
		break;
	case IB_EVENT_PORT_ACTIVE:
		if (event->element.port == comm->dev->port)
			EP_INFO(EP_NET, "verbs: rank %d: port %s is up", comm->base.rank, comm->dev->name);
		break;
	default:
		break;
	}
}

/* The descriptor does not block. */
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
		ep_base_peer_lost(&comm->base, rank, "is gone: its process ended");
}

static void lane_look(struct vb_ctx *ctx, struct vb_lane *lane)
{
	struct vb_comm *comm = ctx->comm;
	int peer = lane->peer;

	if (ep_base_is_lost(&comm->base, peer))
		vb_lane_drop(lane);
	else if (lane->open && __atomic_load_n(&comm->peers[peer].left, __ATOMIC_RELAXED))
		ep_base_peer_lost(&comm->base, peer, "has closed its side");
	else if (lane->open && ctx->clock - lane->since > comm->lost_ns)
		ep_base_peer_lost(&comm->base, peer, "has acknowledged nothing for %llu ms (NCCL_EP_PEER_LOST_MS)",
				  (unsigned long long)(comm->lost_ns / 1000000));
}

static void asking_look(struct vb_ctx *ctx)
{
	struct vb_comm *comm = ctx->comm;

	for (struct vb_lane **at = &ctx->asking, *lane; (lane = *at);) {
		if (lane->ready || ep_base_is_lost(&comm->base, lane->peer)) {
			*at = lane->next_asking;
			lane->asking = false;
			continue;
		}
		at = &lane->next_asking;
		if (ctx->clock - lane->asked > comm->lost_ns)
			ep_base_peer_lost(&comm->base, lane->peer,
					  "did not answer from %s for %llu ms (NCCL_EP_PEER_LOST_MS): check routes, "
					  "firewalls "
					  "(UDP 4791) and NCCL_EP_IB_GID_INDEX",
					  comm->dev->name, (unsigned long long)(comm->lost_ns / 1000000));
		else if (ctx->clock >= lane->ask_next)
			vb_hello_send(lane);
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
		lane_look(ctx, ctx->qps[i]->lane);
	/* A2: pairs with R2 in comm_break. */
	broken = __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE);
	return broken > 0 ? EP_FAIL(EP_NET, broken, "%s", comm->why) : 0;
}
