/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/dev.h"

#include "util/error.h"

/* What a row that lacks an operation answers. Only operations with a device to name can be missing. */
#define MISSING(dev, what) EP_FAIL(EP_DEV, ENOTSUP, "the %s device cannot " what, (dev)->ops->name)

static int no_mem_alloc(struct ep_dev *dev, size_t size, struct ep_mem *out)
{
	(void)size;
	(void)out;
	return MISSING(dev, "allocate windows");
}

static void no_mem_free(struct ep_dev *dev, struct ep_mem *mem)
{
	(void)mem;
	MISSING(dev, "free windows");
}

static int no_mem_export(struct ep_dev *dev, const struct ep_mem *mem, struct ep_export *out, int *fd)
{
	(void)mem;
	(void)out;
	(void)fd;
	return MISSING(dev, "show its memory to other processes");
}

static int no_mem_import(struct ep_dev *dev, const struct ep_export *from, int fd, struct ep_mem *out)
{
	(void)from;
	(void)fd;
	(void)out;
	return MISSING(dev, "map memory of other processes");
}

static int no_mem_dmabuf(struct ep_dev *dev, const struct ep_mem *mem, int *fd)
{
	(void)mem;
	(void)fd;
	return MISSING(dev, "give its memory to a NIC");
}

static int no_peer_open(struct ep_dev *dev, int peer_ordinal, const struct ep_mem *mem)
{
	(void)peer_ordinal;
	(void)mem;
	return MISSING(dev, "reach the memory of another device");
}

static int no_pinned_alloc(struct ep_dev *dev, size_t size, struct ep_pinned *out)
{
	(void)size;
	(void)out;
	return MISSING(dev, "use host memory in place");
}

static void no_pinned_free(struct ep_dev *dev, struct ep_pinned *mem)
{
	(void)mem;
	MISSING(dev, "free pinned memory");
}

static int no_pin(struct ep_dev *dev, void *host, size_t size, struct ep_pinned *out)
{
	(void)host;
	(void)size;
	(void)out;
	return MISSING(dev, "use host memory in place");
}

static void no_unpin(struct ep_dev *dev, struct ep_pinned *mem)
{
	(void)mem;
	MISSING(dev, "let go of host memory");
}

static int no_launch(struct ep_dev *dev, const struct ep_launch *launch)
{
	(void)launch;
	return MISSING(dev, "run kernels");
}

static int no_copy(struct ep_dev *dev, void *dst, const void *src, size_t n, void *stream)
{
	(void)dst;
	(void)src;
	(void)n;
	(void)stream;
	return MISSING(dev, "copy");
}

static int no_fill(struct ep_dev *dev, void *dst, int byte, size_t n, void *stream)
{
	(void)dst;
	(void)byte;
	(void)n;
	(void)stream;
	return MISSING(dev, "fill memory");
}

static int no_sync(struct ep_dev *dev, void *stream, uint64_t deadline_ns)
{
	(void)stream;
	(void)deadline_ns;
	return MISSING(dev, "wait for a stream");
}

static int no_stream_create(struct ep_dev *dev, void **out)
{
	(void)out;
	return MISSING(dev, "make streams");
}

static void no_stream_destroy(struct ep_dev *dev, void *stream)
{
	(void)stream;
	MISSING(dev, "destroy streams");
}

static int no_capturing(struct ep_dev *dev, void *stream, bool *out)
{
	(void)stream;
	(void)out;
	return MISSING(dev, "tell whether a stream is being captured");
}

static int no_flush(struct ep_dev *dev)
{
	return MISSING(dev, "flush what a network card wrote");
}

static int no_buffer_id(struct ep_dev *dev, const void *ptr, struct ep_buffer *out)
{
	(void)ptr;
	(void)out;
	return MISSING(dev, "name the allocation of an address");
}

/* As the table says: an answer, not a failure. */
static int no_user_export(struct ep_dev *dev, const struct ep_buffer *user, struct ep_export *out, int *fd)
{
	(void)dev;
	(void)user;
	(void)out;
	(void)fd;
	return -ENOTSUP;
}

#define FILL(op)                           \
	do {                               \
		if (!row->op)              \
			row->op = no_##op; \
	} while (0)

void ep_dev_fill(struct ep_dev_ops *row)
{
	FILL(mem_alloc);
	FILL(mem_free);
	FILL(mem_export);
	FILL(mem_import);
	FILL(mem_dmabuf);
	FILL(peer_open);
	FILL(pinned_alloc);
	FILL(pinned_free);
	FILL(pin);
	FILL(unpin);
	FILL(launch);
	FILL(copy);
	FILL(fill);
	FILL(sync);
	FILL(stream_create);
	FILL(stream_destroy);
	FILL(capturing);
	FILL(flush);
	FILL(buffer_id);
	FILL(user_export);
}
