/* SPDX-License-Identifier: Apache-2.0 */
/* The hot path of the net sm: puts, their completions, immediates. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "net_sm_comm.h"
#include "util/error.h"

static bool inside(const struct sm_key *key, uint64_t offset, uint64_t size)
{
	return offset <= key->size && size <= key->size - offset;
}

static bool valid(const struct sm_ctx *ctx, const ncclEpNetPut_v1_t *put)
{
	const struct sm_mr *src = put->srcMr, *dst = put->dstMr;
	bool small = put->flags & NCCL_EP_NET_INLINE;

	return put->peer >= 0 && put->peer < ctx->comm->nranks && dst->shared &&
	       inside(&dst->far[put->peer], put->dstOffset, put->size) &&
	       put->size <= (small ? EP_NIC_SMALL : SM_MAX_PUT) &&
	       (small || inside(&src->own, put->srcOffset, put->size));
}

/* Whether the peer can still be put to; for good. */
static int peer_check(struct sm_comm *comm, int peer, const struct sm_key *to)
{
	if (__atomic_load_n(&comm->lost[peer], __ATOMIC_RELAXED))
		return -EREMOTEIO;
	if (!__atomic_load_n(&comm->peer[peer]->closed, __ATOMIC_ACQUIRE) &&
	    __atomic_load_n(&comm->net->fabric->region[to->region], __ATOMIC_RELAXED) == to->serial)
		return 0;
	pthread_mutex_lock(&comm->in[0].lock); /* contexts may find out at once */
	if (!comm->lost[peer]) {
		snprintf(comm->why[peer], sizeof(comm->why[0]), "rank %d has closed its memory or comm", peer);
		__atomic_store_n(&comm->lost[peer], true, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&comm->in[0].lock);
	comm->net->log(NCCL_EP_NET_WARN, "sm: rank %d: %s", comm->rank, comm->why[peer]);
	return -EREMOTEIO;
}

static uint32_t pieces(uint64_t bytes)
{
	return bytes ? (uint32_t)((bytes + EP_NIC_PIECE - 1) / EP_NIC_PIECE) : 1;
}

static void piece_post(struct sm_ctx *ctx, const ncclEpNetPut_v1_t *put, uint64_t at)
{
	const struct sm_mr *src = put->srcMr, *dst = put->dstMr;
	struct ep_nic_desc *d = &ctx->slot->queue->desc[ctx->next % EP_NIC_ENTRIES];
	bool last = put->size - at <= EP_NIC_PIECE, small = put->flags & NCCL_EP_NET_INLINE || !put->size;
	/* Of several pieces the host knows which is the last. */
	bool tell = put->flags & NCCL_EP_NET_IMM && put->size <= EP_NIC_PIECE;

	*d = (struct ep_nic_desc){
		.dst = dst->far[put->peer].base + put->dstOffset + at,
		.bytes = last ? (uint32_t)(put->size - at) : EP_NIC_PIECE,
		.imm = put->imm,
		.flags = (uint16_t)((small ? EP_NIC_INLINE : 0) | (tell ? EP_NIC_TELL : 0)),
		.from = (uint8_t)ctx->comm->port,
		.to = (uint8_t)ctx->comm->peer[put->peer]->port,
	};
	if (!small)
		d->src = src->own.base + put->srcOffset + at;
	else if (put->size)
		memcpy(d->word, put->src, put->size);
	ctx->entry[ctx->next % EP_NIC_ENTRIES] = (struct sm_entry){
		.quiet = !last || put->flags & NCCL_EP_NET_QUIET,
		.imm = last && put->flags & NCCL_EP_NET_IMM,
		.peer = put->peer,
		.value = put->imm,
		.number = ctx->next,
		.last = ctx->next + pieces(put->size - at) - 1,
		.left = pieces(put->size),
	};
	ctx->next++;
}

static int sm_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	struct sm_ctx *ctx = c;
	const struct sm_mr *dst = put->dstMr;
	uint64_t at = 0;
	uint32_t last;
	int rc;

	*request = NULL;
	if (!valid(ctx, put))
		return -EINVAL;
	if (ctx->next - ctx->first + pieces(put->size) + 1 > EP_NIC_ENTRIES)
		return 0;
	/* A running kernel takes what is posted to a context that it serves, also if it does not serve the port. */
	if (!sm_serves(ctx->comm->net->fabric, ctx->number))
		return sm_kick(ctx->comm->net->fabric, ctx->number);
	pthread_mutex_lock(&ctx->slot->lock);
	if (!(rc = peer_check(ctx->comm, put->peer, &dst->far[put->peer]))) {
		do {
			piece_post(ctx, put, at);
			at += EP_NIC_PIECE;
		} while (at < put->size);
		ctx->slot->posted = ctx->next;
		__atomic_store_n(&ctx->slot->queue->posted, ctx->next, __ATOMIC_RELEASE); /* pairs with A0 of nic.cu */
	}
	last = ctx->next - 1;
	pthread_mutex_unlock(&ctx->slot->lock);
	if (rc || (rc = sm_kick(ctx->comm->net->fabric, ctx->number)))
		return rc;
	*request = put->flags & NCCL_EP_NET_QUIET ? NCCL_EP_NET_QUIET_REQUEST : &ctx->entry[last % EP_NIC_ENTRIES];
	return 0;
}

