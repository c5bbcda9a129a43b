/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/event.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "plugin/boot/id.h"
#include "util/clock.h"
#include "util/error.h"

#define STRANGER_MS 5000 /* to authenticate */
#define CROWD_MS 250	 /* least time a stranger has before it can be dropped to make room */
#define STARVE_MS 100	 /* between attempts to accept while out of descriptors */
#define SYN_MS 3000	 /* per address before the next one is tried: three SYNs */
#define HARD_ROUNDS 3
#define ACCEPTS 64 /* per turn, so that open connections are served too */

/* Logs the first three, then whenever the count has doubled: a port scan must not fill the disk. */
static void stranger_drop(struct ep_loop *l, struct ep_conn *c, const char *why)
{
	char from[EP_SOCK_TEXT];
	uint64_t n = ++l->dropped;

	if (n <= 3 || !(n & (n - 1)))
		EP_WARN(EP_BOOT, "%s dropped a connection from %s: %s (%llu so far)", l->what,
			ep_sock_text(&c->at, from, sizeof(from)), why, (unsigned long long)n);
	ep_loop_drop(l, c);
}

void ep_conn_lost(struct ep_loop *l, struct ep_conn *c, int err)
{
	bool tell = c->state == EP_CONN_READY || (!c->server && c->state != EP_CONN_FINISH);

	if (c->server && c->state == EP_CONN_SHAKE) {
		stranger_drop(l, c, err ? strerror(-err) : "closed before authenticating");
		return;
	}
	ep_loop_drop(l, c);
	if (tell)
		l->ops->lost(l->ctx, c, err);
}

/* ---- dialling ---- */

static void dial_failed(struct ep_loop *l, struct ep_conn *c, int err)
{
	ep_conn_close(l, c);
	c->state = EP_CONN_DIAL;
	c->dial.err = err;
	c->dial.hard += err == -ECONNREFUSED ? 1 : err == -EACCES || err == -EADDRNOTAVAIL ? HARD_ROUNDS : 0;
	if (c->dial.next < c->dial.naddr) {
		ep_loop_arm(l, c, 0);
		return;
	}
	c->dial.next = 0;
	c->dial.rounds++;
	/* Peers listen before they publish their address: repeated refusals mean that the process is gone. */
	if (c->dial.hard >= HARD_ROUNDS * c->dial.naddr || err == -EMFILE || err == -ENFILE || err == -ENOMEM) {
		ep_conn_lost(l, c, err);
		return;
	}
	ep_loop_arm(l, c, ep_deadline_ms(c->dial.rounds < 5 ? 10 << c->dial.rounds : 320));
}

static void dial_next(struct ep_loop *l, struct ep_conn *c)
{
	int rc;

	if (ep_now_ns() >= c->dial.give_up) {
		ep_conn_lost(l, c, c->dial.err ? c->dial.err : -ETIMEDOUT);
		return;
	}
	ep_boot_addr_get(&c->dial.addr[c->dial.next++], c->dial.port, &c->at);
	c->fd = ep_sock_dial(&c->at);
	if (c->fd < 0) {
		dial_failed(l, c, c->fd);
		return;
	}
	c->got = 0;
	c->want = sizeof(struct ep_greet);
	rc = ep_conn_watch(l, c, EPOLLOUT, true);
	if (rc) {
		dial_failed(l, c, rc);
		return;
	}
	/* Also with a single address: a new attempt costs nothing. */
	ep_loop_arm(l, c, ep_deadline_ms(SYN_MS * (1 + (int64_t)(c->dial.rounds > 9 ? 9 : c->dial.rounds))));
}

static void dial_event(struct ep_loop *l, struct ep_conn *c)
{
	int rc = ep_sock_dialled(c->fd);

	if (!rc)
		rc = ep_conn_watch(l, c, EPOLLIN, false);
	if (rc)
		dial_failed(l, c, rc);
	else
		c->state = EP_CONN_SHAKE; /* the deadline of the attempt also covers the greeting */
}

/* ---- handshake ---- */

static int send_record(struct ep_conn *c, const void *rec, size_t n)
{
	struct iovec iov = { (void *)rec, n };
	ssize_t put = ep_sock_send(c->fd, &iov, 1);

	/* Under 100 bytes into an empty socket buffer: a short write is an error. */
	return put == (ssize_t)n ? 0 : put < 0 ? (int)put : -EPROTO;
}

static void become_ready(struct ep_loop *l, struct ep_conn *c)
{
	c->state = EP_CONN_READY;
	c->was_ready = true;
	c->deadline = UINT64_MAX;
	if (c->at.any.sa_family)
		ep_sock_tune(c->fd, l->lost_ms);
	l->ops->ready(l->ctx, c);
}

