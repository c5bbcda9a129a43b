/* SPDX-License-Identifier: Apache-2.0 */
/* One operation (update, dispatch or combine) with all its arguments, for the walk over its tensors. */
#ifndef EP_TEST_BAD_ARGS_OP_H
#define EP_TEST_BAD_ARGS_OP_H

#include "bad_args.h"

enum tensor_id {
	IN_TOKENS,
	IN_WEIGHTS,
	IN_SCALES,
	OUT_TOKENS,
	OUT_WEIGHTS,
	OUT_SCALES,
	OUT_IDX,
	INFO_COUNTERS,
	INFO_SRC,
	INFO_OFFSETS,
	INFO_TOTAL,
	COMB_IN,
	COMB_IN_WEIGHTS,
	COMB_IN_SCALES,
	COMB_OUT,
	COMB_OUT_WEIGHTS,
	TOPK,
	TENSOR_IDS
};

/*
 * The contract of a tensor. need: r required, o optional, f forbidden, i ignored. Each letter of rule is a dimension: x
 * exactly its size, n and m at least its size (m is below Tmax), a any, t up to Tmax.
 */
struct spec {
	enum tensor_id id;
	const char *name;
	char need;
	ncclDataType_t dtype;
	unsigned allowed; /* bit per dtype */
	bool alike;	  /* another tensor must have the same dtype */
	const char *rule;
	size_t dim[3];
};

enum kind { UPDATE, DISPATCH, COMBINE };

struct mode {
	const char *name;
	enum kind kind;
	ncclEpAlgorithm_t algorithm;
	ncclEpLayout_t layout;
	ncclEpPassDir_t pass;
	ncclEpDispQuant_t quant;
	const struct spec *spec;
	size_t count;
};

struct op {
	const struct mode *mode;
	struct fake fake;
	struct ncclEpHandle *handle;
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info;
	ncclEpDispatchConfig_t cfg;
	ncclEpCombineInputs_t comb_in;
	ncclEpCombineOutputs_t comb_out;
	ncclEpCombineConfig_t comb_cfg;
	ncclEpTensor_t *topk;
	bool use_info; /* pass layout_info */
	ncclEpTensor_t tensor[TENSOR_IDS];
	size_t sizes[TENSOR_IDS][3];
};

static _Alignas(16) unsigned char op_data[64];

static const char *const op_fn[] = {
	[UPDATE] = "ncclEpUpdateHandle", [DISPATCH] = "ncclEpDispatch", [COMBINE] = "ncclEpCombine"
};

static inline ncclEpTensor_t **op_slot(struct op *op, enum tensor_id id)
{
	ncclEpTensor_t **slot[TENSOR_IDS] = {
		[IN_TOKENS] = &op->in.tokens,
		[IN_WEIGHTS] = &op->in.topk_weights,
		[IN_SCALES] = &op->in.scales,
		[OUT_TOKENS] = &op->out.tokens,
		[OUT_WEIGHTS] = &op->out.topk_weights,
		[OUT_SCALES] = &op->out.scales,
		[OUT_IDX] = &op->out.topk_idx,
		[INFO_COUNTERS] = &op->info.expert_counters,
		[INFO_SRC] = &op->info.src_rank_counters,
		[INFO_OFFSETS] = &op->info.expert_offsets,
		[INFO_TOTAL] = &op->info.recv_total_counter,
		[COMB_IN] = &op->comb_in.tokens,
		[COMB_IN_WEIGHTS] = &op->comb_in.topk_weights,
		[COMB_IN_SCALES] = &op->comb_in.scales,
		[COMB_OUT] = &op->comb_out.tokens,
		[COMB_OUT_WEIGHTS] = &op->comb_out.topk_weights,
		[TOPK] = &op->topk,
	};

	return slot[id];
}

static inline void op_tensor(struct op *op, const struct spec *s)
{
	memcpy(op->sizes[s->id], s->dim, sizeof(s->dim));
	op->tensor[s->id] = (ncclEpTensor_t){ NCCL_EP_TENSOR_INIT_INLINE, .ndim = (unsigned)strlen(s->rule),
					      .datatype = s->dtype, .data = op_data, .sizes = op->sizes[s->id] };
	*op_slot(op, s->id) = &op->tensor[s->id];
}

