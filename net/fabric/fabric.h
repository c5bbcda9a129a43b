/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the fabric net: fabric.c (table), lib.c (libfabric), dev.c (providers and devices), meet.c (listen,
 * connect), end.c (close), ctx.c (endpoints), mr.c (registrations), put.c (send side of the hot path), cq.c (completion
 * side), peer.c (detecting lost peers). Every context has its own domain, endpoint and completion queue, so that
 * contexts share nothing a provider would lock.
 */
#ifndef EP_NET_FABRIC_H
#define EP_NET_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_ep_net.h"
#include "net/base/base.h"
#include "net/fabric/api.h"
#include "net/watch.h"

#define FAB_CONTEXTS 4 /* so that the key of a registration fits in 64 bytes */
#define FAB_ADDR 80    /* bytes of an endpoint name: efa 32, tcp 28, shm 40 */
#define FAB_INLINE 64u /* bytes */
#define FAB_PUTS 1024u /* in flight on a context, at most */
#define FAB_IMMS 8192u /* read from the queue and not yet returned; a power of two */
#define FAB_BATCH 64   /* completions per read */

/* What is known of a provider beyond what it reports. */
struct fab_profile {
	const char *name;
	const char *fabric;  /* of the provider, or NULL: any */
	bool found;	     /* tried when no provider is named */
	bool hmem;	     /* ask for device memory (FI_HMEM) */
	bool efa;	     /* has the endpoint options of efa */
	bool entangled;	     /* endpoints of one process must be closed together */
	bool early;	     /* completes at transmission: with delivery completion one lost peer blocks all others */
	const char *refused; /* why it cannot be used, or NULL */
	const char *remedy;  /* what to check when a peer does not answer, or NULL */
	unsigned contexts;   /* by default, if NCCL_EP_ENGINES does not say; 0: 1 */
};

struct fab_dev {
	struct ofi_info *info; /* in the net's list */
	const struct fab_profile *profile;
	bool receives;	   /* an immediate consumes a posted receive */
	bool hmem;	   /* device memory, by address; */
	bool dmabuf;	   /* and by dma-buf */
	uint64_t delivery; /* OFI_DELIVERY_COMPLETE or 0: flag of puts that are not quiet */
	char pci[64];
	uint32_t speed; /* Mb/s; 0: unknown */
};

struct fab_net {
	struct ep_base_net base;
	struct ofi_info *list;
	struct fab_dev *devs;
	uint64_t contexts, delivery, direct, emulated;
	char provider[64];
};

struct fab_handle {
	uint32_t magic, nranks; /* magic includes a hash of the provider's and the fabric's name */
	uint64_t nonce, page_key, page_base;
	uint64_t host; /* see ep_watch_host */
	int32_t pid, contexts;
	uint16_t addr_len[FAB_CONTEXTS];
	uint8_t addr[FAB_CONTEXTS * FAB_ADDR]; /* one behind the other: a short handle fits into rails */
};
_Static_assert(sizeof(struct fab_handle) <= NCCL_EP_NET_HANDLE_SIZE, "a handle holds it");

/* What each rank puts into every peer's page when they connect; whole words, compared by value. */
struct fab_hello {
	uint64_t nonce; /* the receiver's, from its handle */
	uint64_t rank;
	uint64_t bye; /* put by itself when the sender closes */
};

/* While connecting. */
struct fab_meet {
	uint32_t mark;	 /* the immediate data of hellos to this rank */
	uint32_t hellos; /* that arrived */
	char why[160];	 /* the last error of a hello of ours, which is repeated */
};

struct fab_key {
	uint64_t size, base, key[FAB_CONTEXTS];
};
_Static_assert(sizeof(struct fab_key) <= NCCL_EP_NET_KEY_SIZE, "a key holds it");

struct fab_far {
	uint64_t base, key[FAB_CONTEXTS];
};

struct fab_mr {
	struct ep_base_mr base;
	int count;
	struct ofi_mr *mr[FAB_CONTEXTS];
	struct fab_far far[]; /* by rank, after shareMr */
};

/* An operation posted to the provider, or a request. The provider's context comes first: it is given its address. */
struct fab_slot {
	struct ofi_context2 own;
	struct fab_slot *next;	/* free list */
	struct fab_slot *cover; /* of a quiet put: the request that completes it */
	struct fab_chunk *chunk;
	uint8_t *bytes; /* FAB_INLINE, registered */
	int peer, rc;
	uint32_t left; /* completions outstanding: its own and those of the quiet puts it covers */
	bool receive;  /* a posted receive */
	bool orphan;   /* reported as failed; freed when its completions arrive, if ever */
};

struct fab_chunk {
	struct fab_chunk *next;
	struct ofi_mr *mr;
	uint8_t *bytes;
	struct fab_slot *end;
	struct fab_slot slots[];
};

