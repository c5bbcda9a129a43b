/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device table: everything the library needs from a GPU, or from the CPU device in place of one. A row is a const
 * struct of operations; kernels/table.c lists the rows. Missing operations are filled with stubs that return -ENOTSUP.
 * All functions return 0 or a negative errno and set the error message (util/error.h).
 */
#ifndef EP_KERNELS_DEV_H
#define EP_KERNELS_DEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ep_dev_ops;
struct ep_trace;

/* An open device. Rows extend it with their own members. */
struct ep_dev {
	const struct ep_dev_ops *ops;
	int ordinal;	   /* of this process: others may know the device by another number */
	unsigned warp;	   /* lanes of a warp */
	unsigned sms;	   /* multiprocessors this process may use: that many blocks are resident at once */
	unsigned sms_all;  /* of the whole device or MIG slice: MPS or a green context may leave fewer; 0: unknown */
	size_t shared_max; /* bytes of shared memory a block may ask for */
	bool nic_ordered;  /* kernels see a NIC's writes to the device's memory in the order they were made */
	bool nic_flush;	   /* after a CPU's store kernels may not yet see them: the NIC must flush before it */
	uint8_t uuid[16];  /* of the device or MIG slice; zeros: unknown */
	char pci[64];	   /* its directory in sysfs; "": unknown. Slices of a GPU share it */
};

/* Memory that peers can map: allocated here, or imported from a peer. */
struct ep_mem {
	void *ptr;
	size_t size;
	uint64_t priv[3]; /* private to the row */
};

/* Host memory the device reads and writes in place. */
struct ep_pinned {
	void *host;
	void *dev;
	size_t size;
};

enum ep_share {
	EP_SHARE_NONE, /* accessible in its own process only */
	EP_SHARE_FD,   /* by a file descriptor sent along with the struct */
	EP_SHARE_BLOB, /* by the blob alone */
};

/* How another process of the node opens a struct ep_mem; sent as bytes between ranks of the same build. */
struct ep_export {
	uint32_t share;
	uint32_t kind; /* enum ep_dev_kind */
	uint64_t size;
	uint8_t blob[64];
};

/* The allocation an address belongs to, or the row of them that the bytes behind the address lie in; an id is never
 * used again, not even after a free. */
struct ep_buffer {
	uint64_t id;
	void *base;
	size_t size;
	uint32_t pieces; /* exports that another process needs to open it */
};

enum ep_kernel {
#define EP_KERNEL(name, args) EP_K_##name,
#include "kernels/list.h"
#undef EP_KERNEL
	EP_KERNELS
};

struct ep_launch {
	enum ep_kernel kernel;
	unsigned grid, block;
	size_t shared;
	const void *args;
	size_t args_size;
	void *stream;
	uint32_t *counted;	/* in args, or NULL: set to 0 where the launch is captured into a graph */
	struct ep_trace *trace; /* NULL: not traced. A GPU's kernels are seen by their engines only */
};

enum ep_dev_kind { EP_DEV_HOST, EP_DEV_CUDA, EP_DEV_KINDS };

struct ep_dev_ops {
	const char *name;
	enum ep_dev_kind kind;
	int (*count)(int *out);	      /* number of devices; -ENODEV with the reason when there is no driver */
	int (*current)(int *ordinal); /* the calling thread's current device; -ENODEV when it has none */
	int (*open)(int ordinal, struct ep_dev **out);
	void (*close)(struct ep_dev *dev);

	/* Windows: zeroed, page-aligned, shareable. An imported mem is freed by mem_free too. The caller closes the
	 * descriptors of export and import; the mapping does not need them. */
	int (*mem_alloc)(struct ep_dev *dev, size_t size, struct ep_mem *out);
	void (*mem_free)(struct ep_dev *dev, struct ep_mem *mem);
	int (*mem_export)(struct ep_dev *dev, const struct ep_mem *mem, struct ep_export *out, int *fd);
	int (*mem_import)(struct ep_dev *dev, const struct ep_export *from, int fd, struct ep_mem *out);
	/* The memory as a dma-buf, for registration with a NIC; -ENOTSUP where there is none. fd as in export. */
	int (*mem_dmabuf)(struct ep_dev *dev, const struct ep_mem *mem, int *fd);
	/* Makes memory of another device of this process accessible here (threads as ranks, several GPUs). */
	int (*peer_open)(struct ep_dev *dev, int peer_ordinal, const struct ep_mem *mem);

	int (*pinned_alloc)(struct ep_dev *dev, size_t size, struct ep_pinned *out); /* zeroed */
	void (*pinned_free)(struct ep_dev *dev, struct ep_pinned *mem);
	/* The same for existing host memory, whole pages; unpin does not free it. */
	int (*pin)(struct ep_dev *dev, void *host, size_t size, struct ep_pinned *out);
	void (*unpin)(struct ep_dev *dev, struct ep_pinned *mem);

	int (*launch)(struct ep_dev *dev, const struct ep_launch *launch);
	/* Any direction, in stream order. Host memory that is not pinned works too, but not in a capture, and the call
	 * then returns when the copy is done, or fails after NCCL_EP_TIMEOUT_MS. On the CPU device all memory is the
	 * device's: both ends must stay valid until the stream has run the copy. */
	int (*copy)(struct ep_dev *dev, void *dst, const void *src, size_t n, void *stream);
	int (*fill)(struct ep_dev *dev, void *dst, int byte, size_t n, void *stream);
	int (*sync)(struct ep_dev *dev, void *stream, uint64_t deadline_ns); /* polls; -EP_ETIMEOUT past the deadline */
	/* A word of own memory that kernels add to, with acquire, whatever streams run. -EP_ETIMEOUT: no message. */
	int (*peek)(struct ep_dev *dev, const uint32_t *word, uint64_t deadline_ns, uint32_t *out);
	int (*stream_create)(struct ep_dev *dev, void **out); /* non-blocking, for the library's own work */
	void (*stream_destroy)(struct ep_dev *dev, void *stream);

	int (*capturing)(struct ep_dev *dev, void *stream, bool *out);

	/* Where kernels access memory that the caller knows by ptr: the device's own, or host memory pinned for it.
	 * -ENOENT, without a message, for pageable host memory. */
	int (*address)(struct ep_dev *dev, const void *ptr, void **out);
	bool knows_buffers; /* the next three work */
	/* -ENOENT, without a message, for memory the device does not know. */
	int (*buffer_id)(struct ep_dev *dev, const void *ptr, size_t bytes, struct ep_buffer *out);
	/* Exports a piece of memory that the user allocated, as buffer_id describes it. fd as in mem_export. -ENOTSUP,
	 * without a message, for memory that no other process can open: not a failure. */
	int (*user_export)(struct ep_dev *dev, const struct ep_buffer *user, uint32_t piece, struct ep_export *out,
			   int *fd);
	/* Maps the n pieces in a row; mem_free ends it. Without a message: the owner may have freed them. */
	int (*user_import)(struct ep_dev *dev, const struct ep_export *from, const int *fd, uint32_t n,
			   struct ep_mem *out);
};

/* Gives a row a stub for every operation it lacks (dev.c). */
void ep_dev_fill(struct ep_dev_ops *row);

/* The row of a kind (table.c); never NULL: open of a kind that was not built fails with the reason. */
const struct ep_dev_ops *ep_dev_row(enum ep_dev_kind kind);

/* The kind of this machine's GPUs: of the first row that has a device; where none has, the first GPU row. */
enum ep_dev_kind ep_dev_gpu_kind(void);

#endif
