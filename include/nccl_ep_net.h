/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport plugin interface of libnccl_ep. A shared library that exports a table of this type under the name
 * NCCL_EP_NET_SYMBOL is loaded when NCCL_EP_NET_PLUGIN names it; doc/net_plugin/ has a complete example. A published
 * struct never changes: a new version gets new type names and a new symbol.
 *
 * Rules for every operation
 *  - It returns 0 or a negative errno. Before it returns an error it may pass one message to the log function.
 *  - It does not block. While work is pending an output stays NULL, and the caller repeats the call with the same
 *    arguments.
 *  - Outputs are written on success only, except *request, *done and *count, which are always written.
 *  - A context is used by one thread at a time; contexts of one comm may be used concurrently. All other calls on a
 *    comm come from one thread at a time, possibly while contexts are in use. queryLastError may be called at any time
 *    from any thread.
 *  - The library answers -ENOTSUP for operations that are NULL.
 *
 * What a net promises
 *  P1 A put of 8 bytes to an 8-byte aligned address is seen whole: all old or all new. After a failure: of an ordered
 *     net still, since the receiver polls the word; of an unordered one any part of it may have arrived.
 *  P2 When a put has completed, its source may be reused, and the bytes will arrive or the peer is reported as lost.
 *     The receiver learns of the arrival by order (P3) or by immediate data (P4). After a failure: the net may read the
 *     source of a put that it accepted until the context is destroyed.
 *  P3 Property `ordered`: of two puts on one context to one peer the later never becomes visible before the earlier to
 *     the processor or device that owns the memory and polls it. A NIC that orders its writes on the wire but not into
 *     device memory is not ordered.
 *     Ordered or not: after a failed put nothing later to that peer on that context arrives. A put has failed when iput
 *     returned an error or its request completed with one; it may have arrived, whole or in part. From then on every
 *     put to that peer on that context fails, for good. Excepted are -EINVAL, an invalid put, and -ENOMEM of iput: such
 *     a put was never made, and it is the caller that stops (C4).
 *     - An ordered net includes what it accepted before the error was known: at any time a prefix of the puts has
 *       arrived, and if a request completes with an error, those of all later puts do.
 *     - Of an unordered net puts that it accepted before it returned the error may arrive: the receiver sees by their
 *       immediate data that an earlier one is missing, and uses none of them.
 *     - A net may retry, repair or reconnect before it reports an error, in order; never after it.
 *     - The context is the caller's: of several queues or devices per peer (rails) one that fails stops the peer on all
 *       of them, unless its puts are repeated on another.
 *  P4 When progress returns immediate data, the bytes of that put have arrived as far as the net is concerned (P5).
 *     Immediates of different puts arrive in any order unless the net is `ordered`, each exactly once. An unordered net
 *     can carry 32 bits of immediate data with every put. After a failure: immediates of a lost peer may still be
 *     returned, also of the put that failed; then its bytes have arrived. If progress fails, the context has: it
 *     returns no immediates any more, and fails again.
 *  P5 When iflush has completed, the bytes of all puts whose immediate data was returned on this context before the
 *     call are visible to the device that owns the registration's memory, in all its registrations. The library
 *     flushes where the device needs it, or always if the net sets forceFlush: it stores a signal only after that.
 *     After a failure, of the call or of its request: nothing is known of what has arrived, and the library stores no
 *     more signals of this context. Lost peers do not make it fail. What engines put to each other, in host memory and
 *     at most 16 bytes, they read without a flush.
 *  P6 A failure concerns one peer, not the comm: puts to other peers continue. Only those of progress and iflush
 *     concern the whole context. Requests to a lost peer complete with an error in finite time, provided that progress
 *     is called.
 * What the caller promises
 *  C1 progress is called repeatedly on every context, including those that only receive.
 *  C2 No rank closes its comm before all have connected, and none deregisters memory that a peer may still put to.
 *  C3 Every request is tested until it is done, except those of quiet puts.
 *  C4 After a failed put the caller puts nothing more to that peer on that context.
 * What the library notices when a net breaks P3
 *  - Unordered: every gap. Signals after it are never stored, and the wait for them ends with an error.
 *  - Ordered: a put that succeeds although an earlier one failed. It stops using the context, and the group fails. The
 *    receiver sees nothing but the word of the signal: operations that it ended before may have returned wrong sums. A
 *    net that loses a put without an error is not noticed at all.
 *  - Before use: t_net_order of test/net/ tests any net, see doc/net_plugin/README.md.
 */
