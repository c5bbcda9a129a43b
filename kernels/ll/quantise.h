/* SPDX-License-Identifier: Apache-2.0 */
/* The recipes of kernels/ll/quant.h in the kernel: the only place that distinguishes them. */
#ifndef EP_KERNELS_LL_QUANTISE_H
#define EP_KERNELS_LL_QUANTISE_H

#include "kernels/gx/quant.h"
#include "kernels/ll/ll.h"
#include "kernels/ll/quant.h"

#define LL_QUANT(recipe, flag, make, bits, group, scale)                            \
	case flag:                                                                  \
		make(&ll->bulk, row, a->hidden, scales_at, ll_is(ll, EP_LL_ROUND)); \
		break;

/* All lanes, in a dispatch with one of EP_LL_QUANTISED. */
GX_DEV void ll_quantise(struct ll *ll, const uint16_t *row, uint32_t scales_at)
{
	const struct ep_ll_args *a = ll->a;

	switch (a->flags & EP_LL_QUANTISED) {
		EP_LL_QUANTS(LL_QUANT)
	default:
		__builtin_unreachable(); /* with one recipe no test is left */
	}
}

#undef LL_QUANT

#endif
