/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/link/link.h"
#include "util/error.h"
#include "util/param.h"
#include "util/text.h"

int ep_link_agree(struct ep_link *link, int rc, const char *what)
{
	const struct ep_link_ctx *ctx = &link->ctx;
	int32_t mine = rc, *all = EP_CALLOC(EP_GROUP, (size_t)ctx->nranks, sizeof(*all), "results");
	int gathered;

	if (!all) {
		ep_boot_abort(ctx->boot, ENOMEM, ep_last_error()); /* the others wait for its result */
		return -ENOMEM;
	}
	gathered = ep_boot_allgather(ctx->boot, &mine, sizeof(mine), all);
	/* This rank's own message is more precise than one about another rank. */
	for (int r = 0; !rc && !gathered && r < ctx->nranks; r++)
		if (all[r])
			rc = EP_FAIL(EP_GROUP, EP_EREMOTE, "rank %d could not %s (%s): see its own message", r, what,
				     strerror(-ep_rc_take(all[r])));
	free(all);
	return rc ? rc : gathered;
}

static void mem_free(struct ep_link *link, struct ep_link_mem *m)
{
	if (m->mr)
		link->net->ops.deregMr(link->comm, m->mr);
	if (m->pin.host)
		link->ctx.dev->ops->unpin(link->ctx.dev, &m->pin);
	if (m->mem.ptr)
		m->owner->ops->mem_free(m->owner, &m->mem);
	*m = (struct ep_link_mem){ .mr = NULL };
}

/* ---- device memory ---- */

/* The net's memory kinds are bits by enum ep_dev_kind. */
#define MEM_KIND(kind) (1u << (kind))
_Static_assert(MEM_KIND(EP_DEV_HOST) == NCCL_EP_NET_MEM_HOST && MEM_KIND(EP_DEV_CUDA) == NCCL_EP_NET_MEM_CUDA,
	       "memory kinds of nccl_ep_net.h follow the device table");

static uint32_t mem_kind(const struct ep_link *link)
{
	return MEM_KIND(link->ctx.dev->ops->kind);
}

void ep_link_direct_probe(struct ep_link *link)
{
	bool flush = link->ctx.dev->nic_flush || ep_param_bool(EP_P_NET_FORCE_FLUSH);

	link->direct = false;
	link->flushes = link->props.forceFlush;
	if (mem_kind(link) == NCCL_EP_NET_MEM_HOST)
		return;
	if (!ep_param_int(EP_P_GDR))
		EP_INFO(EP_GROUP, "rank %d: staging through host memory: NCCL_EP_GDR is 0", link->ctx.rank);
	else if (link->across && ep_param_int(EP_P_GDR) < 2)
		EP_INFO(EP_GROUP,
			"rank %d: staging through host memory: %s is on another CPU socket than the GPU; "
			"NCCL_EP_GDR=2 goes across",
			link->ctx.rank, link->props.name);
	else if (!(link->props.memKinds & mem_kind(link)) || link->props.immBits < 32)
		EP_INFO(EP_GROUP, "rank %d: staging through host memory: net %s does not register device memory",
			link->ctx.rank, link->net->name);
	else if (flush && !link->props.flushes)
		EP_INFO(EP_GROUP, "rank %d: staging through host memory: net %s cannot flush what it writes to the GPU",
			link->ctx.rank, link->net->name);
	else
		link->direct = true;
	link->flushes |= link->direct && flush;
}

static int direct_dmabuf(struct ep_link *link, struct ep_link_mem *m, ncclEpNetMem_v1_t *mem, void *key)
{
	int rc = m->owner->ops->mem_dmabuf(m->owner, &m->mem, &mem->fd);

	if (rc)
		return rc;
	rc = link->net->ops.regMrDmaBuf(link->comm, mem, key, &m->mr);
	close(mem->fd);
	mem->fd = -1;
	return rc;
}

/* dma-buf first: it needs no kernel module beside the drivers. Then by address, which a peer-memory module (such as
 * nvidia-peermem) makes work. */
static int direct_register(struct ep_link *link, struct ep_link_mem *m, size_t size, uint32_t flags, void *key)
{
	ncclEpNetMem_v1_t mem = { .ptr = m->mem.ptr, .size = size, .kind = mem_kind(link), .fd = -1, .flags = flags };
	char why[256] = "not supported by the net", both[512];
	int rc = -ENOTSUP;

	if (link->props.dmaBuf && (rc = direct_dmabuf(link, m, &mem, key)))
		snprintf(why, sizeof(why), "%s", ep_last_error());
	if (rc && (rc = link->net->ops.regMr(link->comm, &mem, key, &m->mr))) {
		snprintf(both, sizeof(both), "by dma-buf: %s; as peer memory: %.240s", why, ep_last_error());
		ep_last_error_set(both);
		return rc;
	}
	EP_INFO(EP_GROUP, "rank %d: registered %zu bytes of device memory", link->ctx.rank, size);
	return 0;
}

/* Allocations are whole 64 KiB pages, the least a dma-buf exports. What is registered is the size asked for, so that it
 * agrees with ranks that use host memory. */
#define DIRECT_UNIT 65536u

static int direct_make(struct ep_link *link, struct ep_link_mem *m, size_t size, uint32_t flags, void *key)
{
	int rc;

	m->owner = link->ctx.dev;
	rc = m->owner->ops->mem_alloc(m->owner, (size + DIRECT_UNIT - 1) / DIRECT_UNIT * DIRECT_UNIT, &m->mem);
	if (rc)
		return rc;
	m->pin.dev = m->mem.ptr;
	if ((rc = direct_register(link, m, size, flags, key)))
		mem_free(link, m);
	return rc;
}

