/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of live ranks: all sizes, any speed, and mismatched calls. */
#include <criterion/criterion.h>

#include <errno.h>

#include "ranks.h"

TestSuite(boot_coll, .timeout = 120);

static uint8_t value(int round, int rank, size_t at)
{
	return (uint8_t)(round * 41 + rank * 13 + (int)(at * 2654435761u >> 24));
}

static void gather(struct rank *me, int round, size_t n)
{
	int nranks = me->all->n;
	uint8_t *mine = malloc(n + 1), *all = malloc((size_t)nranks * n + 1);

	for (size_t k = 0; k < n; k++)
		mine[k] = value(round, me->rank, k);
	all[(size_t)nranks * n] = 0x5a;
	RANK_EXPECT(me, ep_boot_allgather(me->boot, mine, n, all) == 0);
	for (int r = 0; r < nranks; r++) {
		size_t wrong = 0;

		for (size_t k = 0; k < n; k++)
			wrong += all[(size_t)r * n + k] != value(round, r, k);
		RANK_EXPECT(me, !wrong);
	}
	RANK_EXPECT(me, all[(size_t)nranks * n] == 0x5a);
	free(mine);
	free(all);
}

static void all_sizes(struct rank *me)
{
	static const size_t sizes[] = { 0, 1, 7, 4096, 65535, 65536, 65537, 100000, 3000000, 0 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		gather(me, (int)i, sizes[i]);
}

Test(boot_coll, sizes_threads)
{
	struct ranks *all = ranks_new(5, all_sizes);

	cr_expect_eq(ranks_threads(all), 0);
	ranks_free(all);
}

Test(boot_coll, sizes_processes)
{
	struct ranks *all = ranks_new(3, all_sizes);

	cr_expect_eq(ranks_processes(all), 0);
	ranks_free(all);
}

Test(boot_coll, sizes_one_rank)
{
	struct ranks *all = ranks_new(1, all_sizes);

	cr_expect_eq(ranks_threads(all), 0);
	ranks_free(all);
}

static void uneven_pace(struct rank *me)
{
	unsigned seed = (unsigned)me->rank;

	for (int i = 0; i < 200; i++) {
		if (rand_r(&seed) % 16 == 0)
			nap_ms(rand_r(&seed) % 5);
		if (i % 5)
			gather(me, i, i % 3 ? 12 : 70000);
		else
			RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	}
}

Test(boot_coll, uneven_pace)
{
	struct ranks *all = ranks_new(7, uneven_pace);

	cr_expect_eq(ranks_threads(all), 0);
	all->survive = true;
	cr_expect_eq(ranks_threads(all), 0);
	ranks_free(all);
}

/* No rank leaves a barrier before the last has entered it. */
static void barrier_holds(struct rank *me)
{
	for (int i = 1; i <= 20; i++) {
		if (me->rank == i % me->all->n)
			nap_ms(3);
		me->stage = i;
		RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
		for (int r = 0; r < me->all->n; r++)
			RANK_EXPECT(me, me->all->rank[r].stage >= i);
	}
}

Test(boot_coll, a_barrier_is_one)
{
	struct ranks *all = ranks_new(9, barrier_holds);

	cr_expect_eq(ranks_processes(all), 0);
	ranks_free(all);
}

static void sizes_differ(struct rank *me)
{
	char in[8] = "", out[64];

	/* All wait until rank 1 has begun; some get its block before they begin, some after. */
	if (me->rank != 1 && me->rank % 2)
		nap_ms(50);
	rank_note(me, ep_boot_allgather(me->boot, in, me->rank == 1 ? 3 : 8, out));
}

Test(boot_coll, different_sizes_are_an_error_of_all)
{
	struct ranks *all = ranks_new(5, sizes_differ);

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	for (int i = 0; i < all->n; i++)
		rank_fork(&all->rank[i], rank_life);
	cr_expect_eq(ranks_reap(all, 0), 0);
	for (int i = 0; i < all->n; i++)
		cr_expect(all->rank[i].rc == -EP_EUSAGE && strstr(all->rank[i].why, "gathers"), "rank %d: %d, %s", i,
			  all->rank[i].rc, all->rank[i].why);
	ranks_free(all);
}

/* The late rank may still have all blocks; then the next call fails. */
static void one_is_late(struct rank *me)
{
	if (me->rank == 2) {
		UNTIL(me->all->stage == 3);
		RANK_EXPECT(me, !ep_boot_barrier(me->boot) || strstr(ep_last_error(), "rank 2"));
	}
	rank_note(me, ep_boot_barrier(me->boot));
	me->all->stage++;
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == -EP_ETIMEOUT); /* the endpoint stays failed */
	UNTIL(me->all->stage == 4);
}

Test(boot_coll, a_rank_that_does_not_call_is_named)
{
	struct ranks *all = ranks_new(4, one_is_late);

	all->timeout_ms = 500;
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	cr_assert_eq(ranks_start_threads(all, rank_life), 0);
	ranks_join(all);
	for (int i = 0; i < 4; i++) {
		cr_expect_eq(all->rank[i].bad, 0);
		cr_expect(all->rank[i].rc == -EP_ETIMEOUT && strstr(all->rank[i].why, "rank 2"), "rank %d: %d, %s", i,
			  all->rank[i].rc, all->rank[i].why);
	}
	ranks_free(all);
}

static void *second_caller(void *arg)
{
	struct rank *me = arg;

	UNTIL(me->all->stage == 1);
	nap_ms(50);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == -EP_EUSAGE);
	me->all->stage = 2;
	return NULL;
}

static void two_at_a_time(struct rank *me)
{
	pthread_t thread;

	if (me->rank == 0) {
		pthread_create(&thread, NULL, second_caller, me);
		me->all->stage = 1;
	} else {
		UNTIL(me->all->stage == 2);
	}
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	if (me->rank == 0)
		pthread_join(thread, NULL);
}

Test(boot_coll, one_at_a_time)
{
	struct ranks *all = ranks_new(2, two_at_a_time);

	cr_expect_eq(ranks_threads(all), 0);
	ranks_free(all);
}

/* A forked child has neither the thread nor the sockets of an endpoint. */
static void fork_inside(struct rank *me)
{
	int status = -1;
	pid_t child = fork();

	if (!child) {
		int rc = ep_boot_barrier(me->boot);

		ep_boot_close(me->boot);
		_exit(rc == -EP_EUSAGE ? 0 : 1);
	}
	RANK_EXPECT(me, waitpid(child, &status, 0) == child);
	RANK_EXPECT(me, WIFEXITED(status) && WEXITSTATUS(status) == 0);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
}

Test(boot_coll, a_forked_child_is_no_rank)
{
	struct ranks *all = ranks_new(2, fork_inside);

	cr_expect_eq(ranks_processes(all), 0);
	ranks_free(all);
}
