/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of CUDA's driver for shim_gpus.c: two GPUs, contexts that are current, and streams that belong to the context
 * they were created in. Its name for the linker is libcuda.so.1, that of its file is not, so that no other program
 * takes it for the driver.
 */
#include <stddef.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define INVALID_HANDLE 400
#define NOT_SUPPORTED 801
#define GPUS 2

struct ctx {
	int device;
};

struct stream {
	const struct ctx *ctx;
	struct stream *next;
};

static struct ctx primary[GPUS] = { { 0 }, { 1 } };
static const struct ctx *current;
static struct stream *all;

/* What the test does not call. */
#define NONE(name)                    \
	EXPORT int name(void);        \
	int name(void)                \
	{                             \
		return NOT_SUPPORTED; \
	}

NONE(cuMemAlloc_v2)
NONE(cuMemFree_v2)
NONE(cuMemHostAlloc)
NONE(cuMemHostGetDevicePointer_v2)
NONE(cuMemFreeHost)
NONE(cuMemcpyAsync)
NONE(cuStreamDestroy_v2)
NONE(cuEventCreate)
NONE(cuEventRecord)
NONE(cuEventElapsedTime)
NONE(cuEventDestroy_v2)
NONE(cuStreamBeginCapture_v2)
NONE(cuStreamEndCapture)
NONE(cuGraphInstantiateWithFlags)
NONE(cuGraphLaunch)
NONE(cuGraphExecDestroy)
NONE(cuGraphDestroy)
NONE(cuModuleLoadData)
NONE(cuModuleUnload)
NONE(cuModuleGetFunction)
NONE(cuFuncSetAttribute)
NONE(cuLaunchKernel)

EXPORT int cuInit(unsigned flags);
EXPORT int cuGetErrorString(int error, const char **out);
EXPORT int cuDeviceGetCount(int *out);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDevicePrimaryCtxRetain(void **ctx, int device);
EXPORT int cuCtxSetCurrent(void *ctx);
EXPORT int cuStreamCreate(void **out, unsigned flags);
EXPORT int cuStreamQuery(void *stream);
EXPORT int cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t size, void *stream);

int cuInit(unsigned flags)
{
	(void)flags;
	return 0;
}

int cuGetErrorString(int error, const char **out)
{
	*out = error == INVALID_HANDLE ? "invalid resource handle" : "operation not supported";
	return 0;
}

int cuDeviceGetCount(int *out)
{
	*out = GPUS;
	return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return 0;
}

int cuDevicePrimaryCtxRetain(void **ctx, int device)
{
	*ctx = &primary[device];
	return 0;
}

int cuCtxSetCurrent(void *ctx)
{
	current = ctx;
	return 0;
}

int cuStreamCreate(void **out, unsigned flags)
{
	struct stream *stream = malloc(sizeof(*stream));

	(void)flags;
	if (!stream)
		return 2; /* CUDA_ERROR_OUT_OF_MEMORY */
	*stream = (struct stream){ current, all };
	all = stream;
	*out = stream;
	return 0;
}

int cuStreamQuery(void *stream)
{
	(void)stream;
	return 0;
}

/* As the driver: a stream of another context is an invalid handle. */
int cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t size, void *stream)
{
	(void)to;
	(void)byte;
	(void)size;
	return ((struct stream *)stream)->ctx == current ? 0 : INVALID_HANDLE;
}
