/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/group/group.h"
#include "plugin/link/link.h"
#include "util/error.h"
#include "util/param.h"

int ep_uplink_agree(struct ep_uplink *link, int rc, const char *what)
{
	struct ncclEpGroup *group = link->group;
	int32_t mine = rc, *all = calloc((size_t)group->nranks, sizeof(*all));
	int gathered;

	if (!all)
		return EP_FAIL(EP_GROUP, ENOMEM, "no memory for %d ranks", group->nranks);
	gathered = ep_boot_allgather(group->boot, &mine, sizeof(mine), all);
	/* Its own sentence is the better one. */
	for (int r = 0; !rc && !gathered && r < group->nranks; r++)
		if (all[r])
			rc = EP_FAIL(EP_GROUP, EP_EREMOTE, "rank %d could not %s (%s): see its own message", r, what,
				     strerror(-all[r]));
	free(all);
	return rc ? rc : gathered;
}

static void mem_free(struct ep_uplink *link, struct ep_uplink_mem *m)
{
	if (m->mr)
		link->net->ops.deregMr(link->comm, m->mr);
	if (m->pin.host)
		link->group->dev->ops->unpin(link->group->dev, &m->pin);
	if (m->mem.ptr)
		m->owner->ops->mem_free(m->owner, &m->mem);
	*m = (struct ep_uplink_mem){ .mr = NULL };
}

/* ---- memory of the GPU itself ---- */

static uint32_t gpu_kind(const struct ep_uplink *link)
{
	return link->group->dev->ops->kind == EP_DEV_CUDA ? NCCL_EP_NET_MEM_CUDA : 0;
}

void ep_uplink_direct_probe(struct ep_uplink *link)
{
	struct ep_dev *dev = link->group->dev;

	link->direct = false;
	if (!gpu_kind(link))
		return;
	if (!ep_param_bool(EP_P_GDR))
		EP_INFO(EP_GROUP, "rank %d: rows go through memory of the CPU: NCCL_EP_GDR is 0", link->group->rank);
	else if (!(link->props.memKinds & gpu_kind(link)) || link->props.immBits < 32)
		EP_INFO(EP_GROUP, "rank %d: rows go through memory of the CPU: the net %s does not take memory of GPUs",
			link->group->rank, link->net->name);
	else if (dev->ops->flush(dev)) /* its sentence says why */
		EP_INFO(EP_GROUP, "rank %d: rows go through memory of the CPU: %s", link->group->rank, ep_last_error());
	else
		link->direct = true;
}

static int direct_dmabuf(struct ep_uplink *link, struct ep_uplink_mem *m, ncclEpNetMem_v1_t *mem, void *key)
{
	int rc = m->owner->ops->mem_dmabuf(m->owner, &m->mem, &mem->fd);

	if (rc)
		return rc;
	rc = link->net->ops.regMrDmaBuf(link->comm, mem, key, &m->mr);
	close(mem->fd);
	mem->fd = -1;
	return rc;
}

/* By dma-buf first: it needs no module beside the drivers. Then as if it were plain memory, which such a module makes
 * of it. Neither is no failure: memory of the CPU does it too. */
static int direct_register(struct ep_uplink *link, struct ep_uplink_mem *m, size_t size, void *key)
{
	ncclEpNetMem_v1_t mem = { .ptr = m->mem.ptr, .size = size, .kind = gpu_kind(link), .fd = -1 };
	char why[256] = "the net takes none";
	int rc = -ENOTSUP;

	if (link->props.dmaBuf && (rc = direct_dmabuf(link, m, &mem, key)))
		snprintf(why, sizeof(why), "%s", ep_last_error());
	if (rc && (rc = link->net->ops.regMr(link->comm, &mem, key, &m->mr)))
		EP_INFO(EP_GROUP,
			"rank %d: rows go through memory of the CPU. Memory of the GPU by dma-buf: %s; as peer memory: "
			"%s",
			link->group->rank, why, ep_last_error());
	else if (!rc)
		EP_INFO(EP_GROUP, "rank %d: %zu bytes of the GPU for the net", link->group->rank, size);
	return rc;
}

