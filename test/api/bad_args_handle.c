/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments of HandleMemSize, InitHandle, CreateHandle and HandleDestroy. */
#include "bad_args.h"

TestSuite(bad_args_handle, .timeout = 30, .init = bad_args_quiet);

#define SIZE "ncclEpHandleMemSize"
#define INIT "ncclEpInitHandle"
#define CREATE "ncclEpCreateHandle"

static _Alignas(16) unsigned char memory[1 << 16];
static struct fake f;
static ncclEpHandleConfig_t config;
static ncclEpTensor_t mem, topk;
static size_t mem_sizes[2], topk_sizes[3];
static const ncclEpHandle_t before = (void *)0x10;

static void setup(ncclEpAlgorithm_t algorithm)
{
	fake_init(&f, algorithm);
	config = NCCL_EP_HANDLE_CONFIG_INIT;
	mem_sizes[0] = mem_sizes[1] = sizeof(memory);
	mem = (ncclEpTensor_t){ NCCL_EP_TENSOR_INIT_INLINE, .ndim = 1, .datatype = ncclUint8, .data = memory,
				.sizes = mem_sizes };
	topk_sizes[0] = T;
	topk_sizes[1] = topk_sizes[2] = K;
	topk = (ncclEpTensor_t){ NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclInt64, .data = memory,
				 .sizes = topk_sizes };
}

static ncclResult_t size_call(void *ctx)
{
	size_t bytes = 7;
	ncclResult_t rc = ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, ctx, &bytes, K);

	cr_expect((rc == ncclSuccess) == (bytes != 7), "size %zu after result %d", bytes, (int)rc);
	return rc;
}

static int size_good(void *ctx)
{
	return size_call(ctx);
}

static ncclResult_t init_call(void *ctx)
{
	ncclEpHandle_t handle = before;
	ncclResult_t rc = ncclEpInitHandle(&handle, &f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, ctx, K, &mem);

	if (rc == ncclSuccess)
		cr_expect_eq(ncclEpHandleDestroy(handle), ncclSuccess);
	else
		cr_expect_null(handle, "*handle must be NULL after a failure");
	cr_expect_eq(f.group.handles, 0);
	return rc;
}

static int init_good(void *ctx)
{
	return init_call(ctx);
}

static ncclResult_t create(ncclEpLayout_t layout, const ncclEpLayoutInfo_t *info)
{
	ncclEpHandle_t handle = before;
	ncclResult_t rc = ncclEpCreateHandle(&handle, &f.group, layout, &topk, info, &config, NULL);

	cr_expect(rc != ncclSuccess, "CreateHandle must not get here");
	cr_expect_null(handle, "*handle must be NULL after a failure");
	cr_expect_eq(f.group.handles, 0);
	return rc;
}

static ncclResult_t create_call(void *ctx)
{
	(void)ctx;
	return create(NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL);
}

/* CreateHandle allocates device memory, which the fake group cannot: only its checks are called. */
static int create_good(void *ctx)
{
	struct ep_handle_args args;
	struct ncclEpHandle draft = { .group = &f.group };
	struct ep_update update;
	int k, rc = ep_check_topk_idx(CREATE, &topk, &k);

	(void)ctx;
	if (rc || (rc = ep_check_handle(CREATE, &f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &config, k, &args)))
		return rc;
	draft.args = args;
	draft.k = k;
	return ep_check_update(CREATE, &draft, &topk, NULL, &update);
}

Test(bad_args_handle, pointers)
{
	ncclEpHandle_t handle = before;
	size_t bytes = 7;

	for (int ht = 0; ht < 2; ht++) {
		setup((ncclEpAlgorithm_t)ht);
		EXPECT_ARG(ncclEpHandleMemSize(NULL, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, K), SIZE, "group");
		EXPECT_ARG(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, NULL, K), SIZE, "size");
		cr_expect_eq(bytes, 7);
		EXPECT_ARG(ncclEpInitHandle(NULL, &f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, K, &mem), INIT,
			   "handle");
		EXPECT_ARG(ncclEpInitHandle(&handle, NULL, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, K, &mem), INIT, "group");
		cr_expect_null(handle);
		EXPECT_ARG(ncclEpCreateHandle(NULL, &f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &topk, NULL, NULL, NULL),
			   CREATE, "handle");
		handle = before;
		EXPECT_ARG(ncclEpCreateHandle(&handle, NULL, NCCL_EP_LAYOUT_EXPERT_MAJOR, &topk, NULL, NULL, NULL),
			   CREATE, "group");
		cr_expect_null(handle);
		handle = before;
		EXPECT_ARG(ncclEpCreateHandle(&handle, &f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, NULL, NULL, NULL),
			   CREATE, "topk_idx");
		cr_expect_null(handle);
		EXPECT_OK(ncclEpHandleDestroy(NULL));
	}
}

Test(bad_args_handle, config_struct)
{
	for (int ht = 0; ht < 2; ht++) {
		setup((ncclEpAlgorithm_t)ht);
		walk_struct(&config, 16, SIZE, "config", size_call, size_good, &config);
		walk_struct(&config, 16, INIT, "config", init_call, init_good, &config);
		walk_struct(&config, 16, CREATE, "config", create_call, create_good, &config);
		cr_expect_eq(size_call(NULL), ncclSuccess, "NULL is all defaults");
		cr_expect_eq(init_call(NULL), ncclSuccess, "NULL is all defaults");
	}
}