static void server_step(struct ep_loop *l, struct ep_conn *c)
{
	enum ep_shake_status status = EP_SHAKE_OK;
	struct ep_proof proof;
	int rc;

	if (ep_shake_verify(&c->shake, l->secret, &c->rec.claim))
		status = EP_SHAKE_SECRET;
	else if (c->shake.purpose != c->purpose || !l->ops->admit(l->ctx, c))
		status = EP_SHAKE_ADDRESSEE;
	rc = ep_shake_prove(&c->shake, l->secret, status, &proof);
	if (!rc)
		rc = send_record(c, &proof, sizeof(proof));
	if (status != EP_SHAKE_OK) {
		stranger_drop(l, c, status == EP_SHAKE_SECRET ? "wrong secret" : "wrong destination rank");
		return;
	}
	if (rc) {
		ep_conn_lost(l, c, rc);
		return;
	}
	l->strangers--;
	c->peer = c->shake.from;
	become_ready(l, c);
}

static void client_step(struct ep_loop *l, struct ep_conn *c)
{
	struct ep_claim claim;
	int rc;

	if (c->want == sizeof(struct ep_greet)) {
		rc = ep_shake_claim(&c->shake, l->secret, &c->rec.greet, &claim);
		if (!rc)
			rc = send_record(c, &claim, sizeof(claim));
		c->got = 0;
		c->want = sizeof(struct ep_proof);
		/* From here on the peer may count us as connected: giving up early would look like our death. */
		ep_loop_arm(l, c, c->dial.give_up);
	} else {
		rc = ep_shake_confirm(&c->shake, l->secret, &c->rec.proof);
		if (!rc)
			become_ready(l, c);
	}
	if (rc)
		dial_failed(l, c, rc);
}

static void shake_event(struct ep_loop *l, struct ep_conn *c)
{
	/* Exactly the record: the frames behind it are read into the scratch buffer, after authentication. */
	ssize_t n = ep_sock_recv(c->fd, c->rec.bytes + c->got, c->want - c->got);

	if (n == -EAGAIN)
		return;
	if (n <= 0) {
		if (c->server)
			ep_conn_lost(l, c, (int)n);
		else
			dial_failed(l, c, n ? (int)n : -ECONNRESET);
		return;
	}
	c->got += (uint32_t)n;
	if (c->got < c->want)
		return;
	if (c->server)
		server_step(l, c);
	else
		client_step(l, c);
}

/* ---- accepting ---- */

static struct ep_conn *stranger_oldest(struct ep_loop *l)
{
	struct ep_conn *oldest = NULL;

	for (struct ep_conn *c = l->conns; c; c = c->next)
		if (c->server && c->state == EP_CONN_SHAKE && (!oldest || c->born < oldest->born))
			oldest = c;
	return oldest;
}

static void rest_until(struct ep_loop *l, uint64_t when)
{
	for (struct ep_conn *c = l->conns; c; c = c->next)
		if (c->state == EP_CONN_LISTEN)
			ep_conn_watch(l, c, 0, false);
	l->accept_at = when;
	l->next_at = when < l->next_at ? when : l->next_at;
}

/* Out of descriptors or memory: drops a stranger to free a descriptor; without one, pauses accepting. */
static void starve(struct ep_loop *l, int err)
{
	struct ep_conn *c = stranger_oldest(l);

	if (!l->starved_since) {
		l->starved_since = ep_now_ns();
		EP_WARN(EP_BOOT, "%s cannot accept connections: %s", l->what, strerror(-err));
	}
	if (c)
		stranger_drop(l, c, "out of descriptors");
	else
		rest_until(l, ep_deadline_ms(STARVE_MS));
}

static bool make_room(struct ep_loop *l)
{
	struct ep_conn *c;

	if (l->strangers < l->strangers_max)
		return true;
	c = stranger_oldest(l);
	if (ep_now_ns() - c->born < CROWD_MS * 1000000ull) {
		rest_until(l, c->born + CROWD_MS * 1000000ull);
		return false;
	}
	stranger_drop(l, c, "too many unauthenticated connections, this is the oldest");
	return true;
}

static void welcome(struct ep_loop *l, enum ep_purpose purpose, int fd, const union ep_sockaddr *from)
{
	struct ep_conn *c = ep_conn_new(l, fd, purpose, EP_CONN_SHAKE);
	struct ep_greet greet;
	int rc;

	if (!c) {
		ep_sock_close(fd);
		return;
	}
	c->server = true;
	c->at = *from;
	c->want = sizeof(struct ep_claim);
	l->strangers++;
	ep_loop_arm(l, c, ep_deadline_ms(STRANGER_MS));
	rc = ep_conn_watch(l, c, EPOLLIN, true);
	if (!rc)
		rc = ep_shake_greet(&c->shake, &greet);
	if (!rc)
		rc = send_record(c, &greet, sizeof(greet));
	if (rc)
		ep_conn_lost(l, c, rc);
}