/* Whole pages of any size there is: a dma-buf has no less. Registered is what was asked for, as much as on ranks whose
 * memory is the CPU's. */
#define DIRECT_UNIT 65536u

static int direct_make(struct ep_uplink *link, struct ep_uplink_mem *m, size_t size, void *key)
{
	int rc;

	m->owner = link->group->dev;
	rc = m->owner->ops->mem_alloc(m->owner, (size + DIRECT_UNIT - 1) / DIRECT_UNIT * DIRECT_UNIT, &m->mem);
	if (rc)
		return rc;
	m->pin.dev = m->mem.ptr;
	if ((rc = direct_register(link, m, size, key)))
		mem_free(link, m);
	return rc;
}

/* ---- memory of the CPU ---- */

/* A net that maps what it reaches wants the descriptor; others do not mind it. */
static int host_register(struct ep_uplink *link, struct ep_uplink_mem *m, size_t size, void *key)
{
	ncclEpNetMem_v1_t mem = { .ptr = m->mem.ptr, .size = size, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	struct ep_export export;
	int rc = link->host->ops->mem_export(link->host, &m->mem, &export, &mem.fd);

	if (!rc)
		rc = link->net->ops.regMr(link->comm, &mem, key, &m->mr);
	if (mem.fd >= 0)
		close(mem.fd);
	return rc;
}

static int host_make(struct ep_uplink *link, struct ep_uplink_mem *m, size_t size, void *key)
{
	struct ep_dev *dev = link->group->dev;
	int rc;

	m->owner = link->host;
	rc = link->host->ops->mem_alloc(link->host, size, &m->mem);
	if (!rc)
		rc = dev->ops->pin(dev, m->mem.ptr, size, &m->pin);
	return rc ? rc : host_register(link, m, size, key);
}

static int mem_make(struct ep_uplink *link, struct ep_uplink_mem *m, size_t size, bool signals, void *key)
{
	/* Engines write signals, and a CPU cannot write to a GPU's memory here. */
	if (!signals && link->direct) {
		if (!direct_make(link, m, size, key))
			return 0;
		link->direct = false; /* later ones need not be tried */
	}
	return host_make(link, m, size, key);
}

/* Keys go to all, and all know whether all went well: a rank that failed is not put to. */
int ep_uplink_region(struct ep_uplink *link, size_t size, bool signals, uint32_t *index)
{
	uint32_t i = link->regions.count;
	struct ep_uplink_mem *m = &link->mem[i < EP_REGIONS ? i : 0];
	int nranks = link->group->nranks, rc = 0;
	uint8_t mine[NCCL_EP_NET_KEY_SIZE] = { 0 }, *keys;

	if (i == EP_REGIONS || size > (size_t)1 << EP_REGION_SHIFT)
		return EP_FAIL(EP_GROUP, EP_EUSAGE,
			       "rank %d: %zu bytes for the net, after %u times more: more than can be named",
			       link->group->rank, size, i);
	keys = calloc((size_t)nranks, sizeof(mine));
	rc = keys ? mem_make(link, m, size, signals, mine) : -ENOMEM;
	rc = ep_uplink_agree(link, rc, "give the net its memory");
	if (!rc)
		rc = ep_boot_allgather(link->group->boot, mine, sizeof(mine), keys);
	if (!rc) {
		rc = link->net->ops.shareMr(link->comm, m->mr, keys);
		rc = ep_uplink_agree(link, rc, "reach the memory that others gave the net");
	}
	free(keys);
	if (rc) {
		mem_free(link, m);
		return rc;
	}
	link->regions.region[i] = (struct ep_region){ .mr = m->mr, .host = signals ? m->mem.ptr : NULL, .size = size };
	/* Pairs with the engines' acquire of count. */
	__atomic_store_n(&link->regions.count, i + 1, __ATOMIC_RELEASE);
	*index = i;
	return 0;
}

void ep_uplink_regions_free(struct ep_uplink *link)
{
	for (uint32_t i = 0; i < link->regions.count; i++)
		mem_free(link, &link->mem[i]);
	link->regions.count = 0;
}
