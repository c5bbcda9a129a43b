/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing memory: export to and import from processes of the node, access between GPUs of one process. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/memory.h"
#include "util/error.h"

_Static_assert(sizeof(struct ep_cuda_blob) <= sizeof(((struct ep_export *)0)->blob), "fits");
_Static_assert(sizeof(struct ep_cu_ipc) == sizeof(((struct ep_export *)0)->blob), "fits");

int ep_cuda_export_fill(const struct ep_cuda_dev *dev, int one, uint64_t mapped, struct ep_export *out, int *fd)
{
	struct ep_cuda_blob blob = { .mapped = mapped };

	if (one < 0 || fcntl(one, F_SETFD, FD_CLOEXEC)) {
		if (one >= 0)
			close(one);
		return EP_FAIL(EP_DEV, EP_EDEVICE, "GPU %d: the driver exported no valid file descriptor",
			       dev->dev.ordinal);
	}
	memcpy(blob.uuid, dev->dev.uuid, sizeof(blob.uuid));
	out->share = EP_SHARE_FD;
	memcpy(out->blob, &blob, sizeof(blob));
	*fd = one;
	return 0;
}

static int export_fd(const struct ep_cuda_dev *dev, const struct ep_mem *mem, struct ep_export *out, int *fd)
{
	int one = -1, rc = EP_CU(cuMemExportToShareableHandle, (&one, mem->priv[1], EP_CU_HANDLE_POSIX_FD, 0),
				 "for a window of %zu bytes on GPU %d", mem->size, dev->dev.ordinal);

	return rc ? rc : ep_cuda_export_fill(dev, one, mem->priv[2], out, fd);
}

static int export_ipc(const struct ep_cuda_dev *dev, const struct ep_mem *mem, struct ep_export *out, int *fd)
{
	struct ep_cu_ipc handle;
	int rc = EP_CU(cuIpcGetMemHandle, (&handle, (unsigned long long)(uintptr_t)mem->ptr),
		       "for a window of %zu bytes on GPU %d", mem->size, dev->dev.ordinal);

	if (rc)
		return rc;
	out->share = EP_SHARE_BLOB;
	memcpy(out->blob, handle.bytes, sizeof(handle.bytes));
	*fd = -1;
	return 0;
}

int ep_cuda_mem_export(struct ep_dev *base, const struct ep_mem *mem, struct ep_export *out, int *fd)
{
	struct ep_export export = { .kind = EP_DEV_CUDA, .size = mem->size };
	struct ep_cuda_scope scope;
	int rc = ep_cuda_enter(ep_cuda(base), &scope);

	if (rc)
		return rc;
	if (mem->priv[0] == EP_CUDA_MEM_VMM && mem->priv[1])
		rc = export_fd(ep_cuda(base), mem, &export, fd);
	else if (mem->priv[0] == EP_CUDA_MEM_PLAIN)
		rc = export_ipc(ep_cuda(base), mem, &export, fd);
	else
		rc = EP_FAIL(EP_DEV, EP_EINTERNAL, "GPU %d: only this rank's own windows can be exported",
			     base->ordinal);
	ep_cuda_leave(&scope);
	if (!rc)
		*out = export;
	return rc;
}

/* A clear error if the owner's GPU is visible here but not accessible; otherwise the import itself fails. */
static int reach_check(const struct ep_cuda_dev *dev, const uint8_t owner[16])
{
	static const uint8_t none[16];
	int count = 0, device, can = 0;
	uint8_t uuid[16];

	if (!memcmp(owner, none, 16) || ep_cu.cuDeviceGetCount(&count))
		return 0;
	for (int i = 0; i < count; i++) {
		if (ep_cu.cuDeviceGet(&device, i))
			continue;
		ep_cuda_uuid(device, uuid);
		if (memcmp(uuid, owner, 16) || device == dev->device)
			continue;
		if (!ep_cu.cuDeviceCanAccessPeer(&can, dev->device, device) && !can)
			return EP_FAIL(EP_DEV, EP_EUSAGE, "GPU %d has no NVLink or PCIe peer access to GPU %d",
				       dev->dev.ordinal, i);
	}
	return 0;
}

