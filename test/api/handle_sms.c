/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anyEpHandleSms: the blocks of every launch are what the handle last asked for, other numbers on other ranks and from
 * operation to operation, and tokens come home whole; HT, LL, and LL in halves, whose second has what the first had. An
 * argument: as many ranks per simulated node. Exit status 0 or 1.
 */
#include <stdbool.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"
#include "plugin/group/group.h"

enum { RANKS = 3, TMAX = 20, EL = 2, K = 2, H = 8, ROWS = RANKS * TMAX, ROUNDS = 6 };

struct data {
	float x[TMAX][H], weights[TMAX][K], sums[TMAX][H];
	int64_t idx[TMAX][K];
	float rows[EL][ROWS][H], got_weights[ROWS][K];
	int64_t got_idx[ROWS][K];
	int32_t count[EL];
};

struct mode {
	ncclEpAlgorithm_t algorithm;
	ncclEpLayout_t layout;
	bool staged;
};

static const struct mode *mode;
static const struct ep_dev_ops *plain;
static struct ep_dev_ops watched;
static pthread_once_t watched_once = PTHREAD_ONCE_INIT;
static _Thread_local unsigned grid; /* of the calling rank's last launch */

static int launch_watch(struct ep_dev *dev, const struct ep_launch *launch)
{
	grid = launch->grid;
	return plain->launch(dev, launch);
}

#define TENSOR(name, type, memory, ...)                                                                       \
	ncclEpTensor_t name = { NCCL_EP_TENSOR_INIT_INLINE,                                                   \
				.ndim = sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t), .datatype = type, \
				.data = memory, .sizes = (size_t[]){ __VA_ARGS__ } }

static _Thread_local struct ep_dev *watched_dev;

static void watch_make(void)
{
	plain = watched_dev->ops;
	watched = *plain;
	watched.launch = launch_watch;
}

static ncclEpGroup_t group_make(struct rank *me)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;

	c.algorithm = mode->algorithm;
	c.num_experts = (unsigned)(EL * me->n);
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_recv_tokens_per_rank = mode->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT ? ROWS : NCCL_EP_AUTO;
	c.max_token_bytes = H * sizeof(float);
	if (ncclEpCreateGroup(&group, me->comm, &c) != ncclSuccess)
		return NULL;
	watched_dev = group->dev;
	pthread_once(&watched_once, watch_make);
	group->dev->ops = &watched;
	return group;
}

/* The CPU device is small: the emulator runs 4 blocks. */
static unsigned blocks(const struct ncclEpGroup *group, unsigned asked)
{
	return asked && asked < group->dev->sms ? asked : group->dev->sms;
}

/* A second half, with another number asked for in between. */
static int second(ncclEpHandle_t handle, ncclEpGroup_t group, unsigned asked)
{
	int bad = 0;

	EXPECT_OK(anyEpHandleSms(handle, asked % 3 + 1, asked % 3 + 1));
	grid = 0;
	EXPECT_OK(ncclEpComplete(handle, NULL, NULL));
	EXPECT(grid == blocks(group, asked));
	return bad;
}

static int dispatch(ncclEpGroup_t group, ncclEpHandle_t handle, struct data *d, unsigned asked)
{
	bool ht = mode->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT;
	int bad = 0;
	TENSOR(x, ncclFloat32, d->x, TMAX, H);
	TENSOR(idx, ncclInt64, d->idx, TMAX, K);
	TENSOR(weights, ncclFloat32, d->weights, TMAX, K);
	TENSOR(flat, ncclFloat32, d->rows, ROWS, H);
	TENSOR(rows, ncclFloat32, d->rows, EL, ROWS, H);
	TENSOR(count, ncclInt32, d->count, EL);
	TENSOR(got_weights, ncclFloat32, d->got_weights, ROWS, K);
	TENSOR(got_idx, ncclInt64, d->got_idx, ROWS, K);
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;

	in.tokens = &x;
	out.tokens = ht ? &flat : &rows;
	if (ht) {
		in.topk_weights = &weights;
		out.topk_weights = &got_weights;
		out.topk_idx = &got_idx;
	} else {
		info.expert_counters = &count;
	}
	config.send_only = mode->staged;
	EXPECT_OK(ncclEpUpdateHandle(handle, &idx, NULL, NULL));
	EXPECT_OK(ncclEpDispatch(handle, &in, &out, &info, &config, NULL));
	EXPECT(grid == blocks(group, asked));
	if (mode->staged)
		bad += second(handle, group, asked);
	return bad;
}

