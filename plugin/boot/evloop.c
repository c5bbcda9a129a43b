/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/evloop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

#define FINISH_MS 5000
#define IOVS 64

int ep_loop_init(struct ep_loop *l, const struct ep_loop_ops *ops, void *ctx, const uint8_t *secret)
{
	struct rlimit files = { 0 };
	struct epoll_event ev = { .events = EPOLLIN };
	int rc;

	*l = (struct ep_loop){
		.ops = ops, .ctx = ctx, .secret = secret, .epfd = -1, .wakefd = -1, .next_at = UINT64_MAX
	};
	l->lost_ms = (int)ep_param_int(EP_P_PEER_LOST_MS);
	l->probe_at = ep_deadline_ms(l->lost_ms / 4);
	/* 1000 strangers at a time are no reason to refuse anybody, but they must not eat the process's descriptors. */
	getrlimit(RLIMIT_NOFILE, &files);
	l->strangers_max = files.rlim_cur / 4 > 1024 ? 1024 : (uint32_t)(files.rlim_cur / 4);
	if (l->strangers_max < 16)
		l->strangers_max = 16;
	l->scratch = malloc(EP_LOOP_SCRATCH);
	l->epfd = epoll_create1(EPOLL_CLOEXEC);
	l->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->scratch && l->epfd >= 0 && l->wakefd >= 0 && !epoll_ctl(l->epfd, EPOLL_CTL_ADD, l->wakefd, &ev)) {
		ep_sock_own(l->epfd);
		ep_sock_own(l->wakefd);
		return 0;
	}
	rc = l->scratch ? -errno : -ENOMEM;
	ep_loop_free(l);
	return rc;
}

void ep_conn_close(struct ep_loop *l, struct ep_conn *c)
{
	if (c->fd < 0)
		return;
	/* close() alone leaves the registration, and its pointer to us, for as long as a forked child has the socket.
	 */
	epoll_ctl(l->epfd, EPOLL_CTL_DEL, c->fd, NULL);
	ep_sock_close(c->fd);
	c->fd = -1;
}

static void conn_free(struct ep_conn *c)
{
	ep_outq_clear(&c->out);
	free(c->part);
	free(c);
}

static void reap(struct ep_loop *l)
{
	while (l->dead) {
		struct ep_conn *c = l->dead;

		l->dead = c->next;
		conn_free(c);
	}
}

void ep_loop_free(struct ep_loop *l)
{
	while (l->conns)
		ep_loop_drop(l, l->conns);
	reap(l);
	if (l->dropped > 3)
		EP_INFO(EP_BOOT, "%s turned %llu strangers away", l->what, (unsigned long long)l->dropped);
	free(l->scratch);
	ep_sock_close(l->wakefd);
	ep_sock_close(l->epfd);
	*l = (struct ep_loop){ .epfd = -1, .wakefd = -1 };
}

void ep_loop_wake(struct ep_loop *l)
{
	uint64_t one = 1;
	ssize_t rc = write(l->wakefd, &one, sizeof(one));

	(void)rc; /* EAGAIN: 2^64 - 2 wake-ups are pending, one is enough */
}

void ep_loop_arm(struct ep_loop *l, struct ep_conn *c, uint64_t deadline)
{
	c->deadline = deadline;
	l->next_at = deadline < l->next_at ? deadline : l->next_at;
}

struct ep_conn *ep_conn_new(struct ep_loop *l, int fd, enum ep_purpose purpose, enum ep_conn_state state)
{
	struct ep_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->fd = fd;
	c->purpose = purpose;
	c->state = state;
	c->peer = EP_NO_RANK;
	c->born = ep_now_ns();
	c->deadline = UINT64_MAX;
	c->next = l->conns;
	if (c->next)
		c->next->prev = c;
	l->conns = c;
	return c;
}

int ep_loop_listen(struct ep_loop *l, int fd, enum ep_purpose purpose)
{
	struct ep_conn *c = ep_conn_new(l, fd, purpose, EP_CONN_LISTEN);
	int rc;

	if (!c) {
		ep_sock_close(fd);
		return -ENOMEM;
	}
	rc = ep_conn_watch(l, c, EPOLLIN, true);
	if (rc)
		ep_loop_drop(l, c);
	return rc;
}

struct ep_conn *ep_loop_dial(struct ep_loop *l, const struct ep_shake *who, const struct ep_dial *where)
{
	struct ep_conn *c = ep_conn_new(l, -1, (enum ep_purpose)who->purpose, EP_CONN_DIAL);

	if (!c)
		return NULL;
	c->shake = *who;
	c->peer = who->to;
	c->dial = *where;
	/* The first attempt is made by the turn: a failure is then reported like a later one. */
	ep_loop_arm(l, c, 0);
	return c;
}

static void mark_dirty(struct ep_loop *l, struct ep_conn *c)
{
	if (c->dirty)
		return;
	c->dirty = true;
	c->next_dirty = l->dirty;
	l->dirty = c;
}

