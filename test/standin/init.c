/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators are created, queried, split, finalized and destroyed as in NCCL, without a GPU. */
#include <criterion/criterion.h>

#include "ranks.h"

TestSuite(standin_init, .timeout = 60);

static int check_ids(struct rank *me)
{
	ncclResult_t async = ncclInternalError;
	int bad = 0, n = -1, rank = -1, device = 7;

	EXPECT_OK(ncclCommCount(me->comm, &n));
	EXPECT_OK(ncclCommUserRank(me->comm, &rank));
	EXPECT_OK(ncclCommCuDevice(me->comm, &device));
	EXPECT_OK(ncclCommGetAsyncError(me->comm, &async));
	EXPECT(n == me->n && rank == me->rank && device == -1 && async == ncclSuccess);
	return bad + ranks_sum(me->comm, 1 << me->rank, (1 << me->n) - 1);
}

Test(standin_init, threads)
{
	static const int sizes[] = { 1, 2, 3, 8 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		cr_expect(ranks_threads(sizes[i], check_ids, NULL) == 0, "%d threads", sizes[i]);
}

Test(standin_init, processes)
{
	cr_expect(ranks_processes(4, check_ids, NULL) == 0);
}

static int rank_bit(struct rank *me)
{
	return ranks_sum(me->comm, 1, me->n);
}

/* The rank counts of a cluster on two cores; the bound has room for a busy machine. */
Test(standin_init, many_threads)
{
	cr_expect(ranks_threads(64, rank_bit, NULL) == 0);
}

Test(standin_init, two_ids_in_one_process)
{
	int bad = 0;
	ncclUniqueId a, b;
	ncclComm_t ca, cb;

	EXPECT_OK(ncclGetUniqueId(&a));
	EXPECT_OK(ncclGetUniqueId(&b));
	EXPECT(memcmp(&a, &b, sizeof(a)));
	EXPECT_OK(ncclCommInitRank(&cb, 1, b, 0));
	EXPECT_OK(ncclCommInitRank(&ca, 1, a, 0));
	EXPECT(ca != cb);
	EXPECT_OK(ncclCommDestroy(ca));
	EXPECT_OK(ncclCommDestroy(cb));
	cr_expect(bad == 0);
}

Test(standin_init, init_all_from_one_thread)
{
	static const int devices[] = { 0, 1, 2, 0 };
	ncclComm_t comm[4];
	int bad = 0, rank;

	for (int named = 0; named < 2; named++) {
		EXPECT_OK(ncclCommInitAll(comm, 4, named ? devices : NULL));
		for (int i = 0; i < 4; i++) {
			EXPECT_OK(ncclCommUserRank(comm[i], &rank));
			EXPECT(rank == i);
		}
		for (int i = 0; i < 4; i++)
			EXPECT_OK(ncclCommDestroy(comm[i]));
	}
	cr_expect(bad == 0);
}

static int init_variants(struct rank *me)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId *ids = me->arg;
	ncclComm_t a = NULL, b = NULL;
	int bad = 0;

	config.blocking = 0;
	EXPECT_OK(ncclCommInitRankConfig(&a, me->n, ids[0], me->rank, &config));
	config.size = offsetof(ncclConfig_t, cgaClusterSize); /* an old caller's */
	EXPECT_OK(ncclCommInitRankScalable(&b, me->n, me->rank, 2, ids + 1, &config));
	bad += ranks_sum(a, 1, me->n) + ranks_sum(b, 2, 2 * me->n);
	EXPECT_OK(ncclCommDestroy(a));
	EXPECT_OK(ncclCommDestroy(b));
	return bad;
}

Test(standin_init, config_and_scalable)
{
	ncclUniqueId ids[3];

	for (int i = 0; i < 3; i++)
		cr_assert(ncclGetUniqueId(&ids[i]) == ncclSuccess);
	cr_expect(ranks_threads(3, init_variants, ids) == 0);
}

