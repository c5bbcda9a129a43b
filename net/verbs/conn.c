/* SPDX-License-Identifier: Apache-2.0 */
/* The RC queue pairs of a context to one peer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

#define DEPTH 512u     /* of the send queue */
#define RNR_TIMER 12   /* 0.64 ms until the sender retries after RNR NAK */
#define RNR_FOR_EVER 7 /* unlimited; NCCL_EP_PEER_LOST_MS ends it */
#define HOPS 64

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Less with many peers: a send queue of 512 entries with 64 bytes inline takes 64 KiB. */
static uint32_t depth_wanted(const struct vb_comm *comm)
{
	uint32_t most = (uint32_t)comm->dev->attr.max_qp_wr, want = DEPTH;

	/* A power of two: counters wrap around, and with them the index in the queue. */
	for (int n = comm->base.nranks - comm->base.absent; (n > 64 && want > 64) || want > most; n /= 2)
		want /= 2;
	return want ? want : 1;
}

struct ib_ah_attr vb_route(const struct vb_comm *comm, int peer)
{
	const struct vb_dev *dev = comm->dev;
	const struct vb_handle *to = &comm->peers[peer].handle;
	struct ib_ah_attr attr = { .port = dev->port, .sl = comm->path.sl, .dlid = to->lid };

	attr.is_global =
		dev->roce || dev->link.flags & IB_PORT_GRH_REQUIRED || to->gid.part.prefix != dev->gid.gid.part.prefix;
	if (!attr.is_global)
		return attr;
	attr.grh = (struct ib_route){
		.dgid = to->gid,
		.sgid_index = (uint8_t)dev->gid.index,
		.hop_limit = HOPS,
		.traffic_class = comm->path.tc,
	};
	return attr;
}

/* Enters it by index, for completions. */
static int qp_enter(struct vb_ctx *ctx, struct vb_qp *qp)
{
	if (ctx->qps_count == ctx->qps_room) {
		uint32_t room = ctx->qps_room ? 2 * ctx->qps_room : 16;
		struct vb_qp **qps = realloc(ctx->qps, room * sizeof(*qps));

		if (!qps)
			return -ENOMEM;
		ctx->qps = qps;
		ctx->qps_room = room;
	}
	qp->index = ctx->qps_count++;
	ctx->qps[qp->index] = qp;
	return 0;
}

static int qp_make(struct vb_conn *conn, struct vb_qp *qp, uint32_t depth)
{
	struct vb_comm *comm = conn->ctx->comm;
	struct ib_qp_init init = {
		.own = qp,
		.send_cq = conn->ctx->cq,
		.recv_cq = conn->ctx->cq,
		.srq = conn->ctx->srq,
		.cap = { .max_send_wr = depth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline = comm->max_inline },
		.type = IB_QPT_RC,
	};
	struct ib_qp_attr attr = {
		.state = IB_QPS_INIT,
		.pkey_index = comm->path.pkey,
		.port = comm->dev->port,
		.access = IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ,
	};
	int rc;

	init.cap.max_recv_wr = comm->per_qp ? comm->rq : 0;
	*qp = (struct vb_qp){ .conn = conn, .depth = depth };
	qp->slots = EP_CALLOC(EP_NET, depth, sizeof(*qp->slots), "requests of a queue pair");
	if (!qp->slots || getrandom(&qp->psn, sizeof(qp->psn), 0) != (ssize_t)sizeof(qp->psn))
		return -ENOMEM;
	qp->psn &= 0xffffff;
	errno = EIO;
	qp->qp = vb_api()->create_qp(comm->pd, &init);
	if (!qp->qp && comm->max_inline && errno == EINVAL) {
		init.cap.max_inline = 0; /* more than the NIC supports: use registered buffers */
		qp->qp = vb_api()->create_qp(comm->pd, &init);
	}
	if (!qp->qp)
		return -errno;
	conn->max_inline = least(conn->max_inline, init.cap.max_inline);
	rc = vb_api()->modify_qp(qp->qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_ACCESS_FLAGS);
	rc = rc ? -(rc < 0 ? errno : rc) : qp_enter(conn->ctx, qp);
	return rc || !comm->per_qp ? rc : vb_rq_open(conn->ctx, &qp->rq, qp->qp, qp->index);
}

/*
 * For all peers of the context at once: a registration for each would be entries of the NIC's tables, and commands to
 * its firmware, that grow with the ranks.
 */
static int bytes_open(struct vb_ctx *ctx, uint32_t depth)
{
	struct vb_comm *comm = ctx->comm;
	uint32_t room = (uint32_t)(comm->base.nranks - comm->base.absent) * comm->qps * depth;
	uint8_t *bytes = ep_base_pages("verbs", (size_t)room * VB_INLINE);

	if (!bytes)
		return -ENOMEM;
	errno = EIO;
	ctx->bytes = vb_api()->reg_mr(comm->pd, bytes, (size_t)room * VB_INLINE, IB_ACCESS_LOCAL_WRITE);
	if (!ctx->bytes) {
		free(bytes);
		return -errno;
	}
	ctx->bytes_room = room;
	return 0;
}