Test(bad_args_handle, alignment)
{
	static const size_t bad[] = { 3, 6, 12, 100, 129, SIZE_MAX, ((size_t)1 << 62) + 1 },
			    fine[] = { 0, 1, 2, 128, 4096 };

	for (int ht = 0; ht < 2; ht++) {
		setup((ncclEpAlgorithm_t)ht);
		for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
			config.dispatch_output_per_expert_alignment = bad[i];
			EXPECT_ARG(size_call(&config), SIZE, "dispatch_output_per_expert_alignment");
			EXPECT_ARG(init_call(&config), INIT, "dispatch_output_per_expert_alignment");
			EXPECT_ARG(create_call(NULL), CREATE, "dispatch_output_per_expert_alignment");
		}
		for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++) {
			config.dispatch_output_per_expert_alignment = fine[i];
			EXPECT_OK(size_call(&config));
			EXPECT_OK(init_call(&config));
		}
	}
	/* Eager expert-major pads every zone; padding that overflows size_t is an error, not a wrap-around. */
	f.group.cfg.max_recv = 0;
	f.group.cfg.num_topk = K;
	config.dispatch_output_per_expert_alignment = (size_t)1 << 63;
	EXPECT_USE(size_call(&config), SIZE, "2^64");
}

Test(bad_args_handle, layout)
{
	/* Result by algorithm for each value. */
	static const struct {
		int layout;
		bool ll, ht;
	} rows[] = { { 0, false, false }, { 1, true, true },   { 2, true, false },
		     { 3, false, true },  { 4, false, false }, { -1, false, false } };
	size_t bytes;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (int ht = 0; ht < 2; ht++) {
			ncclEpLayout_t layout = (ncclEpLayout_t)rows[i].layout;
			ncclEpHandle_t handle = before;

			setup((ncclEpAlgorithm_t)ht);
			bytes = 7;
			if (ht ? rows[i].ht : rows[i].ll) {
				EXPECT_OK(ncclEpHandleMemSize(&f.group, layout, NULL, &bytes, K));
				cr_expect(bytes > 256 && bytes <= sizeof(memory), "%zu bytes", bytes);
				continue;
			}
			EXPECT_ARG(ncclEpHandleMemSize(&f.group, layout, NULL, &bytes, K), SIZE, "layout");
			EXPECT_ARG(ncclEpInitHandle(&handle, &f.group, layout, NULL, K, &mem), INIT, "layout");
			EXPECT_ARG(create(layout, NULL), CREATE, "layout");
			cr_expect_null(handle);
			cr_expect_eq(bytes, 7);
		}
}

Test(bad_args_handle, num_topk)
{
	static const int bad[] = { 0, -2, INT32_MIN };
	ncclEpHandle_t handle = before;
	size_t bytes = 7, explicit_k, assumed;

	for (int ht = 0; ht < 2; ht++) {
		setup((ncclEpAlgorithm_t)ht);
		for (size_t i = 0; i < 3; i++) {
			EXPECT_ARG(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, bad[i]),
				   SIZE, "num_topk");
			EXPECT_ARG(ncclEpInitHandle(&handle, &f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, bad[i], &mem),
				   INIT, "num_topk");
			cr_expect(!handle && bytes == 7);
		}
		f.group.cfg.num_topk = K - 1;
		EXPECT_USE(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, K), SIZE,
			   "num_topk");
		EXPECT_USE(create(NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL), CREATE, "num_topk");
	}
	setup(NCCL_EP_ALGO_LOW_LATENCY);
	EXPECT_ARG(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes, -1), SIZE, "num_topk");
	/* HT: -1 means config.num_topk if set, else all experts. */
	setup(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	EXPECT_OK(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_FLAT, NULL, &assumed, -1));
	EXPECT_OK(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_FLAT, NULL, &explicit_k, E));
	cr_expect_eq(assumed, explicit_k);
	f.group.cfg.num_topk = 6;
	EXPECT_OK(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_FLAT, NULL, &assumed, -1));
	EXPECT_OK(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_FLAT, NULL, &explicit_k, 6));
	cr_expect_eq(assumed, explicit_k);
}

Test(bad_args_handle, eager_expert_major)
{
	size_t bytes = 7;

	setup(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	f.group.cfg.max_recv = 0;
	EXPECT_USE(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, K), SIZE, "num_topk");
	EXPECT_USE(init_call(NULL), INIT, "num_topk");
	cr_expect_eq(bytes, 7);
	EXPECT_OK(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_FLAT, NULL, &bytes, K));
	f.group.cfg.num_topk = K;
	EXPECT_OK(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, K));
	EXPECT_OK(init_call(NULL));
}

