/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anyEpHandleSources: a row holds its source and its token, and the call must say the same; staged and not, with masks
 * and without, several rounds of a handle. Then what it refuses. Through the public functions. Exit status 0 or 1.
 */
#include <stdbool.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

enum { RANKS = 4, TMAX = 9, EL = 3, K = 4, H = 8, ROUNDS = 6, ROWS = RANKS * TMAX, UNTOUCHED = -77 };

struct mode {
	const char *name;
	bool masks, staged;
};

struct data {
	float x[TMAX][H];
	int64_t idx[TMAX][K];
	float rows[EL][ROWS][H];
	int32_t count[EL], tokens[EL][ROWS];
	int64_t ranges[EL][RANKS];
};

#define TENSOR(name, type, memory, ...)                                                                       \
	ncclEpTensor_t name = { NCCL_EP_TENSOR_INIT_INLINE,                                                   \
				.ndim = sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t), .datatype = type, \
				.data = memory, .sizes = (size_t[]){ __VA_ARGS__ } }

static ncclEpGroup_t group_make(struct rank *me, ncclEpAlgorithm_t algorithm, bool masks)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;

	c.algorithm = algorithm;
	c.num_experts = (unsigned)(EL * me->n);
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_token_bytes = H * sizeof(float);
	c.enable_mask = masks;
	return ncclEpCreateGroup(&group, me->comm, &c) == ncclSuccess ? group : NULL;
}

/* Distinct experts for a token, now and then none. */
static void fill(struct data *d, const struct rank *me, int round, int tokens)
{
	int experts = EL * me->n;

	for (int t = 0; t < tokens; t++) {
		d->x[t][0] = (float)me->rank;
		d->x[t][1] = (float)t;
		for (int k = 0; k < K; k++)
			d->idx[t][k] = (t + k + round) % 7 == 3 ? -1 : (t * 5 + me->rank + round + k * 2) % experts;
	}
	for (int e = 0; e < EL; e++)
		for (int i = 0; i < ROWS; i++)
			d->tokens[e][i] = UNTOUCHED;
}

static int expert_check(const struct data *d, const struct rank *me, int e)
{
	int64_t want[RANKS] = { 0 };
	int bad = 0;

	for (int i = 0; i < d->count[e]; i++) {
		int source = (int)d->rows[e][i][0];

		EXPECT(d->tokens[e][i] == (int32_t)d->rows[e][i][1]);
		want[source] += want[source] ? 1 : ((int64_t)i << 32) + 1;
	}
	for (int i = d->count[e]; i < me->n * TMAX; i++)
		EXPECT(d->tokens[e][i] == UNTOUCHED);
	for (int r = 0; r < me->n; r++)
		EXPECT(d->ranges[e][r] == want[r]);
	return bad;
}

static int round_run(struct rank *me, ncclEpHandle_t handle, struct data *d, int round, bool staged)
{
	int tokens = (round + me->rank) % 3 == 0 ? 0 : TMAX - round % 2, bad = 0;
	TENSOR(x, ncclFloat32, d->x, (size_t)tokens, H);
	TENSOR(idx, ncclInt64, d->idx, (size_t)tokens, K);
	TENSOR(rows, ncclFloat32, d->rows, EL, ROWS, H);
	TENSOR(count, ncclInt32, d->count, EL);
	TENSOR(tokens_out, ncclInt32, d->tokens, EL, ROWS);
	TENSOR(ranges, ncclInt64, d->ranges, EL, RANKS);
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;

	fill(d, me, round, tokens);
	in.tokens = &x;
	out.tokens = &rows;
	info.expert_counters = &count;
	config.send_only = staged;
	EXPECT_OK(ncclEpUpdateHandle(handle, &idx, NULL, NULL));
	EXPECT(anyEpHandleSources(handle, &tokens_out, &ranges, NULL) == ncclInvalidUsage);
	EXPECT_OK(ncclEpDispatch(handle, &in, &out, &info, &config, NULL));
	if (staged) {
		EXPECT(anyEpHandleSources(handle, &tokens_out, &ranges, NULL) == ncclInvalidUsage);
		EXPECT(strstr(anyEpGetLastError(), "no dispatch has been received"));
		EXPECT_OK(ncclEpComplete(handle, NULL, NULL));
	}
	EXPECT_OK(anyEpHandleSources(handle, &tokens_out, &ranges, NULL));
	for (int e = 0; e < EL && !bad; e++)
		bad += expert_check(d, me, e);
	ranges.sizes[1] = RANKS - 1;
	EXPECT(anyEpHandleSources(handle, &tokens_out, &ranges, NULL) == ncclInvalidArgument);
	EXPECT(anyEpHandleSources(handle, &tokens_out, NULL, NULL) == ncclInvalidArgument);
	EXPECT(anyEpHandleSources(handle, &ranges, &tokens_out, NULL) == ncclInvalidArgument);
	return bad;
}

static int run(struct rank *me)
{
	const struct mode *mode = me->arg;
	struct data *d = calloc(1, sizeof(*d));
	ncclEpGroup_t group = group_make(me, NCCL_EP_ALGO_LOW_LATENCY, mode->masks);
	ncclEpHandle_t handle = NULL;
	int bad = 0;

	EXPECT(d && group);
	if (bad)
		return bad;
	EXPECT_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, K, NULL));
	for (int round = 0; round < ROUNDS && !bad; round++)
		bad += round_run(me, handle, d, round, mode->staged);
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT(anyEpHandleSources(handle, NULL, NULL, NULL) == ncclInvalidArgument);
	EXPECT_OK(ncclEpGroupDestroy(group));
	free(d);
	return bad;
}

/* Layouts whose rows have a place of their own. */
static int others(struct rank *me)
{
	static const struct {
		ncclEpAlgorithm_t algorithm;
		ncclEpLayout_t layout;
	} cases[] = { { NCCL_EP_ALGO_LOW_LATENCY, NCCL_EP_LAYOUT_RANK_MAJOR },
		      { NCCL_EP_ALGO_HIGH_THROUGHPUT, NCCL_EP_LAYOUT_FLAT } };
	int bad = 0;

	for (int i = 0; i < 2; i++) {
		ncclEpGroup_t group = group_make(me, cases[i].algorithm, false);
		ncclEpHandle_t handle = NULL;

		EXPECT_OK(ncclEpInitHandle(&handle, group, cases[i].layout, NULL, K, NULL));
		EXPECT(anyEpHandleSources(handle, NULL, NULL, NULL) == ncclInvalidUsage);
		EXPECT(strstr(anyEpGetLastError(), "only LL expert-major"));
		EXPECT_OK(ncclEpHandleDestroy(handle));
		EXPECT_OK(ncclEpGroupDestroy(group));
	}
	return bad;
}

int main(void)
{
	static struct mode modes[] = { { "plain", false, false },
				       { "staged", false, true },
				       { "masks", true, false },
				       { "masks, staged", true, true } };
	int failed = 0;

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		int bad = ranks_threads(RANKS, run, &modes[i]);

		printf("%s %s\n", bad ? "not ok" : "ok", modes[i].name);
		failed += bad != 0;
	}
	failed += ranks_threads(2, others, NULL) != 0;
	return failed ? 1 : 0;
}
