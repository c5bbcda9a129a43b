/* SPDX-License-Identifier: Apache-2.0 */
/* The libfabric objects of a context, and the slots of its operations. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "net/fabric/fabric.h"
#include "util/error.h"

#define CHUNK 256
#define RECEIVES_MAX 4096u

static void fid_close(void *object)
{
	struct ofi_fid *fid = object;

	if (fid)
		fid->ops->close(fid);
}

static struct fab_chunk *chunk_make(struct fab_ctx *ctx)
{
	struct fab_chunk *chunk =
		EP_CALLOC(EP_NET, 1, sizeof(*chunk) + CHUNK * sizeof(chunk->slots[0]), "requests of a context");
	struct iovec iov = { .iov_len = CHUNK * FAB_INLINE };
	struct ofi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1 };

	if (!chunk)
		return NULL;
	chunk->bytes = ep_base_pages("fabric", iov.iov_len);
	iov.iov_base = chunk->bytes;
	attr.access = OFI_READ | OFI_WRITE | OFI_RECV;
	attr.requested_key = __atomic_fetch_add(&ctx->comm->next_key, 1, __ATOMIC_RELAXED);
	if (!chunk->bytes || fab_mr_one(ctx, &attr, 0, &chunk->mr)) {
		free(chunk->bytes);
		free(chunk);
		return NULL;
	}
	for (int i = 0; i < CHUNK; i++) {
		struct fab_slot *slot = &chunk->slots[i];

		slot->chunk = chunk;
		slot->bytes = chunk->bytes + (size_t)i * FAB_INLINE;
		slot->next = ctx->free;
		ctx->free = slot;
	}
	chunk->end = chunk->slots + CHUNK;
	chunk->next = ctx->chunks;
	ctx->chunks = chunk;
	return chunk;
}

/* Not limited here: ctx->live limits operations in flight, and those of lost peers come on top. */
struct fab_slot *fab_slot_take(struct fab_ctx *ctx)
{
	struct fab_slot *slot;

	if (!ctx->free && !chunk_make(ctx))
		return NULL;
	slot = ctx->free;
	ctx->free = slot->next;
	slot->cover = NULL;
	slot->left = 0;
	slot->rc = 0;
	slot->orphan = false;
	return slot;
}

void fab_slot_give(struct fab_ctx *ctx, struct fab_slot *slot)
{
	slot->next = ctx->free;
	ctx->free = slot;
}

void fab_receive_add(struct fab_ctx *ctx, struct fab_slot *slot)
{
	slot->next = ctx->unposted;
	ctx->unposted = slot;
	ctx->unposted_count++;
}

/* A provider that consumes receives for immediate data needs as many as may be in flight. */
static int receives_make(struct fab_ctx *ctx)
{
	size_t n = ctx->dev->info->rx_attr->size;

	if (!ctx->dev->receives)
		return 0;
	for (size_t i = 0; i < (n < RECEIVES_MAX ? n : RECEIVES_MAX); i++) {
		struct fab_slot *slot = fab_slot_take(ctx);

		if (!slot)
			return -ENOMEM;
		slot->receive = true;
		fab_receive_add(ctx, slot);
	}
	return 0;
}

static int objects_open(struct fab_ctx *ctx, struct ofi_info *info)
{
	const struct fab_dev *dev = ctx->dev;
	struct ofi_av_attr av = { .type = info->domain_attr->av_type, .count = (size_t)ctx->comm->base.nranks };
	struct ofi_cq_attr cq = { .format = OFI_CQ_FORMAT_DATA };
	int rc;

	if (av.type == OFI_AV_UNSPEC)
		av.type = OFI_AV_TABLE;
	/* Not more than the provider accepts, or one peer could fill its queue, which is for all of them. */
	ctx->limit = info->tx_attr->size && info->tx_attr->size < FAB_PUTS ? (uint32_t)info->tx_attr->size : FAB_PUTS;
	cq.size = info->tx_attr->size + info->rx_attr->size + FAB_PUTS;
	rc = fab_api()->fi_fabric(info->fabric_attr, &ctx->fabric, NULL);
	if (rc)
		return fab_fail(dev, rc, "fi_fabric");
	rc = ctx->fabric->ops->domain(ctx->fabric, info, &ctx->domain, NULL);
	if (rc)
		return fab_fail(dev, rc, "fi_domain");
	rc = ctx->domain->ops->av_open(ctx->domain, &av, &ctx->av, NULL);
	if (rc)
		return fab_fail(dev, rc, "fi_av_open");
	rc = ctx->domain->ops->cq_open(ctx->domain, &cq, &ctx->cq, NULL);
	if (rc)
		return fab_fail(dev, rc, "fi_cq_open");
	rc = ctx->domain->ops->endpoint(ctx->domain, info, &ctx->ep, NULL);
	return rc ? fab_fail(dev, rc, "fi_endpoint") : 0;
}

bool fab_ctx_emulated(const struct fab_ctx *ctx)
{
	bool emulated = false;
	size_t size = sizeof(emulated);
	int rc = -ENOPROTOOPT;

	if (ctx->dev->profile->efa)
		rc = ctx->ep->ops->getopt(&ctx->ep->fid, OFI_OPT_ENDPOINT, (int)OFI_OPT_EFA_EMULATED_WRITE, &emulated,
					  &size);
	return !rc && emulated;
}