static int combine(ncclEpGroup_t group, ncclEpHandle_t handle, struct data *d, unsigned asked)
{
	bool ht = mode->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT;
	int bad = 0;
	TENSOR(flat, ncclFloat32, d->rows, ROWS, H);
	TENSOR(rows, ncclFloat32, d->rows, EL, ROWS, H);
	TENSOR(sums, ncclFloat32, d->sums, TMAX, H);
	TENSOR(weights, ncclFloat32, d->weights, TMAX, K);
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;

	in.tokens = ht ? &flat : &rows;
	out.tokens = &sums;
	out.topk_weights = ht ? NULL : &weights;
	config.send_only = mode->staged;
	EXPECT_OK(ncclEpCombine(handle, &in, &out, &config, NULL));
	EXPECT(grid == blocks(group, asked));
	if (mode->staged)
		bad += second(handle, group, asked);
	return bad;
}

/* A token's experts are on two ranks: HT adds the token twice, LL twice its half. */
static int round_run(struct rank *me, ncclEpGroup_t group, ncclEpHandle_t handle, struct data *d, unsigned round)
{
	unsigned sent = (round + (unsigned)me->rank) % 6, summed = (round * 3 + (unsigned)me->rank) % 6;
	float times = mode->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT ? 2 : 1;
	int bad = 0;

	for (int t = 0; t < TMAX; t++)
		for (int k = 0; k < K; k++) {
			d->idx[t][k] = (t + k * EL + (int)round) % (EL * me->n);
			d->weights[t][k] = 0.5f;
		}
	for (int i = 0; i < TMAX * H; i++)
		d->x[i / H][i % H] = (float)(1000 * me->rank + i + (int)round);
	memset(d->sums, 0, sizeof(d->sums));
	EXPECT_OK(anyEpHandleSms(handle, sent, 0));
	bad += dispatch(group, handle, d, sent);
	EXPECT_OK(anyEpHandleSms(handle, 0, summed));
	bad += combine(group, handle, d, summed);
	for (int i = 0; i < TMAX * H && !bad; i++)
		EXPECT(d->sums[i / H][i % H] == times * d->x[i / H][i % H]);
	return bad;
}

static int run(struct rank *me)
{
	struct data *d = calloc(1, sizeof(*d));
	ncclEpGroup_t group = group_make(me);
	ncclEpHandle_t handle = NULL;
	int bad = 0;

	EXPECT(d && group);
	if (bad)
		return bad;
	EXPECT_OK(ncclEpInitHandle(&handle, group, mode->layout, NULL, K, NULL));
	for (unsigned round = 0; round < ROUNDS; round++)
		bad += round_run(me, group, handle, d, round);
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT_OK(ncclEpGroupDestroy(group));
	free(d);
	return bad;
}

int main(int argc, char **argv)
{
	static const struct mode modes[] = {
		{ NCCL_EP_ALGO_HIGH_THROUGHPUT, NCCL_EP_LAYOUT_FLAT, false },
		{ NCCL_EP_ALGO_LOW_LATENCY, NCCL_EP_LAYOUT_EXPERT_MAJOR, false },
		{ NCCL_EP_ALGO_LOW_LATENCY, NCCL_EP_LAYOUT_EXPERT_MAJOR, true },
	};
	int failed = 0;

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	if (argc > 1)
		setenv("NCCL_EP_RANKS_PER_NODE", argv[1], 1);
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		mode = &modes[i];
		failed += ranks_threads(RANKS, run, NULL);
	}
	printf("%s handle sms\n", failed ? "not ok" : "ok");
	return failed ? 1 : 0;
}
