/* SPDX-License-Identifier: Apache-2.0 */
/* 16 bytes of a caller's row for devices whose vector loads must be aligned: one load where the address allows it, else
 * eight. Not for the host: gcc 12's if-conversion for x86-64 takes the two branches for the same load and keeps the
 * aligned one (movdqa) for both. */
#ifndef EP_KERNELS_GX_LOAD_H
#define EP_KERNELS_GX_LOAD_H

GX_DEV gx_u4 gx_ld_u4_a2(const void *p)
{
	union {
		gx_u4 v;
		uint16_t x[8];
	} u;

	if (((uintptr_t)p & 15) == 0)
		return gx_ld_u4(p);
	for (uint32_t i = 0; i < 8; i++)
		u.x[i] = ((const uint16_t *)p)[i];
	return u.v;
}

#endif