/* The state of one peer in one context. */
struct fab_conn {
	uint64_t addr;
	struct fab_slot *cover; /* reserved for the next request that is not quiet, when quiet puts wait for it */
	uint32_t open;		/* operations posted and not completed */
	bool dropped;		/* the peer is lost, and `open` no longer counts in ctx->live */
	uint64_t since;		/* ctx->clock of the last progress */
	uint64_t refused;	/* ctx->clock + 1 since when the provider has had no room; 0: it had */
};

struct fab_ctx {
	struct fab_comm *comm;
	const struct fab_dev *dev;
	int index;
	struct ofi_fabric *fabric;
	struct ofi_domain *domain;
	struct ofi_av *av;
	struct ofi_cq *cq;
	struct ofi_ep *ep;
	uint8_t addr[FAB_ADDR];
	size_t addr_len;
	struct fab_conn *conns;
	struct fab_chunk *chunks;
	struct fab_slot *free, *unposted; /* unposted: receives to post */
	uint32_t unposted_count, receives_failed;
	uint32_t live, limit; /* operations to peers that are not lost */
	uint32_t calls;
	bool idle;		/* the last poll found nothing */
	uint64_t clock, looked; /* ns; the clock stops while progress is not called */
	struct fab_meet *meet;	/* while connecting: only hellos are put then */
	uint32_t *imms;
	uint32_t head, tail;
};

struct fab_comm {
	struct ep_base_comm base;
	const struct fab_dev *dev;
	struct ep_watch watch;
	uint64_t *kin;		 /* nonces of the peers in this process, see end.c, */
	int kin_count, kin_gone; /* and how many of them are closed, once this one is */
	struct fab_comm *waiting;
	uint64_t nonce, lost_ns;
	uint64_t next_key;
	struct fab_hello *page; /* in[nranks], out[nranks], and one for the bye word */
	bool keeps;		/* the page outlives it, see end.c */
	struct fab_mr *page_mr;
	struct fab_ctx *ctx[FAB_CONTEXTS];
};

extern const ncclEpNetHot_v1_t fab_hot;

/* libfabric, loaded once per process; NULL, logged at INFO, when it cannot be used. */
const struct ofi_api *fab_api(void);
uint32_t fab_version(void);
/* EP_FAIL for a failed call of libfabric. */
int fab_fail(const struct fab_dev *dev, ssize_t rc, const char *what);

/* The devices of net->provider, or of the first provider that has any. Finding none is no error. */
void fab_devices_find(struct fab_net *net);
void fab_devices_drop(struct fab_net *net);

int fab_ctx_open(struct fab_comm *comm, int index, struct fab_ctx **out);
/* Whether the provider emulates writes by messages: the target's CPU then copies every byte. */
bool fab_ctx_emulated(const struct fab_ctx *ctx);
void fab_ctx_close(struct fab_ctx *ctx);
void fab_name_drop(const struct fab_ctx *ctx);
int fab_av_insert(struct fab_ctx *ctx, int peer, const void *addr);
struct fab_slot *fab_slot_take(struct fab_ctx *ctx);
void fab_slot_give(struct fab_ctx *ctx, struct fab_slot *slot);
/* To be posted by progress. */
void fab_receive_add(struct fab_ctx *ctx, struct fab_slot *slot);

int fab_mr_open(struct fab_comm *comm, const ncclEpNetMem_v1_t *mem, bool dmabuf, void *key, void **out);
int fab_mr_one(const struct fab_ctx *ctx, const struct ofi_mr_attr *attr, uint64_t flags, struct ofi_mr **out);
void fab_mr_close(struct fab_mr *mr);
int fab_regMr(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr);
int fab_regMrDmaBuf(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr);
int fab_shareMr(void *comm, void *mr, const void *keys);
int fab_deregMr(void *comm, void *mr);

int fab_listen(void *net, int dev, int nranks, void *handle, void **listener);
int fab_connect(void *listener, const void *handles, int nranks, int rank, void **comm);
int fab_closeListen(void *listener);
/* Accepts what a failed open left. Frees at once: only before peers know of the comm, or from fab_comm_end. */
void fab_comm_free(struct fab_comm *comm);
void fab_comm_end(struct fab_comm *comm);
int fab_closeComm(void *comm);

bool fab_peer_left(const struct fab_comm *comm, int peer);
void fab_conn_drop(struct fab_ctx *ctx, int peer);
/* Checks for lost peers; called by progress now and then. */
void fab_peers_look(struct fab_ctx *ctx);

int fab_progress(void *ctx, uint32_t *imms, int max, int *count);
int fab_iput(void *ctx, const ncclEpNetPut_v1_t *put, void **request);
int fab_test(void *ctx, void *request, int *done);

#endif
