/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_TENSOR_H
#define EP_PLUGIN_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "nccl_ep.h"

/* Marks descriptors of ncclEpTensorAlloc; no public macro has this value. */
#define EP_TENSOR_MAGIC_OWNED 0x7E4505EDu
/* ... and those that have been destroyed. */
#define EP_TENSOR_MAGIC_GONE 0x7E4505DEu

/* No tensor of the API has more than 3; a larger number is an uninitialised one. */
#define EP_TENSOR_MAX_DIMS 8

#define EP_DTYPES 13u
struct ep_dtype {
	const char *name;  /* of the enumerator */
	const char *brief; /* in messages */
	unsigned size;
};

/* NULL for a value that is no dtype. */
const struct ep_dtype *ep_dtype_info(ncclDataType_t dtype);

/* Bytes of one row (the last dimension); the tensor has passed its check. */
size_t ep_tensor_row_bytes(const ncclEpTensor_t *tensor);
bool ep_tensor_empty(const ncclEpTensor_t *tensor);

/* Arguments have passed ep_check_tensor_alloc. */
int ep_tensor_create(unsigned ndim, ncclDataType_t datatype, const size_t *sizes, ncclEpTensor_t **out);
int ep_tensor_destroy(ncclEpTensor_t *tensor);

struct ncclEpGroup;

/* Address of the elements: data, or that of the window, from the library that owns the communicator. */
int ep_tensor_data(const struct ncclEpGroup *group, const ncclEpTensor_t *tensor, void **out);

/* The same into a pointer of any type; NULL for a NULL tensor. */
int ep_tensor_pointer(const struct ncclEpGroup *group, const ncclEpTensor_t *tensor, void *out);
/* The same for counters, which may be in pinned host memory; -EP_EARG where kernels cannot write them. */
int ep_tensor_counter(const char *fn, const struct ncclEpGroup *group, const char *name, const ncclEpTensor_t *tensor,
		      void **out);
/* The enum ep_num of bf16, fp16 and fp32. */
uint32_t ep_tensor_num(ncclDataType_t datatype);

/* A descriptor that outlives the caller's: sizes are copied to the given array, which has room for them. */
void ep_tensor_keep(ncclEpTensor_t *dst, size_t *sizes, const ncclEpTensor_t *src);

#endif
