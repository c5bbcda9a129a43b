/* SPDX-License-Identifier: Apache-2.0 */
/* More allocations than a rank may offer, which then replace each other, and requests that cannot be served. */
#include <nccl.h>

#include "reach_ranks.h"

enum { EACH = 200, MANY = EP_REACH_SLOTS + 20, FEW = 5 };

static void *memory(struct reach_rank *me, size_t bytes)
{
	void *p = NULL;

	EXPECT(me, ncclMemAlloc(&p, bytes) == ncclSuccess);
	return p;
}

/* A ring of invalid requests, then a valid one: when that is served, the invalid ones have been processed. */
static void nonsense(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS], place;
	uint8_t *mine = memory(me, 4096);
	const struct {
		uint32_t owner;
		uint64_t id;
	} bad[] = {
		{ 0, 0 },	   { 1, 0 },	      { (uint32_t)me->rank, 0 },  { 7, 1 },
		{ UINT32_MAX, 1 }, { 1, UINT64_MAX }, { 0, 0xdeadbeefull << 20 }, { 0x80000000u, UINT64_MAX },
	};

	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && me->reach);
	mine[0] = (uint8_t)(me->rank + 1);
	places_exchange(me, mine, &place, all);
	for (int round = 0; round < 3; round++)
		for (unsigned i = 0; i < EP_REACH_WANTED; i++) {
			unsigned b = i % (sizeof(bad) / sizeof(bad[0]));
			uint64_t id = bad[b].id ? bad[b].id : place.id + 1000;

			EXPECT(me, UNTIL(want_put(me, i, bad[b].owner, id)));
		}
	for (int r = 0; r < me->world->n; r++) {
		const uint8_t *seen = r == me->rank ? NULL : want_get(me, r, all[r].id);

		EXPECT(me, r == me->rank || (seen && seen[0] == r + 1));
	}
	/* Its own memory is not another process's. */
	EXPECT(me, UNTIL(want_put(me, 5, (uint32_t)me->rank, place.id)));
	EXPECT(me, UNTIL(want_put(me, 5, (uint32_t)me->rank, place.id)));
	EXPECT(me, table_count(me) == (unsigned)me->world->n - 1);
	barrier(me);
	ep_reach_close(me->reach);
	barrier(me);
	ep_reach_free(me->reach);
	ncclMemFree(mine);
}

/* Requests everything the others have: a table has room for all that is on offer. */
static void want_all(struct reach_rank *me, const uint64_t *ids)
{
	unsigned slot = 0, all = (unsigned)(me->world->n - 1) * EACH;

	for (int r = 1; r < me->world->n; r++)
		for (int i = 0; i < EACH; i++)
			EXPECT(me, UNTIL(want_put(me, slot++, (uint32_t)r, ids[r * EACH + i])));
	EXPECT(me, UNTIL(table_count(me) == all));
	for (int r = 1; r < me->world->n; r++)
		for (int i = 0; i < EACH; i++) {
			const uint8_t *p = table_find(me, r, ids[r * EACH + i]);

			EXPECT(me, p && p[0] == r && p[1] == i);
		}
}

static void crowd(struct reach_rank *me)
{
	uint64_t ids[EACH], all[REACH_RANKS * EACH];
	struct ep_place place;
	uint8_t *mine[EACH];

	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && me->reach);
	for (int i = 0; i < EACH; i++) {
		mine[i] = memory(me, 4096);
		mine[i][0] = (uint8_t)me->rank;
		mine[i][1] = (uint8_t)i;
		ep_reach_place(me->reach, mine[i], 1, false, &place);
		ids[i] = place.id;
		EXPECT(me, place.id);
	}
	EXPECT(me, ep_boot_allgather(me->group.boot, ids, sizeof(ids), all) == 0);
	if (me->rank == 0)
		want_all(me, all);
	barrier(me);
	ep_reach_close(me->reach);
	barrier(me);
	ep_reach_free(me->reach);
	for (int i = 0; i < EACH; i++)
		ncclMemFree(mine[i]);
}

static uint64_t id_of(struct reach_rank *me, const void *memory, bool captured)
{
	struct ep_place place;

	ep_reach_place(me->reach, memory, 1, captured, &place);
	EXPECT(me, place.address == (uintptr_t)memory);
	return place.id;
}

static uint64_t evicted(const struct reach_rank *me)
{
	struct ep_reach_counts counts;

	ep_reach_counts(me->reach, &counts);
	return counts.evicted;
}

/* With all slots taken a new allocation replaces the one unused for longest, not too often, and never one that a graph
 * uses. Ids are not used again. */
static void hoarder(struct reach_rank *me)
{
	uint64_t id[MANY];
	void *mine[MANY];
	int fds = count_fds();

	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && me->reach);
	for (int i = 0; i < MANY; i++) {
		mine[i] = memory(me, 4096);
		if (i >= (int)EP_REACH_SLOTS)
			nap_ms(11);
		id[i] = id_of(me, mine[i], i == 1);
		EXPECT(me, id[i]);
		EXPECT(me, id_of(me, mine[0], false) == id[0]); /* in use all the time */
		EXPECT(me, count_fds() <= fds + i + (int)EP_REACH_SLOTS + 30);
	}
	EXPECT(me, evicted(me) == MANY - EP_REACH_SLOTS);
	EXPECT(me, id_of(me, mine[1], false) == id[1]); /* captured */
	for (int i = 0; i < FEW; i++) {
		nap_ms(11);
		EXPECT(me, id_of(me, mine[2 + i], false) > id[MANY - 1]); /* was replaced, and is offered anew */
	}
	id_of(me, mine[2 + FEW], false);
	EXPECT(me, !id_of(me, mine[3 + FEW], false)); /* at once after another: staged */
	for (int i = 0; i < MANY; i++)
		EXPECT(me, ncclMemFree(mine[i]) == ncclSuccess);
	EXPECT(me, UNTIL(count_fds() < fds + 20)); /* offers of freed memory are withdrawn without a call */
	ep_reach_close(me->reach);
	barrier(me);
	ep_reach_free(me->reach);
	EXPECT(me, count_fds() <= fds);
}

int main(void)
{
	return ranks_end("reach_bounds", ranks_run(2, nonsense, NULL, -1) + ranks_run(3, crowd, NULL, -1) +
						 ranks_run(2, hoarder, NULL, -1));
}
