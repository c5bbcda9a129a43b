/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primitives of gx.h for AMD, from the compiler's own attributes and builtins: a build needs clang, not ROCm.
 * All shared accesses use the scoped atomic builtins; volatile through a generic pointer becomes slow flat accesses.
 */
#ifndef EP_KERNELS_GX_HIP_H
#define EP_KERNELS_GX_HIP_H

#define GX_WARP 64u
#define GX_DEV static __attribute__((device, always_inline)) inline
#define GX_SLOW static __attribute__((device, noinline))
#define GX_ROLL _Pragma("unroll 1")
#define GX_SHARED __attribute__((shared))
#define GX_DYN_SHARED(name) extern __attribute__((shared, aligned(128))) uint8_t name[]
#define GX_ARGS(type) const type
#define GX_KERNEL_WARPS(name, warps)                                                                               \
	extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, (warps) * GX_WARP))) void \
	EP_KERNEL_SYMBOL(name)
#define GX_KERNEL(name) GX_KERNEL_WARPS(name, EP_THREADS_MAX / GX_WARP)

#include "kernels/gx/both.h"

typedef uint32_t gx_u4 __attribute__((ext_vector_type(4)));

GX_DEV uint32_t gx_tid(void)
{
	return __builtin_amdgcn_workitem_id_x();
}

GX_DEV uint32_t gx_threads(void)
{
	return __builtin_amdgcn_workgroup_size_x();
}

GX_DEV uint32_t gx_block(void)
{
	return __builtin_amdgcn_workgroup_id_x();
}

GX_DEV uint32_t gx_blocks(void)
{
	return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}

GX_DEV uint32_t gx_lane(void)
{
	return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
}

GX_DEV void gx_syncthreads(void)
{
	__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
	__builtin_amdgcn_s_barrier();
	__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

GX_DEV void gx_syncwarp(void)
{
	__builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
	__builtin_amdgcn_wave_barrier();
	__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

GX_DEV uint32_t gx_shfl_u32(uint32_t v, uint32_t src)
{
	return (uint32_t)__builtin_amdgcn_ds_bpermute((int)(src << 2), (int)v);
}

GX_DEV uint64_t gx_shfl_u64(uint64_t v, uint32_t src)
{
	uint32_t hi = gx_shfl_u32((uint32_t)(v >> 32), src);

	return (uint64_t)hi << 32 | gx_shfl_u32((uint32_t)v, src);
}

GX_DEV uint64_t gx_ballot(int p)
{
	return __builtin_amdgcn_ballot_w64(p != 0);
}

GX_DEV uint32_t gx_popc(uint64_t m)
{
	return (uint32_t)__builtin_popcountll(m);
}

#define GX_LD(name, type, order)                                               \
	GX_DEV type name(const type *p)                                        \
	{                                                                      \
		return __hip_atomic_load(p, order, __HIP_MEMORY_SCOPE_SYSTEM); \
	}
#define GX_ST(name, type, order)                                            \
	GX_DEV void name(type *p, type v)                                   \
	{                                                                   \
		__hip_atomic_store(p, v, order, __HIP_MEMORY_SCOPE_SYSTEM); \
	}
#define GX_ADD(name, type, order, scope)                           \
	GX_DEV type name(type *p, type v)                          \
	{                                                          \
		return __hip_atomic_fetch_add(p, v, order, scope); \
	}

GX_LD(gx_ld_acquire_u32, uint32_t, __ATOMIC_ACQUIRE)
GX_LD(gx_ld_acquire_u64, uint64_t, __ATOMIC_ACQUIRE)
GX_LD(gx_ld_relaxed_u32, uint32_t, __ATOMIC_RELAXED)
GX_LD(gx_ld_relaxed_u64, uint64_t, __ATOMIC_RELAXED)
GX_ST(gx_st_release_u32, uint32_t, __ATOMIC_RELEASE)
GX_ST(gx_st_release_u64, uint64_t, __ATOMIC_RELEASE)
GX_ST(gx_st_relaxed_u32, uint32_t, __ATOMIC_RELAXED)
GX_ST(gx_st_relaxed_u64, uint64_t, __ATOMIC_RELAXED)
GX_ADD(gx_dev_add_relaxed_u32, uint32_t, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)
GX_ADD(gx_dev_add_relaxed_u64, uint64_t, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)
GX_ADD(gx_dev_add_acqrel_u32, uint32_t, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT)
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
	__hip_atomic_compare_exchange_strong(p, &old, value, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED,
					     __HIP_MEMORY_SCOPE_AGENT);
	return old;
}

GX_DEV void gx_dev_st_release_u32(uint32_t *p, uint32_t value)
{
	__hip_atomic_store(p, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}

GX_DEV void gx_dev_st_release_u64(uint64_t *p, uint64_t value)
{
	__hip_atomic_store(p, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}

GX_DEV void gx_st_fenced_u64x2(uint64_t *p, uint64_t a, uint64_t b)
{
	gx_st_relaxed_u64(p, a);
	gx_st_relaxed_u64(p + 1, b);
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
	__builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "");
}

GX_DEV void gx_pause(uint32_t spin)
{
	__builtin_amdgcn_s_sleep(1); /* 64 cycles, 30 ns: short enough for the first poll too */
	if (spin == GX_REST)
		__builtin_amdgcn_s_sleep(18);
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
	return __builtin_amdgcn_s_memrealtime() * 10; /* counts at 100 MHz on CDNA */
}

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
	return __builtin_fmaf(a, b, c); /* v_fma_f32: the compiler knows no other way on this target */
}

#include "kernels/gx/match.h"
#include "kernels/gx/pack.h"
#include "kernels/gx/pack_e4m3.h"
#include "kernels/gx/load.h"
#include "kernels/gx/row.h"
#include "kernels/gx/bulk_copy.h"

#endif
