/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in under threads, for ThreadSanitizer: groups, splits, streams' order, windows, aborts in flight. */
#include <time.h>

#include "ranks.h"

static int busy_rank(struct rank *me)
{
	ncclWindow_t win = NULL;
	ncclComm_t half = NULL;
	ncclResult_t async;
	char memory[64];
	void *p;
	int bad = 0, n;

	for (int i = 0; i < 20; i++)
		bad += ranks_sum(me->comm, me->rank + i, me->n * (me->n - 1) / 2 + me->n * i);
	EXPECT_OK(ncclCommSplit(me->comm, me->rank & 1, 0, &half, NULL));
	EXPECT_OK(ncclCommWindowRegister(half, memory, sizeof(memory), &win, 0));
	EXPECT_OK(ncclWinGetUserPtr(half, win, &p));
	EXPECT_OK(ncclCommGetAsyncError(half, &async));
	EXPECT_OK(ncclCommCount(half, &n));
	bad += ranks_sum(half, 1, n);
	EXPECT_OK(ncclCommDestroy(half));
	EXPECT_OK(ncclMemAlloc(&p, 10000));
	EXPECT_OK(ncclMemFree(p));
	return bad;
}

static int one_thread(void)
{
	ncclComm_t comm[4];
	int x[4], bad = 0;

	EXPECT_OK(ncclCommInitAll(comm, 4, NULL));
	for (int round = 0; round < 10; round++) {
		EXPECT_OK(ncclGroupStart());
		for (int i = 0; i < 4; i++) {
			x[i] = i;
			EXPECT_OK(ncclAllReduce(&x[i], &x[i], 1, ncclInt32, ncclSum, comm[i], NULL));
		}
		EXPECT_OK(ncclGroupEnd());
		for (int i = 0; i < 4; i++)
			EXPECT(x[i] == 6);
	}
	for (int i = 0; i < 4; i++)
		EXPECT_OK(ncclCommDestroy(comm[i]));
	return bad;
}

/* Several threads use one rank at once; the operations are the same, so any order is correct. */
static void *hammer(void *arg)
{
	ncclComm_t comm = arg;
	intptr_t bad = 0;
	int n;

	for (int i = 0; i < 10; i++) {
		bad += ranks_sum(comm, 1, 2);
		EXPECT_OK(ncclCommCount(comm, &n));
	}
	return (void *)bad;
}

static int shared_comm(void)
{
	ncclComm_t comm[2];
	pthread_t thread[6];
	void *res;
	int bad = 0;

	EXPECT_OK(ncclCommInitAll(comm, 2, NULL));
	for (int i = 0; i < 6; i++)
		EXPECT(!pthread_create(&thread[i], NULL, hammer, comm[i % 2]));
	for (int i = 0; i < 6; i++) {
		pthread_join(thread[i], &res);
		bad += (int)(intptr_t)res;
	}
	for (int i = 0; i < 2; i++)
		EXPECT_OK(ncclCommDestroy(comm[i]));
	return bad;
}

static void *stuck(void *arg)
{
	int x = 1;

	return (void *)(intptr_t)ncclAllReduce(&x, &x, 1, ncclInt32, ncclSum, arg, NULL);
}

static int abort_in_flight(int who)
{
	struct timespec nap = { .tv_nsec = 20000000 };
	ncclComm_t comm[3];
	pthread_t thread[3];
	void *res[3];
	int bad = 0;

	EXPECT_OK(ncclCommInitAll(comm, 3, NULL));
	for (int i = 0; i < 2; i++) /* rank 2 never comes */
		EXPECT(!pthread_create(&thread[i], NULL, stuck, comm[i]));
	nanosleep(&nap, NULL);
	EXPECT_OK(ncclCommAbort(comm[who]));
	for (int i = 0; i < 2; i++) {
		pthread_join(thread[i], &res[i]);
		EXPECT((intptr_t)res[i] != ncclSuccess);
	}
	for (int i = 0; i < 3; i++)
		if (i != who)
			EXPECT_OK(i == 1 ? ncclCommAbort(comm[i]) : ncclCommDestroy(comm[i]));
	return bad;
}

int main(void)
{
	int bad = ranks_threads(5, busy_rank, NULL) + one_thread() + shared_comm();

	for (int who = 0; who < 3; who++)
		bad += abort_in_flight(who);
	return bad ? 1 : 0;
}
