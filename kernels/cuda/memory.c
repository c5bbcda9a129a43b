/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows and pinned memory. A window is a shareable virtual memory handle where the device has them: its file
 * descriptor works for every process it is sent to, leaves nothing behind after a crash, and a NIC can register it.
 * Second choice is cuMemAlloc with a CUDA IPC handle.
 */
#include "kernels/cuda/memory.h"

#include <string.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

/* cuMemAlloc carves small requests out of blocks of this size, and IPC would share the whole block. */
#define PLAIN_UNIT ((size_t)2 << 20)
/* Far above any device's memory, far below what could overflow when rounded. */
#define SIZE_LIMIT ((size_t)1 << 46)

static size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

int ep_cuda_vmm_map(const struct ep_cuda_dev *dev, unsigned long long handle, size_t mapped, unsigned long long *out)
{
	struct ep_cu_access access = { .location = { EP_CU_LOCATION_DEVICE, dev->device },
				       .flags = EP_CU_ACCESS_READWRITE };
	unsigned long long ptr;
	int rc = EP_CU(cuMemAddressReserve, (&ptr, mapped, 0, 0, 0), "for a window of %zu bytes on GPU %d", mapped,
		       dev->dev.ordinal);

	if (rc)
		return rc;
	if ((rc = EP_CU(cuMemMap, (ptr, mapped, 0, handle, 0), "for a window of %zu bytes on GPU %d", mapped,
			dev->dev.ordinal)))
		goto free_address;
	if ((rc = EP_CU(cuMemSetAccess, (ptr, mapped, &access, 1), "for a window of %zu bytes on GPU %d", mapped,
			dev->dev.ordinal)))
		goto unmap;
	*out = ptr;
	return 0;
unmap:
	EP_CU_NOTE(cuMemUnmap, (ptr, mapped));
free_address:
	EP_CU_NOTE(cuMemAddressFree, (ptr, mapped));
	return rc;
}

/* The physical memory. A sandbox may forbid what the attributes promise, so an error other than out of memory is only
 * logged and *mapped is 0: the caller falls back to cuMemAlloc. */
static int vmm_create(const struct ep_cuda_dev *dev, size_t size, unsigned long long *handle, size_t *mapped)
{
	struct ep_cu_mem_prop prop = { .type = EP_CU_MEM_PINNED,
				       .handle_types = EP_CU_HANDLE_POSIX_FD,
				       .location = { EP_CU_LOCATION_DEVICE, dev->device },
				       .flags = { .rdma = dev->vmm_rdma } };
	size_t unit = 0, total = 0;
	unsigned result = ep_cu.cuMemGetAllocationGranularity(&unit, &prop, EP_CU_GRANULARITY_RECOMMENDED);

	if (!result && unit) {
		total = round_up(size, unit);
		result = ep_cu.cuMemCreate(handle, total, &prop, 0);
		if (result && result != EP_CU_OUT_OF_MEMORY && prop.flags.rdma) {
			prop.flags.rdma = 0;
			result = ep_cu.cuMemCreate(handle, total, &prop, 0);
		}
	}
	if (result == EP_CU_OUT_OF_MEMORY)
		return ep_cu_check_(result, "cuMemCreate", __FILE__, __LINE__, "for a window of %zu bytes on GPU %d",
				    size, dev->dev.ordinal);
	if (result)
		EP_INFO(EP_DEV, "GPU %d: no virtual memory handles (%s); using cuMemAlloc and CUDA IPC for windows",
			dev->dev.ordinal, ep_cu_name(result));
	*mapped = result ? 0 : total;
	return 0;
}

static int window_alloc(const struct ep_cuda_dev *dev, size_t size, struct ep_mem *mem)
{
	unsigned long long handle = 0, ptr;
	size_t mapped = 0;
	int rc;

	if (dev->vmm && (rc = vmm_create(dev, size, &handle, &mapped)))
		return rc;
	if (mapped) {
		if ((rc = ep_cuda_vmm_map(dev, handle, mapped, &ptr))) {
			EP_CU_NOTE(cuMemRelease, (handle));
			return rc;
		}
		*mem = (struct ep_mem){ .ptr = (void *)(uintptr_t)ptr,
					.size = size,
					.priv = { EP_CUDA_MEM_VMM, handle, mapped } };
		return 0;
	}
	mapped = round_up(size, PLAIN_UNIT);
	if ((rc = EP_CU(cuMemAlloc_v2, (&ptr, mapped), "for a window of %zu bytes on GPU %d", size, dev->dev.ordinal)))
		return rc;
	*mem = (struct ep_mem){ .ptr = (void *)(uintptr_t)ptr, .size = size, .priv = { EP_CUDA_MEM_PLAIN, 0, mapped } };
	return 0;
}

void ep_cuda_mem_release(const struct ep_mem *mem)
{
	unsigned long long ptr = (unsigned long long)(uintptr_t)mem->ptr;

	switch ((enum ep_cuda_mem)mem->priv[0]) {
	case EP_CUDA_MEM_NONE:
		break;
	case EP_CUDA_MEM_VMM:
		EP_CU_NOTE(cuMemUnmap, (ptr, mem->priv[2]));
		if (mem->priv[1])
			EP_CU_NOTE(cuMemRelease, (mem->priv[1]));
		EP_CU_NOTE(cuMemAddressFree, (ptr, mem->priv[2]));
		break;
	case EP_CUDA_MEM_ROW:
		for (uint64_t at = 0; at < mem->priv[2]; at += mem->priv[1])
			EP_CU_NOTE(cuMemUnmap, (ptr + at, mem->priv[1]));
		EP_CU_NOTE(cuMemAddressFree, (ptr, mem->priv[2]));
		break;
	case EP_CUDA_MEM_PLAIN:
		EP_CU_NOTE(cuMemFree_v2, (ptr));
		break;
	case EP_CUDA_MEM_IPC:
		EP_CU_NOTE(cuIpcCloseMemHandle, (ptr));
		break;
	}
}

