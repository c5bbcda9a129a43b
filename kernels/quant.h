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
#define QUANT_AHEAD 4u /* turns loaded before the first is looked at */

/* Eight channels: what a lane has of a group, where it shares it with 15 others. */
union quant_eight {
	gx_u4 v;
	uint16_t x[8];
};

#define QUANT_EIGHTS (QUANT_GROUP / QUANT_LANES / 8u) /* per lane and group */

GX_DEV gx_u4 quant_load(const uint16_t *x)
{
	union quant_eight e;

	if (((uintptr_t)x & 15) == 0)
		return gx_ld_own_u4(x);
	for (uint32_t i = 0; i < 8; i++)
		e.x[i] = x[i];
	return e.v;
}

/* The largest magnitude, at least 1e-4. Magnitudes compare as integers; a NaN says nothing of the others' size. */
GX_DEV uint32_t quant_amax(uint32_t amax, gx_u4 v)
{
	union quant_eight e;

	e.v = v;
	for (uint32_t i = 0; i < 8; i++) {
		uint32_t a = ((uint32_t)e.x[i] & 0x7fffu) << 16;

		amax = a > amax && a <= 0x7f800000u ? a : amax;
	}
	return amax;
}

GX_DEV void quant_eight_store(uint8_t *to, gx_u4 v, float factor)
{
	union quant_eight e;
	uint32_t q[2] = { 0, 0 };

	e.v = v;
	for (uint32_t i = 0; i < 8; i++)
		q[i / 4] |= num_to_e4m3(num_from_bf16(e.x[i]) * factor) << (i % 4 * 8);
	((uint32_t *)to)[0] = q[0];
	((uint32_t *)to)[1] = q[1];
}

/* One group by the lanes that share it: v is this lane's part. */
GX_DEV void quant_group(uint8_t *to, float *scale_to, const gx_u4 *v, uint32_t round)
{
	uint32_t bits = 0x38d1b717u; /* 1e-4f */
	float amax, scale, factor;

	for (uint32_t i = 0; i < QUANT_EIGHTS; i++)
		bits = quant_amax(bits, v[i]);
	for (uint32_t m = QUANT_LANES / 2; m != 0; m /= 2) {
		uint32_t other = gx_shfl_u32(bits, gx_lane() ^ m);

		bits = other > bits ? other : bits;
	}
	amax = num_f32(bits);
	scale = amax * (1.0f / 448.0f);
	factor = 448.0f / amax;
	if (round) { /* 2^ceil(log2(scale)); its inverse is exact */
		uint32_t exponent = (num_bits(scale) + 0x7fffffu) >> 23;

		scale = num_f32(exponent << 23);
		factor = num_f32((254u - exponent) << 23);
	}
	for (uint32_t i = 0; i < QUANT_EIGHTS; i++)
		quant_eight_store(to + 8 * i, v[i], factor);
	if (gx_lane() % QUANT_LANES == 0)
		*scale_to = scale;
}

/* All lanes of the warp; hidden % 512 == 0, so that every lane has a group in every turn. */
GX_DEV void quant_row(struct gx_bulk *bulk, const uint16_t *src, uint32_t hidden, uint32_t round)
{
	uint8_t *to = (uint8_t *)gx_bulk_stage(bulk);
	float *scales = (float *)(to + hidden);
	uint32_t groups = hidden / QUANT_GROUP, turn = GX_WARP / QUANT_LANES;
	uint32_t place = gx_lane() % QUANT_LANES * (QUANT_GROUP / QUANT_LANES);

	for (uint32_t first = gx_lane() / QUANT_LANES; first < groups; first += QUANT_AHEAD * turn) {
		gx_u4 v[QUANT_AHEAD][QUANT_EIGHTS];

		for (uint32_t j = 0; j < QUANT_AHEAD && first + j * turn < groups; j++)
			for (uint32_t i = 0; i < QUANT_EIGHTS; i++)
				v[j][i] = quant_load(src + (first + j * turn) * QUANT_GROUP + place + 8 * i);
		for (uint32_t j = 0; j < QUANT_AHEAD && first + j * turn < groups; j++) {
			uint32_t g = first + j * turn;

			quant_group(to + g * QUANT_GROUP + place, scales + g, v[j], round);
		}
	}
	gx_bulk_filled(bulk);
}

#endif
