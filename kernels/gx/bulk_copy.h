/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gx_bulk without a copy engine: the load only records where the row is, each store copies it from there. The same
 * interface and guarantees as bulk_tma.h, so that a kernel is written once.
 */
#ifndef EP_KERNELS_GX_BULK_COPY_H
#define EP_KERNELS_GX_BULK_COPY_H

struct gx_bulk {
	const uint8_t *src;
	void *stage;
};

GX_DEV void gx_fence_proxy(void)
{
}

GX_DEV void gx_bulk_open(struct gx_bulk *bulk, void *stage, uint32_t bytes)
{
	bulk->src = NULL;
	bulk->stage = bytes ? (uint8_t *)stage + gx_tid() / GX_WARP * bytes : NULL;
}

GX_DEV uint32_t gx_bulk_room(const struct gx_bulk *bulk)
{
	(void)bulk;
	return 1u << 30;
}

GX_DEV void gx_bulk_load(struct gx_bulk *bulk, const void *src, uint32_t n)
{
	(void)n;
	bulk->src = (const uint8_t *)src;
}

GX_DEV void gx_bulk_load_own(struct gx_bulk *bulk, const void *src, uint32_t n)
{
	gx_bulk_load(bulk, src, n);
}

GX_DEV void *gx_bulk_stage(struct gx_bulk *bulk)
{
	gx_syncwarp(); /* the row in it has been stored */
	return bulk->stage;
}

GX_DEV const void *gx_bulk_row(struct gx_bulk *bulk)
{
	return bulk->src;
}

GX_DEV void gx_bulk_filled(struct gx_bulk *bulk)
{
	gx_syncwarp();
	bulk->src = (const uint8_t *)bulk->stage;
}

GX_DEV void gx_bulk_store(struct gx_bulk *bulk, void *dst, uint32_t from, uint32_t n)
{
	gx_row_copy(dst, bulk->src + from, n);
}

GX_DEV void gx_bulk_scatter(struct gx_bulk *bulk, uint8_t *const *dst, uint32_t count, uint64_t at, uint32_t n)
{
	for (uint32_t i = 0; i < count; i++)
		if (dst[i])
			gx_row_copy(dst[i] + at, bulk->src, n);
}

GX_DEV void gx_bulk_drain(struct gx_bulk *bulk)
{
	(void)bulk;
	gx_syncwarp();
}

#endif
