/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups and handles over the stand-in, two ranks as threads, through the public functions only: creation and
 * destruction, what is collective and what is not, ownership of memory, and that one rank's error fails all.
 */
#include <stdatomic.h>
#include <time.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

enum { TMAX = 16, E = 8, K = 2 };

/* The result and, unless it is success, a word the message must contain. */
#define IS(call, must, word)                                                                                          \
	do {                                                                                                          \
		ncclResult_t is_ = (call);                                                                            \
		const char *text_ = anyEpGetLastError();                                                              \
		if (is_ != (must) || (is_ && !strstr(text_, word))) {                                                 \
			fprintf(stderr, "%s:%d: rank %d: %s gives %d, \"%s\"\n", __FILE__, __LINE__, me->rank, #call, \
				(int)is_, text_);                                                                     \
			bad++;                                                                                        \
		}                                                                                                     \
	} while (0)
#define OK(call) IS(call, ncclSuccess, "")

static ncclEpGroupConfig_t config_of(ncclEpAlgorithm_t algorithm)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = algorithm;
	c.num_experts = E;
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_recv_tokens_per_rank = 2 * TMAX;
	c.max_token_bytes = 256;
	return c;
}

static int all_wait(struct rank *me)
{
	return ranks_sum(me->comm, 1, me->n);
}

static int64_t idx[TMAX * K];

/* Handles of both layouts; the window grows for the second; T changes with every Update. */
static int ll_life(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	size_t sizes[2] = { 3, K }, wide[2] = { TMAX, 6 }, bytes = 0;
	ncclEpTensor_t t = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclInt64, .data = idx,
			     .sizes = sizes };
	ncclEpTensor_t many = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclInt32, .data = idx,
				.sizes = wide };
	ncclEpGroup_t group = NULL;
	ncclEpHandle_t a = NULL, b = NULL;
	int bad = 0, code = -1;

	OK(ncclEpCreateGroup(&group, me->comm, &c));
	OK(ncclEpHandleMemSize(group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes, K));
	EXPECT(bytes > 0);
	OK(ncclEpInitHandle(&a, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K, NULL));
	OK(ncclEpUpdateHandle(a, &t, NULL, NULL));
	sizes[0] = 0;
	t.data = NULL;
	OK(ncclEpUpdateHandle(a, &t, NULL, NULL));
	OK(ncclEpCreateHandle(&b, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &many, NULL, NULL, NULL));
	OK(ncclEpComplete(b, NULL, NULL));
	IS(ncclEpGroupDestroy(group), ncclInvalidUsage, "2 ");
	OK(ncclEpHandleDestroy(a));
	IS(ncclEpGroupDestroy(group), ncclInvalidUsage, "1 ");
	OK(ncclEpHandleDestroy(b));
	OK(ncclEpGetAsyncError(group, &code));
	EXPECT(code == 0);
	OK(ncclEpErrorClear(group));
	OK(ncclEpGroupDestroy(group));
	return bad;
}

/* Caller-provided handle memory is not cleared: it may hold another handle's routing. */
static int ht_life(struct rank *me)
{
	static const ncclEpLayout_t layouts[] = { NCCL_EP_LAYOUT_FLAT, NCCL_EP_LAYOUT_EXPERT_MAJOR };
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	ncclEpGroup_t group = NULL;
	int bad = 0;

	OK(ncclEpCreateGroup(&group, me->comm, &c));
	for (int i = 0; i < 2; i++) {
		size_t bytes = 0;
		ncclEpHandle_t own = NULL, over = NULL;

		OK(ncclEpHandleMemSize(group, layouts[i], NULL, &bytes, -1));
		unsigned char *mem = aligned_alloc(256, (bytes + 255) / 256 * 256);
		ncclEpTensor_t t = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 1, .datatype = ncclUint8, .data = mem,
				     .sizes = &bytes };

		memset(mem, 0xA5, bytes);
		OK(ncclEpInitHandle(&own, group, layouts[i], NULL, K, NULL));
		OK(ncclEpInitHandle(&over, group, layouts[i], NULL, -1, &t));
		OK(ncclEpHandleDestroy(own));
		OK(ncclEpHandleDestroy(over));
		for (size_t j = 0; j < bytes; j++)
			if (mem[j] != 0xA5) {
				EXPECT(!"handle_mem was modified");
				break;
			}
		free(mem);
	}
	OK(ncclEpGroupDestroy(group));
	return bad;
}

static atomic_int allocs, frees;

static cudaError_t count_alloc(void **p, size_t n, void *ctx)
{
	atomic_fetch_add(&allocs, 1);
	*p = ctx ? NULL : aligned_alloc(256, n); /* a context makes it fail */
	return ctx ? cudaErrorMemoryAllocation : cudaSuccess;
}

static cudaError_t count_free(void *p, void *ctx)
{
	(void)ctx;
	atomic_fetch_add(&frees, 1);
	free(p);
	return cudaSuccess;
}

