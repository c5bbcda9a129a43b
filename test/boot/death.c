/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies, gives up or leaves: every other rank reports it by number, in time. */
#include <criterion/criterion.h>

#include <errno.h>
#include <sys/prctl.h>

#include "ranks.h"

TestSuite(boot_death, .timeout = 240);

#define SOON 2000000000ull

/* Every rank but the victim must have failed with an error that names it, at most SOON after `since`. */
static void expect_named(struct ranks *all, int victim, int err, uint64_t since)
{
	char name[32];

	snprintf(name, sizeof(name), "rank %d", victim);
	for (int i = 0; i < all->n; i++) {
		struct rank *r = &all->rank[i];

		if (i == victim)
			continue;
		cr_expect_eq(r->rc, -err, "rank %d: %d, %s", i, r->rc, r->why);
		cr_expect(strstr(r->why, name), "rank %d: %s", i, r->why);
		cr_expect(r->at > since && r->at - since < SOON, "rank %d: after %.0f ms", i,
			  (double)(r->at - since) / 1e6);
		cr_expect_eq(r->bad, 0);
	}
}

static void wait_in_barrier(struct rank *me)
{
	me->stage = 1;
	if (me->rank == 2)
		nap_ms(60000);
	rank_note(me, ep_boot_barrier(me->boot));
}

static void start(struct ranks *all)
{
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	for (int i = 0; i < all->n; i++)
		rank_fork(&all->rank[i], rank_life);
}

