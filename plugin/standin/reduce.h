/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_STANDIN_REDUCE_H
#define EP_PLUGIN_STANDIN_REDUCE_H

#include <stddef.h>

#include <nccl.h>

/* Bytes of an element; 0 for an invalid datatype. */
size_t ep_dtype_size(ncclDataType_t dtype);

/* out[i] = op over the ranks of all[rank * n + i], in rank order on every rank, so that results are bitwise equal.
 * Integers wrap; an average is the wrapped sum divided towards zero. float16, bfloat16 and the float8 types are summed
 * in float and rounded once, to nearest even. */
void ep_reduce(ncclDataType_t dtype, ncclRedOp_t op, const void *all, size_t n, int nranks, void *out);

#endif
