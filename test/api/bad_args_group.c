/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments of all functions without a handle: version, tensors, groups, masks, errors, host streams. */
#include "bad_args.h"
#include "kernels/host/stream.h"

TestSuite(bad_args_group, .timeout = 30, .init = bad_args_quiet);

Test(bad_args_group, version)
{
	int v = -1;

	EXPECT_ARG(ncclEpGetVersion(NULL), "ncclEpGetVersion", "version");
	EXPECT_OK(ncclEpGetVersion(&v));
	cr_expect_eq(v, 200);
}

#define ALLOC "ncclEpTensorAlloc"

static struct {
	ncclEpTensorAllocConfig_t cfg;
	size_t sizes[2];
	ncclEpTensor_t *out;
} ta;

static ncclResult_t alloc_call(void *ctx)
{
	(void)ctx;
	return ncclEpTensorAlloc(&ta.out, 2, ncclInt8, ta.sizes, &ta.cfg);
}

static int alloc_good(void *ctx)
{
	ncclResult_t rc = alloc_call(ctx);

	if (rc == ncclSuccess)
		ncclEpTensorDestroy(ta.out);
	ta.out = NULL;
	return rc;
}

Test(bad_args_group, tensor_alloc)
{
	size_t sizes[9] = { 2, 3, 1, 1, 1, 1, 1, 1, 1 }, huge[2] = { (size_t)1 << 40, (size_t)1 << 40 },
	       last[2] = { 0, SIZE_MAX };
	ncclEpTensor_t *t = (void *)0x10, *const untouched = t;

	EXPECT_ARG(ncclEpTensorAlloc(NULL, 2, ncclInt8, sizes, NULL), ALLOC, "tensor");
	EXPECT_ARG(ncclEpTensorAlloc(&t, 0, ncclInt8, sizes, NULL), ALLOC, "ndim");
	EXPECT_ARG(ncclEpTensorAlloc(&t, 9, ncclInt8, sizes, NULL), ALLOC, "ndim");
	EXPECT_ARG(ncclEpTensorAlloc(&t, -1u, ncclInt8, sizes, NULL), ALLOC, "ndim");
	EXPECT_ARG(ncclEpTensorAlloc(&t, 2, (ncclDataType_t)13, sizes, NULL), ALLOC, "datatype");
	EXPECT_ARG(ncclEpTensorAlloc(&t, 2, (ncclDataType_t)-1, sizes, NULL), ALLOC, "datatype");
	EXPECT_ARG(ncclEpTensorAlloc(&t, 2, ncclInt8, NULL, NULL), ALLOC, "sizes");
	EXPECT_ARG(ncclEpTensorAlloc(&t, 2, ncclInt8, huge, NULL), ALLOC, "sizes");
	EXPECT_ARG(ncclEpTensorAlloc(&t, 2, ncclInt32, last, NULL), ALLOC, "sizes");
	cr_expect_eq(t, untouched, "written on failure");

	ta.cfg = NCCL_EP_TENSOR_ALLOC_CONFIG_INIT;
	ta.sizes[0] = ta.sizes[1] = 4;
	walk_struct(&ta.cfg, 8, ALLOC, "config", alloc_call, alloc_good, NULL);

	for (int d = 0; d <= 12; d++) {
		EXPECT_OK(ncclEpTensorAlloc(&t, 2, (ncclDataType_t)d, sizes, NULL));
		cr_expect(t->ndim == 2 && t->datatype == (ncclDataType_t)d && !t->data && !t->win_hdl && t->size == 48);
		cr_expect(t->sizes != sizes && t->sizes[0] == 2 && t->sizes[1] == 3);
		cr_expect(t->magic != NCCL_EP_MAGIC && t->magic != NCCL_EP_TENSOR_MAGIC);
		t->sizes = sizes; /* a caller may do this; the allocation is still freed */
		EXPECT_OK(ncclEpTensorDestroy(t));
	}
}

