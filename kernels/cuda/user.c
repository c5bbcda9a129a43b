/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the user allocated: which allocation it is, and how other processes map it. cudaMalloc's is opened by
 * CUDA IPC, as a whole. Mapped memory is opened handle by handle: torch's expandable segments are rows of handles of
 * one size (2 or 20 MiB) in one reservation that is larger than the GPU's memory, so a tensor's row is that of the
 * handles it lies in.
 *
 * Nothing here is a failure: a tensor that cannot be shared works, through the window, and an owner may free at any
 * time what is being opened. So reasons are logged at INFO, and no message is set.
 */
#include <stdatomic.h>
#include <string.h>

#include "kernels/cuda/memory.h"
#include "util/error.h"

/* Mapped memory can change behind a reserved address (expandable segments unmap and remap), so there the id is that of
 * the physical block, where the driver reports it, and of a row a hash of its blocks' ids: only compared with that of
 * the same addresses. The top bits keep the kinds of ids apart. */
#define BLOCK_ID (1ull << 63)
#define ROW_ID (1ull << 62)
#define ID_MASK (ROW_ID - 1)

static unsigned long long block_of(unsigned long long address)
{
	unsigned long long block = 0;

	return ep_cu.cuPointerGetAttribute(&block, EP_CU_PTR_MEMORY_BLOCK_ID, address) ? 0 : block;
}

/* Blocks are numbered: unmixed, the rows n, n + 1 and m, m + 1 would look alike. */
static unsigned long long mixed(unsigned long long v)
{
	v = (v ^ v >> 33) * 0xff51afd7ed558ccdull;
	v = (v ^ v >> 33) * 0xc4ceb9fe1a85ec53ull;
	return v ^ v >> 33;
}

/* Adds the mappings that follow, up to end. One that is missing, or of another size, ends the row, and the kernels
 * stage what reaches beyond it. */
static void row_extend(unsigned long long end, struct ep_buffer *row)
{
	unsigned long long at = (unsigned long long)(uintptr_t)row->base + row->size, start, block;
	unsigned long long hash = row->id & ID_MASK;
	size_t piece = row->size, size;

	while (at < end && (block = block_of(at)) && !ep_cu.cuMemGetAddressRange_v2(&start, &size, at) && start == at &&
	       size == piece) {
		hash = mixed(hash) + block;
		row->id = BLOCK_ID | ROW_ID | (hash & ID_MASK);
		row->size += piece;
		row->pieces++;
		at += piece;
	}
}

/* cuMemGetAddressRange knows the mapping around a pointer but not pinned host memory; the attributes do. */
static int range_of(unsigned long long address, unsigned long long *start, size_t *size)
{
	if (!ep_cu.cuMemGetAddressRange_v2(start, size, address))
		return 0;
	if (ep_cu.cuPointerGetAttribute(start, EP_CU_PTR_RANGE_START, address) ||
	    ep_cu.cuPointerGetAttribute(size, EP_CU_PTR_RANGE_SIZE, address))
		return -ENOENT;
	return 0;
}

int ep_cuda_buffer_id(struct ep_dev *base, const void *ptr, size_t bytes, struct ep_buffer *out)
{
	unsigned long long id = 0, block, start = 0, address = (unsigned long long)(uintptr_t)ptr;
	struct ep_buffer found = { .pieces = 1 };
	struct ep_cuda_scope scope;
	size_t size = 0;
	int rc = ep_cuda_enter(ep_cuda(base), &scope);

	if (rc)
		return rc;
	if (ep_cu.cuPointerGetAttribute(&id, EP_CU_PTR_BUFFER_ID, address) || !id)
		rc = -ENOENT; /* plain memory: not a failure */
	else
		rc = range_of(address, &start, &size);
	if (rc)
		goto leave;
	found.id = id;
	found.base = (void *)(uintptr_t)start;
	found.size = size;
	if (ep_cuda_is_vmm(ptr) && (block = block_of(address))) {
		found.id = block | BLOCK_ID;
		row_extend(address + bytes, &found);
	}
	*out = found;
leave:
	ep_cuda_leave(&scope);
	return rc;
}

static int refused(const struct ep_cuda_dev *dev, const struct ep_buffer *user, unsigned result)
{
	EP_INFO(EP_DEV, "GPU %d: %zu bytes at %p cannot be exported to other processes: %s", dev->dev.ordinal,
		user->size, user->base, ep_cu_name(result));
	return -ENOTSUP;
}

/* IPC maps an allocation whose size is a multiple of this with large pages, any other with small ones. */
#define LARGE_PAGE ((size_t)2 << 20)

static void pages_note(const struct ep_cuda_dev *dev, const struct ep_buffer *user)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (user->size < LARGE_PAGE || user->size % LARGE_PAGE == 0 || atomic_flag_test_and_set(&said))
		return;
	EP_INFO(EP_DEV,
		"GPU %d: an allocation of %zu bytes is mapped by other processes with small pages, and accessed at "
		"lower speed. Allocate multiples of 2 MiB, as torch's allocator does",
		dev->dev.ordinal, user->size);
}

/* What the driver refuses: memory of a pool, managed or pinned memory, handles created without a descriptor type. And
 * without the physical block's id, a remapping of the address would go unnoticed. */
