/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common to the library's own transports: argument checks, the record of lost peers, bounds of registrations;
 * base/lib.h loads a vendor's library. A transport's net, comm and registration each begin with the struct of that kind
 * below, so operations that need nothing else (ep_base_devices, ep_base_queryLastError) go into its table as they are.
 */
#ifndef EP_NET_BASE_H
#define EP_NET_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "nccl_ep_net.h"
#include "util/error.h"

struct ep_base_net {
	const char *name;
	int count; /* devices */
};

struct ep_base_comm {
	const char *name; /* of the net, first in messages */
	int rank, nranks, contexts;
	uint32_t taken; /* contexts in use, one bit each */
	bool closing;	/* peers lost from now on are recorded, not logged */
	int absent;	/* ranks that it is not connected to */
	/* [nranks] 0, the errno by which the peer was lost, -1 while `why` is being written, or ENOTCONN: absent. Set
	 * once. */
	int *lost;
	char (*why)[300]; /* [nranks] apart, so that puts to many peers touch few cache lines */
};

struct ep_base_mr {
	uint8_t *base;
	size_t size;
	uint32_t kind;
	bool shared;
};

/* ---- devices ---- */

int ep_base_devices(void *net, int *count);
int ep_base_dev_check(const struct ep_base_net *net, int dev);
int ep_base_listen_check(const struct ep_base_net *net, int dev, int nranks);

/* ---- comms ---- */

/* The rank is set when it connects. */
int ep_base_comm_open(struct ep_base_comm *comm, const char *name, int nranks);
/* Accepts zeroes and what a failed open left. */
void ep_base_comm_close(struct ep_base_comm *comm);
/* listening: the number of ranks of the listener, 0 once it is connected. */
int ep_base_connect_check(const char *name, int listening, int nranks, int rank);
/* For transports that create all contexts with the comm: createContext hands out an existing one. */
int ep_base_ctx_take(struct ep_base_comm *comm, int index);
void ep_base_ctx_give(struct ep_base_comm *comm, int index);
int ep_base_random(const char *name, void *out, size_t n);

/* Whether they are zeroes. To a rank with such a handle the library's own nets do not connect (ep_net_sparse). */
bool ep_base_is_blank(const void *bytes, size_t n);
bool ep_base_handle_blank(const void *handles, int rank);
/* While connecting: every put to the rank will be refused. */
void ep_base_peer_absent(struct ep_base_comm *comm, int peer);

static inline bool ep_base_is_absent(const struct ep_base_comm *comm, int peer)
{
	return __atomic_load_n(&comm->lost[peer], __ATOMIC_RELAXED) == ENOTCONN;
}

static inline const void *ep_base_handle(const void *handles, int rank)
{
	return (const uint8_t *)handles + (size_t)rank * NCCL_EP_NET_HANDLE_SIZE;
}

/* ---- peers ---- */

/* Records the peer as lost and logs "NAME: rank PEER is lost: REASON", once per peer. Returns -EP_EREMOTE. */
int ep_base_peer_lost(struct ep_base_comm *comm, int peer, const char *fmt, ...)
	__attribute__((cold, format(printf, 3, 4)));
int ep_base_queryLastError(void *comm, int peer, const char **text);
int ep_base_peer_refuse(const struct ep_base_comm *comm, int peer) __attribute__((cold));

static inline bool ep_base_is_lost(const struct ep_base_comm *comm, int peer)
{
	return __atomic_load_n(&comm->lost[peer], __ATOMIC_RELAXED);
}

/* -EP_EARG: no such rank; -EP_EREMOTE: it is lost or absent. */
static inline int ep_base_peer_check(const struct ep_base_comm *comm, int peer)
{
	if (__builtin_expect((unsigned)peer >= (unsigned)comm->nranks, 0))
		return ep_base_peer_refuse(comm, peer);
	return __builtin_expect(ep_base_is_lost(comm, peer), 0) ? -EP_EREMOTE : 0;
}

/* ns since the last call, 0 at the first; at most 1 s, so that a process that was stopped does not lose its peers. */
uint64_t ep_base_clock_step(uint64_t *last);

/* ---- memory ---- */

/* Address, size and descriptor; the caller has checked the kind. */
int ep_base_mem_check(const char *name, const ncclEpNetMem_v1_t *mem, bool dmabuf);

/*
 * shareMr: calls take with the key of each rank that is not absent. They must have registered the same size, a uint64_t
 * at size_at in the key.
 */
typedef int (*ep_base_key_fn)(struct ep_base_comm *comm, struct ep_base_mr *mr, int rank, const void *key);
int ep_base_mr_share(struct ep_base_comm *comm, struct ep_base_mr *mr, const void *keys, size_t size_at,
		     ep_base_key_fn take);

/* Zeroed memory in whole pages, for free(). NULL after an EP_FAIL: out of memory. */
void *ep_base_pages(const char *name, size_t size);

static inline void ep_base_key_write(void *key, const void *data, size_t n)
{
	memset(key, 0, NCCL_EP_NET_KEY_SIZE);
	memcpy(key, data, n);
}

static inline bool ep_base_mr_holds(const struct ep_base_mr *mr, uint64_t offset, uint64_t size)
{
	return mr && offset <= mr->size && size <= mr->size - offset;
}

/* ---- puts ---- */

int ep_base_put_refuse(const struct ep_base_comm *comm, const ncclEpNetPut_v1_t *put, uint64_t max_inline)
	__attribute__((cold));

/*
 * Whether both ends of a put lie in registrations. Call ep_base_peer_check first. dst and src are put->dstMr and
 * put->srcMr, passed so that they are not loaded again behind an acquire of the caller.
 */
static inline int ep_base_put_check(const struct ep_base_comm *comm, const ncclEpNetPut_v1_t *put,
				    const struct ep_base_mr *dst, const struct ep_base_mr *src, uint64_t max_inline)
{
	if (__builtin_expect(!ep_base_mr_holds(dst, put->dstOffset, put->size) || !dst->shared, 0))
		return ep_base_put_refuse(comm, put, max_inline);
	if (put->flags & NCCL_EP_NET_INLINE)
		return __builtin_expect(put->size <= max_inline, 1) ? 0 : ep_base_put_refuse(comm, put, max_inline);
	if (__builtin_expect(ep_base_mr_holds(src, put->srcOffset, put->size), 1))
		return 0;
	return ep_base_put_refuse(comm, put, max_inline);
}

#endif
