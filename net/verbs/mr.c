/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory, registered once for all contexts. Never with relaxed ordering: what the net says of order would not hold, and
 * a flag of 8 bytes could show before its rows.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

#define ACCESS (IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ)

/* With no descriptor at all: who can import dma-bufs says that it is none, who cannot says so first. */
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

/* Modules that let a NIC register memory of GPUs by its address. */
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
			       "verbs: %s takes no dma-bufs: that needs libibverbs of rdma-core 34, Linux 5.12 and a "
			       "driver that imports them",
			       dev->name);
	if (!(mem->kind & dev->kinds))
		return EP_FAIL(EP_NET, EP_EUSAGE,
			       "verbs: %s takes only host memory: load %s, or stage through the host", dev->name,
			       mem->kind == NCCL_EP_NET_MEM_HIP ? "amdgpu with peer memory" : "nvidia_peermem");
	if (!mem->ptr || !mem->size || (uintptr_t)mem->ptr + mem->size < mem->size || (dmabuf && mem->fd < 0))
		return EP_FAIL(EP_NET, EP_EARG, "verbs: %zu bytes at %p cannot be registered", mem->size, mem->ptr);
	return 0;
}

static int mem_refused(const struct vb_dev *dev, const ncclEpNetMem_v1_t *mem, bool dmabuf, int error)
{
	if (dmabuf && error != ENOMEM)
		return EP_FAIL(EP_NET, error == EOPNOTSUPP ? ENOTSUP : EIO,
			       "verbs: %s does not register %zu bytes of a dma-buf: %s; %s", dev->name, mem->size,
			       strerror(error),
			       error == EOPNOTSUPP ? "the driver of the NIC or the kernel does not import dma-bufs"
			       : error == EINVAL   ? "the range must be in whole pages of the device"
						   : "the driver of the GPU may not allow it (BAR too small, IOMMU)");
	if (mem->kind != NCCL_EP_NET_MEM_HOST && error != ENOMEM)
		return EP_FAIL(EP_NET, EIO,
			       "verbs: %s does not register %zu bytes of a GPU by their address: %s; load %s",
			       dev->name, mem->size, strerror(error),
			       mem->kind == NCCL_EP_NET_MEM_HIP ? "amdgpu's peer memory" : "nvidia_peermem");
	return vb_fail(dev, error, "registering memory");
}

int vb_mr_open(struct vb_comm *comm, const ncclEpNetMem_v1_t *mem, bool dmabuf, struct vb_key *key, struct vb_mr **out)
{
	struct vb_mr *mr;
	int rc = mem_check(comm->dev, mem, dmabuf);

	if (rc)
		return rc;
	mr = calloc(1, sizeof(*mr) + (size_t)comm->nranks * sizeof(mr->far[0]));
	if (!mr)
		return EP_FAIL(EP_NET, ENOMEM, "verbs: no memory for a registration");
	*mr = (struct vb_mr){ .base = mem->ptr, .size = mem->size, .kind = mem->kind };
	errno = EIO;
	mr->mr =
		dmabuf ? vb_api()->reg_dmabuf_mr(comm->pd, mem->offset, mem->size, (uintptr_t)mem->ptr, mem->fd, ACCESS)
		       : vb_api()->reg_mr(comm->pd, mem->ptr, mem->size, ACCESS);
	if (!mr->mr) {
		rc = mem_refused(comm->dev, mem, dmabuf, errno);
		free(mr);
		return rc;
	}
	*key = (struct vb_key){ .size = mem->size, .addr = (uintptr_t)mem->ptr, .rkey = mr->mr->rkey };
	mr->far[comm->rank] = (struct vb_far){ .addr = key->addr, .rkey = key->rkey }; /* for flushes, shared or not */
	*out = mr;
	return 0;
}

int vb_mr_share(struct vb_comm *comm, struct vb_mr *mr, const void *keys)
{
	struct vb_key key;

	if (mr->shared)
		return EP_FAIL(EP_NET, EP_EUSAGE, "verbs: this registration is shared already");
	for (int r = 0; r < comm->nranks; r++) {
		memcpy(&key, (const uint8_t *)keys + (size_t)r * NCCL_EP_NET_KEY_SIZE, sizeof(key));
		if (key.size != mr->size)
			return EP_FAIL(EP_NET, EP_EREMOTE, "verbs: rank %d registered %llu bytes, rank %d %zu", r,
				       (unsigned long long)key.size, comm->rank, mr->size);
		mr->far[r] = (struct vb_far){ .addr = key.addr, .rkey = key.rkey };
	}
	mr->shared = true;
	return 0;
}

/* NULL is accepted. */
void vb_mr_close(struct vb_mr *mr)
{
	if (!mr)
		return;
	vb_api()->dereg_mr(mr->mr);
	free(mr);
}
