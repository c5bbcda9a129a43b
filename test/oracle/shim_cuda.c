/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "test/oracle/shim.h"

typedef unsigned long long ptr_t; /* CUdeviceptr */

/* clang-format off */
#define SYMBOLS(X) \
	X(cuInit, (unsigned flags)) \
	X(cuGetErrorString, (int error, const char **out)) \
	X(cuDeviceGetCount, (int *out)) \
	X(cuDeviceGet, (int *device, int ordinal)) \
	X(cuDevicePrimaryCtxRetain, (void **ctx, int device)) \
	X(cuCtxSetCurrent, (void *ctx)) \
	X(cuMemAlloc_v2, (ptr_t *out, size_t size)) \
	X(cuMemFree_v2, (ptr_t at)) \
	X(cuMemHostAlloc, (void **out, size_t size, unsigned flags)) \
	X(cuMemHostGetDevicePointer_v2, (ptr_t *out, void *host, unsigned flags)) \
	X(cuMemFreeHost, (void *host)) \
	X(cuMemcpyAsync, (ptr_t to, ptr_t from, size_t size, void *stream)) \
	X(cuMemsetD8Async, (ptr_t to, unsigned char byte, size_t size, void *stream)) \
	X(cuStreamCreate, (void **out, unsigned flags)) \
	X(cuStreamQuery, (void *stream)) \
	X(cuStreamDestroy_v2, (void *stream)) \
	X(cuEventCreate, (void **out, unsigned flags)) \
	X(cuEventRecord, (void *event, void *stream)) \
	X(cuEventElapsedTime, (float *ms, void *from, void *to)) \
	X(cuEventDestroy_v2, (void *event)) \
	X(cuStreamBeginCapture_v2, (void *stream, unsigned mode)) \
	X(cuStreamEndCapture, (void *stream, void **graph)) \
	X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
	X(cuGraphLaunch, (void *exec, void *stream)) \
	X(cuGraphExecDestroy, (void *exec)) \
	X(cuGraphDestroy, (void *graph)) \
	X(cuModuleLoadData, (void **out, const void *image)) \
	X(cuModuleUnload, (void *mod)) \
	X(cuModuleGetFunction, (void **out, void *mod, const char *name)) \
	X(cuFuncSetAttribute, (void *fn, int attribute, int value)) \
	X(cuLaunchKernel, (void *fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
			   unsigned shared, void *stream, void **params, void **extra))
/* clang-format on */

static struct {
#define X(name, parameters) int(*name) parameters;
	SYMBOLS(X)
#undef X
	int devices; /* 0: no working driver */
} cu;

enum {
	CU_NOT_READY = 600,
	CU_STREAM_NON_BLOCKING = 1,
	CU_CAPTURE_THREAD_LOCAL = 1,
	CU_HOST_MAPPED = 2 | 1, /* portable too */
	CU_FUNC_SHARED_MAX = 8,
};

static void cuda_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	int devices = 0;

	if (!lib)
		return;
#define X(name, parameters)                             \
	*(void **)(void *)&cu.name = dlsym(lib, #name); \
	if (!cu.name)                                   \
		return;
	SYMBOLS(X)
#undef X
	if (!cu.cuInit(0) && !cu.cuDeviceGetCount(&devices))
		cu.devices = devices;
}

static bool wants_gpu;

void shim_choose(void)
{
	const char *want = getenv("NCCL_EP_DEVICE");

	wants_gpu = want && strcasecmp(want, "host") != 0;
}

void shim_bind(int seat)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	void *ctx = NULL;
	int device;

	if (!wants_gpu)
		return;
	pthread_once(&once, cuda_load);
	if (!cu.devices || cu.cuDeviceGet(&device, seat % cu.devices) || cu.cuDevicePrimaryCtxRetain(&ctx, device))
		return;
	cu.cuCtxSetCurrent(ctx);
}

struct cuda {
	int device;
	void *filler_module, *filler_stream;
	uint32_t *filler_flag; /* pinned */
};

static int check(struct shim *shim, const char *call, int error)
{
	const char *text = "?";

	if (!error)
		return 0;
	cu.cuGetErrorString(error, &text);
	return shim_fail(shim, "%s: %d, %s", call, error, text);
}

#define CALL(shim, fn, ...) check(shim, #fn, cu.fn(__VA_ARGS__))

/*
 * A GPU has few hardware queues, assigned to streams round robin: two ranks whose streams share one would deadlock. So
 * the streams of all ranks of a GPU are created together, before any others, and reused. Rank threads may be on several
 * GPUs, and a stream belongs to the context it was created in: the caller's, on its own GPU.
 */