Test(bad_args_handle, handle_mem)
{
	size_t need;

	for (int ht = 0; ht < 2; ht++) {
		setup((ncclEpAlgorithm_t)ht);
		walk_struct(&mem, 48, INIT, "handle_mem", init_call, init_good, NULL);
		for (int d = -1; d <= 13; d++) {
			mem.datatype = (ncclDataType_t)d;
			if (d != 1)
				EXPECT_ARG(init_call(NULL), INIT, "handle_mem");
		}
		mem.datatype = ncclUint8;
		mem.ndim = 2;
		EXPECT_ARG(init_call(NULL), INIT, "handle_mem");
		mem.ndim = 0;
		EXPECT_ARG(init_call(NULL), INIT, "handle_mem");
		mem.ndim = 1;
		mem.sizes = NULL;
		EXPECT_ARG(init_call(NULL), INIT, "handle_mem");
		mem.sizes = mem_sizes;
		mem.data = NULL;
		EXPECT_ARG(init_call(NULL), INIT, "handle_mem");
		mem.data = memory + 8;
		EXPECT_ARG(init_call(NULL), INIT, "handle_mem");
		mem.data = memory;
		EXPECT_OK(ncclEpHandleMemSize(&f.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &need, K));
		mem_sizes[0] = need - 1;
		EXPECT_ARG(init_call(NULL), INIT, "ncclEpHandleMemSize");
		mem_sizes[0] = need;
		EXPECT_OK(init_call(NULL));
		mem.data = NULL;
		mem.win_hdl = (ncclWindow_t)memory;
		EXPECT_OK(init_call(NULL));
		mem.win_offset = 8;
		EXPECT_ARG(init_call(NULL), INIT, "win_offset");
	}
}

Test(bad_args_handle, create_topk_idx)
{
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;

	for (int ht = 0; ht < 2; ht++) {
		setup((ncclEpAlgorithm_t)ht);
		walk_struct(&topk, 48, CREATE, "topk_idx", create_call, create_good, NULL);
		for (unsigned n = 0; n < 5; n++) {
			topk.ndim = n;
			if (n != 2)
				EXPECT_ARG(create_call(NULL), CREATE, "topk_idx");
		}
		topk.ndim = 2;
		topk.sizes = NULL;
		EXPECT_ARG(create_call(NULL), CREATE, "topk_idx");
		topk.sizes = topk_sizes;
		topk_sizes[1] = 0;
		EXPECT_ARG(create_call(NULL), CREATE, "topk_idx");
		topk_sizes[1] = (size_t)INT32_MAX + 1;
		EXPECT_ARG(create_call(NULL), CREATE, "topk_idx");
		topk_sizes[1] = K;
		topk_sizes[0] = TMAX + 1;
		EXPECT_ARG(create_call(NULL), CREATE, "topk_idx");
		topk_sizes[0] = TMAX;
		topk.datatype = ncclFloat32;
		EXPECT_ARG(create_call(NULL), CREATE, "topk_idx");
		topk.datatype = ncclInt32;
		topk.data = NULL;
		EXPECT_ARG(create_call(NULL), CREATE, "topk_idx");
		topk.data = memory;
		cr_expect_eq(create_good(NULL), 0);
	}
	setup(NCCL_EP_ALGO_LOW_LATENCY);
	EXPECT_ARG(create(NCCL_EP_LAYOUT_RANK_MAJOR, &info), CREATE, "layout_info");
	setup(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	info.magic = 0;
	EXPECT_ARG(create(NCCL_EP_LAYOUT_FLAT, &info), CREATE, "layout_info");
	fake_captured = true;
	EXPECT_USE(create_call(NULL), CREATE, "stream");
}

/* HT with num_topk -1: K comes from topk_idx, up to the handle's capacity. */
Test(bad_args_handle, update_room)
{
	_Alignas(16) struct ncclEpHandle handle = { .group = &f.group,
						    .args = { NCCL_EP_LAYOUT_FLAT, 1, -1, 4 },
						    .k = -1 };
	struct ep_update update;

	setup(NCCL_EP_ALGO_HIGH_THROUGHPUT);
	fake_live(EP_LIVE_HANDLE, &handle);
	topk_sizes[1] = 4;
	cr_expect_eq(ep_check_update("x", &handle, &topk, NULL, &update), 0);
	cr_expect(update.k == 4 && update.t == T && update.topk_idx == &topk);
	topk_sizes[1] = 5;
	EXPECT_USE(ncclEpUpdateHandle(&handle, &topk, NULL, NULL), "ncclEpUpdateHandle", "topk_idx");
	cr_expect(handle.k == -1 && !handle.updated);
}

/* An explicit rdma_buffer_size never grows. */
Test(bad_args_handle, window_too_small)
{
	setup(NCCL_EP_ALGO_LOW_LATENCY);
	f.group.cfg.rdma_buffer_size = f.window.size = 4096;
	EXPECT_USE(init_call(NULL), "rdma_buffer_size", "4096");
	f.group.cfg.rdma_buffer_size = f.window.size = 1 << 20;
	EXPECT_OK(init_call(NULL));
	/* The window does not grow during a staged operation either. */
	f.group.cfg.rdma_buffer_size = 0;
	f.window.size = 4096;
	f.group.staged = 1;
	EXPECT_USE(init_call(NULL), INIT, "staged");
}
