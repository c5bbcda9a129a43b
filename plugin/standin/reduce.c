/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/standin/reduce.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "plugin/standin/small_float.h"

/* Type of the computation. */
enum domain { SIGNED, UNSIGNED, SINGLE, DOUBLE, DOMAINS };

union num {
	int64_t i;
	uint64_t u;
	float f;
	double d;
};

static const struct dtype {
	size_t size;
	enum domain domain;
	struct ep_small_float small; /* exponent 0: no conversion needed */
} dtypes[ncclNumTypes] = {
	[ncclInt8] = { 1, SIGNED },
	[ncclUint8] = { 1, UNSIGNED },
	[ncclInt32] = { 4, SIGNED },
	[ncclUint32] = { 4, UNSIGNED },
	[ncclInt64] = { 8, SIGNED },
	[ncclUint64] = { 8, UNSIGNED },
	[ncclFloat16] = { 2, SINGLE, { .exponent = 5, .mantissa = 10, .infinity = true } },
	[ncclFloat32] = { 4, SINGLE },
	[ncclFloat64] = { 8, DOUBLE },
	[ncclBfloat16] = { 2, SINGLE, { .exponent = 8, .mantissa = 7, .infinity = true } },
	[ncclFloat8e4m3] = { 1, SINGLE, { .exponent = 4, .mantissa = 3, .saturate = true } },
	[ncclFloat8e5m2] = { 1, SINGLE, { .exponent = 5, .mantissa = 2, .infinity = true, .saturate = true } },
};

/* Integers wrap in 64 bits and are truncated when stored: equal to wrapping in their own width, and defined in C. */
static void add_u(union num *a, union num x)
{
	a->u += x.u;
}

static void add_f(union num *a, union num x)
{
	a->f += x.f;
}

static void add_d(union num *a, union num x)
{
	a->d += x.d;
}

static void mul_u(union num *a, union num x)
{
	a->u *= x.u;
}

static void mul_f(union num *a, union num x)
{
	a->f *= x.f;
}

static void mul_d(union num *a, union num x)
{
	a->d *= x.d;
}

static void max_i(union num *a, union num x)
{
	a->i = a->i > x.i ? a->i : x.i;
}

static void max_u(union num *a, union num x)
{
	a->u = a->u > x.u ? a->u : x.u;
}

static void max_f(union num *a, union num x)
{
	a->f = fmaxf(a->f, x.f);
}

static void max_d(union num *a, union num x)
{
	a->d = fmax(a->d, x.d);
}

static void min_i(union num *a, union num x)
{
	a->i = a->i < x.i ? a->i : x.i;
}

static void min_u(union num *a, union num x)
{
	a->u = a->u < x.u ? a->u : x.u;
}

static void min_f(union num *a, union num x)
{
	a->f = fminf(a->f, x.f);
}

static void min_d(union num *a, union num x)
{
	a->d = fmin(a->d, x.d);
}

static void (*const combine[DOMAINS][ncclNumOps])(union num *a, union num x) = {
	[SIGNED] = { add_u, mul_u, max_i, min_i, add_u },
	[UNSIGNED] = { add_u, mul_u, max_u, min_u, add_u },
	[SINGLE] = { add_f, mul_f, max_f, min_f, add_f },
	[DOUBLE] = { add_d, mul_d, max_d, min_d, add_d },
};

static union num load_integer(const struct dtype *t, const void *at)
{
	unsigned unused = 64 - 8 * (unsigned)t->size;
	union num x = { .u = 0 };

	memcpy(&x.u, at, t->size); /* little-endian */
	if (t->domain == SIGNED)
		x.i = (int64_t)(x.u << unused) >> unused;
	return x;
}

static union num load(const struct dtype *t, const void *at)
{
	union num x = { .u = 0 };
	uint16_t bits = 0;

	if (t->domain == SIGNED || t->domain == UNSIGNED)
		return load_integer(t, at);
	if (!t->small.exponent) {
		memcpy(&x, at, t->size);
		return x;
	}
	memcpy(&bits, at, t->size);
	x.f = ep_small_float_decode(&t->small, bits);
	return x;
}

static void store(const struct dtype *t, void *at, union num x)
{
	uint16_t bits;

	if (!t->small.exponent) {
		memcpy(at, &x, t->size);
		return;
	}
	bits = (uint16_t)ep_small_float_encode(&t->small, x.f);
	memcpy(at, &bits, t->size);
}

static union num divide(const struct dtype *t, union num x, int by)
{
	switch (t->domain) {
	case SIGNED:
		x = load_integer(t, &x); /* wrapped to its width before the division */
		x.i /= by;
		break;
	case UNSIGNED:
		x = load_integer(t, &x);
		x.u /= (unsigned)by;
		break;
	case SINGLE:
		x.f /= (float)by;
		break;
	default:
		x.d /= by;
	}
	return x;
}

size_t ep_dtype_size(ncclDataType_t dtype)
{
	return (unsigned)dtype < ncclNumTypes ? dtypes[dtype].size : 0;
}

void ep_reduce(ncclDataType_t dtype, ncclRedOp_t op, const void *all, size_t n, int nranks, void *out)
{
	const struct dtype *t = &dtypes[dtype];
	const char *from = all;

	for (size_t i = 0; i < n; i++) {
		union num sum = load(t, from + i * t->size);

		for (int r = 1; r < nranks; r++)
			combine[t->domain][op](&sum, load(t, from + ((size_t)r * n + i) * t->size));
		if (op == ncclAvg)
			sum = divide(t, sum, nranks);
		store(t, (char *)out + i * t->size, sum);
	}
}
