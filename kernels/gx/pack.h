/* SPDX-License-Identifier: Apache-2.0 */
/* Small floats, two to a word, for devices without an instruction that is known to round the same way. */
#ifndef EP_KERNELS_GX_PACK_H
#define EP_KERNELS_GX_PACK_H

#include "kernels/gx/num.h"

GX_DEV uint32_t gx_pack_bf16(float low, float high)
{
	return num_to_bf16(low) | num_to_bf16(high) << 16;
}

GX_DEV uint32_t gx_pack_f16(float low, float high)
{
	return num_to_f16(low) | num_to_f16(high) << 16;
}

GX_DEV uint32_t gx_amax_bf16(uint32_t amax, uint32_t pair)
{
	uint32_t low = pair & 0x7fffu, high = pair >> 16 & 0x7fffu;

	low = low > (amax & 0xffffu) && low <= 0x7f80u ? low : amax & 0xffffu;
	high = high > amax >> 16 && high <= 0x7f80u ? high : amax >> 16;
	return low | high << 16;
}

GX_DEV float gx_from_f16(uint32_t half)
{
	return num_from_f16(half);
}

#endif
