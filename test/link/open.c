/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of a group with remote ranks count the operations they begin and end in pinned memory (struct ep_cmd_open),
 * which engines of GPUs go by. Every launch counts once: whole operations, halves, masks, one that fails, and on a GPU
 * each replay of a graph. The words are inside the library, so its internals are linked. Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>

#include "plugin/group/group.h"
#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 2
#define REPLAYS 5

struct job {
	struct rig_cfg cfg;
	bool fail;
};

/* The stream is idle. The host counts launches too: all but those of graphs. */
static void words_check(struct rig *rig, uint32_t replayed, const char *after)
{
	const struct ep_cmd_open *open = rig->group->link->open.host;
	uint32_t begun = __atomic_load_n(&open->begun, __ATOMIC_RELAXED);
	uint32_t ended = __atomic_load_n(&open->ended, __ATOMIC_RELAXED);
	uint32_t launched = atomic_load(&rig->group->launched) + replayed;

	ll_wrong(&rig->verdict, begun != launched || ended != launched,
		 "rank %d, after %s: %u launches, of which %u began and %u ended", seat_rank(rig->seat), after,
		 launched, begun, ended);
	ll_wrong(&rig->verdict, launched < 2, "rank %d, after %s: %u launches", seat_rank(rig->seat), after, launched);
}

static int masks_use(struct rig *rig)
{
	int all[RANKS] = { 1, 1 }, got[RANKS]; /* on the CPU device host memory is device memory */

	return rig_expect(rig, "ncclEpMaskUpdate", ncclEpMaskUpdate(rig->group, all, rig->shim.stream)) ||
	       rig_expect(rig, "ncclEpMaskQuery", ncclEpMaskQuery(rig->group, got, rig->shim.stream)) ||
	       rig_expect(rig, "ncclEpMaskClean", ncclEpMaskClean(rig->group, rig->shim.stream)) || rig_sync(rig);
}

static int graph_use(struct rig *rig)
{
	const struct shim_ops *ops = rig->shim.ops;
	void *graph = NULL;
	int rc = rig_update(rig, 0) || rig_sync(rig) || seat_barrier(rig->seat) || ops->capture_begin(&rig->shim) ||
		 rig_dispatch(rig, 0, false) != ncclSuccess || rig_combine(rig, 0, false) != ncclSuccess ||
		 ops->capture_end(&rig->shim, &graph) || seat_barrier(rig->seat);

	for (int i = 0; !rc && i < REPLAYS; i++)
		rc = ops->graph_launch(&rig->shim, graph);
	if (rc || rig_sync(rig))
		return seat_fail(rig->seat, "graph: %s %s", rig->shim.text, anyEpGetLastError());
	/* With masks each operation has a kernel before it, which catches up with a clean. */
	words_check(rig, (rig->cfg.mask ? 4 : 2) * REPLAYS, "replays");
	ops->graph_destroy(&rig->shim, graph);
	return 0;
}

/* Rank 0 alone calls: its launch ends by the deadline. */
static int fail_alone(struct rig *rig)
{
	ncclResult_t rc = ncclSuccess;

	if (seat_rank(rig->seat) == 0) {
		rc = rig_dispatch(rig, 0, false);
		rig->shim.ops->sync(&rig->shim, 10);
		rc = rc == ncclSuccess ? rig_dispatch(rig, 0, false) : rc;
		rig->shim.ops->sync(&rig->shim, 10);
		ll_wrong(&rig->verdict, rc == ncclSuccess, "rank 0: no error although rank 1 called nothing");
		words_check(rig, 0, "a failure");
	}
	rig->parted = true;
	return seat_barrier(rig->seat);
}

static int open_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig rig;

	if (rig_open(&rig, seat, &job->cfg) || seat_barrier(seat))
		goto close;
	if (rig_script(&rig, "DA CA") || rig_script(&rig, "dA DB xA CB CA"))
		goto close;
	words_check(&rig, 0, "halves");
	if (job->cfg.mask && !shim_is_gpu(&rig.shim) && !masks_use(&rig))
		words_check(&rig, 0, "masks");
	if (!job->fail && shim_is_gpu(&rig.shim) && graph_use(&rig))
		goto close;
	if (job->fail && (rig_update(&rig, 0) || rig_sync(&rig) || seat_barrier(seat) || fail_alone(&rig)))
		goto close;
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

static int run_job(struct world *world, const char *net, bool mask, bool fail)
{
	struct job job = { .fail = fail, .cfg = { .handles = 2, .spare = LL_ALL, .mask = mask, .per_node = 1 } };
	int rc;

	job.cfg.shape = (struct ll_shape){ .ranks = RANKS,
					   .experts = 4,
					   .topk = 2,
					   .tmax = 6,
					   .hidden = 256,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_RANDOM };
	far_set(world, 1, net, 0);
	world_setenv(world, "NCCL_EP_TIMEOUT_MS", fail ? "300" : "30000");
	rc = world_run(world, RANKS, open_job, &job, sizeof(job), 60);
	printf("%s %s%s%s%s%s\n", rc ? "FAILED" : "ok    ", net, mask ? ", masks" : "", fail ? ", failure" : "",
	       rc ? ": " : "", rc ? world_text(world) : "");
	return rc != 0;
}

int main(void)
{
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	int failed = 0;

	if (world_open(&opts, &world))
		return 1;
	failed += run_job(world, "loop", false, false);
	failed += run_job(world, "loop:unordered=1", false, false);
	failed += run_job(world, "loop", true, false);
	failed += run_job(world, "loop", false, true);
	failed += world_close(world) != 0;
	return failed ? 1 : 0;
}
