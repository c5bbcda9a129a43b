/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_KERNELS_CUDA_MEMORY_H
#define EP_KERNELS_CUDA_MEMORY_H

#include "kernels/cuda/cuda_dev.h"

/* struct ep_mem.priv: the kind, the allocation handle (own VMM memory only), the bytes actually mapped. */
enum ep_cuda_mem {
	EP_CUDA_MEM_NONE,
	EP_CUDA_MEM_VMM,   /* cuMemCreate here, or imported from a file descriptor (then without a handle) */
	EP_CUDA_MEM_PLAIN, /* cuMemAlloc */
	EP_CUDA_MEM_IPC,   /* opened from another process */
};

/* Both with the context current. */
int ep_cuda_vmm_map(const struct ep_cuda_dev *dev, unsigned long long handle, size_t mapped, unsigned long long *out);
void ep_cuda_mem_release(const struct ep_mem *mem);

#endif
