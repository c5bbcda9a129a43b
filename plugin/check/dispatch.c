/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_ep_ext.h"
#include "plugin/check/check.h"
#include "plugin/check/tensor.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "plugin/group/tensor.h"
#include "util/error.h"

#define FN "ncclEpDispatch"

/* QUANT_FWD moves rows as they are, in 16-byte vectors. */
#define FWD_UNIT 16
/* DS_FP8: one scale per block of channels; a row is a whole number of four such blocks. */
#define DS_BLOCK 128
#define DS_UNIT 512
#define IN_PLACE_MAX 65536
#define EXPONENTS 4 /* in a word */

enum {
	IN_TOKENS,
	IN_WEIGHTS,
	IN_SCALES,
	OUT_TOKENS,
	OUT_WEIGHTS,
	OUT_SCALES,
	OUT_IDX,
	COUNTERS,
	SRC_RANK,
	OFFSETS,
	TOTAL,
	TENSORS
};

static const char *const names[TENSORS] = {
	[IN_TOKENS] = "inputs->tokens",
	[IN_WEIGHTS] = "inputs->topk_weights",
	[IN_SCALES] = "inputs->scales",
	[OUT_TOKENS] = "outputs->tokens",
	[OUT_WEIGHTS] = "outputs->topk_weights",
	[OUT_SCALES] = "outputs->scales",
	[OUT_IDX] = "outputs->topk_idx",
	[COUNTERS] = "layout_info->expert_counters",
	[SRC_RANK] = "layout_info->src_rank_counters",
	[OFFSETS] = "layout_info->expert_offsets",
	[TOTAL] = "layout_info->recv_total_counter",
};

/* clang-format off */
#define F32(t, n, ...) { .tensor = t, .need = EP_REQUIRED, .ndim = n, .dtypes = EP_DT_F32, .dim = { __VA_ARGS__ } }
#define INT(t, need_, mask, n, ...) { .tensor = t, .need = need_, .ndim = n, .dtypes = mask, .dim = { __VA_ARGS__ } }
/* Of HT expert-major: as Update's, but longer ones are taken. */
#define COUNT(t, size) \
	{ .tensor = t, .need = EP_OPTIONAL, .ndim = 1, .alike = EP_ALIKE_COUNTERS, .least = true, \
	  .dtypes = EP_DT_I32 | EP_DT_I64, .dim = { size } }
#define NONE(t) { .tensor = t, .need = EP_FORBIDDEN }
/* Tokens and scales: need and dtypes come from the quantisation. */
#define PAYLOAD(t, n, ...) { .tensor = t, .need = EP_REQUIRED, .ndim = n, .dim = { __VA_ARGS__ } }

