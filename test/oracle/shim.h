/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a test program needs from a device: memory, copies, a stream, and on a GPU events and graphs. Two
 * implementations: the CPU, and CUDA's driver, loaded at run time, so that programs build and run without it. All
 * functions return 0, or -1 with a message in shim->text.
 */
#ifndef EP_TEST_ORACLE_SHIM_H
#define EP_TEST_ORACLE_SHIM_H

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shim;

struct shim_ops {
	const char *name;
	int (*open)(struct shim *shim, int device, bool own_stream);
	void (*close)(struct shim *shim);
	int (*alloc)(struct shim *shim, size_t size, void **out);
	void (*free)(struct shim *shim, void *at);
	/* Host memory that kernels access by the same address. */
	int (*pinned_alloc)(struct shim *shim, size_t size, void **out);
	void (*pinned_free)(struct shim *shim, void *at);
	/* In stream order; put and get return when host memory may be reused. */
	int (*put)(struct shim *shim, void *to, const void *host, size_t size);
	int (*get)(struct shim *shim, void *host, const void *from, size_t size);
	int (*copy)(struct shim *shim, void *to, const void *from, size_t size);
	int (*fill)(struct shim *shim, void *to, int byte, size_t size);
	int (*sync)(struct shim *shim, double seconds);
	/* Times on the device; -1 where it has none (the CPU). */
	int (*event_create)(struct shim *shim, void **out);
	int (*event_record)(struct shim *shim, void *event);
	int (*event_elapsed)(struct shim *shim, void *from, void *to, double *us);
	void (*event_destroy)(struct shim *shim, void *event);
	int (*capture_begin)(struct shim *shim);
	int (*capture_end)(struct shim *shim, void **graph);
	int (*graph_launch)(struct shim *shim, void *graph);
	void (*graph_destroy)(struct shim *shim, void *graph);
	/* A kernel that occupies `sms` SMs until it is stopped. */
	int (*filler_start)(struct shim *shim, int sms);
	int (*filler_stop)(struct shim *shim);
};

struct shim {
	const struct shim_ops *ops;
	cudaStream_t stream;
	void *priv;
	char text[256];
};

extern const struct shim_ops shim_host, shim_cuda;

/* Sets shim->text; always -1. */
int shim_fail(struct shim *shim, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Before shim_bind, while the process has one thread: other threads may set variables later. */
void shim_choose(void);

/*
 * Before the thread's first communicator: makes a GPU current for it where there is one and NCCL_EP_DEVICE is cuda or
 * auto. Not where the variable is unset: that would start the driver in every rank process, a second each, for tests of
 * the CPU device too. The seats of a machine share its GPUs evenly.
 */
void shim_bind(int seat);

/* The device of a communicator; device -1 is the CPU. own_stream: on the CPU a host stream, else the calling thread;
 * a GPU always gets a non-blocking stream of its own. */
int shim_open(struct shim *shim, ncclComm_t comm, bool own_stream);
void shim_close(struct shim *shim);

bool shim_is_gpu(const struct shim *shim);

#endif
