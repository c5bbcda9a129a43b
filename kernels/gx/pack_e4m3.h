/* SPDX-License-Identifier: Apache-2.0 */
/* Two floats as e4m3 in the low half of a word, for devices without an instruction for it. */
#ifndef EP_KERNELS_GX_PACK_E4M3_H
#define EP_KERNELS_GX_PACK_E4M3_H

#include "kernels/gx/num.h"

GX_DEV uint32_t gx_pack_e4m3(float low, float high)
{
	return num_to_e4m3(low) | num_to_e4m3(high) << 8;
}

#endif