static const struct ep_slot ll_expert[] = {
	PAYLOAD(IN_TOKENS, 2, EP_D_T, EP_D_H),
	NONE(IN_WEIGHTS),
	PAYLOAD(IN_SCALES, 2, EP_D_T, EP_D_S),
	PAYLOAD(OUT_TOKENS, 3, EP_D_EL, EP_D_RTMAX, EP_D_H),
	NONE(OUT_WEIGHTS),
	PAYLOAD(OUT_SCALES, 3, EP_D_EL, EP_D_RTMAX, EP_D_S),
	NONE(OUT_IDX),
	INT(COUNTERS, EP_REQUIRED, EP_DT_I32, 1, EP_D_EL),
};
static const struct ep_slot ll_rank[] = {
	PAYLOAD(IN_TOKENS, 2, EP_D_T, EP_D_H),
	F32(IN_WEIGHTS, 2, EP_D_T, EP_D_K),
	PAYLOAD(IN_SCALES, 2, EP_D_T, EP_D_S),
	PAYLOAD(OUT_TOKENS, 3, EP_D_R, EP_D_TMAX, EP_D_H),
	F32(OUT_WEIGHTS, 3, EP_D_R, EP_D_TMAX, EP_D_K),
	PAYLOAD(OUT_SCALES, 3, EP_D_R, EP_D_TMAX, EP_D_S),
	INT(OUT_IDX, EP_REQUIRED, EP_DT_I32, 3, EP_D_R, EP_D_TMAX, EP_D_K),
	INT(SRC_RANK, EP_OPTIONAL, EP_DT_I32, 1, EP_D_R),
};
static const struct ep_slot ht_flat[] = {
	PAYLOAD(IN_TOKENS, 2, EP_D_T, EP_D_H),
	F32(IN_WEIGHTS, 2, EP_D_T, EP_D_K),
	PAYLOAD(IN_SCALES, 2, EP_D_T, EP_D_S),
	PAYLOAD(OUT_TOKENS, 2, EP_D_N, EP_D_H),
	F32(OUT_WEIGHTS, 2, EP_D_N, EP_D_K),
	PAYLOAD(OUT_SCALES, 2, EP_D_N, EP_D_S),
	INT(OUT_IDX, EP_REQUIRED, EP_DT_I64, 2, EP_D_N, EP_D_K),
};
static const struct ep_slot ht_expert[] = {
	PAYLOAD(IN_TOKENS, 2, EP_D_T, EP_D_H),
	F32(IN_WEIGHTS, 2, EP_D_T, EP_D_K),
	PAYLOAD(IN_SCALES, 2, EP_D_T, EP_D_S),
	PAYLOAD(OUT_TOKENS, 2, EP_D_N, EP_D_H),
	F32(OUT_WEIGHTS, 1, EP_D_N),
	PAYLOAD(OUT_SCALES, 2, EP_D_N, EP_D_S),
	NONE(OUT_IDX),
	COUNT(COUNTERS, EP_D_EL),
	COUNT(OFFSETS, EP_D_EL),
	COUNT(TOTAL, EP_D_ONE),
};
/* Flat and expert-major alike: tokens and their scales, into the slots of the last Update. */
static const struct ep_slot ht_backward[] = {
	PAYLOAD(IN_TOKENS, 2, EP_D_T, EP_D_H),
	NONE(IN_WEIGHTS),
	PAYLOAD(IN_SCALES, 2, EP_D_T, EP_D_S),
	PAYLOAD(OUT_TOKENS, 2, EP_D_N, EP_D_H),
	NONE(OUT_WEIGHTS),
	PAYLOAD(OUT_SCALES, 2, EP_D_N, EP_D_S),
	NONE(OUT_IDX),
};

#define TABLE(ht, layout, bwd, t) { ht, NCCL_EP_LAYOUT_##layout, bwd, t, sizeof(t) / sizeof((t)[0]) }
static const struct {
	bool ht;
	ncclEpLayout_t layout;
	bool backward;
	const struct ep_slot *slot;
	size_t count;
} tables[] = {
	TABLE(false, EXPERT_MAJOR, false, ll_expert), TABLE(false, RANK_MAJOR, false, ll_rank),
	TABLE(true, FLAT, false, ht_flat),	      TABLE(true, EXPERT_MAJOR, false, ht_expert),
	TABLE(true, FLAT, true, ht_backward),	      TABLE(true, EXPERT_MAJOR, true, ht_backward),
};

#define DT_FWD (EP_DT_TOKEN | EP_DT(ncclFloat8e4m3) | EP_DT(ncclFloat8e5m2) | EP_DT(ncclFloat4x2))
static const struct quant {
	uint16_t in, out;
	bool alike; /* output tokens have the dtype of the input tokens */
	uint16_t scales;
	uint8_t in_scales, out_scales; /* enum ep_need */
} quants[] = {
	[NCCL_EP_DISP_QUANT_NONE] = { EP_DT_TOKEN, EP_DT_TOKEN, true, 0, EP_FORBIDDEN, EP_FORBIDDEN },
	[NCCL_EP_DISP_QUANT_FWD] = { DT_FWD, DT_FWD, true, DT_FWD | EP_DT(ncclUint8), EP_REQUIRED, EP_REQUIRED },
	[NCCL_EP_DISP_QUANT_DS_FP8E3M4] = { EP_DT(ncclBfloat16), EP_DT(ncclFloat8e4m3), false, EP_DT_F32, EP_FORBIDDEN,
					    EP_REQUIRED },
};
#define QUANTS (sizeof(quants) / sizeof(quants[0]))
/* clang-format on */

