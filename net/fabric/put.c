/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The send side of the hot path. A quiet put completes like any other and is counted: the request that covers it is
 * reserved with the first quiet put and is done when all of them have completed. Suppressing completions would not
 * work: no provider completes in order (comp_order), so a later completion implies nothing about earlier puts. FI_MORE
 * is not used either: if the provider refuses the put that should follow, nothing rings the doorbell. A peer may take
 * half of what is left of the context's room, so that one that completes nothing leaves room to the others.
 */
#include <string.h>

#include "net/fabric/fabric.h"
#include "net/table.h"
#include "util/error.h"

static char fab_done; /* the request of an operation that is done at once */

static int peer_check(struct fab_ctx *ctx, int peer)
{
	struct fab_comm *comm = ctx->comm;
	int rc = ep_base_peer_check(&comm->base, peer);

	if (__builtin_expect(rc, 0)) {
		if (rc == -EP_EREMOTE)
			fab_conn_drop(ctx, peer);
		return rc;
	}
	if (__builtin_expect(fab_peer_left(comm, peer), 0))
		return ep_base_peer_lost(&comm->base, peer, "it has closed its comm");
	return 0;
}

typedef ssize_t (*rma_fn)(struct ofi_ep *ep, const struct ofi_msg_rma *msg, uint64_t flags);

/* Inline bytes are in the slot. */
static ssize_t op_post(struct fab_ctx *ctx, struct fab_slot *slot, const ncclEpNetPut_v1_t *put, rma_fn post)
{
	const struct fab_mr *src = put->srcMr, *dst = put->dstMr;
	const struct fab_far *far = &dst->far[put->peer];
	bool small = put->flags & NCCL_EP_NET_INLINE;
	void *desc = small ? slot->chunk->mr->mem_desc : src->mr[ctx->index]->mem_desc;
	struct iovec iov = { .iov_base = small ? slot->bytes : src->base.base + put->srcOffset, .iov_len = put->size };
	struct ofi_rma_iov rma = { .addr = far->base + put->dstOffset, .len = put->size, .key = far->key[ctx->index] };
	struct ofi_msg_rma msg = {
		.msg_iov = &iov,
		.desc = &desc,
		.iov_count = 1,
		.addr = ctx->conns[put->peer].addr,
		.rma_iov = &rma,
		.rma_iov_count = 1,
		.context = slot,
		.data = put->imm,
	};
	/*
	 * Quiet puts complete at transmission: delivery completion for all cost tcp a third, 78 of 117 thousand puts/s.
	 */
	uint64_t flags = OFI_COMPLETION | (put->flags & NCCL_EP_NET_QUIET ? 0 : ctx->dev->delivery);

	if (put->flags & NCCL_EP_NET_IMM)
		flags |= OFI_REMOTE_CQ_DATA;
	return post(ctx->ep, &msg, flags);
}

/* The provider did not accept it: for now (0 without a request), or finally. */
static int op_refused(struct fab_ctx *ctx, int peer, ssize_t rc)
{
	struct fab_conn *conn = &ctx->conns[peer];

	if (rc == -EAGAIN) {
		if (!conn->refused)
			conn->refused = ctx->clock + 1;
		return 0;
	}
	if (rc == -EINVAL || rc == -EMSGSIZE || rc == -ENOMEM)
		return fab_fail(ctx->dev, rc, "posting a put");
	return ep_base_peer_lost(&ctx->comm->base, peer, "%s", fab_api()->fi_strerror((int)-rc));
}

static int op_start(struct fab_ctx *ctx, const ncclEpNetPut_v1_t *put, rma_fn post, void **request)
{
	struct fab_conn *conn = &ctx->conns[put->peer];
	bool quiet = put->flags & NCCL_EP_NET_QUIET;
	struct fab_slot *slot;
	ssize_t rc;

	if (conn->open >= ctx->limit - ctx->live)
		return 0;
	if (quiet && !conn->cover)
		conn->cover = fab_slot_take(ctx);
	slot = !quiet && conn->cover ? conn->cover : fab_slot_take(ctx);
	if (__builtin_expect(!slot || (quiet && !conn->cover), 0))
		return -ENOMEM;
	if (put->flags & NCCL_EP_NET_INLINE && put->src)
		memcpy(slot->bytes, put->src, put->size);
	rc = op_post(ctx, slot, put, post);
	if (__builtin_expect(rc != 0, 0)) {
		if (slot != conn->cover)
			fab_slot_give(ctx, slot);
		return op_refused(ctx, put->peer, rc);
	}
	slot->peer = put->peer;
	slot->left++;
	if (quiet) {
		slot->cover = conn->cover;
		conn->cover->left++;
	} else {
		conn->cover = NULL;
	}
	if (!conn->open++)
		conn->since = ctx->clock;
	conn->refused = 0;
	ctx->live++;
	*request = quiet ? NCCL_EP_NET_QUIET_REQUEST : slot;
	return 0;
}

int fab_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	struct fab_ctx *ctx = c;
	int rc = peer_check(ctx, put->peer);

	*request = NULL;
	rc = rc ? rc : ep_base_put_check(&ctx->comm->base, put, put->dstMr, put->srcMr, FAB_INLINE);
	return rc ? rc : op_start(ctx, put, ctx->ep->rma->writemsg, request);
}

/* A read by the NIC from device memory pushes its earlier writes. Host memory needs no flush. */
static int fab_iflush(void *c, void *m, void **request)
{
	struct fab_ctx *ctx = c;
	struct fab_mr *mr = m;
	ncclEpNetPut_v1_t get = { .peer = ctx->comm->base.rank, .flags = NCCL_EP_NET_INLINE, .dstMr = mr, .size = 1 };
	int rc;

	*request = &fab_done;
	if (mr->base.kind == NCCL_EP_NET_MEM_HOST)
		return 0;
	*request = NULL;
	rc = peer_check(ctx, get.peer);
	return rc ? rc : op_start(ctx, &get, ctx->ep->rma->readmsg, request);
}

int fab_test(void *c, void *request, int *done)
{
	struct fab_ctx *ctx = c;
	struct fab_slot *slot = request;
	int rc;

	*done = 1;
	if (request == &fab_done)
		return 0;
	if (!slot->left) {
		rc = slot->rc;
		fab_slot_give(ctx, slot);
		return rc;
	}
	if (__builtin_expect(ep_base_is_lost(&ctx->comm->base, slot->peer), 0)) {
		fab_conn_drop(ctx, slot->peer);
		slot->orphan = true;
		return -EP_EREMOTE;
	}
	*done = 0;
	return 0;
}

const ncclEpNetHot_v1_t fab_hot = { EP_NET_HOT_OPS(fab) };
