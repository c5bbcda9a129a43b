/* SPDX-License-Identifier: Apache-2.0 */
/* Number formats as bits. Every device rounds to nearest, ties to even, so that results are bit-identical. */
#ifndef EP_KERNELS_NUM_H
#define EP_KERNELS_NUM_H

union num {
	float f;
	uint32_t bits;
};

GX_DEV float num_f32(uint32_t bits)
{
	union num n;

	n.bits = bits;
	return n.f;
}

GX_DEV uint32_t num_bits(float f)
{
	union num n;

	n.f = f;
	return n.bits;
}

GX_DEV float num_from_bf16(uint32_t h)
{
	return num_f32(h << 16);
}

GX_DEV uint32_t num_to_bf16(float f)
{
	uint32_t u = num_bits(f);
	uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;

	/* A NaN could round up into infinity or zero; all become the NaN that GPUs produce. */
	return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded;
}

/* The multiplication moves the exponent and normalises subnormals; exact. */
GX_DEV float num_from_f16(uint32_t h)
{
	uint32_t u = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
	uint32_t scaled = num_bits(num_f32(u) * num_f32(0x77800000u)); /* 2^112 */

	return num_f32((u >= 0x0f800000u ? (u | 0x7f800000u) : scaled) | sign);
}

GX_DEV uint32_t num_to_f16(float f)
{
	uint32_t u = num_bits(f), sign = u >> 16 & 0x8000u;
	uint32_t a = u & 0x7fffffffu, normal, small;

	/* From 65520 on it is infinity; a NaN becomes the one that GPUs produce. */
	if (a >= 0x477ff000u)
		return a > 0x7f800000u ? 0x7fffu : sign | 0x7c00u;
	normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13;
	/* Subnormal: adding 2^-1 makes the adder round at bit 2^-24. */
	small = num_bits(num_f32(a) + num_f32(0x3f000000u)) - 0x3f000000u;
	return sign | (a < 0x38800000u ? small : normal);
}

/* e4m3 without infinity: saturates at 448, NaN is 0x7f. */
GX_DEV uint32_t num_to_e4m3(float f)
{
	uint32_t u = num_bits(f), sign = u >> 24 & 0x80u;
	uint32_t a = u & 0x7fffffffu, normal, small;

	if (a > 0x7f800000u)
		return 0x7fu;
	if (a >= 0x43e00000u) /* 448 */
		return sign | 0x7eu;
	normal = (a - 0x3c000000u + 0x7ffffu + (a >> 20 & 1)) >> 20;
	/* Subnormal, below 2^-6: adding 2^14 makes the adder round at bit 2^-9. */
	small = num_bits(num_f32(a) + num_f32(0x46800000u)) - 0x46800000u;
	return sign | (a < 0x3c800000u ? small : normal > 0x7eu ? 0x7eu : normal);
}

#endif
