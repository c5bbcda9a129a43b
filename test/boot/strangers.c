/* SPDX-License-Identifier: Apache-2.0 */
/* Connections from strangers, to the root and to the ranks, delay nobody. */
#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>

#include "plugin/boot/id.h"
#include "plugin/boot/mesh.h"
#include "plugin/boot/shake.h"
#include "plugin/boot/wire.h"
#include "ranks.h"

TestSuite(boot_strangers, .timeout = 120);

#define SOON 5000000000ull

static int knock(const struct ep_boot_addr *addr, uint16_t port)
{
	union ep_sockaddr a;
	int fd;

	ep_boot_addr_get(addr, port, &a);
	fd = ep_sock_dial(&a);
	if (fd >= 0 && (ep_sock_wait(fd, POLLOUT, ep_deadline_ms(5000)) || ep_sock_dialled(fd))) {
		ep_sock_close(fd);
		return -1;
	}
	return fd;
}

/* Garbage, half a claim, silence after the greeting, silence, or an immediate close. */
static int visit(const struct ep_boot_addr *addr, uint16_t port, int kind)
{
	uint8_t junk[256];
	int fd = knock(addr, port);

	if (fd < 0)
		return fd;
	ep_random(junk, sizeof(junk));
	switch (kind % 5) {
	case 0:
		ep_sock_send_all(fd, junk, sizeof(junk), ep_deadline_ms(1000));
		break;
	case 1:
		ep_sock_send_all(fd, junk, 30, ep_deadline_ms(1000));
		break;
	case 2:
		ep_sock_recv_all(fd, junk, sizeof(struct ep_greet), ep_deadline_ms(1));
		break;
	case 3:
		ep_sock_close(fd);
		return -1;
	}
	return fd;
}

static void crowd(const struct ep_boot_addr *addr, uint16_t port, int n, int *fds)
{
	int reached = 0;

	for (int i = 0; i < n; i++) {
		fds[i] = visit(addr, port, i);
		reached += fds[i] >= 0;
	}
	cr_expect_gt(reached, n / 2);
}

static void leave(int n, const int *fds)
{
	for (int i = 0; i < n; i++)
		ep_sock_close(fds[i]);
}

static void a_few_barriers(struct rank *me)
{
	rank_note(me, ep_boot_barrier(me->boot));
	for (int i = 0; i < 10; i++)
		RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
}

Test(boot_strangers, a_thousand_at_the_meeting_point)
{
	struct ranks *all = ranks_new(6, a_few_barriers);
	static int fds[1000];
	uint64_t start;

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	crowd(&all->id.addr[0], all->id.port, 1000, fds);
	start = ep_now_ns();
	cr_assert_eq(ranks_start_threads(all, rank_life), 0);
	ranks_join(all);
	cr_expect_eq(ranks_bad(all), 0);
	for (int i = 0; i < all->n; i++)
		cr_expect_lt(all->rank[i].at - start, SOON, "rank %d: %.0f ms", i,
			     (double)(all->rank[i].at - start) / 1e6);
	leave(1000, fds);
	ranks_free(all);
}

/* Strangers connect without pause while the ranks open and close a bootstrap ten times. */
static void *knock_on(void *arg)
{
	struct ranks *all = arg;
	int fds[200] = { 0 }, n = 0;

	for (int i = 0; all->stage; i++) {
		if (i >= 200)
			ep_sock_close(fds[i % 200]);
		fds[i % 200] = visit(&all->id.addr[0], all->id.port, i);
		n = i < 200 ? i + 1 : 200;
	}
	leave(n, fds);
	return NULL;
}

Test(boot_strangers, a_crowd_that_keeps_coming)
{
	for (int i = 0; i < 10; i++) {
		struct ranks *all = ranks_new(4, a_few_barriers);
		pthread_t thread;

		cr_assert_eq(ep_boot_id_create(&all->id), 0);
		all->stage = 1;
		cr_assert_eq(pthread_create(&thread, NULL, knock_on, all), 0);
		cr_assert_eq(ranks_start_threads(all, rank_life), 0);
		ranks_join(all);
		all->stage = 0;
		pthread_join(thread, NULL);
		cr_expect_eq(ranks_bad(all), 0);
		ranks_free(all);
	}
}

static void show_listener(struct rank *me)
{
	struct ep_peer peers[8];

	/* The address of a rank, which the strangers need, comes from inside the endpoint. */
	pthread_mutex_lock(&me->boot->lock);
	peers[0] = me->boot->self;
	pthread_mutex_unlock(&me->boot->lock);
	memcpy(me->why, &peers[0], sizeof(peers[0]));
	me->stage = 1;
	UNTIL(me->all->stage == 1);
	for (int i = 0; i < 10; i++)
		RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	me->at = ep_now_ns();
}