Test(bad_args_group, tensor_destroy)
{
	ncclEpTensor_t declared = NCCL_EP_TENSOR_INIT, wrong = { .size = 48, .magic = 0x12345678 };

	EXPECT_OK(ncclEpTensorDestroy(NULL));
	EXPECT_ARG(ncclEpTensorDestroy(&declared), "ncclEpTensorDestroy", "tensor");
	EXPECT_ARG(ncclEpTensorDestroy(&wrong), "ncclEpTensorDestroy", "tensor");
}

static cudaError_t some_alloc(void **p, size_t n, void *ctx)
{
	(void)p, (void)n, (void)ctx;
	return cudaSuccess;
}

static cudaError_t some_free(void *p, void *ctx)
{
	(void)p, (void)ctx;
	return cudaSuccess;
}

static ncclEpGroupConfig_t good_config(ncclEpAlgorithm_t algorithm)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = algorithm;
	c.num_experts = E;
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_recv_tokens_per_rank = N;
	c.max_token_bytes = MAX_BYTES;
	return c;
}

static int check(const ncclEpGroupConfig_t *c, struct ep_group_cfg *cfg)
{
	ncclEpAllocConfig_t alloc;

	ep_last_error_set("");
	return ep_check_group(c, cfg, &alloc);
}

static ncclResult_t config_call(void *ctx)
{
	struct ep_group_cfg cfg;

	return (ncclResult_t)ep_result(check(ctx, &cfg));
}

static int config_good(void *ctx)
{
	struct ep_group_cfg cfg;

	return check(ctx, &cfg);
}

#define CREATE "ncclEpCreateGroup"

Test(bad_args_group, create_pointers)
{
	ncclEpGroupConfig_t c = good_config(NCCL_EP_ALGO_LOW_LATENCY);
	struct ep_group_cfg cfg;
	ncclEpGroup_t group = (void *)0x10;

	EXPECT_ARG(ncclEpCreateGroup(&group, NULL, &c), CREATE, "comm");
	cr_expect_null(group, "*group must be NULL after a failure");
	EXPECT_ARG(ncclEpCreateGroup(NULL, NULL, &c), CREATE, "comm");
	cr_expect_eq(check(NULL, &cfg), -EP_EARG);
	cr_expect(strstr(anyEpGetLastError(), "config"));
	EXPECT_OK(ncclEpGroupDestroy(NULL));
	walk_struct(&c, 96, CREATE, "config", config_call, config_good, &c);
}

/* Field, value, and result for LL and HT (4 or 5, 0: accepted); the message must name the field. */
#define FIELD(f) offsetof(ncclEpGroupConfig_t, f), #f
static const struct bad_field {
	size_t offset;
	const char *name;
	unsigned value;
	int ll, ht;
} bad_fields[] = {
	{ FIELD(version), 0, 4, 4 },
	{ FIELD(version), 1, 0, 0 },
	{ FIELD(version), 3, 0, 0 },
	{ FIELD(version), 4, 0, 0 },
	{ FIELD(algorithm), 2, 4, 4 },
	{ FIELD(algorithm), -1u, 4, 4 },
	{ FIELD(num_experts), 0, 4, 4 },
	{ FIELD(num_experts), 1u << 31, 4, 4 },
	{ FIELD(max_dispatch_tokens_per_rank), 0, 4, 4 },
	{ FIELD(max_dispatch_tokens_per_rank), -1u, 4, 4 },
	{ FIELD(max_recv_tokens_per_rank), 0, 0, 0 },
	{ FIELD(max_recv_tokens_per_rank), TMAX - 1, 0, 4 },
	{ FIELD(max_recv_tokens_per_rank), TMAX, 0, 0 },
	{ FIELD(max_recv_tokens_per_rank), -1u, 4, 4 },
	{ FIELD(max_token_bytes), 0, 4, 4 },
	{ FIELD(max_token_bytes), 24, 0, 4 },
	{ FIELD(num_qp_per_rank), 1000, 0, 0 },
	{ FIELD(num_channels), 1000, 0, 0 },
	{ FIELD(max_num_sms), 1000, 0, 0 },
	{ FIELD(enable_mask), 1, 0, 5 },
	{ FIELD(zero_copy), 2, 0, 0 },
	{ FIELD(zero_copy), 3, 4, 4 },
	{ FIELD(zero_copy), -1u, 4, 4 },
	{ FIELD(overflow_policy), 2, 0, 0 },
	{ FIELD(overflow_policy), 3, 4, 4 },
	{ FIELD(num_topk), 8, 0, 0 },
	{ FIELD(num_topk), 1u << 31, 4, 4 },
};

