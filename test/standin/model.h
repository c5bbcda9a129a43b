/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second implementation of NCCL's datatypes and reductions: integers by the compiler's own types, float16 by its
 * _Float16, bfloat16 by the top half of a float, the float8 types by searching all 256 values for the nearest.
 */
#ifndef EP_TEST_STANDIN_MODEL_H
#define EP_TEST_STANDIN_MODEL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <nccl.h>

static inline size_t model_size(ncclDataType_t dtype)
{
	static const size_t sizes[ncclNumTypes] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

	return sizes[dtype];
}

static inline float model_bf16(uint16_t bits)
{
	uint32_t wide = (uint32_t)bits << 16;
	float f;

	memcpy(&f, &wide, sizeof(f));
	return isnan(f) ? NAN : f; /* quiet, as conversions return it: fmax of a signalling NaN is NaN */
}

static inline float model_fp8(ncclDataType_t dtype, uint8_t bits)
{
	bool e4m3 = dtype == ncclFloat8e4m3;
	int e = e4m3 ? (bits >> 3) & 15 : (bits >> 2) & 31, m = e4m3 ? bits & 7 : bits & 3;
	float steps = e4m3 ? 8 : 4, bias = e4m3 ? 7 : 15, v;

	if (e4m3 && e == 15 && m == 7)
		v = NAN;
	else if (!e4m3 && e == 31)
		v = m ? NAN : INFINITY;
	else
		v = e ? (1 + (float)m / steps) * exp2f((float)e - bias) : (float)m / steps * exp2f(1 - bias);
	return bits & 128 ? -v : v;
}

/* By search; of two values as near, the one with an even last bit. Finite values out of range saturate. */
static inline uint8_t model_to_fp8(ncclDataType_t dtype, float f)
{
	unsigned best = 256;

	for (unsigned b = 0; b < 256; b++) {
		float v = model_fp8(dtype, (uint8_t)b);

		if (isnan(f) || isinf(f) ? (isnan(f) ? isnan(v) : v == f) : false)
			return (uint8_t)b;
		if (isnan(v) || isinf(v) || (signbit(v) != 0) != (signbit(f) != 0))
			continue;
		if (best == 256) {
			best = b;
			continue;
		}
		double now = fabs((double)v - fmin(fmax((double)f, -1e6), 1e6));
		double was = fabs((double)model_fp8(dtype, (uint8_t)best) - fmin(fmax((double)f, -1e6), 1e6));
		if (now < was || (now == was && !(b & 1)))
			best = b;
	}
	return (uint8_t)best;
}

static inline float model_load(ncclDataType_t dtype, const void *at)
{
	_Float16 half;
	uint16_t bits;

	if (dtype == ncclFloat8e4m3 || dtype == ncclFloat8e5m2)
		return model_fp8(dtype, *(const uint8_t *)at);
	if (dtype == ncclFloat16) {
		memcpy(&half, at, 2);
		return (float)half;
	}
	memcpy(&bits, at, 2);
	return model_bf16(bits);
}

