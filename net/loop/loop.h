/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the loop net: loop.c (table, connections, registrations), put.c (hot path), map.c (shared memory). Each
 * rank owns a segment of shared memory: a header, then for every sender a slice with one ring of immediates per
 * context. Ranks of one process use each other's pointers (a second mapping would hide their synchronisation from race
 * detectors and cost page table entries); others map the segment by its descriptor.
 */
#ifndef EP_NET_LOOP_H
#define EP_NET_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_ep_net.h"
#include "net/base/base.h"
#include "net/watch.h"

#define LOOP_CONTEXTS 16
/* Immediates a sender may be ahead of the receiver. 2 KiB: a ring stays in the L1 cache. */
#define LOOP_RING 512u
#define LOOP_LINE 64

/* Single producer, single consumer. Both counters only grow; the slot is the counter modulo LOOP_RING. */
struct loop_ring {
	uint32_t tail; /* written by the sender */
	uint8_t pad0[LOOP_LINE - 4];
	uint32_t head; /* written by the receiver */
	uint8_t pad1[LOOP_LINE - 4];
	uint32_t imm[LOOP_RING];
};
_Static_assert(sizeof(struct loop_ring) == 2 * LOOP_LINE + 4 * LOOP_RING, "layout is shared between processes");

/* Peers may write to it: the owner keeps what it relies on elsewhere, see struct page in map.c. */
struct loop_header {
	uint64_t nonce[2];
	uint32_t closed, reserved;
};

/* Memory of another process, opened by its descriptor number there; dev and ino prove that it is the same file. */
struct loop_object {
	uint64_t dev, ino, offset, size;
	int32_t pid, fd;
	uint64_t address; /* names a registration in the owner's process; never dereferenced unchecked */
};
_Static_assert(sizeof(struct loop_object) <= NCCL_EP_NET_KEY_SIZE, "must fit in a key");

struct loop_handle {
	struct loop_object object;
	uint64_t nonce[2];
	uint32_t magic, nranks;
};
_Static_assert(sizeof(struct loop_handle) <= NCCL_EP_NET_HANDLE_SIZE, "must fit in a handle");

/* Memory of a peer. mapped NULL: the peer is in this process, and base is its own pointer. */
struct loop_view {
	uint8_t *base;
	void *mapped;
	size_t mapped_size;
};

struct loop_peer {
	struct loop_header *header;
	struct loop_view views[2];
	int pid;
};

struct loop_comm {
	struct ep_base_comm base;
	struct ep_watch watch;
	int page_fd;
	struct loop_header *page;
	struct loop_peer *peers;
};

/* The rings of one context to and from a peer. */
struct loop_conn {
	struct loop_ring *to, *from;
	uint32_t tail, head_seen, head;
	int next; /* peer that is polled after this one; -1: the first */
};

struct loop_ctx {
	struct loop_comm *comm;
	uint32_t calls;
	int first; /* peer; -1: none */
	int next;  /* sender whose ring is polled first: a busy one must not starve the others */
	struct loop_conn conns[];
};

struct loop_mr {
	struct ep_base_mr base;
	struct loop_mr *next;		 /* of this process's list */
	const struct loop_header *owner; /* the page of the comm */
	int fd, nranks;
	struct loop_view views[]; /* by rank; all NULL before shareMr */
};

extern const ncclEpNetHot_v1_t loop_hot;

size_t loop_page_size(int nranks);
struct loop_ring *loop_rings(void *page, int sender);

/* Creates this rank's segment. The caller closes the descriptor after every peer has opened it. */
int loop_page_make(int nranks, struct loop_handle *handle, struct loop_header **page, int *fd);
/* Opens a peer's header (views[0]) and the slice of sender `rank` in its segment (views[1]). */
int loop_page_open(const struct loop_handle *handle, int peer, int rank, struct loop_header **header,
		   struct loop_view *views);
void loop_page_close(struct loop_header *header, struct loop_view *views);
/* Drops one use of the mapping in the owner's process. */
void loop_page_leave(struct loop_header *page);

/* The registrations of this process, which peers in it find by owner, address and size. */
void loop_mr_add(struct loop_mr *mr);
void loop_mr_remove(struct loop_mr *mr);

/* Describes [ptr, ptr + size) for peers. fd -1: usable in this process only. */
int loop_object_make(void *ptr, size_t size, int fd, uint64_t offset, struct loop_object *out);
/* rank: the peer's number, for messages. */
int loop_object_open(const struct loop_object *object, int rank, const struct loop_peer *peer, struct loop_view *out);
void loop_view_close(struct loop_view *view);

#endif
