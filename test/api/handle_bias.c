/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anyEpHandleBias: what it refuses, and that a refusal changes nothing; what combine refuses of it; that it stays until
 * it is replaced or taken away, without the caller's descriptors. Values by layout, type and net are ht_matrix's. Exit
 * status 0 or 1.
 */
#include <stdbool.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

enum { TMAX = 3, T = 2, K = 1, H = 4, EXPERTS = 2 };

static float rows[T][H], sums[T][H], first[TMAX + 1][H], second[T][H];
static int64_t idx[T][K] = { { 1 }, { -1 } };

#define TENSOR(name, type, memory, ...)                                                                       \
	ncclEpTensor_t name = { NCCL_EP_TENSOR_INIT_INLINE,                                                   \
				.ndim = sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t), .datatype = type, \
				.data = memory, .sizes = (size_t[]){ __VA_ARGS__ } }

static ncclEpGroup_t group_make(struct rank *me, ncclEpAlgorithm_t algorithm)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;

	c.algorithm = algorithm;
	c.num_experts = EXPERTS;
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_recv_tokens_per_rank = algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT ? TMAX : NCCL_EP_AUTO;
	c.max_token_bytes = H * sizeof(float);
	return ncclEpCreateGroup(&group, me->comm, &c) == ncclSuccess ? group : NULL;
}

static ncclResult_t combine(ncclEpHandle_t handle)
{
	TENSOR(in_rows, ncclFloat32, rows, T, H);
	TENSOR(out_sums, ncclFloat32, sums, T, H);
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;

	memset(sums, 0xee, sizeof(sums));
	in.tokens = &in_rows;
	out.tokens = &out_sums;
	return ncclEpCombine(handle, &in, &out, NULL, NULL);
}

/* Of the first token, whose row is its first: large biases cancel, and only in this order the row survives or not. */
static bool sums_are(float of_first, float of_second)
{
	for (int h = 0; h < H; h++)
		if (sums[0][h] != of_first || sums[1][h] != of_second)
			return false;
	return true;
}

#define REFUSED(call, code, what)                                                   \
	do {                                                                        \
		EXPECT((call) == (code));                                           \
		if (!strstr(anyEpGetLastError(), what)) {                           \
			fprintf(stderr, "%s: \"%s\"\n", what, anyEpGetLastError()); \
			bad++;                                                      \
		}                                                                   \
	} while (0)

static int arguments(ncclEpHandle_t handle)
{
	int bad = 0;
	TENSOR(good, ncclFloat32, first, T, H);
	TENSOR(flat, ncclFloat32, first, H);
	TENSOR(integer, ncclInt32, first, T, H);
	TENSOR(half, ncclBfloat16, first, T, H);
	TENSOR(narrow, ncclFloat32, first, T, H - 1);
	TENSOR(shorter, ncclFloat32, first, T - 1, H);
	TENSOR(tall, ncclFloat32, first, TMAX + 1, H);
	TENSOR(nowhere, ncclFloat32, NULL, T, H);
#define SET(n, ...) anyEpHandleBias(handle, (const ncclEpTensor_t *[]){ __VA_ARGS__ }, n)

	REFUSED(SET(3, &good, &good, &good), ncclInvalidArgument, "count: is 3, must be 0 to 2");
	REFUSED(SET(-1, &good), ncclInvalidArgument, "count: is -1, must be 0 to 2");
	REFUSED(anyEpHandleBias(handle, NULL, 1), ncclInvalidArgument, "bias");
	REFUSED(SET(2, &good, NULL), ncclInvalidArgument, "bias[1] is NULL");
	REFUSED(SET(1, &flat), ncclInvalidArgument, "bias[0]: ndim is 1, must be 2");
	REFUSED(SET(1, &integer), ncclInvalidArgument, "bias[0]: dtype is ncclInt32");
	REFUSED(SET(2, &good, &half), ncclInvalidArgument, "bias[1]: dtype is ncclBfloat16, must be ncclFloat32");
	REFUSED(SET(2, &good, &narrow), ncclInvalidArgument, "bias[1]: sizes[1] is 3, must be H = 4");
	REFUSED(SET(2, &good, &shorter), ncclInvalidArgument, "bias[1]: sizes[0] is 1, must be T = 2");
	REFUSED(SET(1, &tall), ncclInvalidArgument, "bias[0]: sizes[0] is 4, more than max_dispatch_tokens_per_rank");
	REFUSED(SET(1, &nowhere), ncclInvalidArgument, "bias[0]: data is NULL");
	return bad;
}

