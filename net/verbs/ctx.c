/* SPDX-License-Identifier: Apache-2.0 */
/* The queues of a context, and its requests. */
#include <stdlib.h>
#include <string.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

#define SLAB 256

struct vb_slot *vb_slot_take(struct vb_ctx *ctx)
{
	struct vb_slot *slot = ctx->free;

	if (__builtin_expect(!slot, 0)) {
		void **slabs = realloc(ctx->slabs, (ctx->slabs_count + 1) * sizeof(*slabs));

		ctx->slabs = slabs ? slabs : ctx->slabs;
		slot = slabs ? EP_CALLOC(EP_NET, SLAB, sizeof(*slot), "requests of a context") : NULL;
		if (!slot)
			return NULL;
		ctx->slabs[ctx->slabs_count++] = slot;
		for (int i = 1; i < SLAB; i++)
			vb_slot_give(ctx, &slot[i]);
	} else {
		ctx->free = slot->next;
	}
	slot->rc = 0;
	slot->done = slot->orphan = false;
	return slot;
}

void vb_slot_give(struct vb_ctx *ctx, struct vb_slot *slot)
{
	slot->next = ctx->free;
	ctx->free = slot;
}

static int queues_open(struct vb_ctx *ctx)
{
	struct vb_comm *comm = ctx->comm;
	struct ib_srq_attr srq = { .max_wr = comm->rq, .max_sge = 1 };
	int rc = 0;

	errno = EIO;
	ctx->cq = vb_api()->create_cq(comm->context, (int)comm->cq, ctx, NULL, 0);
	if (!ctx->cq)
		return vb_fail(comm->dev, errno, "ibv_create_cq");
	if (!comm->per_qp) {
		ctx->srq = vb_api()->create_srq(comm->pd, &srq);
		if (!ctx->srq)
			return vb_fail(comm->dev, errno, "ibv_create_srq");
		rc = vb_rq_open(ctx, &ctx->rq, NULL, 0);
	}
	return rc ? rc : vb_ud_open(ctx);
}

int vb_ctx_open(struct vb_comm *comm, int index, struct vb_ctx **out)
{
	struct vb_ctx *ctx = EP_CALLOC(EP_NET, 1, sizeof(*ctx), "a context");
	int rc;

	if (!ctx)
		return -ENOMEM;
	ctx->comm = comm;
	ctx->ops = &comm->context->ops;
	ctx->index = index;
	ctx->limit = VB_PUTS;
	ctx->conns = EP_CALLOC(EP_NET, (size_t)comm->base.nranks, sizeof(*ctx->conns), "the peers of a context");
	ctx->imms = EP_CALLOC(EP_NET, comm->receives, sizeof(*ctx->imms), "immediate data");
	rc = ctx->conns && ctx->imms ? 0 : -ENOMEM;
	for (int r = 0; !rc && r < comm->base.nranks; r++)
		ctx->conns[r] = (struct vb_conn){ .ctx = ctx, .peer = r };
	rc = rc ? rc : queues_open(ctx);
	if (rc)
		vb_ctx_close(ctx);
	else
		*out = ctx;
	return rc;
}

static void bytes_close(struct vb_ctx *ctx)
{
	void *bytes = ctx->bytes ? ctx->bytes->addr : NULL;

	if (ctx->bytes)
		vb_api()->dereg_mr(ctx->bytes);
	free(bytes);
}

/* Queue pairs first: their work requests in flight need the rest. NULL is accepted. */
void vb_ctx_close(struct vb_ctx *ctx)
{
	if (!ctx)
		return;
	for (int r = 0; ctx->conns && r < ctx->comm->base.nranks; r++)
		vb_conn_close(&ctx->conns[r]);
	bytes_close(ctx);
	vb_ud_close(ctx);
	if (ctx->srq)
		vb_api()->destroy_srq(ctx->srq);
	if (ctx->cq)
		vb_api()->destroy_cq(ctx->cq);
	for (uint32_t i = 0; i < ctx->slabs_count; i++)
		free(ctx->slabs[i]);
	free(ctx->slabs);
	free(ctx->qps);
	free(ctx->imms);
	free(ctx->conns);
	free(ctx);
}
