/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device. A NULL stream runs in the calling thread, at once; a host stream (stream.h) in its thread. */
#include "kernels/host/host.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/gx/both.h"
#include "kernels/host/launch.h"
#include "kernels/host/stream.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/trace.h"

static int host_count(int *out)
{
	*out = 1;
	return 0;
}

static int host_current(int *ordinal)
{
	*ordinal = 0;
	return 0;
}

static int host_open(int ordinal, struct ep_dev **out)
{
	struct host_dev *host;

	if (ordinal != 0)
		return EP_FAIL(EP_DEV, EP_EARG, "invalid CPU device %d: there is only device 0", ordinal);
	host = EP_CALLOC(EP_DEV, 1, sizeof(*host), "the CPU device");
	if (!host)
		return -ENOMEM;
	pthread_mutex_init(&host->lock, NULL);
	host->dev = (struct ep_dev){
		.ops = ep_dev_row(EP_DEV_HOST),
		.warp = gx_host_shape.warp,
		.sms = gx_host_shape.sms,
		.shared_max = gx_host_shape.shared_max,
	};
	*out = &host->dev;
	return 0;
}

static void host_close(struct ep_dev *dev)
{
	struct host_dev *host = (struct host_dev *)dev;

	if (!host)
		return;
	pthread_mutex_destroy(&host->lock);
	free(host);
}

/* Enqueues fn(arg) on the stream, or runs it here; arg is freed by fn, or here if it never runs. */
static int host_run(void *stream, ep_host_stream_fn fn, void *arg)
{
	struct ep_host_stream_head *head;
	int rc;

	if (!stream) {
		fn(arg);
		return 0;
	}
	head = ep_host_stream_head(stream);
	if (!head)
		rc = EP_FAIL(EP_DEV, EP_EARG, "not a stream of the CPU device: pass NULL or a host stream");
	else
		rc = head->enqueue(stream, fn, arg);
	if (rc != 0)
		free(arg);
	return rc;
}

static int kernel_run(const struct ep_launch *launch, const void *args)
{
	struct ep_trace_run run;
	int rc;

	ep_trace_begin(&run, launch->trace, gx_host_kernels[launch->kernel].name);
	rc = gx_host_launch(gx_host_pick(launch->kernel), args, launch->grid, launch->block, launch->shared);
	ep_trace_end(&run);
	return rc;
}

struct host_launch {
	struct ep_launch launch;
	_Alignas(16) unsigned char args[];
};

static void launch_run(void *arg)
{
	struct host_launch *l = arg;

	/* Only an allocation can fail in it, and that is logged: a stream cannot return an error. */
	kernel_run(&l->launch, l->args);
	free(l);
}

static int launch_check(const struct ep_launch *launch)
{
	if ((unsigned)launch->kernel >= EP_KERNELS)
		return EP_FAIL(EP_DEV, EP_EINTERNAL, "invalid kernel number %d", (int)launch->kernel);
	if (launch->args_size != gx_host_kernels[launch->kernel].args_size)
		return EP_FAIL(EP_DEV, EP_EINTERNAL, "kernel %s takes %zu bytes of arguments, not %zu",
			       gx_host_kernels[launch->kernel].name, gx_host_kernels[launch->kernel].args_size,
			       launch->args_size);
	if (launch->grid == 0 || launch->block == 0 || launch->block > EP_THREADS_MAX ||
	    launch->block % gx_host_shape.warp != 0)
		return EP_FAIL(EP_DEV, EP_EINTERNAL, "kernel %s: invalid launch of %u blocks of %u threads",
			       gx_host_kernels[launch->kernel].name, launch->grid, launch->block);
	if (launch->shared > gx_host_shape.shared_max)
		return EP_FAIL(EP_DEV, EP_EINTERNAL, "kernel %s: %zu bytes of shared memory exceed the limit of %zu",
			       gx_host_kernels[launch->kernel].name, launch->shared, gx_host_shape.shared_max);
	return 0;
}

