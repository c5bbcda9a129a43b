/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/standin/small_float.h"

#include <math.h>

static int bias(const struct ep_small_float *f)
{
	return (1 << (f->exponent - 1)) - 1;
}

/* All ones in the exponent, no sign. */
static unsigned top(const struct ep_small_float *f)
{
	return ((1u << f->exponent) - 1) << f->mantissa;
}

static unsigned largest(const struct ep_small_float *f)
{
	return f->infinity ? top(f) - 1 : (top(f) | ((1u << f->mantissa) - 1)) - 1;
}

float ep_small_float_decode(const struct ep_small_float *f, unsigned bits)
{
	unsigned sign = (bits >> (f->exponent + f->mantissa)) & 1;
	unsigned body = bits & ((1u << (f->exponent + f->mantissa)) - 1);
	unsigned exponent = body >> f->mantissa, mantissa = body & ((1u << f->mantissa) - 1);
	float value;

	if (body > largest(f))
		value = f->infinity && body == top(f) ? INFINITY : NAN;
	else if (exponent)
		value = ldexpf((float)(mantissa + (1u << f->mantissa)), (int)exponent - bias(f) - f->mantissa);
	else
		value = ldexpf((float)mantissa, 1 - bias(f) - f->mantissa);
	return sign ? -value : value;
}

unsigned ep_small_float_encode(const struct ep_small_float *f, float value)
{
	unsigned sign = signbit(value) ? 1u << (f->exponent + f->mantissa) : 0, body;
	int exponent;

	if (isnan(value))
		return sign | (f->infinity ? top(f) | (1u << (f->mantissa - 1)) : largest(f) + 1);
	if (isinf(value))
		return sign | (f->infinity ? top(f) : largest(f));
	frexpf(value, &exponent);
	exponent -= 1; /* 2^exponent <= |value| */
	if (exponent < 1 - bias(f) || value == 0)
		exponent = 1 - bias(f); /* subnormal */
	if (exponent > bias(f) + 1)
		exponent = bias(f) + 1; /* out of range: detected below, without overflow in the shift */
	/* In units of the last place, exact up to rint. A carry out of the mantissa increments the exponent; a
	 * subnormal has exponent 1 here and no implicit one, which cancel. */
	double units = rint(ldexp(fabs((double)value), f->mantissa - exponent));
	if (units > (double)(4u << f->mantissa))
		units = (double)(4u << f->mantissa);
	body = ((unsigned)(exponent + bias(f)) << f->mantissa) + (unsigned)units - (1u << f->mantissa);
	if (body > largest(f))
		body = f->saturate ? largest(f) : top(f);
	return sign | body;
}
