/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in on a GPU: several ranks share it, as threads; memory, windows and collectives live on it. Runs against
 * the driver of a GPU machine. Exit 77 where there is no driver or no GPU.
 */
#include <dlfcn.h>

#include "plugin/standin/query.h"
#include "ranks.h"

#define N 3
#define BYTES ((size_t)3 << 20) /* several chunks of the staging memory */

typedef unsigned long long devptr;

static struct {
	unsigned (*cuInit)(unsigned);
	unsigned (*cuDeviceGetCount)(int *);
	unsigned (*cuDeviceGet)(int *, int);
	unsigned (*cuDevicePrimaryCtxRetain)(void **, int);
	unsigned (*cuCtxPushCurrent_v2)(void *);
	unsigned (*cuMemHostAlloc)(void **, size_t, unsigned);
	unsigned (*cuMemFreeHost)(void *);
	unsigned (*cuMemcpyAsync)(devptr, devptr, size_t, void *);
	unsigned (*cuStreamCreate)(void **, unsigned);
	unsigned (*cuStreamDestroy_v2)(void *);
	unsigned (*cuStreamQuery)(void *);
	unsigned (*cuStreamBeginCapture_v2)(void *, unsigned);
	unsigned (*cuStreamEndCapture)(void *, void **);
	unsigned (*cuGraphDestroy)(void *);
} cu;

static void *context;

static int driver_open(void)
{
	static const char *const names[] = { "cuInit",
					     "cuDeviceGetCount",
					     "cuDeviceGet",
					     "cuDevicePrimaryCtxRetain",
					     "cuCtxPushCurrent_v2",
					     "cuMemHostAlloc",
					     "cuMemFreeHost",
					     "cuMemcpyAsync",
					     "cuStreamCreate",
					     "cuStreamDestroy_v2",
					     "cuStreamQuery",
					     "cuStreamBeginCapture_v2",
					     "cuStreamEndCapture",
					     "cuGraphDestroy" };
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), **slot = (void **)&cu;
	int n = 0, device;

	_Static_assert(sizeof(names) == sizeof(cu), "a name for every function");
	if (!lib)
		return 77;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!(slot[i] = dlsym(lib, names[i])))
			return 1;
	if (cu.cuInit(0) || cu.cuDeviceGetCount(&n) || !n)
		return 77;
	return cu.cuDeviceGet(&device, 0) || cu.cuDevicePrimaryCtxRetain(&context, device) ? 1 : 0;
}

static int copy(void *dst, const void *src, size_t n, void *stream)
{
	if (cu.cuMemcpyAsync((devptr)(uintptr_t)dst, (devptr)(uintptr_t)src, n, stream))
		return 1;
	while (cu.cuStreamQuery(stream) == 600) /* not ready */
		;
	return (int)cu.cuStreamQuery(stream);
}

/* The sum of what the ranks send, int by int, in place and not, in a stream of the rank's own and in the default one.
 */
static int reduce_on_gpu(struct rank *me, void *stream, int *host, int *dev[2])
{
	size_t count = BYTES / sizeof(int);
	int bad = 0;

	for (int in_place = 0; in_place < 2; in_place++) {
		for (size_t i = 0; i < count; i++)
			host[i] = (int)i * (me->rank + 1);
		EXPECT(!copy(dev[0], host, BYTES, stream));
		EXPECT_OK(ncclAllReduce(dev[0], dev[!in_place], count, ncclInt32, ncclSum, me->comm, stream));
		memset(host, 0, BYTES);
		EXPECT(!copy(host, dev[!in_place], BYTES, stream));
		for (size_t i = 0; i < count && !bad; i++)
			EXPECT(host[i] == (int)i * (N * (N + 1) / 2));
	}
	return bad;
}

static int gather_on_gpu(struct rank *me, void *stream, int *host, int *dev[2])
{
	size_t count = BYTES / sizeof(int) / N;
	int bad = 0;

	for (size_t i = 0; i < count; i++)
		host[i] = (int)i ^ (me->rank << 24);
	EXPECT(!copy(dev[0], host, count * sizeof(int), stream));
	EXPECT_OK(ncclAllGather(dev[0], dev[1], count, ncclInt32, me->comm, stream));
	EXPECT_OK(ncclBroadcast(dev[0], dev[0], 1, ncclInt32, 1, me->comm, stream));
	EXPECT(!copy(host, dev[0], sizeof(int), stream));
	EXPECT(host[0] == 1 << 24);
	EXPECT(!copy(host, dev[1], BYTES, stream));
	for (size_t i = 0; i < count * N && !bad; i++)
		EXPECT(host[i] == ((int)(i % count) ^ (int)(i / count) << 24));
	return bad;
}

