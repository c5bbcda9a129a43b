/* SPDX-License-Identifier: Apache-2.0 */
/* Registrations: one per context, as each has its own domain, according to the provider's mr_mode. */
#include <stdlib.h>
#include <string.h>

#include "net/fabric/fabric.h"
#include "util/error.h"

static bool mode(const struct fab_dev *dev, int bit)
{
	return dev->info->domain_attr->mr_mode & bit;
}

int fab_mr_one(const struct fab_ctx *ctx, const struct ofi_mr_attr *attr, uint64_t flags, struct ofi_mr **out)
{
	struct ofi_mr *mr;
	int rc = ctx->domain->mr->regattr(&ctx->domain->fid, attr, flags, &mr);

	if (rc)
		return fab_fail(ctx->dev, rc, "fi_mr_regattr");
	if (mode(ctx->dev, OFI_MR_ENDPOINT))
		rc = mr->fid.ops->bind(&mr->fid, &ctx->ep->fid, 0);
	if (!rc && mode(ctx->dev, OFI_MR_ENDPOINT | OFI_MR_RMA_EVENT))
		rc = mr->fid.ops->control(&mr->fid, OFI_ENABLE, NULL);
	if (rc) {
		mr->fid.ops->close(&mr->fid);
		return fab_fail(ctx->dev, rc, "enabling a registration");
	}
	*out = mr;
	return 0;
}

static unsigned iface_of(uint32_t kind)
{
	return kind == NCCL_EP_NET_MEM_CUDA  ? OFI_HMEM_CUDA
	       : kind == NCCL_EP_NET_MEM_HIP ? OFI_HMEM_ROCR
					     : OFI_HMEM_SYSTEM;
}

/* Device memory by address: the provider or a peer-memory module of the kernel finds its pages. */
static int mem_check(const struct fab_dev *dev, const ncclEpNetMem_v1_t *mem, bool dmabuf)
{
	if (dmabuf && !dev->dmabuf)
		return EP_FAIL(EP_NET, ENOTSUP,
			       "fabric: %s does not support dma-bufs: libfabric 1.20 and a provider with FI_HMEM "
			       "needed",
			       dev->info->domain_attr->name);
	if (mem->kind != NCCL_EP_NET_MEM_HOST && !dev->hmem)
		return EP_FAIL(EP_NET, EP_EUSAGE,
			       "fabric: %s of provider %s does not register device memory (FI_HMEM); stage it through "
			       "host memory",
			       dev->info->domain_attr->name, dev->info->fabric_attr->prov_name);
	return ep_base_mem_check("fabric", mem, dmabuf);
}

int fab_mr_open(struct fab_comm *comm, const ncclEpNetMem_v1_t *mem, bool dmabuf, void *key, void **out)
{
	struct ofi_mr_dmabuf buf = { .fd = mem->fd, .offset = mem->offset, .len = mem->size, .base_addr = mem->ptr };
	struct iovec iov = { .iov_base = mem->ptr, .iov_len = mem->size };
	struct ofi_mr_attr attr = { .mr_iov = dmabuf ? (const void *)&buf : &iov, .iov_count = 1 };
	struct fab_key mine;
	struct fab_mr *mr;
	int rc = mem_check(comm->dev, mem, dmabuf);

	if (rc)
		return rc;
	mr = EP_CALLOC(EP_NET, 1, sizeof(*mr) + (size_t)comm->base.nranks * sizeof(mr->far[0]), "a registration");
	if (!mr)
		return -ENOMEM;
	mr->base = (struct ep_base_mr){ .base = mem->ptr, .size = mem->size, .kind = mem->kind };
	attr.access = OFI_READ | OFI_WRITE | OFI_REMOTE_READ | OFI_REMOTE_WRITE;
	attr.requested_key = __atomic_fetch_add(&comm->next_key, 1, __ATOMIC_RELAXED);
	attr.iface = iface_of(mem->kind); /* attr.device, for copies by the provider, stays 0: they are not permitted */
	mine = (struct fab_key){ .size = mem->size };
	mine.base = mode(comm->dev, OFI_MR_VIRT_ADDR) ? (uintptr_t)mem->ptr : 0;
	for (int i = 0; i < comm->base.contexts; i++) {
		rc = fab_mr_one(comm->ctx[i], &attr, dmabuf ? OFI_MR_DMABUF : 0, &mr->mr[i]);
		if (rc) {
			fab_mr_close(mr);
			return rc;
		}
		mr->count++;
		mine.key[i] = mr->mr[i]->key;
	}
	/* For flushes, even if never shared. */
	mr->far[comm->base.rank].base = mine.base;
	memcpy(mr->far[comm->base.rank].key, mine.key, sizeof(mine.key));
	ep_base_key_write(key, &mine, sizeof(mine));
	*out = mr;
	return 0;
}

static int key_take(struct ep_base_comm *comm, struct ep_base_mr *m, int r, const void *data)
{
	struct fab_mr *mr = (struct fab_mr *)m;
	struct fab_key key;

	(void)comm;
	memcpy(&key, data, sizeof(key));
	mr->far[r].base = key.base;
	memcpy(mr->far[r].key, key.key, sizeof(key.key));
	return 0;
}

int fab_shareMr(void *comm, void *mr, const void *keys)
{
	return ep_base_mr_share(comm, mr, keys, offsetof(struct fab_key, size), key_take);
}

/* NULL is accepted. */
void fab_mr_close(struct fab_mr *mr)
{
	if (!mr)
		return;
	for (int i = 0; i < mr->count; i++)
		mr->mr[i]->fid.ops->close(&mr->mr[i]->fid);
	free(mr);
}

int fab_regMr(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	return fab_mr_open(comm, mem, false, key, mr);
}

int fab_regMrDmaBuf(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	return fab_mr_open(comm, mem, true, key, mr);
}

int fab_deregMr(void *comm, void *mr)
{
	(void)comm;
	fab_mr_close(mr);
	return 0;
}