#ifndef NCCL_EP_NET_H_
#define NCCL_EP_NET_H_

#include <stddef.h>
#include <stdint.h>

#define NCCL_EP_NET_VERSION 1
#define NCCL_EP_NET_SYMBOL "ncclEpNetPlugin_v1"
/* What listen and regMr write, to zeroed memory. A net that uses a quarter of it can be one of four rails. */
#define NCCL_EP_NET_HANDLE_SIZE 512
#define NCCL_EP_NET_KEY_SIZE 256

/* The request of a quiet put: accepted, and never to be tested. */
#define NCCL_EP_NET_QUIET_REQUEST ((void *)~(uintptr_t)0)

/* Memory kinds, as bits of memKinds. */
#define NCCL_EP_NET_MEM_HOST 1u
#define NCCL_EP_NET_MEM_CUDA 2u
#define NCCL_EP_NET_MEM_HIP 4u

/* Link layers. Unknown is one, too: a net with a layer of its own needs no name for it. */
#define NCCL_EP_NET_LAYER_UNKNOWN 0u
#define NCCL_EP_NET_LAYER_INFINIBAND 1u
#define NCCL_EP_NET_LAYER_ETHERNET 2u

/* Flags of memory. */
#define NCCL_EP_NET_MEM_RELAXED 1u /* no byte is read before an immediate of its put or a later one: no order needed */

/* Flags of a put. */
#define NCCL_EP_NET_IMM 1u    /* imm is delivered to the receiver */
#define NCCL_EP_NET_INLINE 2u /* src is read before the call returns and needs no registration; <= maxInline bytes */
#define NCCL_EP_NET_MORE 4u   /* another put follows at once: the doorbell may be deferred */
#define NCCL_EP_NET_QUIET 8u  /* completes with the next put to this peer that is not quiet */

typedef enum { NCCL_EP_NET_WARN = 0, NCCL_EP_NET_INFO = 1 } ncclEpNetLogLevel_t;
/* Arguments as printf. A WARN message is also what the user gets when the call then fails. */
typedef void (*ncclEpNetLog_t)(ncclEpNetLogLevel_t level, const char *fmt, ...);

typedef struct ncclEpNet_v1 ncclEpNet_v1_t;

typedef struct {
	ncclEpNetLog_t log;
	const char *options;	     /* what follows the colon in NCCL_EP_NET: "name=value,..."; not NULL */
	const ncclEpNet_v1_t *inner; /* the net in parentheses, opened, no operation NULL; or NULL */
	void *innerNet;
} ncclEpNetInit_v1_t;

/* How much one rank may have in flight to all peers, so that a congested fabric stays usable. 0: no limit. */
typedef struct {
	uint64_t maxBytes;
	uint32_t maxPuts;
	uint32_t ringPuts; /* of one of its command rings */
} ncclEpNetFlow_v1_t;

