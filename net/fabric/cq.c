/* SPDX-License-Identifier: Apache-2.0 */
/* The completion side of the hot path: completions, immediates and errors. */
#include <stdio.h>

#include "net/fabric/fabric.h"
#include "util/clock.h"
#include "util/error.h"

#define CLOCK_EVERY 64u	 /* polls between two readings of the clock while there is traffic */
#define LOOK_NS 1000000u /* between two checks of all peers: 1 ms */

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

/*
 * A hello is told by its value, which is random: a rank that has connected may put already while this one has not.
 * Neither a bit of the data (efa has 4 bytes, all of them the caller's) nor FI_SOURCE is needed.
 */
static void imm_take(struct fab_ctx *ctx, uint32_t imm)
{
	if (__builtin_expect(ctx->meet && ctx->meet->mark == imm, 0))
		ctx->meet->hellos++;
	else
		ctx->imms[ctx->tail++ % FAB_IMMS] = imm;
}

static void entry_take(struct fab_ctx *ctx, const struct ofi_cq_data_entry *e)
{
	struct fab_slot *slot = e->op_context;

	/* One provider sets OFI_REMOTE_CQ_DATA at the sender too; OFI_WRITE is set at the sender only. */
	if (e->flags & OFI_REMOTE_CQ_DATA && !(e->flags & OFI_WRITE)) {
		imm_take(ctx, (uint32_t)e->data);
		if (ctx->dev->receives && slot)
			fab_receive_add(ctx, slot);
	} else if (slot && !(e->flags & (OFI_REMOTE_WRITE | OFI_REMOTE_READ))) {
		op_complete(ctx, slot, 0);
	}
}

/*
 * One doorbell for all: the device sees receives posted with OFI_MORE when one without it follows. A refusal ends the
 * batch; the doorbell then comes with the rest, which is tried at every poll.
 */
static void receives_post(struct fab_ctx *ctx)
{
	while (ctx->unposted) {
		struct fab_slot *slot = ctx->unposted;
		struct iovec iov = { .iov_base = slot->bytes };
		void *desc = slot->chunk->mr->mem_desc;
		struct ofi_msg msg = {
			.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = OFI_ADDR_NONE, .context = slot
		};

		if (ctx->ep->msg->recvmsg(ctx->ep, &msg, slot->next ? OFI_MORE : 0))
			return;
		ctx->unposted = slot->next;
		ctx->unposted_count--;
	}
}

/* A posted operation of ours or NULL: the context in an error entry is not always valid. */
static struct fab_slot *slot_of(const struct fab_ctx *ctx, void *context)
{
	for (struct fab_chunk *c = ctx->chunks; c; c = c->next)
		if ((uint8_t *)context >= (uint8_t *)c->slots && context < (void *)c->end) {
			struct fab_slot *slot = context;

			return slot->left || slot->receive ? slot : NULL;
		}
	return NULL;
}

static void error_take(struct fab_ctx *ctx)
{
	struct ofi_cq_err_entry e = { .op_context = NULL };
	char text[80] = "", what[160];
	struct fab_slot *slot;
	const char *detail;

	if (ctx->cq->ops->readerr(ctx->cq, &e, 0) <= 0)
		return;
	detail = ctx->cq->ops->strerror(ctx->cq, e.prov_errno, e.err_data, text, sizeof(text));
	snprintf(what, sizeof(what), "%s (%s)", fab_api()->fi_strerror(e.err), detail ? detail : "no detail");
	slot = slot_of(ctx, e.op_context);
	if (slot && slot->receive) {
		/* No put is lost: one whose immediate finds no receive is repeated by the sender's device. */
		if (!ctx->receives_failed++)
			EP_INFO(EP_NET, "fabric: rank %d: a receive failed and is posted again: %s",
				ctx->comm->base.rank, what);
		fab_receive_add(ctx, slot);
		return;
	}
	if (!slot || e.flags & (OFI_REMOTE_WRITE | OFI_REMOTE_READ)) {
		EP_INFO(EP_NET, "fabric: ignored an error of an unknown operation: %s", what);
		return;
	}
	if (ctx->meet) /* the peer may not have got as far: meet.c repeats the hello */
		snprintf(ctx->meet->why, sizeof(ctx->meet->why), "%s", what);
	else
		ep_base_peer_lost(&ctx->comm->base, slot->peer, "%s", what);
	op_complete(ctx, slot, -EP_EREMOTE);
}

static int queue_read(struct fab_ctx *ctx)
{
	struct ofi_cq_data_entry entries[FAB_BATCH];
	ssize_t n = ctx->cq->ops->read(ctx->cq, entries, FAB_BATCH);

	ctx->idle = n <= 0;
	if (n == -EAGAIN)
		return 0;
	if (n == -(ssize_t)OFI_EAVAIL) {
		error_take(ctx);
		return 0;
	}
	if (n < 0)
		return fab_fail(ctx->dev, n, "fi_cq_read");
	for (ssize_t i = 0; i < n; i++)
		entry_take(ctx, &entries[i]);
	return 0;
}

/*
 * By the clock: an engine that naps polls rarely, one under load millions of times per second, and a check costs as
 * much as there are peers.
 */
static void peers_due(struct fab_ctx *ctx)
{
	if (!ctx->idle && ++ctx->calls % CLOCK_EVERY)
		return;
	if (ep_now_ns() - ctx->looked >= LOOK_NS)
		fab_peers_look(ctx);
}

int fab_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct fab_ctx *ctx = c;
	int n = 0, rc = 0;

	peers_due(ctx);
	if (ctx->unposted_count >= FAB_BATCH || (ctx->idle && ctx->unposted))
		receives_post(ctx);
	/* A caller that takes no immediates leaves them in the queue, which throttles the senders. */
	if (ctx->tail - ctx->head <= FAB_IMMS - FAB_BATCH)
		rc = queue_read(ctx);
	while (n < max && ctx->head != ctx->tail)
		imms[n++] = ctx->imms[ctx->head++ % FAB_IMMS];
	*count = n;
	return rc;
}
