/* SPDX-License-Identifier: Apache-2.0 */
/* The hot path of the loop net: copies, immediates, lost peers. */
#include <string.h>

#include "net/loop/loop.h"
#include "net/table.h"
#include "util/error.h"

/* Calls of progress between two checks of the peers' processes: a check is a system call, 0.3 us. */
#define LOOK_EVERY 256u

static char loop_done; /* every request is its address */

static inline int peer_check(struct loop_comm *comm, int peer)
{
	int rc = ep_base_peer_check(&comm->base, peer);

	if (__builtin_expect(rc, 0))
		return rc;
	/* A1: pairs with R1 in loop_closeComm. */
	if (__builtin_expect(__atomic_load_n(&comm->peers[peer].header->closed, __ATOMIC_ACQUIRE), 0))
		return ep_base_peer_lost(&comm->base, peer, "it has closed its comm");
	return 0;
}

/* The addresses of both ends of a put. A copy has no inline limit. */
static inline int ends_find(struct loop_ctx *ctx, const ncclEpNetPut_v1_t *put, uint8_t **near, uint8_t **far)
{
	const struct loop_mr *dst = put->dstMr, *src = put->srcMr;
	struct loop_comm *comm = ctx->comm;
	int rc = peer_check(comm, put->peer);

	if (__builtin_expect(rc, 0))
		return rc;
	rc = ep_base_put_check(&comm->base, put, (const struct ep_base_mr *)dst, (const struct ep_base_mr *)src,
			       UINT64_MAX);
	if (__builtin_expect(rc, 0))
		return rc;
	*far = dst->views[put->peer].base + put->dstOffset;
	*near = put->flags & NCCL_EP_NET_INLINE ? (uint8_t *)(uintptr_t)put->src : src->base.base + put->srcOffset;
	return 0;
}

/* An aligned word is one store, after all earlier copies of this thread: P1 and P3 of nccl_ep_net.h. */
static void bytes_move(uint8_t *to, const uint8_t *from, uint64_t size)
{
	uint64_t word;

	if (size == 8 && (uintptr_t)to % 8 == 0) {
		memcpy(&word, from, 8);
		/* R3: pairs with the acquire load of whoever polls this word. */
		__atomic_store_n((uint64_t *)to, word, __ATOMIC_RELEASE);
		return;
	}
	memcpy(to, from, size);
}

static bool conn_room(struct loop_conn *conn)
{
	if (conn->tail - conn->head_seen < LOOP_RING)
		return true;
	/* A4: pairs with R4 in conn_take: the slot has been read. */
	conn->head_seen = __atomic_load_n(&conn->to->head, __ATOMIC_ACQUIRE);
	return conn->tail - conn->head_seen < LOOP_RING;
}

static void conn_give(struct loop_conn *conn, uint32_t imm)
{
	conn->to->imm[conn->tail % LOOP_RING] = imm;
	/* R5: pairs with A5 in conn_take: the immediate and the bytes of its put. */
	__atomic_store_n(&conn->to->tail, ++conn->tail, __ATOMIC_RELEASE);
}

static int conn_take(struct loop_conn *conn, uint32_t *imms, int max)
{
	/* A5: pairs with R5 in conn_give. */
	uint32_t ready = __atomic_load_n(&conn->from->tail, __ATOMIC_ACQUIRE) - conn->head;
	int n;

	if (!ready)
		return 0;
	if (ready > LOOP_RING) /* the counter is the peer's and not trusted */
		ready = LOOP_RING;
	n = ready < (uint32_t)max ? (int)ready : max;
	for (int i = 0; i < n; i++)
		imms[i] = conn->from->imm[conn->head++ % LOOP_RING];
	/* R4: pairs with A4 in conn_room. */
	__atomic_store_n(&conn->from->head, conn->head, __ATOMIC_RELEASE);
	return n;
}

static int loop_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	struct loop_ctx *ctx = c;
	uint8_t *near = NULL, *far = NULL;
	int rc;

	*request = NULL;
	rc = ends_find(ctx, put, &near, &far);
	if (__builtin_expect(rc, 0))
		return rc;
	if (put->flags & NCCL_EP_NET_IMM) {
		if (!conn_room(&ctx->conns[put->peer]))
			return 0;
		bytes_move(far, near, put->size);
		conn_give(&ctx->conns[put->peer], put->imm);
	} else {
		bytes_move(far, near, put->size);
	}
	*request = put->flags & NCCL_EP_NET_QUIET ? NCCL_EP_NET_QUIET_REQUEST : &loop_done;
	return 0;
}

/* CPU stores to host memory need no flush. */
static int loop_iflush(void *ctx, void *mr, void **request)
{
	(void)ctx;
	(void)mr;
	*request = &loop_done;
	return 0;
}

static int loop_test(void *ctx, void *request, int *done)
{
	(void)ctx;
	(void)request;
	*done = 1;
	return 0;
}

static void process_gone(void *comm, int rank)
{
	ep_base_peer_lost(comm, rank, "its process ended");
}

static int loop_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct loop_ctx *ctx = c;
	int n = 0, r = ctx->next;

	if (++ctx->calls % LOOK_EVERY == 0)
		ep_watch_look(&ctx->comm->watch, process_gone, ctx->comm);
	if (r < 0) { /* not even to itself */
		*count = 0;
		return 0;
	}
	do {
		n += conn_take(&ctx->conns[r], n ? imms + n : imms, max - n); /* imms may be NULL */
		r = ctx->conns[r].next < 0 ? ctx->first : ctx->conns[r].next;
	} while (r != ctx->next && n < max);
	ctx->next = ctx->conns[ctx->next].next < 0 ? ctx->first : ctx->conns[ctx->next].next;
	*count = n;
	return 0;
}

const ncclEpNetHot_v1_t loop_hot = { EP_NET_HOT_OPS(loop) };