Test(boot_strangers, a_thousand_at_a_rank)
{
	struct ranks *all = ranks_new(5, show_listener);
	static int fds[1000];
	struct ep_peer peer;
	uint64_t start;

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	cr_assert_eq(ranks_start_threads(all, rank_life), 0);
	for (int i = 0; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	memcpy(&peer, all->rank[1].why, sizeof(peer));
	crowd(&peer.addr[0], peer.port, 1000, fds);
	start = ep_now_ns();
	all->stage = 1;
	ranks_join(all);
	cr_expect_eq(ranks_bad(all), 0);
	for (int i = 0; i < all->n; i++)
		cr_expect_lt(all->rank[i].at - start, SOON);
	leave(1000, fds);
	ranks_free(all);
}

/* The right protocol, the wrong secret. */
Test(boot_strangers, a_wrong_secret_is_refused)
{
	struct ranks *all = ranks_new(2, a_few_barriers), *thief = ranks_new(2, a_few_barriers);

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	thief->id = all->id;
	thief->id.secret[7] ^= 1;
	cr_expect_eq(rank_open(&thief->rank[1]), -EP_EARG);
	cr_expect(strstr(thief->rank[1].why, "another job"), "%s", thief->rank[1].why);
	cr_assert_eq(ranks_start_threads(all, rank_life), 0);
	ranks_join(all);
	cr_expect_eq(ranks_bad(all), 0);
	ranks_free(thief);
	ranks_free(all);
}

/* A malicious client: authenticates as rank `from`, then sends anything. */
static int authenticate(const struct ranks *all, uint32_t from)
{
	struct ep_shake shake = { .purpose = EP_TO_ROOT, .from = from, .to = EP_NO_RANK };
	int fd = knock(&all->id.addr[0], all->id.port);
	uint64_t deadline = ep_deadline_ms(5000);
	struct ep_greet greet;
	struct ep_claim claim;
	struct ep_proof proof;

	if (ep_sock_recv_all(fd, &greet, sizeof(greet), deadline) ||
	    ep_shake_claim(&shake, all->id.secret, &greet, &claim) ||
	    ep_sock_send_all(fd, &claim, sizeof(claim), deadline) ||
	    ep_sock_recv_all(fd, &proof, sizeof(proof), deadline) || ep_shake_confirm(&shake, all->id.secret, &proof)) {
		ep_sock_close(fd);
		return -1;
	}
	return fd;
}

Test(boot_strangers, random_frames_of_a_friend)
{
	srand(11);
	for (int i = 0; i < 300; i++) {
		struct ranks *all = ranks_new(2, a_few_barriers);
		uint8_t bytes[4096];
		size_t n = 1 + (size_t)rand() % sizeof(bytes);
		int fd;

		cr_assert_eq(ep_boot_id_create(&all->id), 0);
		fd = authenticate(all, (uint32_t)i % 3);
		cr_assert_geq(fd, 0);
		for (size_t k = 0; k < n; k++)
			bytes[k] = (uint8_t)(rand() >> 7);
		/* Half of them begin like frames, so that bodies are read too. */
		if (i % 2) {
			struct ep_frame f = { .bytes = (uint32_t)(rand() % 600),
					      .type = (uint16_t)(rand() % EP_F_TYPES) };

			f.bytes = f.type == EP_F_HELLO ? sizeof(struct ep_hello) : f.bytes;
			memcpy(bytes, &f, sizeof(f) < n ? sizeof(f) : n);
		}
		ep_sock_send_all(fd, bytes, n, ep_deadline_ms(1000));
		ep_sock_close(fd);
		/* Whatever was sent, new ranks get an answer. */
		all->timeout_ms = 3000;
		cr_expect_neq(rank_open(&all->rank[1]), 0);
		cr_expect(all->rank[1].rc == -EP_EREMOTE || all->rank[1].rc == -EP_EARG ||
				  all->rank[1].rc == -EP_ETIMEOUT || strlen(all->rank[1].why),
			  "%d: %s", all->rank[1].rc, all->rank[1].why);
		ranks_free(all);
	}
}

/* Half a frame and then silence: the others time out. */
Test(boot_strangers, half_a_message_of_a_friend)
{
	struct ranks *all = ranks_new(2, a_few_barriers);
	struct ep_frame f = { .bytes = sizeof(struct ep_hello), .type = EP_F_HELLO };
	int fd;

	all->timeout_ms = 700;
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	fd = authenticate(all, 0);
	cr_assert_eq(ep_sock_send_all(fd, &f, sizeof(f), ep_deadline_ms(1000)), 0);
	cr_expect_eq(rank_open(&all->rank[1]), -EP_ETIMEOUT);
	cr_expect(strstr(all->rank[1].why, "rank 0"), "%s", all->rank[1].why);
	ep_sock_close(fd);
	ranks_free(all);
}
