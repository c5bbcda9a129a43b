/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_KERNELS_CUDA_MEMORY_H
#define EP_KERNELS_CUDA_MEMORY_H

#include "kernels/cuda/cuda_dev.h"

/* struct ep_mem.priv: the kind, the allocation handle (own VMM memory only) or the bytes of a piece, the bytes actually
 * mapped. */
enum ep_cuda_mem {
	EP_CUDA_MEM_NONE,
	EP_CUDA_MEM_VMM,   /* cuMemCreate here, or imported from a file descriptor (then without a handle) */
	EP_CUDA_MEM_PLAIN, /* cuMemAlloc */
	EP_CUDA_MEM_IPC,   /* opened from another process */
	EP_CUDA_MEM_ROW,   /* several handles of another process, of one size, in one reservation */
};

/* The blob that accompanies a file descriptor. */
struct ep_cuda_blob {
	uint64_t mapped;
	uint8_t uuid[16]; /* of the owner's GPU; zero if unknown */
};
#define EP_CUDA_MAPPED_LIMIT ((uint64_t)1 << 47)

/* memory.c, with the context current. */
int ep_cuda_vmm_map(const struct ep_cuda_dev *dev, unsigned long long handle, size_t mapped, unsigned long long *out);
void ep_cuda_mem_release(const struct ep_mem *mem);

/* share.c, with the context current: whether an address is in mapped memory; completes an export whose descriptor the
 * driver has created. */
bool ep_cuda_is_vmm(const void *ptr);
int ep_cuda_export_fill(const struct ep_cuda_dev *dev, int one, uint64_t mapped, struct ep_export *out, int *fd);

#endif
