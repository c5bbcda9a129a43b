/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups, handles, tensors and host streams that were destroyed: every function that takes one answers
 * ncclInvalidArgument and names the argument, also a second destroy, and of two threads that destroy the same group one
 * succeeds. Through the public functions only. Exit status 0 or 1.
 */
#include <stdatomic.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

enum { TMAX = 8, E = 8, K = 2, H = 64 };

#define GONE(call, word)                                                                                             \
	do {                                                                                                         \
		ncclResult_t is_ = (call);                                                                           \
		const char *text_ = anyEpGetLastError();                                                             \
		if (is_ != ncclInvalidArgument || !strstr(text_, word)) {                                            \
			fprintf(stderr, "%s:%d: %s gives %d, \"%s\"\n", __FILE__, __LINE__, #call, (int)is_, text_); \
			bad++;                                                                                       \
		}                                                                                                    \
	} while (0)

static ncclEpGroup_t group_make(struct rank *me)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;

	c.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	c.num_experts = E;
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_token_bytes = 2 * H;
	return ncclEpCreateGroup(&group, me->comm, &c) == ncclSuccess ? group : NULL;
}

static int64_t idx[TMAX * K];

static int groups(struct rank *me)
{
	static const size_t sizes[2] = { TMAX, K };
	ncclEpTensor_t topk = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclInt64, .data = idx,
				.sizes = (size_t *)sizes };
	anyEpNetCounts_t counts = ANYEP_NET_COUNTS_INIT;
	anyEpNetTimes_t times = ANYEP_NET_TIMES_INIT;
	anyEpReachCounts_t reach = ANYEP_REACH_COUNTS_INIT;
	ncclEpGroup_t group = group_make(me);
	ncclEpHandle_t handle = NULL;
	int bad = 0, code, mask[1];
	size_t bytes;

	EXPECT(group);
	EXPECT_OK(ncclEpGroupDestroy(group));
	GONE(ncclEpGroupDestroy(group), "group");
	GONE(ncclEpHandleMemSize(group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes, K), "group");
	GONE(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K, NULL), "group");
	GONE(ncclEpCreateHandle(&handle, group, NCCL_EP_LAYOUT_RANK_MAJOR, &topk, NULL, NULL, NULL), "group");
	GONE(ncclEpMaskQuery(group, mask, NULL), "group");
	GONE(ncclEpMaskUpdate(group, mask, NULL), "group");
	GONE(ncclEpMaskClean(group, NULL), "group");
	GONE(ncclEpGetAsyncError(group, &code), "group");
	GONE(ncclEpErrorClear(group), "group");
	GONE(anyEpGroupWindowBytes(group, &bytes), "group");
	GONE(anyEpGroupNetCounts(group, &counts), "group");
	GONE(anyEpGroupNetTimes(group, &times), "group");
	GONE(anyEpGroupReachCounts(group, &reach), "group");
	GONE(anyEpGroupBarrier(group, NULL), "group");
	GONE(anyEpGroupAllGather(group, mask, mask, sizeof(mask)), "group");
	/* An address that never was one, and another kind of object. */
	GONE(ncclEpGroupDestroy((ncclEpGroup_t)(uintptr_t)0x1001), "group");
	if ((group = group_make(me))) {
		GONE(ncclEpHandleDestroy((ncclEpHandle_t)group), "handle");
		EXPECT_OK(ncclEpGroupDestroy(group));
	}
	return bad;
}

static int handles(struct rank *me)
{
	static const size_t topk_sizes[2] = { TMAX, K };
	ncclEpTensor_t topk = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclInt64, .data = idx,
				.sizes = (size_t *)topk_sizes };
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpCombineInputs_t cin = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t cout = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpGroup_t group = group_make(me);
	ncclEpHandle_t handle = NULL;
	int bad = 0;

	EXPECT(group);
	EXPECT_OK(ncclEpCreateHandle(&handle, group, NCCL_EP_LAYOUT_RANK_MAJOR, &topk, NULL, NULL, NULL));
	EXPECT_OK(ncclEpHandleDestroy(handle));
	GONE(ncclEpHandleDestroy(handle), "handle");
	GONE(ncclEpUpdateHandle(handle, &topk, NULL, NULL), "handle");
	GONE(ncclEpDispatch(handle, &in, &out, NULL, NULL, NULL), "handle");
	GONE(ncclEpCombine(handle, &cin, &cout, NULL, NULL), "handle");
	GONE(ncclEpComplete(handle, NULL, NULL), "handle");
	GONE(anyEpHandleSources(handle, NULL, NULL, NULL), "handle");
	GONE(anyEpHandleWaitStats(handle, NULL), "handle");
	GONE(anyEpHandleScales(handle, ANYEP_SCALES_ROWS), "handle");
	GONE(anyEpHandleSms(handle, 1, 1), "handle");
	GONE(anyEpHandleBias(handle, NULL, 0), "handle");
	EXPECT_OK(ncclEpGroupDestroy(group)); /* the second destroy was not counted */
	GONE(ncclEpHandleDestroy(handle), "handle");
	return bad;
}

