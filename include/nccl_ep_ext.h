/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AnyEP's extensions to NCCL EP's interface. A program that calls them runs on AnyEP only.
 *
 * Two versions: NCCL_EP_* and ncclEpGetVersion carry the numbers of the NCCL EP release whose interface this library
 * offers (callers check them); ANYEP_* and anyEpGetVersion are the release of this library, by Semantic Versioning.
 * Extensions are named anyEp* and ANYEP_*, because NVIDIA may claim any ncclEp name. Their structs begin with `size`
 * and only ever grow at the end: start from the _INIT macro, and the library touches only what `size` covers.
 */
#ifndef NCCL_EP_EXT_H_
#define NCCL_EP_EXT_H_

#include "nccl_ep.h"

#define ANYEP_MAJOR 0
#define ANYEP_MINOR 1
#define ANYEP_PATCH 0
#define ANYEP_VERSION "0.1.0"
#define ANYEP_VERSION_CODE (ANYEP_MAJOR * 10000 + ANYEP_MINOR * 100 + ANYEP_PATCH)

/* The codes of ncclEpGetAsyncError. NCCL EP defines the values 0 and 1. */
typedef enum {
	ANYEP_ASYNC_NONE = 0,
	ANYEP_ASYNC_TIMEOUT = 1,    /* a rank did not answer in time; with enable_mask it is masked now */
	ANYEP_ASYNC_BAD_EXPERT = 2, /* an expert id outside [-1, num_experts) was dropped */
	ANYEP_ASYNC_LIMIT = 3,	    /* more rows than max_recv_tokens_per_rank (TRAP), or a third staged operation */
	ANYEP_ASYNC_REMOTE = 4,	    /* another rank failed or exited */
	ANYEP_ASYNC_OTHER = 5,	    /* the next call on the group fails with the message */
} anyEpAsyncCode_t;

/*
 * recv_topk_idx_kind of an HT flat dispatch, on all ranks: local ids and weights stay in the columns that they have at
 * their source; the columns of other ranks' experts are -1 and 0. For at most 65536 experts per rank and per token.
 */
#define ANYEP_EXPERT_ID_IN_PLACE ((ncclEpExpertIdKind_t)256)

/* What this rank's engines have given to the transport for the group so far; all zero in a group of one node. */
typedef struct {
	size_t size;
	uint64_t puts;	   /* after adjacent ones were merged */
	uint64_t bytes;	   /* of these puts: rows, their headers and counts */
	uint64_t signals;  /* 8-byte words behind them: arrivals, acknowledgements, failures */
	uint64_t commands; /* of kernels, for both */
	uint64_t joined;   /* of these, puts that were merged with the one before */
} anyEpNetCounts_t;

#define ANYEP_NET_COUNTS_INIT ((anyEpNetCounts_t){ .size = sizeof(anyEpNetCounts_t) })
#define ANYEP_NET_COUNTS_V1_SIZE 32u
#define ANYEP_NET_COUNTS_V1_LAST_FIELD signals
#define ANYEP_NET_COUNTS_V2_SIZE 40u
#define ANYEP_NET_COUNTS_V2_LAST_FIELD commands
#define ANYEP_NET_COUNTS_V3_SIZE 48u
#define ANYEP_NET_COUNTS_V3_LAST_FIELD joined
NCCL_EP_ASSERT_VERSION(anyEpNetCounts_t, ANYEP_NET_COUNTS, 1);
NCCL_EP_ASSERT_VERSION(anyEpNetCounts_t, ANYEP_NET_COUNTS, 2);
NCCL_EP_ASSERT_VERSION(anyEpNetCounts_t, ANYEP_NET_COUNTS, 3);

/*
 * The transport of the group, and where the time of this rank's operations went, as its engines saw it: sums over the
 * operations since the first call, in ns since the engine saw the operation's kernel begin. Of the commands only the
 * first signal is followed, which comes after all rows. With several engines an operation counts once for each.
 */
