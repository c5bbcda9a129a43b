/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a bootstrap with threads and processes; errors when ranks contradict each other or do not come. */
#include <criterion/criterion.h>

#include <errno.h>
#include <sys/resource.h>

#include "ranks.h"

TestSuite(boot_meet, .timeout = 120);

static void check_all(struct rank *me)
{
	int32_t mine = me->rank * 3 + 1, all[MAX_RANKS];

	rank_note(me, ep_boot_allgather(me->boot, &mine, sizeof(mine), all));
	for (int i = 0; i < me->all->n; i++)
		RANK_EXPECT(me, all[i] == i * 3 + 1);
	RANK_EXPECT(me, ep_boot_alive(me->boot, me->rank));
	RANK_EXPECT(me, !ep_boot_alive(me->boot, me->all->n) && !ep_boot_alive(me->boot, -1));
}

static void meet_threads(int n)
{
	struct ranks *all = ranks_new(n, check_all);
	int fds = count_fds(), threads = count_threads();

	cr_expect_eq(ranks_threads(all), 0, "%d ranks", n);
	cr_expect(UNTIL(count_fds() == fds), "%d ranks: %d descriptors before, %d after", n, fds, count_fds());
	cr_expect(UNTIL(count_threads() == threads));
	ranks_free(all);
}

Test(boot_meet, threads)
{
	static const int counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 16, 64 };

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		meet_threads(counts[i]);
}

Test(boot_meet, processes)
{
	struct ranks *all = ranks_new(8, check_all);

	cr_expect_eq(ranks_processes(all), 0);
	ranks_free(all);
}

Test(boot_meet, one_after_the_other)
{
	struct ranks *all = ranks_new(3, check_all);

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	for (int i = 2; i >= 0; i--) {
		rank_fork(&all->rank[i], rank_life);
		nap_ms(100);
	}
	cr_expect_eq(ranks_reap(all, 0), 0);
	cr_expect_eq(ranks_bad(all), 0);
	ranks_free(all);
}

/* 128 ranks on one machine; the bound is for 2 busy cores. */
Test(boot_meet, many_threads_meet_fast)
{
	struct ranks *all = ranks_new(128, check_all);
	uint64_t start, last = 0;

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	start = ep_now_ns();
	cr_assert_eq(ranks_start_threads(all, rank_life), 0);
	ranks_join(all);
	cr_expect_eq(ranks_bad(all), 0);
	for (int i = 0; i < all->n; i++)
		last = all->rank[i].at > last ? all->rank[i].at : last;
	cr_expect_lt(last - start, 3000000000ull, "%.0f ms", (double)(last - start) / 1e6);
	ranks_free(all);
}

static void nothing(struct rank *me)
{
	(void)me;
}

Test(boot_meet, a_rank_that_never_comes_is_named)
{
	struct ranks *all = ranks_new(5, nothing);
	uint64_t start = ep_now_ns();

	all->timeout_ms = 700;
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	for (int i = 0; i < 5; i++)
		if (i != 3)
			rank_fork(&all->rank[i], rank_life);
	cr_expect_eq(ranks_reap(all, 0), 0);
	for (int i = 0; i < 5; i++) {
		if (i == 3)
			continue;
		cr_expect_eq(all->rank[i].rc, -EP_ETIMEOUT, "rank %d: %d", i, all->rank[i].rc);
		cr_expect(strstr(all->rank[i].why, "rank 3"), "rank %d: %s", i, all->rank[i].why);
		cr_expect_geq(all->rank[i].at - start, 600000000ull);
		cr_expect_lt(all->rank[i].at - start, 5000000000ull);
	}
	ranks_free(all);
}

Test(boot_meet, different_numbers_of_ranks_fail_everywhere)
{
	struct ranks *all = ranks_new(3, nothing), *four = ranks_new(4, nothing);

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	four->id = all->id;
	rank_fork(&all->rank[0], rank_life);
	rank_fork(&four->rank[1], rank_life);
	rank_fork(&all->rank[2], rank_life);
	cr_expect_eq(ranks_reap(all, 0) + ranks_reap(four, 0), 0);
	cr_expect_eq(all->rank[0].rc, -EP_EARG);
	cr_expect_eq(all->rank[2].rc, -EP_EARG);
	cr_expect_eq(four->rank[1].rc, -EP_EARG);
	cr_expect(strstr(all->rank[0].why, "3") && strstr(all->rank[0].why, "4"), "%s", all->rank[0].why);
	cr_expect_str_eq(all->rank[0].why, four->rank[1].why);
	ranks_free(four);
	ranks_free(all);
}