static struct ep_slot slot_resolve(struct ep_slot slot, const struct quant *q)
{
	switch (slot.tensor) {
	case IN_TOKENS:
	case OUT_TOKENS:
		slot.dtypes = slot.tensor == IN_TOKENS ? q->in : q->out;
		slot.alike = q->alike ? EP_ALIKE_TOKENS : EP_ALIKE_NONE;
		break;
	case IN_SCALES:
	case OUT_SCALES:
		slot.need = slot.tensor == IN_SCALES ? q->in_scales : q->out_scales;
		slot.dtypes = q->scales;
		slot.alike = EP_ALIKE_SCALES;
		break;
	}
	return slot;
}

/* As anyEpHandleScales asked. Scales are words there, and exponents do not have the type of the scales. */
static struct ep_slot slot_columns(struct ep_slot slot, unsigned scales)
{
	uint8_t rows = slot.dim[1];

	if (scales == ANYEP_SCALES_ROWS || (slot.tensor != IN_SCALES && slot.tensor != OUT_SCALES))
		return slot;
	slot.dtypes &= EP_DT_F32;
	if (slot.tensor == IN_SCALES)
		return slot;
	slot.dim[1] = slot.dim[2];
	slot.dim[2] = rows;
	if (scales == ANYEP_SCALES_EXPONENTS) {
		slot.dtypes = EP_DT_I32;
		slot.alike = EP_ALIKE_NONE;
		slot.dim[1] = EP_D_S4;
	}
	return slot;
}

/* In place: columns and local ids share a word on the way. */
static int kind_check(const struct ncclEpHandle *handle, unsigned kind)
{
	bool flat = ep_group_ht(handle->group) && handle->args.layout == NCCL_EP_LAYOUT_FLAT;

	if (kind != (unsigned)ANYEP_EXPERT_ID_IN_PLACE || !flat)
		return ep_check_enum(FN, "layout_info->recv_topk_idx_kind", kind, NCCL_EP_EXPERT_ID_GLOBAL + 1);
	if (handle->group->experts_per_rank > IN_PLACE_MAX || handle->args.room > IN_PLACE_MAX)
		return EP_BAD_USE(FN ": layout_info->recv_topk_idx_kind: ids stay in place for at most %d experts per "
				     "rank and per token, not %d and %d",
				  IN_PLACE_MAX, (int)handle->group->experts_per_rank, handle->args.room);
	return 0;
}

static int config_check(const struct ncclEpHandle *handle, const ncclEpDispatchConfig_t *cfg, bool info)
{
	bool ht = ep_group_ht(handle->group);
	bool bwd = cfg->pass_direction == NCCL_EP_BWD_PASS;
	int rc;

	if ((rc = ep_check_enum(FN, "config->pass_direction", cfg->pass_direction, NCCL_EP_BWD_PASS + 1)) ||
	    (rc = ep_check_enum(FN, "config->quant_recipe", cfg->quant_recipe, QUANTS)))
		return rc;
	if (cfg->round_scales && cfg->quant_recipe == NCCL_EP_DISP_QUANT_FWD)
		return EP_BAD_ARG(
			FN ": config->round_scales must be 0 with NCCL_EP_DISP_QUANT_FWD: the scales are the caller's");
	if (!cfg->round_scales && cfg->quant_recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4 &&
	    handle->scales == ANYEP_SCALES_EXPONENTS)
		return EP_BAD_ARG(FN
				  ": config->round_scales must be 1 with ANYEP_SCALES_EXPONENTS of anyEpHandleScales: "
				  "exponents alone are powers of two");
	if (bwd && !ht)
		return EP_BAD_USE(FN ": config->pass_direction: LL has no backward pass");
	if (bwd && info)
		return EP_BAD_ARG(FN ": layout_info must be NULL in the backward pass: it counts nothing");
	if (ht && cfg->quant_recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4)
		return EP_BAD_USE(FN ": config->quant_recipe: DS_FP8E3M4 exists in LL only; quantise before and use "
				     "NCCL_EP_DISP_QUANT_FWD");
	return 0;
}

/* Rules that follow the input tokens alone, before the outputs are held against them. */
static int input_check(struct ep_env *env, const ncclEpTensor_t *tokens, ncclEpDispQuant_t quant)
{
	size_t h = env->sym[EP_D_H].value;

	if (quant != NCCL_EP_DISP_QUANT_DS_FP8E3M4)
		return 0;
	if (h % DS_UNIT)
		return EP_BAD_ARG(FN ": %s: H is %zu, must be a multiple of %d for DS_FP8E3M4", names[IN_TOKENS],
				  tokens->sizes[1], DS_UNIT);
	env->sym[EP_D_S] = (struct ep_sym_value){ true, h / DS_BLOCK, "H / 128" };
	return 0;
}