typedef struct {
	size_t size;
	char net[64];	     /* as NCCL_EP_NET names it; "": the group has one node, and the rest is zero */
	char device[64];     /* of this rank */
	uint32_t ordered;    /* the transport itself writes signals; 0: the receiver's engine does */
	uint32_t direct;     /* rows lie in device memory; 0: in host memory */
	uint64_t operations; /* halves count on their own */
	uint64_t popped;     /* the signal has left the ring */
	uint64_t given;	     /* ... was given to the transport, after all rows of its destination */
	uint64_t completed;  /* ... was completed by the transport */
	uint64_t ended;	     /* the kernel has ended */
	uint64_t arrivals;   /* not ordered: operations in which signals of other ranks arrived, */
	uint64_t arrived;    /* and when the last of them was stored */
} anyEpNetTimes_t;

#define ANYEP_NET_TIMES_INIT ((anyEpNetTimes_t){ .size = sizeof(anyEpNetTimes_t) })
#define ANYEP_NET_TIMES_V1_SIZE 200u
#define ANYEP_NET_TIMES_V1_LAST_FIELD arrived
NCCL_EP_ASSERT_VERSION(anyEpNetTimes_t, ANYEP_NET_TIMES, 1);

/* How this rank's HT operations have accessed the tensors of other ranks so far; all zero in an LL group. */
typedef struct {
	size_t size;
	uint64_t direct;   /* tensors accessed in place: one per operation and other rank */
	uint64_t staged;   /* ... through the window, at lower speed: not mapped, or not yet */
	uint64_t mapped;   /* allocations of other processes that are mapped now */
	uint64_t peak;	   /* the most of them so far */
	uint64_t unmapped; /* mappings that ended: their owner freed the memory or replaced the offer */
	uint64_t refused;  /* allocations that could not be mapped */
	uint64_t evicted;  /* own allocations that are no longer offered for lack of room */
	/* version 2: rows that this rank has sent to other nodes: tokens in dispatches, sums in combines */
	uint64_t crossedDispatch, crossedCombine;
} anyEpReachCounts_t;

#define ANYEP_REACH_COUNTS_INIT ((anyEpReachCounts_t){ .size = sizeof(anyEpReachCounts_t) })
#define ANYEP_REACH_COUNTS_V1_SIZE 64u
#define ANYEP_REACH_COUNTS_V1_LAST_FIELD evicted
#define ANYEP_REACH_COUNTS_V2_SIZE 80u
#define ANYEP_REACH_COUNTS_V2_LAST_FIELD crossedCombine
NCCL_EP_ASSERT_VERSION(anyEpReachCounts_t, ANYEP_REACH_COUNTS, 1);
NCCL_EP_ASSERT_VERSION(anyEpReachCounts_t, ANYEP_REACH_COUNTS, 2);

/*
 * Where the operations of an LL handle add up how long they waited for each rank: int64 [R] in device memory, in ns,
 * NULL for none. Ranks are waited for one after the other, from the next higher one on, so that the time until several
 * late ones have arrived is not counted twice: a rank has what it took beyond those before it. Its own entry stays.
 */
typedef struct {
	size_t size;
	const ncclEpTensor_t *dispatch, *combine;
} anyEpWaitStats_t;

#define ANYEP_WAIT_STATS_INIT ((anyEpWaitStats_t){ .size = sizeof(anyEpWaitStats_t) })
#define ANYEP_WAIT_STATS_V1_SIZE 24u
#define ANYEP_WAIT_STATS_V1_LAST_FIELD combine
NCCL_EP_ASSERT_VERSION(anyEpWaitStats_t, ANYEP_WAIT_STATS, 1);

/*
 * The output scales of an LL dispatch with quantisation (S scales of a row). Below, [El, R * Tmax] stands for the rows;
 * in the rank-major layout it is [R, Tmax].
 */
