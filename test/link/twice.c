/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With masks, the loss of a rank sets the async error once: the net and the bootstrap both report it, and the later
 * report must not set the error again that ncclEpErrorClear has cleared. Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>

#include "plugin/group/group.h"
#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 2

struct job {
	struct rig_cfg cfg;
};

static void flag_is(struct rig *rig, const char *when, int want)
{
	int got = -1;

	rig_expect(rig, "ncclEpGetAsyncError", ncclEpGetAsyncError(rig->group, &got));
	ll_wrong(&rig->verdict, got != want, "%s: ncclEpGetAsyncError gives %d, must be %d", when, got, want);
}

static int told_job(struct seat *seat, const void *arg)
{
	const struct ep_blame lost = { 1, EP_EV_LOST }, dead = { 1, EP_EV_CERTAIN };
	const struct job *job = arg;
	struct rig rig;

	if (rig_open(&rig, seat, &job->cfg) || rig_script(&rig, "DA CA") || seat_barrier(seat))
		goto close;
	if (seat_rank(seat) == 0) {
		flag_is(&rig, "before a loss", 0);
		ep_group_rank_dead(rig.group, 1, lost, "the net lost it");
		flag_is(&rig, "after the first report", ANYEP_ASYNC_TIMEOUT);
		rig_expect(&rig, "ncclEpErrorClear", ncclEpErrorClear(rig.group));
		flag_is(&rig, "after ncclEpErrorClear", 0);
		ep_group_rank_dead(rig.group, 1, dead, "its process has ended");
		flag_is(&rig, "after the second report", 0);
		rig.active[1] = false;
		rig_check_mask(&rig);
	}
	seat_barrier(seat);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

int main(void)
{
	struct world_opts opts = { .seats = RANKS };
	struct job job = { .cfg = { .handles = 1, .spare = LL_ALL, .mask = true, .per_node = 1 } };
	struct world *world;
	int rc;

	job.cfg.shape = (struct ll_shape){ .layout = LL_EXPERT_MAJOR,
					   .ranks = RANKS,
					   .experts = 2 * RANKS,
					   .topk = 2,
					   .tmax = 4,
					   .hidden = 128,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	if (world_open(&opts, &world))
		return 1;
	far_set(world, 1, "loop", 0);
	rc = world_run(world, RANKS, told_job, &job, sizeof(job), 60);
	if (rc)
		printf("FAILED: %s\n", world_text(world));
	rc = world_close(world) || rc;
	printf("link_twice: %d passed, %d failed\n", !rc, rc);
	return rc;
}