static inline int op_good(void *ctx)
{
	struct op *op = ctx;
	const ncclEpLayoutInfo_t *info = op->use_info ? &op->info : NULL;
	struct ep_update update;
	struct ep_dispatch dispatch;
	struct ep_combine combine;

	ep_last_error_set("");
	if (op->mode->kind == UPDATE)
		return ep_check_update(op_fn[UPDATE], op->handle, op->topk, info, &update);
	if (op->mode->kind == DISPATCH)
		return ep_check_dispatch(op->handle, &op->in, &op->out, info, &op->cfg, &dispatch);
	return ep_check_combine(op->handle, &op->comb_in, &op->comb_out, &op->comb_cfg, &combine);
}

/* Through the public functions: a rejected call must have no effect. */
static inline ncclResult_t op_call(void *ctx)
{
	struct op *op = ctx;
	const ncclEpLayoutInfo_t *info = op->use_info ? &op->info : NULL;

	ep_last_error_set("");
	if (op->mode->kind == UPDATE)
		return ncclEpUpdateHandle(op->handle, op->topk, info, NULL);
	if (op->mode->kind == DISPATCH)
		return ncclEpDispatch(op->handle, &op->in, &op->out, info, &op->cfg, NULL);
	return ncclEpCombine(op->handle, &op->comb_in, &op->comb_out, &op->comb_cfg, NULL);
}

/* A handle after Update and dispatch, in caller's memory, and the arguments of a valid call. */
static inline void op_init(struct op *op, const struct mode *mode)
{
	static size_t room[1] = { 1 << 20 };
	ncclEpTensor_t mem = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 1, .datatype = ncclUint8, .data = op_data,
			       .sizes = room };

	memset(op, 0, sizeof(*op));
	memset(op_data, 0x5A, sizeof(op_data));
	op->mode = mode;
	fake_init(&op->fake, mode->algorithm);
	op->in = NCCL_EP_DISPATCH_INPUTS_INIT;
	op->out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	op->info = NCCL_EP_LAYOUT_INFO_INIT;
	op->cfg = NCCL_EP_DISPATCH_CONFIG_INIT;
	op->cfg.pass_direction = mode->pass;
	op->cfg.quant_recipe = mode->quant;
	op->comb_in = NCCL_EP_COMBINE_INPUTS_INIT;
	op->comb_out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	op->comb_cfg = NCCL_EP_COMBINE_CONFIG_INIT;
	op->comb_cfg.pass_direction = mode->pass;
	op->use_info = (mode->kind == DISPATCH && mode->pass == NCCL_EP_FWD_PASS) ||
		       (mode->kind == UPDATE && mode->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT);
	cr_assert_eq(ncclEpInitHandle(&op->handle, &op->fake.group, mode->layout, NULL, K, &mem), ncclSuccess, "%s",
		     anyEpGetLastError());
	op->handle->t = T;
	op->handle->updated = op->handle->dispatched = true;
	for (size_t i = 0; i < mode->count; i++)
		if (mode->spec[i].need == 'r' || mode->spec[i].need == 'o')
			op_tensor(op, &mode->spec[i]);
	cr_assert_eq(op_good(op), 0, "%s: the good call fails: %s", mode->name, anyEpGetLastError());
}

static inline void op_free(struct op *op)
{
	for (size_t i = 0; i < sizeof(op_data); i++)
		cr_expect_eq(op_data[i], 0x5A, "%s: data was written", op->mode->name);
	cr_expect_eq(ncclEpHandleDestroy(op->handle), ncclSuccess);
}

/* ---- the contract's table, in numbers; T, K, H, ... are in bad_args.h ---- */

