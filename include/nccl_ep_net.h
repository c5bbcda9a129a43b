/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For authors of transports: the table a network offers to libnccl_ep. A shared library that exports it under the name
 * NCCL_EP_NET_SYMBOL is loaded by NCCL_EP_NET_PLUGIN; doc/net_plugin/ has one from end to end. A published struct never
 * changes; a new version gets new names and a new symbol.
 *
 * Rules for every operation
 *  - It returns 0 or a negative errno. Before an error it may say one sentence through the log function it was given.
 *  - It does not block. Where work is left, an output stays NULL and the caller asks again with the same arguments.
 *  - Outputs are written on success only, but *request, *done and *count, which are always written.
 *  - A context belongs to one thread at a time; contexts of one comm run at once. All other calls on a comm come from
 *    one thread at a time, and may come while contexts run; but queryLastError comes at any time, from any thread.
 *  - Operations left NULL are answered with -ENOTSUP by the library.
 *
 * What a net promises
 *  P1 A put of 8 bytes to an address divisible by 8 is seen whole: all old or all new.
 *  P2 A completed put: its source may be used again, and the bytes arrive, or the peer is reported as failed. That they
 *     have arrived is told at the receiver: by order (P3), by a signal (P4) or by immediate data (P5).
 *  P3 Properties with `ordered`: of two puts on one context to one peer the later one never shows before the earlier
 *     one, to the processor or device that owns the memory and polls it. A NIC that orders its writes on the wire, and
 *     not on the way into the memory of a GPU, is not ordered.
 *  P4 A weak signal shows after its own put; a strong one after all earlier puts on its context to that peer. Its value
 *     is written, not added.
 *  P5 When progress hands out immediate data, the bytes of that put have arrived as far as the net goes; a device needs
 *     iflush after that and before it reads them. Immediates of different puts come in any order unless `ordered`, each
 *     once. An unordered net can carry 32 bits of immediate data with every put.
 *  P6 A failure is the peer's, not the comm's: puts to others go on. Requests to a failed peer end with an error, in
 *     finite time, provided that progress is called.
 * What the caller promises
 *  C1 progress is called again and again on every context, also on those that only receive.
 *  C2 No rank closes its comm before all have connected, and none takes back a registration that a peer may still put
 * to or get from. C3 Every request is tested until it is done, but those of quiet puts.
 */
#ifndef NCCL_EP_NET_H_
#define NCCL_EP_NET_H_

#include <stddef.h>
#include <stdint.h>

#define NCCL_EP_NET_VERSION 1
#define NCCL_EP_NET_SYMBOL "ncclEpNetPlugin_v1"
/* What listen and regMr give out, in memory that is zero. A net that uses a quarter of it can be one of four rails. */
#define NCCL_EP_NET_HANDLE_SIZE 512
#define NCCL_EP_NET_KEY_SIZE 256

/* The request of a quiet put: taken, and never to be tested. */
#define NCCL_EP_NET_QUIET_REQUEST ((void *)~(uintptr_t)0)

/* Memory kinds, as bits of memKinds. */
#define NCCL_EP_NET_MEM_HOST 1u
#define NCCL_EP_NET_MEM_CUDA 2u
#define NCCL_EP_NET_MEM_HIP 4u

/* Signals, as bits of signals. */
#define NCCL_EP_NET_SIGNAL_WEAK 1u
#define NCCL_EP_NET_SIGNAL_STRONG 2u

/* Flags of a put. */
#define NCCL_EP_NET_IMM 1u    /* imm is handed out at the receiver */
#define NCCL_EP_NET_INLINE 2u /* src is read before the call returns and needs no registration; <= maxInline bytes */
#define NCCL_EP_NET_MORE 4u   /* another put follows at once: the doorbell may wait for it */
#define NCCL_EP_NET_QUIET \
	8u /* no completion of its own: the next put or get to this peer that is not quiet covers it */

typedef enum { NCCL_EP_NET_WARN = 0, NCCL_EP_NET_INFO = 1 } ncclEpNetLogLevel_t;
/* printf's rules. WARN is also the sentence the user gets when the call then fails. */
typedef void (*ncclEpNetLog_t)(ncclEpNetLogLevel_t level, const char *fmt, ...);

typedef struct ncclEpNet_v1 ncclEpNet_v1_t;

typedef struct {
	ncclEpNetLog_t log;
	const char *options;	     /* what follows the colon in NCCL_EP_NET: "name=value,..."; never NULL */
	const ncclEpNet_v1_t *inner; /* the net in parentheses, for nets that wrap others, filled and opened; or NULL */
	void *innerNet;
} ncclEpNetInit_v1_t;

