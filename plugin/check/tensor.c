/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/check/tensor.h"

#include <stdio.h>
#include <string.h>

#include "plugin/check/check.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "plugin/group/tensor.h"
#include "util/error.h"

#define WINDOW_ALIGN 16

/* clang-format off */
static const char *const sym_names[EP_SYMS] = {
	[EP_D_ONE] = "1", [EP_D_T] = "T",   [EP_D_K] = "K",	  [EP_D_H] = "H", [EP_D_S] = "the scales of a row",
	[EP_D_S4] = "the scales of a row / 4",
	[EP_D_N] = "N",	  [EP_D_EL] = "El", [EP_D_R] = "R", [EP_D_TMAX] = "Tmax", [EP_D_RTMAX] = "R*Tmax",
};
/* clang-format on */

void ep_env_init(struct ep_env *env, const char *fn, const char *const *names, const struct ncclEpHandle *handle)
{
	const struct ncclEpGroup *group = handle->group;
	size_t tmax = group->cfg.max_dispatch, r = (size_t)group->nranks;

	*env = (struct ep_env){ .fn = fn, .names = names, .mode = ep_handle_mode(handle), .tmax = tmax, .rows = -1 };
	env->sym[EP_D_ONE] = (struct ep_sym_value){ true, 1, "a single number" };
	env->sym[EP_D_EL] = (struct ep_sym_value){ true, (size_t)group->experts_per_rank, "experts of a rank" };
	env->sym[EP_D_R] = (struct ep_sym_value){ true, r, "ranks" };
	env->sym[EP_D_TMAX] = (struct ep_sym_value){ true, tmax, "max_dispatch_tokens_per_rank" };
	env->sym[EP_D_RTMAX] = (struct ep_sym_value){ true, r * tmax, "ranks * max_dispatch_tokens_per_rank" };
	env->sym[EP_D_N] = (struct ep_sym_value){ true, 0, "max_recv_tokens_per_rank" };
	if (handle->updated)
		env->sym[EP_D_T] = (struct ep_sym_value){ true, handle->t, "the last ncclEpUpdateHandle" };
	if (handle->k > 0)
		env->sym[EP_D_K] = (struct ep_sym_value){ true, (size_t)handle->k, "num_topk of the handle" };
}

static void dtype_list(unsigned mask, char *out, size_t size)
{
	size_t n = 0;

	out[0] = '\0';
	for (unsigned i = 0; i < EP_DTYPES && n < size; i++)
		if (mask & (1u << i))
			n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "",
					      ep_dtype_info((ncclDataType_t)i)->brief);
}

static int dtype_check(struct ep_env *env, const struct ep_slot *slot, const ncclEpTensor_t *t)
{
	const struct ep_dtype *dtype = ep_dtype_info(t->datatype);
	const char *name = env->names[slot->tensor];
	char list[128];

	if (!dtype)
		return EP_BAD_ARG("%s: %s: dtype is %d, which is no ncclDataType_t", env->fn, name, (int)t->datatype);
	if (!(slot->dtypes & (1u << (unsigned)t->datatype))) {
		dtype_list(slot->dtypes, list, sizeof(list));
		return EP_BAD_ARG("%s: %s: dtype is %s, must be one of %s", env->fn, name, dtype->name, list);
	}
	if (!slot->alike)
		return 0;
	if (env->alike[slot->alike].known && env->alike[slot->alike].dtype != t->datatype)
		return EP_BAD_ARG("%s: %s: dtype is %s, must be %s, as in %s", env->fn, name, dtype->name,
				  ep_dtype_info(env->alike[slot->alike].dtype)->name, env->alike[slot->alike].from);
	env->alike[slot->alike].known = true;
	env->alike[slot->alike].dtype = t->datatype;
	env->alike[slot->alike].from = name;
	return 0;
}

/* N is a lower bound, so tensors may differ in it; but either all are empty or none is. */
static int rows_check(struct ep_env *env, const char *name, size_t size)
{
	const struct ep_sym_value *sym = &env->sym[EP_D_N];

	if (size < sym->value)
		return EP_BAD_ARG("%s: %s: has %zu rows, must have at least %zu (%s)", env->fn, name, size, sym->value,
				  sym->from);
	if (env->rows >= 0 && env->rows != (size > 0))
		return EP_BAD_ARG("%s: %s: is %s, but the tensors before it are not: all or none have rows", env->fn,
				  name, size ? "not empty" : "empty");
	env->rows = size > 0;
	return 0;
}

static int dim_check(struct ep_env *env, const struct ep_slot *slot, unsigned dim, size_t size)
{
	const char *name = env->names[slot->tensor];
	enum ep_sym id = (enum ep_sym)slot->dim[dim];
	struct ep_sym_value *sym = &env->sym[id];

	if (id == EP_D_N)
		return rows_check(env, name, size);
	if (slot->least && size >= sym->value)
		return 0;
	if (sym->known && size != sym->value)
		return EP_BAD_ARG("%s: %s: sizes[%u] is %zu, must be %s%s = %zu (%s)", env->fn, name, dim, size,
				  slot->least ? "at least " : "", sym_names[id], sym->value, sym->from);
	if (id == EP_D_T && size > env->tmax)
		return EP_BAD_ARG("%s: %s: sizes[%u] is %zu, more than max_dispatch_tokens_per_rank = %zu", env->fn,
				  name, dim, size, env->tmax);
	if (id != EP_D_T && !size)
		return EP_BAD_ARG("%s: %s: sizes[%u] is 0, but %s is at least 1", env->fn, name, dim, sym_names[id]);
	if (!sym->known)
		*sym = (struct ep_sym_value){ true, size, name };
	return 0;
}