int ep_cuda_mem_alloc(struct ep_dev *base, size_t size, struct ep_mem *out)
{
	struct ep_cuda_dev *dev = ep_cuda(base);
	struct ep_cuda_scope scope;
	struct ep_mem mem;
	int rc;

	if (!size || size > SIZE_LIMIT)
		return EP_FAIL(EP_DEV, EP_EARG, "GPU %d: invalid window size: %zu bytes", base->ordinal, size);
	if ((rc = ep_cuda_enter(dev, &scope)))
		return rc;
	if ((rc = window_alloc(dev, size, &mem)))
		goto leave;
	if ((rc = EP_CU(cuMemsetD8Async, ((unsigned long long)(uintptr_t)mem.ptr, 0, mem.priv[2], dev->work),
			"when zeroing a window on GPU %d", base->ordinal))) {
		ep_cuda_mem_release(&mem);
		goto leave;
	}
	rc = ep_cuda_wait(dev, dev->work, ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS)));
	if (!rc)
		*out = mem;
	else if (rc != -EP_ETIMEOUT) /* leaked after a timeout: freeing would wait for the same work, unbounded */
		ep_cuda_mem_release(&mem);
leave:
	ep_cuda_leave(&scope);
	return rc;
}

void ep_cuda_mem_free(struct ep_dev *base, struct ep_mem *mem)
{
	struct ep_cuda_scope scope;

	if (!mem->ptr || ep_cuda_enter(ep_cuda(base), &scope))
		return;
	ep_cuda_mem_release(mem);
	*mem = (struct ep_mem){ 0 };
	ep_cuda_leave(&scope);
}

int ep_cuda_pinned_alloc(struct ep_dev *base, size_t size, struct ep_pinned *out)
{
	struct ep_pinned mem = { .size = size };
	struct ep_cuda_scope scope;
	unsigned long long ptr;
	int rc;

	if (!size || size > SIZE_LIMIT)
		return EP_FAIL(EP_DEV, EP_EARG, "GPU %d: invalid size of pinned memory: %zu bytes", base->ordinal,
			       size);
	if ((rc = ep_cuda_enter(ep_cuda(base), &scope)))
		return rc;
	/* Portable: other contexts of the process (ranks as threads on several GPUs) may access it too. */
	if ((rc = EP_CU(cuMemHostAlloc, (&mem.host, size, EP_CU_HOST_PORTABLE | EP_CU_HOST_MAPPED),
			"for %zu bytes of pinned memory", size)))
		goto leave;
	if ((rc = EP_CU(cuMemHostGetDevicePointer_v2, (&ptr, mem.host, 0), "on GPU %d", base->ordinal))) {
		EP_CU_NOTE(cuMemFreeHost, (mem.host));
		goto leave;
	}
	memset(mem.host, 0, size);
	mem.dev = (void *)(uintptr_t)ptr;
	*out = mem;
leave:
	ep_cuda_leave(&scope);
	return rc;
}

void ep_cuda_pinned_free(struct ep_dev *base, struct ep_pinned *mem)
{
	struct ep_cuda_scope scope;

	if (!mem->host || ep_cuda_enter(ep_cuda(base), &scope))
		return;
	EP_CU_NOTE(cuMemFreeHost, (mem->host));
	*mem = (struct ep_pinned){ 0 };
	ep_cuda_leave(&scope);
}

int ep_cuda_pin(struct ep_dev *base, void *host, size_t size, struct ep_pinned *out)
{
	struct ep_pinned mem = { .host = host, .size = size };
	struct ep_cuda_scope scope;
	unsigned long long ptr;
	int rc;

	if ((rc = ep_cuda_enter(ep_cuda(base), &scope)))
		return rc;
	if ((rc = EP_CU(cuMemHostRegister_v2, (host, size, EP_CU_REGISTER_PORTABLE | EP_CU_REGISTER_MAPPED),
			"for %zu bytes shared by a net and GPU %d", size, base->ordinal)))
		goto leave;
	if ((rc = EP_CU(cuMemHostGetDevicePointer_v2, (&ptr, host, 0), "on GPU %d", base->ordinal))) {
		EP_CU_NOTE(cuMemHostUnregister, (host));
		goto leave;
	}
	mem.dev = (void *)(uintptr_t)ptr;
	*out = mem;
leave:
	ep_cuda_leave(&scope);
	return rc;
}

void ep_cuda_unpin(struct ep_dev *base, struct ep_pinned *mem)
{
	struct ep_cuda_scope scope;

	if (!mem->host || ep_cuda_enter(ep_cuda(base), &scope))
		return;
	EP_CU_NOTE(cuMemHostUnregister, (mem->host));
	*mem = (struct ep_pinned){ 0 };
	ep_cuda_leave(&scope);
}
