/* SPDX-License-Identifier: Apache-2.0 */
/* Connections without sockets: what a peer sends goes straight into the loop's own splitter. After event.c. */
#ifndef EP_TEST_FUZZ_CONNS_H
#define EP_TEST_FUZZ_CONNS_H

#include "fuzz.h"

#include "plugin/boot/conn.h"
#include "plugin/boot/evloop.h"
#include "plugin/boot/wire.h"

/* No descriptors: nothing is sent, and what is queued goes with the connection. */
static inline void loop_bare(struct ep_loop *l, const struct ep_loop_ops *ops, void *ctx, const uint8_t *secret)
{
	*l = (struct ep_loop){ .ops = ops, .ctx = ctx, .secret = secret, .epfd = -1, .wakefd = -1 };
	l->next_at = UINT64_MAX;
	l->strangers_max = 16;
}

static inline void loop_bare_free(struct ep_loop *l)
{
	while (l->conns)
		ep_loop_drop(l, l->conns);
	ep_conn_reap(l);
}

/* As after a handshake: the loop's owner decides whether to admit a client. */
static inline struct ep_conn *conn_bare(struct ep_loop *l, enum ep_purpose purpose, bool server, uint32_t from,
					uint32_t to)
{
	struct ep_conn *c = ep_conn_new(l, -1, purpose, EP_CONN_SHAKE);

	MUST(c);
	c->shake = (struct ep_shake){ .purpose = purpose, .from = from, .to = to };
	c->server = server;
	l->strangers += server;
	if (server && !l->ops->admit(l->ctx, c)) {
		ep_loop_drop(l, c);
		return NULL;
	}
	l->strangers -= server;
	c->peer = server ? from : to;
	become_ready(l, c);
	return c;
}

/* The n-th of the ready ones, or NULL. */
static inline struct ep_conn *conn_pick(struct ep_loop *l, unsigned n, enum ep_conn_state state)
{
	unsigned count = 0;

	for (struct ep_conn *c = l->conns; c; c = c->next)
		count += c->state == state;
	if (!count)
		return NULL;
	n %= count;
	for (struct ep_conn *c = l->conns; c; c = c->next)
		if (c->state == state && !n--)
			return c;
	return NULL;
}

/* From a block of exactly n bytes, so that a read past its end shows. */
static inline void conn_feed(struct ep_loop *l, struct ep_conn *c, const void *bytes, size_t n)
{
	size_t have = c->part_len;
	uint8_t *buf = malloc(have + n + !n);
	ssize_t used;

	MUST(buf);
	if (have)
		memcpy(buf, c->part, have);
	memcpy(buf + have, bytes, n);
	used = consume(l, c, buf, have + n);
	if (used >= 0 && c->state == EP_CONN_READY)
		used = keep_part(c, buf + used, have + n - (size_t)used);
	if (used < 0)
		ep_conn_lost(l, c, (int)used);
	free(buf);
}

/* A frame whose header the input chooses; body: a true one, of head.bytes, that the input may change. */
static inline void conn_frame(struct ep_loop *l, struct ep_conn *c, struct feed *f, struct ep_frame head, void *body)
{
	static uint8_t bytes[sizeof(struct ep_frame) + EP_FRAME_MAX];
	uint32_t true_bytes = head.bytes;
	uint8_t how = feed_u8(f);

	if (how & 1)
		head.rank = (uint32_t)feed_number(f);
	if (how & 2)
		head.seq = feed_number(f);
	if (how & 4)
		head.index = (uint32_t)feed_number(f);
	if (how & 8)
		head.total = feed_number(f);
	if (how & 16)
		head.err = (uint16_t)feed_number(f);
	if (how & 32)
		head.bytes = (uint32_t)feed_number(f);
	memset(bytes, 0, sizeof(head) + (head.bytes < EP_FRAME_MAX ? head.bytes : EP_FRAME_MAX));
	if (head.bytes > EP_FRAME_MAX || (how & 64)) { /* text, or anything else, of the input */
		feed_bytes(f, bytes + sizeof(head), head.bytes < 400 ? head.bytes : 400);
	} else if (body) {
		memcpy(bytes + sizeof(head), body, head.bytes < true_bytes ? head.bytes : true_bytes);
		feed_patch(f, bytes + sizeof(head), head.bytes);
	}
	memcpy(bytes, &head, sizeof(head));
	conn_feed(l, c, bytes, sizeof(head) + (head.bytes < EP_FRAME_MAX ? head.bytes : EP_FRAME_MAX));
}

#endif