/* One buffer per send queue entry: the value must stay until the work request completes. */
static int bytes_make(struct vb_conn *conn, uint32_t depth)
{
	struct vb_ctx *ctx = conn->ctx;
	uint32_t want = conn->count * depth;
	int rc = 0;

	if (conn->max_inline >= VB_INLINE)
		return 0;
	if (!ctx->bytes)
		rc = bytes_open(ctx, depth);
	if (rc || want > ctx->bytes_room - ctx->bytes_used)
		return rc ? rc : -ENOSPC;
	for (int k = 0; k < conn->count; k++) {
		conn->qp[k].bytes = (uint8_t *)ctx->bytes->addr + (size_t)ctx->bytes_used * VB_INLINE;
		ctx->bytes_used += depth;
	}
	return 0;
}

int vb_conn_open(struct vb_conn *conn)
{
	struct vb_comm *comm = conn->ctx->comm;
	uint32_t theirs = comm->peers[conn->peer].handle.qps, depth = depth_wanted(comm);
	int count = (int)least(theirs, comm->qps), rc = 0;
	char why[160];

	if (conn->qp)
		return conn->dropped ? -EP_EREMOTE : 0;
	conn->max_inline = comm->max_inline;
	conn->qp = EP_CALLOC(EP_NET, (size_t)count, sizeof(*conn->qp), "queue pairs to a peer");
	if (!conn->qp)
		rc = -ENOMEM;
	while (!rc && conn->count < count) {
		rc = qp_make(conn, &conn->qp[conn->count], depth);
		conn->count++;
	}
	rc = rc ? rc : bytes_make(conn, depth);
	if (!rc)
		return 0;
	conn->dropped = true;
	return vb_peer_lost(comm, conn->peer, "cannot create queue pairs: %s", vb_reason(-rc, why, sizeof(why)));
}

/* Accepts what a failed open left. */
void vb_conn_close(struct vb_conn *conn)
{
	for (int k = 0; conn->qp && k < conn->count; k++)
		if (conn->qp[k].qp)
			vb_api()->destroy_qp(conn->qp[k].qp);
	for (int k = 0; conn->qp && k < conn->count; k++)
		free(conn->qp[k].slots);
	free(conn->qp);
	if (conn->ah)
		vb_api()->destroy_ah(conn->ah);
	*conn = (struct vb_conn){ .ctx = conn->ctx, .peer = conn->peer };
}

static int qp_aim(struct vb_qp *qp, uint32_t qpn, uint32_t psn)
{
	struct vb_comm *comm = qp->conn->ctx->comm;
	const struct vb_handle *mine = &comm->peers[comm->base.rank].handle, *to = &comm->peers[qp->conn->peer].handle;
	int limit = comm->dev->attr.max_qp_init_rd_atom;
	struct ib_qp_attr attr = {
		.state = IB_QPS_RTR,
		.path_mtu = least(mine->mtu, to->mtu),
		.rq_psn = psn,
		.dest_qp_num = qpn,
		.ah = vb_route(comm, qp->conn->peer),
		.max_dest_rd_atomic = mine->reads,
		.min_rnr_timer = RNR_TIMER,
	};
	int rc = vb_api()->modify_qp(qp->qp, &attr,
				     IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN |
					     IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);

	if (rc)
		return rc;
	attr = (struct ib_qp_attr){
		.state = IB_QPS_RTS,
		.sq_psn = qp->psn,
		.max_rd_atomic = (uint8_t)least(to->reads, limit > 0 ? (uint32_t)limit : 1),
		.timeout = comm->path.timeout,
		.retry_cnt = comm->path.retries,
		.rnr_retry = RNR_FOR_EVER,
	};
	return vb_api()->modify_qp(qp->qp, &attr,
				   IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT | IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
					   IB_QP_MAX_QP_RD_ATOMIC);
}

int vb_conn_aim(struct vb_conn *conn, const uint32_t *qpn, const uint32_t *psn)
{
	struct vb_comm *comm = conn->ctx->comm;
	int rc = 0;

	for (int k = 0; !rc && k < conn->count; k++)
		rc = qp_aim(&conn->qp[k], qpn[k] & 0xffffff, psn[k] & 0xffffff);
	if (rc)
		return vb_peer_lost(comm, conn->peer,
				    "cannot connect queue pairs: %s; check routes and addresses of its NIC",
				    strerror(rc < 0 ? errno : rc));
	conn->have = true;
	return 0;
}

/* In the error state work requests complete at once, not after the NIC's retries. */
void vb_conn_drop(struct vb_conn *conn)
{
	struct ib_qp_attr attr = { .state = IB_QPS_ERR };

	if (conn->dropped)
		return;
	conn->dropped = true;
	conn->ready = false;
	for (int k = 0; conn->qp && k < conn->count; k++)
		vb_api()->modify_qp(conn->qp[k].qp, &attr, IB_QP_STATE);
}