/* clang-format off */
#define BIT(d) (1u << (d))
#define TOK (BIT(6) | BIT(7) | BIT(9))			       /* fp16, fp32, bf16 */
#define FWD (TOK | BIT(10) | BIT(11) | BIT(12))		       /* and the narrow ones */
#define I32 BIT(2)
#define I64 BIT(4)
#define F32_ ncclFloat32, BIT(7), false
#define BF16_ ncclBfloat16, TOK, true
#define MODE(n, kind, algo, layout, pass, quant, s) \
	{ n, kind, NCCL_EP_ALGO_##algo, NCCL_EP_LAYOUT_##layout, NCCL_EP_##pass##_PASS, NCCL_EP_DISP_QUANT_##quant, s, \
	  sizeof(s) / sizeof((s)[0]) }
#define F(id, name) { id, name, 'f', ncclFloat32, 0, false, "xx", { T, K } }
#define I(id, name) { id, name, 'i', ncclFloat32, 0, false, "xx", { T, K } }

static const struct spec update_ll[] = {
	{ TOPK, "topk_idx", 'r', ncclInt64, I32 | I64, false, "tx", { T, K } },
};
static const struct spec update_flat[] = {
	{ TOPK, "topk_idx", 'r', ncclInt32, I32 | I64, false, "tx", { T, K } },
	{ INFO_COUNTERS, "layout_info->expert_counters", 'o', ncclInt32, I32, false, "x", { EL } },
	{ INFO_TOTAL, "layout_info->recv_total_counter", 'o', ncclInt64, I32 | I64, false, "x", { 1 } },
	I(INFO_SRC, ""), I(INFO_OFFSETS, ""),
};
static const struct spec update_expert[] = {
	{ TOPK, "topk_idx", 'r', ncclInt32, I32 | I64, false, "tx", { T, K } },
	{ INFO_COUNTERS, "layout_info->expert_counters", 'o', ncclInt64, I32 | I64, true, "x", { EL } },
	{ INFO_OFFSETS, "layout_info->expert_offsets", 'o', ncclInt64, I32 | I64, true, "x", { EL } },
	{ INFO_TOTAL, "layout_info->recv_total_counter", 'o', ncclInt64, I32 | I64, true, "x", { 1 } },
	I(INFO_SRC, ""),
};
#define IGNORED_INFO I(INFO_COUNTERS, ""), I(INFO_SRC, ""), I(INFO_OFFSETS, ""), I(INFO_TOTAL, "")
static const struct spec disp_ll_expert[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', BF16_, "xx", { T, H } },
	{ OUT_TOKENS, "outputs->tokens", 'r', BF16_, "xxx", { EL, R * TMAX, H } },
	{ INFO_COUNTERS, "layout_info->expert_counters", 'r', ncclInt32, I32, false, "x", { EL } },
	F(IN_WEIGHTS, "inputs->topk_weights"), F(IN_SCALES, "inputs->scales"), F(OUT_WEIGHTS, "outputs->topk_weights"),
	F(OUT_SCALES, "outputs->scales"), F(OUT_IDX, "outputs->topk_idx"),
	I(INFO_SRC, ""), I(INFO_OFFSETS, ""), I(INFO_TOTAL, ""),
};
static const struct spec disp_ll_ds[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', ncclBfloat16, BIT(9), false, "xx", { T, H } },
	{ OUT_TOKENS, "outputs->tokens", 'r', ncclFloat8e4m3, BIT(10), false, "xxx", { EL, R * TMAX, H } },
	{ OUT_SCALES, "outputs->scales", 'r', F32_, "xxx", { EL, R * TMAX, H / 128 } },
	{ INFO_COUNTERS, "layout_info->expert_counters", 'r', ncclInt32, I32, false, "x", { EL } },
	F(IN_WEIGHTS, "inputs->topk_weights"), F(IN_SCALES, "inputs->scales"), F(OUT_WEIGHTS, "outputs->topk_weights"),
	F(OUT_IDX, "outputs->topk_idx"),
};
static const struct spec disp_ll_rank[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', BF16_, "xx", { T, H } },
	{ IN_WEIGHTS, "inputs->topk_weights", 'r', F32_, "xx", { T, K } },
	{ OUT_TOKENS, "outputs->tokens", 'r', BF16_, "xxx", { R, TMAX, H } },
	{ OUT_WEIGHTS, "outputs->topk_weights", 'r', F32_, "xxx", { R, TMAX, K } },
	{ OUT_IDX, "outputs->topk_idx", 'r', ncclInt32, I32, false, "xxx", { R, TMAX, K } },
	{ INFO_SRC, "layout_info->src_rank_counters", 'o', ncclInt32, I32, false, "x", { R } },
	F(IN_SCALES, "inputs->scales"), F(OUT_SCALES, "outputs->scales"),
	I(INFO_COUNTERS, ""), I(INFO_OFFSETS, ""), I(INFO_TOTAL, ""),
};
static const struct spec disp_ll_rank_ds[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', ncclBfloat16, BIT(9), false, "xx", { T, H } },
	{ IN_WEIGHTS, "inputs->topk_weights", 'r', F32_, "xx", { T, K } },
	{ OUT_TOKENS, "outputs->tokens", 'r', ncclFloat8e4m3, BIT(10), false, "xxx", { R, TMAX, H } },
	{ OUT_WEIGHTS, "outputs->topk_weights", 'r', F32_, "xxx", { R, TMAX, K } },
	{ OUT_SCALES, "outputs->scales", 'r', F32_, "xxx", { R, TMAX, H / 128 } },
	{ OUT_IDX, "outputs->topk_idx", 'r', ncclInt32, I32, false, "xxx", { R, TMAX, K } },
	F(IN_SCALES, "inputs->scales"),
};
static const struct spec disp_ll_fwd[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', ncclFloat4x2, FWD, true, "xx", { T, H / 2 } },
	{ IN_WEIGHTS, "inputs->topk_weights", 'r', F32_, "xx", { T, K } },
	{ IN_SCALES, "inputs->scales", 'r', ncclUint8, FWD | BIT(1), true, "xx", { T, 32 } },
	{ OUT_TOKENS, "outputs->tokens", 'r', ncclFloat4x2, FWD, true, "xxx", { R, TMAX, H / 2 } },
	{ OUT_WEIGHTS, "outputs->topk_weights", 'r', F32_, "xxx", { R, TMAX, K } },
	{ OUT_SCALES, "outputs->scales", 'r', ncclUint8, FWD | BIT(1), true, "xxx", { R, TMAX, 32 } },
	{ OUT_IDX, "outputs->topk_idx", 'r', ncclInt32, I32, false, "xxx", { R, TMAX, K } },
};
static const struct spec disp_flat[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', BF16_, "xx", { T, H } },
	{ IN_WEIGHTS, "inputs->topk_weights", 'r', F32_, "xx", { T, K } },
	{ OUT_TOKENS, "outputs->tokens", 'r', BF16_, "nx", { N, H } },
	{ OUT_WEIGHTS, "outputs->topk_weights", 'r', F32_, "nx", { N, K } },
	{ OUT_IDX, "outputs->topk_idx", 'r', ncclInt64, I64, false, "nx", { N, K } },
	F(IN_SCALES, "inputs->scales"), F(OUT_SCALES, "outputs->scales"), IGNORED_INFO,
};
static const struct spec disp_flat_fwd[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', ncclFloat8e5m2, FWD, true, "xx", { T, H } },
	{ IN_WEIGHTS, "inputs->topk_weights", 'r', F32_, "xx", { T, K } },
	{ IN_SCALES, "inputs->scales", 'r', ncclFloat32, FWD | BIT(1), true, "xx", { T, 4 } },
	{ OUT_TOKENS, "outputs->tokens", 'r', ncclFloat8e5m2, FWD, true, "xx", { N, H } },
	{ OUT_WEIGHTS, "outputs->topk_weights", 'r', F32_, "nx", { N, K } },
	{ OUT_SCALES, "outputs->scales", 'r', ncclFloat32, FWD | BIT(1), true, "xx", { N, 4 } },
	{ OUT_IDX, "outputs->topk_idx", 'r', ncclInt64, I64, false, "nx", { N, K } },
};
static const struct spec disp_expert[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', BF16_, "xx", { T, H } },
	{ IN_WEIGHTS, "inputs->topk_weights", 'r', F32_, "xx", { T, K } },
	{ OUT_TOKENS, "outputs->tokens", 'r', BF16_, "nx", { N, H } },
	{ OUT_WEIGHTS, "outputs->topk_weights", 'r', F32_, "n", { N } },
	{ INFO_COUNTERS, "layout_info->expert_counters", 'o', ncclInt64, I32 | I64, true, "m", { EL } },
	{ INFO_OFFSETS, "layout_info->expert_offsets", 'o', ncclInt64, I32 | I64, true, "m", { EL } },
	{ INFO_TOTAL, "layout_info->recv_total_counter", 'o', ncclInt64, I32 | I64, true, "m", { 1 } },
	F(OUT_IDX, "outputs->topk_idx"), F(IN_SCALES, "inputs->scales"), F(OUT_SCALES, "outputs->scales"),
	I(INFO_SRC, ""),
};
static const struct spec disp_backward[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', BF16_, "xx", { T, H } },
	{ OUT_TOKENS, "outputs->tokens", 'r', BF16_, "nx", { N, H } },
	F(IN_WEIGHTS, "inputs->topk_weights"), F(OUT_WEIGHTS, "outputs->topk_weights"), F(OUT_IDX, "outputs->topk_idx"),
	F(IN_SCALES, "inputs->scales"), F(OUT_SCALES, "outputs->scales"),
};
static const struct spec disp_backward_fwd[] = {
	{ IN_TOKENS, "inputs->tokens", 'r', ncclFloat8e4m3, FWD, true, "xx", { T, H } },
	{ IN_SCALES, "inputs->scales", 'r', ncclUint8, FWD | BIT(1), true, "xx", { T, H / 32 } },
	{ OUT_TOKENS, "outputs->tokens", 'r', ncclFloat8e4m3, FWD, true, "xx", { N, H } },
	{ OUT_SCALES, "outputs->scales", 'r', ncclUint8, FWD | BIT(1), true, "xx", { N, H / 32 } },
	F(IN_WEIGHTS, "inputs->topk_weights"), F(OUT_WEIGHTS, "outputs->topk_weights"), F(OUT_IDX, "outputs->topk_idx"),
};
static const struct spec comb_ll_expert[] = {
	{ COMB_IN, "inputs->tokens", 'r', BF16_, "xxx", { EL, R * TMAX, H } },
	{ COMB_OUT, "outputs->tokens", 'r', BF16_, "xx", { T, H } },
	{ COMB_OUT_WEIGHTS, "outputs->topk_weights", 'r', F32_, "xx", { T, K } },
	F(COMB_IN_SCALES, "inputs->scales"), I(COMB_IN_WEIGHTS, ""),
};
static const struct spec comb_ll_rank[] = {
	{ COMB_IN, "inputs->tokens", 'r', BF16_, "xxx", { R, TMAX, H } },
	{ COMB_OUT, "outputs->tokens", 'r', BF16_, "xx", { T, H } },
	F(COMB_IN_SCALES, "inputs->scales"), I(COMB_IN_WEIGHTS, ""), I(COMB_OUT_WEIGHTS, ""),
};
static const struct spec comb_ht[] = {
	{ COMB_IN, "inputs->tokens", 'r', BF16_, "ax", { 7, H } },
	{ COMB_OUT, "outputs->tokens", 'r', BF16_, "xx", { T, H } },
	F(COMB_IN_SCALES, "inputs->scales"), F(COMB_IN_WEIGHTS, "inputs->topk_weights"), I(COMB_OUT_WEIGHTS, ""),
};
static const struct spec comb_flat_bwd[] = {
	{ COMB_IN, "inputs->tokens", 'r', BF16_, "ax", { 7, H } },
	{ COMB_IN_WEIGHTS, "inputs->topk_weights", 'r', F32_, "ax", { 7, K } },
	{ COMB_OUT, "outputs->tokens", 'r', BF16_, "xx", { T, H } },
	{ COMB_OUT_WEIGHTS, "outputs->topk_weights", 'r', F32_, "xx", { T, K } },
	F(COMB_IN_SCALES, "inputs->scales"),
};
static const struct spec comb_expert_bwd[] = {
	{ COMB_IN, "inputs->tokens", 'r', BF16_, "ax", { 7, H } },
	{ COMB_IN_WEIGHTS, "inputs->topk_weights", 'r', F32_, "a", { 7 } },
	{ COMB_OUT, "outputs->tokens", 'r', BF16_, "xx", { T, H } },
	{ COMB_OUT_WEIGHTS, "outputs->topk_weights", 'r', F32_, "xx", { T, K } },
	F(COMB_IN_SCALES, "inputs->scales"),
};

