/* SPDX-License-Identifier: Apache-2.0 */
/* The hot half of the loop net: copies, immediates, and who is still there. */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "net/loop/loop.h"
#include "util/error.h"

/* Calls of progress between two looks at the other processes: a look is a system call, 0.3 us. */
#define LOOK_EVERY 256u

static char loop_done; /* its address is every request */

/* Several contexts may find out at once: the first writes the sentence (-1 meanwhile), all answer the same. */
static int peer_lost(struct loop_comm *comm, int peer, const char *what)
{
	struct loop_peer *p = &comm->peers[peer];
	int none = 0;

	if (!__atomic_compare_exchange_n(&p->failed, &none, -1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return -EP_EREMOTE;
	snprintf(p->why, sizeof(p->why), "loop: rank %d %s", peer, what);
	/* R2: pairs with A2 in loop_queryLastError. */
	__atomic_store_n(&p->failed, EP_EREMOTE, __ATOMIC_RELEASE);
	return EP_FAIL(EP_NET, EP_EREMOTE, "%s", p->why);
}

static int peer_ok(struct loop_comm *comm, int peer)
{
	if (__builtin_expect((unsigned)peer >= (unsigned)comm->nranks, 0))
		return EP_FAIL(EP_NET, EP_EARG, "loop: rank %d of %d", peer, comm->nranks);
	if (__builtin_expect(__atomic_load_n(&comm->peers[peer].failed, __ATOMIC_RELAXED), 0))
		return -EP_EREMOTE;
	/* A1: pairs with R1 in loop_closeComm. */
	if (__builtin_expect(__atomic_load_n(&comm->peers[peer].header->closed, __ATOMIC_ACQUIRE), 0))
		return peer_lost(comm, peer, "has closed its side");
	return 0;
}

static bool mr_holds(const struct loop_mr *mr, uint64_t offset, uint64_t size)
{
	return mr && offset <= mr->size && size <= mr->size - offset;
}

/* Where both ends are, for puts and gets alike. */
static int ends_find(struct loop_ctx *ctx, const ncclEpNetPut_v1_t *put, uint8_t **near, uint8_t **far)
{
	struct loop_mr *dst = put->dstMr, *src = put->srcMr;
	int rc = peer_ok(ctx->comm, put->peer);

	if (__builtin_expect(rc, 0))
		return rc;
	if (__builtin_expect(!mr_holds(dst, put->dstOffset, put->size) || !dst->shared, 0))
		return EP_FAIL(EP_NET, EP_EARG, "loop: %llu bytes at %llu are not in a shared registration",
			       (unsigned long long)put->size, (unsigned long long)put->dstOffset);
	*far = dst->views[put->peer].base + put->dstOffset;
	if (put->flags & NCCL_EP_NET_INLINE) {
		*near = (uint8_t *)(uintptr_t)put->src;
		return 0;
	}
	if (__builtin_expect(!mr_holds(src, put->srcOffset, put->size), 0))
		return EP_FAIL(EP_NET, EP_EARG, "loop: %llu bytes at %llu are not in the source's registration",
			       (unsigned long long)put->size, (unsigned long long)put->srcOffset);
	*near = src->base + put->srcOffset;
	return 0;
}

/* A word is a store of its own, behind all that this thread copied before: P1 and P3 of the table. */
static void bytes_move(uint8_t *to, const uint8_t *from, uint64_t size)
{
	uint64_t word;

	if (size == 8 && (uintptr_t)to % 8 == 0) {
		memcpy(&word, from, 8);
		/* R3: pairs with the acquire of whoever waits for this word. */
		__atomic_store_n((uint64_t *)to, word, __ATOMIC_RELEASE);
		return;
	}
	memcpy(to, from, size);
}

static bool lane_room(struct loop_lane *lane)
{
	if (lane->tail - lane->head_seen < LOOP_RING)
		return true;
	/* A4: pairs with R4 in lane_take: the slot has been read. */
	lane->head_seen = __atomic_load_n(&lane->to->head, __ATOMIC_ACQUIRE);
	return lane->tail - lane->head_seen < LOOP_RING;
}

static void lane_give(struct loop_lane *lane, uint32_t imm)
{
	lane->to->imm[lane->tail % LOOP_RING] = imm;
	/* R5: pairs with A5 in lane_take: the immediate, and the bytes of its put. */
	__atomic_store_n(&lane->to->tail, ++lane->tail, __ATOMIC_RELEASE);
}

static int lane_take(struct loop_lane *lane, int peer, ncclEpNetImm_v1_t *imms, int max)
{
	/* A5: pairs with R5 in lane_give. */
	uint32_t ready = __atomic_load_n(&lane->from->tail, __ATOMIC_ACQUIRE) - lane->head;
	int n;

	if (!ready)
		return 0;
	if (ready > LOOP_RING) /* a peer wrote nonsense: never more than a ring */
		ready = LOOP_RING;
	n = ready < (uint32_t)max ? (int)ready : max;
	for (int i = 0; i < n; i++)
		imms[i] = (ncclEpNetImm_v1_t){ .peer = peer, .imm = lane->from->imm[lane->head++ % LOOP_RING] };
	/* R4: pairs with A4 in lane_room. */
	__atomic_store_n(&lane->from->head, lane->head, __ATOMIC_RELEASE);
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
		if (!lane_room(&ctx->lanes[put->peer]))
			return 0;
		bytes_move(far, near, put->size);
		lane_give(&ctx->lanes[put->peer], put->imm);
	} else {
		bytes_move(far, near, put->size);
	}
	*request = put->flags & NCCL_EP_NET_QUIET ? NCCL_EP_NET_QUIET_REQUEST : &loop_done;
	return 0;
}

static int loop_iputSignal(void *c, const ncclEpNetPut_v1_t *put, const ncclEpNetSignal_v1_t *signal, void **request)
{
	struct loop_mr *mr = signal->mr;
	int rc;

	*request = NULL;
	if (!mr_holds(mr, signal->offset, 8) || !mr->shared || signal->offset % 8)
		return EP_FAIL(EP_NET, EP_EARG, "loop: the signal at %llu is not in a shared registration",
			       (unsigned long long)signal->offset);
	rc = loop_iput(c, put, request);
	if (*request)
		bytes_move(mr->views[put->peer].base + signal->offset, (const uint8_t *)&signal->value, 8);
	return rc;
}

static int loop_iget(void *c, const ncclEpNetPut_v1_t *get, void **request)
{
	uint8_t *near = NULL, *far = NULL;
	int rc;

	*request = NULL;
	if (get->flags & (NCCL_EP_NET_INLINE | NCCL_EP_NET_IMM))
		return EP_FAIL(EP_NET, EP_EARG, "loop: a get has no immediate and goes to registered memory");
	rc = ends_find(c, get, &near, &far);
	if (rc)
		return rc;
	bytes_move(near, far, get->size);
	*request = get->flags & NCCL_EP_NET_QUIET ? NCCL_EP_NET_QUIET_REQUEST : &loop_done;
	return 0;
}

/* A processor's stores need no flush to be seen by processors. */
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

static void comm_look(struct loop_comm *comm)
{
	struct epoll_event events[16];
	int n = epoll_wait(comm->epoll, events, 16, 0);

	for (int i = 0; i < n; i++) {
		const struct loop_peer *gone = &comm->peers[events[i].data.u32];

		for (int r = 0; r < comm->nranks; r++)
			if (comm->peers[r].pid == gone->pid)
				peer_lost(comm, r, "is gone: its process ended");
		epoll_ctl(comm->epoll, EPOLL_CTL_DEL, gone->pidfd, NULL);
	}
}

static int loop_progress(void *c, ncclEpNetImm_v1_t *imms, int max, int *count)
{
	struct loop_ctx *ctx = c;
	int n = 0, nranks = ctx->comm->nranks;

	if (++ctx->calls % LOOK_EVERY == 0)
		comm_look(ctx->comm);
	for (int i = 0, r = ctx->next; i < nranks && n < max; i++, r = r + 1 < nranks ? r + 1 : 0)
		n += lane_take(&ctx->lanes[r], r, imms + n, max - n);
	ctx->next = ctx->next + 1 < nranks ? ctx->next + 1 : 0;
	*count = n;
	return 0;
}

const ncclEpNetHot_v1_t loop_hot = {
	.iput = loop_iput,
	.iputSignal = loop_iputSignal,
	.iget = loop_iget,
	.iflush = loop_iflush,
	.test = loop_test,
	.progress = loop_progress,
};