typedef enum {
	ANYEP_SCALES_ROWS = 0,	  /* [El, R * Tmax, S], as NCCL EP has it */
	ANYEP_SCALES_COLUMNS = 1, /* float32 [El, S, R * Tmax] */
	ANYEP_SCALES_EXPONENTS =
		2, /* int32 [El, S / 4, R * Tmax]: exponents of four scales, the first in the low byte */
} anyEpScales_t;

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* ANYEP_VERSION_CODE of the library. */
ncclResult_t anyEpGetVersion(int *version);

/* The message of the calling thread's last failure, "" before the first; valid until the thread's next failure. */
const char *anyEpGetLastError(void);

/*
 * nodes[nranks]: the node of each rank, numbered by their lowest ranks. Ranks of a node map each other's memory;
 * between nodes rows go over the net, and HT sums them by node.
 */
ncclResult_t anyEpGroupNodes(ncclEpGroup_t group, int *nodes, size_t nranks);

/*
 * Collective, on the host: the `bytes` at mine of every rank are at all, in rank order, when it returns. For numbers
 * that ranks must agree on between operations, such as how many tokens each has: at most 64 MiB / nranks (16 KiB where
 * that is less), the same on all ranks, and not while another collective call of the group is under way.
 */
ncclResult_t anyEpGroupAllGather(ncclEpGroup_t group, const void *mine, void *all, size_t bytes);

/*
 * Collective, on the stream, not on the host: what follows it there runs after everything that all ranks of the group
 * have put in their streams before their call. In the order of the group's operations, and like them captured in a
 * graph, and ended by NCCL_EP_TIMEOUT_MS with a message that names a rank that has not come. Masked ranks are not
 * waited for; with enable_mask one that does not come is masked.
 */
ncclResult_t anyEpGroupBarrier(ncclEpGroup_t group, cudaStream_t stream);

/*
 * Writes what this rank is doing in the group to a file in NCCL_EP_DUMP_DIR, now, with the line `why` in it;
 * ncclInvalidUsage where the variable is not set. `ep_info --dump FOLDER` joins the files of all ranks. From any
 * thread, also while another is in an operation: for a watchdog. A group that fails writes one by itself.
 */
ncclResult_t anyEpGroupDump(ncclEpGroup_t group, const char *why);

/*
 * Where the rows of an LL expert-major dispatch came from, in stream order after it (after ncclEpComplete, where it was
 * send_only). tokens, int32 [El, R * Tmax]: the row's token at its source; past an expert's count untouched. ranges,
 * int64 [El, R]: the rows of a source in an expert, which are contiguous, as first << 32 | number.
 */
ncclResult_t anyEpHandleSources(ncclEpHandle_t handle, const ncclEpTensor_t *tokens, const ncclEpTensor_t *ranges,
				cudaStream_t stream);

/*
 * From now on; NULL: no more. An operation that has been launched, or captured in a graph, keeps what was set then, and
 * so does the receive half of one that was send_only. For finding a slow rank: the receive half then waits for all
 * ranks before it takes the first row.
 */
ncclResult_t anyEpHandleWaitStats(ncclEpHandle_t handle, const anyEpWaitStats_t *stats);

/*
 * Multiprocessors for the handle's dispatches and combines from now on, in place of the group's configuration; 0: as
 * that says. Bounded by what the device can run, and overridden by the environment (NCCL_EP_DISPATCH_SMS and so on).
 * Ranks may differ. An operation that has been launched, or captured in a graph, keeps what was set then, and so does
 * the receive half of one that was send_only.
 */
ncclResult_t anyEpHandleSms(ncclEpHandle_t handle, unsigned int dispatch, unsigned int combine);

