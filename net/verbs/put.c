/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The send side of the hot path. A queue pair completes in order, so a quiet put is unsignaled: the next signaled one
 * covers it. With several queue pairs per peer, a run of quiet puts and the put that covers it use the same one, and
 * the next run the next one: if single puts alternated, each would need its own completion.
 *
 * All posted work requests are counted, quiet or not: a failed queue pair completes all of them, and the completion
 * queue must have room for that. A peer may take half of what is left of it, so that one that completes nothing leaves
 * room to the others, and so does the next.
 */
#include <arpa/inet.h>
#include <string.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

static char vb_done; /* the request of an operation that is done at once */

static int peer_check(struct vb_ctx *ctx, int peer)
{
	struct vb_comm *comm = ctx->comm;
	int rc = ep_base_peer_check(&comm->base, peer);

	if (__builtin_expect(rc, 0)) {
		if (rc == -EP_EREMOTE)
			vb_conn_drop(&ctx->conns[peer]);
		return rc;
	}
	if (__builtin_expect(__atomic_load_n(&comm->peers[peer].left, __ATOMIC_RELAXED), 0))
		return vb_peer_lost(comm, peer, "it has closed its comm");
	return 0;
}

static int ends_check(struct vb_ctx *ctx, const ncclEpNetPut_v1_t *put)
{
	struct vb_comm *comm = ctx->comm;
	int rc = peer_check(ctx, put->peer);

	rc = rc ? rc : ep_base_put_check(&comm->base, put, put->dstMr, put->srcMr, VB_INLINE);
	if (__builtin_expect(!rc && put->size > comm->dev->link.max_msg_sz, 0))
		return EP_FAIL(EP_NET, EP_EARG, "verbs: put of %llu bytes; the maximum of %s is %u",
			       (unsigned long long)put->size, comm->dev->name, comm->dev->link.max_msg_sz);
	return rc;
}

/* The NIC accepted the work requests before `bad`; the others fail here, and the peer is lost. */
static void chain_refused(struct vb_ctx *ctx, const struct ib_send_wr *bad, int error)
{
	struct vb_chain *chain = &ctx->chain;
	struct vb_qp *qp = chain->qp;
	uint32_t left = chain->count;

	if (bad >= chain->wr && bad < chain->wr + chain->count)
		left = chain->count - (uint32_t)(bad - chain->wr);
	error = error < 0 ? errno : error;
	vb_port_blame(ctx->comm);
	vb_peer_lost(ctx->comm, qp->conn->peer, "ibv_post_send: %s", strerror(error));
	for (uint32_t i = 0; i < left; i++) {
		struct vb_slot **slot = &qp->slots[--qp->posted % qp->depth];

		if (*slot && (*slot)->orphan)
			vb_slot_give(ctx, *slot);
		else if (*slot) {
			(*slot)->rc = -EP_EREMOTE;
			(*slot)->done = true;
		}
		*slot = NULL;
	}
	qp->conn->open -= left;
	ctx->open -= left;
}

void vb_chain_post(struct vb_ctx *ctx)
{
	struct vb_chain *chain = &ctx->chain;
	struct ib_send_wr *bad = chain->wr;
	int rc;

	chain->wr[chain->count - 1].next = NULL;
	rc = ctx->ops->post_send(chain->qp->qp, chain->wr, &bad);
	if (__builtin_expect(rc, 0))
		chain_refused(ctx, bad, rc);
	chain->count = 0;
}

/* What the NIC reads: registered memory, or a copy of an inline put. */
static void source_fill(struct vb_ctx *ctx, struct vb_qp *qp, const ncclEpNetPut_v1_t *put, struct ib_send_wr *wr)
{
	struct vb_chain *chain = &ctx->chain;
	struct ib_sge *sge = &chain->sge[chain->count];
	const struct vb_mr *src = put->srcMr;
	uint8_t *bytes = chain->bytes[chain->count];

	wr->sge = sge;
	wr->num_sge = put->size ? 1 : 0;
	sge->length = (uint32_t)put->size;
	if (!(put->flags & NCCL_EP_NET_INLINE)) {
		sge->addr = (uintptr_t)src->base.base + put->srcOffset;
		sge->lkey = src->mr->lkey;
		return;
	}
	if (put->size <= qp->conn->max_inline) {
		wr->flags |= IB_SEND_INLINE;
		sge->lkey = 0;
	} else {
		bytes = qp->bytes + (size_t)(qp->posted % qp->depth) * VB_INLINE;
		sge->lkey = ctx->bytes->lkey;
	}
	memcpy(bytes, put->src, put->size);
	sge->addr = (uintptr_t)bytes;
}

/*
 * Quiet puts are signaled too after a long run of them, or when the context is half full: so room becomes free without
 * another put.
 */