/* After the input scales, before the outputs. */
static int exponents_check(const struct ncclEpHandle *handle, struct ep_env *env)
{
	const struct ep_sym_value *s = &env->sym[EP_D_S];

	if (handle->scales != ANYEP_SCALES_EXPONENTS || !s->known)
		return 0;
	if (s->value % EXPONENTS)
		return EP_BAD_ARG(FN
				  ": %s: a row has %zu scales, must be a multiple of %d with ANYEP_SCALES_EXPONENTS of "
				  "anyEpHandleScales",
				  names[IN_SCALES], s->value, EXPONENTS);
	env->sym[EP_D_S4] = (struct ep_sym_value){ true, s->value / EXPONENTS, s->from };
	return 0;
}

static int bytes_check(const struct ep_group_cfg *cfg, const ncclEpTensor_t *const *t)
{
	size_t token = ep_tensor_row_bytes(t[IN_TOKENS]), scale = t[IN_SCALES] ? ep_tensor_row_bytes(t[IN_SCALES]) : 0;

	if (token > cfg->max_token_bytes || scale > cfg->max_token_bytes - token)
		return EP_BAD_ARG(FN ": %s: a row has %zu bytes and %zu of scales, more than max_token_bytes = %u",
				  names[IN_TOKENS], token, scale, cfg->max_token_bytes);
	return 0;
}

static int forward_check(const struct ncclEpHandle *handle, const ncclEpTensor_t *const *t)
{
	static const uint8_t payload[] = { IN_TOKENS, IN_SCALES, OUT_TOKENS, OUT_SCALES };
	size_t rows = sizeof(payload) - (handle->scales != ANYEP_SCALES_ROWS); /* columns are written by words */

	for (size_t i = 0; i < rows; i++) {
		const ncclEpTensor_t *p = t[payload[i]];

		if (ep_tensor_row_bytes(p) % FWD_UNIT || (!p->win_hdl && (uintptr_t)p->data % FWD_UNIT))
			return EP_BAD_ARG(FN ": %s: rows and base must be %d-byte aligned for NCCL_EP_DISP_QUANT_FWD "
					     "(a row has %zu bytes)",
					  names[payload[i]], FWD_UNIT, ep_tensor_row_bytes(p));
	}
	if (!ep_group_ht(handle->group))
		return 0;
	if (t[OUT_SCALES]->sizes[0] != t[OUT_TOKENS]->sizes[0])
		return EP_BAD_ARG(FN ": %s: has %zu rows, must have the %zu of %s", names[OUT_SCALES],
				  t[OUT_SCALES]->sizes[0], t[OUT_TOKENS]->sizes[0], names[OUT_TOKENS]);
	if (!t[OUT_SCALES]->win_hdl != !t[OUT_TOKENS]->win_hdl)
		return EP_BAD_ARG(FN ": %s: tokens and scales must both be window-backed or neither",
				  names[OUT_SCALES]);
	return 0;
}

static int zero_copy_check(const struct ncclEpHandle *handle, const ncclEpTensor_t *const *t, ncclEpDispQuant_t quant)
{
	const struct ep_group_cfg *cfg = &handle->group->cfg;
	bool window = t[OUT_TOKENS]->win_hdl || (t[OUT_SCALES] && t[OUT_SCALES]->win_hdl);

	if (cfg->zero_copy != NCCL_EP_ZERO_COPY_ON)
		return 0;
	if (cfg->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT) {
		if (t[OUT_TOKENS]->win_hdl || ep_tensor_empty(t[OUT_TOKENS]))
			return 0;
		return EP_BAD_ARG(FN ": %s must be window-backed under zero_copy ON", names[OUT_TOKENS]);
	}
	if (handle->args.layout != NCCL_EP_LAYOUT_RANK_MAJOR)
		return EP_BAD_ARG(FN ": handle: zero_copy ON in LL needs the rank-major layout");
	if (quant == NCCL_EP_DISP_QUANT_DS_FP8E3M4)
		return EP_BAD_ARG(FN ": config->quant_recipe: zero_copy ON in LL moves rows as they are: NONE or FWD");
	if (!window)
		return EP_BAD_ARG(FN ": %s: zero_copy ON needs window-backed tokens or scales", names[OUT_TOKENS]);
	return 0;
}

