/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of handle memory and windows: the formulas of plugin/group/plan.h, computed by hand for a small group. */
#include "bad_args.h"
#include "plugin/group/grow.h"
#include "plugin/ht/plan.h"
#include "plugin/ll/plan.h"

TestSuite(handle_plan, .timeout = 30, .init = bad_args_quiet);

static const struct {
	const char *what;
	int ht;
	ncclEpLayout_t layout;
	unsigned max_recv;
	size_t alignment, bytes;
} rows[] = {
	/* header 256, routing arrays of 8*3*4 -> 128 each, then lines by rank and by expert */
	{ "flat", 1, NCCL_EP_LAYOUT_FLAT, N, 1, 256 + 5 * 128 },
	{ "flat, alignment does not count", 1, NCCL_EP_LAYOUT_FLAT, N, 4096, 256 + 5 * 128 },
	{ "flat, eager", 1, NCCL_EP_LAYOUT_FLAT, 0, 1, 256 + 5 * 128 },
	{ "expert-major", 1, NCCL_EP_LAYOUT_EXPERT_MAJOR, N, 1, 256 + 9 * 128 },
	{ "expert-major, padded", 1, NCCL_EP_LAYOUT_EXPERT_MAJOR, N, 128, 256 + 9 * 128 },
	{ "LL expert-major: 48 rows of 16 bytes", 0, NCCL_EP_LAYOUT_EXPERT_MAJOR, 0, 1, 256 + 2 * 128 + 768 },
	{ "LL rank-major", 0, NCCL_EP_LAYOUT_RANK_MAJOR, 0, 1, 256 + 2 * 128 + 768 },
};

Test(handle_plan, handle_bytes)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
		size_t bytes = 0;
		struct fake f;

		fake_init(&f, (ncclEpAlgorithm_t)rows[i].ht);
		f.group.cfg.max_recv = rows[i].max_recv;
		f.group.cfg.num_topk = K;
		config.dispatch_output_per_expert_alignment = rows[i].alignment;
		EXPECT_OK(ncclEpHandleMemSize(&f.group, rows[i].layout, &config, &bytes, K));
		cr_expect_eq(bytes, rows[i].bytes, "%s: %zu bytes, must be %zu", rows[i].what, bytes, rows[i].bytes);
	}
}

Test(handle_plan, parts_do_not_overlap)
{
	struct ep_handle_args args = { NCCL_EP_LAYOUT_EXPERT_MAJOR, 128, K, K };
	struct ep_ht_mem p;
	struct fake f;

	fake_init(&f, NCCL_EP_ALGO_HIGH_THROUGHPUT);
	f.group.cfg.max_dispatch = 1000;
	cr_assert_eq(ep_ht_mem("x", &f.group, &args, &p), 0);
	cr_expect(p.from >= 256 && p.zone >= p.from + R * 8 && p.area >= p.zone + R * EL * 8);
	cr_expect(p.filled >= p.area + EL * 8 && p.routed >= p.filled + EL * 4);
	cr_expect_geq(p.total, p.routed + 5 * 1000 * K * 4);
	cr_expect_eq((p.from | p.zone | p.area | p.filled | p.routed | p.total) % 128, 0);
}

/* N = 24 rows, tokens of 4096 bytes; R * Tmax = 16. */
Test(handle_plan, ht_window_bytes)
{
	struct ep_handle_args args = { NCCL_EP_LAYOUT_FLAT, 1, K, K };
	struct ep_ht_window p;
	struct fake f;

	fake_init(&f, NCCL_EP_ALGO_HIGH_THROUGHPUT);
	fake_nodes(&f)->near = false;
	f.group.cfg.max_recv = 24;
	cr_assert_eq(ep_ht_window("x", &f.group, &args, &p), 0);
	cr_expect_eq(p.total, 896 + 24 * 4096, "24 * (8 + 8 * 3) rounded, and a combine's rows: %zu", p.total);
	args.layout = NCCL_EP_LAYOUT_EXPERT_MAJOR;
	cr_assert_eq(ep_ht_window("x", &f.group, &args, &p), 0);
	cr_expect_eq(p.total, 128 + 24 * 4096, "24 weights rounded: %zu", p.total);
	f.group.cfg.max_recv = 0;
	args.alignment = 16;
	cr_assert_eq(ep_ht_window("x", &f.group, &args, &p), 0);
	cr_expect(p.row_count == 16 * 3 + 4 * 15 && p.total == 512 + p.row_count * 4096, "%zu", p.total);
	fake_nodes(&f)->near = true;
	cr_assert_eq(ep_ht_window("x", &f.group, &args, &p), 0);
	cr_expect_eq(p.total, 512, "threads access each other's tensors: %zu", p.total);
	f.group.cfg.zero_copy = NCCL_EP_ZERO_COPY_OFF;
	cr_assert_eq(ep_ht_window("x", &f.group, &args, &p), 0);
	cr_expect_eq(p.total, 512 + p.row_count * 4096, "but must not: %zu", p.total);
}

