/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primitives of gx.h under the emulator (kernels/simt). GX_WARP comes from the command line and selects this
 * header: 32 and 64 as on GPUs, 1 for many warps of one lane. Every barrier and warp operation passes its source
 * location, so that the emulator detects lanes that meet at different ones.
 */
#ifndef EP_KERNELS_GX_SIMT_H
#define EP_KERNELS_GX_SIMT_H

#include "kernels/gx/env.h"
#include "kernels/gx/host.h"

#define GX_DYN_SHARED(name) uint8_t *name = (uint8_t *)gx_host_shared()

#define GX_TEXT_(x) #x
#define GX_TEXT(x) GX_TEXT_(x)
#define GX_HERE __FILE__ ":" GX_TEXT(__LINE__)

#define gx_syncthreads() simt_syncthreads(GX_HERE)
#define gx_syncwarp() simt_syncwarp(GX_HERE)
#define gx_shfl_u64(v, src) simt_shfl((v), (src), GX_HERE)
#define gx_shfl_u32(v, src) ((uint32_t)simt_shfl((v), (src), GX_HERE))
#define gx_ballot(p) simt_ballot((p), GX_HERE)
#define gx_pause(spin) ((void)(spin), simt_pause(GX_HERE))

GX_DEV uint32_t gx_tid(void)
{
	return simt_where()->tid;
}

GX_DEV uint32_t gx_threads(void)
{
	return simt_where()->threads;
}

GX_DEV uint32_t gx_block(void)
{
	return simt_where()->block;
}

GX_DEV uint32_t gx_blocks(void)
{
	return simt_where()->blocks;
}

GX_DEV uint32_t gx_lane(void)
{
	return gx_tid() % GX_WARP;
}

#include "kernels/gx/end.h"
#include "kernels/gx/match.h"
#include "kernels/gx/pack.h"
#include "kernels/gx/pack_e4m3.h"
#include "kernels/gx/row.h"
#include "kernels/gx/bulk_copy.h"

/* A copy engine does not see what its thread has acquired: copies here demand the proxy fence, which a copy by the
 * thread itself would not need. */
#define gx_ld_acquire_u32(p) (simt_acquired(), gx_ld_acquire_u32(p))
#define gx_ld_acquire_u64(p) (simt_acquired(), gx_ld_acquire_u64(p))
#define gx_fence_proxy() simt_fence_proxy()
#define gx_bulk_load(bulk, src, n) (simt_copies(GX_HERE), gx_bulk_load((bulk), (src), (n)))
#define gx_bulk_store(bulk, dst, from, n) (simt_copies(GX_HERE), gx_bulk_store((bulk), (dst), (from), (n)))
#define gx_bulk_scatter(bulk, dst, count, at, n) \
	(simt_copies(GX_HERE), gx_bulk_scatter((bulk), (dst), (count), (at), (n)))

#endif