int ep_loop_send(struct ep_loop *l, struct ep_conn *c, struct ep_blob *blob)
{
	int rc;

	if (!c || c->state != EP_CONN_READY)
		return 0;
	rc = ep_outq_push(&c->out, blob);
	if (!rc && !c->out_armed)
		mark_dirty(l, c);
	return rc;
}

int ep_loop_post(struct ep_loop *l, struct ep_conn *c, const struct ep_frame *f, const void *body)
{
	struct ep_blob *blob = ep_blob_new(f, body);
	int rc = blob ? ep_loop_send(l, c, blob) : -ENOMEM;

	ep_blob_put(blob);
	return rc;
}

void ep_loop_finish(struct ep_loop *l, struct ep_conn *c)
{
	if (c->state != EP_CONN_READY) {
		ep_loop_drop(l, c);
		return;
	}
	c->state = EP_CONN_FINISH;
	mark_dirty(l, c);
	ep_loop_arm(l, c, ep_deadline_ms(FINISH_MS));
}

void ep_loop_drop(struct ep_loop *l, struct ep_conn *c)
{
	if (c->state == EP_CONN_DEAD)
		return;
	if (c->server && c->state == EP_CONN_SHAKE)
		l->strangers--;
	if (c->prev)
		c->prev->next = c->next;
	else
		l->conns = c->next;
	if (c->next)
		c->next->prev = c->prev;
	c->state = EP_CONN_DEAD;
	/* Closed now, so that the descriptor is free again; the memory stays until no event can point to it. */
	ep_conn_close(l, c);
	c->next = l->dead;
	l->dead = c;
}

void ep_loop_flush(struct ep_loop *l, struct ep_conn *c)
{
	struct iovec iov[IOVS];
	bool arm;

	while (c->out.count) {
		int n = ep_outq_fill(&c->out, iov, IOVS);
		ssize_t put = ep_sock_send(c->fd, iov, n);

		if (put == -EAGAIN)
			break;
		if (put < 0) {
			/* What it sent before it closed may still be unread, and may say why: the reading side judges.
			 */
			ep_outq_clear(&c->out);
			break;
		}
		ep_outq_sent(&c->out, (size_t)put);
	}
	arm = c->out.count > 0;
	if (arm != c->out_armed) {
		c->out_armed = arm;
		ep_conn_watch(l, c, EPOLLIN | (arm ? EPOLLOUT : 0), false);
	}
	if (!arm && c->state == EP_CONN_FINISH && !c->shut) {
		c->shut = true;
		shutdown(c->fd, SHUT_WR);
	}
}

static void flush_dirty(struct ep_loop *l)
{
	while (l->dirty) {
		struct ep_conn *c = l->dirty;

		l->dirty = c->next_dirty;
		c->dirty = false;
		if (c->state == EP_CONN_READY || c->state == EP_CONN_FINISH)
			ep_loop_flush(l, c);
	}
}

static void expire(struct ep_loop *l)
{
	uint64_t now = ep_now_ns();
	bool probe = now >= l->probe_at;
	struct ep_conn *c, *next;

	if (now < l->next_at && !probe)
		return;
	if (probe)
		l->probe_at = now + (uint64_t)l->lost_ms * 250000ull;
	if (l->accept_at && now >= l->accept_at)
		ep_conn_rested(l);
	/* Handlers may drop any connection: start again after each. What they arm lowers next_at by itself. */
again:
	l->next_at = l->accept_at ? l->accept_at : UINT64_MAX;
	for (c = l->conns; c; c = next) {
		next = c->next;
		if (c->deadline <= now) {
			c->deadline = UINT64_MAX;
			ep_conn_expire(l, c);
			goto again;
		}
		if (probe && c->state == EP_CONN_READY && ep_sock_silent(c->fd, l->lost_ms)) {
			ep_conn_lost(l, c, -ETIMEDOUT);
			goto again;
		}
		l->next_at = c->deadline < l->next_at ? c->deadline : l->next_at;
	}
}

int ep_loop_turn(struct ep_loop *l, uint64_t until, pthread_mutex_t *lock)
{
	struct epoll_event ev[64];
	uint64_t count;
	int n;

	flush_dirty(l);
	reap(l);
	until = l->next_at < until ? l->next_at : until;
	until = l->probe_at < until ? l->probe_at : until;
	if (lock)
		pthread_mutex_unlock(lock);
	n = epoll_wait(l->epfd, ev, 64, ep_left_ms(until));
	if (lock)
		pthread_mutex_lock(lock);
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	for (int i = 0; i < n; i++) {
		struct ep_conn *c = ev[i].data.ptr;

		if (c)
			ep_conn_event(l, c, ev[i].events);
		else
			while (read(l->wakefd, &count, sizeof(count)) > 0)
				;
	}
	expire(l);
	return 0;
}
