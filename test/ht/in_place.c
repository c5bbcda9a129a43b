/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ANYEP_EXPERT_ID_IN_PLACE: ids and weights of flat rows stay in the columns of their source, -1 and 0 elsewhere and
 * past the rows that arrive, over several routings of a handle. Then who may not ask for it. An argument: as many ranks
 * per simulated node. Through the public functions. Exit status 0 or 1.
 */
#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

enum { RANKS = 4, TMAX = 70, EL = 5, K = 6, H = 8, ROUNDS = 4, ROWS = RANKS * TMAX, E = EL * RANKS };

struct data {
	float x[TMAX][H], weights[TMAX][K];
	int64_t idx[TMAX][K];
	float rows[ROWS][H], got_weights[ROWS][K];
	int64_t got_idx[ROWS][K];
};

#define TENSOR(name, type, memory, ...)                                                                       \
	ncclEpTensor_t name = { NCCL_EP_TENSOR_INIT_INLINE,                                                   \
				.ndim = sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t), .datatype = type, \
				.data = memory, .sizes = (size_t[]){ __VA_ARGS__ } }

static ncclEpGroup_t group_make(struct rank *me, ncclEpAlgorithm_t algorithm)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;

	c.algorithm = algorithm;
	c.num_experts = E;
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_recv_tokens_per_rank = ROWS;
	c.max_token_bytes = H * sizeof(float);
	return ncclEpCreateGroup(&group, me->comm, &c) == ncclSuccess ? group : NULL;
}

static int tokens_of(int rank, int round)
{
	return (round + rank) % 3 == 1 ? 0 : TMAX - 3 * rank - round;
}

/* Distinct experts of a token in no order, now and then none: a function of all four. */
static int64_t expert_of(int rank, int round, int t, int k)
{
	int step = t % 2 ? 7 : 13; /* both have no factor in common with E */

	return (rank + t + k + round) % 5 == 2 ? -1 : (rank * 3 + t + round + k * step) % E;
}

static float weight_of(int rank, int t, int k)
{
	return (float)(1 + rank * 1000 + t * 10 + k);
}

static int row_check(const struct data *d, const struct rank *me, int round, int row)
{
	int source = (int)d->rows[row][0], t = (int)d->rows[row][1], bad = 0;

	for (int k = 0; k < K; k++) {
		int64_t id = expert_of(source, round, t, k);
		int here = id >= 0 && id / EL == me->rank;

		bad += d->got_idx[row][k] != (here ? id - me->rank * EL : -1);
		bad += d->got_weights[row][k] != (here ? weight_of(source, t, k) : 0.0f);
	}
	EXPECT(!bad);
	return bad;
}

static int round_run(struct rank *me, ncclEpHandle_t handle, struct data *d, int round)
{
	size_t tokens = (size_t)tokens_of(me->rank, round);
	int32_t total = -1;
	int bad = 0;
	TENSOR(x, ncclFloat32, d->x, tokens, H);
	TENSOR(weights, ncclFloat32, d->weights, tokens, K);
	TENSOR(idx, ncclInt64, d->idx, tokens, K);
	TENSOR(rows, ncclFloat32, d->rows, ROWS, H);
	TENSOR(got_weights, ncclFloat32, d->got_weights, ROWS, K);
	TENSOR(got_idx, ncclInt64, d->got_idx, ROWS, K);
	TENSOR(count, ncclInt32, &total, 1);
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT, place = NCCL_EP_LAYOUT_INFO_INIT;

	for (int t = 0; t < (int)tokens; t++) {
		d->x[t][0] = (float)me->rank;
		d->x[t][1] = (float)t;
		for (int k = 0; k < K; k++) {
			d->idx[t][k] = expert_of(me->rank, round, t, k);
			d->weights[t][k] = weight_of(me->rank, t, k);
		}
	}
	memset(d->got_idx, 0x55, sizeof(d->got_idx));
	memset(d->got_weights, 0x55, sizeof(d->got_weights));
	in.tokens = &x;
	in.topk_weights = &weights;
	out.tokens = &rows;
	out.topk_weights = &got_weights;
	out.topk_idx = &got_idx;
	info.recv_total_counter = &count;
	place.recv_topk_idx_kind = ANYEP_EXPERT_ID_IN_PLACE;
	EXPECT_OK(ncclEpUpdateHandle(handle, &idx, &info, NULL));
	EXPECT_OK(ncclEpDispatch(handle, &in, &out, &place, NULL, NULL));
	EXPECT(total > 0 && total <= ROWS);
	for (int row = 0; row < total && !bad; row++)
		bad += row_check(d, me, round, row);
	for (int row = total; row < ROWS; row++)
		for (int k = 0; k < K; k++)
			bad += d->got_idx[row][k] != -1 || d->got_weights[row][k] != 0.0f;
	return bad;
}

static int run(struct rank *me)
{
	struct data *d = calloc(1, sizeof(*d));
	ncclEpGroup_t group = group_make(me, NCCL_EP_ALGO_HIGH_THROUGHPUT);
	ncclEpHandle_t handle = NULL;
	int bad = 0;

	EXPECT(d && group);
	if (bad)
		return bad;
	EXPECT_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_FLAT, NULL, K, NULL));
	for (int round = 0; round < ROUNDS && !bad; round++)
		bad += round_run(me, handle, d, round);
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT_OK(ncclEpGroupDestroy(group));
	free(d);
	return bad;
}

/* Layouts that have no columns of a source. */
static int others(struct rank *me)
{
	static const struct {
		ncclEpAlgorithm_t algorithm;
		ncclEpLayout_t layout;
	} cases[] = { { NCCL_EP_ALGO_LOW_LATENCY, NCCL_EP_LAYOUT_RANK_MAJOR },
		      { NCCL_EP_ALGO_HIGH_THROUGHPUT, NCCL_EP_LAYOUT_EXPERT_MAJOR } };
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t place = NCCL_EP_LAYOUT_INFO_INIT;
	int bad = 0;

	place.recv_topk_idx_kind = ANYEP_EXPERT_ID_IN_PLACE;
	for (int i = 0; i < 2; i++) {
		ncclEpGroup_t group = group_make(me, cases[i].algorithm);
		ncclEpHandle_t handle = NULL;

		EXPECT_OK(ncclEpInitHandle(&handle, group, cases[i].layout, NULL, K, NULL));
		EXPECT(ncclEpDispatch(handle, &in, &out, &place, NULL, NULL) == ncclInvalidArgument);
		EXPECT(strstr(anyEpGetLastError(), "recv_topk_idx_kind"));
		EXPECT_OK(ncclEpHandleDestroy(handle));
		EXPECT_OK(ncclEpGroupDestroy(group));
	}
	return bad;
}

int main(int argc, char **argv)
{
	int failed;

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	if (argc > 1)
		setenv("NCCL_EP_RANKS_PER_NODE", argv[1], 1);
	failed = ranks_threads(RANKS, run, NULL) + ranks_threads(1, others, NULL);
	printf("%s in place\n", failed ? "not ok" : "ok");
	return failed ? 1 : 0;
}