/* What is right by itself, but not with the tensors of a combine. */
static int unlike(ncclEpHandle_t handle)
{
	int bad = 0;
	TENSOR(half, ncclBfloat16, first, T, H);
	TENSOR(narrow, ncclFloat32, first, T, H - 1);
	TENSOR(tall, ncclFloat32, first, TMAX, H);

	EXPECT_OK(SET(1, &half));
	REFUSED(combine(handle), ncclInvalidArgument, "bias[0] of anyEpHandleBias: dtype is ncclBfloat16");
	EXPECT_OK(SET(2, &narrow, &narrow));
	REFUSED(combine(handle), ncclInvalidArgument, "bias[0] of anyEpHandleBias: sizes[1] is 3");
	EXPECT_OK(SET(1, &tall));
	REFUSED(combine(handle), ncclInvalidArgument, "bias[0] of anyEpHandleBias: sizes[0] is 3");
	EXPECT_OK(anyEpHandleBias(handle, NULL, 0));
	EXPECT_OK(combine(handle));
	EXPECT(sums_are(1, 0));
	return bad;
}

static int values(ncclEpHandle_t handle)
{
	int bad = 0;
	TENSOR(one, ncclFloat32, first, T, H);
	TENSOR(two, ncclFloat32, second, T, H);
	size_t sizes[] = { T, H };

	one.sizes = two.sizes = sizes;
	EXPECT_OK(SET(2, &one, &two));
	sizes[0] = sizes[1] = 1; /* the library has copies */
	one.data = two.data = NULL;
	bad += arguments(handle); /* the two stay */
	for (int i = 0; i < 2; i++) {
		EXPECT_OK(combine(handle));
		EXPECT(sums_are(1, 0)); /* 1e8 - 1e8 + 1 */
	}
	sizes[0] = T;
	sizes[1] = H;
	one.data = first;
	EXPECT_OK(SET(1, &one));
	EXPECT_OK(combine(handle));
	EXPECT(sums_are(1e8f, 1e8f));
	first[1][0] = first[1][1] = first[1][2] = first[1][3] = 5; /* elements are read by the kernel */
	EXPECT_OK(combine(handle));
	EXPECT(sums_are(1e8f, 5));
	return bad;
}

static int run(struct rank *me)
{
	ncclEpGroup_t group = group_make(me, NCCL_EP_ALGO_HIGH_THROUGHPUT), low;
	ncclEpHandle_t handle = NULL;
	int bad = 0;
	TENSOR(routing, ncclInt64, idx, T, K);
	TENSOR(bias, ncclFloat32, first, T, H);

	for (int i = 0; i < T * H; i++) {
		rows[i / H][i % H] = i < H ? 1 : 7; /* the second is no token's */
		first[i / H][i % H] = 1e8f;
		second[i / H][i % H] = -1e8f;
	}
	EXPECT(group);
	if (bad)
		return bad;
	EXPECT_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_FLAT, NULL, K, NULL));
	EXPECT_OK(ncclEpUpdateHandle(handle, &routing, NULL, NULL));
	bad += values(handle);
	bad += unlike(handle);
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT_OK(ncclEpGroupDestroy(group));
	low = group_make(me, NCCL_EP_ALGO_LOW_LATENCY);
	EXPECT_OK(ncclEpInitHandle(&handle, low, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, K, NULL));
	REFUSED(SET(1, &bias), ncclInvalidUsage, "only HT combines add a bias");
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT_OK(ncclEpGroupDestroy(low));
	return bad;
}

int main(void)
{
	int failed;

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	failed = ranks_threads(1, run, NULL);
	printf("%s handle bias\n", failed ? "not ok" : "ok");
	return failed ? 1 : 0;
}
