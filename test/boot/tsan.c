/* SPDX-License-Identifier: Apache-2.0 */
/* Everything an endpoint does, with 16 rank threads in one process, for ThreadSanitizer. Exit 0 or 1. */
#include "ranks.h"

#include <errno.h>
#include <stdatomic.h>

#define RANKS 16

static atomic_int calls;

static void note_gone(void *ctx, int rank, struct ep_blame blame, const char *why)
{
	(void)blame;
	(void)ctx;
	(void)rank;
	(void)why;
	atomic_fetch_add(&calls, 1);
}

static void work(struct rank *me)
{
	static char big[RANKS][RANKS * 70000];
	struct ep_fd_token mine, all[RANKS];
	int fd, who;
	char why[128], block[70000];

	memset(block, me->rank, sizeof(block));
	for (int i = 0; i < 30; i++) {
		size_t n = i % 3 == 2 ? sizeof(block) : (size_t)i;

		RANK_EXPECT(me, ep_boot_allgather(me->boot, block, n, big[me->rank]) == 0);
		for (int r = 0; r < RANKS && n; r++)
			RANK_EXPECT(me, big[me->rank][(size_t)r * n] == r && big[me->rank][(size_t)r * n + n - 1] == r);
		RANK_EXPECT(me, ep_boot_failed(me->boot, &who, why, sizeof(why)) == -ENOENT);
	}
	ep_boot_fd_token(me->boot, &mine);
	RANK_EXPECT(me, ep_boot_fd_offer(me->boot, 1, 0) == 0);
	RANK_EXPECT(me, ep_boot_allgather(me->boot, &mine, sizeof(mine), all) == 0);
	for (int r = 0; r < RANKS; r++) {
		RANK_EXPECT(me, ep_boot_fd_fetch(me->boot, &all[r], 1, &fd) == 0);
		close(fd);
	}
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	ep_boot_fd_withdraw(me->boot, 1);
}

/* The second round: one rank gives up during the collectives of the others. */
static void give_up(struct rank *me)
{
	int rc = 0;

	for (int i = 0; i < 100 && !rc; i++) {
		if (me->rank == 5 && i == 20)
			ep_boot_abort(me->boot, EP_EUSAGE, "enough");
		rc = ep_boot_barrier(me->boot);
	}
	if (me->all->survive && me->rank != 5)
		RANK_EXPECT(me, rc == 0 && !ep_boot_alive(me->boot, 5));
	else
		RANK_EXPECT(me, rc == -EP_EUSAGE);
}

static int run(rank_fn fn, bool survive)
{
	struct ranks *all = ranks_new(RANKS, fn);
	int bad;

	all->survive = survive;
	all->gone = note_gone;
	all->timeout_ms = 60000; /* for a sanitizer on two cores */
	bad = ranks_threads(all);
	ranks_free(all);
	return bad;
}

int main(void)
{
	int bad = run(work, false) + run(work, true) + run(give_up, false) + run(give_up, true);

	bad += atomic_load(&calls) != 2 * (RANKS - 1);
	/* The roots exit on their own. */
	bad += !UNTIL(count_threads() <= 2);
	fprintf(stderr, "%d failures\n", bad);
	return bad ? 1 : 0;
}
