/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recipes by which LL dispatch quantises: one line each, for the host's sizes and for the kernel.
 *
 *   recipe     its number in the API (NCCL_EP_DISP_QUANT_*)
 *   flag       enum ep_ll_flag
 *   make       the kernel's function: from the input row to a row and its scales in the stage (gx/quant.h)
 *   bits       of a quantised element
 *   group      elements that share a scale
 *   scale      bytes of a scale
 *
 * What it requires of the caller's tensors is in the table of plugin/check/dispatch.c.
 */
#ifndef EP_KERNELS_LL_QUANT_H
#define EP_KERNELS_LL_QUANT_H

#include "kernels/ll/args.h"

/* clang-format off */
/*	  recipe  flag		make	   bits  group  scale */
#define EP_LL_QUANTS(X) \
	X(2,	  EP_LL_DS_FP8, quant_row, 8,	 128,	4)
/* clang-format on */

/* All recipes' flags: the row is made in the stage, as a whole, instead of copied from the caller's tensor. */
#define EP_LL_QUANT_FLAG(recipe, flag, make, bits, group, scale) | flag
#define EP_LL_QUANTISED (0 EP_LL_QUANTS(EP_LL_QUANT_FLAG))

#define EP_LL_QUANT_SIZES(number, flag, make, bits, group, scale)       \
	if (recipe == (number)) {                                       \
		a->flags |= (flag) | (round_scales ? EP_LL_ROUND : 0u); \
		a->row_bytes = a->hidden * (bits) / 8;                  \
		a->scale_bytes = a->hidden / (group) * (scale);         \
		return;                                                 \
	}

/* Host: what a recipe changes in a dispatch whose hidden, in_bytes, row_bytes and scale_bytes describe the tensors. */
EP_BOTH void ep_ll_quant_sizes(struct ep_ll_args *a, uint32_t recipe, uint32_t round_scales)
{
	EP_LL_QUANTS(EP_LL_QUANT_SIZES);
}

/* The input row is loaded into the stage too, unless it is larger than this and would leave room for few warps. */
#define EP_LL_QUANT_IN_STAGE 32768u /* bytes */

/* Host: bytes of a row in the stage, with its scales. */
EP_BOTH uint64_t ep_ll_stage_row(const struct ep_ll_args *a)
{
	uint32_t from_input = (a->flags & EP_LL_QUANTISED) != 0 && a->in_bytes <= EP_LL_QUANT_IN_STAGE;

	return (uint64_t)(from_input ? a->in_bytes : a->row_bytes) + a->scale_bytes;
}

/* Where a quantised row's scales are in the stage: after the row, or, where it fits, after its input. */
EP_BOTH uint32_t ep_ll_stage_scales(const struct ep_ll_args *a)
{
	return a->stage >= EP_STAGE_HEAD + a->in_bytes + a->scale_bytes ? a->in_bytes : a->row_bytes;
}

#endif