/* ---- host memory ---- */

/* The descriptor is for nets that map what they reach; others ignore it. */
static int host_register(struct ep_link *link, struct ep_link_mem *m, size_t size, uint32_t flags, void *key)
{
	ncclEpNetMem_v1_t mem = {
		.ptr = m->mem.ptr, .size = size, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1, .flags = flags
	};
	struct ep_export export;
	int rc = link->host->ops->mem_export(link->host, &m->mem, &export, &mem.fd);

	if (!rc)
		rc = link->net->ops.regMr(link->comm, &mem, key, &m->mr);
	if (mem.fd >= 0)
		close(mem.fd);
	return rc;
}

static int host_make(struct ep_link *link, struct ep_link_mem *m, size_t size, uint32_t flags, void *key)
{
	struct ep_dev *dev = link->ctx.dev;
	int rc;

	m->owner = link->host;
	rc = link->host->ops->mem_alloc(link->host, size, &m->mem);
	if (!rc)
		rc = dev->ops->pin(dev, m->mem.ptr, size, &m->pin);
	return rc ? rc : host_register(link, m, size, flags, key);
}

static int mem_make(struct ep_link *link, struct ep_link_mem *m, size_t size, enum ep_link_use use, void *key)
{
	/* An ordered net's signals say that the rows before them are there, so neither may be relaxed. */
	uint32_t flags = use == EP_LINK_ROWS && !link->props.ordered ? NCCL_EP_NET_MEM_RELAXED : 0;
	char why[512];
	int rc;

	if (!link->direct || use == EP_LINK_MAIL || (use == EP_LINK_SIGNALS && !link->props.ordered))
		return host_make(link, m, size, flags, key);
	rc = direct_make(link, m, size, flags, key);
	if (!rc)
		return 0;
	snprintf(why, sizeof(why), "%s", ep_last_error());
	if (use == EP_LINK_ROWS && link->props.ordered) /* in host memory they would not be ordered with the signals */
		return EP_FAIL(EP_GROUP, -rc,
			       "rank %d: net %s cannot register %zu bytes of device memory for rows, though it "
			       "did for signals: set NCCL_EP_GDR=0 to stage both through host memory (%.240s)",
			       link->ctx.rank, link->net->name, size, why);
	EP_INFO(EP_GROUP, "rank %d: staging through host memory. Registering device memory: %s", link->ctx.rank, why);
	link->direct = false; /* do not try again */
	return host_make(link, m, size, flags, key);
}

/* Every rank learns whether registration and sharing succeeded on all ranks before any puts to it. */
int ep_link_region(struct ep_link *link, size_t size, enum ep_link_use use, uint32_t *index)
{
	uint32_t i = link->regions.count;
	struct ep_link_mem *m = &link->mem[i < EP_REGIONS ? i : 0];
	int nranks = link->ctx.nranks, rc = 0;
	uint8_t mine[NCCL_EP_NET_KEY_SIZE] = { 0 }, *keys;

	if (i == EP_REGIONS || size > (size_t)1 << EP_REGION_SHIFT)
		return EP_FAIL(EP_GROUP, EP_EUSAGE, "rank %d: region limit reached: %u regions, %zu bytes asked for",
			       link->ctx.rank, i, size);
	keys = EP_CALLOC(EP_GROUP, (size_t)nranks, sizeof(mine), "keys of a region");
	rc = keys ? mem_make(link, m, size, use, mine) : -ENOMEM;
	rc = ep_link_agree(link, rc, "register its memory with the net");
	if (!rc)
		rc = ep_boot_allgather(link->ctx.boot, mine, sizeof(mine), keys);
	if (!rc) {
		rc = link->net->ops.shareMr(link->comm, m->mr, keys);
		rc = ep_link_agree(link, rc, "reach the memory registered by other ranks");
	}
	free(keys);
	if (rc) {
		mem_free(link, m);
		return rc;
	}
	link->regions.region[i] = (struct ep_region){
		.mr = m->mr, .host = use != EP_LINK_ROWS && m->owner == link->host ? m->mem.ptr : NULL, .size = size
	};
	/* Pairs with the engines' acquire of count. */
	__atomic_store_n(&link->regions.count, i + 1, __ATOMIC_RELEASE);
	*index = i;
	return 0;
}

/* Of the memory in which rows will be: that of the first region of rows would do, but peers may put there before this
 * rank knows that all have it. */
int ep_link_flush_open(struct ep_link *link)
{
	uint8_t key[NCCL_EP_NET_KEY_SIZE] = { 0 };

	if (!link->flushes)
		return 0;
	if (link->direct && !direct_make(link, &link->flush, DIRECT_UNIT, 0, key))
		return 0;
	if (link->direct)
		EP_INFO(EP_GROUP, "rank %d: staging through host memory. Registering device memory: %s", link->ctx.rank,
			ep_last_error());
	link->direct = false;
	return link->props.forceFlush ? host_make(link, &link->flush, DIRECT_UNIT, 0, key) : 0;
}

void ep_link_regions_free(struct ep_link *link)
{
	mem_free(link, &link->flush);
	for (uint32_t i = 0; i < link->regions.count; i++)
		mem_free(link, &link->mem[i]);
	link->regions.count = 0;
}
