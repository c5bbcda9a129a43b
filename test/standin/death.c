/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies or aborts: all others report it by number, in time. */
#include <criterion/criterion.h>

#include <time.h>

#include "ranks.h"

TestSuite(standin_death, .timeout = 60);

#define SOON_MS 2000

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void nap_ms(long ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/* The error shows without any call of the others, then in every call, and the message names the rank. */
static int sees_death(ncclComm_t comm, const char *name)
{
	ncclResult_t async = ncclSuccess;
	long start = now_ms();
	int bad = 0, x = 1;

	while (async == ncclSuccess && now_ms() - start < SOON_MS) {
		EXPECT_OK(ncclCommGetAsyncError(comm, &async));
		nap_ms(5);
	}
	EXPECT(async == ncclRemoteError);
	EXPECT(strstr(ncclGetLastError(comm), name));
	EXPECT(ncclAllReduce(&x, &x, 1, ncclInt32, ncclSum, comm, NULL) == ncclRemoteError);
	EXPECT(strstr(ncclGetLastError(comm), name));
	EXPECT(now_ms() - start < SOON_MS);
	return bad;
}

static int killed_after_init(struct rank *me)
{
	int bad = ranks_sum(me->comm, 1, me->n);

	/* The others may still be in the sum, which is not to fail here. */
	if (me->rank == 1) {
		nap_ms(200);
		kill(getpid(), SIGKILL);
	}
	return bad + sees_death(me->comm, "rank 1");
}

/* The others are in a collective that the dead rank never enters. */
static int killed_in_collective(struct rank *me)
{
	int bad = ranks_sum(me->comm, 1, me->n), x = 1;
	long start = now_ms();

	if (me->rank == 1) {
		nap_ms(200);
		kill(getpid(), SIGKILL);
	}
	EXPECT(ncclAllReduce(&x, &x, 1, ncclInt32, ncclSum, me->comm, NULL) == ncclRemoteError);
	EXPECT(strstr(ncclGetLastError(me->comm), "rank 1"));
	EXPECT(now_ms() - start < 200 + SOON_MS);
	return bad;
}

Test(standin_death, killed_after_init)
{
	cr_expect(ranks_processes_but(1, 4, killed_after_init, NULL) == 0);
}

Test(standin_death, killed_in_a_collective)
{
	cr_expect(ranks_processes_but(1, 4, killed_in_collective, NULL) == 0);
}

struct waiter {
	ncclComm_t comm;
	ncclResult_t result;
	char text[256];
	pthread_t thread;
};

static void *wait_in_collective(void *arg)
{
	struct waiter *w = arg;
	int x = 1;

	w->result = ncclAllReduce(&x, &x, 1, ncclInt32, ncclSum, w->comm, NULL);
	snprintf(w->text, sizeof(w->text), "%s", ncclGetLastError(NULL));
	return NULL;
}

/* Aborting one rank ends the other's collective. */
Test(standin_death, abort_frees_the_other_rank)
{
	ncclComm_t comm[2];
	struct waiter w = { 0 };
	long start;
	int bad = 0;

	EXPECT_OK(ncclCommInitAll(comm, 2, NULL));
	w.comm = comm[0];
	EXPECT(!pthread_create(&w.thread, NULL, wait_in_collective, &w));
	nap_ms(100);
	start = now_ms();
	EXPECT_OK(ncclCommAbort(comm[1]));
	pthread_join(w.thread, NULL);
	EXPECT(w.result == ncclRemoteError);
	EXPECT(strstr(w.text, "rank 1"));
	EXPECT(now_ms() - start < SOON_MS);
	EXPECT_OK(ncclCommDestroy(comm[0]));
	cr_expect(bad == 0);
}

/* Aborting a communicator releases a thread of the same rank that hangs in it, and waits for it. */
Test(standin_death, abort_frees_this_rank)
{
	ncclComm_t comm[2];
	struct waiter w[2] = { 0 };
	long start;
	int bad = 0;

	EXPECT_OK(ncclCommInitAll(comm, 2, NULL));
	for (int i = 0; i < 2; i++) { /* the second waits for the first */
		w[i].comm = comm[0];
		EXPECT(!pthread_create(&w[i].thread, NULL, wait_in_collective, &w[i]));
	}
	nap_ms(100);
	start = now_ms();
	EXPECT_OK(ncclCommAbort(comm[0]));
	for (int i = 0; i < 2; i++) {
		pthread_join(w[i].thread, NULL);
		EXPECT(w[i].result != ncclSuccess);
	}
	EXPECT(now_ms() - start < SOON_MS);
	EXPECT_OK(ncclCommDestroy(comm[1]));
	cr_expect(bad == 0);
}

/* All ranks abort, in both orders and after a failure. */
Test(standin_death, abort_everywhere)
{
	ncclComm_t comm[3];
	int bad = 0;

	for (int first = 0; first < 3; first++) {
		EXPECT_OK(ncclCommInitAll(comm, 3, NULL));
		for (int i = 0; i < 3; i++)
			EXPECT_OK(ncclCommAbort(comm[(first + i) % 3]));
	}
	cr_expect(bad == 0);
}

static int timeout_names_rank(struct rank *me)
{
	long start = now_ms();
	int bad = 0, x = 1;

	if (me->rank == 1) {
		nap_ms(1200);
		return bad;
	}
	EXPECT(ncclAllReduce(&x, &x, 1, ncclInt32, ncclSum, me->comm, NULL) == ncclTimeout);
	EXPECT(now_ms() - start < 1000);
	return bad;
}

/* A live rank that never calls: the others time out. */
Test(standin_death, a_wait_has_an_end)
{
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "500", 1);
	cr_expect(ranks_threads(2, timeout_names_rank, NULL) == 0);
}
