/* SPDX-License-Identifier: Apache-2.0 */
/* Work in streams: launch, wait, capture. A NULL stream is the legacy default stream of the context. */
#include <time.h>

#include "kernels/args.h"
#include "kernels/cuda/cuda_dev.h"
#include "util/clock.h"
#include "util/error.h"

static const size_t args_sizes[EP_KERNELS] = {
#define EP_KERNEL(name, args) [EP_K_##name] = sizeof(struct args),
#include "kernels/list.h"
#undef EP_KERNEL
};

static int launch_check(const struct ep_cuda_dev *dev, const struct ep_launch *l)
{
	const struct ep_cuda_kernel *k;

	if ((unsigned)l->kernel >= EP_KERNELS || !l->grid || !l->block || !l->args)
		return EP_FAIL(EP_DEV, EP_EINTERNAL, "invalid launch of kernel %d with %u blocks of %u threads",
			       (int)l->kernel, l->grid, l->block);
	k = &dev->code->kernel[l->kernel];
	if (l->args_size != args_sizes[l->kernel])
		return EP_FAIL(EP_DEV, EP_EINTERNAL, "kernel %d takes %zu bytes of arguments, got %zu", (int)l->kernel,
			       args_sizes[l->kernel], l->args_size);
	if (l->block > (unsigned)k->threads_max || l->shared > (size_t)k->shared_max)
		return EP_FAIL(EP_DEV, EP_EUSAGE,
			       "kernel %d on GPU %d: %u threads and %zu bytes of shared memory per block exceed its "
			       "limits of %d and %d",
			       (int)l->kernel, dev->dev.ordinal, l->block, l->shared, k->threads_max, k->shared_max);
	return 0;
}

/* The driver copies the arguments before it returns. */
static int launch(const struct ep_cuda_dev *dev, const struct ep_launch *l)
{
	struct CUfunc_st *fn = dev->code->kernel[l->kernel].fn;
	void *params[] = { (void *)(uintptr_t)l->args };
	unsigned shared = (unsigned)l->shared;

	return EP_CU(cuLaunchKernel, (fn, l->grid, 1, 1, l->block, 1, 1, shared, l->stream, params, NULL),
		     "for kernel %d on GPU %d, %u blocks", (int)l->kernel, dev->dev.ordinal, l->grid);
}

/* A stream that the query fails for cannot be launched on either, which is an error. */
static uint32_t countable(struct CUstream_st *stream)
{
	unsigned status = EP_CU_CAPTURE_STATUS_NONE;

	return !ep_cu.cuStreamIsCapturing(stream, &status) && status == EP_CU_CAPTURE_STATUS_NONE;
}

/* Launches are legal in every capture mode, so only the context is switched: this is the only hot entry point. */
int ep_cuda_launch(struct ep_dev *base, const struct ep_launch *l)
{
	struct ep_cuda_dev *dev = ep_cuda(base);
	struct CUctx_st *popped;
	int rc = EP_CU(cuCtxPushCurrent_v2, (dev->ctx), "for GPU %d", base->ordinal);

	if (rc)
		return rc;
	if (l->counted && !countable(l->stream))
		*l->counted = 0;
	if (!(rc = launch_check(dev, l)))
		rc = launch(dev, l);
	EP_CU_NOTE(cuCtxPopCurrent_v2, (&popped));
	return rc;
}

/* A query costs a fraction of a microsecond, and most waits are short: poll for a while, then sleep in between for up
 * to 200 us. cuStreamSynchronize has no deadline. */
int ep_cuda_wait(const struct ep_cuda_dev *dev, struct CUstream_st *stream, uint64_t deadline_ns)
{
	struct timespec nap = { .tv_nsec = 10000 };

	for (unsigned asked = 0;; asked++) {
		unsigned result = ep_cu.cuStreamQuery(stream);

		if (result != EP_CU_NOT_READY)
			return ep_cu_check_(result, "cuStreamQuery", __FILE__, __LINE__, "when waiting for GPU %d",
					    dev->dev.ordinal);
		if (ep_now_ns() >= deadline_ns)
			return EP_FAIL(EP_DEV, EP_ETIMEOUT,
				       "GPU %d: the stream did not finish in time; a kernel may be waiting for a rank "
				       "that "
				       "has not made the same call",
				       dev->dev.ordinal);
		if (asked < 200)
			continue;
		nanosleep(&nap, NULL);
		if (nap.tv_nsec < 200000)
			nap.tv_nsec += nap.tv_nsec / 4;
	}
}

int ep_cuda_capture_status(const struct ep_cuda_dev *dev, struct CUstream_st *stream, bool *out)
{
	unsigned status, result = ep_cu.cuStreamIsCapturing(stream, &status);

	if (result == EP_CU_CAPTURE_IMPLICIT)
		return EP_FAIL(EP_DEV, EP_EUSAGE,
			       "GPU %d: the default stream cannot be used while a stream that waits for it is "
			       "captured: "
			       "pass a non-default stream",
			       dev->dev.ordinal);
	if (result)
		return ep_cu_check_(result, "cuStreamIsCapturing", __FILE__, __LINE__, "on GPU %d", dev->dev.ordinal);
	*out = status != EP_CU_CAPTURE_STATUS_NONE;
	return 0;
}

int ep_cuda_sync(struct ep_dev *base, void *stream, uint64_t deadline_ns)
{
	struct ep_cuda_dev *dev = ep_cuda(base);
	struct ep_cuda_scope scope;
	bool capturing = false;
	int rc = ep_cuda_enter(dev, &scope);

	if (rc)
		return rc;
	/* Querying a captured stream would invalidate the capture. */
	if (!(rc = ep_cuda_capture_status(dev, stream, &capturing)))
		rc = capturing ? EP_FAIL(EP_DEV, EP_EUSAGE, "GPU %d: cannot wait for a stream that is being captured",
					 base->ordinal)
			       : ep_cuda_wait(dev, stream, deadline_ns);
	ep_cuda_leave(&scope);
	return rc;
}

int ep_cuda_stream_create(struct ep_dev *base, void **out)
{
	struct CUstream_st *stream;
	struct ep_cuda_scope scope;
	int rc = ep_cuda_enter(ep_cuda(base), &scope);

	if (rc)
		return rc;
	rc = EP_CU(cuStreamCreate, (&stream, EP_CU_STREAM_NON_BLOCKING), "on GPU %d", base->ordinal);
	if (!rc)
		*out = stream;
	ep_cuda_leave(&scope);
	return rc;
}

void ep_cuda_stream_destroy(struct ep_dev *base, void *stream)
{
	struct ep_cuda_scope scope;

	if (!stream || ep_cuda_enter(ep_cuda(base), &scope))
		return;
	EP_CU_NOTE(cuStreamDestroy_v2, (stream));
	ep_cuda_leave(&scope);
}

int ep_cuda_capturing(struct ep_dev *base, void *stream, bool *out)
{
	struct ep_cuda_scope scope;
	int rc = ep_cuda_enter(ep_cuda(base), &scope);

	if (rc)
		return rc;
	rc = ep_cuda_capture_status(ep_cuda(base), stream, out);
	ep_cuda_leave(&scope);
	return rc;
}