static inline void model_store(ncclDataType_t dtype, float f, void *at)
{
	_Float16 half = (_Float16)f;
	uint32_t wide;
	uint16_t bits;

	if (dtype == ncclFloat16) {
		memcpy(at, &half, 2);
		return;
	}
	if (dtype != ncclBfloat16) {
		*(uint8_t *)at = model_to_fp8(dtype, f);
		return;
	}
	memcpy(&wide, &f, 4);
	bits = isnan(f) ? 0x7fc0 : (uint16_t)((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
	memcpy(at, &bits, 2);
}

/* acc = acc op x in the type T; wrapping is the unsigned type U's. */
#define MODEL_INTEGER(T, U)                                                              \
	{                                                                                \
		T acc, x;                                                                \
		memcpy(&acc, first, sizeof(T));                                          \
		for (int r = 1; r < nranks; r++) {                                       \
			memcpy(&x, (const char *)first + (size_t)r * stride, sizeof(T)); \
			if (op == ncclProd)                                              \
				acc = (T)(U)((uint64_t)(U)acc * (uint64_t)(U)x);         \
			else if (op == ncclMax || op == ncclMin)                         \
				acc = (op == ncclMax) == (x > acc) ? x : acc;            \
			else                                                             \
				acc = (T)(U)((U)acc + (U)x);                             \
		}                                                                        \
		if (op == ncclAvg)                                                       \
			acc = (T)(acc / (T)nranks);                                      \
		memcpy(out, &acc, sizeof(T));                                            \
	}

#define MODEL_FLOAT(T, LOAD, MAX, MIN)                                                                                \
	T acc = LOAD(first);                                                                                          \
	for (int r = 1; r < nranks; r++) {                                                                            \
		T x = LOAD((const char *)first + (size_t)r * stride);                                                 \
		acc = op == ncclProd ? acc * x : op == ncclMax ? MAX(acc, x) : op == ncclMin ? MIN(acc, x) : acc + x; \
	}                                                                                                             \
	if (op == ncclAvg)                                                                                            \
		acc /= (T)nranks;

static inline float model_load_f32(const void *at)
{
	float f;

	memcpy(&f, at, sizeof(f));
	return f;
}

static inline double model_load_f64(const void *at)
{
	double d;

	memcpy(&d, at, sizeof(d));
	return d;
}

/* One element: rank r's is at first + r * stride. */
static inline void model_reduce(ncclDataType_t dtype, ncclRedOp_t op, const void *first, size_t stride, int nranks,
				void *out)
{
	switch (dtype) {
	case ncclInt8:
		MODEL_INTEGER(int8_t, uint8_t) break;
	case ncclUint8:
		MODEL_INTEGER(uint8_t, uint8_t) break;
	case ncclInt32:
		MODEL_INTEGER(int32_t, uint32_t) break;
	case ncclUint32:
		MODEL_INTEGER(uint32_t, uint32_t) break;
	case ncclInt64:
		MODEL_INTEGER(int64_t, uint64_t) break;
	case ncclUint64:
		MODEL_INTEGER(uint64_t, uint64_t) break;
	case ncclFloat32: {
		MODEL_FLOAT(float, model_load_f32, fmaxf, fminf)
		memcpy(out, &acc, sizeof(acc));
		break;
	}
	case ncclFloat64: {
		MODEL_FLOAT(double, model_load_f64, fmax, fmin)
		memcpy(out, &acc, sizeof(acc));
		break;
	}
	default: {
#define MODEL_LOAD_SMALL(at) model_load(dtype, at)
		MODEL_FLOAT(float, MODEL_LOAD_SMALL, fmaxf, fminf)
		model_store(dtype, acc, out);
	}
	}
}

static inline bool model_is_nan(ncclDataType_t dtype, const void *at)
{
	if (dtype == ncclFloat64)
		return isnan(model_load_f64(at));
	if (dtype == ncclFloat32)
		return isnan(model_load_f32(at));
	return dtype >= ncclFloat16 && isnan(model_load(dtype, at));
}

/* The same bits, or NaN both, or zeros of either sign (max of +0 and -0 may be both). */
static inline bool model_same(ncclDataType_t dtype, const void *a, const void *b)
{
	if (!memcmp(a, b, model_size(dtype)) || (model_is_nan(dtype, a) && model_is_nan(dtype, b)))
		return true;
	if (dtype < ncclFloat16 || dtype == ncclFloat32 || dtype == ncclFloat64)
		return false;
	return model_load(dtype, a) == 0 && model_load(dtype, b) == 0;
}

/* Any bits for the integers and the small floats, infinities and NaN included; finite values for float and double. */
static inline void model_random(ncclDataType_t dtype, uint64_t *state, void *out)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	uint64_t bits = *state ^ (*state >> 29);
	float f = ldexpf((float)((int)(bits % 20001) - 10000), (int)(bits >> 32 & 15) - 8);
	double d = (double)f / 3;

	memcpy(out,
	       dtype == ncclFloat32   ? (void *)&f
	       : dtype == ncclFloat64 ? (void *)&d
				      : (void *)&bits,
	       model_size(dtype));
}

#endif
