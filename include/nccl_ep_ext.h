/* SPDX-License-Identifier: Apache-2.0 */
/* What this library offers beyond NCCL EP's interface. A program that uses it runs on this library only. */
#ifndef NCCL_EP_EXT_H_
#define NCCL_EP_EXT_H_

#include "nccl_ep.h"

/* What ncclEpGetAsyncError puts out. The first two are NCCL EP's. */
typedef enum {
	NCCL_EP_ASYNC_NONE = 0,
	NCCL_EP_ASYNC_TIMEOUT = 1,    /* a rank did not answer in time; with enable_mask it is masked now */
	NCCL_EP_ASYNC_BAD_EXPERT = 2, /* an expert id outside [-1, num_experts) was dropped */
	NCCL_EP_ASYNC_LIMIT = 3,      /* more rows than max_recv_tokens_per_rank (TRAP), or a third staged operation */
	NCCL_EP_ASYNC_REMOTE = 4,     /* another rank failed or went away */
	NCCL_EP_ASYNC_OTHER = 5,      /* the sentence of the next call on the group says what */
} ncclEpAsyncCode_t;

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* One sentence on the last failure of the calling thread, "" before the first; valid until the thread's next one. */
const char *ncclEpGetLastError(void);

/* Bytes of the windows this rank has for the group now: what peers write into, beside the caller's tensors. */
ncclResult_t ncclEpGroupWindowBytes(ncclEpGroup_t group, size_t *bytes);

/* What a rank's engines have given to the net for the group so far; all zero in a group of one node. */
typedef struct {
	uint64_t puts;	  /* after neighbours were joined */
	uint64_t bytes;	  /* of these puts: rows, their heads and counts, as they lie in the windows */
	uint64_t signals; /* 8-byte words behind them: arrivals, acknowledgements, failures */
	uint64_t reserved[5];
} ncclEpNetCounts_t;
ncclResult_t ncclEpGroupNetCounts(ncclEpGroup_t group, ncclEpNetCounts_t *counts);

/*
 * Streams of the CPU device: a thread of their own runs the operations given to them in order, so that one thread can
 * launch for several ranks. They fit wherever a cudaStream_t is asked for on a communicator without a GPU.
 */
ncclResult_t ncclEpHostStreamCreate(cudaStream_t *stream);
/* Waits for everything given to the stream so far, at most NCCL_EP_TIMEOUT_MS (else 100 s). */
ncclResult_t ncclEpHostStreamSynchronize(cudaStream_t stream);
/* Runs what is left, then ends the thread. NULL is accepted. */
ncclResult_t ncclEpHostStreamDestroy(cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