static int shape_check(struct ep_env *env, const struct ep_slot *slot, const ncclEpTensor_t *t)
{
	const char *name = env->names[slot->tensor];
	int rc;

	if (t->ndim != slot->ndim)
		return EP_BAD_ARG("%s: %s: ndim is %u, must be %u for %s", env->fn, name, t->ndim, slot->ndim,
				  env->mode);
	if (!t->sizes)
		return EP_BAD_ARG("%s: %s: sizes is NULL, must point to %u numbers", env->fn, name, t->ndim);
	for (unsigned i = 0; i < slot->ndim; i++)
		if ((rc = dim_check(env, slot, i, t->sizes[i])))
			return rc;
	return 0;
}

static int data_check(const struct ep_env *env, const char *name, const ncclEpTensor_t *t)
{
	size_t each = ep_dtype_info(t->datatype)->size, bytes = each;

	/* From the last dimension on, so that the size of a row is checked even when there are none. */
	for (unsigned i = t->ndim; i-- > 0;)
		if (__builtin_mul_overflow(bytes, t->sizes[i], &bytes))
			return EP_BAD_ARG("%s: %s: the product of its sizes does not fit in 64 bits", env->fn, name);
	if (t->win_hdl) {
		if (t->win_offset % WINDOW_ALIGN)
			return EP_BAD_ARG("%s: %s: win_offset is %llu, must be a multiple of %d", env->fn, name,
					  (unsigned long long)t->win_offset, WINDOW_ALIGN);
		return 0;
	}
	if (!bytes)
		return 0;
	if (!t->data)
		return EP_BAD_ARG("%s: %s: data is NULL, but the tensor has %zu bytes and no window", env->fn, name,
				  bytes);
	if ((uintptr_t)t->data % each)
		return EP_BAD_ARG("%s: %s: data is not aligned to its %zu-byte elements", env->fn, name, each);
	return 0;
}

static int slot_check(struct ep_env *env, const struct ep_slot *slot, const ncclEpTensor_t *tensor)
{
	const char *name = env->names[slot->tensor];
	ncclEpTensor_t t;
	int rc;

	if (slot->need == EP_IGNORED || (!tensor && slot->need != EP_REQUIRED))
		return 0;
	if (slot->need == EP_FORBIDDEN)
		return EP_BAD_ARG("%s: %s must be NULL for %s", env->fn, name, env->mode);
	if (!tensor)
		return EP_BAD_ARG("%s: %s is NULL, but required for %s", env->fn, name, env->mode);
	if ((rc = ep_struct_take(EP_S_TENSOR, env->fn, name, tensor, &t)) || (rc = shape_check(env, slot, &t)) ||
	    (rc = dtype_check(env, slot, &t)))
		return rc;
	return data_check(env, name, &t);
}

int ep_slots_check(struct ep_env *env, const struct ep_slot *slot, size_t count, const ncclEpTensor_t *const *tensors)
{
	int rc;

	for (size_t i = 0; i < count; i++)
		if ((rc = slot_check(env, &slot[i], tensors[slot[i].tensor])))
			return rc;
	return 0;
}

int ep_check_tensor_alloc(unsigned ndim, ncclDataType_t datatype, const size_t *sizes,
			  const ncclEpTensorAllocConfig_t *config, ncclEpTensor_t *const *tensor)
{
	static const char fn[] = "ncclEpTensorAlloc";
	const struct ep_dtype *dtype = ep_dtype_info(datatype);
	ncclEpTensorAllocConfig_t cfg;
	size_t bytes;
	int rc;

	if ((rc = ep_check_pointer(fn, "tensor", tensor)))
		return rc;
	if (ndim < 1 || ndim > EP_TENSOR_MAX_DIMS)
		return EP_BAD_ARG("%s: ndim is %u, must be 1 to %d", fn, ndim, EP_TENSOR_MAX_DIMS);
	if (!dtype)
		return EP_BAD_ARG("%s: datatype is %d, which is no ncclDataType_t", fn, (int)datatype);
	if ((rc = ep_check_pointer(fn, "sizes", sizes)))
		return rc;
	bytes = dtype->size;
	for (unsigned i = ndim; i-- > 0;)
		if (__builtin_mul_overflow(bytes, sizes[i], &bytes))
			return EP_BAD_ARG("%s: sizes: the product of the sizes does not fit in 64 bits at sizes[%u] = "
					  "%zu",
					  fn, i, sizes[i]);
	return ep_struct_take_opt(EP_S_TENSOR_ALLOC_CONFIG, fn, "config", config, &cfg);
}