/*
 * Between processes of one host efa uses shared memory by default: its writes complete before the NIC's, and a read
 * through it flushes nothing. Providers that do not know the option have no such memory.
 */
static int ep_keep_off_shm(const struct fab_ctx *ctx)
{
	bool permitted = false;
	int rc = 0;

	if (ctx->dev->profile->efa)
		rc = ctx->ep->ops->setopt(&ctx->ep->fid, OFI_OPT_ENDPOINT, OFI_OPT_SHARED_MEMORY_PERMITTED, &permitted,
					  sizeof(permitted));
	return rc == -ENOPROTOOPT || rc == -EOPNOTSUPP ? 0 : rc;
}

/* A CUDA call from the proxy thread could wait for a kernel that itself waits for this thread: a deadlock. */
static int ep_keep_off_gpu(const struct fab_ctx *ctx)
{
	bool permitted = false;

	if (!ctx->dev->hmem)
		return 0;
	return ctx->ep->ops->setopt(&ctx->ep->fid, OFI_OPT_ENDPOINT, OFI_OPT_CUDA_API_PERMITTED, &permitted,
				    sizeof(permitted));
}

static int ep_start(struct fab_ctx *ctx)
{
	const struct fab_dev *dev = ctx->dev;
	struct ofi_fid *ep = &ctx->ep->fid;
	int rc;

	rc = ep->ops->bind(ep, &ctx->av->fid, 0);
	/* Every operation generates a completion: without comp_order one completion implies nothing about another. */
	rc = rc ? rc : ep->ops->bind(ep, &ctx->cq->fid, OFI_TRANSMIT | OFI_RECV);
	if (rc)
		return fab_fail(dev, rc, "fi_ep_bind");
	rc = ep_keep_off_gpu(ctx);
	if (rc)
		return fab_fail(dev, rc, "fi_setopt FI_OPT_CUDA_API_PERMITTED");
	rc = ep_keep_off_shm(ctx);
	if (rc)
		return fab_fail(dev, rc, "fi_setopt FI_OPT_SHARED_MEMORY_PERMITTED");
	rc = ep->ops->control(ep, OFI_ENABLE, NULL);
	if (rc)
		return fab_fail(dev, rc, "fi_enable");
	ctx->addr_len = sizeof(ctx->addr);
	rc = ctx->ep->cm->getname(ep, ctx->addr, &ctx->addr_len);
	if (rc || ctx->addr_len >= sizeof(ctx->addr)) /* peers want a zero behind it */
		return fab_fail(dev, rc ? rc : -ENOBUFS, "fi_getname");
	return 0;
}

int fab_ctx_open(struct fab_comm *comm, int index, struct fab_ctx **out)
{
	struct fab_ctx *ctx = EP_CALLOC(EP_NET, 1, sizeof(*ctx), "a context");
	int rc = -ENOMEM;

	if (!ctx)
		return -ENOMEM;
	ctx->comm = comm;
	ctx->dev = comm->dev;
	ctx->index = index;
	ctx->conns = EP_CALLOC(EP_NET, (size_t)comm->base.nranks, sizeof(*ctx->conns), "the peers of a context");
	ctx->imms = EP_CALLOC(EP_NET, FAB_IMMS, sizeof(*ctx->imms), "immediate data");
	if (ctx->conns && ctx->imms)
		rc = objects_open(ctx, comm->dev->info);
	rc = rc ? rc : ep_start(ctx);
	rc = rc || chunk_make(ctx) ? rc : -ENOMEM;
	rc = rc ? rc : receives_make(ctx);
	if (rc)
		fab_ctx_close(ctx);
	else
		*out = ctx;
	return rc;
}

/* The endpoint first: its operations in flight need the memory. NULL is accepted. */
void fab_ctx_close(struct fab_ctx *ctx)
{
	struct fab_chunk *next;

	if (!ctx)
		return;
	fid_close(ctx->ep);
	for (struct fab_chunk *chunk = ctx->chunks; chunk; chunk = next) {
		next = chunk->next;
		fid_close(chunk->mr);
		free(chunk->bytes);
		free(chunk);
	}
	fid_close(ctx->cq);
	fid_close(ctx->av);
	fid_close(ctx->domain);
	fid_close(ctx->fabric);
	free(ctx->conns);
	free(ctx->imms);
	free(ctx);
}

/*
 * Nobody opens the name of a connected shm endpoint again: unlinked now, it is not left behind by a killed process.
 * Only context 0 is known to be open on all ranks.
 */
void fab_name_drop(const struct fab_ctx *ctx)
{
	static const char prefix[] = "fi_shm://";
	char name[FAB_ADDR + 1] = { 0 };

	if (!ctx->dev->profile->entangled)
		return;
	memcpy(name, ctx->addr, ctx->addr_len);
	if (!strncmp(name, prefix, sizeof(prefix) - 1) && !strchr(name + sizeof(prefix) - 1, '/'))
		shm_unlink(name + sizeof(prefix) - 1);
}

int fab_av_insert(struct fab_ctx *ctx, int peer, const void *addr)
{
	uint64_t *to = &ctx->conns[peer].addr;
	int n = ctx->av->ops->insert(ctx->av, addr, 1, to, 0, NULL);

	if (n != 1 || *to == OFI_ADDR_NONE)
		return fab_fail(ctx->dev, n < 0 ? n : -EINVAL, "fi_av_insert");
	return 0;
}
