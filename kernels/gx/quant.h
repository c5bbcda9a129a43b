/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSeek's FP8: bf16 to e4m3 with one float scale per 128 channels. A row is written into the warp's stage; 16 lanes
 * share a group of 128 (one lane where the warp has one).
 */
#ifndef EP_KERNELS_QUANT_H
#define EP_KERNELS_QUANT_H

#include "kernels/gx/gx.h"
#include "kernels/gx/num.h"

#define QUANT_GROUP 128u
#define QUANT_LANES (GX_WARP < 16u ? GX_WARP : 16u)
#define QUANT_AHEAD 4u				      /* turns interleaved: each is a chain of dependent steps */
#define QUANT_EIGHTS (QUANT_GROUP / QUANT_LANES / 8u) /* per lane and group */

/* Eight channels: a lane's part of a group that 16 lanes share. */
union quant_eight {
	gx_u4 v;
	uint32_t pair[4];
};

/* A lane's part of a group, and the maximum over the lanes that share it. */
struct quant_part {
	union quant_eight e[QUANT_EIGHTS];
	uint32_t amax; /* the bits of a float: magnitudes compare as integers */
};

/* The largest magnitude, at least 1e-4; NaNs are ignored. */
GX_DEV uint32_t quant_amax(const union quant_eight *e)
{
	uint32_t pairs = 0, low, high;

	for (uint32_t i = 0; i < QUANT_EIGHTS; i++)
		for (uint32_t j = 0; j < 4; j++)
			pairs = gx_amax_bf16(pairs, e[i].pair[j]);
	low = pairs << 16;
	high = pairs & 0xffff0000u;
	low = low > high ? low : high;
	return low > 0x38d1b717u ? low : 0x38d1b717u; /* 1e-4f */
}

GX_DEV void quant_eight_store(uint8_t *to, const union quant_eight *e, float factor)
{
	uint32_t q[2] = { 0, 0 };

	for (uint32_t i = 0; i < 4; i++)
		q[i / 2] |= gx_pack_e4m3(num_f32(e->pair[i] << 16) * factor, num_f32(e->pair[i] & 0xffff0000u) * factor)
			    << (i % 2 * 16);
	((uint32_t *)to)[0] = q[0];
	((uint32_t *)to)[1] = q[1];
}

GX_DEV void quant_store(uint8_t *to, float *scale_to, const struct quant_part *part, uint32_t round)
{
	float amax = num_f32(part->amax), scale = amax * (1.0f / 448.0f), factor = 448.0f / amax;

	if (round) { /* 2^ceil(log2(scale)); its inverse is exact */
		uint32_t exponent = (num_bits(scale) + 0x7fffffu) >> 23;

		scale = num_f32(exponent << 23);
		factor = num_f32((254u - exponent) << 23);
	}
	for (uint32_t i = 0; i < QUANT_EIGHTS; i++)
		quant_eight_store(to + 8 * i, &part->e[i], factor);
	if (gx_lane() % QUANT_LANES == 0)
		*scale_to = scale;
}

struct quant {
	const uint16_t *src;
	uint8_t *to;
	float *scales;
	uint32_t turn; /* groups that the warp handles at once */
	uint32_t round;
};

/* n <= QUANT_AHEAD turns, a compile-time constant at every call; group is this lane's first. */
GX_DEV void quant_turns(const struct quant *q, uint32_t group, uint32_t n)
{
	uint32_t place = gx_lane() % QUANT_LANES * (QUANT_GROUP / QUANT_LANES);
	struct quant_part part[QUANT_AHEAD];

	for (uint32_t j = 0; j < n; j++)
		for (uint32_t i = 0; i < QUANT_EIGHTS; i++)
			part[j].e[i].v = gx_ld_u4_a2(q->src + (group + j * q->turn) * QUANT_GROUP + place + 8 * i);
	gx_syncwarp(); /* all have read before one writes */
	for (uint32_t j = 0; j < n; j++)
		part[j].amax = quant_amax(part[j].e);
	for (uint32_t m = QUANT_LANES / 2; m != 0; m /= 2)
		for (uint32_t j = 0; j < n; j++) {
			uint32_t other = gx_shfl_u32(part[j].amax, gx_lane() ^ m);

			part[j].amax = other > part[j].amax ? other : part[j].amax;
		}
	for (uint32_t j = 0; j < n; j++) {
		uint32_t g = group + j * q->turn;

		quant_store(q->to + g * QUANT_GROUP + place, q->scales + g, &part[j], q->round);
	}
}

/*
 * All lanes of the warp; hidden % 512 == 0, so that every lane has a group in every turn. src may be the stage itself:
 * the output is half the size of the input, so a turn overwrites only what it and earlier turns have read.
 */
GX_DEV void quant_row(struct gx_bulk *bulk, const uint16_t *src, uint32_t hidden, uint32_t scales_at, uint32_t round)
{
	uint8_t *to = (uint8_t *)gx_bulk_stage(bulk);
	struct quant q = { src, to, (float *)(to + scales_at), GX_WARP / QUANT_LANES, round };
	uint32_t groups = hidden / QUANT_GROUP, group = gx_lane() / QUANT_LANES;

	for (; group + (QUANT_AHEAD - 1) * q.turn < groups; group += QUANT_AHEAD * q.turn)
		quant_turns(&q, group, QUANT_AHEAD);
	for (; group < groups; group += q.turn)
		quant_turns(&q, group, 1);
	gx_bulk_filled(bulk);
}

#endif
