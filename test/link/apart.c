/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs of one node that do not reach each other's memory: LL and HT give the right results through the net and through
 * host memory. The GPUs are models: the CPU device, whose memory other ranks cannot map (no P2P), or can, but what they
 * write does not arrive (as behind an IOMMU). Ranks are threads, each with a GPU of its own, or processes (-g). Exit
 * status 0 or 1.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/dev.h"
#include "nccl_ep_ext.h"
#include "plugin/group/group.h"
#include "test/oracle/ht_rig.h"
#include "test/oracle/rig.h"
#include "util/error.h"

#define RANKS 4

/* What is wrong between the GPUs, and for whom. */
enum fault { SOUND, REFUSED, LOST };

struct job {
	enum fault fault;
	int seat; /* -1: of all ranks */
	bool ht;
	struct rig_cfg ll;
	struct ht_cfg cfg;
};

/* ---- the model ---- */

static const struct ep_dev_ops *cpu; /* the true row */
static struct ep_dev_ops real, gpu;
static atomic_int ordinals;
/* A rank opens its GPU first. What it opens while it has that is the host's memory. */
static _Thread_local int open_count;
static _Thread_local enum fault fault;
static _Thread_local int mapped; /* windows of others that this rank has mapped, or has tried to */

static int model_open(int ordinal, struct ep_dev **out)
{
	int rc = real.open(ordinal, out);

	if (!rc && !open_count++) {
		(*out)->ops = &gpu;
		(*out)->ordinal = atomic_fetch_add(&ordinals, 1);
	}
	return rc;
}

static void model_close(struct ep_dev *dev)
{
	open_count -= dev != NULL;
	real.close(dev);
}

