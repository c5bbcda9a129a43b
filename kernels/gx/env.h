/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host's primitives need from the code that runs a kernel: kernels/host/scalar.c, or the emulator in
 * kernels/simt.
 */
#ifndef EP_KERNELS_GX_ENV_H
#define EP_KERNELS_GX_ENV_H

#include <stdint.h>

/* The dynamic shared memory of the block this thread runs; 128-byte aligned, not cleared. */
void *gx_host_shared(void);

/* The rest is implemented by the emulator only. */
struct simt_where {
	uint32_t tid, threads, block, blocks;
};

/* The result never changes while a kernel runs in a fiber, so the compiler may call it once. */
const struct simt_where *simt_where(void) __attribute__((const));

/* where: "file:line" of the kernel. */
void simt_syncthreads(const char *where);
void simt_syncwarp(const char *where);
uint64_t simt_shfl(uint64_t v, uint32_t src, const char *where);
uint64_t simt_ballot(int p, const char *where);
void simt_pause(const char *where);
/* The proxy fence: this thread has acquired; has made the fence; starts a copy, which must not be between the two. */
void simt_acquired(void);
void simt_fence_proxy(void);
void simt_copies(const char *where);

#endif
