/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/silence.h"

#include <errno.h>
#include <stdio.h>

#include "util/clock.h"
#include "util/error.h"

#define SHOWN 4 /* ranks named in a message */

static bool is_edge(const struct ep_conn *c)
{
	return c->purpose == EP_TO_RANK && c->state == EP_CONN_READY;
}

static struct ep_frame frame_of(const struct ep_boot *b, uint32_t rank)
{
	const struct ep_silence *s = &b->silence[rank];
	uint64_t now = ep_now_ns();

	return (struct ep_frame){ .type = EP_F_SILENT,
				  .rank = rank,
				  .index = s->by,
				  .seq = s->seq,
				  .total = now > s->since ? (now - s->since) / 1000000 : 0 };
}

/* Out of memory is no failure: it costs a hint. */
static void spread(struct ep_boot *b, uint32_t rank, const struct ep_conn *from)
{
	struct ep_frame f = frame_of(b, rank);

	for (struct ep_conn *c = b->loop.conns; c; c = c->next)
		if (is_edge(c) && c != from)
			ep_loop_post(&b->loop, c, &f, NULL);
	pthread_cond_broadcast(&b->cond);
}

static void silent_from(struct ep_boot *b, uint32_t rank, uint64_t since)
{
	struct ep_silence *s = &b->silence[rank];

	if (s->seq & 1)
		return;
	*s = (struct ep_silence){ .seq = s->seq + 1, .since = since, .by = b->rank };
	EP_INFO(EP_BOOT, "rank %u: rank %u does not answer pings", b->rank, rank);
	spread(b, rank, NULL);
}

static void answers(struct ep_boot *b, uint32_t rank)
{
	struct ep_silence *s = &b->silence[rank];

	if (!(s->seq & 1))
		return;
	s->seq++;
	s->until = ep_now_ns();
	EP_INFO(EP_BOOT, "rank %u: rank %u answers again", b->rank, rank);
	spread(b, rank, NULL);
}

uint64_t ep_silence_tick(struct ep_boot *b, uint64_t now)
{
	const struct ep_frame ping = { .type = EP_F_PING };

	if (now < b->ping_at)
		return b->ping_at;
	b->ping_at = now + b->ping_ns;
	for (struct ep_conn *c = b->loop.conns; c; c = c->next) {
		bool waits = c->pinged > c->heard;
		uint64_t due = (waits ? c->pinged : c->heard) + b->ping_ns;

		if (!is_edge(c) || c->silent)
			continue;
		if (now >= due && waits) {
			c->silent = true;
			silent_from(b, c->peer, c->pinged);
			continue;
		}
		if (now >= due && !ep_loop_post(&b->loop, c, &ping, NULL)) {
			c->pinged = now;
			due = now + b->ping_ns;
		}
		b->ping_at = due < b->ping_at ? due : b->ping_at;
	}
	return b->ping_at;
}

void ep_silence_heard(struct ep_boot *b, struct ep_conn *c)
{
	if (!c->silent)
		return;
	c->silent = false;
	answers(b, c->peer);
}

int ep_silence_take(struct ep_boot *b, const struct ep_frame *f, struct ep_conn *from)
{
	struct ep_silence *s;
	uint64_t now = ep_now_ns();

	if (f->rank >= b->nranks || f->index >= b->nranks)
		return -EPROTO;
	s = &b->silence[f->rank];
	if (f->seq <= s->seq)
		return 0;
	s->seq = f->seq;
	s->by = f->index;
	s->since = f->total < now / 1000000 ? now - f->total * 1000000 : 0;
	s->until = f->seq & 1 ? 0 : now;
	spread(b, f->rank, from);
	if (f->rank == b->rank) /* it stood still for a while, and is back */
		answers(b, f->rank);
	return 0;
}

void ep_silence_edge(struct ep_boot *b, const struct ep_conn *c)
{
	uint64_t ms = (c->heard - b->late.from) / 1000000;

	if (b->phase != EP_MEETING || !b->have_table)
		return;
	if (ms > b->late.ms) {
		b->late.rank = c->peer;
		b->late.ms = ms;
	}
	b->late.from = c->heard;
}

void ep_silence_met(struct ep_boot *b, const struct ep_frame *f)
{
	uint64_t now = ep_now_ns();

	b->late.rank = f->rank;
	b->late.ms = f->rank < b->nranks ? f->total : 0;
	b->late.until = f->seq < now / 1000000 ? now - f->seq * 1000000 : 0;
}

void ep_silence_tell(struct ep_boot *b, struct ep_conn *c)
{
	for (uint32_t r = 0; r < b->nranks; r++) {
		struct ep_frame f = frame_of(b, r);

		if (f.seq & 1)
			ep_loop_post(&b->loop, c, &f, NULL);
	}
}

int ep_silence_find(const struct ep_boot *b, char *out, size_t size)
{
	const struct ep_silence *s = NULL;
	uint32_t n = 0;
	size_t at = 0;
	int first = -1;

	for (uint32_t r = 0; r < b->nranks; r++) {
		if (!(b->silence[r].seq & 1) || b->state[r] >= EP_RANK_LEFT)
			continue;
		if (n++ < SHOWN && at < size)
			at += (size_t)snprintf(out + at, size - at, "%srank %u", n > 1 ? " and " : "", r);
		if (first < 0) {
			first = (int)r;
			s = &b->silence[r];
		}
	}
	if (n > SHOWN && at < size)
		at += (size_t)snprintf(out + at, size - at, " and %u more", n - SHOWN);
	if (s && at < size)
		snprintf(out + at, size - at, " %s not answer (no reply to the pings of rank %u for %llu ms)",
			 n > 1 ? "do" : "does", s->by, (unsigned long long)((ep_now_ns() - s->since) / 1000000));
	return first;
}

int ep_silence_past(const struct ep_boot *b, uint64_t from, char *out, size_t size)
{
	uint64_t longest = 0;
	int rank = -1;

	for (uint32_t r = 0; r < b->nranks; r++) {
		const struct ep_silence *s = &b->silence[r];

		if (s->until <= from || s->until - s->since <= longest)
			continue;
		longest = s->until - s->since;
		rank = (int)r;
	}
	if (b->late.until > from && b->late.ms > longest / 1000000 && b->late.ms >= (uint64_t)b->timeout_ms / 4) {
		snprintf(out, size, "rank %u kept the others waiting for %llu ms while they met, until %llu ms ago",
			 b->late.rank, (unsigned long long)b->late.ms,
			 (unsigned long long)((ep_now_ns() - b->late.until) / 1000000));
		return (int)b->late.rank;
	}
	if (rank >= 0)
		snprintf(out, size, "rank %d did not answer the pings of rank %u for %llu ms, until %llu ms ago", rank,
			 b->silence[rank].by, (unsigned long long)(longest / 1000000),
			 (unsigned long long)((ep_now_ns() - b->silence[rank].until) / 1000000));
	return rank;
}
