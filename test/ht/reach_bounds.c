/* SPDX-License-Identifier: Apache-2.0 */
/* More allocations than the tables hold, and requests that cannot be served: those are skipped, the rest works. */
#include <nccl.h>

#include "reach_ranks.h"

enum { EACH = 200, MANY = 300, OWN = 256 };

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

/* Requests everything the others have, which is more than a table holds. */
static void want_all(struct reach_rank *me, const uint64_t *ids)
{
	unsigned slot = 0, found = 0;

	for (int r = 1; r < me->world->n; r++)
		for (int i = 0; i < EACH; i++)
			EXPECT(me, UNTIL(want_put(me, slot++, (uint32_t)r, ids[r * EACH + i])));
	EXPECT(me, UNTIL(table_count(me) == EP_REACH_ENTRIES));
	for (unsigned i = 0; i < EP_REACH_WANTED; i++) /* all taken, and the last of them twice around */
		EXPECT(me, UNTIL(want_put(me, i, 1, ids[EACH])));
	EXPECT(me, UNTIL(want_put(me, 0, 1, ids[EACH])));
	EXPECT(me, table_count(me) == EP_REACH_ENTRIES);
	for (int r = 1; r < me->world->n; r++)
		for (int i = 0; i < EACH; i++) {
			const uint8_t *p = table_find(me, r, ids[r * EACH + i]);

			found += p != NULL;
			EXPECT(me, !p || (p[0] == r && p[1] == i));
		}
	EXPECT(me, found == EP_REACH_ENTRIES);
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
		ep_reach_place(me->reach, mine[i], &place);
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

/* One file descriptor per allocation, up to a limit; freed allocations make room. */
static void hoarder(struct reach_rank *me)
{
	struct ep_place place;
	void *mine[MANY], *one;
	int named = 0, fds = count_fds();

	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && me->reach);
	for (int i = 0; i < MANY; i++) {
		mine[i] = memory(me, 4096);
		ep_reach_place(me->reach, mine[i], &place);
		EXPECT(me, place.address == (uintptr_t)mine[i]);
		EXPECT(me, !place.id == (i >= OWN));
		named += place.id != 0;
	}
	EXPECT(me, named == OWN);
	ep_reach_place(me->reach, mine[0], &place);
	EXPECT(me, place.id);
	for (int i = 0; i < MANY; i++)
		EXPECT(me, ncclMemFree(mine[i]) == ncclSuccess);
	for (int i = 0; i < 2 * OWN; i++) {
		one = memory(me, 4096);
		ep_reach_place(me->reach, one, &place);
		EXPECT(me, place.id);
		EXPECT(me, ncclMemFree(one) == ncclSuccess);
	}
	EXPECT(me, count_fds() < fds + 20); /* offers of freed memory are withdrawn */
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
