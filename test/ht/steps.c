/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What HT gives to the transport between two nodes on the CPU device: rows of 4 KiB in steps of 256 KiB, the first ones
 * shorter, each a put, a signal, and a signal that gives its slot back. Exit status 0 or 1.
 */
#include <stdio.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"

#define RANKS 2
#define TOKENS 512
#define STEPS (4 + 9) /* of 1, 2, 4 and 8 rows, and of 61 rows of 4 KiB and their heads */

static int counts(struct ht_rig *rig, anyEpNetCounts_t *out)
{
	anyEpNetTimes_t times = ANYEP_NET_TIMES_INIT;

	*out = (anyEpNetCounts_t)ANYEP_NET_COUNTS_INIT;
	/* The first waits for everything that was pushed. */
	return ht_expect(rig, "anyEpGroupNetTimes", anyEpGroupNetTimes(rig->group, &times)) ||
	       ht_expect(rig, "anyEpGroupNetCounts", anyEpGroupNetCounts(rig->group, out));
}

static int steps_job(struct seat *seat, const void *arg)
{
	static const char *const scripts[] = { "DA", "CA" };
	anyEpNetCounts_t from, to;
	struct ht_rig rig;

	if (ht_open(&rig, seat, arg) || ht_script(&rig, "UA"))
		goto close;
	for (int i = 0; i < 2; i++) {
		if (counts(&rig, &from) || seat_barrier(seat) || ht_script(&rig, scripts[i]) || seat_barrier(seat) ||
		    counts(&rig, &to))
			goto close;
		if (seat_rank(seat) == 0)
			printf("# %s: %llu puts, %llu signals\n", scripts[i], to.puts - from.puts + 0ull,
			       to.signals - from.signals + 0ull);
		ll_wrong(&rig.verdict, to.puts - from.puts != STEPS || to.signals - from.signals != 2 * STEPS,
			 "rank %d, %s: %llu puts and %llu signals; must be %d and %d", seat_rank(seat), scripts[i],
			 to.puts - from.puts + 0ull, to.signals - from.signals + 0ull, STEPS, 2 * STEPS);
	}
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

int main(void)
{
	struct ht_cfg cfg = { .handles = 1, .spare = 1, .counters = 32, .tell_topk = true };
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	int rc;

	/* Every token goes to both ranks. */
	cfg.shape.base = (struct ll_shape){ .ranks = RANKS,
					    .experts = RANKS,
					    .topk = RANKS,
					    .tmax = TOKENS,
					    .hidden = 2048,
					    .token = NUM_BF16,
					    .combine = NUM_BF16 };
	cfg.shape.nodes.size[0] = 1;
	cfg.shape.capacity = ht_bound(&cfg.shape);
	cfg.data = (struct ll_data){ .seed = 5, .fill = LL_FILL_FULL };
	far_set_nodes(NULL, &cfg.shape.nodes, "loop", 0);
	if (world_open(&opts, &world))
		return 1;
	rc = world_run(world, RANKS, steps_job, &cfg, sizeof(cfg), 60);
	printf("%s%s%s\n", rc ? "FAILED" : "ok", rc ? ": " : "", rc ? world_text(world) : "");
	return world_close(world) || rc ? 1 : 0;
}