/* The kernel's writes are the GPU's own. */
static int sm_iflush(void *c, void *mr, void **request)
{
	static struct sm_entry flushed;

	(void)c;
	(void)mr;
	*request = &flushed;
	return 0;
}

/* Whether the put and all before it to the same peer are done: it completes quiet ones. */
static bool covered(struct sm_ctx *ctx, const struct sm_entry *e)
{
	uint32_t *at = &ctx->clear[e->peer];

	if (!ctx->comm->net->fabric->config.unordered)
		return e->done;
	if (*at - ctx->first > EP_NIC_ENTRIES) /* before it, however long ago */
		*at = ctx->first;
	while ((int32_t)(e->number - *at) > 0 &&
	       (ctx->entry[*at % EP_NIC_ENTRIES].peer != e->peer || ctx->entry[*at % EP_NIC_ENTRIES].done))
		++*at;
	return (int32_t)(e->number - *at) <= 0 && e->done;
}

static void entries_free(struct sm_ctx *ctx)
{
	for (; ctx->first != ctx->next; ctx->first++) {
		const struct sm_entry *e = &ctx->entry[ctx->first % EP_NIC_ENTRIES];

		if (!e->done || (!e->quiet && !e->tested))
			return;
	}
}

static int sm_test(void *c, void *request, int *done)
{
	struct sm_ctx *ctx = c;
	struct sm_entry *e = request;

	*done = 1;
	if (e < ctx->entry || e >= ctx->entry + EP_NIC_ENTRIES)
		return 0; /* a flush */
	*done = covered(ctx, e);
	e->tested = *done;
	entries_free(ctx);
	return 0;
}

/* How late, for the message at the end; the halves of a record may become visible one after the other, so the time may
 * be that of an older record. */
static void late_count(struct sm_slot *slot, uint64_t ns)
{
	slot->puts++;
	slot->late_ns += ns;
	slot->late_max_ns = ns > slot->late_max_ns ? ns : slot->late_max_ns;
}

static int records_read(struct sm_ctx *ctx)
{
	int rc = 0;

	while (!rc && ctx->read != ctx->next) {
		const struct ep_nic_record *r = &ctx->slot->queue->log[ctx->read % EP_NIC_ENTRIES];
		uint64_t stamp = __atomic_load_n(&r->stamp, __ATOMIC_ACQUIRE); /* pairs with R4 of nic.cu */
		struct sm_entry *e = &ctx->entry[(uint32_t)stamp % EP_NIC_ENTRIES], *put;

		if (stamp >> 32 != (uint32_t)(ctx->read + 1))
			break;
		late_count(ctx->slot, __atomic_load_n(&r->late_ns, __ATOMIC_RELAXED));
		ctx->read++;
		e->done = true;
		put = &ctx->entry[e->last % EP_NIC_ENTRIES]; /* without order its pieces overtake each other */
		if (--put->left == 0 && put->imm && !(stamp & EP_NIC_TOLD))
			rc = sm_inbox_add(&ctx->comm->peer[e->peer]->in[ctx->index], put->value);
	}
	entries_free(ctx);
	return rc;
}

/* From all senders of the context's index: how many. */
static int told_take(const struct sm_ctx *ctx, uint32_t *imms, int max)
{
	const struct sm_comm *comm = ctx->comm;
	int n = 0;

	for (int r = 0; comm->net->fabric->config.unordered && r < comm->nranks && n < max; r++) {
		uint32_t slot = __atomic_load_n(&comm->peer[r]->slot[ctx->index], __ATOMIC_RELAXED);

		if (slot)
			n += sm_told_take(comm->net->fabric, slot - 1, comm->port, imms + n, max - n);
	}
	return n;
}

static int sm_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct sm_ctx *ctx = c;
	int rc = ctx->read == ctx->next ? 0 : records_read(ctx);

	*count = 0;
	if (!rc && ctx->read != ctx->next && (rc = sm_kick(ctx->comm->net->fabric, ctx->number)))
		ctx->comm->net->log(NCCL_EP_NET_WARN, "sm: rank %d: %s", ctx->comm->rank, ep_last_error());
	if (!rc)
		*count = sm_inbox_take(&ctx->comm->in[ctx->index], imms, max);
	if (!rc && *count < max)
		*count += told_take(ctx, imms + *count, max - *count);
	return rc;
}

const ncclEpNetHot_v1_t sm_hot = {
	.iput = sm_iput,
	.iflush = sm_iflush,
	.test = sm_test,
	.progress = sm_progress,
};