static int tensors_check(const struct ncclEpHandle *handle, struct ep_env *env, const ncclEpDispatchConfig_t *cfg,
			 const ncclEpTensor_t *const *t)
{
	bool ht = ep_group_ht(handle->group);
	bool bwd = cfg->pass_direction == NCCL_EP_BWD_PASS;
	struct ep_slot slot[TENSORS];
	size_t i = 0, n;
	int rc;

	while (tables[i].ht != ht || tables[i].layout != handle->args.layout || tables[i].backward != bwd)
		i++; /* the handle's layout and config_check leave only what the tables have */
	n = tables[i].count;
	for (size_t j = 0; j < n; j++)
		slot[j] = slot_columns(slot_resolve(tables[i].slot[j], &quants[cfg->quant_recipe]), handle->scales);
	if (ht)
		env->sym[EP_D_N].value = handle->group->cfg.max_recv;
	if ((rc = ep_slots_check(env, slot, 1, t)) || (rc = input_check(env, t[IN_TOKENS], cfg->quant_recipe)) ||
	    (rc = ep_slots_check(env, slot + 1, IN_SCALES, t)) || (rc = exponents_check(handle, env)) ||
	    (rc = ep_slots_check(env, slot + 1 + IN_SCALES, n - 1 - IN_SCALES, t)) ||
	    (rc = bytes_check(&handle->group->cfg, t)))
		return rc;
	if (cfg->quant_recipe == NCCL_EP_DISP_QUANT_FWD && (rc = forward_check(handle, t)))
		return rc;
	return zero_copy_check(handle, t, cfg->quant_recipe);
}

static int state_check(const struct ncclEpHandle *handle)
{
	bool ht = ep_group_ht(handle->group);

	/* The caller's handle_mem may hold the routing of another handle's Update; our own never does. */
	if (!handle->updated && (!ht || handle->mem_owned))
		return EP_BAD_USE(FN ": handle: has no routing: call ncclEpUpdateHandle first");
	return ep_check_staged(FN, handle);
}

int ep_check_dispatch(const struct ncclEpHandle *handle, const ncclEpDispatchInputs_t *inputs,
		      const ncclEpDispatchOutputs_t *outputs, const ncclEpLayoutInfo_t *layout_info,
		      const ncclEpDispatchConfig_t *config, struct ep_dispatch *out)
{
	struct ep_env env;
	int rc;

	if ((rc = ep_struct_take(EP_S_DISPATCH_INPUTS, FN, "inputs", inputs, &out->in)) ||
	    (rc = ep_struct_take(EP_S_DISPATCH_OUTPUTS, FN, "outputs", outputs, &out->out)) ||
	    (rc = ep_struct_take_opt(EP_S_LAYOUT_INFO, FN, "layout_info", layout_info, &out->info)) ||
	    (rc = ep_struct_take_opt(EP_S_DISPATCH_CONFIG, FN, "config", config, &out->cfg)) ||
	    (rc = kind_check(handle, out->info.recv_topk_idx_kind)) ||
	    (rc = config_check(handle, &out->cfg, layout_info != NULL)))
		return rc;
	const ncclEpTensor_t *const tensors[TENSORS] = {
		[IN_TOKENS] = out->in.tokens,
		[IN_WEIGHTS] = out->in.topk_weights,
		[IN_SCALES] = out->in.scales,
		[OUT_TOKENS] = out->out.tokens,
		[OUT_WEIGHTS] = out->out.topk_weights,
		[OUT_SCALES] = out->out.scales,
		[OUT_IDX] = out->out.topk_idx,
		[COUNTERS] = out->info.expert_counters,
		[SRC_RANK] = out->info.src_rank_counters,
		[OFFSETS] = out->info.expert_offsets,
		[TOTAL] = out->info.recv_total_counter,
	};
	ep_env_init(&env, FN, names, handle);
	if ((rc = tensors_check(handle, &env, &out->cfg, tensors)) || (rc = state_check(handle)))
		return rc;
	out->t = env.sym[EP_D_T].value;
	out->h = env.sym[EP_D_H].value;
	out->s = env.sym[EP_D_S].value;
	return 0;
}
