/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/tensor.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"
#include "plugin/check/check.h"
#include "plugin/check/tensor.h"
#include "plugin/group/comm.h"
#include "plugin/group/group.h"
#include "util/error.h"

#define FN "ncclEpTensorAlloc"

/* One allocation: a caller that overwrites the sizes pointer loses its own sizes, not our memory. */
struct owned {
	ncclEpTensor_t tensor;
	size_t sizes[];
};

static int sizes_check(unsigned ndim, const struct ep_dtype *dtype, const size_t *sizes)
{
	size_t bytes = dtype->size;

	for (unsigned i = ndim; i-- > 0;)
		if (__builtin_mul_overflow(bytes, sizes[i], &bytes))
			return EP_BAD_ARG(FN ": sizes: the product of the sizes does not fit in 64 bits at sizes[%u] = "
					     "%zu",
					  i, sizes[i]);
	return 0;
}

int ep_tensor_create(unsigned ndim, ncclDataType_t datatype, const size_t *sizes,
		     const ncclEpTensorAllocConfig_t *config, ncclEpTensor_t **out)
{
	const struct ep_dtype *dtype = ep_dtype_info(datatype);
	ncclEpTensorAllocConfig_t cfg;
	struct owned *own;
	int rc;

	if ((rc = ep_check_pointer(FN, "tensor", out)))
		return rc;
	if (ndim < 1 || ndim > EP_TENSOR_MAX_DIMS)
		return EP_BAD_ARG(FN ": ndim is %u, must be 1 to %d", ndim, EP_TENSOR_MAX_DIMS);
	if (!dtype)
		return EP_BAD_ARG(FN ": datatype is %d, which is no ncclDataType_t", (int)datatype);
	if ((rc = ep_check_pointer(FN, "sizes", sizes)) || (rc = sizes_check(ndim, dtype, sizes)) ||
	    (rc = ep_struct_take_opt(EP_S_TENSOR_ALLOC_CONFIG, FN, "config", config, &cfg)))
		return rc;
	own = calloc(1, sizeof(*own) + ndim * sizeof(size_t));
	if (!own)
		return EP_FAIL(EP_INIT, ENOMEM, FN ": no memory for a descriptor");
	memcpy(own->sizes, sizes, ndim * sizeof(size_t));
	own->tensor = (ncclEpTensor_t){ .size = NCCL_EP_TENSOR_SIZE,
					.magic = EP_TENSOR_MAGIC_OWNED,
					.ndim = ndim,
					.datatype = datatype,
					.sizes = own->sizes };
	*out = &own->tensor;
	return 0;
}

int ep_tensor_destroy(ncclEpTensor_t *tensor)
{
	if (!tensor)
		return 0;
	if (tensor->magic == NCCL_EP_TENSOR_MAGIC)
		return EP_BAD_ARG("ncclEpTensorDestroy: tensor: was declared by the caller and owns nothing: only "
				  "tensors of ncclEpTensorAlloc are destroyed");
	if (tensor->magic != EP_TENSOR_MAGIC_OWNED)
		return EP_BAD_ARG("ncclEpTensorDestroy: tensor: magic is 0x%x: not a tensor of ncclEpTensorAlloc, or "
				  "destroyed before",
				  tensor->magic);
	tensor->magic = 0;
	free(tensor);
	return 0;
}

void ep_tensor_keep(ncclEpTensor_t *dst, size_t *sizes, const ncclEpTensor_t *src)
{
	*dst = *src;
	memcpy(sizes, src->sizes, src->ndim * sizeof(size_t));
	dst->sizes = sizes;
}

int ep_tensor_data(const struct ncclEpGroup *group, const ncclEpTensor_t *tensor, void **out)
{
	void *base = NULL;
	int rc;

	if (!tensor->win_hdl) {
		*out = tensor->data;
		return 0;
	}
	rc = ep_comm_window(&group->comm, tensor->win_hdl, &base);
	if (!rc)
		*out = (char *)base + tensor->win_offset;
	return rc;
}

int ep_tensor_pointer(const struct ncclEpGroup *group, const ncclEpTensor_t *tensor, void *out)
{
	void *data = NULL;
	int rc = tensor ? ep_tensor_data(group, tensor, &data) : 0;

	if (!rc)
		memcpy(out, &data, sizeof(data));
	return rc;
}

uint32_t ep_tensor_num(ncclDataType_t datatype)
{
	return datatype == ncclFloat32 ? EP_NUM_F32 : datatype == ncclFloat16 ? EP_NUM_F16 : EP_NUM_BF16;
}