/*
 * How the handle's dispatches lay out their output scales from now on; LL only, without effect on dispatches that have
 * none. All but ANYEP_SCALES_ROWS need float32 scales. ANYEP_SCALES_EXPONENTS is for scales that are powers of two: it
 * needs round_scales with DS_FP8E3M4, and a multiple of four scales per row; of the caller's own scales (QUANT_FWD)
 * sign and fraction are dropped. Ranks may differ. An operation that has been launched, or captured in a graph, keeps
 * what was set then, and so does the receive half of one that was send_only.
 */
ncclResult_t anyEpHandleScales(ncclEpHandle_t handle, anyEpScales_t scales);

/*
 * Tensors [T, H] of the tokens' type, count of them, that the handle's HT combines add from now on, 0 to 2; 0: none any
 * more. A sum at home begins with them, in fp32 and in this order, then come the rows, and it is rounded once; a token
 * without rows has the sum of the biases. Backward, too; weights have none. Ranks may differ. Descriptors are copied;
 * every combine compares T, H and type with its own, and its kernel reads the elements. An operation that has been
 * launched, or captured in a graph, keeps what was set then.
 */
ncclResult_t anyEpHandleBias(ncclEpHandle_t handle, const ncclEpTensor_t *const *bias, int count);

/* Bytes of the group's windows on this rank: the memory that peers write to, besides the caller's tensors. */
ncclResult_t anyEpGroupWindowBytes(ncclEpGroup_t group, size_t *bytes);

ncclResult_t anyEpGroupNetCounts(ncclEpGroup_t group, anyEpNetCounts_t *counts);

/*
 * Waits until everything that ended operations have sent is completed, at most NCCL_EP_TIMEOUT_MS (100 s if unset).
 * For measurements: from the first call on engines take times, and those of the CPU device stay awake in operations.
 */
ncclResult_t anyEpGroupNetTimes(ncclEpGroup_t group, anyEpNetTimes_t *times);

/* Waits for no stream: operations under way may be counted or not. */
ncclResult_t anyEpGroupReachCounts(ncclEpGroup_t group, anyEpReachCounts_t *counts);

/*
 * Streams of the CPU device. Each has a thread that runs its operations in order, so that one thread can launch for
 * several ranks. On a communicator without a GPU they are accepted wherever a cudaStream_t is.
 */
ncclResult_t anyEpHostStreamCreate(cudaStream_t *stream);
/* Waits for everything launched so far, at most twice NCCL_EP_TIMEOUT_MS (100 s if unset) and 0.5 s. */
ncclResult_t anyEpHostStreamSynchronize(cudaStream_t stream);
/* Runs what is left, then ends the thread. NULL is accepted. */
ncclResult_t anyEpHostStreamDestroy(cudaStream_t stream);

/* ---- former names, removed in 0.3 ---- */

#define NCCL_EP_ASYNC_NONE ANYEP_ASYNC_NONE
#define NCCL_EP_ASYNC_TIMEOUT ANYEP_ASYNC_TIMEOUT
#define NCCL_EP_ASYNC_BAD_EXPERT ANYEP_ASYNC_BAD_EXPERT
#define NCCL_EP_ASYNC_LIMIT ANYEP_ASYNC_LIMIT
#define NCCL_EP_ASYNC_REMOTE ANYEP_ASYNC_REMOTE
#define NCCL_EP_ASYNC_OTHER ANYEP_ASYNC_OTHER
typedef anyEpAsyncCode_t ncclEpAsyncCode_t;

typedef struct {
	uint64_t puts;
	uint64_t bytes;
	uint64_t signals;
	uint64_t reserved[5];
} ncclEpNetCounts_t;

const char *ncclEpGetLastError(void);
ncclResult_t ncclEpGroupWindowBytes(ncclEpGroup_t group, size_t *bytes);
ncclResult_t ncclEpGroupNetCounts(ncclEpGroup_t group, ncclEpNetCounts_t *counts);
ncclResult_t ncclEpHostStreamCreate(cudaStream_t *stream);
ncclResult_t ncclEpHostStreamSynchronize(cudaStream_t stream);
ncclResult_t ncclEpHostStreamDestroy(cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