Test(handle_plan, window_bytes)
{
	struct ep_handle_args args = { NCCL_EP_LAYOUT_EXPERT_MAJOR, 1, K, K };
	struct ep_need p;
	struct fake f;

	fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
	cr_assert_eq(ep_ll_need("x", &f.group, &args, &p), 0);
	/* 8 * 3 rows of 16 + 4096 are more than 2 * (128 + 8 * 4352): 16 + 128 + 4096 in lines of 128 */
	cr_expect_eq(p.window, 2 * 98688, "%zu", p.window);
	f.group.cfg.enable_mask = 1;
	cr_assert_eq(ep_ll_need("x", &f.group, &args, &p), 0);
	cr_expect_eq(p.window, 2 * 197376, "by writer: 2 * 8 * 3 rows, %zu", p.window);
	f.group.cfg.enable_mask = 0;
	args.room = args.k = 1;
	cr_assert_eq(ep_ll_need("x", &f.group, &args, &p), 0);
	cr_expect_eq(p.window, 2 * 69888, "2 * (128 + 8 * 4352): %zu", p.window);
}

/* Memory of the link: two buffers each of what arrives and of what leaves, the latter with a part per remote rank. What
 * is left over when it is divided stays unused. */
Test(handle_plan, far_bytes)
{
	struct ep_handle_args args = { NCCL_EP_LAYOUT_EXPERT_MAJOR, 1, K, K };
	struct ep_link link = { .near = 1, .far = 3 };
	struct ep_far far = { .ring = NULL };
	struct ep_need p;
	struct fake f;

	fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
	f.group.nranks = 4;
	f.group.link = &link;
	cr_assert_eq(ep_ll_need("x", &f.group, &args, &p), 0);
	cr_expect_eq(p.far_window, 2 * 104832, "3 * (128 + 8 * 4352): %zu", p.far_window);
	cr_expect_eq(p.far_send, 2 * 3 * 98688, "3 * 8 * 3 rows of 16 + 4096: %zu", p.far_send);
	link.window_bytes = p.far_window + 128;
	link.send_bytes = p.far_send + 2 * 3 * 64;
	cr_expect(ep_group_holds(&f.group, &p));
	ep_ll_far_divide(&f.group, &far);
	cr_expect(far.window_bytes == 104832 && far.send_stride == 98688 && far.send_bytes == 3 * 98688,
		  "%llu, %llu, %llu", (unsigned long long)far.window_bytes, (unsigned long long)far.send_stride,
		  (unsigned long long)far.send_bytes);
	link.send_bytes = p.far_send - 128;
	cr_expect(!ep_group_holds(&f.group, &p), "what leaves does not fit");
}

/* O((R + K) * Tmax) rows; a window of O(E * R * Tmax) rows would take 15 GiB. */
Test(handle_plan, window_stays_small)
{
	struct ep_handle_args args = { NCCL_EP_LAYOUT_EXPERT_MAJOR, 1, 8, 8 };
	struct ep_need p;
	struct fake f;

	fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
	f.group.nranks = 8;
	f.group.cfg.num_experts = 288;
	f.group.experts_per_rank = 36;
	f.group.cfg.max_dispatch = 1024;
	f.group.cfg.max_token_bytes = 14336;
	cr_assert_eq(ep_ll_need("x", &f.group, &args, &p), 0);
	cr_expect_lt(p.window, (size_t)256 << 20, "%zu", p.window);
}

Test(handle_plan, overflow)
{
	struct ep_handle_args args = { NCCL_EP_LAYOUT_EXPERT_MAJOR, 1, INT32_MAX, INT32_MAX };
	struct ep_ll_mem handle = { .total = 7 };
	struct ep_need window = { .window = 7 };
	struct fake f;

	fake_init(&f, NCCL_EP_ALGO_LOW_LATENCY);
	f.group.cfg.max_dispatch = INT32_MAX;
	f.group.experts_per_rank = INT32_MAX;
	f.group.nranks = 65536;
	cr_expect_eq(ep_ll_mem("fn", &f.group, &args, &handle), -EP_EUSAGE);
	cr_expect_eq(ep_ll_need("fn", &f.group, &args, &window), -EP_EUSAGE);
	cr_expect(handle.total == 7 && window.window == 7, "written on failure");
	cr_expect(strstr(anyEpGetLastError(), "2^64"));
}