/* How much may be in flight at once to all peers of one rank, so that a congested fabric stays usable. 0: no limit. */
typedef struct {
	uint64_t maxBytes;
	uint32_t maxPuts;
	uint32_t reserved;
} ncclEpNetFlow_v1_t;

typedef struct {
	const char *name;    /* of the device, as its driver calls it; valid until finalize */
	const char *pciPath; /* in sysfs, to find what is near; NULL: it is nowhere near anything */
	int ordered;	     /* P3 */
	int signals;
	uint32_t memKinds;
	uint32_t immBits;     /* 0 or 32 */
	uint32_t maxInline;   /* bytes */
	uint32_t maxPuts;     /* requests a context takes before it answers "again"; 0: no limit */
	uint32_t maxContexts; /* of a comm */
	uint32_t dmaBuf;      /* regMrDmaBuf works */
	uint32_t gets;	      /* iget works */
	uint32_t flushes;     /* iflush works; else the device has to flush by itself */
	uint64_t maxPutSize;  /* bytes */
	uint64_t maxRegSize;  /* bytes */
	ncclEpNetFlow_v1_t lowLatency, throughput;
} ncclEpNetProperties_v1_t;

/*
 * Memory to register. A net that reaches peers by mapping their memory needs the descriptor that backs it: fd, with ptr
 * at `offset` in it. -1: none. For regMrDmaBuf fd is the dma-buf. The descriptor stays the caller's.
 */
typedef struct {
	void *ptr;
	size_t size;
	uint32_t kind; /* one of NCCL_EP_NET_MEM_* */
	int fd;
	uint64_t offset;
} ncclEpNetMem_v1_t;

/*
 * A put copies size bytes from src (with NCCL_EP_NET_INLINE) or from srcOffset of the own registration srcMr, to
 * dstOffset of the peer's registration that shareMr has tied to the own one dstMr. A get goes the other way.
 */
typedef struct {
	int peer;
	uint32_t flags, imm, reserved;
	const void *src;
	void *srcMr, *dstMr;
	uint64_t srcOffset, dstOffset, size;
} ncclEpNetPut_v1_t;

typedef struct {
	void *mr; /* shared, as dstMr */
	uint64_t offset, value;
	uint32_t strength; /* one of NCCL_EP_NET_SIGNAL_* */
	uint32_t reserved;
} ncclEpNetSignal_v1_t;

typedef struct {
	int peer;
	uint32_t imm;
} ncclEpNetImm_v1_t;

/* What engines call millions of times a second. */
typedef struct {
	/* *request NULL: no room now, nothing was taken, call progress and ask again. */
	int (*iput)(void *ctx, const ncclEpNetPut_v1_t *put, void **request);
	int (*iputSignal)(void *ctx, const ncclEpNetPut_v1_t *put, const ncclEpNetSignal_v1_t *signal, void **request);
	int (*iget)(void *ctx, const ncclEpNetPut_v1_t *get, void **request);
	/* Done when everything that arrived in this registration before the call is visible to the device that owns it.
	 */
	int (*iflush)(void *ctx, void *mr, void **request);
	/* *done 1: the request is gone, and the return value says how it ended. */
	int (*test)(void *ctx, void *request, int *done);
	/* Moves things on and hands out up to max immediates. */
	int (*progress)(void *ctx, ncclEpNetImm_v1_t *imms, int max, int *count);
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

	/* listen gives out a handle; the caller carries all ranks' handles, in their order, to every connect. */
	int (*listen)(void *net, int dev, int nranks, void *handle, void **listener);
	int (*connect)(void *listener, const void *handles, int nranks, int rank, void **comm);
	int (*closeListen)(void *listener); /* legal as soon as the comm is there */
	int (*closeComm)(void *comm);	    /* after its contexts and registrations */

	/* A put on context i of one rank shows its immediate on context i of the other. */
	int (*createContext)(void *comm, int index, void **ctx);
	int (*destroyContext)(void *ctx);

	/* Puts take their source from any registration; to be put to, its keys go to all ranks, and all call shareMr.
	 */
	int (*regMr)(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr);
	int (*regMrDmaBuf)(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr);
	int (*shareMr)(void *comm, void *mr, const void *keys);
	int (*deregMr)(void *comm, void *mr);

	/* 0, or the error that made the peer fail, with the sentence; valid until closeComm. */
	int (*queryLastError)(void *comm, int peer, const char **sentence);
};

#endif
