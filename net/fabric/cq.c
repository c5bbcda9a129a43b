/* SPDX-License-Identifier: Apache-2.0 */
/* The completion side of the hot path: completions, immediates and errors. */
#include <stdio.h>

#include "net/fabric/fabric.h"
#include "util/error.h"

#define LOOK_EVERY 256u

static void op_complete(struct fab_ctx *ctx, struct fab_slot *slot, int rc)
{
	struct fab_conn *conn = &ctx->conns[slot->peer];
	struct fab_slot *request = slot->cover ? slot->cover : slot;

	conn->open--;
	conn->since = ctx->clock;
	if (!conn->dropped)
		ctx->live--;
	if (rc)
		request->rc = rc;
	request->left--;
	if (slot->cover)
		fab_slot_give(ctx, slot);
	if (request->orphan && !request->left)
		fab_slot_give(ctx, request);
}

/* While connecting. True: it was a hello; other ranks may have connected already, and put. */
static bool hello_take(struct fab_ctx *ctx, uint64_t data, uint64_t from)
{
	uint64_t peer = ctx->dev->wide ? (data & ~FAB_HELLO) >> 32 : UINT64_MAX;

	if (ctx->dev->wide && !(data & FAB_HELLO))
		return false;
	if (!ctx->dev->wide && from < (uint64_t)ctx->senders)
		peer = (uint64_t)ctx->sender[from];
	if (peer >= (uint64_t)ctx->comm->base.nranks) {
		EP_INFO(EP_NET, "fabric: dropped immediate data %#llx from unknown sender %#llx",
			(unsigned long long)data, (unsigned long long)from);
		return true;
	}
	/*
	 * Without a bit for it: a rank puts nothing before its hello is delivered, so the first immediate is the hello.
	 */
	if (!ctx->dev->wide && ctx->heard[peer])
		return false;
	ctx->heard[peer] = true;
	return true;
}

static void imm_take(struct fab_ctx *ctx, uint64_t data, uint64_t from)
{
	if (__builtin_expect(ctx->heard != NULL, 0) && hello_take(ctx, data, from))
		return;
	ctx->imms[ctx->tail++ % FAB_IMMS] = (uint32_t)data;
}

static void entry_take(struct fab_ctx *ctx, const struct ofi_cq_data_entry *e, uint64_t from)
{
	struct fab_slot *slot = e->op_context;

	/* One provider sets OFI_REMOTE_CQ_DATA at the sender too; OFI_WRITE is set at the sender only. */
	if (e->flags & OFI_REMOTE_CQ_DATA && !(e->flags & OFI_WRITE)) {
		imm_take(ctx, e->data, from);
		if (!ctx->dev->receives || !slot)
			return;
		slot->next = ctx->unposted;
		ctx->unposted = slot;
	} else if (slot && !(e->flags & (OFI_REMOTE_WRITE | OFI_REMOTE_READ))) {
		op_complete(ctx, slot, 0);
	}
}

static void receives_post(struct fab_ctx *ctx)
{
	while (ctx->unposted) {
		struct fab_slot *slot = ctx->unposted;

		if (ctx->ep->msg->recv(ctx->ep, slot->bytes, 0, slot->chunk->mr->mem_desc, OFI_ADDR_NONE, slot))
			return;
		ctx->unposted = slot->next;
	}
}

/* Whether it is a posted operation of ours: the context in an error entry is not always valid. */
static bool slot_known(const struct fab_ctx *ctx, const void *context)
{
	for (const struct fab_chunk *c = ctx->chunks; c; c = c->next)
		if ((const uint8_t *)context >= (const uint8_t *)c->slots && context < (const void *)c->end)
			return ((const struct fab_slot *)context)->left && !((const struct fab_slot *)context)->receive;
	return false;
}

static void error_take(struct fab_ctx *ctx)
{
	struct ofi_cq_err_entry e = { .op_context = NULL };
	char text[80] = "", what[160];
	const char *detail;

	if (ctx->cq->ops->readerr(ctx->cq, &e, 0) <= 0)
		return;
	detail = ctx->cq->ops->strerror(ctx->cq, e.prov_errno, e.err_data, text, sizeof(text));
	snprintf(what, sizeof(what), "%s (%s)", fab_api()->fi_strerror(e.err), detail ? detail : "no detail");
	if (e.flags & (OFI_REMOTE_WRITE | OFI_REMOTE_READ) || !slot_known(ctx, e.op_context)) {
		EP_INFO(EP_NET, "fabric: ignored an error of an unknown operation: %s", what);
		return;
	}
	ep_base_peer_lost(&ctx->comm->base, ((struct fab_slot *)e.op_context)->peer, "%s", what);
	op_complete(ctx, e.op_context, -EP_EREMOTE);
}

static int queue_read(struct fab_ctx *ctx)
{
	struct ofi_cq_data_entry entries[FAB_BATCH];
	bool source = ctx->heard && !ctx->dev->wide; /* only hellos need it */
	uint64_t from[FAB_BATCH];
	ssize_t n;

	if (!source)
		n = ctx->cq->ops->read(ctx->cq, entries, FAB_BATCH);
	else
		n = ctx->cq->ops->readfrom(ctx->cq, entries, FAB_BATCH, from);
	if (n == -EAGAIN)
		return 0;
	if (n == -(ssize_t)OFI_EAVAIL) {
		error_take(ctx);
		return 0;
	}
	if (n < 0)
		return fab_fail(ctx->dev, n, "fi_cq_read");
	for (ssize_t i = 0; i < n; i++)
		entry_take(ctx, &entries[i], source ? from[i] : 0);
	return 0;
}

int fab_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct fab_ctx *ctx = c;
	int n = 0, rc = 0;

	if (++ctx->calls % LOOK_EVERY == 0)
		fab_peers_look(ctx);
	if (ctx->unposted)
		receives_post(ctx);
	/* A caller that takes no immediates leaves them in the queue, which throttles the senders. */
	if (ctx->tail - ctx->head <= FAB_IMMS - FAB_BATCH)
		rc = queue_read(ctx);
	while (n < max && ctx->head != ctx->tail)
		imms[n++] = ctx->imms[ctx->head++ % FAB_IMMS];
	*count = n;
	return rc;
}
