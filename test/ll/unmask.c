/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that mask each other in a dispatch (ncclEpMaskUpdate) and no longer in its combine: its sums are of the rows
 * that were sent, and it does not read where the dispatch wrote nothing: the handle's memory is poisoned.
 */
#include <stdio.h>
#include <string.h>

#include "plugin/group/handle.h"
#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 2

static int mask_set(struct rig *rig, bool other)
{
	int mask[RANKS] = { other, other };

	mask[seat_rank(rig->seat)] = 1;
	return rig_expect(rig, "ncclEpMaskUpdate", ncclEpMaskUpdate(rig->group, mask, rig->shim.stream)) ||
	       rig_sync(rig) || seat_barrier(rig->seat);
}

static int job(struct seat *seat, const void *arg)
{
	const struct rig_cfg *cfg = arg;
	struct rig rig;

	if (rig_open(&rig, seat, cfg))
		goto close;
	memset(rig.handle[0].handle->mem.data, 0x5a, rig.handle[0].buf[RIG_MEM].size);
	rig.active[1 - seat_rank(seat)] = false;
	rig_set_round(&rig, 20); /* data is made anew, for one rank */
	if (mask_set(&rig, false) || rig_script(&rig, "DA") || mask_set(&rig, true) || rig_script(&rig, "CA"))
		goto close;
	rig.active[1 - seat_rank(seat)] = true;
	rig_set_round(&rig, 100);
	if (!seat_barrier(seat) && !rig_expect(&rig, "ncclEpMaskClean", ncclEpMaskClean(rig.group, rig.shim.stream)) &&
	    !rig_script(&rig, "DA CA dA xA cA xA"))
		rig_check_mask(&rig);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

static int run(enum ll_layout layout, int nodes)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .mask = true, .caller_mem = true };
	struct world_opts opts = { .seats = RANKS, .processes = true };
	struct world *world;
	int rc;

	cfg.shape = (struct ll_shape){ .layout = layout,
				       .ranks = RANKS,
				       .experts = 8,
				       .topk = 4,
				       .tmax = 9,
				       .hidden = 64,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = 5, .fill = LL_FILL_FULL, .route = LL_ROUTE_UNIFORM };
	far_set(NULL, nodes > 1 ? 1 : 0, "loop", 0);
	if (world_open(&opts, &world))
		return 1;
	rc = world_run(world, RANKS, job, &cfg, sizeof(cfg), 60);
	printf("%s %s, %d nodes%s%s\n", rc ? "not ok" : "ok", layout == LL_RANK_MAJOR ? "rank-major" : "expert-major",
	       nodes, rc ? ": " : "", rc ? world_text(world) : "");
	return (world_close(world) && !rc) || rc;
}

int main(void)
{
	int failed = 0;

	for (int nodes = 1; nodes <= 2; nodes++)
		failed += run(LL_EXPERT_MAJOR, nodes) + run(LL_RANK_MAJOR, nodes);
	return failed != 0;
}
