/* SPDX-License-Identifier: Apache-2.0 */
/* The primitives of gx.h for nvcc. Scopes and orders are in PTX: CUDA's C intrinsics have no acquire or release. */
#ifndef EP_KERNELS_GX_CUDA_H
#define EP_KERNELS_GX_CUDA_H

#define GX_WARP 32u
#define GX_DEV static __device__ __forceinline__
#define GX_SLOW static __device__ __noinline__
#define GX_ROLL _Pragma("unroll 1")
#define GX_SHARED __shared__
#define GX_DYN_SHARED(name) extern __shared__ __align__(128) uint8_t name[]
/* __grid_constant__: taking the address of the arguments does not copy them to local memory. */
#define GX_ARGS(type) const __grid_constant__ type
/* At least one block per multiprocessor: without the 1, ptxas aims at two and spills. */
#define GX_KERNEL_WARPS(name, warps) \
	extern "C" __global__ void __launch_bounds__((warps) * GX_WARP, 1) EP_KERNEL_SYMBOL(name)
#define GX_KERNEL(name) GX_KERNEL_WARPS(name, EP_THREADS_MAX / GX_WARP)

#include "kernels/gx/both.h"

typedef uint4 gx_u4;

GX_DEV uint32_t gx_tid(void)
{
	return threadIdx.x;
}

GX_DEV uint32_t gx_threads(void)
{
	return blockDim.x;
}

GX_DEV uint32_t gx_block(void)
{
	return blockIdx.x;
}

GX_DEV uint32_t gx_blocks(void)
{
	return gridDim.x;
}

GX_DEV uint32_t gx_lane(void)
{
	return threadIdx.x % GX_WARP;
}

GX_DEV void gx_syncthreads(void)
{
	__syncthreads();
}

GX_DEV void gx_syncwarp(void)
{
	__syncwarp();
}

GX_DEV uint32_t gx_shfl_u32(uint32_t v, uint32_t src)
{
	return __shfl_sync(0xffffffffu, v, (int)src);
}

GX_DEV uint64_t gx_shfl_u64(uint64_t v, uint32_t src)
{
	return (uint64_t)__shfl_sync(0xffffffffu, (unsigned long long)v, (int)src);
}

GX_DEV uint64_t gx_ballot(int p)
{
	return __ballot_sync(0xffffffffu, p);
}

GX_DEV uint64_t gx_match_u32(uint32_t v)
{
	return __match_any_sync(0xffffffffu, v);
}

GX_DEV uint32_t gx_popc(uint64_t m)
{
	return (uint32_t)__popcll(m);
}

#define GX_LD(name, type, op, reg)                                                    \
	GX_DEV type name(const type *p)                                               \
	{                                                                             \
		type v;                                                               \
		asm volatile("ld." op " %0, [%1];" : "=" reg(v) : "l"(p) : "memory"); \
		return v;                                                             \
	}
#define GX_ST(name, type, op, reg)                                               \
	GX_DEV void name(type *p, type v)                                        \
	{                                                                        \
		asm volatile("st." op " [%0], %1;" ::"l"(p), reg(v) : "memory"); \
	}
#define GX_ADD(name, type, op, reg)                                                                   \
	GX_DEV type name(type *p, type v)                                                             \
	{                                                                                             \
		type old;                                                                             \
		asm volatile("atom." op " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory"); \
		return old;                                                                           \
	}

GX_LD(gx_ld_acquire_u32, uint32_t, "acquire.sys.global.u32", "r")
GX_LD(gx_ld_acquire_u64, uint64_t, "acquire.sys.global.u64", "l")
GX_LD(gx_ld_relaxed_u32, uint32_t, "relaxed.sys.global.u32", "r")
GX_LD(gx_ld_relaxed_u64, uint64_t, "relaxed.sys.global.u64", "l")
GX_ST(gx_st_release_u32, uint32_t, "release.sys.global.u32", "r")
GX_ST(gx_st_release_u64, uint64_t, "release.sys.global.u64", "l")
GX_ST(gx_st_relaxed_u32, uint32_t, "relaxed.sys.global.u32", "r")
GX_ST(gx_st_relaxed_u64, uint64_t, "relaxed.sys.global.u64", "l")
GX_ADD(gx_dev_add_relaxed_u32, uint32_t, "relaxed.gpu.global.add.u32", "r")
GX_ADD(gx_dev_add_relaxed_u64, uint64_t, "relaxed.gpu.global.add.u64", "l")
GX_ADD(gx_dev_add_acqrel_u32, uint32_t, "acq_rel.gpu.global.add.u32", "r")
#undef GX_LD
#undef GX_ST
#undef GX_ADD

