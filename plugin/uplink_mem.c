/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/group.h"
#include "plugin/uplink.h"
#include "util/error.h"

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
		link->host->ops->mem_free(link->host, &m->mem);
	*m = (struct ep_uplink_mem){ .mr = NULL };
}

/* A net that maps what it reaches wants the descriptor; others do not mind it. */
static int mem_register(struct ep_uplink *link, struct ep_uplink_mem *m, size_t size, void *key)
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

static int mem_make(struct ep_uplink *link, struct ep_uplink_mem *m, size_t size, void *key)
{
	struct ep_dev *dev = link->group->dev;
	int rc = link->host->ops->mem_alloc(link->host, size, &m->mem);

	if (!rc)
		rc = dev->ops->pin(dev, m->mem.ptr, size, &m->pin);
	return rc ? rc : mem_register(link, m, size, key);
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
	rc = keys ? mem_make(link, m, size, mine) : -ENOMEM;
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