enum { STREAMS = 16, GPUS = 64 };
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	void *stream[STREAMS];
	bool used[STREAMS];
} streams[GPUS];

static int stream_take(struct shim *shim, int device, void **out)
{
	int rc = device < GPUS ? 0 : shim_fail(shim, "GPU %d: more than %d in a process", device, (int)GPUS);

	pthread_mutex_lock(&streams_lock);
	for (int i = 0; !rc && i < STREAMS && !streams[device].stream[STREAMS - 1]; i++)
		rc = CALL(shim, cuStreamCreate, &streams[device].stream[i], CU_STREAM_NON_BLOCKING);
	for (int i = 0; !rc && i < STREAMS && !*out; i++)
		if (!streams[device].used[i]) {
			streams[device].used[i] = true;
			*out = streams[device].stream[i];
		}
	pthread_mutex_unlock(&streams_lock);
	if (!rc && !*out)
		rc = shim_fail(shim, "more than %d ranks of a process on GPU %d", (int)STREAMS, device);
	return rc;
}

static void stream_give(int device, const void *stream)
{
	pthread_mutex_lock(&streams_lock);
	for (int i = 0; stream && i < STREAMS; i++)
		if (streams[device].stream[i] == stream)
			streams[device].used[i] = false;
	pthread_mutex_unlock(&streams_lock);
}

static int cuda_open(struct shim *shim, int device, bool own_stream)
{
	struct cuda *cuda;

	(void)own_stream;
	if (!cu.devices)
		return shim_fail(shim, "the communicator is on a GPU, but libcuda.so.1 has too few symbols");
	cuda = calloc(1, sizeof(*cuda));
	if (!cuda)
		return shim_fail(shim, "out of memory");
	cuda->device = device;
	shim->priv = cuda;
	return stream_take(shim, device, (void **)&shim->stream);
}

static int cuda_filler_stop(struct shim *shim);

static void cuda_close(struct shim *shim)
{
	struct cuda *cuda = shim->priv;

	cuda_filler_stop(shim);
	if (cuda)
		stream_give(cuda->device, shim->stream);
	free(cuda);
}

static int cuda_alloc(struct shim *shim, size_t size, void **out)
{
	ptr_t at;

	if (CALL(shim, cuMemAlloc_v2, &at, size ? size : 1))
		return -1;
	*out = (void *)at;
	return 0;
}

static void cuda_free(struct shim *shim, void *at)
{
	(void)shim;
	cu.cuMemFree_v2((ptr_t)at);
}

static int cuda_pinned_alloc(struct shim *shim, size_t size, void **out)
{
	return CALL(shim, cuMemHostAlloc, out, size ? size : 1, CU_HOST_MAPPED);
}

static void cuda_pinned_free(struct shim *shim, void *at)
{
	(void)shim;
	cu.cuMemFreeHost(at);
}

static double seconds_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int stream_wait(struct shim *shim, void *stream, double seconds)
{
	double end = seconds_now() + seconds;
	int error;

	while ((error = cu.cuStreamQuery(stream)) == CU_NOT_READY)
		if (seconds_now() > end)
			return shim_fail(shim, "the stream is still busy after %.0f s", seconds);
	return check(shim, "cuStreamQuery", error);
}

static int cuda_sync(struct shim *shim, double seconds)
{
	return stream_wait(shim, shim->stream, seconds);
}

static int cuda_copy(struct shim *shim, void *to, const void *from, size_t size)
{
	return size ? CALL(shim, cuMemcpyAsync, (ptr_t)to, (ptr_t)from, size, shim->stream) : 0;
}

/* For pageable host memory the driver would wait for the stream inside the call, holding a lock that launches of other
 * ranks need. So wait before. */
static int cuda_move(struct shim *shim, void *to, const void *from, size_t size)
{
	return cuda_sync(shim, 60) || cuda_copy(shim, to, from, size) ? -1 : cuda_sync(shim, 60);
}

static int cuda_fill(struct shim *shim, void *to, int byte, size_t size)
{
	return size ? CALL(shim, cuMemsetD8Async, (ptr_t)to, (unsigned char)byte, size, shim->stream) : 0;
}

static int cuda_event_create(struct shim *shim, void **out)
{
	return CALL(shim, cuEventCreate, out, 0);
}

static int cuda_event_record(struct shim *shim, void *event)
{
	return CALL(shim, cuEventRecord, event, shim->stream);
}

static int cuda_event_elapsed(struct shim *shim, void *from, void *to, double *us)
{
	float ms = 0;

	if (CALL(shim, cuEventElapsedTime, &ms, from, to))
		return -1;
	*us = 1e3 * (double)ms;
	return 0;
}