/* Only handle memory comes from the caller's functions, and all of it is freed. */
static int own_allocator(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	ncclEpGroup_t group = NULL;
	ncclEpHandle_t h = NULL;
	int bad = 0;

	c.alloc = (ncclEpAllocConfig_t){ count_alloc, count_free, NULL };
	OK(ncclEpCreateGroup(&group, me->comm, &c));
	EXPECT(atomic_load(&allocs) == 0);
	bad += all_wait(me);
	for (int i = 0; i < 3; i++) {
		OK(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K, NULL));
		OK(ncclEpHandleDestroy(h));
	}
	bad += all_wait(me);
	EXPECT(atomic_load(&allocs) == me->n && atomic_load(&frees) == 0); /* once per rank, kept for the next handle */
	bad += all_wait(me);
	OK(ncclEpGroupDestroy(group));
	bad += all_wait(me);
	EXPECT(atomic_load(&frees) == me->n);
	bad += all_wait(me);

	c.alloc.context = &bad;
	h = (void *)0x10;
	OK(ncclEpCreateGroup(&group, me->comm, &c));
	IS(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K, NULL), ncclSystemError, "alloc_fn");
	EXPECT(!h);
	OK(ncclEpGroupDestroy(group));
	return bad;
}

/* With an explicit window size InitHandle is not collective. */
static int explicit_window(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	ncclEpGroup_t group = NULL;
	ncclEpHandle_t h = (void *)0x10;
	int bad = 0;

	c.rdma_buffer_size = 1 << 20;
	OK(ncclEpCreateGroup(&group, me->comm, &c));
	if (me->rank == 1) { /* alone */
		IS(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 4096, NULL), ncclInvalidUsage,
		   "rdma_buffer_size");
		EXPECT(!h);
		OK(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K, NULL));
		OK(ncclEpHandleDestroy(h));
	}
	OK(ncclEpGroupDestroy(group));
	return bad;
}

/* A window grows on all ranks for the same handle, or on none. */
static int unlike_handles(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	ncclEpGroup_t group = NULL;
	ncclEpHandle_t h = (void *)0x10;
	int bad = 0;

	OK(ncclEpCreateGroup(&group, me->comm, &c));
	IS(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K + me->rank, NULL), ncclInvalidArgument,
	   "num_topk");
	EXPECT(!h);
	OK(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K, NULL));
	OK(ncclEpHandleDestroy(h));
	OK(ncclEpGroupDestroy(group));
	return bad;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* An error of rank 1: every rank gets the result at once, and a message that names it. */
static int one_bad_config(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	ncclEpGroup_t group = (void *)0x10;
	double start = seconds();
	int bad = 0;

	if (me->rank == 1)
		c.magic = 0;
	IS(ncclEpCreateGroup(&group, me->comm, &c), ncclInvalidArgument, me->rank == 1 ? "config->magic" : "rank 1");
	EXPECT(!group);
	group = (void *)0x10;
	IS(ncclEpCreateGroup(&group, me->comm, me->rank == 1 ? NULL : &c), ncclInvalidArgument,
	   me->rank == 1 ? "config" : "rank 1");
	EXPECT(!group);
	c = config_of(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	c.enable_mask = me->rank == 1;
	IS(ncclEpCreateGroup(&group, me->comm, &c), ncclInvalidUsage, me->rank == 1 ? "enable_mask" : "rank 1");
	EXPECT(!group);
	EXPECT(seconds() - start < 5);
	return bad;
}

static int unlike_configs(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	ncclEpGroup_t group = (void *)0x10;
	int bad = 0;

	c.max_token_bytes += 16 * (unsigned)me->rank;
	IS(ncclEpCreateGroup(&group, me->comm, &c), ncclInvalidArgument, "max_token_bytes");
	EXPECT(!group);
	c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	c.num_experts = 7;
	IS(ncclEpCreateGroup(&group, me->comm, &c), ncclInvalidArgument, "num_experts");
	EXPECT(!group);
	/* Fields that LL ignores may differ, and so may the caller's API version. */
	c.num_experts = E;
	c.max_recv_tokens_per_rank += (unsigned)me->rank;
	c.dispatch_num_sms = 2 + (unsigned)me->rank;
	IS(ncclEpCreateGroup(&group, me->comm, &c), ncclInvalidArgument, "dispatch_num_sms");
	c.dispatch_num_sms = NCCL_EP_AUTO;
	c.combine_num_sms = 2 + (unsigned)me->rank;
	IS(ncclEpCreateGroup(&group, me->comm, &c), ncclInvalidArgument, "combine_num_sms");
	c.combine_num_sms = NCCL_EP_AUTO;
	if (me->rank) {
		c.size = NCCL_EP_GROUP_CONFIG_V1_SIZE;
		c.version = 1;
	}
	OK(ncclEpCreateGroup(&group, me->comm, &c));
	OK(ncclEpGroupDestroy(group));
	return bad;
}

int main(void)
{
	static const struct {
		const char *name;
		int (*fn)(struct rank *me);
	} lives[] = {
		{ "ll_life", ll_life },
		{ "ht_life", ht_life },
		{ "own_allocator", own_allocator },
		{ "explicit_window", explicit_window },
		{ "unlike_handles", unlike_handles },
		{ "one_bad_config", one_bad_config },
		{ "unlike_configs", unlike_configs },
	};
	int failed = 0, count = sizeof(lives) / sizeof(lives[0]);

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	for (int i = 0; i < count; i++) {
		int bad = ranks_threads(2, lives[i].fn, NULL);

		printf("%s %s\n", bad ? "not ok" : "ok", lives[i].name);
		failed += bad != 0;
	}
	printf("%d passed, %d failed\n", count - failed, failed);
	return failed ? 1 : 0;
}
