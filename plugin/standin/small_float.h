/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of 8- and 16-bit floating-point formats, described by their parameters. */
#ifndef EP_PLUGIN_STANDIN_SMALL_FLOAT_H
#define EP_PLUGIN_STANDIN_SMALL_FLOAT_H

#include <stdbool.h>
#include <stdint.h>

struct ep_small_float {
	int exponent, mantissa; /* bits */
	bool infinity;		/* an exponent of all ones is infinity or NaN; else only all ones everywhere is NaN */
	bool saturate; /* finite values out of range become the largest one, as in CUDA's conversions to float8 */
};

float ep_small_float_decode(const struct ep_small_float *format, unsigned bits);
/* To nearest, ties to even. */
unsigned ep_small_float_encode(const struct ep_small_float *format, float value);

#endif