Test(boot_death, killed_while_others_wait)
{
	struct ranks *all = ranks_new(9, wait_in_barrier);
	uint64_t when;

	start(all);
	for (int i = 0; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	nap_ms(100);
	when = ep_now_ns();
	rank_kill(&all->rank[2], SIGKILL);
	cr_expect_eq(ranks_reap(all, SIGKILL), 0);
	expect_named(all, 2, EP_EREMOTE, when);
	ranks_free(all);
}

static void note_gone(void *ctx, int rank, struct ep_blame blame, const char *why)
{
	struct rank *me = ctx;

	(void)blame;
	me->gone[me->ngone++] = rank;
	snprintf(me->why, sizeof(me->why), "%s", why);
	me->at = ep_now_ns();
}

/* Without any call: the callback and ep_boot_failed report it. */
static void watch(struct rank *me)
{
	char why[256] = "";
	int who = -1;

	me->stage = 1;
	if (me->rank == 2)
		nap_ms(60000);
	RANK_EXPECT(me, ep_boot_failed(me->boot, &who, why, sizeof(why)) == -ENOENT || me->all->stage);
	RANK_EXPECT(me, UNTIL(ep_boot_failed(me->boot, &who, why, sizeof(why)) == 0));
	RANK_EXPECT(me, who == 2 && strstr(why, "rank 2"));
	RANK_EXPECT(me, !ep_boot_alive(me->boot, 2) && ep_boot_alive(me->boot, me->rank));
	RANK_EXPECT(me, UNTIL(me->ngone == 1) && me->gone[0] == 2);
	me->all->stage++;
	UNTIL(me->all->stage == me->all->n); /* one for the parent */
	me->rc = ep_boot_barrier(me->boot);
	RANK_EXPECT(me, me->ngone == 1);
}

Test(boot_death, killed_while_nobody_waits)
{
	struct ranks *all = ranks_new(6, watch);
	uint64_t when;

	all->gone = note_gone;
	start(all);
	for (int i = 0; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	when = ep_now_ns();
	all->stage++;
	rank_kill(&all->rank[2], SIGKILL);
	cr_expect_eq(ranks_reap(all, SIGKILL), 0);
	expect_named(all, 2, EP_EREMOTE, when);
	ranks_free(all);
}

/* Killed after it registered and before the last rank comes; late ranks are told too. */
Test(boot_death, killed_while_meeting)
{
	struct ranks *all = ranks_new(6, wait_in_barrier);
	uint64_t when;

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	for (int i = 0; i < 5; i++)
		rank_fork(&all->rank[i], rank_life);
	nap_ms(500);
	when = ep_now_ns();
	rank_kill(&all->rank[2], SIGKILL);
	nap_ms(200);
	rank_fork(&all->rank[5], rank_life);
	cr_expect_eq(ranks_reap(all, SIGKILL), 0);
	expect_named(all, 2, EP_EREMOTE, when);
	ranks_free(all);
}

/* Killed at any moment of the bootstrap: reported as missing or as dead, by number either way. */
Test(boot_death, killed_at_any_moment)
{
	for (int i = 0; i < 20; i++) {
		struct ranks *all = ranks_new(5, wait_in_barrier);
		uint64_t when;

		all->timeout_ms = 1000;
		start(all);
		usleep((useconds_t)(i * 400));
		when = ep_now_ns();
		rank_kill(&all->rank[2], SIGKILL);
		cr_expect_eq(ranks_reap(all, SIGKILL), 0);
		for (int k = 0; k < all->n; k++) {
			struct rank *r = &all->rank[k];
			bool died = r->rc == -EP_EREMOTE && r->at - when < SOON;
			bool never_came = r->rc == -EP_ETIMEOUT && strstr(r->why, "did not come");

			cr_expect(k == 2 || ((died || never_came) && strstr(r->why, "rank 2")),
				  "round %d: rank %d: %d, %s", i, k, r->rc, r->why);
		}
		ranks_free(all);
	}
}

/* The rank whose process is the bootstrap root dies, and the root with it. */
static void *make_id_and_open(void *arg)
{
	struct rank *me = arg;

	if (!rank_note(me, ep_boot_id_create(&me->all->id)))
		me->all->stage = 1;
	return rank_life(me);
}

Test(boot_death, the_meeting_point_is_killed)
{
	struct ranks *all = ranks_new(5, wait_in_barrier);
	uint64_t when;

	rank_fork(&all->rank[1], make_id_and_open);
	cr_assert(UNTIL(all->stage == 1));
	for (int i = 2; i < 5; i++)
		rank_fork(&all->rank[i], rank_life);
	nap_ms(500);
	when = ep_now_ns();
	rank_kill(&all->rank[1], SIGKILL);
	cr_expect_eq(ranks_reap(all, SIGKILL), 0);
	for (int i = 2; i < 5; i++) {
		cr_expect_eq(all->rank[i].rc, -EP_EREMOTE);
		cr_expect(strstr(all->rank[i].why, "rank 1"), "%s", all->rank[i].why);
		cr_expect_lt(all->rank[i].at - when, SOON);
	}
	/* A rank that comes now finds no root, and fails at once. */
	rank_fork(&all->rank[0], rank_life);
	cr_expect_eq(waitpid(all->rank[0].pid, NULL, 0), all->rank[0].pid);
	cr_expect_eq(all->rank[0].rc, -EP_EREMOTE);
	cr_expect(strstr(all->rank[0].why, "no bootstrap root"), "%s", all->rank[0].why);
	cr_expect_lt(all->rank[0].at - when, 5 * SOON);
	ranks_free(all);
}

/* A worker process that outlives its killed parent must not keep the parent's connections alive. */
static void with_a_worker(struct rank *me)
{
	if (me->rank == 2 && !fork()) {
		prctl(PR_SET_PDEATHSIG, 0);
		me->all->stage = (int)getpid();
		nap_ms(60000);
		_exit(0);
	}
	wait_in_barrier(me);
}

Test(boot_death, a_worker_outlives_its_rank)
{
	struct ranks *all = ranks_new(4, with_a_worker);
	uint64_t when;

	start(all);
	for (int i = 0; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	cr_assert(UNTIL(all->stage));
	when = ep_now_ns();
	rank_kill(&all->rank[2], SIGKILL);
	cr_expect_eq(ranks_reap(all, SIGKILL), 0);
	expect_named(all, 2, EP_EREMOTE, when);
	cr_expect(all->stage > 1 && !kill(all->stage, SIGKILL), "the worker still lived");
	ranks_free(all);
}

static void three_barriers(struct rank *me)
{
	for (int i = 1; i <= 3; i++) {
		RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
		me->stage = i;
		if (i == 1)
			UNTIL(me->all->stage == 1);
	}
}

Test(boot_death, a_stopped_rank_is_not_dead)
{
	struct ranks *all = ranks_new(4, three_barriers);

	start(all);
	for (int i = 0; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	rank_kill(&all->rank[2], SIGSTOP);
	all->stage = 1;
	nap_ms(3500);
	for (int i = 0; i < all->n; i++)
		cr_expect_eq(all->rank[i].stage, 1, "rank %d did not wait", i);
	rank_kill(&all->rank[2], SIGCONT);
	cr_expect_eq(ranks_reap(all, 0), 0);
	cr_expect_eq(ranks_bad(all), 0);
	ranks_free(all);
}

static void give_up(struct rank *me)
{
	if (me->rank == 3) {
		nap_ms(50);
		me->at = ep_now_ns();
		ep_boot_abort(me->boot, EP_EARG, "planted reason");
		RANK_EXPECT(me, ep_boot_barrier(me->boot) == -EP_EARG);
		return;
	}
	rank_note(me, ep_boot_barrier(me->boot));
	RANK_EXPECT(me, strstr(me->why, "planted reason"));
}

Test(boot_death, whoever_gives_up_says_why)
{
	struct ranks *all = ranks_new(8, give_up);

	all->gone = NULL;
	start(all);
	cr_expect_eq(ranks_reap(all, 0), 0);
	expect_named(all, 3, EP_EARG, all->rank[3].at);
	cr_expect_eq(all->rank[3].bad, 0);
	ranks_free(all);
}

/* A rank leaves: an error only for ranks that still need it. */
static void leave_early(struct rank *me)
{
	int who;
	char why[64];

	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	if (me->rank == 3)
		return;
	UNTIL(me->all->stage == 1);
	nap_ms(100);
	RANK_EXPECT(me, ep_boot_failed(me->boot, &who, why, sizeof(why)) == -ENOENT);
	if (me->rank == 0)
		return; /* does not need it */
	rank_note(me, ep_boot_barrier(me->boot));
}

static void *leave_and_say(void *arg)
{
	struct rank *me = arg;

	rank_life(me);
	if (me->rank == 3)
		me->all->stage = 1;
	return NULL;
}

Test(boot_death, leaving_is_no_death)
{
	for (int n = 4; n <= 12; n += 4) {
		struct ranks *all = ranks_new(n, leave_early);

		cr_assert_eq(ep_boot_id_create(&all->id), 0);
		for (int i = 0; i < all->n; i++)
			rank_fork(&all->rank[i], leave_and_say);
		cr_expect_eq(ranks_reap(all, 0), 0);
		for (int i = 0; i < all->n; i++) {
			struct rank *r = &all->rank[i];

			cr_expect_eq(r->bad, 0);
			cr_expect_eq(r->rc, i == 0 || i == 3 ? 0 : -EP_EREMOTE, "rank %d: %d %s", i, r->rc, r->why);
			cr_expect(!r->rc || strstr(r->why, "has left"), "rank %d: %s", i, r->why);
		}
		ranks_free(all);
	}
}

/* Even ranks take part in 5 collectives, odd ones start a sixth: none of the five fails. */
static void uneven(struct rank *me)
{
	for (int i = 0; i < 5; i++)
		RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	if (me->rank % 2)
		rank_note(me, ep_boot_barrier(me->boot));
}

Test(boot_death, leaving_takes_nothing_back)
{
	for (int round = 0; round < 40; round++) {
		struct ranks *all = ranks_new(3 + round % 12, uneven);

		cr_assert_eq(ep_boot_id_create(&all->id), 0);
		cr_assert_eq(ranks_start_threads(all, rank_life), 0);
		ranks_join(all);
		for (int i = 0; i < all->n; i++) {
			struct rank *r = &all->rank[i];

			cr_expect_eq(r->bad, 0);
			cr_expect_eq(r->rc, i % 2 ? -EP_EREMOTE : 0, "rank %d: %d %s", i, r->rc, r->why);
			cr_expect(!r->rc || strstr(r->why, "has left"), "rank %d: %s", i, r->why);
		}
		ranks_free(all);
	}
}
