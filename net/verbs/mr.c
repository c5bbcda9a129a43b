/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations, one for all contexts. With relaxed ordering only where the caller needs no order: a NIC's writes then
 * pass each other on their way to memory, and a completion is still behind all of them (ibv_reg_mr(3)).
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

#define ACCESS (IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ)

/* Registers an invalid descriptor: a driver without dma-buf support fails with EOPNOTSUPP, others differently. */
bool vb_dmabuf_probe(struct ib_pd *pd)
{
	struct ib_mr *mr;

	if (!vb_api()->reg_dmabuf_mr)
		return false;
	errno = EOPNOTSUPP;
	mr = vb_api()->reg_dmabuf_mr(pd, 0, 4096, 0, -1, ACCESS);
	if (mr)
		vb_api()->dereg_mr(mr);
	return mr || (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS);
}

/* Kernel modules that allow registering device memory by address. */
uint32_t vb_kinds_probe(bool dmabuf)
{
	static const struct {
		const char *path;
		uint32_t kind;
	} modules[] = {
		{ "/sys/module/nvidia_peermem", NCCL_EP_NET_MEM_CUDA },
		{ "/sys/module/nv_peer_mem", NCCL_EP_NET_MEM_CUDA },
		{ "/sys/kernel/mm/memory_peers/amdkfd/version", NCCL_EP_NET_MEM_HIP },
	};
	uint32_t kinds = NCCL_EP_NET_MEM_HOST;

	if (dmabuf)
		return kinds | NCCL_EP_NET_MEM_CUDA | NCCL_EP_NET_MEM_HIP;
	for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
		if (!access(modules[i].path, F_OK))
			kinds |= modules[i].kind;
	return kinds;
}

static int mem_check(const struct vb_dev *dev, const ncclEpNetMem_v1_t *mem, bool dmabuf)
{
	if (dmabuf && !dev->dmabuf)
		return EP_FAIL(EP_NET, ENOTSUP,
			       "verbs: %s does not support dma-bufs: rdma-core 34, Linux 5.12 and a driver that "
			       "imports "
			       "them needed",
			       dev->name);
	if (!(mem->kind & dev->kinds))
		return EP_FAIL(EP_NET, EP_EUSAGE,
			       "verbs: %s accepts host memory only; load %s, or stage through host memory", dev->name,
			       mem->kind == NCCL_EP_NET_MEM_HIP ? "amdgpu with peer memory" : "nvidia_peermem");
	return ep_base_mem_check("verbs", mem, dmabuf);
}

static int mem_refused(const struct vb_dev *dev, const ncclEpNetMem_v1_t *mem, bool dmabuf, int error)
{
	if (dmabuf && error != ENOMEM)
		return EP_FAIL(EP_NET, error == EOPNOTSUPP ? ENOTSUP : EIO,
			       "verbs: %s cannot register %zu bytes of a dma-buf: %s; %s", dev->name, mem->size,
			       strerror(error),
			       error == EOPNOTSUPP ? "the NIC driver or the kernel does not import dma-bufs"
			       : error == EINVAL   ? "the range must be whole pages of the device"
						   : "check the GPU driver (BAR size, IOMMU)");
	if (mem->kind != NCCL_EP_NET_MEM_HOST && error != ENOMEM)
		return EP_FAIL(EP_NET, EIO,
			       "verbs: %s cannot register %zu bytes of device memory by address: %s; load %s",
			       dev->name, mem->size, strerror(error),
			       mem->kind == NCCL_EP_NET_MEM_HIP ? "amdgpu's peer memory" : "nvidia_peermem");
	return vb_fail(dev, error, "ibv_reg_mr");
}

/* libibverbs drops the optional flag if the NIC does not support it; older ones cannot take it. */
static struct ib_mr *mem_register(struct ib_pd *pd, const ncclEpNetMem_v1_t *mem, bool dmabuf)
{
	const struct ib_api *api = vb_api();
	int access = ACCESS | (mem->flags & NCCL_EP_NET_MEM_RELAXED ? IB_ACCESS_RELAXED_ORDERING : 0);
	uint64_t iova = (uintptr_t)mem->ptr;

	if (dmabuf)
		return api->reg_dmabuf_mr(pd, mem->offset, mem->size, iova, mem->fd, access);
	if (access != ACCESS && api->reg_mr_iova2)
		return api->reg_mr_iova2(pd, mem->ptr, mem->size, iova, (unsigned)access);
	return api->reg_mr(pd, mem->ptr, mem->size, ACCESS);
}

int vb_mr_open(struct vb_comm *comm, const ncclEpNetMem_v1_t *mem, bool dmabuf, void *key, void **out)
{
	struct vb_key mine;
	struct vb_mr *mr;
	int rc = mem_check(comm->dev, mem, dmabuf);

	if (rc)
		return rc;
	mr = EP_CALLOC(EP_NET, 1, sizeof(*mr) + (size_t)comm->base.nranks * sizeof(mr->far[0]), "a registration");
	if (!mr)
		return -ENOMEM;
	mr->base = (struct ep_base_mr){ .base = mem->ptr, .size = mem->size, .kind = mem->kind };
	errno = EIO;
	mr->mr = mem_register(comm->pd, mem, dmabuf);
	if (!mr->mr) {
		rc = mem_refused(comm->dev, mem, dmabuf, errno);
		free(mr);
		return rc;
	}
	mine = (struct vb_key){ .size = mem->size, .addr = (uintptr_t)mem->ptr, .rkey = mr->mr->rkey };
	mr->far[comm->base.rank] =
		(struct vb_far){ .addr = mine.addr, .rkey = mine.rkey }; /* for flushes, even if never shared */
	ep_base_key_write(key, &mine, sizeof(mine));
	*out = mr;
	return 0;
}

static int key_take(struct ep_base_comm *comm, struct ep_base_mr *mr, int r, const void *data)
{
	struct vb_key key;

	(void)comm;
	memcpy(&key, data, sizeof(key));
	((struct vb_mr *)mr)->far[r] = (struct vb_far){ .addr = key.addr, .rkey = key.rkey };
	return 0;
}

int vb_shareMr(void *comm, void *mr, const void *keys)
{
	return ep_base_mr_share(comm, mr, keys, offsetof(struct vb_key, size), key_take);
}

/* NULL is accepted. */
void vb_mr_close(struct vb_mr *mr)
{
	if (!mr)
		return;
	vb_api()->dereg_mr(mr->mr);
	free(mr);
}

int vb_regMr(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	return vb_mr_open(comm, mem, false, key, mr);
}

int vb_regMrDmaBuf(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	return vb_mr_open(comm, mem, true, key, mr);
}

int vb_deregMr(void *comm, void *mr)
{
	(void)comm;
	vb_mr_close(mr);
	return 0;
}