/* Six ranks: even and odd, in reverse order of rank, and the last with NCCL_SPLIT_NOCOLOR. */
static int split_colors(struct rank *me)
{
	int colored = me->rank < me->n - 1, color = colored ? me->rank % 2 : NCCL_SPLIT_NOCOLOR;
	int bad = 0, n = -1, rank = -1, odd = (me->n - 1) / 2, members = me->rank % 2 ? odd : me->n - 1 - odd;
	ncclComm_t half = (ncclComm_t)me, again = NULL;

	EXPECT_OK(ncclCommSplit(me->comm, color, -me->rank, &half, NULL));
	if (!colored) {
		EXPECT(half == NULL);
		EXPECT_OK(ncclCommDestroy(half));
		return bad;
	}
	EXPECT_OK(ncclCommCount(half, &n));
	EXPECT_OK(ncclCommUserRank(half, &rank));
	EXPECT(n == members && rank == members - 1 - me->rank / 2);
	bad += ranks_sum(half, 1, members);
	EXPECT_OK(ncclCommSplit(half, 7, 0, &again, NULL)); /* equal keys keep the order */
	EXPECT_OK(ncclCommUserRank(again, &n));
	EXPECT(n == rank);
	EXPECT_OK(ncclCommDestroy(half)); /* a child outlives its parent */
	bad += ranks_sum(again, 1, members);
	EXPECT_OK(ncclCommDestroy(again));
	return bad;
}

Test(standin_init, split_threads)
{
	cr_expect(ranks_threads(6, split_colors, NULL) == 0);
}

Test(standin_init, split_processes)
{
	cr_expect(ranks_processes(6, split_colors, NULL) == 0);
}

static int finalize_twice(struct rank *me)
{
	int bad = 0, x = 1;

	EXPECT_OK(ncclCommFinalize(me->comm));
	EXPECT(ncclAllReduce(&x, &x, 1, ncclInt32, ncclSum, me->comm, NULL) == ncclInvalidUsage);
	EXPECT(strstr(ncclGetLastError(me->comm), "finalized"));
	EXPECT_OK(ncclCommFinalize(me->comm));
	return bad;
}

Test(standin_init, finalize)
{
	cr_expect(ranks_threads(3, finalize_twice, NULL) == 0);
}

/* A rank leaves while others still use the communicator: no error until they need it. */
Test(standin_init, destroy_in_any_order)
{
	static const int orders[][3] = { { 0, 1, 2 }, { 2, 1, 0 }, { 1, 0, 2 } };
	ncclComm_t comm[3];
	ncclResult_t async;
	int bad = 0;

	for (size_t o = 0; o < sizeof(orders) / sizeof(orders[0]); o++) {
		EXPECT_OK(ncclCommInitAll(comm, 3, NULL));
		for (int i = 0; i < 3; i++) {
			EXPECT_OK(ncclCommGetAsyncError(comm[orders[o][i]], &async));
			EXPECT(async == ncclSuccess);
			EXPECT_OK(ncclCommDestroy(comm[orders[o][i]]));
		}
	}
	cr_expect(bad == 0);
}

Test(standin_init, library_facts)
{
	static const char *const texts[ncclNumResults] = {
		"no error",
		"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
		"unhandled system error (run with NCCL_DEBUG=INFO for details)",
		"internal error - please report this issue to the NCCL developers",
		"invalid argument (run with NCCL_DEBUG=WARN for details)",
		"invalid usage (run with NCCL_DEBUG=WARN for details)",
		"remote process exited or there was a network error",
		"NCCL operation in progress",
		"timeout",
	};
	int version = 0;

	cr_expect(ncclGetVersion(&version) == ncclSuccess && version == 23007);
	cr_expect(NCCL_VERSION_CODE == 23007 && NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == 23007);
	/* NVIDIA's library says the same: callers show and search these texts. */
	for (int i = 0; i < ncclNumResults; i++)
		cr_expect_str_eq(ncclGetErrorString((ncclResult_t)i), texts[i]);
	cr_expect_str_eq(ncclGetErrorString(ncclNumResults), "unknown result code");
	cr_expect_str_eq(ncclGetErrorString((ncclResult_t)-1), "unknown result code");
}
