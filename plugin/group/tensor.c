/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/tensor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"
#include "plugin/group/call.h"
#include "plugin/group/comm.h"
#include "plugin/group/group.h"
#include "util/error.h"

/* clang-format off */
static const struct ep_dtype dtypes[EP_DTYPES] = {
	{ "ncclInt8", "int8", 1 },	    { "ncclUint8", "uint8", 1 },      { "ncclInt32", "int32", 4 },
	{ "ncclUint32", "uint32", 4 },	    { "ncclInt64", "int64", 8 },      { "ncclUint64", "uint64", 8 },
	{ "ncclFloat16", "fp16", 2 },	    { "ncclFloat32", "fp32", 4 },     { "ncclFloat64", "fp64", 8 },
	{ "ncclBfloat16", "bf16", 2 },	    { "ncclFloat8e4m3", "e4m3", 1 }, { "ncclFloat8e5m2", "e5m2", 1 },
	{ "ncclFloat4x2", "fp4x2", 1 },
};
/* clang-format on */

const struct ep_dtype *ep_dtype_info(ncclDataType_t dtype)
{
	return (unsigned)dtype < EP_DTYPES ? &dtypes[(unsigned)dtype] : NULL;
}

bool ep_tensor_empty(const ncclEpTensor_t *tensor)
{
	for (unsigned i = 0; i < tensor->ndim; i++)
		if (!tensor->sizes[i])
			return true;
	return false;
}

size_t ep_tensor_row_bytes(const ncclEpTensor_t *tensor)
{
	return tensor->sizes[tensor->ndim - 1] * ep_dtype_info(tensor->datatype)->size;
}

/* One block: a caller that overwrites the sizes pointer leaks nothing. Blocks are never freed but used again, the one
 * destroyed longest ago first: a descriptor that was destroyed can be read, and its magic tells. */
struct owned {
	ncclEpTensor_t tensor;
	size_t sizes[EP_TENSOR_MAX_DIMS];
	struct owned *next;	/* of those destroyed */
	struct owned *neighbor; /* of all */
};

static struct {
	pthread_mutex_t lock;
	struct owned *all, *first, *last;
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock. */
static struct owned *block_take(void)
{
	struct owned *own = pool.first;

	if (own) {
		pool.first = own->next;
		return own;
	}
	own = EP_CALLOC(EP_INIT, 1, sizeof(*own), "a tensor's descriptor");
	if (own) {
		own->neighbor = pool.all;
		pool.all = own;
	}
	return own;
}

int ep_tensor_create(unsigned ndim, ncclDataType_t datatype, const size_t *sizes, ncclEpTensor_t **out)
{
	struct owned *own;

	pthread_mutex_lock(&pool.lock);
	own = block_take();
	pthread_mutex_unlock(&pool.lock);
	if (!own)
		return -ENOMEM;
	memcpy(own->sizes, sizes, ndim * sizeof(size_t));
	own->tensor = (ncclEpTensor_t){ .size = NCCL_EP_TENSOR_SIZE,
					.magic = EP_TENSOR_MAGIC_OWNED,
					.ndim = ndim,
					.datatype = datatype,
					.sizes = own->sizes };
	*out = &own->tensor;
	return 0;
}

/* With the lock: the magic tells one of two callers that the other was first. */
static int block_give(ncclEpTensor_t *tensor)
{
	struct owned *own = (struct owned *)tensor;

	if (tensor->magic == NCCL_EP_TENSOR_MAGIC)
		return EP_BAD_ARG("ncclEpTensorDestroy: tensor: was not made by ncclEpTensorAlloc, so there is nothing "
				  "to destroy");
	if (tensor->magic != EP_TENSOR_MAGIC_OWNED)
		return EP_BAD_ARG("ncclEpTensorDestroy: tensor: magic is 0x%x: not made by ncclEpTensorAlloc, or "
				  "already "
				  "destroyed",
				  tensor->magic);
	*tensor = (ncclEpTensor_t){ .size = NCCL_EP_TENSOR_SIZE, .magic = EP_TENSOR_MAGIC_GONE };
	own->next = NULL;
	*(pool.first ? &pool.last->next : &pool.first) = own;
	pool.last = own;
	return 0;
}

int ep_tensor_destroy(ncclEpTensor_t *tensor)
{
	int rc;

	if (!tensor)
		return 0;
	pthread_mutex_lock(&pool.lock);
	rc = block_give(tensor);
	pthread_mutex_unlock(&pool.lock);
	return rc;
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

int ep_tensor_counter(const char *fn, const struct ncclEpGroup *group, const char *name, const ncclEpTensor_t *tensor,
		      void **out)
{
	int rc = ep_tensor_pointer(group, tensor, out);

	if (rc || !tensor || tensor->win_hdl)
		return rc;
	rc = group->dev->ops->address(group->dev, *out, out);
	if (rc == -ENOENT)
		return EP_BAD_ARG("%s: %s: rank %d: is in host memory that the device cannot write: allocate it on the "
				  "device, or pinned (cudaHostAlloc, cudaHostRegister)",
				  fn, name, group->rank);
	return rc;
}

uint32_t ep_tensor_num(ncclDataType_t datatype)
{
	return datatype == ncclFloat32 ? EP_NUM_F32 : datatype == ncclFloat16 ? EP_NUM_F16 : EP_NUM_BF16;
}
