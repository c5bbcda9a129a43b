/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group over a model of test/model/verbs: rows are registered with relaxed ordering in unordered mode, and nothing is
 * on an ordered net. Exit status 0 or 1; 77: another library is loaded.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "test/model/verbs/nic.h"
#include "test/oracle/far.h"
#include "test/oracle/rig.h"

enum { RANKS = 2 };

static int ll_job(struct seat *seat, const void *arg)
{
	struct rig rig;

	if (!rig_open(&rig, seat, arg) && !rig_script(&rig, "DA CA"))
		rig_check_crossed(&rig);
	rig_close(&rig);
	if (rig.verdict.wrong)
		seat_fail(seat, "#wrong %llu: %s", (unsigned long long)rig.verdict.wrong, rig.verdict.first);
	return seat_failed(seat) ? -1 : 0;
}

/* The registrations with relaxed ordering that it makes, or -1. */
static int relaxed_by(struct world *world, const struct nic_stats *stats, const char *net)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .per_node = 1 };
	uint32_t before = stats->relaxed;

	cfg.shape = (struct ll_shape){ .ranks = RANKS,
				       .experts = 2 * RANKS,
				       .topk = 2,
				       .tmax = 5,
				       .hidden = 64,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	far_set(world, 1, net, 0);
	if (world_run(world, RANKS, ll_job, &cfg, sizeof(cfg), 60)) {
		printf("%s: %s\n", net, world_text(world));
		return -1;
	}
	printf("%s: %u registrations with relaxed ordering\n", net, stats->relaxed - before);
	return (int)(stats->relaxed - before);
}

int main(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	const struct nic_stats *stats = lib ? dlsym(lib, "ep_model_nic") : NULL;
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	int failed;

	if (!stats)
		return 77;
	if (world_open(&opts, &world))
		return 1;
	failed = relaxed_by(world, stats, "verbs") != RANKS; /* and not their signals and mail */
	failed += relaxed_by(world, stats, "verbs:ordered=1") != 0;
	return failed + (world_close(world) != 0) > 0;
}
