/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The neighbours of a rank notice its death, as their connections to it close, and the notice floods the mesh; each
 * rank forwards each notice once. A rank that leaves tells only its neighbours; they tell everybody when a collective
 * needs it. (Telling all at once costs R * R * log R frames when all ranks leave, which is the normal end.)
 */
#include "plugin/boot/notice.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "util/error.h"

/*
 * Every pair of 64 ranks, and in larger groups those of one rank with all: a rank that invents pairs must not fill the
 * memory of the others. Without the notice the lost rank learns by its own deadline.
 */
#define PARTED_MAX 4096u

static bool is_edge(const struct ep_conn *c)
{
	return c->purpose == EP_TO_RANK && c->state == EP_CONN_READY;
}

static void spread(struct ep_boot *b, const struct ep_frame *f, const char *why, struct ep_conn *from)
{
	struct ep_blob *blob = ep_blob_new(f, why);
	int rc = blob ? 0 : -ENOMEM;

	for (struct ep_conn *c = b->loop.conns; c && !rc; c = c->next)
		if (is_edge(c) && c != from)
			rc = ep_loop_send(&b->loop, c, blob);
	if (blob) { /* the reference stays with the list */
		if (b->notices_tail)
			b->notices_tail->next = blob;
		else
			b->notices = blob;
		b->notices_tail = blob;
	}
	if (rc)
		ep_endpoint_fail(b, ENOMEM, b->rank, "rank %u: out of memory forwarding a death notice", b->rank);
}

void ep_notice_tell(struct ep_boot *b, struct ep_conn *c)
{
	for (struct ep_blob *blob = b->notices; blob; blob = blob->next)
		if (ep_loop_send(&b->loop, c, blob))
			ep_endpoint_fail(b, ENOMEM, b->rank, "rank %u: out of memory forwarding a death notice",
					 b->rank);
}

/* The rank takes no part in collectives `from` and later. */
static void excuse(struct ep_boot *b, uint32_t rank, uint64_t from)
{
	if (ep_gather_gone(&b->gather, rank, from))
		ep_endpoint_fail(b, ENOMEM, b->rank, "rank %u: out of memory forwarding blocks", b->rank);
	pthread_cond_broadcast(&b->cond);
	ep_endpoint_repair(b);
}

/* A rank that died is to blame itself; one that gave up says who is. */
static struct ep_blame blame_of(const struct ep_boot *b, const struct ep_frame *f)
{
	if (f->type == EP_F_PARTED)
		return (struct ep_blame){ (int)f->rank, EP_EV_LOST };
	if (f->index != 1 || f->seq < EP_EV_MISSING || f->seq > EP_EV_CERTAIN)
		return (struct ep_blame){ (int)f->rank, EP_EV_CERTAIN };
	return (struct ep_blame){ f->total < b->nranks ? (int)f->total : -1, (enum ep_evidence)f->seq };
}

void ep_notice_gone(struct ep_boot *b, const struct ep_frame *f, const char *why, struct ep_conn *from)
{
	struct ep_blame blame = blame_of(b, f);
	struct ep_frame out = *f;
	uint32_t rank = f->rank;

	if (b->state[rank] == EP_RANK_GONE)
		return;
	b->state[rank] = EP_RANK_GONE;
	out.bytes = (uint32_t)strnlen(why, EP_WHY_MAX - 1);
	spread(b, &out, why, from);
	if (blame.evidence > b->failed.evidence) {
		b->failed = blame;
		snprintf(b->failed_why, sizeof(b->failed_why), "%s", why);
	}
	if (rank == b->rank && !from)
		return; /* it gave up itself */
	if (rank == b->rank) {
		ep_endpoint_fail(b, EP_EREMOTE, rank, "the other ranks report rank %u, this one, as dead: %s", rank,
				 why);
		return;
	}
	if (b->survive)
		excuse(b, rank, 0);
	else
		ep_endpoint_blame(b, ep_frame_err(f), blame, why);
}

