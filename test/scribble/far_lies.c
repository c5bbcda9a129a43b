/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a far rank's NIC writes into an LL dispatch's window is not what it should be: counts, numbers and row heads of
 * which each was checked, but not all agree, or that no rank can have. Both send, rank 0 overwrites what came from rank
 * 1, receives, and combines. It fails with a message that names rank 1 or succeeds, and accesses nothing out of bounds:
 * a tensor's guards are whole, and its handle's memory, which is poisoned, is read nowhere that was not written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"
#include "plugin/group/handle.h"
#include "plugin/ll/plan.h"
#include "plugin/ll/state.h"
#include "test/oracle/far.h"
#include "test/oracle/rig.h"
#include "test/oracle/rig_buf.h"

#define RANKS 2
#define EXPERTS 8
#define TOPK 4
#define HIDDEN 64
#define FEW 9	/* tokens: a group without steps, */
#define MANY 40 /* and one with them */

enum { HEAD, ROW_0, ROW_1 };

/* Words from there on; the entries of a row head begin at 4 and have three words. */
static const struct lie {
	const char *name;
	int from;
	uint32_t at;
	uint32_t value, add; /* value, or what was there and add */
	bool caught;
	bool many, masks;
	bool major; /* by rank, after a dispatch without a lie */
} lies[] = {
	{ "fewer rows come than return", HEAD, EP_LL_BACK, 0, 3, false, false, false },
	{ "the same, with steps", HEAD, EP_LL_BACK, 0, 3, false, true, false },
	{ "the same, with masks", HEAD, EP_LL_BACK, 0, 3, false, false, true },
	{ "rows return, and none come", HEAD, EP_LL_ROWS, 0, 0, false, false, false },
	{ "two rows with one number", ROW_1, 6, 1u << EP_LL_K_BITS, 0, false, false, false },
	{ "more rows return than a rank can get", HEAD, EP_LL_BACK, FEW *TOPK + 1, 0, true, false, false },
	{ "rows return behind the window", HEAD, EP_LL_BACK_AT, 1u << 20, 0, true, false, false },
	{ "with masks, not to the first slot", HEAD, EP_LL_BACK_AT, 1, 0, true, false, true },
	{ "with masks, far behind the window", HEAD, EP_LL_BACK_AT, UINT32_MAX, 0, true, false, true },
	{ "more rows to a step than there can be", HEAD, EP_LL_EACH, EP_LL_JOIN_MAX + 1, 0, true, true, false },
	{ "more rows than a rank has", HEAD, EP_LL_ROWS, FEW + 1, 0, true, false, false },
	{ "more rows of an expert than a rank has", HEAD, EP_LL_COUNTS, FEW + 1, 0, true, false, false },
	{ "a token that is none", ROW_0, 0, FEW, 0, true, false, false },
	{ "more experts than a rank has", ROW_0, 1, EXPERTS, 0, true, false, false },
	{ "an expert that is none", ROW_0, 4, EXPERTS, 0, true, false, false },
	{ "a row outside the tensor", ROW_0, 5, 0x7fffffff, 0, true, false, false },
	{ "a number past the rows that return", ROW_0, 6, FEW *TOPK << EP_LL_K_BITS, 0, true, false, false },
	{ "a k that is none", ROW_0, 6, TOPK, 0, true, false, false },
	{ "by rank: more rows than a rank has", HEAD, EP_LL_ROWS, FEW + 1, 0, true, .major = true },
	{ "by rank: not as many return as come", HEAD, EP_LL_BACK, 0, 0, true, .major = true },
};

static struct rig_cfg cfg_of(const struct lie *lie)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .mask = lie->masks, .caller_mem = true };

	cfg.shape = (struct ll_shape){ .layout = lie->major ? LL_RANK_MAJOR : LL_EXPERT_MAJOR,
				       .ranks = RANKS,
				       .experts = EXPERTS,
				       .topk = TOPK,
				       .tmax = lie->many ? MANY : FEW,
				       .hidden = HIDDEN,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL, .route = LL_ROUTE_UNIFORM };
	return cfg;
}

