/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What host code and kernels share, below all argument structs. Read by C11, nvcc and clang -x hip; every size is
 * pinned, so that two compilers cannot disagree in silence.
 */
#ifndef EP_KERNELS_GX_BOTH_H
#define EP_KERNELS_GX_BOTH_H

#include <stddef.h>
#include <stdint.h>

/* Threads of a block: 1024 would leave 64 registers to each, and rowsig spills at that; 512 leave 128. */
#define EP_THREADS_MAX 512

/* Bytes of a stage (a warp's shared memory) in front of the row: the copy engine's barrier. */
#define EP_STAGE_HEAD 128u

/* C11's and C++'s own words for this differ, and C++'s wants a header in C. */
#define EP_SIZE_IS(type, bytes) typedef char ep_size_of_##type[sizeof(struct type) == (bytes) ? 1 : -1]

/* A function for both sides. Kernels include gx.h first, which defines GX_DEV. */
#ifdef GX_DEV
#define EP_BOTH GX_DEV
#else
#define EP_BOTH static inline
#endif

/* What a sum is made of; the value is an index, not NCCL's number. */
enum ep_num { EP_NUM_BF16, EP_NUM_F16, EP_NUM_F32 };

#endif
