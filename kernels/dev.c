/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/dev.h"

#include "util/error.h"

/* Stubs for operations that a row lacks. Only operations that take a device can be missing. */
#define MISSING(dev, what) EP_FAIL(EP_DEV, ENOTSUP, "the %s device does not support " what, (dev)->ops->name)

static int no_mem_alloc(struct ep_dev *dev, size_t size, struct ep_mem *out)
{
	(void)size;
	(void)out;
	return MISSING(dev, "allocating windows");
}

static void no_mem_free(struct ep_dev *dev, struct ep_mem *mem)
{
	(void)mem;
	MISSING(dev, "freeing windows");
}

static int no_mem_export(struct ep_dev *dev, const struct ep_mem *mem, struct ep_export *out, int *fd)
{
	(void)mem;
	(void)out;
	(void)fd;
	return MISSING(dev, "exporting memory to other processes");
}

static int no_mem_import(struct ep_dev *dev, const struct ep_export *from, int fd, struct ep_mem *out)
{
	(void)from;
	(void)fd;
	(void)out;
	return MISSING(dev, "importing memory of other processes");
}

static int no_mem_dmabuf(struct ep_dev *dev, const struct ep_mem *mem, int *fd)
{
	(void)mem;
	(void)fd;
	return MISSING(dev, "exporting memory to a NIC");
}

static int no_peer_open(struct ep_dev *dev, int peer_ordinal, const struct ep_mem *mem)
{
	(void)peer_ordinal;
	(void)mem;
	return MISSING(dev, "access to the memory of another device");
}

static int no_pinned_alloc(struct ep_dev *dev, size_t size, struct ep_pinned *out)
{
	(void)size;
	(void)out;
	return MISSING(dev, "pinned host memory");
}

static void no_pinned_free(struct ep_dev *dev, struct ep_pinned *mem)
{
	(void)mem;
	MISSING(dev, "freeing pinned memory");
}

static int no_pin(struct ep_dev *dev, void *host, size_t size, struct ep_pinned *out)
{
	(void)host;
	(void)size;
	(void)out;
	return MISSING(dev, "pinned host memory");
}

static void no_unpin(struct ep_dev *dev, struct ep_pinned *mem)
{
	(void)mem;
	MISSING(dev, "unpinning host memory");
}

static int no_launch(struct ep_dev *dev, const struct ep_launch *launch)
{
	(void)launch;
	return MISSING(dev, "kernel launches");
}

static int no_copy(struct ep_dev *dev, void *dst, const void *src, size_t n, void *stream)
{
	(void)dst;
	(void)src;
	(void)n;
	(void)stream;
	return MISSING(dev, "copies");
}

static int no_fill(struct ep_dev *dev, void *dst, int byte, size_t n, void *stream)
{
	(void)dst;
	(void)byte;
	(void)n;
	(void)stream;
	return MISSING(dev, "filling memory");
}

static int no_sync(struct ep_dev *dev, void *stream, uint64_t deadline_ns)
{
	(void)stream;
	(void)deadline_ns;
	return MISSING(dev, "waiting for a stream");
}

static int no_peek(struct ep_dev *dev, const uint32_t *word, uint64_t deadline_ns, uint32_t *out)
{
	(void)word;
	(void)deadline_ns;
	(void)out;
	return MISSING(dev, "reading what a running kernel writes");
}

static int no_stream_create(struct ep_dev *dev, void **out)
{
	(void)out;
	return MISSING(dev, "creating streams");
}

static void no_stream_destroy(struct ep_dev *dev, void *stream)
{
	(void)stream;
	MISSING(dev, "destroying streams");
}

static int no_capturing(struct ep_dev *dev, void *stream, bool *out)
{
	(void)stream;
	(void)out;
	return MISSING(dev, "stream capture");
}

static int no_address(struct ep_dev *dev, const void *ptr, void **out)
{
	(void)ptr;
	(void)out;
	return MISSING(dev, "resolving an address");
}

static int no_buffer_id(struct ep_dev *dev, const void *ptr, size_t bytes, struct ep_buffer *out)
{
	(void)ptr;
	(void)bytes;
	(void)out;
	return MISSING(dev, "resolving the allocation of an address");
}

/* Not a failure, see dev.h. */
static int no_user_export(struct ep_dev *dev, const struct ep_buffer *user, uint32_t piece, struct ep_export *out,
			  int *fd)
{
	(void)dev;
	(void)user;
	(void)piece;
	(void)out;
	(void)fd;
	return -ENOTSUP;
}

/* A row that knows no buffers shares its windows only. */
static int no_user_import(struct ep_dev *dev, const struct ep_export *from, const int *fd, uint32_t n,
			  struct ep_mem *out)
{
	return n == 1 ? dev->ops->mem_import(dev, from, *fd, out) : -ENOTSUP;
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
	FILL(peek);
	FILL(stream_create);
	FILL(stream_destroy);
	FILL(capturing);
	FILL(address);
	FILL(buffer_id);
	FILL(user_export);
	FILL(user_import);
}
