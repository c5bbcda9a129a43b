/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primitives of gx.h for the CPU device: a grid of one block of one thread, a warp of one lane. Lane loops become
 * plain loops, barriers are empty, and a row is a memcpy: a kernel runs at the speed of C written for the host.
 */
#ifndef EP_KERNELS_GX_SCALAR_H
#define EP_KERNELS_GX_SCALAR_H

#include "kernels/gx/host.h"
#include "util/rest.h"
#include "util/trace.h"

#define GX_WARP 1u
#define GX_DYN_SHARED(name) uint8_t *name = (uint8_t *)gx_host_shared()

GX_DEV uint32_t gx_tid(void)
{
	return 0;
}

GX_DEV uint32_t gx_threads(void)
{
	return 1;
}

GX_DEV uint32_t gx_block(void)
{
	return 0;
}

GX_DEV uint32_t gx_blocks(void)
{
	return 1;
}

GX_DEV uint32_t gx_lane(void)
{
	return 0;
}

GX_DEV void gx_syncthreads(void)
{
}

GX_DEV void gx_syncwarp(void)
{
}

GX_DEV uint32_t gx_shfl_u32(uint32_t v, uint32_t src)
{
	(void)src;
	return v;
}

GX_DEV uint64_t gx_shfl_u64(uint64_t v, uint32_t src)
{
	(void)src;
	return v;
}

GX_DEV uint64_t gx_ballot(int p)
{
	return p != 0;
}

GX_DEV uint64_t gx_match_u32(uint32_t v)
{
	(void)v;
	return 1;
}

/* A peer on another core answers within a few hundred polls; otherwise it may need this core to run. */
GX_DEV void gx_pause(uint32_t spin)
{
	uint64_t since = ep_trace_rest();

	if (spin >= 256)
		ep_rest();
	ep_trace_rested(since);
}

GX_DEV void gx_row_copy(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

#include "kernels/gx/bulk_copy.h"
#include "kernels/gx/end.h"
#include "kernels/gx/pack.h"
#include "kernels/gx/pack_e4m3.h"

#endif