typedef struct {
	const char *name;    /* the device, as its driver calls it; valid until finalize */
	const char *pciPath; /* in sysfs, to find the nearest device; NULL if unknown */
	int numaNode;	     /* -1: unknown, or as pciPath says */
	uint32_t speed;	     /* of the port, in Mb/s; 0: unknown */
	uint32_t linkLayer;  /* one of NCCL_EP_NET_LAYER_*: devices of different layers do not reach each other */
	int ordered;	     /* P3 */
	uint32_t memKinds;
	uint32_t immBits;     /* 0 or 32 */
	uint32_t maxInline;   /* bytes */
	uint32_t maxPuts;     /* requests a context accepts before it has no room; 0: no limit */
	uint32_t maxContexts; /* per comm */
	uint32_t dmaBuf;      /* regMrDmaBuf works */
	uint32_t flushes;     /* iflush works */
	uint32_t forceFlush;  /* P5: also for devices that would not need it, and the CPU as one */
	uint64_t maxPutSize;  /* bytes */
	uint64_t maxRegSize;  /* bytes */
	ncclEpNetFlow_v1_t lowLatency, throughput;
} ncclEpNetProperties_v1_t;

/*
 * Memory to register. fd is the file descriptor that backs it, with ptr at `offset`, or -1; a net that maps its peers'
 * memory needs it. For regMrDmaBuf fd is the dma-buf. The caller keeps the descriptor.
 */
typedef struct {
	void *ptr;
	size_t size;
	uint32_t kind; /* one of NCCL_EP_NET_MEM_HOST, _CUDA, _HIP */
	int fd;
	uint64_t offset;
	uint32_t flags, reserved;
} ncclEpNetMem_v1_t;

/*
 * A put copies size bytes from src (with NCCL_EP_NET_INLINE) or from srcOffset of the local registration srcMr to
 * dstOffset of the peer's registration that shareMr associated with the local one, dstMr.
 */
typedef struct {
	int peer;
	uint32_t flags, imm, reserved;
	const void *src;
	void *srcMr, *dstMr;
	uint64_t srcOffset, dstOffset, size;
} ncclEpNetPut_v1_t;

/* The hot path: called millions of times per second. */
typedef struct {
	/* *request NULL: no room, nothing was queued; call progress and try again. */
	int (*iput)(void *ctx, const ncclEpNetPut_v1_t *put, void **request);
	/* P5. mr: any local registration of that device's memory, shared or not. *request NULL: as for iput. */
	int (*iflush)(void *ctx, void *mr, void **request);
	/* *done 1: the request is freed, and the return value is its result. */
	int (*test)(void *ctx, void *request, int *done);
	/* Advances transfers and returns up to max immediates. Who sent them is the caller's to encode. */
	int (*progress)(void *ctx, uint32_t *imms, int max, int *count);
} ncclEpNetHot_v1_t;

struct ncclEpNet_v1 {
	uint32_t version; /* NCCL_EP_NET_VERSION */
	uint32_t size;	  /* sizeof(ncclEpNet_v1_t) */
	const char *name;
	const ncclEpNetHot_v1_t *hot;

	int (*init)(const ncclEpNetInit_v1_t *args, void **net);
	int (*finalize)(void *net);
	int (*devices)(void *net, int *count);
	int (*getProperties)(void *net, int dev, ncclEpNetProperties_v1_t *props);

	/* listen writes a handle; the caller passes the handles of all ranks, in rank order, to every connect. */
	int (*listen)(void *net, int dev, int nranks, void *handle, void **listener);
	int (*connect)(void *listener, const void *handles, int nranks, int rank, void **comm);
	int (*closeListen)(void *listener); /* allowed once connect has returned the comm */
	int (*closeComm)(void *comm);	    /* after its contexts and registrations are gone */

	/* The immediate data of a put on context i is delivered on context i of the peer. */
	int (*createContext)(void *comm, int index, void **ctx);
	int (*destroyContext)(void *ctx);

	/* Any registration can be a source. For a destination, all ranks exchange the keys and all call shareMr. */
	int (*regMr)(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr);
	int (*regMrDmaBuf)(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr);
	int (*shareMr)(void *comm, void *mr, const void *keys);
	int (*deregMr)(void *comm, void *mr);

	/* 0, or the error by which the peer was lost, and its message, valid until closeComm. */
	int (*queryLastError)(void *comm, int peer, const char **message);
};

#endif