/* The sizes are the sender's claim: cuMemMap refuses to map more than the allocation has, and nothing past the mapping
 * is used. */
static int import_fd(const struct ep_cuda_dev *dev, const struct ep_export *from, int fd, struct ep_mem *mem)
{
	struct ep_cuda_blob blob;
	unsigned long long handle, ptr;
	int rc;

	memcpy(&blob, from->blob, sizeof(blob));
	if (fd < 0 || blob.mapped < from->size || blob.mapped > EP_CUDA_MAPPED_LIMIT)
		return EP_FAIL(EP_DEV, EP_EREMOTE,
			       "a peer's window of %llu bytes claims a mapping of %llu, descriptor %d",
			       (unsigned long long)from->size, (unsigned long long)blob.mapped, fd);
	if ((rc = reach_check(dev, blob.uuid)))
		return rc;
	rc = EP_CU(cuMemImportFromShareableHandle, (&handle, (void *)(uintptr_t)fd, EP_CU_HANDLE_POSIX_FD),
		   "for a peer's window on GPU %d", dev->dev.ordinal);
	if (rc)
		return rc;
	rc = ep_cuda_vmm_map(dev, handle, blob.mapped, &ptr);
	EP_CU_NOTE(cuMemRelease, (handle)); /* the mapping keeps the memory */
	if (!rc)
		*mem = (struct ep_mem){ .ptr = (void *)(uintptr_t)ptr,
					.size = from->size,
					.priv = { EP_CUDA_MEM_VMM, 0, blob.mapped } };
	return rc;
}

static int import_ipc(const struct ep_cuda_dev *dev, const struct ep_export *from, struct ep_mem *mem)
{
	unsigned long long ptr, start;
	struct ep_cu_ipc handle;
	size_t size;
	int rc;

	memcpy(handle.bytes, from->blob, sizeof(handle.bytes));
	rc = EP_CU(cuIpcOpenMemHandle_v2, (&ptr, handle, EP_CU_IPC_LAZY_PEER), "for a peer's window on GPU %d",
		   dev->dev.ordinal);
	if (rc)
		return rc;
	if ((rc = EP_CU(cuMemGetAddressRange_v2, (&start, &size, ptr), "for a peer's window on GPU %d",
			dev->dev.ordinal)))
		goto close_handle;
	if (start > ptr || ptr - start > size || size - (ptr - start) < from->size) {
		rc = EP_FAIL(EP_DEV, EP_EREMOTE, "a peer's window has %zu bytes, but claims %llu", size,
			     (unsigned long long)from->size);
		goto close_handle;
	}
	*mem = (struct ep_mem){ .ptr = (void *)(uintptr_t)ptr,
				.size = from->size,
				.priv = { EP_CUDA_MEM_IPC, 0, size } };
	return 0;
close_handle:
	EP_CU_NOTE(cuIpcCloseMemHandle, (ptr));
	return rc;
}

int ep_cuda_mem_import(struct ep_dev *base, const struct ep_export *from, int fd, struct ep_mem *out)
{
	struct ep_cuda_scope scope;
	struct ep_mem mem = { 0 };
	int rc;

	if (from->kind != EP_DEV_CUDA || !from->size || (from->share != EP_SHARE_FD && from->share != EP_SHARE_BLOB))
		return EP_FAIL(EP_DEV, EP_EREMOTE,
			       "GPU %d: cannot import a peer's window of kind %u, %llu bytes, share type %u",
			       base->ordinal, from->kind, (unsigned long long)from->size, from->share);
	if ((rc = ep_cuda_enter(ep_cuda(base), &scope)))
		return rc;
	rc = from->share == EP_SHARE_FD ? import_fd(ep_cuda(base), from, fd, &mem)
					: import_ipc(ep_cuda(base), from, &mem);
	ep_cuda_leave(&scope);
	if (!rc)
		*out = mem;
	return rc;
}

