/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives, which immediates consume: of one shared queue per context, or of every queue pair where the NIC has no
 * shared ones. A receive is reposted after its immediate was returned: a caller that takes none throttles its senders.
 */
#include <arpa/inet.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

#define AT_ONCE 64

/*
 * A NIC may refuse an entry for the moment (ionic answers -EAGAIN while it still owns it): those are posted by a later
 * progress. Every receive has an SGE of no bytes: Thor needs one, and its provider adds it to queues of queue pairs,
 * not to shared ones. It names registered memory, as a zero length means 2 GiB to some hardware.
 */
int vb_rq_post(struct vb_ctx *ctx, struct vb_rq *rq)
{
	struct vb_comm *comm = ctx->comm;
	struct ib_sge sge = { .addr = (uintptr_t)comm->page_bytes, .lkey = comm->page->mr->lkey };
	struct ib_recv_wr wr[AT_ONCE], *bad;

	while (rq->spent) {
		uint32_t n = rq->spent < AT_ONCE ? rq->spent : AT_ONCE;
		int rc;

		for (uint32_t i = 0; i < n; i++)
			wr[i] = (struct ib_recv_wr){
				.wr_id = VB_ID(VB_ID_RECV, rq->id), .next = &wr[i + 1], .sge = &sge, .num_sge = 1
			};
		wr[n - 1].next = NULL;
		bad = wr;
		rc = rq->qp ? ctx->ops->post_recv(rq->qp, wr, &bad) : ctx->ops->post_srq_recv(ctx->srq, wr, &bad);
		if (!rc) {
			rq->spent -= n;
			continue;
		}
		rq->spent -= bad >= wr && bad < wr + n ? (uint32_t)(bad - wr) : 0;
		if (rc != EAGAIN && rc != -EAGAIN)
			return vb_fail(comm->dev, rc < 0 ? -rc : rc, rq->qp ? "ibv_post_recv" : "ibv_post_srq_recv");
		ctx->again = true;
		break;
	}
	return 0;
}

int vb_rq_open(struct vb_ctx *ctx, struct vb_rq *rq, struct ib_qp *qp, uint32_t id)
{
	uint32_t size = ctx->comm->rq;

	*rq = (struct vb_rq){ .qp = qp, .id = id, .spent = size };
	/* A doorbell per receive would cost more than the immediate itself; a small queue must not run empty. */
	rq->give_back = size < 4 * AT_ONCE ? size / 4 : AT_ONCE;
	rq->give_back += !rq->give_back;
	return vb_rq_post(ctx, rq);
}

/* What was refused for the moment. */
int vb_rq_again(struct vb_ctx *ctx)
{
	int rc = 0;

	ctx->again = false;
	vb_notes_again(ctx);
	if (ctx->srq)
		return vb_rq_post(ctx, &ctx->rq);
	for (uint32_t i = 0; i < ctx->qps_count && !rc; i++)
		if (ctx->qps[i]->rq.spent >= ctx->qps[i]->rq.give_back)
			rc = vb_rq_post(ctx, &ctx->qps[i]->rq);
	return rc;
}

static struct vb_rq *rq_of(struct vb_ctx *ctx, uint32_t id)
{
	if (ctx->srq)
		return &ctx->rq;
	return id < ctx->qps_count ? &ctx->qps[id]->rq : NULL;
}

static struct vb_conn *conn_of(struct vb_ctx *ctx, uint32_t qpn)
{
	for (uint32_t i = 0; i < ctx->qps_count; i++)
		if (ctx->qps[i]->qp->qp_num == qpn)
			return ctx->qps[i]->conn;
	return NULL;
}

/* The queue pair has failed, or it is of a peer that was lost. */
static void recv_failed(struct vb_ctx *ctx, struct vb_rq *rq, const struct ib_wc *wc)
{
	struct vb_conn *conn = conn_of(ctx, wc->qp_num);

	if (wc->status == IB_WC_WR_FLUSH_ERR || !conn)
		EP_TRACE(EP_NET, "verbs: a receive failed: %s", vb_status_text(wc->status));
	else
		vb_peer_lost(ctx->comm, conn->peer, "a receive from it failed: %s [status %u, vendor %#x]",
			     vb_status_text(wc->status), wc->status, wc->vendor_err);
	rq->spent++;
}

void vb_recv_take(struct vb_ctx *ctx, const struct ib_wc *wc)
{
	struct vb_rq *rq = rq_of(ctx, (uint32_t)wc->wr_id);

	if (__builtin_expect(!rq || wc->status || !(wc->flags & IB_WC_WITH_IMM), 0)) {
		if (rq && wc->status)
			recv_failed(ctx, rq, wc);
		else if (rq)
			rq->spent++;
		return;
	}
	ctx->imms[ctx->tail] = (struct vb_imm){ .imm = ntohl(wc->imm), .rq = rq };
	ctx->tail = ctx->tail + 1 == ctx->comm->receives ? 0 : ctx->tail + 1;
	ctx->waiting++;
}

int vb_imms_give(struct vb_ctx *ctx, uint32_t *imms, int max, int *count)
{
	int rc = 0;

	for (*count = 0; *count < max && ctx->waiting; ctx->waiting--) {
		struct vb_imm *imm = &ctx->imms[ctx->head];

		ctx->head = ctx->head + 1 == ctx->comm->receives ? 0 : ctx->head + 1;
		imms[(*count)++] = imm->imm;
		if (++imm->rq->spent >= imm->rq->give_back && !rc)
			rc = vb_rq_post(ctx, imm->rq);
	}
	return rc;
}