static bool put_signals(const struct vb_ctx *ctx, const struct vb_qp *qp, bool quiet)
{
	return !quiet || qp->dark + 1 >= qp->depth / 4 || ctx->open >= ctx->limit / 2;
}

static void op_post(struct vb_ctx *ctx, struct vb_qp *qp, const ncclEpNetPut_v1_t *put, unsigned opcode,
		    struct vb_slot *slot)
{
	struct vb_chain *chain = &ctx->chain;
	const struct vb_mr *dst = put->dstMr;
	struct ib_send_wr *wr;

	if (chain->count && chain->qp != qp)
		vb_chain_post(ctx);
	chain->qp = qp;
	wr = &chain->wr[chain->count];
	wr->wr_id = VB_ID(qp->index, qp->posted);
	wr->next = wr + 1;
	wr->opcode = opcode;
	wr->flags = put_signals(ctx, qp, !slot) ? IB_SEND_SIGNALED : 0;
	qp->dark = wr->flags ? 0 : qp->dark + 1;
	wr->to.rdma.addr = dst->far[put->peer].addr + put->dstOffset;
	wr->to.rdma.rkey = dst->far[put->peer].rkey;
	if (opcode == IB_WR_RDMA_WRITE && put->flags & NCCL_EP_NET_IMM) {
		wr->opcode = IB_WR_RDMA_WRITE_WITH_IMM;
		wr->imm = htonl(put->imm);
	}
	source_fill(ctx, qp, put, wr);
	qp->slots[qp->posted++ % qp->depth] = slot;
	if (!qp->conn->open++)
		qp->conn->since = ctx->clock;
	ctx->open++;
	if (++chain->count == VB_CHAIN || !(put->flags & NCCL_EP_NET_MORE))
		vb_chain_post(ctx);
}

/*
 * A peer whose open work requests are all unsignaled goes beyond its part: it gets a completion only with one more,
 * which put_signals signals, as the context is more than half full then.
 */
static bool put_fits(const struct vb_ctx *ctx, const struct vb_conn *conn, const struct vb_qp *qp)
{
	uint32_t room = ctx->limit - ctx->open;

	return room && qp->posted - qp->completed < qp->depth && (conn->open < room || conn->open == qp->dark);
}

static int op_start(struct vb_ctx *ctx, const ncclEpNetPut_v1_t *put, unsigned opcode, void **request)
{
	struct vb_conn *conn = &ctx->conns[put->peer];
	struct vb_slot *slot = NULL;
	struct vb_qp *qp;

	if (__builtin_expect(!conn->ready, 0))
		return 0; /* progress repeats its hello */
	qp = &conn->qp[conn->turn];
	if (!put_fits(ctx, conn, qp))
		return 0;
	if (!(put->flags & NCCL_EP_NET_QUIET)) {
		slot = vb_slot_take(ctx);
		if (__builtin_expect(!slot, 0))
			return -ENOMEM;
		slot->peer = put->peer;
		conn->turn = (uint8_t)(conn->turn + 1 == conn->count ? 0 : conn->turn + 1);
	}
	op_post(ctx, qp, put, opcode, slot);
	*request = slot ? (void *)slot : NCCL_EP_NET_QUIET_REQUEST;
	return 0;
}

int vb_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	struct vb_ctx *ctx = c;
	int rc;

	*request = NULL;
	rc = ends_check(ctx, put);
	return rc ? rc : op_start(ctx, put, IB_WR_RDMA_WRITE, request);
}

/* A read by the NIC from device memory pushes its earlier writes. Host memory needs no flush. */
int vb_iflush(void *c, void *m, void **request)
{
	struct vb_ctx *ctx = c;
	struct vb_mr *mr = m;
	ncclEpNetPut_v1_t get = { .peer = ctx->comm->base.rank, .srcMr = ctx->comm->page, .dstMr = mr, .size = 1 };
	int rc;

	*request = &vb_done;
	if (mr->base.kind == NCCL_EP_NET_MEM_HOST)
		return 0;
	*request = NULL;
	rc = peer_check(ctx, get.peer);
	return rc ? rc : op_start(ctx, &get, IB_WR_RDMA_READ, request);
}

int vb_test(void *c, void *request, int *done)
{
	struct vb_ctx *ctx = c;
	struct vb_slot *slot = request;
	bool lost;
	int rc;

	*done = 1;
	if (request == &vb_done)
		return 0;
	lost = ep_base_is_lost(&ctx->comm->base, slot->peer);
	if (slot->done) {
		/* An earlier put may have been reported as failed before its completion was polled: P3. */
		rc = lost ? -EP_EREMOTE : slot->rc;
		vb_slot_give(ctx, slot);
		return rc;
	}
	if (__builtin_expect(lost, 0)) {
		vb_conn_drop(&ctx->conns[slot->peer]);
		slot->orphan = true;
		return -EP_EREMOTE;
	}
	*done = 0;
	return 0;
}