static const struct mode modes[] = {
	MODE("update LL expert-major", UPDATE, LOW_LATENCY, EXPERT_MAJOR, FWD, NONE, update_ll),
	MODE("update LL rank-major", UPDATE, LOW_LATENCY, RANK_MAJOR, FWD, NONE, update_ll),
	MODE("update HT flat", UPDATE, HIGH_THROUGHPUT, FLAT, FWD, NONE, update_flat),
	MODE("update HT expert-major", UPDATE, HIGH_THROUGHPUT, EXPERT_MAJOR, FWD, NONE, update_expert),
	MODE("dispatch LL expert-major", DISPATCH, LOW_LATENCY, EXPERT_MAJOR, FWD, NONE, disp_ll_expert),
	MODE("dispatch LL expert-major fp8", DISPATCH, LOW_LATENCY, EXPERT_MAJOR, FWD, DS_FP8E3M4, disp_ll_ds),
	MODE("dispatch LL rank-major", DISPATCH, LOW_LATENCY, RANK_MAJOR, FWD, NONE, disp_ll_rank),
	MODE("dispatch LL rank-major fp8", DISPATCH, LOW_LATENCY, RANK_MAJOR, FWD, DS_FP8E3M4, disp_ll_rank_ds),
	MODE("dispatch LL rank-major quant fwd", DISPATCH, LOW_LATENCY, RANK_MAJOR, FWD, FWD, disp_ll_fwd),
	MODE("dispatch HT flat", DISPATCH, HIGH_THROUGHPUT, FLAT, FWD, NONE, disp_flat),
	MODE("dispatch HT flat quant fwd", DISPATCH, HIGH_THROUGHPUT, FLAT, FWD, FWD, disp_flat_fwd),
	MODE("dispatch HT expert-major", DISPATCH, HIGH_THROUGHPUT, EXPERT_MAJOR, FWD, NONE, disp_expert),
	MODE("dispatch HT flat backward", DISPATCH, HIGH_THROUGHPUT, FLAT, BWD, NONE, disp_backward),
	MODE("dispatch HT expert-major backward", DISPATCH, HIGH_THROUGHPUT, EXPERT_MAJOR, BWD, NONE, disp_backward),
	MODE("dispatch HT flat backward quant fwd", DISPATCH, HIGH_THROUGHPUT, FLAT, BWD, FWD, disp_backward_fwd),
	MODE("dispatch HT expert-major backward quant fwd", DISPATCH, HIGH_THROUGHPUT, EXPERT_MAJOR, BWD, FWD,
	     disp_backward_fwd),
	MODE("combine LL expert-major", COMBINE, LOW_LATENCY, EXPERT_MAJOR, FWD, NONE, comb_ll_expert),
	MODE("combine LL rank-major", COMBINE, LOW_LATENCY, RANK_MAJOR, FWD, NONE, comb_ll_rank),
	MODE("combine HT flat", COMBINE, HIGH_THROUGHPUT, FLAT, FWD, NONE, comb_ht),
	MODE("combine HT expert-major", COMBINE, HIGH_THROUGHPUT, EXPERT_MAJOR, FWD, NONE, comb_ht),
	MODE("combine HT flat backward", COMBINE, HIGH_THROUGHPUT, FLAT, BWD, NONE, comb_flat_bwd),
	MODE("combine HT expert-major backward", COMBINE, HIGH_THROUGHPUT, EXPERT_MAJOR, BWD, NONE, comb_expert_bwd),
};
/* clang-format on */
#define MODES (sizeof(modes) / sizeof(modes[0]))

#endif
