/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated nodes are connected by the net only: no kernel argument, and nothing in the tables that arguments point to,
 * is an address of memory of a rank on another node. Ranks are threads of one process, where such an address would
 * work, so the arguments are inspected. Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>

#include "plugin/group/group.h"
#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define RANGES 128
#define BEHIND 256 /* words of a table; no table is larger with so few ranks */
#define ARGS_MAX 4096

struct range {
	uint64_t from, to;
};

/* On the board: the memory of each rank. */
struct owned {
	int tables; /* the first may hold tables; tensors hold only stale heap contents */
	int count;
	struct range range[RANGES];
};

struct job {
	struct rig_cfg cfg;
};

/* A device whose launches are inspected. */
struct spy {
	struct ep_dev_ops ops; /* the device's, except launch */
	const struct ep_dev_ops *inner;
	const struct owned *owned; /* [RANKS] */
	int rank, per_node;
	uint64_t launches, near, foreign; /* near: addresses of other ranks of this node, found in tables */
	char first[160];
	_Alignas(16) uint8_t args[ARGS_MAX]; /* of the last launch */
	size_t args_size;
};

static _Thread_local struct spy *spy; /* each rank launches in its own thread */

static void owned_add(struct owned *owned, const void *at, size_t size)
{
	if (at && size && owned->count < RANGES)
		owned->range[owned->count++] = (struct range){ (uintptr_t)at, (uintptr_t)at + size };
}

/* Bytes from the address to the end of its block; 0: not this rank's memory. */
static uint64_t owned_rest(const struct owned *owned, int ranges, uint64_t address)
{
	for (int i = 0; i < ranges; i++)
		if (address >= owned->range[i].from && address < owned->range[i].to)
			return owned->range[i].to - address;
	return 0;
}

static void owned_collect(const struct rig *rig, struct owned *out)
{
	const struct ncclEpGroup *group = rig->group;
	const struct ep_link *link = group->link;

	owned_add(out, group->control.mine.ptr, group->control.mine.size);
	for (int i = 0; i < group->payload.count; i++)
		owned_add(out, group->payload.win[i]->mine.ptr, group->payload.win[i]->mine.size);
	for (int i = 0; i < group->tables.count; i++)
		owned_add(out, group->tables.mem[i].ptr, group->tables.mem[i].size);
	owned_add(out, group->state.ptr, group->state.size);
	owned_add(out, group->page.mem.host, group->page.mem.size);
	owned_add(out, link->device.ptr, link->device.size);
	out->tables = out->count;
	for (int i = 0; i < group->pool.count; i++)
		owned_add(out, group->pool.block[i].mem.ptr, group->pool.block[i].mem.size);
	for (int i = 0; i < link->ports * link->lanes; i++)
		owned_add(out, link->ring_mem[i].host, link->ring_mem[i].size);
	for (uint32_t i = 0; i < link->regions.count; i++)
		owned_add(out, link->mem[i].mem.ptr, link->mem[i].mem.size);
	for (int i = 0; i < rig->cfg.handles; i++)
		for (int id = 0; id < RIG_BUFS; id++)
			owned_add(out, rig->handle[i].buf[id].at, rig->handle[i].buf[id].size);
}

static void word_look(struct spy *s, const char *what, uint64_t at, uint64_t word)
{
	for (int r = 0; r < RANKS; r++) {
		if (r == s->rank || !owned_rest(&s->owned[r], s->owned[r].count, word))
			continue;
		if (!far_from(s->per_node, s->rank, r)) {
			s->near++;
			continue;
		}
		if (!s->foreign++)
			snprintf(s->first, sizeof(s->first), "rank %d: %s at %llu is an address of rank %d", s->rank,
				 what, (unsigned long long)at, r);
	}
}

/* All words of the arguments, and of what they point to in this rank's memory. */
static void args_look(struct spy *s, const uint8_t *args, size_t size)
{
	for (size_t at = 0; at + 8 <= size; at += 8) {
		uint64_t address, rest, word;

		memcpy(&address, args + at, sizeof(address));
		word_look(s, "an argument", at, address);
		rest = owned_rest(&s->owned[s->rank], s->owned[s->rank].tables, address);
		for (uint64_t i = 0; i < BEHIND && 8 * i + 8 <= rest; i++) {
			memcpy(&word, (const void *)(uintptr_t)(address + 8 * i), sizeof(word));
			word_look(s, "behind an argument, a word", at, word);
		}
	}
}

static int spy_launch(struct ep_dev *dev, const struct ep_launch *launch)
{
	spy->launches++;
	spy->args_size = launch->args_size < ARGS_MAX ? launch->args_size : ARGS_MAX;
	memcpy(spy->args, launch->args, spy->args_size);
	args_look(spy, launch->args, launch->args_size);
	return spy->inner->launch(dev, launch);
}

static void spy_enter(struct spy *s, const struct rig *rig)
{
	struct ep_dev *dev = rig->group->dev;

	*s = (struct spy){ .ops = *dev->ops,
			   .inner = dev->ops,
			   .owned = seat_board(rig->seat),
			   .rank = seat_rank(rig->seat),
			   .per_node = rig->cfg.per_node };
	s->ops.launch = spy_launch;
	dev->ops = &s->ops;
	spy = s;
}

