/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primitives that kernels are written in. A kernel source (a .cu file here) is C11 and CUDA/HIP C++ at once: no
 * templates, explicit casts. This is the only place that tests for a compiler; each header below implements the same
 * primitives for one kind of device:
 *
 *   cuda.h    nvcc
 *   hip.h     clang -x hip, without any header or library of ROCm
 *   simt.h    the host, every GPU thread a fiber (kernels/simt): tests
 *   scalar.h  the host, warps of one lane, one thread per kernel: the CPU device
 *
 *   GX_KERNEL(name)(GX_ARGS(struct tag) a)	the entry point of an entry of kernels/list.h
 *   GX_KERNEL_WARPS(name, warps)		the same of a kernel whose blocks never have more: it has more registers
 *   GX_DEV, GX_SHARED, GX_DYN_SHARED(name)	function, variable, the launch's shared memory (128-byte aligned)
 *   GX_SLOW					a function that is called, not inlined: rarely executed code must not
 *						stand between the rest (a kernel's code is fetched anew at every
 *						launch). Pass values: a pointer to a local struct would force that
 *						struct into memory
 *   GX_ROLL					before a loop: not unrolled, for the same reason
 *   GX_WARP, gx_lane, gx_warp, gx_warps	the warp: its width, this thread's lane, this warp's index in the block
 *   gx_tid, gx_threads, gx_block, gx_blocks	the block and the grid, both one-dimensional
 *   gx_syncthreads, gx_syncwarp		barriers; both order memory
 *   gx_shfl_u32/u64, gx_ballot			whole warps only; they do NOT order memory
 *   gx_match_u32				the same: the lanes with this lane's value, as bits
 *   gx_ld_acquire/relaxed_u32/u64		system scope: shared with peers, NICs and the host
 *   gx_st_release/relaxed_u32/u64
 *   gx_dev_add_relaxed_u32/u64			device scope: blocks of one launch among themselves
 *   gx_dev_add_acqrel_u32
 *   gx_dev_cas_acquire_u32,			a lock among them
 *   gx_dev_st_release_u32/u64
 *   gx_st_fenced_u32/u64, _u64x2		a word, or two, 16-byte aligned, after a gx_fence_sys by the caller
 *   gx_fence_sys
 *   gx_end					the last block says which launch has ended, for the host
 *   gx_bell					after a push: wakes the engine's thread (host only); NULL: no engine
 *   gx_pause(spin), gx_clock_ns		every spin loop calls gx_pause, with its iteration count, and whole
 *						warps only: no lane waits inside a divergent branch (an AMD wavefront
 *						runs no other lane meanwhile). GX_REST: another warp looks for what it
 *						waits for, and must not be held up
 *   gx_ld_look_u64				a polled load that only stores depend on
 *   gx_u4, gx_ld_u4, gx_st_u4			16 bytes, aligned
 *   gx_ld_u4_a2				16 bytes, aligned to 2
 *   gx_fma(a, b, c)				a * b + c, rounded once
 *   gx_pack_bf16, gx_pack_f16, gx_from_f16	two floats in a word and back: to nearest, ties to even, NaN is 0x7fff
 *   gx_pack_e4m3				the same in half a word: saturates at 448, NaN is 0x7f
 *   gx_amax_bf16				the larger magnitudes of two pairs, by half; NaN is ignored
 *   gx_row_copy				a row by one warp, any alignment
 *   gx_fence_proxy				every lane, between an acquire and gx_bulk_*
 *   gx_bulk_*					a row once into shared memory and from there to many destinations
 *						(bulk_tma.h), or copied directly (bulk_copy.h)
 *   gx_wait					the only way to wait for another rank (wait.h)
 */
#ifndef EP_KERNELS_GX_H
#define EP_KERNELS_GX_H

#include <stddef.h>
#include <stdint.h>

#define GX_REST UINT32_MAX

#if defined(__HIP__)
#include "kernels/gx/hip.h"
#elif defined(__CUDACC__)
#include "kernels/gx/cuda.h"
#elif defined(GX_WARP)
#include "kernels/gx/simt.h"
#else
#include "kernels/gx/scalar.h"
#endif

#include "kernels/gx/wait.h"

#endif