Test(boot_meet, survive_must_be_agreed)
{
	struct ranks *all = ranks_new(2, nothing), *other = ranks_new(2, nothing);

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	other->id = all->id;
	other->survive = true;
	rank_fork(&all->rank[0], rank_life);
	rank_fork(&other->rank[1], rank_life);
	cr_expect_eq(ranks_reap(all, 0) + ranks_reap(other, 0), 0);
	cr_expect_eq(all->rank[0].rc, -EP_EARG);
	cr_expect_eq(other->rank[1].rc, -EP_EARG, "%d: %s", other->rank[1].rc, other->rank[1].why);
	ranks_free(other);
	ranks_free(all);
}

static void *open_only(void *arg)
{
	rank_open(arg);
	return NULL;
}

/* The second of two equal ranks is refused; the others connect. */
Test(boot_meet, a_rank_twice)
{
	struct ranks *all = ranks_new(3, check_all), *twin = ranks_new(3, nothing);

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	twin->id = all->id;
	rank_fork(&all->rank[1], rank_life);
	nap_ms(300);
	rank_fork(&twin->rank[1], open_only);
	cr_expect_eq(ranks_reap(twin, 0), 0);
	cr_expect_eq(twin->rank[1].rc, -EP_EARG);
	cr_expect(strstr(twin->rank[1].why, "rank 1"), "%s", twin->rank[1].why);
	rank_fork(&all->rank[0], rank_life);
	rank_fork(&all->rank[2], rank_life);
	cr_expect_eq(ranks_reap(all, 0), 0);
	cr_expect_eq(ranks_bad(all), 0);
	ranks_free(twin);
	ranks_free(all);
}

Test(boot_meet, bad_arguments)
{
	struct ranks *all = ranks_new(2, nothing);
	struct ep_boot_opts opts = { .id = &all->id, .rank = 0, .nranks = 1 };
	struct ep_boot *boot = (struct ep_boot *)&opts;

	cr_expect_eq(ep_boot_open(&opts, &boot), -EP_EARG, "an empty id");
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	cr_expect_eq(ep_boot_open(NULL, &boot), -EP_EARG);
	cr_expect_eq(ep_boot_open(&opts, NULL), -EP_EARG);
	opts.nranks = 0;
	cr_expect_eq(ep_boot_open(&opts, &boot), -EP_EARG);
	opts.nranks = EP_BOOT_MAX_RANKS + 1;
	cr_expect_eq(ep_boot_open(&opts, &boot), -EP_EARG);
	opts.nranks = 2;
	opts.rank = 2;
	cr_expect_eq(ep_boot_open(&opts, &boot), -EP_EARG);
	opts.rank = -1;
	cr_expect_eq(ep_boot_open(&opts, &boot), -EP_EARG);
	opts.rank = 0;
	opts.timeout_ms = -1;
	cr_expect_eq(ep_boot_open(&opts, &boot), -EP_EARG);
	cr_expect_eq(boot, (struct ep_boot *)&opts, "written only on success");
	ep_boot_close(NULL);
	ranks_free(all);
}

/* Without a rank the root waits for ten timeouts, after a failure for one; then nothing is left of it. */
Test(boot_meet, the_meeting_point_ends_by_itself)
{
	struct ranks *all = ranks_new(2, nothing);
	int fds = count_fds(), threads = count_threads();

	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "60", 1);
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	cr_expect_gt(count_fds(), fds);
	cr_expect(UNTIL(count_fds() == fds) && UNTIL(count_threads() == threads), "nobody came");
	all->timeout_ms = 200;
	cr_expect_eq(rank_open(&all->rank[0]), -EP_EREMOTE, "the meeting is over");
	cr_expect(strstr(all->rank[0].why, "bootstrap root"), "%s", all->rank[0].why);
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	cr_expect_eq(rank_open(&all->rank[0]), -EP_ETIMEOUT, "alone");
	cr_expect(UNTIL(count_fds() == fds) && UNTIL(count_threads() == threads), "failed");
	ranks_free(all);
}

/* Too few descriptors: an error that says so, on every rank, no spinning. */
Test(boot_meet, no_descriptors_left)
{
	struct ranks *all = ranks_new(16, nothing);
	struct timespec cpu;
	struct rlimit files;
	int failed = 0, said = 0;

	setenv("NCCL_EP_SOCKET_FAMILY", "AF_INET", 1);
	all->timeout_ms = 8000;
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	/* Loop, wake-up, local socket and listener of each rank fit, their connections do not. */
	files = (struct rlimit){ (rlim_t)count_fds() + 70, (rlim_t)count_fds() + 70 };
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
	cr_assert_eq(ranks_start_threads(all, open_only), 0);
	ranks_join(all);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	for (int i = 0; i < all->n; i++) {
		failed += all->rank[i].rc != 0;
		said += strstr(all->rank[i].why, "descriptor") || strstr(all->rank[i].why, "Too many open files");
	}
	cr_expect_eq(failed, all->n);
	cr_expect_gt(said, 0);
	cr_expect_lt(cpu.tv_sec, 2);
	ranks_free(all);
}
