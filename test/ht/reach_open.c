/* SPDX-License-Identifier: Apache-2.0 */
/* No thread is started where none is needed, and places work without one; how the stand-in's memory is found. */
#include <nccl.h>
#include <pthread.h>

#include "reach_ranks.h"

static void none(struct reach_rank *me)
{
	struct ep_place place;
	void *memory = NULL;

	me->reach = (struct ep_reach *)me;
	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && !me->reach);
	EXPECT(me, count_service() == 0);
	EXPECT(me, !ep_reach_device(me->reach));
	EXPECT(me, ncclMemAlloc(&memory, 4096) == ncclSuccess);
	ep_reach_place(me->reach, memory, 1, false, &place);
	EXPECT(me, place.address == (uintptr_t)memory && !place.id && !place.offset);
	ep_reach_place(me->reach, NULL, 1, false, &place);
	EXPECT(me, !place.address);
	ep_reach_close(NULL);
	ep_reach_abandon(NULL);
	ep_reach_free(NULL);
	ncclMemFree(memory);
}

static void off(struct reach_rank *me)
{
	me->group.cfg.zero_copy = NCCL_EP_ZERO_COPY_OFF;
	none(me);
	me->group.cfg.zero_copy = NCCL_EP_ZERO_COPY_ON;
	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && me->reach);
	EXPECT(me, table_of(me) && table_count(me) == 0);
	ep_reach_close(me->reach);
	ep_reach_free(me->reach);
}

/* Ranks on separate simulated nodes cannot map each other's memory. */
static void apart(struct reach_rank *me)
{
	for (int r = 0; r < me->world->n; r++)
		me->group.topo.rank[r].node = r;
	none(me);
}

/* A forked child that closes the group neither waits for a thread nor withdraws its parent's offers. */
static void forked(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS], mine;
	void *memory = NULL;
	int status = -1;
	pid_t pid;

	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && me->reach);
	EXPECT(me, ncclMemAlloc(&memory, 4096) == ncclSuccess);
	places_exchange(me, memory, &mine, all);
	pid = fork();
	if (!pid) {
		alarm(10);
		ep_reach_close(me->reach);
		_exit(0);
	}
	EXPECT(me, waitpid(pid, &status, 0) == pid && status == 0);
	EXPECT(me, want_get(me, !me->rank, all[!me->rank].id));
	barrier(me);
	ep_reach_close(me->reach);
	barrier(me);
	ep_reach_free(me->reach);
	ncclMemFree(memory);
}

static void *thread_main(void *arg)
{
	struct reach_rank *me = arg;

	if (rank_open(me)) {
		me->bad++;
		return NULL;
	}
	none(me);
	rank_close(me);
	return NULL;
}

/* Ranks of one process know each other's addresses. */
static int threads(void)
{
	struct reach_world world = { .n = 3 };
	struct reach_rank rank[3];
	pthread_t thread[3];
	int bad = 0;

	if (ep_boot_id_create(&world.id))
		return 1;
	for (int r = 0; r < 3; r++) {
		rank[r] = (struct reach_rank){ .world = &world, .rank = r };
		bad += pthread_create(&thread[r], NULL, thread_main, &rank[r]) != 0;
	}
	for (int r = 0; r < 3 && !bad; r++)
		pthread_join(thread[r], NULL);
	for (int r = 0; r < 3; r++)
		bad += rank[r].bad;
	return bad;
}

static int communicator(void)
{
	struct reach_rank me = { .rank = 0 };
	struct ep_comm found;
	ncclComm_t comm;
	uint8_t *memory = NULL;
	uint64_t id = 0, offset = 9, bytes = 0;
	void *base = NULL;
	size_t size = 0;
	int fd = -1;

	EXPECT(&me, ncclCommInitAll(&comm, 1, NULL) == ncclSuccess);
	EXPECT(&me, ncclMemAlloc((void **)&memory, 5000) == ncclSuccess);
	EXPECT(&me, ep_comm_open(comm, &found) == 0 && found.calls.mem_find && found.calls.mem_export);
	EXPECT(&me, found.calls.mem_find(memory + 4999, &base, &size, &id) == 0);
	EXPECT(&me, base == memory && size == 5000 && id);
	EXPECT(&me, found.calls.mem_find(memory + 5000, &base, &size, &id) == -ENOENT);
	EXPECT(&me, found.calls.mem_find(memory - 1, &base, &size, &id) == -ENOENT);
	EXPECT(&me, found.calls.mem_export(base, &fd, &offset, &bytes) == 0 && fd >= 0 && !offset && bytes >= 5000);
	close(fd);
	EXPECT(&me, ncclMemFree(memory) == ncclSuccess);
	EXPECT(&me, ncclCommDestroy(comm) == ncclSuccess);
	return me.bad;
}

int main(void)
{
	int bad = 0;

	setenv("NCCL_EP_DEVICE", "host", 1);
	bad += ranks_run(1, none, NULL, -1) + ranks_run(2, off, NULL, -1) + ranks_run(2, apart, NULL, -1);
	bad += ranks_run(2, forked, NULL, -1);
	bad += threads() + communicator(); /* last: no forks after threads */
	return ranks_end("reach_open", bad);
}