static int host_kernel(struct ep_dev *dev, const struct ep_launch *launch)
{
	struct host_launch *l;
	int rc = launch_check(launch);

	(void)dev;
	if (rc != 0)
		return rc;
	if (!launch->stream)
		return kernel_run(launch, launch->args);
	l = EP_CALLOC(EP_DEV, 1, sizeof(*l) + launch->args_size, "a kernel launch");
	if (!l)
		return -ENOMEM;
	l->launch = *launch;
	memcpy(l->args, launch->args, launch->args_size);
	return host_run(launch->stream, launch_run, l);
}

struct host_move {
	void *dst;
	const void *src; /* NULL: fill */
	int byte;
	size_t n;
};

static void move_run(void *arg)
{
	struct host_move *m = arg;

	if (m->src)
		memmove(m->dst, m->src, m->n);
	else
		memset(m->dst, m->byte, m->n);
	free(m);
}

static int host_move(const struct host_move *move, void *stream)
{
	struct host_move *m = EP_CALLOC(EP_DEV, 1, sizeof(*m), "a copy in a host stream");

	if (!m)
		return -ENOMEM;
	*m = *move;
	return host_run(stream, move_run, m);
}

static int host_copy(struct ep_dev *dev, void *dst, const void *src, size_t n, void *stream)
{
	(void)dev;
	if (n == 0)
		return 0;
	return host_move(&(struct host_move){ .dst = dst, .src = src, .n = n }, stream);
}

static int host_fill(struct ep_dev *dev, void *dst, int byte, size_t n, void *stream)
{
	(void)dev;
	if (n == 0)
		return 0;
	return host_move(&(struct host_move){ .dst = dst, .byte = byte, .n = n }, stream);
}

static int host_sync(struct ep_dev *dev, void *stream, uint64_t deadline_ns)
{
	struct ep_host_stream_head *head;

	(void)dev;
	if (!stream)
		return 0;
	head = ep_host_stream_head(stream);
	if (!head)
		return EP_FAIL(EP_DEV, EP_EARG, "not a stream of the CPU device: pass NULL or a host stream");
	return head->sync(stream, deadline_ns);
}

static int host_peek(struct ep_dev *dev, const uint32_t *word, uint64_t deadline_ns, uint32_t *out)
{
	(void)dev;
	(void)deadline_ns;
	*out = __atomic_load_n(word, __ATOMIC_ACQUIRE); /* A: pairs with R in gx_end */
	return 0;
}

static int host_stream_create(struct ep_dev *dev, void **out)
{
	(void)dev;
	return ep_host_stream_create(out);
}

static void host_stream_destroy(struct ep_dev *dev, void *stream)
{
	(void)dev;
	ep_host_stream_destroy(stream);
}

static int host_capturing(struct ep_dev *dev, void *stream, bool *out)
{
	(void)dev;
	(void)stream;
	*out = false;
	return 0;
}

/* All host memory is the device's. */
static int host_address(struct ep_dev *dev, const void *ptr, void **out)
{
	(void)dev;
	*out = (void *)(uintptr_t)ptr;
	return 0;
}

const struct ep_dev_ops ep_host_ops = {
	.name = "host",
	.kind = EP_DEV_HOST,
	.count = host_count,
	.current = host_current,
	.open = host_open,
	.close = host_close,
	.mem_alloc = host_mem_alloc,
	.mem_free = host_mem_free,
	.mem_export = host_mem_export,
	.mem_import = host_mem_import,
	.peer_open = host_peer_open,
	.pinned_alloc = host_pinned_alloc,
	.pinned_free = host_pinned_free,
	.pin = host_pin,
	.unpin = host_unpin,
	.launch = host_kernel,
	.copy = host_copy,
	.fill = host_fill,
	.sync = host_sync,
	.peek = host_peek,
	.stream_create = host_stream_create,
	.stream_destroy = host_stream_destroy,
	.capturing = host_capturing,
	.address = host_address,
	.buffer_id = host_buffer_id,
};
