/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row copied by one warp: 16 bytes per lane, four loads in flight before the first store. Any length and alignment:
 * the vectors start at the first 16-byte boundary of the destination; where source and destination cannot both be
 * aligned, 4-byte words, else bytes. All lanes of the warp call it with the same arguments; no barrier inside.
 */
#ifndef EP_KERNELS_GX_ROW_H
#define EP_KERNELS_GX_ROW_H

GX_DEV void gx_row_bytes_(uint8_t *d, const uint8_t *s, size_t n)
{
	for (size_t i = gx_lane(); i < n; i += GX_WARP)
		d[i] = s[i];
}

GX_DEV void gx_row_words_(uint32_t *d, const uint32_t *s, size_t n)
{
	for (size_t i = gx_lane(); i < n; i += GX_WARP)
		d[i] = s[i];
}

GX_DEV void gx_row_vectors_(gx_u4 *d, const gx_u4 *s, size_t n)
{
	size_t i = gx_lane();

	for (; i + 3 * GX_WARP < n; i += 4 * GX_WARP) {
		gx_u4 v0 = gx_ld_u4(s + i);
		gx_u4 v1 = gx_ld_u4(s + i + GX_WARP);
		gx_u4 v2 = gx_ld_u4(s + i + 2 * GX_WARP);
		gx_u4 v3 = gx_ld_u4(s + i + 3 * GX_WARP);

		gx_st_u4(d + i, v0);
		gx_st_u4(d + i + GX_WARP, v1);
		gx_st_u4(d + i + 2 * GX_WARP, v2);
		gx_st_u4(d + i + 3 * GX_WARP, v3);
	}
	for (; i < n; i += GX_WARP)
		gx_st_u4(d + i, gx_ld_u4(s + i));
}

GX_DEV void gx_row_copy(void *dst, const void *src, size_t n)
{
	uint8_t *d = (uint8_t *)dst;
	const uint8_t *s = (const uint8_t *)src;
	uintptr_t skew = ((uintptr_t)d ^ (uintptr_t)s) & 15;
	size_t unit = skew == 0 ? 16 : skew % 4 == 0 ? 4 : 1;
	size_t head = (size_t)(-(uintptr_t)d & (unit - 1));
	size_t body;

	if (head > n)
		head = n;
	body = (n - head) / unit * unit;
	gx_row_bytes_(d, s, head);
	if (unit == 16)
		gx_row_vectors_((gx_u4 *)(d + head), (const gx_u4 *)(s + head), body / 16);
	else if (unit == 4)
		gx_row_words_((uint32_t *)(d + head), (const uint32_t *)(s + head), body / 4);
	else
		gx_row_bytes_(d + head, s + head, body);
	gx_row_bytes_(d + head + body, s + head + body, n - head - body);
}

#endif
