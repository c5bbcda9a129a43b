/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gx_bulk with the copy engine (TMA) of sm_90 and newer: a row is loaded once into shared memory and stored from there
 * to any number of destinations, with one instruction each and no registers. All lanes of a warp make every call with
 * the same arguments. One stage per warp: other warps of the block fill the gaps (one to four stages moved the same
 * bytes per second on an H200).
 *
 *   gx_bulk_open(bulk, stage, bytes)	stage: the block's shared memory; bytes: each warp's part of it, a multiple of
 *					16; below GX_BULK_MIN the engine is not used
 *   gx_bulk_load(bulk, src, n)		n <= gx_bulk_room(bulk); starts the load, the first store waits for it
 *   gx_bulk_load_own(bulk, src, n)	the same for inputs that no other rank or block writes: no acquire comes before
 *   gx_bulk_stage, gx_bulk_filled	instead of a load: the stage itself, for the lanes to write the row into
 *   gx_bulk_row			the row loaded last, for the lanes to read; what they then write into the stage
 *					may overlap it
 *   gx_bulk_store(bulk, dst, from, n)	any number of times: n bytes of the row, starting at from
 *   gx_bulk_scatter(bulk, dst, count,	n bytes of the row to dst[i] + at, skipping NULL; dst is in shared memory, and
 *		     at, n)		the lanes issue the stores in parallel
 *   gx_bulk_drain(bulk)		before a counter or signal that says the rows have been written
 *   gx_fence_proxy()			by every lane, between an acquire and what it permits: loads of the rows that
 *					a peer or another block wrote, stores over rows that a peer has read. Once
 *					per acquire, not per row
 *
 * The engine moves 16-byte units; a row, source or destination that is not so aligned goes by gx_row_copy.
 */
#ifndef EP_KERNELS_GX_BULK_TMA_H
#define EP_KERNELS_GX_BULK_TMA_H

/* The stage starts with its mbarrier, in a whole line, so that rows are aligned like those in memory: the engine moves
 * lines, and a line that is split in shared memory costs twice. */
#define GX_BULK_BAR EP_STAGE_HEAD
#define GX_BULK_MIN (GX_BULK_BAR + 128u)

struct gx_bulk {
	const uint8_t *src;
	uint8_t *memory;     /* the stage as lanes see it */
	uint32_t bar, stage; /* barrier and stage as the engine addresses them */
	uint32_t room;	     /* 0: no stage, every row goes by gx_row_copy */
	uint32_t parity;
	uint32_t staged; /* the row loaded last is in the stage, */
	uint32_t coming; /* or its load is in flight */
	uint32_t used;	 /* bulk stores were issued since the last drain */
};

GX_DEV void gx_bulk_open(struct gx_bulk *bulk, void *stage, uint32_t bytes)
{
	bulk->src = NULL;
	bulk->parity = bulk->staged = bulk->coming = bulk->used = 0;
	bulk->memory = (uint8_t *)stage + gx_tid() / GX_WARP * bytes + GX_BULK_BAR;
	bulk->bar = bulk->stage = bulk->room = 0;
	if (bytes < GX_BULK_MIN)
		return;
	bulk->bar = (uint32_t)__cvta_generic_to_shared(stage) + gx_tid() / GX_WARP * bytes;
	bulk->stage = bulk->bar + GX_BULK_BAR;
	bulk->room = (bytes - GX_BULK_BAR) / 16 * 16;
	if (gx_lane() == 0) {
		asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bulk->bar) : "memory");
		/* The engine accesses shared memory through the async proxy and must see the initialised mbarrier. */
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
	}
	gx_syncwarp();
}

/* Lanes acquire in the generic proxy; the engine reads and writes through the async proxy, which the acquire does not
 * order. */
GX_DEV void gx_fence_proxy(void)
{
	asm volatile("fence.proxy.async.global;" ::: "memory");
}

GX_DEV uint32_t gx_bulk_room(const struct gx_bulk *bulk)
{
	return bulk->room ? bulk->room : 1u << 30;
}

/* Bounded by the hardware: completes when the engine has moved the bytes; a bad address kills the whole kernel. */
GX_DEV void gx_bulk_arrived_(uint32_t bar, uint32_t parity)
{
	uint32_t done = 0;

	while (!done)
		asm volatile("{\n\t"
			     ".reg .pred p;\n\t"
			     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
			     "selp.u32 %0, 1, 0, p;\n\t"
			     "}"
			     : "=r"(done)
			     : "r"(bar), "r"(parity)
			     : "memory");
}

