/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a bootstrap as threads or processes, without a test framework. A rank writes its results into its struct
 * rank in shared memory; the parent checks them.
 */
#ifndef EP_TEST_BOOT_RANKS_H
#define EP_TEST_BOOT_RANKS_H

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugin/boot/boot.h"
#include "util/clock.h"
#include "util/error.h"

#define MAX_RANKS 256

struct rank;
typedef void (*rank_fn)(struct rank *me);

struct ranks {
	struct ep_boot_id id;
	int n;
	int timeout_ms; /* 0: 20 s, generous for a busy machine */
	bool survive;
	rank_fn fn;
	ep_boot_gone_fn gone;
	int arg;
	_Atomic int stage; /* for the body's own use, seen by all processes */
	struct rank {
		struct ranks *all;
		struct ep_boot *boot;
		int rank;
		int rc;		    /* of the last call reported */
		char why[512];	    /* its message */
		uint64_t at;	    /* when, CLOCK_MONOTONIC ns */
		int bad;	    /* checks of the body that failed */
		_Atomic int stage;  /* for the body's own use */
		int gone[8], ngone; /* ranks the gone callback named */
		pthread_t thread;
		pid_t pid;
	} rank[MAX_RANKS];
};

/* Counts into the rank's "bad" and prints where. */
#define RANK_EXPECT(me, cond)                                                                                       \
	do {                                                                                                        \
		if (!(cond)) {                                                                                      \
			fprintf(stderr, "%s:%d: rank %d: failed: %s (%s)\n", __FILE__, __LINE__, (me)->rank, #cond, \
				ep_last_error());                                                                   \
			(me)->bad++;                                                                                \
		}                                                                                                   \
	} while (0)

static inline void nap_ms(int ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

/* Waits, for at most 20 s, until the condition holds; its value is whether it does. */
#define UNTIL(cond)                                      \
	({                                               \
		uint64_t until_ = ep_deadline_ms(20000); \
		while (!(cond) && ep_now_ns() < until_)  \
			nap_ms(1);                       \
		(cond) ? true : false;                   \
	})

static inline struct ranks *ranks_new(int n, rank_fn fn)
{
	struct ranks *all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED)
		abort();
	all->n = n;
	all->fn = fn;
	for (int i = 0; i < MAX_RANKS; i++) {
		all->rank[i].all = all;
		all->rank[i].rank = i;
	}
	return all;
}

static inline void ranks_free(struct ranks *all)
{
	munmap(all, sizeof(*all));
}

static inline int rank_note(struct rank *me, int rc)
{
	me->rc = rc;
	me->at = ep_now_ns();
	snprintf(me->why, sizeof(me->why), "%s", rc ? ep_last_error() : "");
	return rc;
}

static inline int rank_open(struct rank *me)
{
	struct ep_boot_opts opts = { .id = &me->all->id,
				     .rank = me->rank,
				     .nranks = me->all->n,
				     .timeout_ms = me->all->timeout_ms ? me->all->timeout_ms : 20000,
				     .survive = me->all->survive,
				     .gone = me->all->gone,
				     .gone_ctx = me };

	return rank_note(me, ep_boot_open(&opts, &me->boot));
}

/* Opens, runs the body, closes. */
static inline void *rank_life(void *arg)
{
	struct rank *me = arg;

	if (!rank_open(me)) {
		me->all->fn(me);
		ep_boot_close(me->boot);
	}
	return NULL;
}

static inline int ranks_start_threads(struct ranks *all, void *(*life)(void *))
{
	for (int i = 0; i < all->n; i++)
		if (pthread_create(&all->rank[i].thread, NULL, life, &all->rank[i]))
			return -1;
	return 0;
}

static inline void ranks_join(struct ranks *all)
{
	for (int i = 0; i < all->n; i++)
		pthread_join(all->rank[i].thread, NULL);
}

static inline pid_t rank_fork(struct rank *me, void *(*life)(void *))
{
	pid_t pid = fork();

	if (!pid) {
		life(me);
		_exit(0);
	}
	return me->pid = pid; /* not in the child, which shares the memory */
}

/* fork() may have failed: kill(0) and kill(-1) would signal other processes. */
static inline int rank_kill(const struct rank *r, int signal)
{
	return r->pid > 1 ? kill(r->pid, signal) : -1;
}

/* Returns how many could not be waited for, or ended otherwise than by exit 0 or the signal. */
static inline int ranks_reap(struct ranks *all, int signal)
{
	int odd = 0;

	for (int i = 0; i < all->n; i++) {
		int status = -1;

		if (all->rank[i].pid <= 0)
			continue;
		odd += waitpid(all->rank[i].pid, &status, 0) != all->rank[i].pid;
		if (!(WIFEXITED(status) && !WEXITSTATUS(status)) &&
		    !(WIFSIGNALED(status) && WTERMSIG(status) == signal)) {
			fprintf(stderr, "rank %d ended with status %#x\n", i, status);
			odd++;
		}
	}
	return odd;
}

static inline int ranks_bad(const struct ranks *all)
{
	int bad = 0;

	for (int i = 0; i < all->n; i++)
		bad += all->rank[i].bad + (all->rank[i].rc != 0);
	return bad;
}

/* Creates the id and runs all ranks; returns how many failed. */
static inline int ranks_threads(struct ranks *all)
{
	if (ep_boot_id_create(&all->id) || ranks_start_threads(all, rank_life))
		return -1;
	ranks_join(all);
	return ranks_bad(all);
}

static inline int ranks_processes(struct ranks *all)
{
	if (ep_boot_id_create(&all->id))
		return -1;
	for (int i = 0; i < all->n; i++)
		rank_fork(&all->rank[i], rank_life);
	return ranks_reap(all, 0) + ranks_bad(all);
}

static inline int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static inline int count_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	int n = -2;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

#endif
