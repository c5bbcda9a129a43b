/* SPDX-License-Identifier: Apache-2.0 */
/* One thread acts for several ranks: calls between ncclGroupStart and ncclGroupEnd run together at the end. */
#include <criterion/criterion.h>

#include "ranks.h"

TestSuite(standin_group, .timeout = 60);

#define N 4

static int make(ncclComm_t comm[N])
{
	ncclUniqueId id;
	int bad = 0;

	EXPECT_OK(ncclGetUniqueId(&id));
	EXPECT_OK(ncclGroupStart());
	for (int i = 0; i < N; i++)
		EXPECT_OK(ncclCommInitRank(&comm[i], N, id, i));
	EXPECT_OK(ncclGroupEnd());
	return bad;
}

static int destroy(ncclComm_t comm[N])
{
	int bad = 0;

	for (int i = 0; i < N; i++)
		EXPECT_OK(ncclCommDestroy(comm[i]));
	return bad;
}

/* Two operations per rank in one group, the second on the result of the first. */
Test(standin_group, one_thread_four_ranks)
{
	ncclComm_t comm[N];
	int bad = make(comm), x[N], all[N][N];

	EXPECT_OK(ncclGroupStart());
	for (int i = 0; i < N; i++) {
		x[i] = 1 << i;
		EXPECT_OK(ncclGroupStart()); /* nested: only the outer end runs anything */
		EXPECT_OK(ncclAllReduce(&x[i], &x[i], 1, ncclInt32, ncclSum, comm[i], NULL));
		EXPECT_OK(ncclAllGather(&x[i], all[i], 1, ncclInt32, comm[i], NULL));
		EXPECT_OK(ncclGroupEnd());
		EXPECT(x[i] == 1 << i);
	}
	EXPECT_OK(ncclGroupEnd());
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++)
			EXPECT(all[i][j] == (1 << N) - 1);
	cr_expect(bad + destroy(comm) == 0);
}

Test(standin_group, split_windows_and_destroy)
{
	ncclComm_t comm[N], half[N];
	ncclWindow_t win[N];
	char memory[N][64];
	int bad = make(comm), n;

	EXPECT_OK(ncclGroupStart());
	for (int i = 0; i < N; i++) {
		EXPECT_OK(ncclCommSplit(comm[i], i / 2, i, &half[i], NULL));
		EXPECT_OK(ncclCommWindowRegister(comm[i], memory[i], 64, &win[i], NCCL_WIN_COLL_SYMMETRIC));
		EXPECT(half[i] == NULL && win[i] == NULL);
	}
	EXPECT_OK(ncclGroupEnd());
	for (int i = 0; i < N; i++) {
		void *p = NULL;

		EXPECT_OK(ncclCommCount(half[i], &n));
		EXPECT_OK(ncclWinGetUserPtr(comm[i], win[i], &p));
		EXPECT(n == 2 && p == memory[i]);
	}
	EXPECT_OK(ncclGroupStart());
	for (int i = 0; i < N; i++) {
		EXPECT_OK(ncclAllReduce(memory[i], memory[i], 64, ncclInt8, ncclMax, comm[i], NULL));
		EXPECT_OK(ncclCommFinalize(comm[i]));
		EXPECT_OK(ncclCommDestroy(comm[i]));
		EXPECT_OK(ncclCommDestroy(half[i]));
	}
	EXPECT_OK(ncclGroupEnd());
	for (int i = 0; i < N; i++)
		EXPECT(ncclCommCount(comm[i], &n) == ncclInvalidArgument);
	cr_expect(bad == 0);
}

/* An invalid call fails at once and fails the group: the ranks of the valid ones would wait for it. */
Test(standin_group, bad_call_stops_the_group)
{
	ncclComm_t comm[N];
	int bad = make(comm), x[N] = { 1, 1, 1, 1 };

	EXPECT_OK(ncclGroupStart());
	EXPECT_OK(ncclAllReduce(&x[0], &x[0], 1, ncclInt32, ncclSum, comm[0], NULL));
	EXPECT(ncclAllReduce(&x[1], &x[1], 1, (ncclDataType_t)99, ncclSum, comm[1], NULL) == ncclInvalidArgument);
	EXPECT(ncclGroupEnd() == ncclInvalidArgument);
	EXPECT(strstr(ncclGetLastError(NULL), "99") != NULL);
	EXPECT(x[0] == 1);
	EXPECT_OK(ncclGroupStart());
	for (int i = 0; i < N; i++)
		EXPECT_OK(ncclAllReduce(&x[i], &x[i], 1, ncclInt32, ncclSum, comm[i], NULL));
	EXPECT_OK(ncclGroupEnd());
	EXPECT(x[0] == N && x[N - 1] == N);
	cr_expect(bad + destroy(comm) == 0);
}

/* ncclGroupEnd returns an error that occurs when the group runs. */
Test(standin_group, late_error_comes_from_the_end)
{
	ncclComm_t comm[N];
	int bad = make(comm), x[N][2] = { 0 };

	EXPECT_OK(ncclGroupStart());
	for (int i = 0; i < N; i++)
		EXPECT_OK(ncclAllReduce(x[i], x[i], i == 2 ? 2 : 1, ncclInt32, ncclSum, comm[i], NULL));
	EXPECT(ncclGroupEnd() == ncclInvalidUsage);
	EXPECT(strstr(ncclGetLastError(NULL), "rank 2") != NULL);
	cr_expect(bad + destroy(comm) == 0);
}

Test(standin_group, end_without_start)
{
	cr_expect(ncclGroupEnd() == ncclInvalidUsage);
	cr_expect(ncclGroupStart() == ncclSuccess);
	cr_expect(ncclGroupEnd() == ncclSuccess, "an empty group");
	cr_expect(ncclGroupEnd() == ncclInvalidUsage);
}
