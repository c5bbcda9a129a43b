/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA row of the device table, and what its files share.
 *
 * Every entry point pushes the device's context and pops it again, so that the caller's thread keeps its own, and
 * switches the thread to relaxed stream capture meanwhile: our allocations and queries must never invalidate a capture
 * in progress in another thread of the process (torch's).
 *
 * Rules for callers, observed on hardware:
 * - mem_free, pinned_free, close: the driver waits until every kernel of the device has ended, including one that spins
 *   on a peer. The library calls them only at the end of a group, after the barrier, or before its first launch.
 * - Windows are zeroed on a stream of the device's own; nothing here uses the legacy default stream by itself, which
 *   would wait for every blocking stream of the caller.
 * - Several ranks as threads on one GPU need as many hardware queues: CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment
 *   before the first CUDA call of the process, and one non-blocking stream per rank.
 */
#ifndef EP_KERNELS_CUDA_DEV_H
#define EP_KERNELS_CUDA_DEV_H

#include "kernels/cuda/driver.h"
#include "kernels/dev.h"

extern const struct ep_dev_ops ep_cuda_ops; /* device.c, or stub.c.in where there is no nvcc */

struct ep_cuda_kernel {
	struct CUfunc_st *fn;
	int threads_max;
	int shared_max; /* dynamic */
};

#define EP_CUDA_IMAGES 3 /* probe, ll, ht */

/* The embedded code, loaded into one context; shared by all devices that are open in it. */
struct ep_cuda_code {
	struct ep_cuda_code *next;
	struct CUctx_st *ctx;
	unsigned refs;
	struct CUmod_st *mod[EP_CUDA_IMAGES];
	struct ep_cuda_kernel kernel[EP_KERNELS];
	int shared_max; /* minimum over all kernels */
};

struct ep_cuda_dev {
	struct ep_dev dev; /* first: the table uses pointers to it */
	int device;	   /* the driver's number; not guaranteed to be the ordinal */
	struct CUctx_st *ctx;
	bool primary;		  /* ctx is the primary context, retained by us */
	bool vmm;		  /* shareable virtual memory handles */
	bool vmm_rdma;		  /* ... that a NIC may register */
	bool dmabuf;		  /* the driver exports memory as dma-buf */
	struct CUstream_st *work; /* for zeroing; non-blocking */
	struct ep_cuda_stage *stage;
	struct ep_cuda_code *code;
};

static inline struct ep_cuda_dev *ep_cuda(struct ep_dev *dev)
{
	return (struct ep_cuda_dev *)dev;
}

/* device.c: zeros where the driver does not say. In MIG mode that of the slice. */
void ep_cuda_uuid(int device, uint8_t uuid[16]);

struct ep_cuda_scope {
	unsigned mode;
};

/* scope.c */
int ep_cuda_enter(const struct ep_cuda_dev *dev, struct ep_cuda_scope *scope);
void ep_cuda_leave(const struct ep_cuda_scope *scope);

/*
 * module.c, with the context current. All code is loaded at once and every function made resident: loading one at its
 * first launch could wait for a running kernel, which may itself wait for that launch.
 */
int ep_cuda_code_get(const struct ep_cuda_dev *dev, struct ep_cuda_code **out);
void ep_cuda_code_put(struct ep_cuda_code *code);
void ep_cuda_code_forget(struct ep_cuda_code *code); /* the same when the context no longer exists */

/* stream.c, with the context current. */
int ep_cuda_wait(const struct ep_cuda_dev *dev, struct CUstream_st *stream, uint64_t deadline_ns);
int ep_cuda_capture_status(const struct ep_cuda_dev *dev, struct CUstream_st *stream, bool *out);

/* copy.c, with the context current: the pinned buffer through which pageable memory is copied. */
int ep_cuda_stage_open(struct ep_cuda_dev *dev);
void ep_cuda_stage_close(struct ep_cuda_dev *dev, bool context_alive);

int ep_cuda_launch(struct ep_dev *dev, const struct ep_launch *launch);
int ep_cuda_copy(struct ep_dev *dev, void *dst, const void *src, size_t n, void *stream);
int ep_cuda_fill(struct ep_dev *dev, void *dst, int byte, size_t n, void *stream);
int ep_cuda_sync(struct ep_dev *dev, void *stream, uint64_t deadline_ns);
int ep_cuda_peek(struct ep_dev *dev, const uint32_t *word, uint64_t deadline_ns, uint32_t *out);
int ep_cuda_stream_create(struct ep_dev *dev, void **out);
void ep_cuda_stream_destroy(struct ep_dev *dev, void *stream);
int ep_cuda_capturing(struct ep_dev *dev, void *stream, bool *out);

int ep_cuda_mem_alloc(struct ep_dev *dev, size_t size, struct ep_mem *out);
void ep_cuda_mem_free(struct ep_dev *dev, struct ep_mem *mem);
int ep_cuda_mem_export(struct ep_dev *dev, const struct ep_mem *mem, struct ep_export *out, int *fd);
int ep_cuda_mem_import(struct ep_dev *dev, const struct ep_export *from, int fd, struct ep_mem *out);
int ep_cuda_mem_dmabuf(struct ep_dev *dev, const struct ep_mem *mem, int *fd);
int ep_cuda_peer_open(struct ep_dev *dev, int peer_ordinal, const struct ep_mem *mem);
int ep_cuda_pinned_alloc(struct ep_dev *dev, size_t size, struct ep_pinned *out);
void ep_cuda_pinned_free(struct ep_dev *dev, struct ep_pinned *mem);
int ep_cuda_pin(struct ep_dev *dev, void *host, size_t size, struct ep_pinned *out);
void ep_cuda_unpin(struct ep_dev *dev, struct ep_pinned *mem);
int ep_cuda_address(struct ep_dev *dev, const void *ptr, void **out);
int ep_cuda_buffer_id(struct ep_dev *dev, const void *ptr, size_t bytes, struct ep_buffer *out);
int ep_cuda_user_export(struct ep_dev *dev, const struct ep_buffer *user, uint32_t piece, struct ep_export *out,
			int *fd);
int ep_cuda_user_import(struct ep_dev *dev, const struct ep_export *from, const int *fd, uint32_t n,
			struct ep_mem *out);

#endif