Test(bad_args_group, create_fields)
{
	for (size_t i = 0; i < sizeof(bad_fields) / sizeof(bad_fields[0]); i++)
		for (int ht = 0; ht < 2; ht++) {
			const struct bad_field *f = &bad_fields[i];
			ncclEpGroupConfig_t c = good_config((ncclEpAlgorithm_t)ht);
			struct ep_group_cfg cfg;
			int must = ht ? f->ht : f->ll, is;

			memcpy((char *)&c + f->offset, &f->value, 4);
			is = ep_result(check(&c, &cfg));
			cr_expect_eq(is, must, "%s %s = %u: %d, must be %d", ht ? "HT" : "LL", f->name, f->value, is,
				     must);
			cr_expect(!must || strstr(anyEpGetLastError(), f->name), "%s: \"%s\"", f->name,
				  anyEpGetLastError());
		}
}

Test(bad_args_group, create_combinations)
{
	ncclEpGroupConfig_t c = good_config(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	struct ep_group_cfg cfg;

	c.max_recv_tokens_per_rank = NCCL_EP_AUTO;
	c.overflow_policy = NCCL_EP_OVERFLOW_DROP;
	cr_expect_eq(check(&c, &cfg), -EP_EARG, "DROP in eager mode");
	cr_expect(strstr(anyEpGetLastError(), "overflow_policy"));
	c = good_config(NCCL_EP_ALGO_LOW_LATENCY);
	c.alloc.alloc_fn = some_alloc;
	cr_expect_eq(check(&c, &cfg), -EP_EARG);
	cr_expect(strstr(anyEpGetLastError(), "free_fn"));
	c.alloc.free_fn = some_free;
	cr_expect_eq(check(&c, &cfg), 0);
	c.alloc.alloc_fn = NULL;
	cr_expect_eq(check(&c, &cfg), -EP_EARG);
	cr_expect(strstr(anyEpGetLastError(), "alloc_fn"));
}

/* A caller of API 1 has 96 bytes: the rest counts as zero, whatever follows in memory. */
Test(bad_args_group, create_versions)
{
	ncclEpGroupConfig_t c = good_config(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	ncclEpGroupConfig_t *old = malloc(96);
	struct ep_group_cfg cfg;
	unsigned char big[200];

	c.size = 96;
	c.version = 1;
	c.timeout_ns = 77;
	c.zero_copy = 99; /* not covered by size */
	memcpy(old, &c, 96);
	cr_assert_eq(check(old, &cfg), 0, "%s", anyEpGetLastError());
	cr_expect_eq(check(&c, &cfg), 0, "bytes past size were read");
	cr_expect(cfg.zero_copy == 0 && cfg.num_topk == 0 && cfg.overflow == NCCL_EP_OVERFLOW_TRAP &&
		  cfg.timeout_ns == 77);
	free(old);
	/* API 2: up to the padding before version 3. */
	c = good_config(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	c.size = 112;
	c.version = 2;
	c.num_topk = 3;
	c.dispatch_num_sms = c.combine_num_sms = -1u; /* not covered by size */
	old = malloc(112);
	memcpy(old, &c, 112);
	cr_assert_eq(check(old, &cfg), 0, "%s", anyEpGetLastError());
	cr_expect(cfg.num_topk == 3 && cfg.dispatch_num_sms == 0 && cfg.combine_num_sms == 0);
	free(old);
	c.size = 120;
	c.version = 3;
	c.dispatch_num_sms = 16;
	c.combine_num_sms = 20;
	cr_assert_eq(check(&c, &cfg), 0, "%s", anyEpGetLastError());
	cr_expect(cfg.dispatch_num_sms == 16 && cfg.combine_num_sms == 20);
	/* A caller of a later version has more: unknown fields are ignored. */
	memset(big, 0xFF, sizeof(big));
	c = good_config(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	c.size = sizeof(big);
	c.version = 4;
	c.num_topk = 4;
	memcpy(big, &c, sizeof(c));
	cr_expect_eq(check((void *)big, &cfg), 0);
	cr_expect_eq(cfg.num_topk, 4);
}

Test(bad_args_group, masks)
{
	int mask[R] = { 1, 1 }, bad[R] = { 1, 2 };
	struct fake f;

	fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
	EXPECT_ARG(ncclEpMaskQuery(NULL, mask, NULL), "ncclEpMaskQuery", "group");
	EXPECT_ARG(ncclEpMaskUpdate(NULL, mask, NULL), "ncclEpMaskUpdate", "group");
	EXPECT_ARG(ncclEpMaskClean(NULL, NULL), "ncclEpMaskClean", "group");
	EXPECT_ARG(ncclEpMaskQuery(&f.group, NULL, NULL), "ncclEpMaskQuery", "mask");
	EXPECT_ARG(ncclEpMaskUpdate(&f.group, NULL, NULL), "ncclEpMaskUpdate", "mask");
	EXPECT_USE(ncclEpMaskQuery(&f.group, mask, NULL), "ncclEpMaskQuery", "enable_mask");
	EXPECT_USE(ncclEpMaskUpdate(&f.group, mask, NULL), "ncclEpMaskUpdate", "enable_mask");
	EXPECT_USE(ncclEpMaskClean(&f.group, NULL), "ncclEpMaskClean", "enable_mask");
	f.group.cfg.enable_mask = 1;
	EXPECT_ARG(ncclEpMaskUpdate(&f.group, bad, NULL), "ncclEpMaskUpdate", "mask[1]");
	cr_expect_eq(ep_check_mask("x", &f.group, mask), 0);
	cr_expect(mask[0] == 1 && mask[1] == 1);
}

Test(bad_args_group, async_error)
{
	struct fake f;
	int code = -7;

	fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
	EXPECT_ARG(ncclEpGetAsyncError(NULL, &code), "ncclEpGetAsyncError", "group");
	cr_expect_eq(code, -7);
	EXPECT_ARG(ncclEpGetAsyncError(&f.group, NULL), "ncclEpGetAsyncError", "error");
	EXPECT_ARG(ncclEpErrorClear(NULL), "ncclEpErrorClear", "group");
	EXPECT_OK(ncclEpGetAsyncError(&f.group, &code));
	cr_expect_eq(code, 0);

	atomic_store(&f.group.async_flag, ANYEP_ASYNC_BAD_EXPERT);
	EXPECT_OK(ncclEpGetAsyncError(&f.group, &code));
	cr_expect_eq(code, 2);
	EXPECT_OK(ncclEpErrorClear(&f.group));
	EXPECT_OK(ncclEpGetAsyncError(&f.group, &code));
	cr_expect_eq(code, 0);
}

/* An error fails every later call with its result and message; only an overflow can be cleared. */
Test(bad_args_group, late_error)
{
	static const struct {
		int err, code;
		ncclResult_t result;
		bool clears;
	} rows[] = { { EP_ETIMEOUT, 1, (ncclResult_t)8, false },
		     { EP_EREMOTE, 4, ncclRemoteError, false },
		     { EP_EUSAGE, 3, ncclInvalidUsage, true } };
	size_t bytes = 5;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		_Alignas(16) struct ncclEpHandle handle = { 0 };
		struct fake f;
		int code;

		fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
		handle.group = &f.group;
		fake_live(EP_LIVE_HANDLE, &handle);
		ep_group_set_error(&f.group, rows[i].err, (struct ep_blame){ 0, EP_EV_MISSING },
				   "rank 1 waited for rank 0 in dispatch");
		expect_fail(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes, K), rows[i].result,
			    "rank 1", "dispatch", "HandleMemSize");
		expect_fail(ncclEpComplete(&handle, NULL, NULL), rows[i].result, "rank 1", "dispatch", "Complete");
		cr_expect_eq(bytes, 5);
		EXPECT_OK(ncclEpGetAsyncError(&f.group, &code));
		cr_expect_eq(code, rows[i].code);
		if (rows[i].clears) {
			EXPECT_OK(ncclEpErrorClear(&f.group));
			EXPECT_OK(ncclEpComplete(&handle, NULL, NULL));
		} else {
			EXPECT_USE(ncclEpErrorClear(&f.group), "ncclEpErrorClear", "rank 1 waited");
			expect_fail(ncclEpComplete(&handle, NULL, NULL), rows[i].result, "rank 1", "dispatch",
				    "Complete");
		}
	}
}

/* What kernels wrote to the page is seen by the next call, and cleared with the rest. */
Test(bad_args_group, kernel_flags)
{
	struct ep_page_words *page = calloc(1, sizeof(*page) + R * sizeof(page->gone[0]));
	_Alignas(16) struct ncclEpHandle handle = { 0 };
	struct fake f;
	int code = -1;

	fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
	handle.group = &f.group;
	fake_live(EP_LIVE_HANDLE, &handle);
	f.group.page.mem.host = page;
	page->async[ANYEP_ASYNC_BAD_EXPERT] = 1;
	EXPECT_OK(ncclEpGetAsyncError(&f.group, &code));
	cr_expect_eq(code, 2);
	EXPECT_OK(ncclEpComplete(&handle, NULL, NULL)); /* an async error fails no call */
	EXPECT_OK(ncclEpErrorClear(&f.group));
	page->report.code = EP_KERR_STAGED;
	EXPECT_OK(ncclEpGetAsyncError(&f.group, &code));
	cr_expect_eq(code, ANYEP_ASYNC_LIMIT);
	EXPECT_USE(ncclEpComplete(&handle, NULL, NULL), "rank 0", "staged");
	EXPECT_OK(ncclEpErrorClear(&f.group));
	EXPECT_OK(ncclEpComplete(&handle, NULL, NULL));
	EXPECT_OK(ncclEpGetAsyncError(&f.group, &code));
	cr_expect_eq(code, 0);
	page->report.code = EP_KERR_TIMEOUT;
	EXPECT_USE(ncclEpErrorClear(&f.group), "ncclEpErrorClear", "failed"); /* without asking for it first */
	free(page);
}

Test(bad_args_group, destroy_with_handles)
{
	struct fake f;

	fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
	f.group.handles = 3;
	EXPECT_USE(ncclEpGroupDestroy(&f.group), "ncclEpGroupDestroy", "3 ");
}

static struct {
	cudaStream_t stream;
	ncclResult_t result;
} own;

static void sync_itself(void *arg)
{
	(void)arg;
	own.result = anyEpHostStreamSynchronize(own.stream);
}

Test(bad_args_group, host_streams)
{
	long garbage[8] = { 1, 2, 3 };
	cudaStream_t stream = (cudaStream_t)garbage;

	EXPECT_ARG(anyEpHostStreamCreate(NULL), "anyEpHostStreamCreate", "stream");
	EXPECT_ARG(anyEpHostStreamSynchronize(stream), "anyEpHostStreamSynchronize", "stream");
	EXPECT_ARG(anyEpHostStreamSynchronize(NULL), "anyEpHostStreamSynchronize", "stream");
	EXPECT_ARG(anyEpHostStreamSynchronize((cudaStream_t)1), "anyEpHostStreamSynchronize", "stream");
	EXPECT_ARG(anyEpHostStreamDestroy(stream), "anyEpHostStreamDestroy", "stream");
	EXPECT_OK(anyEpHostStreamDestroy(NULL));
	EXPECT_OK(anyEpHostStreamCreate(&stream));
	cr_assert_neq(stream, (cudaStream_t)garbage);
	EXPECT_OK(anyEpHostStreamSynchronize(stream));
	/* An operation that waits for its own stream would hang. */
	own.stream = stream;
	cr_assert_eq(ep_host_stream_head(stream)->enqueue(stream, sync_itself, &own), 0);
	EXPECT_OK(anyEpHostStreamSynchronize(stream));
	cr_expect_eq(own.result, ncclInvalidUsage);
	EXPECT_OK(anyEpHostStreamDestroy(stream));
}

static void reach_counts_check(struct ncclEpGroup *group)
{
	anyEpReachCounts_t two[2];

	EXPECT_ARG(anyEpGroupReachCounts(NULL, two), "anyEpGroupReachCounts", "group");
	EXPECT_ARG(anyEpGroupReachCounts(group, NULL), "anyEpGroupReachCounts", "counts");
	two[0].size = 63;
	EXPECT_ARG(anyEpGroupReachCounts(group, two), "anyEpGroupReachCounts", "size");
	memset(two, 0xff, sizeof(two));
	two[0].size = sizeof(two);
	EXPECT_OK(anyEpGroupReachCounts(group, two));
	cr_expect(two[0].size == sizeof(two) && !two[0].direct && !two[0].mapped && !two[0].evicted);
	cr_expect_eq(two[1].size, SIZE_MAX);
}

static void net_counts_check(struct ncclEpGroup *group)
{
	anyEpNetCounts_t two[2];
	ncclEpNetCounts_t old;

	EXPECT_ARG(anyEpGroupNetCounts(NULL, two), "anyEpGroupNetCounts", "group");
	EXPECT_ARG(anyEpGroupNetCounts(group, NULL), "anyEpGroupNetCounts", "counts");
	two[0].size = 31;
	EXPECT_ARG(anyEpGroupNetCounts(group, two), "anyEpGroupNetCounts", "size");
	/* A caller whose header is newer: what the library does not know stays as it is. */
	memset(two, 0xff, sizeof(two));
	two[0].size = sizeof(two);
	EXPECT_OK(anyEpGroupNetCounts(group, two));
	cr_expect(two[0].size == sizeof(two) && !two[0].puts && !two[0].bytes && !two[0].signals);
	cr_expect_eq(two[1].size, SIZE_MAX);
	/* The former name, with its struct */
	memset(&old, 0xff, sizeof(old));
	EXPECT_ARG(ncclEpGroupNetCounts(group, NULL), "NetCounts", "counts");
	EXPECT_OK(ncclEpGroupNetCounts(group, &old));
	cr_expect(!old.puts && !old.bytes && !old.signals && !old.reserved[0] && !old.reserved[4]);
}

static void net_times_check(struct ncclEpGroup *group)
{
	anyEpNetTimes_t two[2];

	EXPECT_ARG(anyEpGroupNetTimes(NULL, two), "anyEpGroupNetTimes", "group");
	EXPECT_ARG(anyEpGroupNetTimes(group, NULL), "anyEpGroupNetTimes", "times");
	two[0].size = ANYEP_NET_TIMES_V1_SIZE - 1;
	EXPECT_ARG(anyEpGroupNetTimes(group, two), "anyEpGroupNetTimes", "size");
	memset(two, 0xff, sizeof(two));
	two[0].size = sizeof(two);
	EXPECT_OK(anyEpGroupNetTimes(group, two));
	cr_expect(two[0].size == sizeof(two) && !two[0].net[0] && !two[0].operations && !two[0].arrived);
	cr_expect_eq(two[1].size, SIZE_MAX);
}

Test(bad_args_group, extensions)
{
	size_t bytes = 5;
	struct fake f;
	int code;

	fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
	EXPECT_ARG(anyEpGetVersion(NULL), "anyEpGetVersion", "version");
	EXPECT_OK(anyEpGetVersion(&code));
	EXPECT_ARG(anyEpGroupWindowBytes(NULL, &bytes), "anyEpGroupWindowBytes", "group");
	EXPECT_ARG(anyEpGroupWindowBytes(&f.group, NULL), "anyEpGroupWindowBytes", "bytes");
	cr_expect_eq(bytes, 5);
	EXPECT_OK(anyEpGroupWindowBytes(&f.group, &bytes));
	net_counts_check(&f.group);
	net_times_check(&f.group);
	reach_counts_check(&f.group);
}
