/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: registered once in the domain of each context, by what the provider's mr_mode asks for. */
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
		return fab_fail(ctx->dev, rc, "registering memory");
	if (mode(ctx->dev, OFI_MR_ENDPOINT))
		rc = mr->fid.ops->bind(&mr->fid, &ctx->ep->fid, 0);
	if (!rc && mode(ctx->dev, OFI_MR_ENDPOINT | OFI_MR_RMA_EVENT))
		rc = mr->fid.ops->control(&mr->fid, OFI_ENABLE, NULL);
	if (rc) {
		mr->fid.ops->close(&mr->fid);
		return fab_fail(ctx->dev, rc, "enabling registered memory");
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

static int mem_check(const struct fab_dev *dev, const ncclEpNetMem_v1_t *mem, bool dmabuf)
{
	if (dmabuf && !dev->hmem)
		return EP_FAIL(EP_NET, ENOTSUP,
			       "fabric: %s takes no dma-bufs; that needs libfabric 1.20 and a provider "
			       "with FI_HMEM",
			       dev->info->domain_attr->name);
	if (!dmabuf && mem->kind != NCCL_EP_NET_MEM_HOST)
		return EP_FAIL(EP_NET, EP_EUSAGE,
			       "fabric: by its address only host memory can be registered; give a dma-buf of device "
			       "memory, or stage it through the host");
	if (!mem->ptr || !mem->size || (uintptr_t)mem->ptr + mem->size < mem->size || (dmabuf && mem->fd < 0))
		return EP_FAIL(EP_NET, EP_EARG, "fabric: %zu bytes at %p cannot be registered", mem->size, mem->ptr);
	return 0;
}

int fab_mr_open(struct fab_comm *comm, const ncclEpNetMem_v1_t *mem, bool dmabuf, struct fab_key *key,
		struct fab_mr **out)
{
	struct ofi_mr_dmabuf buf = { .fd = mem->fd, .offset = mem->offset, .len = mem->size, .base_addr = mem->ptr };
	struct iovec iov = { .iov_base = mem->ptr, .iov_len = mem->size };
	struct ofi_mr_attr attr = { .mr_iov = dmabuf ? (const void *)&buf : &iov, .iov_count = 1 };
	struct fab_mr *mr;
	int rc = mem_check(comm->dev, mem, dmabuf);

	if (rc)
		return rc;
	mr = calloc(1, sizeof(*mr) + (size_t)comm->nranks * sizeof(mr->far[0]));
	if (!mr)
		return EP_FAIL(EP_NET, ENOMEM, "fabric: no memory for a registration");
	*mr = (struct fab_mr){ .base = mem->ptr, .size = mem->size, .kind = mem->kind };
	attr.access = OFI_READ | OFI_WRITE | OFI_REMOTE_READ | OFI_REMOTE_WRITE;
	attr.requested_key = __atomic_fetch_add(&comm->next_key, 1, __ATOMIC_RELAXED);
	attr.iface = iface_of(mem->kind);
	*key = (struct fab_key){ .size = mem->size };
	key->base = mode(comm->dev, OFI_MR_VIRT_ADDR) ? (uintptr_t)mem->ptr : 0;
	for (int i = 0; i < comm->contexts; i++) {
		rc = fab_mr_one(comm->ctx[i], &attr, dmabuf ? OFI_MR_DMABUF : 0, &mr->mr[i]);
		if (rc) {
			fab_mr_close(mr);
			return rc;
		}
		mr->count++;
		key->key[i] = mr->mr[i]->key;
	}
	*out = mr;
	return 0;
}

int fab_mr_share(struct fab_comm *comm, struct fab_mr *mr, const void *keys)
{
	struct fab_key key;

	if (mr->shared)
		return EP_FAIL(EP_NET, EP_EUSAGE, "fabric: this registration is shared already");
	for (int r = 0; r < comm->nranks; r++) {
		memcpy(&key, (const uint8_t *)keys + (size_t)r * NCCL_EP_NET_KEY_SIZE, sizeof(key));
		if (key.size != mr->size)
			return EP_FAIL(EP_NET, EP_EREMOTE, "fabric: rank %d registered %llu bytes, rank %d %zu", r,
				       (unsigned long long)key.size, comm->rank, mr->size);
		mr->far[r].base = key.base;
		memcpy(mr->far[r].key, key.key, sizeof(key.key));
	}
	mr->shared = true;
	return 0;
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
