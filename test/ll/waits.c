/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anyEpHandleWaitStats: a rank that is late in every operation has the time in the others' statistics, and nobody else
 * has; in one launch and in halves, on one node and over the net. Then what it refuses. Exit status 0 or 1.
 */
#include <stdbool.h>
#include <time.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

enum { RANKS = 3, LATE = 1, TMAX = 4, EL = 2, K = 2, H = 8, BEFORE = 7 };

/* Longer and longer: a busy machine delays the others too, who then wait for less, and for each other. */
static const int late_ms[] = { 10, 40, 160 };
enum { ROUNDS = sizeof(late_ms) / sizeof(late_ms[0]) };

struct mode {
	const char *name, *per_node;
	ncclEpLayout_t layout;
	bool staged;
};

struct data {
	float x[TMAX][H], weights[TMAX][K], sums[TMAX][H];
	int64_t idx[TMAX][K];
	float rows[EL][RANKS * TMAX][H];
	int32_t ids[RANKS][TMAX][K], count[EL > RANKS ? EL : RANKS];
	float row_weights[RANKS][TMAX][K];
	int64_t waited[2][RANKS];
};

static pthread_barrier_t all_here;

#define TENSOR(name, type, memory, ...)                                                                       \
	ncclEpTensor_t name = { NCCL_EP_TENSOR_INIT_INLINE,                                                   \
				.ndim = sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t), .datatype = type, \
				.data = memory, .sizes = (size_t[]){ __VA_ARGS__ } }

static ncclEpGroup_t group_make(struct rank *me, ncclEpAlgorithm_t algorithm)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;

	c.algorithm = algorithm;
	c.num_experts = (unsigned)(EL * me->n);
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_token_bytes = H * sizeof(float);
	return ncclEpCreateGroup(&group, me->comm, &c) == ncclSuccess ? group : NULL;
}

/* All ranks are here; one of them is late from now on. */
static void line_up(const struct rank *me, int round)
{
	pthread_barrier_wait(&all_here);
	if (me->rank == LATE && round < ROUNDS)
		nanosleep(&(struct timespec){ .tv_nsec = late_ms[round] * 1000000l }, NULL);
}

static int dispatch(struct rank *me, ncclEpHandle_t handle, struct data *d, const struct mode *mode, int round)
{
	bool rm = mode->layout == NCCL_EP_LAYOUT_RANK_MAJOR;
	int bad = 0;
	TENSOR(x, ncclFloat32, d->x, TMAX, H);
	TENSOR(idx, ncclInt64, d->idx, TMAX, K);
	TENSOR(weights, ncclFloat32, d->weights, TMAX, K);
	TENSOR(rows, ncclFloat32, d->rows, rm ? RANKS : EL, rm ? TMAX : RANKS * TMAX, H);
	TENSOR(count, ncclInt32, d->count, rm ? RANKS : EL);
	TENSOR(ids, ncclInt32, d->ids, RANKS, TMAX, K);
	TENSOR(row_weights, ncclFloat32, d->row_weights, RANKS, TMAX, K);
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;

	in.tokens = &x;
	out.tokens = &rows;
	*(rm ? &info.src_rank_counters : &info.expert_counters) = &count;
	if (rm) {
		in.topk_weights = &weights;
		out.topk_weights = &row_weights;
		out.topk_idx = &ids;
	}
	config.send_only = mode->staged;
	EXPECT_OK(ncclEpUpdateHandle(handle, &idx, NULL, NULL));
	line_up(me, round);
	EXPECT_OK(ncclEpDispatch(handle, &in, &out, &info, &config, NULL));
	EXPECT_OK(ncclEpComplete(handle, NULL, NULL));
	return bad;
}

static int combine(struct rank *me, ncclEpHandle_t handle, struct data *d, const struct mode *mode, int round)
{
	bool rm = mode->layout == NCCL_EP_LAYOUT_RANK_MAJOR;
	int bad = 0;
	TENSOR(rows, ncclFloat32, d->rows, rm ? RANKS : EL, rm ? TMAX : RANKS * TMAX, H);
	TENSOR(sums, ncclFloat32, d->sums, TMAX, H);
	TENSOR(weights, ncclFloat32, d->weights, TMAX, K);
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;

	in.tokens = &rows;
	out.tokens = &sums;
	out.topk_weights = rm ? NULL : &weights;
	config.send_only = mode->staged;
	line_up(me, round);
	EXPECT_OK(ncclEpCombine(handle, &in, &out, &config, NULL));
	EXPECT_OK(ncclEpComplete(handle, NULL, NULL));
	return bad;
}

/* What the experts return is what they were sent, so that the weights' sum, 1, is the token itself. */
static int round_run(struct rank *me, ncclEpHandle_t handle, struct data *d, const struct mode *mode, int round)
{
	bool rm = mode->layout == NCCL_EP_LAYOUT_RANK_MAJOR;
	int bad = 0;

	for (int t = 0; t < TMAX; t++) {
		for (int h = 0; h < H; h++)
			d->x[t][h] = (float)(1 + round + 10 * t + 100 * me->rank + h);
		for (int k = 0; k < K; k++) {
			/* A rank gets no token of some others: their signals are waited for all the same. */
			d->idx[t][k] = me->rank == 0 ? k : (t * K + k + me->rank) % (EL * RANKS);
			d->weights[t][k] = 0.5f;
		}
	}
	memset(d->sums, 0, sizeof(d->sums));
	bad += dispatch(me, handle, d, mode, round);
	bad += combine(me, handle, d, mode, round);
	for (int t = 0; t < TMAX && !rm; t++)
		for (int h = 0; h < H; h++)
			EXPECT(d->sums[t][h] == d->x[t][h]);
	return bad;
}