/* A captured stream is refused with a message. The capture survives that and the calls of the other ranks. */
static int capture_is_refused(struct rank *me, void *stream, int *dev[2])
{
	void *graph = NULL;
	int bad = 0;

	/* From here on the other ranks make no CUDA calls of their own. */
	EXPECT_OK(ncclAllReduce(dev[0], dev[0], 1, ncclInt32, ncclSum, me->comm, stream));
	if (me->rank == 0) {
		EXPECT(!cu.cuStreamBeginCapture_v2(stream, 0)); /* global mode: unsafe calls of any thread are errors */
		EXPECT(ncclAllReduce(dev[0], dev[0], 1, ncclInt32, ncclSum, me->comm, stream) == ncclInvalidUsage);
		EXPECT(strstr(ncclGetLastError(NULL), "captured"));
		EXPECT(!cu.cuStreamEndCapture(stream, &graph) && graph && !cu.cuGraphDestroy(graph));
	}
	EXPECT_OK(ncclAllReduce(dev[0], dev[0], 1, ncclInt32, ncclSum, me->comm, stream));
	return bad;
}

static int rank_on_gpu(struct rank *me)
{
	void *stream = NULL, *host = NULL, *user = NULL;
	ncclWindow_t win = NULL;
	int bad = 0, device = -7, *dev[2] = { NULL, NULL };

	EXPECT(!cu.cuCtxPushCurrent_v2(context));
	EXPECT(!cu.cuStreamCreate(&stream, 1) && !cu.cuMemHostAlloc(&host, BYTES, 3));
	EXPECT_OK(ncclCommCuDevice(me->comm, &device));
	EXPECT(device == 0);
	for (int i = 0; i < 2; i++)
		EXPECT_OK(ncclMemAlloc((void **)&dev[i], BYTES));
	if (bad)
		return bad;
	EXPECT_OK(ncclCommWindowRegister(me->comm, dev[0], BYTES, &win, NCCL_WIN_COLL_SYMMETRIC));
	EXPECT_OK(ncclWinGetUserPtr(me->comm, win, &user));
	EXPECT(user == dev[0]);
	bad += reduce_on_gpu(me, stream, host, dev) + gather_on_gpu(me, stream, host, dev);
	bad += reduce_on_gpu(me, NULL, host, dev);
	bad += capture_is_refused(me, stream, dev);
	for (int i = 0; i < 2; i++)
		EXPECT_OK(ncclMemFree(dev[i]));
	EXPECT(!cu.cuMemFreeHost(host) && !cu.cuStreamDestroy_v2(stream));
	return bad;
}

/* Without NCCL_EP_DEVICE the thread's own choice decides: none here, then the context's device. */
static int device_is_the_threads(void)
{
	ncclComm_t comm[3] = { NULL };
	int bad = 0, device = -7;

	unsetenv("NCCL_EP_DEVICE");
	EXPECT_OK(ncclCommInitAll(comm, 1, NULL));
	EXPECT_OK(ncclCommCuDevice(comm[0], &device));
	EXPECT(device == -1);
	EXPECT_OK(ncclCommDestroy(comm[0]));
	EXPECT(!cu.cuCtxPushCurrent_v2(context));
	EXPECT_OK(ncclCommInitAll(comm, 3, (const int[]){ 0, -1, 0 }));
	for (int i = 0; i < 3; i++) {
		EXPECT_OK(ncclCommCuDevice(comm[i], &device));
		EXPECT(device == (i == 1 ? -1 : 0));
		EXPECT_OK(ncclCommDestroy(comm[i]));
	}
	EXPECT(ncclCommInitAll(comm, 1, (const int[]){ 1000 }) == ncclInvalidArgument);
	EXPECT(comm[0] == NULL);
	return bad;
}

int main(void)
{
	int bad = driver_open();

	if (bad) {
		printf("skipped: no GPU\n");
		return bad;
	}
	setenv("NCCL_EP_DEVICE", "cuda", 1);
	bad = ranks_threads(N, rank_on_gpu, NULL) + device_is_the_threads();
	printf("standin_gpu: %s\n", bad ? "FAILED" : "passed");
	return bad ? 1 : 0;
}
