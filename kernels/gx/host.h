/* SPDX-License-Identifier: Apache-2.0 */
/* The primitives of gx.h that scalar.h and simt.h share: the host has one scope, and C11 orders are enough. */
#ifndef EP_KERNELS_GX_HOST_H
#define EP_KERNELS_GX_HOST_H

#include <string.h>

#include "kernels/gx/env.h"
#include "util/bell.h"
#include "util/clock.h"

/* A kernel of the CPU device is one function. Not under the emulator, nor under sanitizers, where that takes a compiler
 * several minutes. */
#if defined(GX_WARP) || defined(GX_HOST_CALLS)
#define GX_DEV static inline __attribute__((unused))
#else
#define GX_DEV static inline __attribute__((always_inline, unused))
#endif
#define GX_SLOW static __attribute__((noinline, unused))
#define GX_ROLL
/* A block runs in a thread of its own (simt) or in the caller's (scalar): per thread is per block. */
#define GX_SHARED static _Thread_local
#define GX_ARGS(type) const type
#define GX_KERNEL_WARPS(name, warps) GX_KERNEL(name)
#define GX_KERNEL(name) \
	static void EP_KERNEL_SYMBOL(name) /* its address goes into the table of kernels/host/kernels.c */

#include "kernels/gx/both.h"

#define GX_LD(name, type, order)                  \
	GX_DEV type name(const type *p)           \
	{                                         \
		return __atomic_load_n(p, order); \
	}
#define GX_ST(name, type, order)               \
	GX_DEV void name(type *p, type v)      \
	{                                      \
		__atomic_store_n(p, v, order); \
	}
#define GX_ADD(name, type, order)                       \
	GX_DEV type name(type *p, type v)               \
	{                                               \
		return __atomic_fetch_add(p, v, order); \
	}

GX_LD(gx_ld_acquire_u32, uint32_t, __ATOMIC_ACQUIRE)
GX_LD(gx_ld_acquire_u64, uint64_t, __ATOMIC_ACQUIRE)
GX_LD(gx_ld_relaxed_u32, uint32_t, __ATOMIC_RELAXED)
GX_LD(gx_ld_relaxed_u64, uint64_t, __ATOMIC_RELAXED)
GX_ST(gx_st_release_u32, uint32_t, __ATOMIC_RELEASE)
GX_ST(gx_st_release_u64, uint64_t, __ATOMIC_RELEASE)
GX_ST(gx_st_relaxed_u32, uint32_t, __ATOMIC_RELAXED)
GX_ST(gx_st_relaxed_u64, uint64_t, __ATOMIC_RELAXED)
GX_ADD(gx_dev_add_relaxed_u32, uint32_t, __ATOMIC_RELAXED)
GX_ADD(gx_dev_add_relaxed_u64, uint64_t, __ATOMIC_RELAXED)
GX_ADD(gx_dev_add_acqrel_u32, uint32_t, __ATOMIC_ACQ_REL)
#undef GX_LD
#undef GX_ST
#undef GX_ADD

GX_DEV uint32_t gx_dev_cas_acquire_u32(uint32_t *p, uint32_t old, uint32_t value)
{
	__atomic_compare_exchange_n(p, &old, value, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
	return old;
}

GX_DEV void gx_dev_st_release_u32(uint32_t *p, uint32_t value)
{
	__atomic_store_n(p, value, __ATOMIC_RELEASE);
}

GX_DEV void gx_dev_st_release_u64(uint64_t *p, uint64_t value)
{
	__atomic_store_n(p, value, __ATOMIC_RELEASE);
}

/* Released separately: it costs the host nothing, and TSan does not model fences. */
GX_DEV void gx_st_fenced_u64x2(uint64_t *p, uint64_t a, uint64_t b)
{
	gx_st_release_u64(p, a);
	gx_st_release_u64(p + 1, b);
}

GX_DEV void gx_st_fenced_u32(uint32_t *p, uint32_t value)
{
	gx_st_release_u32(p, value);
}

GX_DEV void gx_st_fenced_u64(uint64_t *p, uint64_t value)
{
	gx_st_release_u64(p, value);
}

GX_DEV void gx_fence_sys(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Acquire, because race detectors do not model dependencies. */
GX_DEV uint64_t gx_ld_look_u64(const uint64_t *p)
{
	return gx_ld_acquire_u64(p);
}

GX_DEV void gx_bell(uint32_t *bell)
{
	if (bell)
		ep_bell_ring(bell);
}

GX_DEV uint32_t gx_popc(uint64_t m)
{
	return (uint32_t)__builtin_popcountll(m);
}

GX_DEV uint64_t gx_clock_ns(void)
{
	return ep_now_ns();
}

/* An instruction where the target has one, and part of vectors. Without (x86-64's baseline) the C library's fmaf:
 * exact, but a call per element. */
GX_DEV float gx_fma(float a, float b, float c)
{
	return __builtin_fmaf(a, b, c);
}

typedef uint32_t gx_u4 __attribute__((vector_size(16)));

GX_DEV gx_u4 gx_ld_u4(const void *p)
{
	return *(const gx_u4 *)p;
}

/* No branch by alignment: see load.h. An unaligned load of an aligned address costs no more on x86-64 and ARM64. */
GX_DEV gx_u4 gx_ld_u4_a2(const void *p)
{
	gx_u4 v;

	memcpy(&v, p, sizeof(v));
	return v;
}

GX_DEV void gx_st_u4(void *p, gx_u4 v)
{
	*(gx_u4 *)p = v;
}

#endif
