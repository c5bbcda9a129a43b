/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads or processes over the stand-in, without a test framework: every function counts failed checks. */
#ifndef EP_TEST_STANDIN_RANKS_H
#define EP_TEST_STANDIN_RANKS_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl.h>

#define MAX_RANKS 128

/* Counts into the caller's "bad" and prints where. */
#define EXPECT(cond)                                                                           \
	do {                                                                                   \
		if (!(cond)) {                                                                 \
			fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #cond, \
				ncclGetLastError(NULL));                                       \
			bad++;                                                                 \
		}                                                                              \
	} while (0)
#define EXPECT_OK(call) EXPECT((call) == ncclSuccess)

struct rank {
	ncclUniqueId id;
	ncclComm_t comm;
	int rank, n;
	void *arg;
	int (*fn)(struct rank *me);
	int bad;
	pthread_t thread;
};

static inline int rank_life(struct rank *me)
{
	int bad = 0;

	EXPECT_OK(ncclCommInitRank(&me->comm, me->n, me->id, me->rank));
	if (bad)
		return bad;
	bad += me->fn(me);
	EXPECT_OK(ncclCommDestroy(me->comm));
	return bad;
}

static inline void *rank_main(void *arg)
{
	struct rank *me = arg;

	me->bad = rank_life(me);
	return NULL;
}

/* Every rank a thread: init, fn, destroy. Returns how many checks failed. */
static inline int ranks_threads(int n, int (*fn)(struct rank *me), void *arg)
{
	static struct rank ranks[MAX_RANKS];
	ncclUniqueId id;
	int bad = 0;

	EXPECT_OK(ncclGetUniqueId(&id));
	for (int i = 0; i < n && !bad; i++) {
		ranks[i] = (struct rank){ .id = id, .rank = i, .n = n, .arg = arg, .fn = fn };
		EXPECT(!pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]));
	}
	for (int i = 0; i < n; i++) {
		pthread_join(ranks[i].thread, NULL);
		bad += ranks[i].bad;
	}
	return bad;
}

static inline pid_t rank_fork(struct rank *me, int gate)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	if (read(gate, &me->id, sizeof(me->id)) != (ssize_t)sizeof(me->id))
		_exit(100);
	_exit(rank_life(me) ? 1 : 0);
}

/* Every rank a process, the id made by the parent, who is none. The rank victim must end by SIGKILL (-1: none), all
 * others well. The id is created after the forks: its root is a thread of the parent. */
static inline int ranks_processes_but(int victim, int n, int (*fn)(struct rank *me), void *arg)
{
	pid_t pid[MAX_RANKS];
	ncclUniqueId id;
	int bad = 0, status, gate[2];

	EXPECT(!pipe(gate));
	for (int i = 0; i < n; i++)
		pid[i] = rank_fork(&(struct rank){ .rank = i, .n = n, .arg = arg, .fn = fn }, gate[0]);
	EXPECT_OK(ncclGetUniqueId(&id));
	for (int i = 0; i < n; i++)
		EXPECT(write(gate[1], &id, sizeof(id)) == (ssize_t)sizeof(id));
	close(gate[0]);
	close(gate[1]);
	for (int i = 0; i < n; i++) {
		EXPECT(waitpid(pid[i], &status, 0) == pid[i]);
		if (i == victim)
			EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		else
			EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	return bad;
}

static inline int ranks_processes(int n, int (*fn)(struct rank *me), void *arg)
{
	return ranks_processes_but(-1, n, fn, arg);
}

/* A sum over the ranks that only comes out right when every rank takes part once. */
static inline int ranks_sum(ncclComm_t comm, int mine, int want)
{
	int bad = 0, sum = -1;

	EXPECT_OK(ncclAllReduce(&mine, &sum, 1, ncclInt32, ncclSum, comm, NULL));
	EXPECT(sum == want);
	return bad;
}

#endif
