/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "kernels/cuda/cuda_dev.h"
#include "kernels/gx/both.h"
#include "util/error.h"

/* Each one's kernels.cu, compiled by nvcc and embedded by embed.sh. */
extern const unsigned char ep_cuda_probe[], ep_cuda_ll[], ep_cuda_ht[];
static const unsigned char *const images[EP_CUDA_IMAGES] = { ep_cuda_probe, ep_cuda_ll, ep_cuda_ht };

static const char *const names[EP_KERNELS] = {
#define EP_KERNEL(name, args) [EP_K_##name] = EP_KERNEL_NAME(name),
#include "kernels/list.h"
#undef EP_KERNEL
};

static const unsigned char image_of[EP_KERNELS] = {
#define EP_KERNEL(name, args) [EP_K_##name] = 0,
#include "kernels/probe/list.h"
#undef EP_KERNEL
#define EP_KERNEL(name, args) [EP_K_##name] = 1,
#include "kernels/ll/list.h"
#undef EP_KERNEL
#define EP_KERNEL(name, args) [EP_K_##name] = 2,
#include "kernels/ht/list.h"
#undef EP_KERNEL
};

/* Rank threads of one process share a context, and its code is loaded once. Not just to save memory: while the first
 * rank's kernel waits for the second rank, loading might wait for that kernel. Process-wide because contexts are. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_cuda_code *loaded;

/* Under lazy loading (the default since CUDA 12.2) a function may not be loaded when its handle is known: cuFuncLoad
 * loads it where the driver has it, querying its attributes on older drivers. */
static int function_open(struct CUmod_st *mod, const char *name, int shared_optin, struct ep_cuda_kernel *k)
{
	int fixed = 0, regs = 0, local = 0, binary = 0, rc;
	const struct {
		unsigned id;
		int *out;
	} wanted[] = { { EP_CU_FN_SHARED_STATIC, &fixed },
		       { EP_CU_FN_THREADS_MAX, &k->threads_max },
		       { EP_CU_FN_REGS, &regs },
		       { EP_CU_FN_LOCAL, &local },
		       { EP_CU_FN_BINARY, &binary } };

	if ((rc = EP_CU(cuModuleGetFunction, (&k->fn, mod, name), "for kernel %s", name)))
		return rc;
	if (ep_cu.cuFuncLoad && (rc = EP_CU(cuFuncLoad, (k->fn), "for kernel %s", name)))
		return rc;
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		if ((rc = EP_CU(cuFuncGetAttribute, (wanted[i].out, wanted[i].id, k->fn), "for kernel %s", name)))
			return rc;
	k->shared_max = shared_optin - fixed;
	EP_TRACE(EP_DEV,
		 "kernel %s: sm_%d, %d registers, %d bytes of shared and %d of local memory, at most %d threads", name,
		 binary, regs, fixed, local, k->threads_max);
	return EP_CU(cuFuncSetAttribute, (k->fn, EP_CU_FN_SHARED_DYNAMIC_MAX, k->shared_max),
		     "when raising shared memory of kernel %s to %d bytes", name, k->shared_max);
}

static void images_unload(const struct ep_cuda_code *code)
{
	for (int i = 0; i < EP_CUDA_IMAGES; i++)
		if (code->mod[i])
			EP_CU_NOTE(cuModuleUnload, (code->mod[i]));
}

static int code_load(const struct ep_cuda_dev *dev, struct ep_cuda_code **out)
{
	struct ep_cuda_code *code = EP_CALLOC(EP_DEV, 1, sizeof(*code), "the CUDA kernels of a context");
	int rc;

	if (!code)
		return -ENOMEM;
	code->ctx = dev->ctx;
	if ((rc = EP_CU(cuDeviceGetAttribute, (&code->shared_max, EP_CU_DEV_SHARED_OPTIN, dev->device), "on GPU %d",
			dev->dev.ordinal)))
		goto free_code;
	for (int i = 0; i < EP_CUDA_IMAGES; i++)
		if ((rc = EP_CU(cuModuleLoadData, (&code->mod[i], images[i]), "for GPU %d", dev->dev.ordinal)))
			goto unload;
	for (int k = 0, optin = code->shared_max; k < EP_KERNELS; k++) {
		if ((rc = function_open(code->mod[image_of[k]], names[k], optin, &code->kernel[k])))
			goto unload;
		if (code->kernel[k].shared_max < code->shared_max)
			code->shared_max = code->kernel[k].shared_max;
	}
	*out = code;
	return 0;
unload:
	images_unload(code);
free_code:
	free(code);
	return rc;
}

int ep_cuda_code_get(const struct ep_cuda_dev *dev, struct ep_cuda_code **out)
{
	struct ep_cuda_code *code;
	int rc = 0;

	pthread_mutex_lock(&lock);
	for (code = loaded; code && code->ctx != dev->ctx; code = code->next)
		;
	if (!code && !(rc = code_load(dev, &code))) {
		code->next = loaded;
		loaded = code;
	}
	if (!rc) {
		code->refs++;
		*out = code;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static void code_drop(struct ep_cuda_code *code, bool unload)
{
	pthread_mutex_lock(&lock);
	if (!--code->refs) {
		struct ep_cuda_code **at = &loaded;

		while (*at != code)
			at = &(*at)->next;
		*at = code->next;
		if (unload)
			images_unload(code);
		free(code);
	}
	pthread_mutex_unlock(&lock);
}

void ep_cuda_code_put(struct ep_cuda_code *code)
{
	code_drop(code, true);
}

void ep_cuda_code_forget(struct ep_cuda_code *code)
{
	code_drop(code, false);
}
