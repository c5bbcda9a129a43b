/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory on one rank: its n-th allocation fails, for every n, in the creation of a group and of a handle. Every
 * call returns on both ranks, an error on the other rank says why, the next calls of both pair with each other, and a
 * failed creation leaves no descriptor. Two ranks as threads. Exit status 0 or 1; 77 under a sanitizer, which has an
 * allocator of its own.
 */
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

enum { RANKS = 2, MOST = 400, K = 2, TMAX = 16, LIMIT_S = 8 };

/* Allocations of this thread until one fails; 0: none does. */
static _Thread_local int left;

#if !SANITIZED
static int fails(void)
{
	if (!left || --left)
		return 0;
	errno = ENOMEM;
	return 1;
}

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *at, size_t n);

#pragma GCC visibility push(default) /* for the libraries too */
void *malloc(size_t n)
{
	return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *at, size_t n)
{
	return fails() ? NULL : __libc_realloc(at, n);
}
#pragma GCC visibility pop
#endif

struct trial {
	int victim, nth;
	int handle;	    /* in the creation of a handle, not of its group */
	atomic_int reached; /* the allocation was made, and failed */
	atomic_int results[RANKS], again[RANKS];
	char text[RANKS][512];
};

static ncclEpGroupConfig_t config(void)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	c.num_experts = 8;
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_token_bytes = 256;
	return c;
}

static void arm(struct trial *trial, const struct rank *me)
{
	left = me->rank == trial->victim ? trial->nth : 0;
}

static void disarm(struct trial *trial, const struct rank *me, ncclResult_t rc)
{
	if (me->rank == trial->victim)
		atomic_store(&trial->reached, !left);
	left = 0;
	atomic_store(&trial->results[me->rank], (int)rc);
	snprintf(trial->text[me->rank], sizeof(trial->text[0]), "%s", rc ? anyEpGetLastError() : "");
}

static int turn(struct rank *me)
{
	struct trial *trial = me->arg;
	ncclEpGroupConfig_t c = config();
	ncclEpGroup_t group = NULL;
	ncclEpHandle_t handle = NULL;
	ncclResult_t rc;

	if (!trial->handle)
		arm(trial, me);
	rc = ncclEpCreateGroup(&group, me->comm, &c);
	if (!trial->handle) {
		disarm(trial, me, rc);
	} else if (group) {
		arm(trial, me);
		rc = ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K, NULL);
		disarm(trial, me, rc);
		ncclEpHandleDestroy(handle);
	}
	if (group)
		ncclEpGroupDestroy(group);
	/* Of a broken communicator all ranks know; else both create a group together. */
	group = NULL;
	atomic_store(&trial->again[me->rank], (int)ncclEpCreateGroup(&group, me->comm, &c));
	if (group)
		ncclEpGroupDestroy(group);
	return 0;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

/* One rank: the other does not mention it where it succeeded itself. */
static int judge(const struct trial *trial, double took)
{
	int other = 1 - trial->victim, bad = 0;
	char name[16];

	snprintf(name, sizeof(name), "rank %d", trial->victim);
	if (trial->results[other] && !strstr(trial->text[other], name) && !strstr(trial->text[other], "memory"))
		bad++;
	if (!trial->again[0] != !trial->again[1] || took > LIMIT_S)
		bad++;
	if (bad)
		fprintf(stderr,
			"allocation %d of rank %d in %s: %.1f s, rank 0: %d \"%s\", rank 1: %d \"%s\", again: %d %d\n",
			trial->nth, trial->victim, trial->handle ? "a handle" : "a group", took, trial->results[0],
			trial->text[0], trial->results[1], trial->text[1], trial->again[0], trial->again[1]);
	return bad;
}

/* Until the victim makes fewer allocations. */
static int sweep(int victim, int handle)
{
	int bad = 0, failures = 0, nth, before = descriptors(), after = before;

	for (nth = 1; nth < MOST; nth++) {
		struct trial trial = { .victim = victim, .nth = nth, .handle = handle };
		double start = seconds();

		bad += ranks_threads(RANKS, turn, &trial) + judge(&trial, seconds() - start);
		failures += trial.results[victim] != 0;
		if (!trial.reached)
			break;
	}
	EXPECT(nth < MOST && failures > 0);
	if (!handle) {
		struct timespec nap = { .tv_nsec = 100000000 };

		/* Meeting points tell latecomers for one timeout. */
		for (int i = 0; i < 30 && (after = descriptors()) > before; i++)
			nanosleep(&nap, NULL);
		EXPECT(after <= before);
	}
	printf("%s rank %d, %s: %d allocations, %d failures, %d descriptors\n", bad ? "not ok" : "ok", victim,
	       handle ? "handle" : "group", nth - 1, failures, after);
	return bad;
}

int main(void)
{
	int failed = 0;

	if (SANITIZED) {
		printf("skipped: the sanitizer's allocator is in use\n");
		return 77;
	}
	setenv("NCCL_EP_DEBUG", "NONE", 0);
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "1500", 1);
	for (int i = 0; i < 4; i++)
		failed += sweep(i & 1, i >> 1) != 0;
	printf("%d passed, %d failed\n", 4 - failed, failed);
	return failed ? 1 : 0;
}
