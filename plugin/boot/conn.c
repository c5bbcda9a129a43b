/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "util/clock.h"

#define FINISH_MS 5000
#define IOVS 64

int ep_conn_watch(struct ep_loop *l, struct ep_conn *c, uint32_t events, bool add)
{
	struct epoll_event ev = { .events = events, .data.ptr = c };

	return epoll_ctl(l->epfd, add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, c->fd, &ev) ? -errno : 0;
}

void ep_conn_close(struct ep_loop *l, struct ep_conn *c)
{
	if (c->fd < 0)
		return;
	/* close() alone keeps the registration, and its pointer to c, while a forked child still has the socket. */
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

void ep_conn_reap(struct ep_loop *l)
{
	while (l->dead) {
		struct ep_conn *c = l->dead;

		l->dead = c->next;
		conn_free(c);
	}
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
	/* Closed now to free the descriptor; an event of this turn may still point to the memory. */
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
			/* Reading reports the loss: what the peer sent before it closed may give the reason. */
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
