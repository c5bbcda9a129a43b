/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/shim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_ep_ext.h"

int shim_fail(struct shim *shim, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(shim->text, sizeof(shim->text), format, args);
	va_end(args);
	return -1;
}

int shim_open(struct shim *shim, ncclComm_t comm, bool own_stream)
{
	int device = -1;

	*shim = (struct shim){ 0 };
	if (ncclCommCuDevice(comm, &device) != ncclSuccess)
		return shim_fail(shim, "ncclCommCuDevice failed");
	shim->ops = device < 0 ? &shim_host : &shim_cuda;
	return shim->ops->open(shim, device, own_stream);
}

void shim_close(struct shim *shim)
{
	if (shim->ops)
		shim->ops->close(shim);
	*shim = (struct shim){ 0 };
}

bool shim_is_gpu(const struct shim *shim)
{
	return shim->ops == &shim_cuda;
}

static int host_open(struct shim *shim, int device, bool own_stream)
{
	(void)device;
	if (own_stream && anyEpHostStreamCreate(&shim->stream) != ncclSuccess)
		return shim_fail(shim, "anyEpHostStreamCreate: %s", anyEpGetLastError());
	return 0;
}

static void host_close(struct shim *shim)
{
	anyEpHostStreamDestroy(shim->stream);
}

static int host_alloc(struct shim *shim, size_t size, void **out)
{
	void *at;

	/* Not rounded up, so that a sanitizer detects accesses past the end. */
	if (posix_memalign(&at, 256, size ? size : 1))
		return shim_fail(shim, "out of memory: %zu bytes", size);
	*out = at;
	return 0;
}

static void host_free(struct shim *shim, void *at)
{
	(void)shim;
	free(at);
}

static int host_sync(struct shim *shim, double seconds)
{
	(void)seconds; /* the stream has its own deadline */
	if (shim->stream && anyEpHostStreamSynchronize(shim->stream) != ncclSuccess)
		return shim_fail(shim, "anyEpHostStreamSynchronize: %s", anyEpGetLastError());
	return 0;
}

static int host_copy(struct shim *shim, void *to, const void *from, size_t size)
{
	if (host_sync(shim, 0))
		return -1;
	memcpy(to, from, size);
	return 0;
}

static int host_fill(struct shim *shim, void *to, int byte, size_t size)
{
	if (host_sync(shim, 0))
		return -1;
	memset(to, byte, size);
	return 0;
}

static int no_event_create(struct shim *shim, void **out)
{
	(void)out;
	return shim_fail(shim, "the CPU device has no events");
}

static int no_event_record(struct shim *shim, void *event)
{
	return no_event_create(shim, &event);
}

static int no_event_elapsed(struct shim *shim, void *from, void *to, double *us)
{
	(void)to, (void)us;
	return no_event_create(shim, &from);
}

static void nothing(struct shim *shim, void *what)
{
	(void)shim, (void)what;
}

static int no_capture(struct shim *shim)
{
	return shim_fail(shim, "the CPU device has no graphs");
}

static int no_graph(struct shim *shim, void **graph)
{
	(void)graph;
	return no_capture(shim);
}

static int no_launch(struct shim *shim, void *graph)
{
	(void)graph;
	return no_capture(shim);
}

static int no_filler(struct shim *shim, int sms)
{
	(void)sms;
	return shim_fail(shim, "the CPU device has no filler");
}

static int no_filler_stop(struct shim *shim)
{
	return no_filler(shim, 0);
}

const struct shim_ops shim_host = {
	.name = "host",
	.open = host_open,
	.close = host_close,
	.alloc = host_alloc,
	.free = host_free,
	.pinned_alloc = host_alloc,
	.pinned_free = host_free,
	.put = host_copy,
	.get = host_copy,
	.copy = host_copy,
	.fill = host_fill,
	.sync = host_sync,
	.event_create = no_event_create,
	.event_record = no_event_record,
	.event_elapsed = no_event_elapsed,
	.event_destroy = nothing,
	.capture_begin = no_capture,
	.capture_end = no_graph,
	.graph_launch = no_launch,
	.graph_destroy = nothing,
	.filler_start = no_filler,
	.filler_stop = no_filler_stop,
};
