/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/evloop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "plugin/boot/event.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

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
	/* At most a quarter of the descriptor limit for unauthenticated connections. */
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

void ep_loop_free(struct ep_loop *l)
{
	while (l->conns)
		ep_loop_drop(l, l->conns);
	ep_conn_reap(l);
	if (l->dropped > 3)
		EP_INFO(EP_BOOT, "%s dropped %llu unauthenticated connections", l->what,
			(unsigned long long)l->dropped);
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
	/* The loop makes the first attempt, so that its failure is reported like a later one. */
	ep_loop_arm(l, c, 0);
	return c;
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
	/* A handler may drop any connection: restart after each. Arming a deadline lowers next_at. */
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
	ep_conn_reap(l);
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