/* Inspects the last launch again, unchanged and with a planted address: in the arguments, then in a table. */
static void spy_prove(const struct spy *s, struct rig *rig)
{
	int stranger = (s->rank + RANKS / 2) % RANKS;
	uint64_t bad = s->owned[stranger].range[0].from + 64;
	void **table = rig->group->control.peer_dev, *saved = table[stranger];
	struct spy clean = *s, planted = *s, behind = *s;

	clean.foreign = planted.foreign = behind.foreign = 0;
	args_look(&clean, clean.args, clean.args_size);
	memcpy(planted.args + 8, &bad, sizeof(bad));
	args_look(&planted, planted.args, planted.args_size);
	table[stranger] = (void *)(uintptr_t)bad;
	args_look(&behind, behind.args, behind.args_size);
	table[stranger] = saved;
	ll_wrong(&rig->verdict, clean.foreign != 0, "rank %d: the last launch differs when inspected again", s->rank);
	ll_wrong(&rig->verdict, planted.foreign == 0, "rank %d: a planted argument is not found", s->rank);
	ll_wrong(&rig->verdict, behind.foreign == 0, "rank %d: a planted table entry is not found", s->rank);
}

static int masks_use(struct rig *rig)
{
	int all[RANKS] = { 1, 1, 1, 1 }, got[RANKS]; /* on the CPU device host memory is device memory */

	return rig_expect(rig, "ncclEpMaskUpdate", ncclEpMaskUpdate(rig->group, all, rig->shim.stream)) ||
	       rig_expect(rig, "ncclEpMaskQuery", ncclEpMaskQuery(rig->group, got, rig->shim.stream)) ||
	       rig_expect(rig, "ncclEpMaskClean", ncclEpMaskClean(rig->group, rig->shim.stream));
}

static int look_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct owned *owned = seat_board(seat);
	struct spy mine;
	struct rig rig;

	if (rig_open(&rig, seat, &job->cfg))
		goto close;
	if (!rig.group->link) {
		seat_fail(seat, "ranks of two nodes map each other; the net is not used");
		goto close;
	}
	owned_collect(&rig, &owned[seat_rank(seat)]);
	if (seat_barrier(seat))
		goto close;
	spy_enter(&mine, &rig);
	if (rig_script(&rig, "DA CA") || rig_script(&rig, "dA xA cA xA") || rig_script(&rig, "dA DB xA CB CA") ||
	    (job->cfg.mask && masks_use(&rig)) || rig_script(&rig, "DA CA") || rig_check_crossed(&rig))
		goto close;
	ll_wrong(&rig.verdict, mine.foreign, "%s", mine.first);
	ll_wrong(&rig.verdict, mine.launches < 10, "rank %d: only %llu launches were seen", mine.rank,
		 (unsigned long long)mine.launches);
	/* In nodes of several ranks every launch has a table with the neighbour's addresses. */
	ll_wrong(&rig.verdict, job->cfg.per_node > 1 && mine.near < mine.launches,
		 "rank %d: %llu addresses of its neighbour in %llu launches: tables were not inspected", mine.rank,
		 (unsigned long long)mine.near, (unsigned long long)mine.launches);
	spy_prove(&mine, &rig);
close:
	rig_close(&rig); /* no launches after this: the spy is on this stack frame */
	return rig_tell(&rig);
}

static struct job job_make(enum ll_layout layout, bool mask, int per_node)
{
	struct job job = { .cfg = { .handles = 2, .spare = LL_ALL, .mask = mask, .per_node = per_node } };

	job.cfg.shape = (struct ll_shape){ .layout = layout,
					   .ranks = RANKS,
					   .experts = 2 * RANKS,
					   .topk = 3,
					   .tmax = 6,
					   .hidden = 256,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 5, .fill = LL_FILL_RANDOM, .route = LL_ROUTE_DROPPED };
	return job;
}

int main(void)
{
	/* Nodes of two ranks; then every rank is a node. */
	static const struct {
		const char *name, *per_node, *alone, *net;
		int split;
	} rows[] = {
		{ "two nodes, ordered", "2", "0", "loop", 2 },
		{ "two nodes, unordered", "2", "0", "loop:unordered=1", 2 },
		{ "NCCL_EP_P2P_DISABLE", "0", "1", "loop", 1 },
	};
	struct world_opts opts = { .seats = RANKS, .board = RANKS * sizeof(struct owned) };
	struct world *world;
	int failed = 0, passed = 0;

	if (world_open(&opts, &world))
		return 1;
	for (int i = 0; i < 12; i++) {
		struct job job = job_make(i & 1 ? LL_RANK_MAJOR : LL_EXPERT_MAJOR, i & 2, rows[i / 4].split);
		int rc;

		world_setenv(world, "NCCL_EP_RANKS_PER_NODE", rows[i / 4].per_node);
		world_setenv(world, "NCCL_EP_P2P_DISABLE", rows[i / 4].alone);
		world_setenv(world, "NCCL_EP_NET", rows[i / 4].net);
		memset(world_board(world), 0, opts.board);
		rc = world_run(world, RANKS, look_job, &job, sizeof(job), 60);
		if (rc)
			printf("FAILED %s, %s%s: %s\n", rows[i / 4].name, i & 1 ? "rm" : "em", i & 2 ? ", masks" : "",
			       world_text(world));
		passed += !rc;
		failed += rc != 0;
	}
	failed += world_close(world) != 0;
	printf("link_args: %d passed, %d failed\n", passed, failed);
	return failed ? 1 : 0;
}