bool ep_cuda_is_vmm(const void *ptr)
{
	unsigned long long handle;

	if (ep_cu.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr))
		return false;
	EP_CU_NOTE(cuMemRelease, (handle));
	return true;
}

static int pointer_attribute(const void *ptr, unsigned id, void *out)
{
	return EP_CU(cuPointerGetAttribute, (out, id, (unsigned long long)(uintptr_t)ptr), "for address %p", ptr);
}

/* Our reservations have the size of their mapping, so the pointer's range is the mapping. */
static int peer_open_vmm(const struct ep_cuda_dev *dev, const void *ptr)
{
	struct ep_cu_access access = { .location = { EP_CU_LOCATION_DEVICE, dev->device },
				       .flags = EP_CU_ACCESS_READWRITE };
	unsigned long long start;
	size_t size;
	int rc;

	if ((rc = pointer_attribute(ptr, EP_CU_PTR_RANGE_START, &start)) ||
	    (rc = pointer_attribute(ptr, EP_CU_PTR_RANGE_SIZE, &size)))
		return rc;
	return EP_CU(cuMemSetAccess, (start, size, &access, 1), "for a window of another GPU on GPU %d",
		     dev->dev.ordinal);
}

static int peer_open_plain(const struct ep_cuda_dev *dev, const void *ptr)
{
	struct CUctx_st *owner = NULL;
	unsigned result;
	int rc = pointer_attribute(ptr, EP_CU_PTR_CONTEXT, &owner);

	if (rc || owner == dev->ctx)
		return rc;
	result = ep_cu.cuCtxEnablePeerAccess(owner, 0);
	if (result == EP_CU_PEER_ALREADY)
		return 0;
	return ep_cu_check_(result, "cuCtxEnablePeerAccess", __FILE__, __LINE__, "for GPU %d", dev->dev.ordinal);
}

int ep_cuda_peer_open(struct ep_dev *base, int peer_ordinal, const struct ep_mem *mem)
{
	struct ep_cuda_dev *dev = ep_cuda(base);
	struct ep_cuda_scope scope;
	int peer, can, rc = ep_cuda_enter(dev, &scope);

	if (rc)
		return rc;
	if ((rc = EP_CU(cuDeviceGet, (&peer, peer_ordinal), "for GPU %d", peer_ordinal)))
		goto leave;
	if (peer != dev->device) {
		if ((rc = EP_CU(cuDeviceCanAccessPeer, (&can, dev->device, peer), "for GPU %d", base->ordinal)))
			goto leave;
		if (!can) {
			rc = EP_FAIL(EP_DEV, EP_EUSAGE, "GPU %d has no NVLink or PCIe peer access to GPU %d",
				     base->ordinal, peer_ordinal);
			goto leave;
		}
	}
	rc = ep_cuda_is_vmm(mem->ptr) ? peer_open_vmm(dev, mem->ptr) : peer_open_plain(dev, mem->ptr);
leave:
	ep_cuda_leave(&scope);
	return rc;
}

int ep_cuda_mem_dmabuf(struct ep_dev *base, const struct ep_mem *mem, int *fd)
{
	struct ep_cuda_dev *dev = ep_cuda(base);
	struct ep_cuda_scope scope;
	int rc;

	if (!dev->dmabuf)
		return EP_FAIL(EP_DEV, ENOTSUP,
			       "GPU %d: the driver cannot export a dma-buf; that needs CUDA 11.7 and the open kernel "
			       "modules",
			       base->ordinal);
	if ((rc = ep_cuda_enter(dev, &scope)))
		return rc;
	rc = EP_CU(cuMemGetHandleForAddressRange,
		   (fd, (unsigned long long)(uintptr_t)mem->ptr, mem->size, EP_CU_RANGE_DMABUF, 0),
		   "for %zu bytes of GPU %d", mem->size, base->ordinal);
	ep_cuda_leave(&scope);
	return rc;
}