int ep_cuda_user_export(struct ep_dev *base, const struct ep_buffer *user, uint32_t piece, struct ep_export *out,
			int *fd)
{
	struct ep_export export = { .share = EP_SHARE_BLOB, .kind = EP_DEV_CUDA, .size = user->size / user->pieces };
	void *at = (uint8_t *)user->base + piece * export.size;
	struct ep_cuda_dev *dev = ep_cuda(base);
	struct ep_cuda_scope scope;
	unsigned long long handle;
	struct ep_cu_ipc ipc;
	unsigned result;
	int one = -1, rc = ep_cuda_enter(dev, &scope);

	if (rc)
		return rc;
	if (!ep_cu.cuMemRetainAllocationHandle(&handle, at)) {
		result = user->id & BLOCK_ID
				 ? ep_cu.cuMemExportToShareableHandle(&one, handle, EP_CU_HANDLE_POSIX_FD, 0)
				 : EP_CU_NOT_SUPPORTED;
		EP_CU_NOTE(cuMemRelease, (handle));
		if (!result)
			rc = ep_cuda_export_fill(dev, one, export.size, &export, &one);
	} else {
		result = ep_cu.cuIpcGetMemHandle(&ipc, (unsigned long long)(uintptr_t)user->base);
		if (!result)
			memcpy(export.blob, ipc.bytes, sizeof(ipc.bytes));
		pages_note(dev, user);
	}
	ep_cuda_leave(&scope);
	if (result)
		return refused(dev, user, result);
	if (rc)
		return rc;
	*out = export;
	*fd = one;
	return 0;
}

/* ---- the other process ---- */

/* The sizes are the sender's claim: cuMemMap refuses to map more than the allocation has, and nothing past the mapping
 * is used. */
static bool row_valid(const struct ep_export *from, const int *fd, uint32_t n)
{
	struct ep_cuda_blob blob;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&blob, from[i].blob, sizeof(blob));
		if (from[i].kind != EP_DEV_CUDA || from[i].share != EP_SHARE_FD || fd[i] < 0 || !from[i].size ||
		    from[i].size != from[0].size || blob.mapped != from[i].size ||
		    blob.mapped > EP_CUDA_MAPPED_LIMIT / n)
			return false;
	}
	return n > 0;
}

/* Returns the pieces that were mapped. */
static uint32_t row_map(unsigned long long ptr, const struct ep_export *from, const int *fd, uint32_t n,
			unsigned *result)
{
	unsigned long long handle;
	uint32_t i = 0;

	while (i < n) {
		*result =
			ep_cu.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd[i], EP_CU_HANDLE_POSIX_FD);
		if (*result)
			break;
		*result = ep_cu.cuMemMap(ptr + i * from->size, from->size, 0, handle, 0);
		EP_CU_NOTE(cuMemRelease, (handle)); /* the mapping keeps the memory */
		if (*result)
			break;
		i++;
	}
	return i;
}

static unsigned import_row(const struct ep_cuda_dev *dev, const struct ep_export *from, const int *fd, uint32_t n,
			   struct ep_mem *out)
{
	struct ep_cu_access access = { .location = { EP_CU_LOCATION_DEVICE, dev->device },
				       .flags = EP_CU_ACCESS_READWRITE };
	uint64_t total = n * from->size;
	unsigned long long ptr;
	unsigned result = ep_cu.cuMemAddressReserve(&ptr, total, 0, 0, 0);
	uint32_t mapped;

	if (result)
		return result;
	mapped = row_map(ptr, from, fd, n, &result);
	if (!result)
		result = ep_cu.cuMemSetAccess(ptr, total, &access, 1);
	if (!result) {
		*out = (struct ep_mem){ .ptr = (void *)(uintptr_t)ptr,
					.size = total,
					.priv = { EP_CUDA_MEM_ROW, from->size, total } };
		return 0;
	}
	for (uint32_t i = 0; i < mapped; i++)
		EP_CU_NOTE(cuMemUnmap, (ptr + i * from->size, from->size));
	EP_CU_NOTE(cuMemAddressFree, (ptr, total));
	return result;
}

static unsigned import_ipc(const struct ep_export *from, struct ep_mem *out)
{
	unsigned long long ptr, start = 0;
	struct ep_cu_ipc handle;
	size_t size = 0;
	unsigned result;

	memcpy(handle.bytes, from->blob, sizeof(handle.bytes));
	result = ep_cu.cuIpcOpenMemHandle_v2(&ptr, handle, EP_CU_IPC_LAZY_PEER);
	if (result)
		return result;
	result = ep_cu.cuMemGetAddressRange_v2(&start, &size, ptr);
	if (!result && (start > ptr || ptr - start > size || size - (ptr - start) < from->size))
		result = EP_CU_NOT_SUPPORTED; /* less than it claims */
	if (result)
		EP_CU_NOTE(cuIpcCloseMemHandle, (ptr));
	else
		*out = (struct ep_mem){ .ptr = (void *)(uintptr_t)ptr,
					.size = from->size,
					.priv = { EP_CUDA_MEM_IPC, 0, size } };
	return result;
}

int ep_cuda_user_import(struct ep_dev *base, const struct ep_export *from, const int *fd, uint32_t n,
			struct ep_mem *out)
{
	struct ep_cuda_dev *dev = ep_cuda(base);
	bool ipc = n == 1 && from->share == EP_SHARE_BLOB && from->kind == EP_DEV_CUDA && from->size;
	struct ep_cuda_scope scope;
	unsigned result;
	int rc;

	if (!ipc && !row_valid(from, fd, n))
		return -EPROTO;
	if ((rc = ep_cuda_enter(dev, &scope)))
		return rc;
	result = ipc ? import_ipc(from, out) : import_row(dev, from, fd, n, out);
	ep_cuda_leave(&scope);
	if (result)
		EP_INFO(EP_DEV, "GPU %d: %llu bytes of another process, in %u pieces, cannot be mapped: %s",
			base->ordinal, (unsigned long long)from->size * n, n, ep_cu_name(result));
	return result ? -EIO : 0;
}
