/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSeek's FP8: bf16 to e4m3 with one float scale per 128 channels. A row is written into the warp's stage, the
 * scales behind the bytes; 16 lanes share a group of 128 (one lane where a warp has one).
 */
#ifndef EP_KERNELS_QUANT_H
#define EP_KERNELS_QUANT_H

#include "kernels/num.h"

#define QUANT_GROUP 128u
#define QUANT_LANES (GX_WARP < 16u ? GX_WARP : 16u)

/* The largest magnitude of the group, at least 1e-4. Magnitudes compare as integers. */
GX_DEV uint32_t quant_amax(const uint16_t *x, uint32_t n)
{
	uint32_t amax = 0x38d1b717u; /* 1e-4f */

	for (uint32_t i = 0; i < n; i++) {
		uint32_t a = ((uint32_t)x[i] & 0x7fffu) << 16;

		amax = a > amax && a <= 0x7f800000u ? a : amax; /* a NaN says nothing of the others' size */
	}
	for (uint32_t m = QUANT_LANES / 2; m != 0; m /= 2) {
		uint32_t other = gx_shfl_u32(amax, gx_lane() ^ m);

		amax = other > amax ? other : amax;
	}
	return amax;
}

/* All lanes of the warp; hidden % 512 == 0, so that every lane has a group in every turn. */
GX_DEV void quant_row(struct gx_bulk *bulk, const uint16_t *src, uint32_t hidden, uint32_t round)
{
	uint8_t *to = (uint8_t *)gx_bulk_stage(bulk);
	float *scales = (float *)(to + hidden);
	uint32_t each = QUANT_GROUP / QUANT_LANES, place = gx_lane() % QUANT_LANES;

	for (uint32_t g = gx_lane() / QUANT_LANES; g < hidden / QUANT_GROUP; g += GX_WARP / QUANT_LANES) {
		const uint16_t *x = src + g * QUANT_GROUP + place * each;
		float amax = num_f32(quant_amax(x, each));
		float scale = amax * (1.0f / 448.0f), factor = 448.0f / amax;

		if (round) { /* 2^ceil(log2(scale)); its inverse is exact */
			uint32_t exponent = (num_bits(scale) + 0x7fffffu) >> 23;

			scale = num_f32(exponent << 23);
			factor = num_f32((254u - exponent) << 23);
		}
		for (uint32_t i = 0; i < each; i++)
			to[g * QUANT_GROUP + place * each + i] = (uint8_t)num_to_e4m3(num_from_bf16(x[i]) * factor);
		if (place == 0)
			scales[g] = scale;
	}
	gx_bulk_filled(bulk);
}

#endif
