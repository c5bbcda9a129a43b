/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop alone: deadlines of strangers, and descriptors that a forked child still holds. */
#include <criterion/criterion.h>

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include "plugin/boot/evloop.h"
#include "plugin/boot/id.h"
#include "ranks.h"

TestSuite(boot_loop, .timeout = 60);

static const uint8_t secret[EP_BOOT_SECRET] = "0123456789abcde";

struct host {
	struct ep_loop loop;
	struct ep_boot_addr addr;
	uint16_t port;
	int ready, lost, lost_err;
	struct ep_conn *last;
};

static bool admit(void *ctx, struct ep_conn *c)
{
	(void)ctx;
	return c->shake.from < 100;
}

static void ready(void *ctx, struct ep_conn *c)
{
	struct host *h = ctx;

	h->ready++;
	h->last = c;
}

static int frame(void *ctx, struct ep_conn *c, const struct ep_frame *f, const uint8_t *body)
{
	(void)ctx;
	(void)c;
	(void)f;
	(void)body;
	return 0;
}

static void lost(void *ctx, struct ep_conn *c, int err)
{
	struct host *h = ctx;

	(void)c;
	h->lost++;
	h->lost_err = err;
}

static const struct ep_loop_ops ops = { admit, ready, frame, lost };

static void host_open(struct host *h)
{
	union ep_sockaddr a = { .v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) } };
	int fd;

	*h = (struct host){ 0 };
	cr_assert_eq(ep_loop_init(&h->loop, &ops, h, secret), 0);
	snprintf(h->loop.what, sizeof(h->loop.what), "the test");
	cr_assert_eq(ep_sock_listen(&a, 1, &h->port, &fd), 0);
	cr_assert_eq(ep_loop_listen(&h->loop, fd, EP_TO_RANK), 0);
	ep_boot_addr_set(&h->addr, &a);
}

static int knock(const struct host *h)
{
	union ep_sockaddr a;
	int fd;

	ep_boot_addr_get(&h->addr, h->port, &a);
	fd = ep_sock_dial(&a);
	cr_assert_geq(fd, 0);
	cr_assert_eq(ep_sock_wait(fd, POLLOUT, ep_deadline_ms(5000)), 0);
	cr_assert_eq(ep_sock_dialled(fd), 0);
	return fd;
}

static struct ep_conn *dial(struct host *h, const struct host *to, uint32_t from, int give_up_ms)
{
	struct ep_shake who = { .purpose = EP_TO_RANK, .from = from };
	struct ep_dial where = { .port = to->port, .naddr = 1, .addr[0] = to->addr };

	where.give_up = ep_deadline_ms(give_up_ms);
	return ep_loop_dial(&h->loop, &who, &where);
}

static void turns(struct host *a, struct host *b, int ms)
{
	for (uint64_t end = ep_deadline_ms(ms); ep_now_ns() < end;) {
		cr_assert_eq(ep_loop_turn(&a->loop, ep_deadline_ms(1), NULL), 0);
		if (b)
			cr_assert_eq(ep_loop_turn(&b->loop, ep_deadline_ms(1), NULL), 0);
	}
}

Test(boot_loop, strangers_are_limited_and_friends_get_in)
{
	struct host h, friend;
	int fds[60];

	host_open(&h);
	host_open(&friend);
	h.loop.strangers_max = 20;
	for (int i = 0; i < 60; i++)
		fds[i] = knock(&h);
	cr_assert(dial(&friend, &h, 7, 20000));
	for (int i = 0; i < 40 && !friend.ready; i++) {
		turns(&h, &friend, 50);
		cr_expect_leq(h.loop.strangers, 20);
	}
	cr_expect_eq(friend.ready, 1);
	cr_expect_eq(h.ready, 1);
	cr_expect_geq(h.loop.dropped, 40, "the oldest made room");
	for (int i = 0; i < 60; i++)
		ep_sock_close(fds[i]);
	ep_loop_free(&friend.loop);
	ep_loop_free(&h.loop);
}

Test(boot_loop, silence_ends)
{
	struct host h;
	int fd;

	host_open(&h);
	fd = knock(&h);
	turns(&h, NULL, 200);
	cr_expect_eq(h.loop.strangers, 1);
	turns(&h, NULL, 5300);
	cr_expect_eq(h.loop.strangers, 0);
	cr_expect_eq(h.loop.dropped, 1);
	ep_sock_close(fd);
	ep_loop_free(&h.loop);
}

Test(boot_loop, nobody_listens)
{
	struct host h, gone;

	host_open(&h);
	host_open(&gone);
	ep_loop_free(&gone.loop);
	cr_assert(dial(&h, &gone, 7, 20000));
	turns(&h, NULL, 500);
	cr_expect_eq(h.lost, 1, "long before the deadline");
	cr_expect_eq(h.lost_err, -ECONNREFUSED);
	ep_loop_free(&h.loop);
}

Test(boot_loop, not_admitted)
{
	struct host h, other;

	host_open(&h);
	host_open(&other);
	cr_assert(dial(&other, &h, 100, 20000));
	turns(&h, &other, 300);
	cr_expect_eq(other.lost, 1);
	cr_expect_eq(other.lost_err, -EADDRNOTAVAIL);
	cr_expect_eq(h.ready, 0);
	ep_loop_free(&other.loop);
	ep_loop_free(&h.loop);
}

/* A forked child holds the socket for a moment: what arrives then must be dropped, not reach freed memory. */
Test(boot_loop, a_copy_of_a_dropped_connection_is_silent)
{
	struct host h, other;
	struct epoll_event ev;
	int copy;

	host_open(&h);
	host_open(&other);
	cr_assert(dial(&other, &h, 7, 20000));
	turns(&h, &other, 300);
	cr_assert(h.ready == 1 && other.ready == 1);
	copy = dup(h.last->fd);
	ep_loop_drop(&h.loop, h.last);
	turns(&h, NULL, 20);
	cr_expect_eq(ep_sock_wait(copy, POLLIN, ep_deadline_ms(1000)), 0, "the copy is readable");
	cr_expect_eq(epoll_wait(h.loop.epfd, &ev, 1, 50), 0, "and nobody hears it");
	close(copy);
	ep_loop_free(&other.loop);
	ep_loop_free(&h.loop);
}

/* Out of descriptors: waits without spinning, and goes on once there are some. */
Test(boot_loop, starvation_passes)
{
	struct host h;
	struct rlimit all, few;
	struct timespec cpu[2];
	int fd;

	host_open(&h);
	fd = knock(&h);
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &all), 0);
	few = all;
	few.rlim_cur = (rlim_t)dup(fd);
	close((int)few.rlim_cur);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu[0]);
	for (uint64_t end = ep_deadline_ms(500); ep_now_ns() < end;)
		cr_assert_eq(ep_loop_turn(&h.loop, end, NULL), 0);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu[1]);
	cr_expect_neq(h.loop.starved_since, 0);
	cr_expect_eq(h.loop.strangers, 0);
	cr_expect_lt((cpu[1].tv_sec - cpu[0].tv_sec) * 1000000000L + cpu[1].tv_nsec - cpu[0].tv_nsec, 100000000L);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &all), 0);
	turns(&h, NULL, 300);
	cr_expect_eq(h.loop.starved_since, 0);
	cr_expect_eq(h.loop.strangers, 1);
	ep_sock_close(fd);
	ep_loop_free(&h.loop);
}
