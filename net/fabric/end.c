/* SPDX-License-Identifier: Apache-2.0 */
/* Closing a comm: peers are told, and memory that they may still access is kept. */
#include <pthread.h>
#include <stdlib.h>

#include "net/fabric/fabric.h"
#include "util/clock.h"
#include "util/error.h"

#define BYE_MS 10 /* best effort: a peer that misses the bye detects the end otherwise */

/*
 * shm endpoints of one process access each other's memory directly: closing one crashes the others at their next poll
 * (seen with libfabric 1.17). So a comm waits here until all that it is connected to in this process are closed. The
 * net that created it may be finalized by then: its dev must not be used.
 */
static struct {
	pthread_mutex_t lock;
	struct fab_comm *waiting;
	struct kept *kept;
} yard = { .lock = PTHREAD_MUTEX_INITIALIZER };

/*
 * A page of a closed comm over shm, which writes a peer's bye to the page's address, registered or not: freed, it may
 * be part of the heap by then (seen: a crash in malloc). So it is kept until all byes are there, and for ever if a peer
 * died without one: one page. In the page's own words, where this rank's hellos were.
 */
struct kept {
	struct kept *next;
	int nranks;
};

static struct fab_hello *kept_page(struct kept *k)
{
	return (struct fab_hello *)(void *)k - k->nranks;
}

static bool kept_needed(struct kept *k)
{
	const struct fab_hello *in = kept_page(k);

	for (int r = 0; r < k->nranks; r++)
		if (!__atomic_load_n(&in[r].bye, __ATOMIC_RELAXED))
			return true;
	return false;
}

/* Instead of freeing it; frees those that are no longer needed. */
static void page_keep(const struct fab_comm *comm)
{
	struct kept *mine = (struct kept *)(void *)&comm->page[comm->base.nranks], **at = &yard.kept;

	for (int r = 0; r < comm->base.nranks; r++)
		if (r == comm->base.rank || ep_base_is_absent(&comm->base, r)) /* these say none */
			comm->page[r].bye = 1;
	pthread_mutex_lock(&yard.lock);
	*mine = (struct kept){ yard.kept, comm->base.nranks };
	yard.kept = mine;
	while (*at) {
		struct kept *k = *at;

		if (kept_needed(k)) {
			at = &k->next;
			continue;
		}
		*at = k->next;
		free(kept_page(k));
	}
	pthread_mutex_unlock(&yard.lock);
}

void fab_comm_free(struct fab_comm *comm)
{
	fab_mr_close(comm->page_mr);
	for (int i = 0; i < FAB_CONTEXTS; i++)
		fab_ctx_close(comm->ctx[i]);
	ep_watch_close(&comm->watch);
	if (comm->keeps)
		page_keep(comm);
	else
		free(comm->page);
	ep_base_comm_close(&comm->base);
	free(comm->kin);
	free(comm);
}

static bool is_kin(const struct fab_comm *comm, const struct fab_comm *other)
{
	for (int i = 0; i < comm->kin_count; i++)
		if (comm->kin[i] == other->nonce)
			return true;
	return false;
}

/* The comms that can be freed now that this one is closed. */
static struct fab_comm *yard_enter(struct fab_comm *comm)
{
	struct fab_comm *gone = NULL, **at = &yard.waiting;

	pthread_mutex_lock(&yard.lock);
	for (struct fab_comm *c = yard.waiting; c; c = c->waiting) {
		bool kin = is_kin(comm, c); /* and the other way round: both have each other's handle */

		c->kin_gone += kin;
		comm->kin_gone += kin;
	}
	comm->waiting = yard.waiting;
	yard.waiting = comm;
	while (*at) {
		struct fab_comm *c = *at;

		if (c->kin_gone < c->kin_count) {
			at = &c->waiting;
			continue;
		}
		*at = c->waiting;
		c->waiting = gone;
		gone = c;
	}
	pthread_mutex_unlock(&yard.lock);
	return gone;
}

/* Tells all peers that this rank closes, so that later puts to it fail at once. */
static void bye_say(struct fab_comm *comm)
{
	uint64_t word = 1, end = ep_deadline_ms(BYE_MS);
	void *request;
	int n;

	comm->base.closing = true;
	for (int r = 0; r < comm->base.nranks; r++) {
		ncclEpNetPut_v1_t put = {
			.peer = r,
			.flags = NCCL_EP_NET_INLINE,
			.src = &word,
			.dstMr = comm->page_mr,
			.dstOffset =
				(uint64_t)comm->base.rank * sizeof(struct fab_hello) + offsetof(struct fab_hello, bye),
			.size = sizeof(word),
		};

		/* Over shm also to who has left: it keeps its page until then. */
		if (r != comm->base.rank && !ep_base_is_lost(&comm->base, r) &&
		    (comm->dev->profile->entangled || !fab_peer_left(comm, r)))
			fab_iput(comm->ctx[0], &put, &request);
	}
	while (comm->ctx[0]->live && ep_now_ns() < end && !fab_progress(comm->ctx[0], NULL, 0, &n))
		;
}

void fab_comm_end(struct fab_comm *comm)
{
	struct fab_comm *next;

	comm->keeps = comm->dev->profile->entangled && comm->page;
	if (comm->dev->profile->entangled && comm->kin_count)
		comm = yard_enter(comm);
	for (; comm; comm = next) {
		next = comm->waiting;
		fab_comm_free(comm);
	}
}

int fab_closeComm(void *comm)
{
	bye_say(comm);
	fab_comm_end(comm);
	return 0;
}
