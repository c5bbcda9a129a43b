/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes, each with the parts of a group that plugin/ht/reach.h needs: endpoint, topology, CPU device, and
 * the stand-in's memory. The test acts as the kernels: it writes requests and reads the table. No test framework,
 * because these run under ThreadSanitizer too; all processes are forked before the first thread.
 */
#ifndef EP_TEST_REACH_RANKS_H
#define EP_TEST_REACH_RANKS_H

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugin/group/group.h"
#include "plugin/ht/state.h"
#include "plugin/standin/query.h"
#include "reach_table.h"
#include "util/clock.h"
#include "util/error.h"

#define REACH_RANKS 4

struct reach_world {
	struct ep_boot_id id;
	_Atomic int met;   /* the id is set */
	_Atomic int stage; /* free for the body */
	int n;
	pid_t pid[REACH_RANKS];
};

struct reach_rank {
	struct reach_world *world;
	struct ncclEpGroup group;
	struct ep_reach *reach;
	int rank;
	int bad;
};

typedef void (*reach_fn)(struct reach_rank *me);

#define EXPECT(me, cond)                                                                                            \
	do {                                                                                                        \
		if (!(cond)) {                                                                                      \
			fprintf(stderr, "%s:%d: rank %d: not so: %s (%s)\n", __FILE__, __LINE__, (me)->rank, #cond, \
				ep_last_error());                                                                   \
			(me)->bad++;                                                                                \
		}                                                                                                   \
	} while (0)

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

/* Threads of this process that serve requests. */
static inline int count_service(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *task;
	char path[320], name[32];
	int n = 0;

	while (dir && (task = readdir(dir))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		f = fopen(path, "r");
		n += f && fgets(name, sizeof(name), f) && !strncmp(name, "ep-reach", 8);
		if (f)
			fclose(f);
	}
	if (dir)
		closedir(dir);
	return n;
}

/* ---- the kernels' part ---- */

static inline struct ep_reach_table *table_of(const struct reach_rank *me)
{
	return ep_reach_device(me->reach);
}

static inline unsigned table_count(const struct reach_rank *me)
{
	struct ep_reach_counts counts;

	ep_reach_counts(me->reach, &counts);
	return counts.mappings;
}

static inline uint8_t *table_find(const struct reach_rank *me, int owner, uint64_t id)
{
	return reach_find(table_of(me), owner, id);
}

static inline bool want_put(struct reach_rank *me, unsigned slot, uint32_t owner, uint64_t id)
{
	return reach_want(table_of(me), slot, owner, id);
}

static inline uint8_t *want_get(struct reach_rank *me, int owner, uint64_t id)
{
	return reach_get(table_of(me), owner, id, 20000);
}

/* ---- ranks ---- */

static inline void barrier(struct reach_rank *me)
{
	EXPECT(me, ep_boot_barrier(me->group.boot) == 0);
}

/* Every rank's tensor. */
static inline void places_exchange(struct reach_rank *me, const void *tensor, struct ep_place *mine,
				   struct ep_place *all)
{
	ep_reach_place(me->reach, tensor, 1, false, mine);
	EXPECT(me, ep_boot_allgather(me->group.boot, mine, sizeof(*mine), all) == 0);
}

static inline int rank_open(struct reach_rank *me)
{
	struct ncclEpGroup *g = &me->group;
	const struct ep_standin_query *q = ncclEpStandinQuery();
	struct ep_boot_opts opts = {
		.id = &me->world->id, .rank = me->rank, .nranks = me->world->n, .timeout_ms = 20000
	};

	g->rank = me->rank;
	g->nranks = me->world->n;
	g->comm.calls.mem_find = q->mem_find;
	g->comm.calls.mem_export = q->mem_export;
	if (ep_dev_row(EP_DEV_HOST)->open(0, &g->dev) || ep_boot_open(&opts, &g->boot) ||
	    g->dev->ops->mem_alloc(g->dev, sizeof(struct ep_ht_state), &g->state))
		return -1;
	return ep_topo_build(g->boot, me->rank, me->world->n, &(struct ep_topo_dev){ .kind = EP_DEV_HOST }, &g->topo);
}

static inline void rank_close(struct reach_rank *me)
{
	ep_boot_close(me->group.boot);
	ep_topo_free(&me->group.topo);
	me->group.dev->ops->mem_free(me->group.dev, &me->group.state);
	me->group.dev->ops->close(me->group.dev);
}

/* Opens everything except the reach, runs the body, closes. */
static inline int rank_life(struct reach_world *world, int rank, reach_fn fn)
{
	struct reach_rank me = { .world = world, .rank = rank };

	alarm(120);
	if (rank == 0) {
		if (ep_boot_id_create(&world->id))
			return 1;
		world->met = 1;
	} else if (!UNTIL(world->met)) {
		return 1;
	}
	if (rank_open(&me)) {
		fprintf(stderr, "rank %d: %s\n", rank, ep_last_error());
		return 1;
	}
	fn(&me);
	rank_close(&me);
	return me.bad != 0;
}

/* Runs the ranks, and meanwhile watch (may be NULL) in the parent; ranks in `killed` may end by SIGKILL. Returns the
 * number that failed. */
static inline int ranks_run(int n, reach_fn fn, void (*watch)(struct reach_world *), int killed)
{
	struct reach_world *world =
		mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int bad = 0, status;

	if (world == MAP_FAILED)
		return 1;
	world->n = n;
	for (int r = 0; r < n; r++) {
		pid_t pid = fork();

		if (!pid)
			_exit(rank_life(world, r, fn));
		world->pid[r] = pid;
	}
	if (watch)
		watch(world);
	for (int r = 0; r < n; r++) {
		if (world->pid[r] <= 0 || waitpid(world->pid[r], &status, 0) != world->pid[r]) {
			bad++;
		} else if (r == killed ? !WIFSIGNALED(status) : status != 0) {
			fprintf(stderr, "rank %d ended with status %#x\n", r, (unsigned)status);
			bad++;
		}
	}
	munmap(world, sizeof(*world));
	return bad;
}

static inline int ranks_end(const char *name, int bad)
{
	printf("%s: %s\n", name, bad ? "FAILED" : "passed");
	return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