/* In the first buffer, which a group takes first, once rank 1's signal is here. */
static int overwrite(struct seat *seat, const struct ncclEpGroup *group, const struct lie *lie)
{
	struct ep_ll_shape s = ep_ll_shape_of(group, TOPK);
	uint64_t pitch = ep_ll_align(ep_ll_row_head_bytes(&s, lie->major) + ep_ll_pad(2 * HIDDEN)), at = 0;
	uint64_t epoch = lie->major ? 3 : 1;
	double end = world_now() + 20;
	const uint64_t *signal;
	struct ep_ll_args a;
	uint32_t *word;

	ep_ll_group_args(group, TOPK, &a);
	signal = (const uint64_t *)(a.far.control + ep_ll_far_at(RANKS, ep_ll_signal_at(1)));
	while (__atomic_load_n(signal, __ATOMIC_ACQUIRE) < epoch)
		if (world_now() > end)
			return seat_fail(seat, "rank 1 did not signal");
	if (lie->from != HEAD)
		at = ep_ll_source_head(&s) + (lie->from == ROW_1 ? pitch : 0);
	word = (uint32_t *)(a.far.window + a.far.seat[1].here * ep_ll_area(&s, pitch) + at) + lie->at;
	*word = lie->add ? *word + lie->add : lie->value;
	return 0;
}

static int judge(struct seat *seat, const struct lie *lie, ncclResult_t rc)
{
	if (!lie->caught && rc != ncclSuccess)
		return seat_fail(seat, "a dispatch fails: %s", anyEpGetLastError());
	if (lie->caught && rc == ncclSuccess)
		return seat_fail(seat, "a dispatch succeeds");
	if (lie->caught && !strstr(anyEpGetLastError(), "from rank 1"))
		return seat_fail(seat, "the message does not name rank 1: %s", anyEpGetLastError());
	return 0;
}

/* The caller's counter of rows from rank 1, of which none are accepted. */
static int counted(struct seat *seat, struct rig *rig)
{
	struct buf *counts = &rig->handle[0].buf[RIG_COUNTS];
	const int32_t *n = (const int32_t *)(const void *)rig_buf_get(rig, counts, 0, counts->size);

	return n && n[1] == 0 ? 0 : seat_fail(seat, "%d rows from rank 1 are counted, must be 0", n ? n[1] : -1);
}

static int job(struct seat *seat, const void *arg)
{
	const struct lie *lie = *(const struct lie *const *)arg;
	struct rig_cfg cfg = cfg_of(lie);
	struct buf_env env;
	struct rig rig;

	if (rig_open(&rig, seat, &cfg) || (lie->major && rig_script(&rig, "DA CA")))
		goto close;
	rig.parted = true;
	memset(rig.handle[0].handle->mem.data, 0x5a, rig.handle[0].buf[RIG_MEM].size);
	if (rig_update(&rig, 0) || rig_expect(&rig, "ncclEpDispatch", rig_dispatch(&rig, 0, true)) ||
	    (seat_rank(seat) == 0 && overwrite(seat, rig.group, lie)) || seat_barrier(seat))
		goto close;
	if (seat_rank(seat) == 0 && judge(seat, lie, rig_complete(&rig, 0)))
		goto close;
	if (seat_rank(seat) == 0 && lie->major && counted(seat, &rig))
		goto close;
	if (seat_rank(seat) != 0)
		rig_complete(&rig, 0);
	/* Rank 1 may get rows for which it did not ask. */
	rig_combine(&rig, 0, false);
	if (seat_barrier(seat))
		goto close;
	env = (struct buf_env){ .seat = seat, .shim = &rig.shim, .comm = rig.comm, .verdict = &rig.verdict };
	for (int id = 0; id < RIG_BUFS; id++)
		if (buf_guards(&env, &rig.handle[0].buf[id], "a tensor"))
			break;
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* Each in a world of its own: groups that failed keep their memory until their process ends. */
static int run(const struct lie *lie)
{
	struct world_opts opts = { .seats = RANKS, .processes = true };
	struct world *world;
	int rc;

	if (world_open(&opts, &world))
		return 1;
	rc = world_run(world, RANKS, job, &lie, sizeof(lie), 60);
	printf("%s %s%s%s\n", rc ? "not ok" : "ok", lie->name, rc ? ": " : "", rc ? world_text(world) : "");
	return (world_close(world) && !rc) || rc;
}

int main(void)
{
	int failed = 0;

	setenv("NCCL_EP_TIMEOUT_MS", "1000", 1);
	far_set(NULL, 1, "loop", 0);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++)
		failed += run(&lies[i]);
	return failed != 0;
}