/* Both ranks are alive and stay in the collectives: only the lost one needs to know. */
void ep_notice_parted(struct ep_boot *b, const struct ep_frame *f, const char *why, struct ep_conn *from)
{
	struct ep_frame out = *f;
	uint32_t parted = 0;

	for (const struct ep_blob *n = b->notices; n; n = n->next) {
		if (n->frame.type == EP_F_PARTED && n->frame.rank == f->rank && n->frame.seq == f->seq)
			return;
		parted += n->frame.type == EP_F_PARTED;
	}
	if (parted >= PARTED_MAX + 2 * b->nranks)
		return;
	out.bytes = (uint32_t)strnlen(why, EP_WHY_MAX - 1);
	spread(b, &out, why, from);
}

void ep_notice_left(struct ep_boot *b, uint32_t rank, uint64_t seq)
{
	if (b->state[rank] >= EP_RANK_LEFT)
		return;
	b->state[rank] = EP_RANK_LEFT;
	b->left_seq[rank] = seq;
	ep_gather_passed(&b->gather, seq);
	pthread_cond_broadcast(&b->cond);
	b->left_first = seq < b->left_first ? seq : b->left_first;
	ep_notice_check_left(b);
}

void ep_notice_spread_left(struct ep_boot *b, uint32_t rank, uint64_t seq, struct ep_conn *from)
{
	struct ep_frame f = { .type = EP_F_LEFT, .rank = rank, .seq = seq };

	if (b->state[rank] == EP_RANK_GONE || (b->state[rank] == EP_RANK_LEFT && b->left_seq[rank] == UINT64_MAX))
		return;
	b->state[rank] = EP_RANK_LEFT;
	b->left_seq[rank] = UINT64_MAX;
	spread(b, &f, NULL, from);
	if (b->survive) {
		excuse(b, rank, seq);
	} else if (seq < b->end_seq) {
		/* Earlier collectives are complete elsewhere; their blocks may still be on the way. */
		b->end_seq = seq;
		b->end_rank = rank;
		if (b->busy && b->gather.seq >= seq)
			ep_notice_ended(b);
	}
}

void ep_notice_ended(struct ep_boot *b)
{
	char why[EP_WHY_MAX];

	snprintf(why, sizeof(why), "rank %u has left, but collective %llu needs it", b->end_rank,
		 (unsigned long long)b->gather.seq);
	/* Weak: it may have left because of another rank. */
	ep_endpoint_blame(b, EP_EREMOTE, (struct ep_blame){ (int)b->end_rank, EP_EV_MISSING }, why);
}

void ep_notice_check_left(struct ep_boot *b)
{
	uint64_t first = UINT64_MAX;

	if (b->left_first == UINT64_MAX || !ep_gather_seen(&b->gather, b->left_first))
		return;
	for (uint32_t r = 0; r < b->nranks; r++) {
		if (b->left_seq[r] == UINT64_MAX)
			continue;
		if (ep_gather_seen(&b->gather, b->left_seq[r]))
			ep_notice_spread_left(b, r, b->left_seq[r], NULL);
		else
			first = b->left_seq[r] < first ? b->left_seq[r] : first;
	}
	b->left_first = first;
}

/* Whether gone_fn is called for it. */
static bool is_news(const struct ep_boot *b, const struct ep_frame *f)
{
	if (f->rank == b->rank)
		return false;
	return f->type == EP_F_GONE || (f->type == EP_F_PARTED && f->seq == b->rank);
}

void ep_notice_callbacks(struct ep_boot *b)
{
	for (;;) {
		struct ep_blob *blob = b->told ? b->told->next : b->notices;
		char why[EP_WHY_MAX + 1];
		struct ep_blame blame;
		uint32_t rank;

		if (!blob || !b->opened)
			return;
		b->told = blob;
		if (!is_news(b, &blob->frame) || !b->gone_fn)
			continue;
		rank = blob->frame.rank;
		blame = blame_of(b, &blob->frame);
		snprintf(why, sizeof(why), "%.*s", (int)blob->frame.bytes, (const char *)blob->body);
		pthread_mutex_unlock(&b->lock);
		b->gone_fn(b->gone_ctx, (int)rank, blame, why);
		pthread_mutex_lock(&b->lock);
	}
}
