/* SPDX-License-Identifier: Apache-2.0 */
/* A rank stands still (SIGSTOP), or is only slow: who is blamed when a collective times out. */
#include <criterion/criterion.h>

#include "plugin/group/group.h"
#include "ranks.h"

TestSuite(boot_stop, .timeout = 120);

#define TIMEOUT_MS 1500
#define STOPPED 0
#define SLOW 3

static void start_as(struct ranks *all, void *(*life)(void *rank))
{
	all->timeout_ms = TIMEOUT_MS;
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	for (int i = 0; i < all->n; i++)
		rank_fork(&all->rank[i], life);
}

static void start(struct ranks *all)
{
	start_as(all, rank_life);
}

static void wake_and_reap(struct ranks *all)
{
	rank_kill(&all->rank[STOPPED], SIGKILL);
	cr_expect_eq(ranks_reap(all, SIGKILL), 0);
}

/* Rank 0 has contributed to the barrier and stops before the others do, whose blocks it forwards: what is missing at
 * the deadline are the blocks of innocent ranks. */
static void relay(struct rank *me)
{
	uint64_t begun;

	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	me->stage = 1;
	if (me->rank != STOPPED)
		UNTIL(me->all->stage == 1);
	begun = ep_now_ns();
	if (!rank_note(me, ep_boot_barrier(me->boot))) { /* got everything without rank 0: the next one fails */
		begun = ep_now_ns();
		rank_note(me, ep_boot_barrier(me->boot));
	}
	ep_boot_close(me->boot);
	RANK_EXPECT(me, ep_now_ns() - begun < (TIMEOUT_MS + 1000) * 1000000ull);
	me->stage = 2;
	_exit(me->bad != 0);
}

Test(boot_stop, a_stopped_relay_is_blamed_not_those_it_forwards)
{
	struct ranks *all = ranks_new(8, relay);

	start(all);
	for (int i = 0; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	nap_ms(100);
	rank_kill(&all->rank[STOPPED], SIGSTOP);
	all->stage = 1;
	for (int i = 1; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 2));
	wake_and_reap(all);
	for (int i = 1; i < all->n; i++)
		cr_expect(all->rank[i].rc == -EP_ETIMEOUT && !strncmp(all->rank[i].why, "rank 0 does not answer", 22),
			  "rank %d: %d, %s", i, all->rank[i].rc, all->rank[i].why);
	ranks_free(all);
}

/* Silence fails nothing, and is forgotten when the rank answers: the next timeout is another rank's. */
static void slow(struct rank *me)
{
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	me->stage = 1;
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	nap_ms(TIMEOUT_MS / 2);
	if (me->rank != SLOW)
		rank_note(me, ep_boot_barrier(me->boot));
	else
		UNTIL(me->all->stage == 1);
}

Test(boot_stop, a_rank_that_answers_again_is_not_blamed)
{
	struct ranks *all = ranks_new(5, slow);

	start(all);
	for (int i = 0; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	rank_kill(&all->rank[STOPPED], SIGSTOP);
	nap_ms(TIMEOUT_MS * 8 / 10);
	rank_kill(&all->rank[STOPPED], SIGCONT);
	for (int i = 0; i < all->n; i++)
		cr_assert(i == SLOW || UNTIL(all->rank[i].at && all->rank[i].why[0]));
	all->stage = 1;
	cr_expect_eq(ranks_reap(all, 0), 0);
	for (int i = 0; i < all->n; i++) {
		const struct rank *r = &all->rank[i];

		cr_expect_eq(r->bad, 0);
		cr_expect(i == SLOW || (strstr(r->why, "missing: rank 3") && !strstr(r->why, "answer")), "rank %d: %s",
			  i, r->why);
	}
	ranks_free(all);
}

/* The end of a call that names a rank, then one that has nobody to name. */
static void out_of_time(struct rank *me)
{
	ep_last_error_set("out of time");
	rank_note(me, ep_boot_explain(me->boot, -EP_ETIMEOUT));
	ep_boot_limit(me->boot, ep_deadline_ms(TIMEOUT_MS)); /* another call */
	ep_last_error_set("out of time");
	RANK_EXPECT(me, ep_boot_explain(me->boot, -EP_ETIMEOUT) && !strcmp(ep_last_error(), "out of time"));
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0); /* nobody leaves before */
}

static void all_say(struct ranks *all, const char *begin)
{
	cr_expect_eq(ranks_reap(all, 0), 0);
	for (int i = 0; i < all->n; i++) {
		const struct rank *r = &all->rank[i];

		cr_expect_eq(r->bad, 0);
		cr_expect(r->rc == -EP_ETIMEOUT && !strncmp(r->why, begin, strlen(begin)) &&
				  strstr(r->why, " ms ago: out of time"),
			  "rank %d: %d, %s", i, r->rc, r->why);
	}
	ranks_free(all);
}

