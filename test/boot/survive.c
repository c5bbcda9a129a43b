/* SPDX-License-Identifier: Apache-2.0 */
/* With survive the live ranks go on without the dead ones, however many die. */
#include <criterion/criterion.h>

#include <errno.h>

#include "ranks.h"

TestSuite(boot_survive, .timeout = 120);

#define ROUNDS 8

static void note_gone(void *ctx, int rank, struct ep_blame blame, const char *why)
{
	struct rank *me = ctx;

	(void)blame;
	(void)why;
	me->gone[me->ngone++ % 8] = rank;
}

static bool doomed(int rank)
{
	static const bool die[8] = { false, true, true, false, true, false, true, true };

	return rank < 8 && die[rank];
}

/* The bits of all->arg are the ranks that die, each in another round, during the others' collective. */
static void lose_some(struct rank *me)
{
	int32_t mine[2] = { me->rank, 0 }, all[2 * MAX_RANKS];
	int n = me->all->n;

	for (int round = 0; round < ROUNDS; round++) {
		if ((me->all->arg & 1 << me->rank) && round == 1 + me->rank % 5) {
			if (me->rank % 2)
				nap_ms(20);
			kill(getpid(), SIGKILL);
		}
		mine[1] = round;
		memset(all, 0xff, sizeof(all));
		RANK_EXPECT(me, ep_boot_allgather(me->boot, mine, sizeof(mine), all) == 0);
		for (int r = 0; r < n; r++) {
			bool there = all[2 * r] == r && all[2 * r + 1] == round,
			     untouched = all[2 * r] == -1 && all[2 * r + 1] == -1;

			RANK_EXPECT(me, there || (untouched && (me->all->arg & 1 << r)));
		}
	}
	for (int r = 0; r < n; r++)
		RANK_EXPECT(me, !(me->all->arg & 1 << r) || !ep_boot_alive(me->boot, r));
}

static void survive(int n, int victims)
{
	struct ranks *all = ranks_new(n, lose_some);

	all->survive = true;
	all->arg = victims;
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	for (int i = 0; i < n; i++)
		rank_fork(&all->rank[i], rank_life);
	cr_expect_eq(ranks_reap(all, SIGKILL), 0);
	for (int i = 0; i < n; i++)
		cr_expect((victims & 1 << i) || (!all->rank[i].bad && !all->rank[i].rc),
			  "%d ranks, victims %#x: rank %d: %s", n, victims, i, all->rank[i].why);
	ranks_free(all);
}

Test(boot_survive, some_die)
{
	survive(2, 0x2);
	survive(3, 0x5);
	survive(5, 0x4);
	survive(8, 0x22);
	survive(12, 0x111);
}

/* 0 loses all its neighbours: 1, 2, 4, 6 and 7. */
Test(boot_survive, the_mesh_is_repaired)
{
	for (int i = 0; i < 5; i++)
		survive(8, 0xd6);
}

Test(boot_survive, one_is_left)
{
	survive(6, 0x3b);
}

/* All at once, while the others are already waiting for them. */
static void lose_all_at_once(struct rank *me)
{
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	me->stage = 1;
	if (doomed(me->rank))
		nap_ms(60000);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	me->at = ep_now_ns();
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	RANK_EXPECT(me, UNTIL(me->ngone >= 5));
	for (int i = 0; i < 5; i++)
		RANK_EXPECT(me, doomed(me->gone[i]));
	me->all->stage++;
	UNTIL(me->all->stage == 3);
	RANK_EXPECT(me, me->ngone == 5);
}

Test(boot_survive, most_die_at_once)
{
	struct ranks *all = ranks_new(8, lose_all_at_once);
	uint64_t when;

	all->survive = true;
	all->gone = note_gone;
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	for (int i = 0; i < 8; i++)
		rank_fork(&all->rank[i], rank_life);
	for (int i = 0; i < 8; i++)
		cr_assert(UNTIL(all->rank[i].stage == 1));
	nap_ms(100);
	when = ep_now_ns();
	for (int i = 0; i < 8; i++)
		if (doomed(i))
			rank_kill(&all->rank[i], SIGKILL);
	cr_expect_eq(ranks_reap(all, SIGKILL), 0);
	for (int i = 0; i < 8; i++)
		cr_expect(doomed(i) || (!all->rank[i].bad && all->rank[i].at - when < 2000000000ull),
			  "rank %d: %.0f ms", i, (double)(all->rank[i].at - when) / 1e6);
	ranks_free(all);
}

/* A rank that gives up or leaves is skipped like a dead one. */
static void some_leave(struct rank *me)
{
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	if (me->rank == 1)
		return;
	if (me->rank == 4) {
		ep_boot_abort(me->boot, EP_EUSAGE, "enough");
		RANK_EXPECT(me, ep_boot_barrier(me->boot) == -EP_EUSAGE);
		return;
	}
	for (int i = 0; i < 3; i++)
		RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	RANK_EXPECT(me, UNTIL(me->ngone == 1) && me->gone[0] == 4);
	RANK_EXPECT(me, !ep_boot_alive(me->boot, 1) && !ep_boot_alive(me->boot, 4));
}

Test(boot_survive, some_leave)
{
	struct ranks *all = ranks_new(6, some_leave);

	all->survive = true;
	all->gone = note_gone;
	cr_expect_eq(ranks_processes(all), 0);
	ranks_free(all);
}
