/* SPDX-License-Identifier: Apache-2.0 */
/* How a comm ends: a word to the others, and no memory taken away that they still look at. */
#include <pthread.h>
#include <stdlib.h>

#include "net/fabric/fabric.h"
#include "util/clock.h"
#include "util/error.h"

#define BYE_MS 10 /* a courtesy: whoever does not get it learns of the end in another way */

/*
 * Endpoints of shm in one process use each other's memory as it is: one that is closed takes it away under the others'
 * feet (seen with libfabric 1.17: a crash in the others' next look at their queues). So comms of one group and process
 * wait here for the last of them; the net that made them may be gone by then, so their device is not looked at.
 */
static struct {
	pthread_mutex_t lock;
	struct fab_comm *waiting;
} yard = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Of any state. */
void fab_comm_free(struct fab_comm *comm)
{
	fab_mr_close(comm->page_mr);
	for (int i = 0; i < FAB_CONTEXTS; i++)
		fab_ctx_close(comm->ctx[i]);
	ep_watch_close(&comm->watch);
	ep_base_comm_close(&comm->base);
	free(comm->page);
	free(comm);
}

/* The comms that can go now that this one wants to: all of its group, or none. */
static struct fab_comm *yard_enter(struct fab_comm *comm)
{
	struct fab_comm *gone = NULL, **at;
	int count = 1;

	comm->waiting = NULL;
	pthread_mutex_lock(&yard.lock);
	for (struct fab_comm *c = yard.waiting; c; c = c->waiting)
		count += c->group == comm->group;
	for (at = &yard.waiting; *at && count >= comm->here;) {
		struct fab_comm *c = *at;

		if (c->group != comm->group) {
			at = &c->waiting;
			continue;
		}
		*at = c->waiting;
		c->waiting = gone;
		gone = c;
	}
	if (count < comm->here) {
		comm->waiting = yard.waiting;
		yard.waiting = comm;
	} else {
		comm->waiting = gone;
		gone = comm;
	}
	pthread_mutex_unlock(&yard.lock);
	return gone;
}

/* Tells everybody that this rank closes: whoever puts to it later is told so at once. */
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

		if (r != comm->base.rank && !ep_base_is_lost(&comm->base, r) && !fab_peer_left(comm, r))
			fab_iput(comm->ctx[0], &put, &request);
	}
	while (comm->ctx[0]->live && ep_now_ns() < end && !fab_progress(comm->ctx[0], NULL, 0, &n))
		;
}

void fab_comm_end(struct fab_comm *comm)
{
	struct fab_comm *next;

	if (comm->dev->profile->entangled && comm->here > 1)
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
