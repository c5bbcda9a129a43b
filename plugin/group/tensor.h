/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_TENSOR_H
#define EP_PLUGIN_TENSOR_H

#include <stdint.h>

#include "nccl_ep.h"

/* Of descriptors that ncclEpTensorAlloc made: no macro spells it, so Destroy knows its own. */
#define EP_TENSOR_MAGIC_OWNED 0x7E4505EDu

/* No tensor of the interface has more than 3; a larger number is an uninitialised one. */
#define EP_TENSOR_MAX_DIMS 8

int ep_tensor_create(unsigned ndim, ncclDataType_t datatype, const size_t *sizes,
		     const ncclEpTensorAllocConfig_t *config, ncclEpTensor_t **out);
int ep_tensor_destroy(ncclEpTensor_t *tensor);

struct ncclEpGroup;

/* Where the elements are: data, or the window's memory as the communicator's library says. */
int ep_tensor_data(const struct ncclEpGroup *group, const ncclEpTensor_t *tensor, void **out);

/* The same into any pointer; a tensor that is not there has none: NULL. */
int ep_tensor_pointer(const struct ncclEpGroup *group, const ncclEpTensor_t *tensor, void *out);
/* The enum ep_num of bf16, fp16 and fp32. */
uint32_t ep_tensor_num(ncclDataType_t datatype);

/* A descriptor that outlives the caller's: sizes are copied to the array given, which has room for them. */
void ep_tensor_keep(ncclEpTensor_t *dst, size_t *sizes, const ncclEpTensor_t *src);

#endif
