/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How libnccl_ep recognises communicators of the stand-in: by this symbol, in any loaded object. The calls have NCCL's
 * signatures, so that the caller has one table for both; they are the stand-in's functions even where a real NCCL in
 * the same process owns the global names.
 */
#ifndef EP_PLUGIN_STANDIN_QUERY_H
#define EP_PLUGIN_STANDIN_QUERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <nccl.h>

#define EP_STANDIN_QUERY_NAME "ncclEpStandinQuery"
#define EP_STANDIN_QUERY_VERSION 1

/* Append-only; version changes only when a member changes its meaning. */
struct ep_standin_query {
	uint32_t version;
	uint32_t size;
	/* Whether comm is a live communicator of the stand-in. Any pointer is valid: it is not dereferenced. */
	bool (*owns)(ncclComm_t comm);
	ncclResult_t (*count)(const ncclComm_t comm, int *out);
	ncclResult_t (*user_rank)(const ncclComm_t comm, int *out);
	ncclResult_t (*cu_device)(const ncclComm_t comm, int *out); /* -1: the host */
	ncclResult_t (*allgather)(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,
				  cudaStream_t stream);
	ncclResult_t (*async_error)(ncclComm_t comm, ncclResult_t *out);
	const char *(*error_string)(ncclResult_t result);
	ncclResult_t (*win_user_ptr)(ncclComm_t comm, ncclWindow_t win, void **out);
	/* 0 or a negative errno. Sets no last error: failing is a normal answer. */
	int (*window_info)(ncclWindow_t win, void **base, size_t *size);
	/* The ncclMemAlloc allocation that contains ptr, for another process to map: the caller closes fd, offset is
	 * that of ptr. -ENOENT: not from ncclMemAlloc; -ENOTSUP: this memory has no descriptor. */
	int (*mem_export)(const void *ptr, int *fd, uint64_t *offset, uint64_t *size);
	/* The same allocation by id: never 0, and never reused in the process. -ENOENT: not from ncclMemAlloc. */
	int (*mem_find)(const void *ptr, void **base, size_t *size, uint64_t *id);
	const char *(*last_error)(ncclComm_t comm);
	/* 0: why, a message, names a rank of comm that died or does not answer. -ENOENT: none is known. */
	int (*evidence)(ncclComm_t comm, char *why, size_t size);
	/* 0, and which rank the others waited for since `from` (CLOCK_MONOTONIC, ns), and is back */
	int (*waited)(ncclComm_t comm, uint64_t from, char *why, size_t size);
};

typedef const struct ep_standin_query *(*ep_standin_query_fn)(void);
__attribute__((visibility("default"))) const struct ep_standin_query *ncclEpStandinQuery(void);

#endif