static void listen_event(struct ep_loop *l, struct ep_conn *listener)
{
	for (int i = 0; i < ACCEPTS && make_room(l); i++) {
		union ep_sockaddr from;
		int fd = ep_sock_accept(listener->fd, &from);

		if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -ENOBUFS) {
			starve(l, fd);
			return;
		}
		l->starved_since = 0;
		if (fd < 0)
			return; /* none pending, or the peer gave up */
		welcome(l, listener->purpose, fd, &from);
	}
}

void ep_conn_rested(struct ep_loop *l)
{
	l->accept_at = 0;
	for (struct ep_conn *c = l->conns; c && !l->accept_at; c = c->next) {
		if (c->state != EP_CONN_LISTEN)
			continue;
		ep_conn_watch(l, c, EPOLLIN, false);
		/* At once, not at the next event: accept also tells whether there are descriptors again. */
		listen_event(l, c);
	}
}

/* ---- frames ---- */

/* Handles the complete frames in buf; returns the bytes consumed, or an error. */
static ssize_t consume(struct ep_loop *l, struct ep_conn *c, const uint8_t *buf, size_t n)
{
	size_t at = 0;
	int rc;

	while (n - at >= sizeof(struct ep_frame) && c->state == EP_CONN_READY) {
		struct ep_frame f;

		memcpy(&f, buf + at, sizeof(f));
		rc = ep_frame_check(&f, c->purpose, c->server);
		if (rc)
			return rc;
		if (n - at < sizeof(f) + f.bytes)
			break;
		rc = l->ops->frame(l->ctx, c, &f, buf + at + sizeof(f));
		if (rc)
			return rc;
		at += sizeof(f) + f.bytes;
	}
	return (ssize_t)at;
}

static int keep_part(struct ep_conn *c, const uint8_t *rest, size_t n)
{
	if (n > c->part_room) {
		uint8_t *part = realloc(c->part, n);

		if (!part)
			return -ENOMEM;
		c->part = part;
		c->part_room = (uint32_t)n;
	}
	if (n)
		memcpy(c->part, rest, n);
	c->part_len = (uint32_t)n;
	return 0;
}

static void read_event(struct ep_loop *l, struct ep_conn *c)
{
	/* At most four reads, then the other connections: epoll reports the rest again. */
	for (int i = 0; i < 4 && (c->state == EP_CONN_READY || c->state == EP_CONN_FINISH); i++) {
		size_t have = c->part_len, room = EP_LOOP_SCRATCH - have;
		ssize_t n, used;

		if (have)
			memcpy(l->scratch, c->part, have);
		n = ep_sock_recv(c->fd, l->scratch + have, room);
		if (n == -EAGAIN)
			return;
		if (n <= 0) {
			ep_conn_lost(l, c, (int)n);
			return;
		}
		c->heard = ep_now_ns();
		have += (size_t)n;
		used = consume(l, c, l->scratch, have);
		/* On a finishing connection what still arrives is discarded. */
		if (used >= 0 && c->state == EP_CONN_READY)
			used = keep_part(c, l->scratch + used, have - (size_t)used);
		if (used < 0) {
			ep_conn_lost(l, c, (int)used);
			return;
		}
		if ((size_t)n < room)
			return;
	}
}

void ep_conn_event(struct ep_loop *l, struct ep_conn *c, uint32_t events)
{
	switch (c->state) {
	case EP_CONN_LISTEN:
		listen_event(l, c);
		break;
	case EP_CONN_DIAL:
		dial_event(l, c);
		break;
	case EP_CONN_SHAKE:
		shake_event(l, c);
		break;
	case EP_CONN_READY:
	case EP_CONN_FINISH:
		if (events & EPOLLOUT)
			ep_loop_flush(l, c);
		if (events & ~(uint32_t)EPOLLOUT)
			read_event(l, c);
		break;
	case EP_CONN_DEAD:
		break; /* dropped by an earlier event of the same turn */
	}
}

void ep_conn_expire(struct ep_loop *l, struct ep_conn *c)
{
	if (c->state == EP_CONN_DIAL && c->fd < 0)
		dial_next(l, c);
	else if (!c->server && (c->state == EP_CONN_DIAL || c->state == EP_CONN_SHAKE))
		dial_failed(l, c, -ETIMEDOUT);
	else if (c->state == EP_CONN_SHAKE)
		stranger_drop(l, c, "did not authenticate in time");
	else
		ep_loop_drop(l, c);
}
