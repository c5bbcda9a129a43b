/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <string.h>

#include "plugin/check/check.h"
#include "plugin/check/tensor.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "util/error.h"

#define FN "ncclEpCreateGroup"

/* HT copies rows in 16-byte units through its staging. */
#define HT_ROW_UNIT 16

static int group_numbers(const ncclEpGroupConfig_t *c)
{
	static const struct {
		const char *name;
		size_t offset;
		unsigned min, max;
	} rows[] = {
#define ROW(field, min, max) { "config->" #field, offsetof(ncclEpGroupConfig_t, field), min, max }
		ROW(version, 1, UINT_MAX), /* a newer caller's tail is ignored, as its structs are built for */
		ROW(algorithm, 0, NCCL_EP_ALGO_HIGH_THROUGHPUT),
		ROW(num_experts, 1, INT_MAX), /* ids travel as int32 */
		ROW(max_dispatch_tokens_per_rank, 1, INT_MAX),
		ROW(max_recv_tokens_per_rank, 0, INT_MAX),
		ROW(max_token_bytes, 1, UINT_MAX),
		ROW(zero_copy, 0, NCCL_EP_ZERO_COPY_ON),
		ROW(overflow_policy, 0, NCCL_EP_OVERFLOW_DROP),
		ROW(num_topk, 0, INT_MAX),
#undef ROW
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		unsigned value;

		memcpy(&value, (const char *)c + rows[i].offset, sizeof(value));
		if (value < rows[i].min || value > rows[i].max)
			return EP_BAD_ARG(FN ": %s is %u, must be %u to %u", rows[i].name, value, rows[i].min,
					  rows[i].max);
	}
	return 0;
}

static int group_ht(const ncclEpGroupConfig_t *c)
{
	unsigned recv = c->max_recv_tokens_per_rank;

	if (recv && recv < c->max_dispatch_tokens_per_rank)
		return EP_BAD_ARG(FN ": config->max_recv_tokens_per_rank is %u, must be at least "
				     "max_dispatch_tokens_per_rank = %u, or NCCL_EP_AUTO",
				  recv, c->max_dispatch_tokens_per_rank);
	if (c->max_token_bytes % HT_ROW_UNIT)
		return EP_BAD_ARG(FN ": config->max_token_bytes is %u, must be a multiple of %d", c->max_token_bytes,
				  HT_ROW_UNIT);
	if (!recv && c->overflow_policy == NCCL_EP_OVERFLOW_DROP)
		return EP_BAD_ARG(
			FN ": config->overflow_policy is DROP, which needs a capacity: set max_recv_tokens_per_rank");
	if (c->enable_mask)
		return EP_BAD_USE(FN ": config->enable_mask: HT has no masks yet; use LL or 0");
	return 0;
}

static void group_normal(const ncclEpGroupConfig_t *c, struct ep_group_cfg *cfg)
{
	bool ht = c->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT;

	*cfg = (struct ep_group_cfg){
		.version = c->version,
		.algorithm = c->algorithm,
		.num_experts = c->num_experts,
		.max_dispatch = c->max_dispatch_tokens_per_rank,
		.max_recv = ht ? c->max_recv_tokens_per_rank : 0,
		.max_token_bytes = c->max_token_bytes,
		.rdma_buffer_size = ht ? 0 : c->rdma_buffer_size,
		.num_qp_per_rank = c->num_qp_per_rank,
		.num_channels = c->num_channels,
		.max_num_sms = c->max_num_sms,
		.enable_mask = c->enable_mask != 0,
		.timeout_ns = c->timeout_ns,
		.zero_copy = c->zero_copy,
		.overflow = c->overflow_policy == NCCL_EP_OVERFLOW_DROP ? NCCL_EP_OVERFLOW_DROP : NCCL_EP_OVERFLOW_TRAP,
		.num_topk = c->num_topk,
		.dispatch_num_sms = c->dispatch_num_sms,
		.combine_num_sms = c->combine_num_sms,
	};
}

int ep_check_group(const ncclEpGroupConfig_t *config, struct ep_group_cfg *cfg, ncclEpAllocConfig_t *alloc)
{
	ncclEpGroupConfig_t c;
	int rc;

	if ((rc = ep_struct_take(EP_S_GROUP_CONFIG, FN, "config", config, &c)) || (rc = group_numbers(&c)))
		return rc;
	if (!c.alloc.alloc_fn != !c.alloc.free_fn)
		return EP_BAD_ARG(FN ": config->alloc: %s is NULL: pass both functions or neither",
				  c.alloc.alloc_fn ? "free_fn" : "alloc_fn");
	if (c.algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT && (rc = group_ht(&c)))
		return rc;
	group_normal(&c, cfg);
	*alloc = c.alloc;
	return 0;
}

