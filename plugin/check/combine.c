/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/check/check.h"
#include "plugin/check/tensor.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "plugin/group/tensor.h"
#include "util/error.h"

#define FN "ncclEpCombine"

enum {
	IN_TOKENS,
	IN_WEIGHTS,
	IN_SCALES,
	OUT_TOKENS,
	OUT_WEIGHTS,
	TABLED,
	BIAS = TABLED,
	BIAS_END = BIAS + EP_BIASES_MAX
};

static const char *const names[BIAS_END] = {
	[IN_TOKENS] = "inputs->tokens",
	[IN_WEIGHTS] = "inputs->topk_weights",
	[IN_SCALES] = "inputs->scales",
	[OUT_TOKENS] = "outputs->tokens",
	[OUT_WEIGHTS] = "outputs->topk_weights",
	[BIAS] = "bias[0] of anyEpHandleBias",
	[BIAS + 1] = "bias[1] of anyEpHandleBias",
};

/* clang-format off */
#define TOKENS(t, n, ...) \
	{ .tensor = t, .need = EP_REQUIRED, .ndim = n, .alike = EP_ALIKE_TOKENS, .dtypes = EP_DT_TOKEN, \
	  .dim = { __VA_ARGS__ } }
#define F32(t, n, ...) { .tensor = t, .need = EP_REQUIRED, .ndim = n, .dtypes = EP_DT_F32, .dim = { __VA_ARGS__ } }
#define NONE(t) { .tensor = t, .need = EP_FORBIDDEN }
#define SKIP(t) { .tensor = t, .need = EP_IGNORED }

/* One row per (algorithm, layout, direction). The out weights of LL expert-major are an input, by the contract. */
static const struct table {
	bool ht;
	ncclEpLayout_t layout;
	bool backward;
	struct ep_slot slot[TABLED];
} tables[] = {
	{ false, NCCL_EP_LAYOUT_EXPERT_MAJOR, false,
	  { TOKENS(IN_TOKENS, 3, EP_D_EL, EP_D_RTMAX, EP_D_H), SKIP(IN_WEIGHTS), NONE(IN_SCALES),
	    TOKENS(OUT_TOKENS, 2, EP_D_T, EP_D_H), F32(OUT_WEIGHTS, 2, EP_D_T, EP_D_K) } },
	{ false, NCCL_EP_LAYOUT_RANK_MAJOR, false,
	  { TOKENS(IN_TOKENS, 3, EP_D_R, EP_D_TMAX, EP_D_H), SKIP(IN_WEIGHTS), NONE(IN_SCALES),
	    TOKENS(OUT_TOKENS, 2, EP_D_T, EP_D_H), SKIP(OUT_WEIGHTS) } },
	{ true, NCCL_EP_LAYOUT_FLAT, false,
	  { TOKENS(IN_TOKENS, 2, EP_D_N, EP_D_H), NONE(IN_WEIGHTS), NONE(IN_SCALES),
	    TOKENS(OUT_TOKENS, 2, EP_D_T, EP_D_H), SKIP(OUT_WEIGHTS) } },
	{ true, NCCL_EP_LAYOUT_EXPERT_MAJOR, false,
	  { TOKENS(IN_TOKENS, 2, EP_D_N, EP_D_H), NONE(IN_WEIGHTS), NONE(IN_SCALES),
	    TOKENS(OUT_TOKENS, 2, EP_D_T, EP_D_H), SKIP(OUT_WEIGHTS) } },
	{ true, NCCL_EP_LAYOUT_FLAT, true,
	  { TOKENS(IN_TOKENS, 2, EP_D_N, EP_D_H), F32(IN_WEIGHTS, 2, EP_D_N, EP_D_K), NONE(IN_SCALES),
	    TOKENS(OUT_TOKENS, 2, EP_D_T, EP_D_H), F32(OUT_WEIGHTS, 2, EP_D_T, EP_D_K) } },
	{ true, NCCL_EP_LAYOUT_EXPERT_MAJOR, true,
	  { TOKENS(IN_TOKENS, 2, EP_D_N, EP_D_H), F32(IN_WEIGHTS, 1, EP_D_N), NONE(IN_SCALES),
	    TOKENS(OUT_TOKENS, 2, EP_D_T, EP_D_H), F32(OUT_WEIGHTS, 2, EP_D_T, EP_D_K) } },
};

/* Of every HT combine. */
static const struct ep_slot biases[EP_BIASES_MAX] = { EP_BIAS_SLOT(BIAS, EP_OPTIONAL),
						      EP_BIAS_SLOT(BIAS + 1, EP_OPTIONAL) };
/* clang-format on */

