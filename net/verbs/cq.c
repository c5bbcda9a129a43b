/* SPDX-License-Identifier: Apache-2.0 */
/* The completion side of the hot path: completions, immediates and errors. */
#include "net/verbs/verbs.h"
#include "util/error.h"

#define LOOK_EVERY 64u

static void slot_end(struct vb_ctx *ctx, struct vb_slot *slot, int rc)
{
	if (slot->orphan) {
		vb_slot_give(ctx, slot);
		return;
	}
	slot->rc = rc;
	slot->done = true;
}

/* What the status says is only a consequence where the peer said bye, or this rank's port is down. */
static void put_failed(struct vb_conn *conn, const struct ib_wc *wc)
{
	struct vb_comm *comm = conn->ctx->comm;
	bool silent = wc->status == IB_WC_RETRY_EXC_ERR || wc->status == IB_WC_RNR_RETRY_EXC_ERR;

	if (__atomic_load_n(&comm->peers[conn->peer].left, __ATOMIC_RELAXED))
		vb_peer_lost(comm, conn->peer, "it has closed its comm");
	if (!ep_base_is_lost(&comm->base, conn->peer))
		vb_port_blame(comm);
	vb_peer_lost(comm, conn->peer, "%s%s [status %u, vendor %#x]",
		     silent ? "" : "a put failed: ", vb_status_text(wc->status), wc->status, wc->vendor_err);
	vb_conn_drop(conn);
}

/*
 * A queue pair completes in order: this work request and all before it. Those still open are quiet ones that succeeded:
 * their errors would have been reported first.
 */
static void put_complete(struct vb_ctx *ctx, const struct ib_wc *wc)
{
	uint32_t index = (uint32_t)(wc->wr_id >> 32), number = (uint32_t)wc->wr_id;
	struct vb_qp *qp = index < ctx->qps_count ? ctx->qps[index] : NULL;
	uint32_t n = qp ? number + 1 - qp->completed : 0;
	struct vb_conn *conn;
	struct vb_slot **slot;

	if (__builtin_expect(!qp || !n || n > qp->posted - qp->completed, 0)) {
		EP_INFO(EP_NET, "verbs: ignored completion %#llx of an unknown work request",
			(unsigned long long)wc->wr_id);
		return;
	}
	conn = qp->conn;
	qp->completed += n;
	conn->open -= n;
	conn->since = ctx->clock;
	ctx->open -= n;
	if (__builtin_expect(wc->status, 0))
		put_failed(conn, wc);
	slot = &qp->slots[number % qp->depth];
	if (*slot)
		slot_end(ctx, *slot, wc->status ? -EP_EREMOTE : 0);
	*slot = NULL;
}

static void wc_take(struct vb_ctx *ctx, const struct ib_wc *wc)
{
	switch (wc->wr_id >> 32) {
	case VB_ID_RECV:
		vb_recv_take(ctx, wc);
		break;
	case VB_ID_NOTE_IN:
		vb_note_take(ctx, (uint32_t)wc->wr_id, wc->status ? 0 : wc->byte_len);
		break;
	case VB_ID_NOTE_OUT:
		ctx->ud.gone++;
		break;
	default:
		put_complete(ctx, wc);
	}
}

int vb_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct vb_ctx *ctx = c;
	struct ib_wc wc[VB_BATCH];
	int n, rc = 0;

	if (ctx->chain.count)
		vb_chain_post(ctx);
	if (__builtin_expect(++ctx->calls % LOOK_EVERY == 0, 0))
		rc = vb_look(ctx);
	n = ctx->ops->poll_cq(ctx->cq, VB_BATCH, wc);
	if (__builtin_expect(n < 0, 0))
		rc = rc ? rc : vb_fail(ctx->comm->dev, EIO, "ibv_poll_cq");
	for (int i = 0; i < n; i++)
		wc_take(ctx, &wc[i]);
	n = vb_imms_give(ctx, imms, max, count);
	rc = rc ? rc : n;
	if (__builtin_expect(ctx->again && !rc, 0))
		rc = vb_rq_again(ctx);
	return rc;
}
