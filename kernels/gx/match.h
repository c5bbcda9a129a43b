/* SPDX-License-Identifier: Apache-2.0 */
/* gx_match_u32 for devices without an instruction for it: one step per distinct value. */
#ifndef EP_KERNELS_GX_MATCH_H
#define EP_KERNELS_GX_MATCH_H

GX_DEV uint64_t gx_match_u32(uint32_t v)
{
	uint64_t left = gx_ballot(1), mine = 0;

	while (left) {
		uint64_t same = gx_ballot(v == gx_shfl_u32(v, gx_popc((left & -left) - 1)));

		mine = same >> gx_lane() & 1 ? same : mine;
		left &= ~same;
	}
	return mine;
}

#endif