static int config_check(const struct ep_group_cfg *group, const ncclEpCombineConfig_t *cfg)
{
	int rc;

	if ((rc = ep_check_enum(FN, "config->pass_direction", cfg->pass_direction, NCCL_EP_BWD_PASS + 1)) ||
	    (rc = ep_check_enum(FN, "config->quant_recipe", cfg->quant_recipe, NCCL_EP_COMB_QUANT_MXFP8 + 1)))
		return rc;
	if (cfg->quant_recipe != NCCL_EP_COMB_QUANT_NONE)
		return EP_BAD_USE(FN ": config->quant_recipe: %s is not supported yet; use NCCL_EP_COMB_QUANT_NONE",
				  cfg->quant_recipe == NCCL_EP_COMB_QUANT_MXFP8 ? "MXFP8" : "NVFP4");
	if (cfg->pass_direction == NCCL_EP_BWD_PASS && group->algorithm != NCCL_EP_ALGO_HIGH_THROUGHPUT)
		return EP_BAD_USE(FN ": config->pass_direction: LL has no backward pass");
	return 0;
}

static int tensors_check(const struct ncclEpHandle *handle, struct ep_env *env, bool bwd,
			 const ncclEpTensor_t *const *t)
{
	const struct ep_group_cfg *cfg = &handle->group->cfg;
	bool ht = cfg->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT;
	const struct table *table = tables;
	int rc;

	while (table->ht != ht || table->layout != handle->args.layout || table->backward != bwd)
		table++; /* the handle's layout and config_check leave only what the tables have */
	if ((rc = ep_slots_check(env, table->slot, TABLED, t)) || (rc = ep_slots_check(env, biases, EP_BIASES_MAX, t)))
		return rc;
	if (ep_tensor_row_bytes(t[IN_TOKENS]) > cfg->max_token_bytes)
		return EP_BAD_ARG(FN ": %s: a row has %zu bytes, more than max_token_bytes = %u", names[IN_TOKENS],
				  ep_tensor_row_bytes(t[IN_TOKENS]), cfg->max_token_bytes);
	if (ht && cfg->zero_copy == NCCL_EP_ZERO_COPY_ON && !t[IN_TOKENS]->win_hdl && !ep_tensor_empty(t[IN_TOKENS]))
		return EP_BAD_ARG(FN ": %s must be window-backed under zero_copy ON", names[IN_TOKENS]);
	return 0;
}

static int state_check(const struct ncclEpHandle *handle)
{
	bool ht = ep_group_ht(handle->group);

	if (!handle->updated && (!ht || handle->mem_owned))
		return EP_BAD_USE(FN ": handle: has no routing: call ncclEpUpdateHandle first");
	if (!ht && !handle->dispatched)
		return EP_BAD_USE(FN ": handle: nothing was dispatched with this routing: call ncclEpDispatch first");
	return ep_check_staged(FN, handle);
}

int ep_check_combine(const struct ncclEpHandle *handle, const ncclEpCombineInputs_t *inputs,
		     const ncclEpCombineOutputs_t *outputs, const ncclEpCombineConfig_t *config, struct ep_combine *out)
{
	struct ep_env env;
	int rc;

	if ((rc = ep_struct_take(EP_S_COMBINE_INPUTS, FN, "inputs", inputs, &out->in)) ||
	    (rc = ep_struct_take(EP_S_COMBINE_OUTPUTS, FN, "outputs", outputs, &out->out)) ||
	    (rc = ep_struct_take_opt(EP_S_COMBINE_CONFIG, FN, "config", config, &out->cfg)) ||
	    (rc = config_check(&handle->group->cfg, &out->cfg)))
		return rc;
	const ncclEpTensor_t *tensors[BIAS_END] = {
		[IN_TOKENS] = out->in.tokens,	[IN_WEIGHTS] = out->in.topk_weights,   [IN_SCALES] = out->in.scales,
		[OUT_TOKENS] = out->out.tokens, [OUT_WEIGHTS] = out->out.topk_weights,
	};
	for (int i = 0; i < handle->biases; i++)
		tensors[BIAS + i] = &handle->bias[i];
	ep_env_init(&env, FN, names, handle);
	if ((rc = tensors_check(handle, &env, out->cfg.pass_direction == NCCL_EP_BWD_PASS, tensors)) ||
	    (rc = state_check(handle)))
		return rc;
	out->t = env.sym[EP_D_T].value;
	out->h = env.sym[EP_D_H].value;
	return 0;
}

int ep_check_staged(const char *fn, const struct ncclEpHandle *handle)
{
	if (handle->staged)
		return EP_BAD_USE("%s: handle: an operation is staged on it: call ncclEpComplete first", fn);
	if (handle->group->staged >= EP_STAGED_MAX)
		return EP_BAD_USE("%s: handle: %d operations of the group are staged, and more could only wait for "
				  "each other: call ncclEpComplete first",
				  fn, handle->group->staged);
	return 0;
}
