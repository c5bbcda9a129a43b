/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Base definitions shared by host code and kernels, below all argument structs. Compiled as C11, by nvcc and by clang
 * -x hip; every struct's size is asserted, so that two compilers cannot disagree silently.
 */
#ifndef EP_KERNELS_GX_BOTH_H
#define EP_KERNELS_GX_BOTH_H

#include <stddef.h>
#include <stdint.h>

/* Threads per block. 1024 would leave 64 registers for each, and rowsig spills at that; 512 leaves 128. */
#define EP_THREADS_MAX 512

/* Warps of a block of an LL dispatch, whose kernels are compiled for no more: with the registers of 16 they spill. */
#define EP_LL_DISPATCH_WARPS 8

/* Bytes in front of the row in a stage (a warp's shared memory): the copy engine's mbarrier. */
#define EP_STAGE_HEAD 128u

/* C11 and C++ spell static assertions differently; this works in both without a header. */
#define EP_SIZE_IS(type, bytes) typedef char ep_size_of_##type[sizeof(struct type) == (bytes) ? 1 : -1]

/* A function for host and device. Kernels include gx.h first, which defines GX_DEV. */
#ifdef GX_DEV
#define EP_BOTH GX_DEV
#else
#define EP_BOTH static inline
#endif

/* The name of a kernel's code, in profilers too: tools look for dispatch_kernel and combine_kernel. */
#define EP_KERNEL_SYMBOL(name) ep_##name##_kernel
#define EP_KERNEL_NAME(name) "ep_" #name "_kernel"

/* Element type of a sum; an index, not NCCL's dtype number. */
enum ep_num { EP_NUM_BF16, EP_NUM_F16, EP_NUM_F32 };

#endif
