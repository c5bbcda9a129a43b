/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fabric net between its files: fabric_lib.c (libfabric, providers, devices), fabric.c (the table), fabric_ctx.c
 * (endpoints), fabric_mr.c (memory), fabric_meet.c (listen, connect), fabric_end.c (close), fabric_put.c and
 * fabric_cq.c (hot), fabric_peer.c (who is still there). A context has a domain, an endpoint and a completion queue of
 * its own: contexts share nothing that a provider would lock.
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

#define FAB_CONTEXTS 4	       /* a key of 64 bytes holds the keys of so many domains */
#define FAB_ADDR 80	       /* bytes of an endpoint's name: efa 32, tcp 28, shm 40 */
#define FAB_INLINE 64u	       /* bytes */
#define FAB_PUTS 1024u	       /* of a context on their way */
#define FAB_IMMS 8192u	       /* read from the queue and not handed out yet; a power of two */
#define FAB_BATCH 64	       /* completions read at once */
#define FAB_HELLO (1ull << 63) /* in 8 bytes of immediate data, above the rank */

/* What is known of a provider beyond what it says itself. */
struct fab_profile {
	const char *name;
	bool found;	     /* tried when no provider is named */
	bool hmem;	     /* memory of GPUs is worth asking for */
	bool entangled;	     /* endpoints of one process end together */
	bool early;	     /* completes at transmission: at delivery it lets one dead peer hold up all others */
	const char *refused; /* why not, or NULL */
	const char *remedy;  /* said when a peer does not answer, or NULL */
};

struct fab_dev {
	struct ofi_info *info; /* of the net's list */
	const struct fab_profile *profile;
	bool wide;     /* a rank fits beside the immediate; else the provider tells who sent it */
	bool receives; /* an immediate uses up a posted receive */
	bool hmem;
	uint64_t delivery; /* OFI_DELIVERY_COMPLETE or 0: what is added to puts that are not quiet */
	char pci[64];
};

struct fab_net {
	struct ep_base_net base;
	struct ofi_info *list;
	struct fab_dev *devs;
	uint64_t contexts, delivery, narrow;
	char provider[64];
};

struct fab_handle {
	uint32_t magic, nranks; /* the provider's name is in magic */
	uint64_t nonce, page_key, page_base;
	uint64_t host; /* see ep_watch_host */
	int32_t pid;
	uint16_t addr_len;
	uint8_t contexts, reserved;
	uint8_t addr[FAB_ADDR];
};
_Static_assert(sizeof(struct fab_handle) <= NCCL_EP_NET_HANDLE_SIZE, "a handle holds it");

/* What each rank puts into every other one's page when they connect. */
struct fab_hello {
	uint64_t nonce; /* the receiver's, from its handle */
	uint32_t rank, contexts;
	uint16_t addr_len[FAB_CONTEXTS];
	uint8_t addr[FAB_CONTEXTS][FAB_ADDR];
	uint64_t bye; /* put alone, when the sender closes */
};
_Static_assert(sizeof(struct fab_hello) % 8 == 0, "bye is a word");

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
	struct fab_far far[]; /* by rank, once shared */
};

/* An operation at the provider, or the request of one. First the provider's part: it gets the address. */
struct fab_slot {
	struct ofi_context2 own;
	struct fab_slot *next;	/* free ones */
	struct fab_slot *cover; /* of a quiet one: the request that tells of it */
	struct fab_chunk *chunk;
	uint8_t *bytes; /* FAB_INLINE, registered */
	int peer, rc;
	uint32_t left; /* completions to come: its own, and of those it covers */
	bool receive;  /* a posted receive */
	bool orphan;   /* told as failed; free when its completions have come, if ever */
};

struct fab_chunk {
	struct fab_chunk *next;
	struct ofi_mr *mr;
	uint8_t *bytes;
	struct fab_slot *end;
	struct fab_slot slots[];
};

/* A peer, as one context sees it. */
struct fab_lane {
	uint64_t addr;
	struct fab_slot *cover; /* the request to come, when quiet puts wait for it */
	uint32_t open;		/* at the provider */
	bool dropped;		/* the peer has failed, and what is open counts no more */
	uint64_t since;		/* ctx->clock when something last moved */
	uint64_t refused;	/* ctx->clock since when there is no room, + 1; 0: there was */
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
	struct fab_lane *lanes;
	struct fab_chunk *chunks;
	struct fab_slot *free, *unposted; /* unposted: receives to be given back */
	uint32_t live;			  /* operations of peers that have not failed */
	uint32_t calls;
	uint64_t clock, looked; /* ns; the clock stands still while nobody calls progress */
	bool *heard;		/* by rank, while connecting: what is put then is hellos */
	ncclEpNetImm_v1_t *imms;
	uint32_t head, tail;
};

struct fab_comm {
	struct ep_base_comm base;
	const struct fab_dev *dev;
	struct ep_watch watch;
	int here;		  /* ranks of this process, this one among them */
	struct fab_comm *waiting; /* see fabric_end.c */
	uint64_t group;		  /* the same on all ranks, another in every comm */
	uint64_t nonce, lost_ns;
	uint64_t next_key;
	struct fab_hello *page; /* in[nranks], out[nranks], and one for the word of bye */
	struct fab_mr *page_mr;
	struct fab_ctx *ctx[FAB_CONTEXTS];
};

extern const ncclEpNetHot_v1_t fab_hot;

/* The library, loaded once for the process; NULL and a line at INFO where it cannot be used. */
const struct ofi_api *fab_api(void);
uint32_t fab_version(void);
/* A failed call of libfabric: the sentence names it, the device and the reason. */
int fab_fail(const struct fab_dev *dev, ssize_t rc, const char *what);

/* Devices of the provider in net->provider, or of the first that has one; none is no failure. */
void fab_devices_find(struct fab_net *net);
void fab_devices_drop(struct fab_net *net);

int fab_ctx_open(struct fab_comm *comm, int index, struct fab_ctx **out);
void fab_ctx_close(struct fab_ctx *ctx);
void fab_name_drop(const struct fab_ctx *ctx);
int fab_av_insert(struct fab_ctx *ctx, int peer, const void *addr);
struct fab_slot *fab_slot_take(struct fab_ctx *ctx);
void fab_slot_give(struct fab_ctx *ctx, struct fab_slot *slot);

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
/* Of any state: at once, as far as nobody was told of it. */
void fab_comm_free(struct fab_comm *comm);
void fab_comm_end(struct fab_comm *comm);
int fab_closeComm(void *comm);

bool fab_peer_left(const struct fab_comm *comm, int peer);
void fab_lane_drop(struct fab_ctx *ctx, int peer);
/* Looks after peers, now and then; called by progress. */
void fab_peers_look(struct fab_ctx *ctx);

int fab_progress(void *ctx, ncclEpNetImm_v1_t *imms, int max, int *count);
int fab_iput(void *ctx, const ncclEpNetPut_v1_t *put, void **request);
int fab_test(void *ctx, void *request, int *done);

#endif
