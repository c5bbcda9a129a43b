/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint without a service thread: the test turns its loop, and says through it what a true rank never would. */
#ifndef EP_TEST_BOOT_LIAR_H
#define EP_TEST_BOOT_LIAR_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/boot/boot.h"
#include "plugin/boot/endpoint.h"
#include "plugin/boot/mesh.h"
#include "plugin/boot/silence.h"
#include "util/clock.h"

static inline struct ep_boot *liar_new(const struct ep_boot_id *id, int rank, int nranks, bool survive)
{
	struct ep_boot *b = calloc(1, sizeof(*b));

	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->cond, NULL);
	b->pid = getpid();
	memcpy(b->secret, id->secret, sizeof(b->secret));
	b->rank = b->self.rank = (uint32_t)rank;
	b->nranks = (uint32_t)nranks;
	b->timeout_ms = 20000;
	b->survive = survive;
	b->deadline = ep_deadline_ms(b->timeout_ms);
	b->ping_ns = 1000000000ull * 3600;
	b->host = EP_NO_RANK;
	b->failed.rank = -1;
	b->left_first = b->end_seq = UINT64_MAX;
	b->state = calloc(b->nranks, sizeof(*b->state));
	b->silence = calloc(b->nranks, sizeof(*b->silence));
	b->left_seq = malloc(b->nranks * sizeof(*b->left_seq));
	memset(b->left_seq, 0xff, b->nranks * sizeof(*b->left_seq));
	return b;
}

/* Turns the loop while the condition holds, for at most 20 s; its value is whether it no longer does. */
#define LIAR_WHILE(b, cond)                                                    \
	({                                                                     \
		uint64_t until_ = ep_deadline_ms(20000);                       \
		while ((cond) && ep_now_ns() < until_)                         \
			ep_loop_turn(&(b)->loop, ep_now_ns() + 1000000, NULL); \
		(cond) ? false : true;                                         \
	})

/* A true rank so far: connected to all its neighbours. */
static inline bool liar_meet(struct ep_boot *b, const struct ep_boot_id *id)
{
	return !ep_mesh_start(b, id) && LIAR_WHILE(b, b->phase == EP_MEETING && !b->err) && !b->err;
}

/* Its part in a collective, in which it also forwards what it receives. */
static inline bool liar_gather(struct ep_boot *b, const void *mine, size_t n, void *all)
{
	if (ep_mesh_begin(b, mine, n) || !LIAR_WHILE(b, !ep_gather_done(&b->gather) && !b->err) || b->err)
		return false;
	ep_gather_end(&b->gather, all);
	return true;
}

/* Sends a frame over every edge. */
static inline void liar_say(struct ep_boot *b, const struct ep_frame *f, const void *body)
{
	for (struct ep_conn *c = b->loop.conns; c; c = c->next)
		if (c->purpose == EP_TO_RANK && c->state == EP_CONN_READY)
			ep_loop_post(&b->loop, c, f, body);
}

/* After liar_meet; without a farewell, as if it died. */
static inline void liar_free(struct ep_boot *b)
{
	while (b->notices) {
		struct ep_blob *blob = b->notices;

		b->notices = blob->next;
		ep_blob_put(blob);
	}
	ep_fd_free(b);
	ep_gather_free(&b->gather);
	ep_loop_free(&b->loop);
	pthread_cond_destroy(&b->cond);
	pthread_mutex_destroy(&b->lock);
	free(b->peers);
	free(b->state);
	free(b->silence);
	free(b->left_seq);
	free(b);
}

#endif