static int model_import(struct ep_dev *dev, const struct ep_export *from, int fd, struct ep_mem *out)
{
	int rc;

	mapped++;
	if (fault == REFUSED)
		return EP_FAIL(EP_DEV, EP_EUSAGE, "model GPU %d has no peer access", dev->ordinal);
	rc = real.mem_import(dev, from, fd, out);
	/* The same pages, until they are written: then they are this rank's own. */
	if (!rc && fault == LOST &&
	    mmap(out->ptr, out->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED)
		return -errno;
	return rc;
}

static int model_peer(struct ep_dev *dev, int peer, const struct ep_mem *mem)
{
	(void)mem;
	mapped++;
	if (fault == REFUSED)
		return EP_FAIL(EP_DEV, EP_EUSAGE, "model GPU %d has no peer access to GPU %d", dev->ordinal, peer);
	return 0;
}

/* The table's row, for the whole program. */
static void model_install(void)
{
	cpu = ep_dev_row(EP_DEV_HOST);
	real = gpu = *cpu;
	gpu.close = model_close;
	gpu.mem_import = model_import;
	gpu.peer_open = model_peer;
	((struct ep_dev_ops *)cpu)->open = model_open;
	((struct ep_dev_ops *)cpu)->close = model_close;
}

/* ---- the jobs ---- */

static struct ll_shape shape_make(void)
{
	return (struct ll_shape){ .ranks = RANKS,
				  .experts = 2 * RANKS,
				  .topk = 3,
				  .tmax = 9,
				  .hidden = 256,
				  .token = NUM_BF16,
				  .combine = NUM_BF16 };
}

static struct job job_make(enum fault kind, int seat, bool ht)
{
	struct job job = { .fault = kind, .seat = seat, .ht = ht, .ll = { .handles = 1, .spare = LL_ALL } };

	job.ll.shape = shape_make();
	job.ll.data = (struct ll_data){ .seed = 11, .fill = LL_FILL_RANDOM, .route = LL_ROUTE_UNIFORM };
	job.cfg = (struct ht_cfg){ .handles = 1, .counters = 32, .spare = LL_ALL, .tell_topk = true, .backward = true };
	job.cfg.where = HT_MIXED;
	job.cfg.data = job.ll.data;
	job.cfg.shape = (struct ht_shape){ .base = shape_make(), .capacity = RANKS * 9 };
	return job;
}

/* Where the fault is anybody's, HT's windows are in host memory and LL's ranks have a link; else neither. */
static int group_check(struct seat *seat, const struct ncclEpGroup *group, const struct job *job)
{
	bool faulty = job->fault != SOUND, mine = faulty && (job->seat < 0 || job->seat == seat_rank(seat));
	int reached = 0;

	for (int r = 0; r < RANKS; r++)
		reached += !group->topo.rank[r].apart;
	if (job->ht ? (group->host != NULL) != faulty : (group->link != NULL) != faulty)
		return seat_fail(seat, "%s", faulty ? "the fault was not noticed" : "there is no fault");
	if (reached != (mine ? 1 : faulty ? RANKS - 1 : RANKS))
		return seat_fail(seat, "rank %d reaches %d ranks", seat_rank(seat), reached);
	return 0;
}

static int play_ll(struct seat *seat, const struct job *job)
{
	struct rig rig;

	if (!rig_open(&rig, seat, &job->ll) && !group_check(seat, rig.group, job))
		rig_script(&rig, "DA CA DA CA dA xA cA xA");
	rig_close(&rig);
	return rig_tell(&rig);
}

/* Tensors are accessed in place once they are mapped, which is between two operations; threads by peer access. The
 * threads that map them have their turns in the pauses, until every rank has accessed one: at most 10 s. */
static void play_direct(struct ht_rig *rig)
{
	anyEpReachCounts_t counts = ANYEP_REACH_COUNTS_INIT;
	atomic_int *ranks = seat_board(rig->seat);

	for (int i = 0, all = 0; i < 130 && all < RANKS; i++) {
		uint64_t before = counts.direct;

		ht_script(rig, "UA DA CA EA BA"); /* some of a rank's tensors cannot be mapped, and not the same */
		nanosleep(&(struct timespec){ .tv_nsec = i < 30 ? 10000000 : 100000000 }, NULL);
		if (!anyEpGroupReachCounts(rig->group, &counts) && counts.direct && !before)
			atomic_fetch_add(ranks, 1);
		if (seat_barrier(rig->seat))
			return;
		all = atomic_load(ranks);
		if (seat_barrier(rig->seat)) /* nobody counts on before all have read it */
			return;
	}
	if (!counts.direct)
		seat_fail(rig->seat, "rank %d: %llu tensors in place, %llu staged, %llu mapped", seat_rank(rig->seat),
			  (unsigned long long)counts.direct, (unsigned long long)counts.staged,
			  (unsigned long long)counts.mapped);
}

static int play_ht(struct seat *seat, const struct job *job)
{
	struct ht_rig rig = { .seat = seat };

	if (!ht_open(&rig, seat, &job->cfg) && !group_check(seat, rig.group, job)) {
		int before = mapped;

		ht_script(&rig, "UA DA CA EA BA UA DA CA EA BA");
		if (job->fault == SOUND)
			play_direct(&rig);
		/* Tensors, too, are nothing to map where it did not work. */
		if (job->fault != SOUND && (job->seat < 0 || job->seat == seat_rank(seat)) && mapped != before)
			seat_fail(seat, "rank %d mapped tensors over a path that does not work", seat_rank(seat));
	}
	ht_close(&rig);
	return ht_tell(&rig);
}

static int play(struct seat *seat, const void *arg)
{
	const struct job *job = arg;

	fault = job->seat < 0 || job->seat == seat_rank(seat) ? job->fault : SOUND;
	return job->ht ? play_ht(seat, job) : play_ll(seat, job);
}

int main(int argc, char **argv)
{
	static const char *const names[] = { [SOUND] = "sound", [REFUSED] = "no P2P", [LOST] = "writes are lost" };
	struct world_opts opts = { .seats = RANKS,
				   .board = sizeof(atomic_int),
				   .processes = argc == 2 && !strcmp(argv[1], "-g") };
	struct world *world;
	int failed = 0;

	if (argc > 1 && !opts.processes) {
		fprintf(stderr, "usage: link_apart [-g]\n  -g  ranks are processes (default: threads)\n");
		return 2;
	}
	model_install();
	if (world_open(&opts, &world))
		return 1;
	/* A thread's pointer is the memory itself: nothing is lost on the way. */
	for (int kind = SOUND; kind <= (opts.processes ? LOST : REFUSED); kind++)
		for (int i = 0; i < (kind ? 4 : 2); i++) {
			struct job job = job_make((enum fault)kind, i / 2 ? 2 : -1, i % 2);
			int rc = world_run(world, RANKS, play, &job, sizeof(job), 60);

			printf("%s %s: %s%s%s%s\n", rc ? "FAILED" : "ok    ", job.ht ? "HT" : "LL", names[kind],
			       i / 2 ? " of rank 2" : "", rc ? ": " : "", rc ? world_text(world) : "");
			failed += rc != 0;
		}
	failed += world_close(world) != 0;
	printf("link_apart: %s\n", failed ? "failed" : "passed");
	return failed ? 1 : 0;
}
