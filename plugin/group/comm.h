/* SPDX-License-Identifier: Apache-2.0 */
/* What the library needs of an ncclComm_t, whichever library made it: rank, size, device and a small allgather. */
#ifndef EP_PLUGIN_COMM_H
#define EP_PLUGIN_COMM_H

#include <stddef.h>

#include "kernels/dev.h"
#include "nccl_ep.h"

/* Calls of the library that owns the communicator; found by name at run time, never linked. */
struct ep_comm_calls {
	ncclResult_t (*count)(const ncclComm_t, int *);
	ncclResult_t (*rank)(const ncclComm_t, int *);
	ncclResult_t (*device)(const ncclComm_t, int *);
	ncclResult_t (*allgather)(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
	const char *(*error_string)(ncclResult_t);
	const char *(*last_error)(ncclComm_t);			   /* may be NULL */
	ncclResult_t (*async_error)(ncclComm_t, ncclResult_t *);   /* may be NULL */
	ncclResult_t (*window)(ncclComm_t, ncclWindow_t, void **); /* may be NULL */
	/* Of the stand-in, else NULL: see struct ep_standin_query. */
	int (*mem_find)(const void *ptr, void **base, size_t *size, uint64_t *id);
	int (*mem_export)(const void *ptr, int *fd, uint64_t *offset, uint64_t *size);
	int (*evidence)(ncclComm_t, char *, size_t);
	int (*waited)(ncclComm_t, uint64_t, char *, size_t);
	const char *owner; /* file of the library, for messages */
};

struct ep_comm {
	ncclComm_t handle;
	struct ep_comm_calls calls;
	int rank, nranks;
	enum ep_dev_kind kind;
	int ordinal;
};

/* Finds the owner: the stand-in first (it knows its own), then a loaded NCCL or RCCL, then the global symbols. */
int ep_comm_open(ncclComm_t comm, struct ep_comm *out);

/* For a call that failed with rc and the last error: a rank that the communicator knows to be dead or silent is named
 * before it. Returns rc. */
int ep_comm_explain(const struct ep_comm *comm, int rc);
/* After a timeout: 0, and in why which rank stood still since `from`, and is back; or -ENOENT. */
int ep_comm_waited(const struct ep_comm *comm, uint64_t from, int rc, char *why, size_t size);

/* Base of a window's memory, as this rank's device sees it. */
int ep_comm_window(const struct ep_comm *comm, ncclWindow_t win, void **out);

/* Collective over the communicator's own network; n bytes each, by the deadline. On the CPU without a device or stream,
 * and without memory of its own: a rank that has none left can still say so. */
int ep_comm_allgather(const struct ep_comm *comm, struct ep_dev *dev, void *stream, const void *mine, size_t n,
		      void *all, uint64_t deadline);

#endif