/* The last block says that the launch of this number has ended. Not ordered behind the block's stores: a fence takes
 * 0.6 us of the 14 of an operation. The host waits for what is left of the kernel (ep_launch_drain). */
GX_DEV void gx_end(uint32_t *ended, uint32_t number)
{
	if (gx_tid() == 0)
		*ended = number;
}

GX_DEV uint32_t gx_dev_cas_acquire_u32(uint32_t *p, uint32_t old, uint32_t value)
{
	uint32_t was;

	asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
		     : "=r"(was)
		     : "l"(p), "r"(old), "r"(value)
		     : "memory");
	return was;
}

GX_DEV void gx_dev_st_release_u32(uint32_t *p, uint32_t value)
{
	asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

GX_DEV void gx_dev_st_release_u64(uint64_t *p, uint64_t value)
{
	asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}

/* One store of 16 bytes: one PCIe packet instead of two. The halves may still become visible separately. */
GX_DEV void gx_st_fenced_u64x2(uint64_t *p, uint64_t a, uint64_t b)
{
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}

GX_DEV void gx_st_fenced_u32(uint32_t *p, uint32_t value)
{
	gx_st_relaxed_u32(p, value);
}

GX_DEV void gx_st_fenced_u64(uint64_t *p, uint64_t value)
{
	gx_st_relaxed_u64(p, value);
}

GX_DEV void gx_fence_sys(void)
{
	__threadfence_system();
}

/* The first polls run back to back: a signal inside a node takes under a microsecond, as long as a sleep. */
GX_DEV void gx_pause(uint32_t spin)
{
	if (spin >= 64)
		__nanosleep(spin == GX_REST ? 600 : 40);
}

/* Orders later stores only: an acquire would invalidate the L1 cache at every poll. */
GX_DEV uint64_t gx_ld_look_u64(const uint64_t *p)
{
	return gx_ld_relaxed_u64(p);
}

/* A GPU's store cannot wake a thread. */
GX_DEV void gx_bell(uint32_t *bell)
{
	(void)bell;
}

GX_DEV uint64_t gx_clock_ns(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* Plain and coherent: valid for rows that peers wrote, after the acquire. The compiler cannot turn it into ld.nc:
 * no kernel pointer is marked restrict. */
GX_DEV gx_u4 gx_ld_u4(const void *p)
{
	return *(const gx_u4 *)p;
}

GX_DEV void gx_st_u4(void *p, gx_u4 v)
{
	*(gx_u4 *)p = v;
}

GX_DEV float gx_fma(float a, float b, float c)
{
	return __fmaf_rn(a, b, c);
}

/* The instruction's first source goes to the upper half. Ties to even; NaN is 0x7fff. */
GX_DEV uint32_t gx_pack_bf16(float low, float high)
{
	uint32_t v;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
	return v;
}

GX_DEV uint32_t gx_pack_f16(float low, float high)
{
	uint32_t v;

	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
	return v;
}

GX_DEV uint32_t gx_amax_bf16(uint32_t amax, uint32_t pair)
{
	uint32_t v;

	asm("abs.bf16x2 %0, %1;" : "=r"(v) : "r"(pair));
	asm("max.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(amax), "r"(v));
	return v;
}

GX_DEV float gx_from_f16(uint32_t half)
{
	float v;

	asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((uint16_t)half));
	return v;
}

#include "kernels/gx/load.h"
#include "kernels/gx/row.h"

/* The host pass has no __CUDA_ARCH__ and uses neither. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "kernels/gx/bulk_tma.h"

GX_DEV uint32_t gx_pack_e4m3(float low, float high)
{
	uint16_t v;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
	return v;
}
#else
#include "kernels/gx/bulk_copy.h"
#include "kernels/gx/pack_e4m3.h"
#endif

#endif