/* Every lane: any of them may store from the stage next. */
GX_DEV void gx_bulk_await_(struct gx_bulk *bulk)
{
	if (!bulk->coming)
		return;
	gx_bulk_arrived_(bulk->bar, bulk->parity);
	bulk->parity ^= 1;
	bulk->coming = 0;
}

/* Waits until the engine has read the stage for all earlier stores; that they are written is gx_bulk_drain's part. */
GX_DEV void gx_bulk_idle_(struct gx_bulk *bulk)
{
	gx_bulk_await_(bulk); /* a load without a store */
	if (bulk->used)
		asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
	gx_syncwarp();
}

GX_DEV void gx_bulk_load(struct gx_bulk *bulk, const void *src, uint32_t n)
{
	bulk->src = (const uint8_t *)src;
	bulk->staged = bulk->room && n > 0 && (((uintptr_t)src | n) & 15) == 0;
	if (!bulk->staged)
		return;
	gx_bulk_idle_(bulk);
	if (gx_lane() == 0) {
		asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bulk->bar), "r"(n)
			     : "memory");
		asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
			     "[%3];" ::"r"(bulk->stage),
			     "l"(src), "r"(n), "r"(bulk->bar)
			     : "memory");
	}
	bulk->coming = 1;
}

GX_DEV void gx_bulk_load_own(struct gx_bulk *bulk, const void *src, uint32_t n)
{
	gx_bulk_load(bulk, src, n);
}

GX_DEV void *gx_bulk_stage(struct gx_bulk *bulk)
{
	gx_bulk_idle_(bulk);
	return bulk->memory;
}

GX_DEV const void *gx_bulk_row(struct gx_bulk *bulk)
{
	gx_bulk_await_(bulk);
	return bulk->staged ? bulk->memory : bulk->src;
}

GX_DEV void gx_bulk_filled(struct gx_bulk *bulk)
{
	/* By every lane for its own writes, then the barrier. */
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
	gx_syncwarp();
	bulk->src = bulk->memory;
	bulk->staged = bulk->room > 0;
}

/* One lane. */
GX_DEV void gx_bulk_issue_(const struct gx_bulk *bulk, void *dst, uint32_t from, uint32_t n)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(bulk->stage + from),
		     "r"(n)
		     : "memory");
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

GX_DEV int gx_bulk_fits_(const struct gx_bulk *bulk, const void *dst, uint32_t from, uint32_t n)
{
	return bulk->staged && (((uintptr_t)dst | from | n) & 15) == 0;
}

/* What the engine cannot move. Called: a dozen copies of it would be half of a kernel's code. */
GX_SLOW void gx_bulk_odd_(void *dst, const void *src, uint32_t n)
{
	gx_row_copy(dst, src, n);
}

GX_DEV void gx_bulk_store(struct gx_bulk *bulk, void *dst, uint32_t from, uint32_t n)
{
	gx_bulk_await_(bulk);
	if (!gx_bulk_fits_(bulk, dst, from, n)) {
		gx_bulk_odd_(dst, bulk->src + from, n);
		return;
	}
	if (gx_lane() == 0)
		gx_bulk_issue_(bulk, dst, from, n);
	bulk->used = 1;
}

GX_DEV void gx_bulk_scatter(struct gx_bulk *bulk, uint8_t *const *dst, uint32_t count, uint64_t at, uint32_t n)
{
	gx_bulk_await_(bulk);
	for (uint32_t i = gx_lane(); i < count; i += GX_WARP)
		if (dst[i] && gx_bulk_fits_(bulk, dst[i] + at, 0, n))
			gx_bulk_issue_(bulk, dst[i] + at, 0, n);
	for (uint32_t i = 0; i < count; i++)
		if (dst[i] && !gx_bulk_fits_(bulk, dst[i] + at, 0, n))
			gx_bulk_odd_(dst[i] + at, bulk->src, n);
	bulk->used = 1;
}

/*
 * wait_group without .read: .read only means that the stage was read, not that the rows were written. The proxy fence
 * then orders the engine's writes before this lane's later accesses. What follows is a counter with release at device
 * scope, and from its last finisher a signal with release at system scope; release is cumulative, so a system fence
 * here (a microsecond) would add nothing. The barrier does the same for rows that other lanes stored.
 */
GX_DEV void gx_bulk_drain(struct gx_bulk *bulk)
{
	if (bulk->used) {
		asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
		asm volatile("fence.proxy.async;" ::: "memory");
	}
	bulk->used = 0;
	gx_syncwarp();
}

#endif
