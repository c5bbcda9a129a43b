/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/num.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* The numbers are NCCL's ncclDataType_t; 12 is packed fp4 of API version 2. */
const struct num_info num_info[NUM_TYPES] = {
	[NUM_BF16] = { "bf16", 2, 9 },	[NUM_F16] = { "fp16", 2, 6 },	[NUM_F32] = { "fp32", 4, 7 },
	[NUM_E4M3] = { "e4m3", 1, 10 }, [NUM_E5M2] = { "e5m2", 1, 11 }, [NUM_E2M1X2] = { "fp4x2", 1, 12 },
	[NUM_U8] = { "uint8", 1, 1 },
};

int num_find(const char *name)
{
	for (int i = 0; i < NUM_TYPES; i++)
		if (!strcmp(num_info[i].name, name))
			return i;
	return -1;
}

uint32_t num_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

float num_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

float num_from_bf16(uint16_t bits)
{
	return num_float((uint32_t)bits << 16);
}

uint16_t num_to_bf16(float value)
{
	uint32_t bits = num_bits(value), low = bits & 0xffff, high = bits >> 16;

	if (isnan(value))
		return 0x7fff;
	if (low > 0x8000 || (low == 0x8000 && (high & 1)))
		high++; /* a carry out of the mantissa is the next exponent, and out of the last one infinity */
	return (uint16_t)high;
}

float num_from_f16(uint16_t bits)
{
	int exponent = bits >> 10 & 31, fraction = bits & 1023;
	float value;

	if (exponent == 31)
		value = fraction ? NAN : INFINITY;
	else if (exponent)
		value = ldexpf((float)(1024 + fraction), exponent - 25);
	else
		value = ldexpf((float)fraction, -24);
	return bits & 0x8000 ? -value : value;
}

uint16_t num_to_f16(float value)
{
	uint16_t sign = (uint16_t)(num_bits(value) >> 16 & 0x8000);
	double x = fabs((double)value), unit, whole;
	int exponent;

	if (isnan(value))
		return 0x7fff;
	if (isinf(value))
		return sign | 0x7c00;
	/* x = m * 2^exponent with m in [0.5, 1): eleven bits of it are kept, fewer below 2^-14 where the unit is fixed.
	 */
	frexp(x, &exponent);
	if (exponent < -13)
		exponent = -13;
	unit = ldexp(1.0, exponent - 11);
	whole = nearbyint(x / unit); /* exact but for this rounding: to even, as C's default mode is */
	if (whole >= 2048.0) {
		whole /= 2.0;
		exponent++;
	}
	if (exponent > 16)
		return sign | 0x7c00;
	if (whole < 1024.0)
		return sign | (uint16_t)whole;
	return sign | (uint16_t)((exponent + 14) << 10) | (uint16_t)(whole - 1024.0);
}

/* Codes 0 to 126 are the finite values in ascending order; 127 is NaN. */
static double e4m3_value(int code)
{
	int exponent = code >> 3, fraction = code & 7;

	return exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
}

float num_from_e4m3(uint8_t bits)
{
	float value = (bits & 0x7f) == 0x7f ? NAN : (float)e4m3_value(bits & 0x7f);

	return bits & 0x80 ? -value : value;
}

uint8_t num_to_e4m3(float value)
{
	uint8_t sign = (uint8_t)(num_bits(value) >> 24 & 0x80);
	double x = fabs((double)value), below, above;
	int low = 0, high = 126;

	if (isnan(value))
		return 0x7f;
	if (x >= e4m3_value(126))
		return sign | 126;
	while (high - low > 1) { /* value(low) <= x < value(high) */
		int middle = (low + high) / 2;
		bool up = e4m3_value(middle) <= x;

		low = up ? middle : low;
		high = up ? high : middle;
	}
	below = x - e4m3_value(low);
	above = e4m3_value(high) - x;
	if (below < above || (below == above && low % 2 == 0))
		return sign | (uint8_t)low;
	return sign | (uint8_t)high;
}

float num_load(enum num_type type, const void *at)
{
	uint16_t half;
	float value;

	if (type == NUM_F32) {
		memcpy(&value, at, sizeof(value));
		return value;
	}
	memcpy(&half, at, sizeof(half));
	return type == NUM_BF16 ? num_from_bf16(half) : num_from_f16(half);
}

void num_store(enum num_type type, void *at, float value)
{
	uint16_t half;

	if (type == NUM_F32) {
		memcpy(at, &value, sizeof(value));
		return;
	}
	half = type == NUM_BF16 ? num_to_bf16(value) : num_to_f16(value);
	memcpy(at, &half, sizeof(half));
}
