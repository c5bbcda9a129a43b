/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of LL across two simulated nodes, for trace.py, which reads the trace they leave, and for ep_info.py.
 * Argument: the transport. Exit status 0 or 1.
 */
#include <stdio.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define ROUNDS 3

static int ll_job(struct seat *seat, const void *arg)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .per_node = RANKS / 2 };
	struct rig rig;

	(void)arg;
	cfg.shape = (struct ll_shape){ .layout = LL_EXPERT_MAJOR,
				       .ranks = RANKS,
				       .experts = 2 * RANKS,
				       .topk = 4,
				       .tmax = 64,
				       .hidden = 2048,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = 1, .fill = LL_FILL_FULL };
	if (!rig_open(&rig, seat, &cfg))
		for (int i = 0; i < ROUNDS && !rig_script(&rig, "DA CA"); i++)
			;
	rig_close(&rig);
	return rig_tell(&rig);
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS, .processes = true };
	struct world *world;
	int rc;

	if (world_open(&opts, &world))
		return 1;
	far_set(world, RANKS / 2, argc > 1 ? argv[1] : "loop:unordered=1", 0);
	rc = world_run(world, RANKS, ll_job, NULL, 0, 60);
	if (rc)
		printf("FAILED %s\n", world_text(world));
	return world_close(world) || rc ? 1 : 0;
}
