/* SPDX-License-Identifier: Apache-2.0 */
/* Owners that are dead or do not answer: nobody waits long for them, and a slow one is served later. */
#include <nccl.h>

#include "reach_ranks.h"

static struct ep_place place_of(struct reach_rank *me, void **memory, struct ep_place *all)
{
	struct ep_place mine;

	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && me->reach);
	EXPECT(me, ncclMemAlloc(memory, 4096) == ncclSuccess);
	memset(*memory, me->rank + 1, 4096);
	places_exchange(me, *memory, &mine, all);
	return mine;
}

/* Rank 1 dies after it published its memory. */
static void dies(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS];
	uint64_t start;
	void *memory;
	int rank;
	char why[400];

	place_of(me, &memory, all);
	if (me->rank == 1) {
		UNTIL(me->world->stage == 2); /* all ranks know it */
		raise(SIGKILL);
	}
	me->world->stage++;
	EXPECT(me, UNTIL(ep_boot_failed(me->group.boot, &rank, why, sizeof(why)) == 0) && rank == 1);
	for (unsigned i = 0; i < 3 * EP_REACH_WANTED; i++)
		EXPECT(me, UNTIL(want_put(me, i, 1, all[1].id)));
	EXPECT(me, table_count(me) == 0);
	start = ep_now_ns();
	ep_reach_close(me->reach);
	EXPECT(me, ep_now_ns() - start < 3000000000ull);
	ep_reach_abandon(me->reach); /* as a failed group does */
	ncclMemFree(memory);
}

enum { TOLD = 1, STOPPED, ASKED, AWAKE, SERVED };

/* Rank 1 is stopped while rank 0 requests. */
static void sleeps(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS];
	const uint8_t *seen;
	void *memory;

	place_of(me, &memory, all);
	if (me->rank == 0) {
		me->world->stage = TOLD;
		EXPECT(me, UNTIL(me->world->stage == STOPPED));
		EXPECT(me, want_put(me, 0, 1, all[1].id));
		nap_ms(2300); /* longer than the timeout of a request */
		EXPECT(me, table_count(me) == 0);
		me->world->stage = ASKED;
		EXPECT(me, UNTIL(me->world->stage == AWAKE));
		seen = want_get(me, 1, all[1].id);
		EXPECT(me, seen && seen[0] == 2);
		me->world->stage = SERVED;
	}
	EXPECT(me, UNTIL(me->world->stage == SERVED));
	barrier(me);
	ep_reach_close(me->reach);
	barrier(me);
	ep_reach_free(me->reach);
	ncclMemFree(memory);
}

static void stop_and_wake(struct reach_world *world)
{
	UNTIL(world->stage == TOLD);
	kill(world->pid[1], SIGSTOP);
	world->stage = STOPPED;
	UNTIL(world->stage == ASKED);
	kill(world->pid[1], SIGCONT);
	world->stage = AWAKE;
}

/* Closes while a request to an unresponsive rank is pending. */
static void leaves(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS];
	uint64_t start;
	void *memory;

	place_of(me, &memory, all);
	if (me->rank == 0) {
		me->world->stage = TOLD;
		EXPECT(me, UNTIL(me->world->stage == STOPPED));
		EXPECT(me, want_put(me, 0, 1, all[1].id));
		EXPECT(me, UNTIL(want_put(me, 0, 1, all[1].id)));
		nap_ms(50);
		start = ep_now_ns();
		ep_reach_close(me->reach);
		EXPECT(me, ep_now_ns() - start < 6000000000ull);
		me->world->stage = ASKED;
	} else {
		EXPECT(me, UNTIL(me->world->stage >= ASKED));
		ep_reach_close(me->reach);
	}
	barrier(me);
	ep_reach_free(me->reach);
	ncclMemFree(memory);
}

int main(void)
{
	return ranks_end("reach_gone", ranks_run(3, dies, NULL, 1) + ranks_run(2, sleeps, stop_and_wake, -1) +
					       ranks_run(2, leaves, stop_and_wake, -1));
}