/* But a call that has then no time left names it, where nobody else is to blame. */
static void robbed(struct rank *me)
{
	ep_boot_limit(me->boot, ep_deadline_ms(TIMEOUT_MS));
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	me->stage = 1;
	if (me->rank == STOPPED)
		UNTIL(me->all->stage == 1);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	nap_ms(TIMEOUT_MS / 5); /* the news may take another way than the barrier */
	out_of_time(me);
}

Test(boot_stop, a_rank_that_took_the_time_is_named)
{
	struct ranks *all = ranks_new(5, robbed);

	start(all);
	for (int i = 0; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	rank_kill(&all->rank[STOPPED], SIGSTOP);
	nap_ms(TIMEOUT_MS * 7 / 10);
	rank_kill(&all->rank[STOPPED], SIGCONT);
	all->stage = 1;
	all_say(all, "rank 0 did not answer the pings of rank ");
}

/* Before ranks have met they do not ping each other. */
static void *late_life(void *arg)
{
	struct rank *me = arg;

	if (me->rank == SLOW)
		nap_ms(TIMEOUT_MS / 2);
	return rank_life(me);
}

static void waited(struct rank *me)
{
	ep_boot_limit(me->boot, ep_deadline_ms(TIMEOUT_MS / 2)); /* of a call that began before */
	out_of_time(me);
}

Test(boot_stop, a_rank_that_came_late_is_named)
{
	struct ranks *all = ranks_new(5, waited);

	start_as(all, late_life);
	all_say(all, "rank 3 kept the others waiting for ");
}

/* What the communicator's pings say of a group that is being created. */
static int pinged(ncclComm_t comm, uint64_t from, char *why, size_t size)
{
	snprintf(why, size, "rank 1 did not answer for %d ms, until 0 ms ago", comm || from != 7);
	return 0;
}

/* Rank 3 came last because it waited for rank 1. */
static void kept(struct rank *me)
{
	struct ncclEpGroup *group = calloc(1, sizeof(*group));

	ep_boot_limit(me->boot, ep_deadline_ms(TIMEOUT_MS / 2));
	group->boot = me->boot;
	ep_last_error_set("out of time");
	RANK_EXPECT(me, ep_group_explain(group, 7, -EP_ETIMEOUT) == -EP_ETIMEOUT);
	RANK_EXPECT(me, !strncmp(ep_last_error(), "rank 3 kept the others waiting for ", 35));
	group->comm.calls.waited = pinged;
	ep_last_error_set("out of time");
	rank_note(me, ep_group_explain(group, 7, -EP_ETIMEOUT));
	ep_last_error_set(me->why);
	/* It says so already. */
	RANK_EXPECT(me, ep_group_explain(group, 7, -EP_ETIMEOUT) && !strcmp(ep_last_error(), me->why));
	ep_last_error_set("bad argument");
	RANK_EXPECT(me, ep_group_explain(group, 7, -EP_EARG) && !strcmp(ep_last_error(), "bad argument"));
	free(group);
	ep_boot_limit(me->boot, 0);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0); /* nobody leaves before */
}

Test(boot_stop, pings_of_the_communicator_are_believed_before_who_came_last)
{
	struct ranks *all = ranks_new(5, kept);

	start_as(all, late_life);
	all_say(all, "rank 1 did not answer for 0 ms");
}

static int masked_explain(struct rank *me)
{
	struct ncclEpGroup *group = calloc(1, sizeof(*group));
	int rc;

	group->boot = me->boot;
	group->cfg.enable_mask = true;
	rc = ep_group_explain(group, 0, -EP_ETIMEOUT);
	free(group);
	return rc;
}

/* What is certain replaces what was only missed, also in a failure that was reported before. */
static void dies_late(struct rank *me)
{
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	if (me->rank == STOPPED)
		nap_ms(60000);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == -EP_ETIMEOUT);
	RANK_EXPECT(me, strstr(ep_last_error(), "missing: rank 0"));
	RANK_EXPECT(me, masked_explain(me) == -EP_ETIMEOUT); /* the message says so already */
	me->stage = 1;
	RANK_EXPECT(me, UNTIL(!ep_boot_alive(me->boot, STOPPED)));
	rank_note(me, ep_boot_barrier(me->boot));
	ep_last_error_set("out of time");
	RANK_EXPECT(me, masked_explain(me) && !strncmp(ep_last_error(), "rank 0 died", 11));
}

Test(boot_stop, stronger_evidence_replaces_weaker)
{
	struct ranks *all = ranks_new(4, dies_late);

	start(all);
	for (int i = 1; i < all->n; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	wake_and_reap(all);
	for (int i = 1; i < all->n; i++)
		cr_expect(all->rank[i].rc == -EP_EREMOTE && strstr(all->rank[i].why, "rank 0 died") &&
				  !all->rank[i].bad,
			  "rank %d: %s", i, all->rank[i].why);
	ranks_free(all);
}
