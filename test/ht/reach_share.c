/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of another process: requested by a kernel, mapped by the service thread, accessed through the mapping; and an
 * address that was freed and reused, which is a new allocation for all ranks and ends the old mapping.
 */
#include <nccl.h>

#include "reach_ranks.h"

enum { BYTES = 100000, AT = 70000, TRIES = 50 };

static uint8_t byte_of(int rank, int seed, int at)
{
	return (uint8_t)(rank * 31 + seed * 7 + at * 3 + 1);
}

static void fill(uint8_t *p, int rank, int seed)
{
	for (int i = 0; i < BYTES; i++)
		p[i] = byte_of(rank, seed, i);
}

static int differs(const uint8_t *p, int rank, int seed)
{
	int n = 0;

	for (int i = 0; i < BYTES; i++)
		n += p[i] != byte_of(rank, seed, i);
	return n;
}

static uint8_t *memory(struct reach_rank *me)
{
	void *p = NULL;

	EXPECT(me, ncclMemAlloc(&p, BYTES) == ncclSuccess);
	return p;
}

/* Each rank reads and writes all others' memory. */
static void exchange(struct reach_rank *me, uint8_t *mine, int seed, uint8_t **seen, struct ep_place *all)
{
	struct ep_place place;

	fill(mine, me->rank, seed);
	places_exchange(me, mine + AT, &place, all);
	EXPECT(me, place.id && place.offset == AT && place.address == (uintptr_t)(mine + AT));
	for (int r = 0; r < me->world->n; r++) {
		if (r == me->rank)
			continue;
		seen[r] = want_get(me, r, all[r].id);
		EXPECT(me, seen[r] != NULL);
		EXPECT(me, seen[r] && !differs(seen[r], r, seed));
	}
	barrier(me);
	for (int r = 0; r < me->world->n; r++)
		if (r != me->rank && seen[r])
			seen[r][all[r].offset + (uint64_t)me->rank] = 200;
	barrier(me);
	for (int r = 0; r < me->world->n; r++)
		EXPECT(me, r == me->rank || mine[AT + r] == 200);
	barrier(me);
}

/* What cannot be shared. */
static void out_of_reach(struct reach_rank *me)
{
	struct ep_place place = { 1, 1, 1 };
	struct ep_mem window;
	int local;

	ep_reach_place(me->reach, &local, 1, false, &place);
	EXPECT(me, place.address == (uintptr_t)&local && !place.id && !place.offset);
	ep_reach_place(me->reach, NULL, 1, false, &place);
	EXPECT(me, !place.address && !place.id && !place.offset);
	EXPECT(me, me->group.dev->ops->mem_alloc(me->group.dev, 4096, &window) == 0);
	ep_reach_place(me->reach, window.ptr, 1, false, &place);
	EXPECT(me, place.address == (uintptr_t)window.ptr && !place.id);
	me->group.dev->ops->mem_free(me->group.dev, &window);
}

/* Frees and allocates until the same address is returned: usually at once, unless another thread took it. */
static uint8_t *same_again(struct reach_rank *me, uint8_t *old)
{
	uint8_t *p = NULL;

	for (int i = 0; i < TRIES && p != old; i++) {
		EXPECT(me, ncclMemFree(i ? p : old) == ncclSuccess);
		p = memory(me);
	}
	EXPECT(me, p == old);
	return p;
}

static void share(struct reach_rank *me)
{
	struct ep_place first[REACH_RANKS], second[REACH_RANKS], again;
	uint8_t *seen[REACH_RANKS] = { 0 }, *late[REACH_RANKS] = { 0 }, *mine;
	int fds = count_fds();
	uint64_t start;

	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && me->reach);
	mine = memory(me);
	exchange(me, mine, 1, seen, first);
	EXPECT(me, count_service() == 1);
	ep_reach_place(me->reach, mine, 1, false, &again);
	EXPECT(me, again.id == first[me->rank].id && again.offset == 0);
	out_of_reach(me);

	mine = same_again(me, mine);
	exchange(me, mine, 2, late, second);
	EXPECT(me, first[me->rank].id != second[me->rank].id);
	EXPECT(me, UNTIL(table_count(me) == (unsigned)me->world->n - 1)); /* the freed ones are closed */
	for (int r = 0; r < me->world->n; r++)
		EXPECT(me, r == me->rank || !table_find(me, r, first[r].id));

	start = ep_now_ns();
	ep_reach_close(me->reach);
	EXPECT(me, ep_now_ns() - start < 3000000000ull);
	EXPECT(me, count_service() == 0);
	barrier(me);
	ep_reach_free(me->reach);
	EXPECT(me, ncclMemFree(mine) == ncclSuccess);
	EXPECT(me, UNTIL(count_fds() <= fds));
}

int main(void)
{
	return ranks_end("reach_share", ranks_run(2, share, NULL, -1) + ranks_run(3, share, NULL, -1));
}