static void cuda_event_destroy(struct shim *shim, void *event)
{
	(void)shim;
	cu.cuEventDestroy_v2(event);
}

static int cuda_capture_begin(struct shim *shim)
{
	return CALL(shim, cuStreamBeginCapture_v2, shim->stream, CU_CAPTURE_THREAD_LOCAL);
}

static int cuda_capture_end(struct shim *shim, void **out)
{
	void *graph = NULL, *exec = NULL;
	int rc = CALL(shim, cuStreamEndCapture, shim->stream, &graph);

	if (rc)
		return rc;
	rc = CALL(shim, cuGraphInstantiateWithFlags, &exec, graph, 0);
	cu.cuGraphDestroy(graph);
	if (!rc)
		*out = exec;
	return rc;
}

static int cuda_graph_launch(struct shim *shim, void *graph)
{
	return CALL(shim, cuGraphLaunch, graph, shim->stream);
}

static void cuda_graph_destroy(struct shim *shim, void *graph)
{
	(void)shim;
	if (graph)
		cu.cuGraphExecDestroy(graph);
}

/* Blocks that use most of an SM's shared memory, so one per SM, and spin until the flag is set. */
static const char filler_ptx[] =
	".version 7.0\n"
	".target sm_80\n"
	".address_size 64\n"
	".visible .entry filler(.param .u64 flag)\n"
	"{\n"
	"	.reg .u64 %rd<3>;\n"
	"	.reg .u32 %r<3>;\n"
	"	.reg .pred %p<2>;\n"
	"	ld.param.u64 %rd1, [flag];\n"
	"again:\n"
	"	ld.relaxed.sys.u32 %r1, [%rd1];\n"
	"	setp.eq.u32 %p1, %r1, 0;\n"
	"	@!%p1 bra end;\n"
	"	nanosleep.u32 200000;\n" /* without it polling over PCIe starves the other kernels */
	"	bra again;\n"
	"end:\n"
	"	ret;\n"
	"}\n";
#define FILLER_SHARED 163840 /* sm_80 has 164 KiB, sm_90 228: one block per SM, and little room for others */

static int cuda_filler_start(struct shim *shim, int sms)
{
	struct cuda *cuda = shim->priv;
	ptr_t flag = 0;
	void *params[] = { &flag }, *fn;

	if (CALL(shim, cuMemHostAlloc, (void **)&cuda->filler_flag, 64, CU_HOST_MAPPED))
		return -1;
	*cuda->filler_flag = 0;
	if (CALL(shim, cuMemHostGetDevicePointer_v2, &flag, cuda->filler_flag, 0) ||
	    stream_take(shim, cuda->device, &cuda->filler_stream) ||
	    CALL(shim, cuModuleLoadData, &cuda->filler_module, filler_ptx) ||
	    CALL(shim, cuModuleGetFunction, &fn, cuda->filler_module, "filler") ||
	    CALL(shim, cuFuncSetAttribute, fn, CU_FUNC_SHARED_MAX, FILLER_SHARED))
		return -1;
	return CALL(shim, cuLaunchKernel, fn, (unsigned)sms, 1, 1, 32, 1, 1, FILLER_SHARED, cuda->filler_stream, params,
		    NULL);
}

static int cuda_filler_stop(struct shim *shim)
{
	struct cuda *cuda = shim->priv;
	int rc = 0;

	if (!cuda || !cuda->filler_flag)
		return 0;
	__atomic_store_n(cuda->filler_flag, 1, __ATOMIC_RELEASE);
	if (cuda->filler_stream) {
		rc = stream_wait(shim, cuda->filler_stream, 10);
		stream_give(cuda->device, cuda->filler_stream);
	}
	if (cuda->filler_module)
		cu.cuModuleUnload(cuda->filler_module);
	cu.cuMemFreeHost(cuda->filler_flag);
	*cuda = (struct cuda){ .device = cuda->device };
	return rc;
}

const struct shim_ops shim_cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.pinned_alloc = cuda_pinned_alloc,
	.pinned_free = cuda_pinned_free,
	.put = cuda_move,
	.get = cuda_move,
	.copy = cuda_copy,
	.fill = cuda_fill,
	.sync = cuda_sync,
	.event_create = cuda_event_create,
	.event_record = cuda_event_record,
	.event_elapsed = cuda_event_elapsed,
	.event_destroy = cuda_event_destroy,
	.capture_begin = cuda_capture_begin,
	.capture_end = cuda_capture_end,
	.graph_launch = cuda_graph_launch,
	.graph_destroy = cuda_graph_destroy,
	.filler_start = cuda_filler_start,
	.filler_stop = cuda_filler_stop,
};