/* What a round must have added at least once: half of the time for the late rank, less for another. */
static int round_check(const struct rank *me, const struct data *before, const struct data *after, int round,
		       bool (*seen)[RANKS])
{
	int64_t half = late_ms[round] * 1000000ll / 2;
	int bad = 0;

	for (int op = 0; op < 2; op++)
		for (int r = 0; r < RANKS; r++) {
			int64_t ns = after->waited[op][r] - before->waited[op][r];

			EXPECT(ns >= 0 && ns < 60000000000ll);
			EXPECT(r != me->rank || ns == 0);
			seen[op][r] |= me->rank == LATE || (ns >= half) == (r == LATE);
		}
	return bad;
}

static int refusals(ncclEpHandle_t handle, struct data *d)
{
	TENSOR(right, ncclInt64, d->waited[0], RANKS);
	TENSOR(narrow, ncclInt32, d->waited[0], RANKS);
	TENSOR(wide, ncclInt64, d->waited[0], RANKS + 1);
	anyEpWaitStats_t stats = ANYEP_WAIT_STATS_INIT;
	int bad = 0;

	stats.dispatch = &narrow;
	EXPECT(anyEpHandleWaitStats(handle, &stats) == ncclInvalidArgument);
	EXPECT(strstr(anyEpGetLastError(), "stats->dispatch"));
	stats.dispatch = NULL;
	stats.combine = &wide;
	EXPECT(anyEpHandleWaitStats(handle, &stats) == ncclInvalidArgument);
	EXPECT(strstr(anyEpGetLastError(), "stats->combine"));
	stats.combine = &right;
	stats.size = ANYEP_WAIT_STATS_V1_SIZE - 1;
	EXPECT(anyEpHandleWaitStats(handle, &stats) == ncclInvalidArgument);
	EXPECT(strstr(anyEpGetLastError(), "ANYEP_WAIT_STATS_INIT"));
	return bad;
}

static int run(struct rank *me)
{
	const struct mode *mode = me->arg;
	struct data *d = calloc(1, sizeof(*d)), before;
	ncclEpGroup_t group = group_make(me, NCCL_EP_ALGO_LOW_LATENCY);
	anyEpWaitStats_t stats = ANYEP_WAIT_STATS_INIT;
	ncclEpHandle_t handle = NULL;
	bool seen[2][RANKS] = { { false } };
	int bad = 0;

	EXPECT(d && group);
	if (bad)
		return bad;
	TENSOR(dispatches, ncclInt64, d->waited[0], RANKS);
	TENSOR(combines, ncclInt64, d->waited[1], RANKS);
	for (int r = 0; r < RANKS; r++)
		d->waited[0][r] = d->waited[1][r] = BEFORE;
	EXPECT_OK(ncclEpInitHandle(&handle, group, mode->layout, NULL, K, NULL));
	stats.dispatch = &dispatches;
	stats.combine = &combines;
	EXPECT_OK(anyEpHandleWaitStats(handle, &stats));
	bad += refusals(handle, d); /* and what was set stays */
	for (int round = 0; round < ROUNDS; round++) {
		before = *d;
		bad += round_run(me, handle, d, mode, round);
		bad += round_check(me, &before, d, round, seen);
	}
	for (int i = 0; i < 2 * RANKS; i++)
		EXPECT(seen[i / RANKS][i % RANKS]);
	EXPECT(d->waited[0][me->rank] == BEFORE && d->waited[1][me->rank] == BEFORE);
	before = *d;
	EXPECT_OK(anyEpHandleWaitStats(handle, NULL));
	bad += round_run(me, handle, d, mode, ROUNDS);
	EXPECT(!memcmp(before.waited, d->waited, sizeof(d->waited)));
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT(anyEpHandleWaitStats(handle, NULL) == ncclInvalidArgument);
	EXPECT_OK(ncclEpGroupDestroy(group));
	free(d);
	return bad;
}

static int others(struct rank *me)
{
	ncclEpGroup_t group = group_make(me, NCCL_EP_ALGO_HIGH_THROUGHPUT);
	ncclEpHandle_t handle = NULL;
	int bad = 0;

	EXPECT_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_FLAT, NULL, K, NULL));
	EXPECT(anyEpHandleWaitStats(handle, NULL) == ncclInvalidUsage);
	EXPECT(strstr(anyEpGetLastError(), "only LL operations"));
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT_OK(ncclEpGroupDestroy(group));
	return bad;
}

int main(void)
{
	static struct mode modes[] = { { "one node", "8", NCCL_EP_LAYOUT_EXPERT_MAJOR, false },
				       { "staged", "8", NCCL_EP_LAYOUT_EXPERT_MAJOR, true },
				       { "rank-major", "8", NCCL_EP_LAYOUT_RANK_MAJOR, false },
				       { "three nodes", "1", NCCL_EP_LAYOUT_EXPERT_MAJOR, false } };
	int failed = 0;

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	pthread_barrier_init(&all_here, NULL, RANKS);
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		int bad;

		setenv("NCCL_EP_RANKS_PER_NODE", modes[i].per_node, 1);
		bad = ranks_threads(RANKS, run, &modes[i]);
		printf("%s %s\n", bad ? "not ok" : "ok", modes[i].name);
		failed += bad != 0;
	}
	failed += ranks_threads(2, others, NULL) != 0;
	return failed ? 1 : 0;
}
