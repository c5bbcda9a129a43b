/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How libnccl_ep recognises the stand-in's communicators: it finds this one symbol in whatever object is loaded and
 * asks. The calls have NCCL's own signatures, so that the caller keeps one table for both; they are the stand-in's
 * own functions, also where a real NCCL in the same process owns the global names.
 */
#ifndef EP_PLUGIN_STANDIN_QUERY_H
#define EP_PLUGIN_STANDIN_QUERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <nccl.h>

#define EP_STANDIN_QUERY_NAME "ncclEpStandinQuery"
#define EP_STANDIN_QUERY_VERSION 1

/* Append-only; version counts up only when a member changes its meaning. */
struct ep_standin_query {
	uint32_t version;
	uint32_t size;
	/* Whether comm is a live communicator of the stand-in. Never dereferences it: any pointer may be asked about.
	 */
	bool (*owns)(ncclComm_t comm);
	ncclResult_t (*count)(const ncclComm_t comm, int *out);
	ncclResult_t (*user_rank)(const ncclComm_t comm, int *out);
	ncclResult_t (*cu_device)(const ncclComm_t comm, int *out); /* -1: the host */
	ncclResult_t (*allgather)(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,
				  cudaStream_t stream);
	ncclResult_t (*async_error)(ncclComm_t comm, ncclResult_t *out);
	const char *(*error_string)(ncclResult_t result);
	ncclResult_t (*win_user_ptr)(ncclComm_t comm, ncclWindow_t win, void **out);
	/* 0 or a negative errno, without a sentence: "no" is a normal answer here. */
	int (*window_info)(ncclWindow_t win, void **base, size_t *size);
	/* The allocation of ncclMemAlloc that ptr lies in, for another process to map: fd is the caller's to close,
	 * offset is ptr's place in it. -ENOENT: not such memory; -ENOTSUP: this memory has no descriptor. */
	int (*mem_export)(const void *ptr, int *fd, uint64_t *offset, uint64_t *size);
	/* The same allocation by name: no two allocations of the process ever have the same id, and it is never 0.
	 * -ENOENT: not such memory. */
	int (*mem_find)(const void *ptr, void **base, size_t *size, uint64_t *id);
};

typedef const struct ep_standin_query *(*ep_standin_query_fn)(void);
__attribute__((visibility("default"))) const struct ep_standin_query *ncclEpStandinQuery(void);

#endif