static int tensors(struct rank *me)
{
	static const size_t sizes[2] = { TMAX, K };
	ncclEpTensorAllocConfig_t config = NCCL_EP_TENSOR_ALLOC_CONFIG_INIT;
	ncclEpGroup_t group = group_make(me);
	ncclEpHandle_t handle = NULL;
	ncclEpTensor_t *topk = NULL, *other = NULL;
	int bad = 0;

	EXPECT(group);
	EXPECT_OK(ncclEpTensorAlloc(&topk, 2, ncclInt64, sizes, &config));
	EXPECT_OK(ncclEpTensorDestroy(topk));
	GONE(ncclEpTensorDestroy(topk), "tensor");
	GONE(ncclEpCreateHandle(&handle, group, NCCL_EP_LAYOUT_RANK_MAJOR, topk, NULL, NULL, NULL), "topk_idx");
	EXPECT_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K, NULL));
	GONE(ncclEpUpdateHandle(handle, topk, NULL, NULL), "topk_idx");
	EXPECT_OK(ncclEpTensorAlloc(&other, 2, ncclInt64, sizes, &config));
	other->data = idx;
	EXPECT_OK(ncclEpUpdateHandle(handle, other, NULL, NULL));
	EXPECT_OK(ncclEpTensorDestroy(other));
	GONE(ncclEpTensorDestroy(other), "tensor");
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT_OK(ncclEpGroupDestroy(group));
	return bad;
}

static int streams(struct rank *me)
{
	cudaStream_t stream = NULL;
	int bad = 0;

	(void)me;
	EXPECT_OK(anyEpHostStreamCreate(&stream));
	EXPECT_OK(anyEpHostStreamDestroy(stream));
	GONE(anyEpHostStreamDestroy(stream), "stream");
	GONE(anyEpHostStreamSynchronize(stream), "stream");
	return bad;
}

struct race {
	ncclEpGroup_t group;
	atomic_int ready, good, gone;
};

static void *racer(void *arg)
{
	struct race *race = arg;
	ncclResult_t rc;

	atomic_fetch_add(&race->ready, 1);
	while (atomic_load(&race->ready) < 2)
		;
	rc = ncclEpGroupDestroy(race->group);
	atomic_fetch_add(rc == ncclSuccess ? &race->good : &race->gone, rc == ncclSuccess || rc == ncclInvalidArgument);
	return NULL;
}

static int two_threads(struct rank *me)
{
	int bad = 0;

	for (int i = 0; i < 20; i++) {
		struct race race = { .group = group_make(me) };
		pthread_t thread;

		EXPECT(race.group);
		EXPECT(!pthread_create(&thread, NULL, racer, &race));
		racer(&race);
		pthread_join(thread, NULL);
		EXPECT(race.good == 1 && race.gone == 1);
	}
	return bad;
}

int main(void)
{
	static const struct {
		const char *name;
		int (*fn)(struct rank *me);
	} tests[] = { { "handles", handles },
		      { "tensors", tensors },
		      { "streams", streams },
		      { "groups", groups },
		      { "two_threads", two_threads } };
	int failed = 0, count = sizeof(tests) / sizeof(tests[0]);

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	for (int i = 0; i < count; i++) {
		int bad = ranks_threads(1, tests[i].fn, NULL);

		printf("%s %s\n", bad ? "not ok" : "ok", tests[i].name);
		failed += bad != 0;
	}
	printf("%d passed, %d failed\n", count - failed, failed);
	return failed ? 1 : 0;
}