static int topk_check(const char *fn, const struct ep_group_cfg *cfg, int num_topk, struct ep_handle_args *out)
{
	bool ht = cfg->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT;

	if (num_topk < 1 && !(ht && num_topk == -1))
		return EP_BAD_ARG("%s: num_topk is %d, must be at least 1%s", fn, num_topk,
				  ht ? ", or -1 to take it from topk_idx" : "");
	if (cfg->num_topk && num_topk > (int)cfg->num_topk)
		return EP_BAD_USE("%s: num_topk is %d, but the group was made for at most %u (config.num_topk)", fn,
				  num_topk, cfg->num_topk);
	out->k = num_topk;
	out->room = num_topk > 0 ? num_topk : (int)(cfg->num_topk ? cfg->num_topk : cfg->num_experts);
	return 0;
}

int ep_check_handle(const char *fn, const struct ncclEpGroup *group, ncclEpLayout_t layout,
		    const ncclEpHandleConfig_t *config, int num_topk, struct ep_handle_args *out)
{
	bool ht = ep_group_ht(group);
	ncclEpHandleConfig_t c;
	size_t align;
	int rc;

	if (layout != NCCL_EP_LAYOUT_EXPERT_MAJOR && layout != (ht ? NCCL_EP_LAYOUT_FLAT : NCCL_EP_LAYOUT_RANK_MAJOR))
		return EP_BAD_ARG("%s: layout is %d, must be NCCL_EP_LAYOUT_EXPERT_MAJOR or NCCL_EP_LAYOUT_%s in %s",
				  fn, (int)layout, ht ? "FLAT" : "RANK_MAJOR", ht ? "HT" : "LL");
	if ((rc = ep_struct_take_opt(EP_S_HANDLE_CONFIG, fn, "config", config, &c)) ||
	    (rc = topk_check(fn, &group->cfg, num_topk, out)))
		return rc;
	align = c.dispatch_output_per_expert_alignment;
	if (align & (align - 1))
		return EP_BAD_ARG("%s: config->dispatch_output_per_expert_alignment is %zu, must be a power of two, or "
				  "0",
				  fn, align);
	if (ht && layout == NCCL_EP_LAYOUT_EXPERT_MAJOR && !group->cfg.max_recv && !group->cfg.num_topk)
		return EP_BAD_USE("%s: layout: expert-major in eager mode (max_recv_tokens_per_rank AUTO) needs "
				  "config.num_topk at ncclEpCreateGroup",
				  fn);
	out->layout = layout;
	out->alignment = align ? align : 1;
	return 0;
}

int ep_check_handle_mem(const ncclEpTensor_t *handle_mem, size_t need)
{
	static const char *const names[] = { "handle_mem" };
	static const struct ep_slot slot = {
		.need = EP_REQUIRED, .ndim = 1, .dtypes = EP_DT(ncclUint8), .dim = { EP_D_N }
	};
	struct ep_env env = { .fn = "ncclEpInitHandle",
			      .mode = "handle memory",
			      .names = names,
			      .rows = -1,
			      .sym = { [EP_D_N] = { true, need, "ncclEpHandleMemSize" } } };
	const ncclEpTensor_t *tensors[] = { handle_mem };
	int rc = ep_slots_check(&env, &slot, 1, tensors);

	/* Its parts are read as 8-byte words and copied as 16-byte vectors. */
	if (!rc && !handle_mem->win_hdl && (uintptr_t)handle_mem->data % 16)
		return EP_BAD_ARG("ncclEpInitHandle: handle_mem: data must be 16-byte aligned");
	return rc;
}

int ep_check_mask(const char *fn, const struct ncclEpGroup *group, const int *update)
{
	if (!group->cfg.enable_mask)
		return EP_BAD_USE("%s: group: was made without enable_mask, so it has no masks", fn);
	for (int r = 0; update && r < group->nranks; r++)
		if (update[r] != 0 && update[r] != 1)
			return EP_BAD_ARG("%s: mask[%d] is %d, must be 0 or 1", fn, r, update[r]);
	return 0;
}
