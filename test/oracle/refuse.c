/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/refuse.h"

#include <string.h>

#include "test/oracle/rig.h"

enum { EM = 1, RM = 2, BOTH = EM | RM };

/* One error in an otherwise valid call. */
struct refusal {
	const char *what;
	int layouts;
	ncclResult_t want;
	void (*spoil)(struct rig_dispatch_args *dispatch, struct rig_combine_args *combine);
};

#define SPOIL(name, member)                                                       \
	static void name(struct rig_dispatch_args *d, struct rig_combine_args *c) \
	{                                                                         \
		(void)d, (void)c;                                                 \
		member;                                                           \
	}

SPOIL(d_backward, d->config.pass_direction = NCCL_EP_BWD_PASS)
SPOIL(d_scales, d->in.scales = &d->tensor[RIG_TOKENS].t)
SPOIL(d_out_scales, d->out.scales = &d->tensor[RIG_OUT].t)
SPOIL(d_ds_hidden, d->config.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4)
SPOIL(d_fwd_bare, d->config.quant_recipe = NCCL_EP_DISP_QUANT_FWD)
SPOIL(d_recipe, d->config.quant_recipe = (ncclEpDispQuant_t)3)
SPOIL(d_int_tokens, d->tensor[RIG_TOKENS].t.datatype = ncclInt32)
SPOIL(d_unlike, d->tensor[RIG_OUT].t.datatype = ncclFloat32)
SPOIL(d_rows, d->tensor[RIG_TOKENS].sizes[0] += 1)
SPOIL(d_narrow, d->tensor[RIG_OUT].sizes[2] -= 1)
SPOIL(d_flat, d->tensor[RIG_OUT].t.ndim = 2)
SPOIL(d_no_tokens, d->in.tokens = NULL)
SPOIL(d_no_data, d->tensor[RIG_OUT].t.data = NULL)
SPOIL(d_magic, d->in.magic = 0)
SPOIL(d_weights, d->in.topk_weights = &d->tensor[RIG_WEIGHTS].t)
SPOIL(d_no_weights, d->in.topk_weights = NULL)
SPOIL(d_no_counts, d->info.expert_counters = NULL)
SPOIL(d_no_idx, d->out.topk_idx = NULL)
SPOIL(d_kind, d->info.recv_topk_idx_kind = (ncclEpExpertIdKind_t)3)
SPOIL(d_wide, (d->tensor[RIG_TOKENS].sizes[1] *= 2, d->tensor[RIG_OUT].sizes[2] *= 2))
SPOIL(c_backward, c->config.pass_direction = NCCL_EP_BWD_PASS)
SPOIL(c_nvfp4, c->config.quant_recipe = NCCL_EP_COMB_QUANT_NVFP4)
SPOIL(c_fp8, (c->answers.t.datatype = ncclFloat8e4m3, c->sums.t.datatype = ncclFloat8e4m3))
SPOIL(c_unlike, c->sums.t.datatype = ncclFloat32)
SPOIL(c_no_weights, c->out.topk_weights = NULL)
SPOIL(c_rows, c->sums.sizes[0] -= 1)
SPOIL(c_no_tokens, c->out.tokens = NULL)

/* The shape below: bf16, 64 channels, no quantisation. */
static const struct refusal dispatches[] = {
	{ "backward", BOTH, ncclInvalidUsage, d_backward },
	{ "scales without quantisation", BOTH, ncclInvalidArgument, d_scales },
	{ "output scales without quantisation", BOTH, ncclInvalidArgument, d_out_scales },
	{ "DS_FP8 with H = 64", BOTH, ncclInvalidArgument, d_ds_hidden },
	{ "QUANT_FWD without scales", BOTH, ncclInvalidArgument, d_fwd_bare },
	{ "an unknown recipe", BOTH, ncclInvalidArgument, d_recipe },
	{ "int32 tokens", BOTH, ncclInvalidArgument, d_int_tokens },
	{ "output of another type", BOTH, ncclInvalidArgument, d_unlike },
	{ "more tokens than topk_idx", BOTH, ncclInvalidArgument, d_rows },
	{ "a narrow output", BOTH, ncclInvalidArgument, d_narrow },
	{ "a flat output", BOTH, ncclInvalidArgument, d_flat },
	{ "no tokens", BOTH, ncclInvalidArgument, d_no_tokens },
	{ "no data", BOTH, ncclInvalidArgument, d_no_data },
	{ "wrong magic", BOTH, ncclInvalidArgument, d_magic },
	{ "weights", EM, ncclInvalidArgument, d_weights },
	{ "no weights", RM, ncclInvalidArgument, d_no_weights },
	{ "no expert_counters", EM, ncclInvalidArgument, d_no_counts },
	{ "no topk_idx", RM, ncclInvalidArgument, d_no_idx },
	{ "an unknown id kind", RM, ncclInvalidArgument, d_kind },
	{ "rows over max_token_bytes", BOTH, ncclInvalidArgument, d_wide },
};

static const struct refusal combines[] = {
	{ "backward", BOTH, ncclInvalidUsage, c_backward },
	{ "NVFP4", BOTH, ncclInvalidUsage, c_nvfp4 },
	{ "fp8 tokens", BOTH, ncclInvalidArgument, c_fp8 },
	{ "output of another type", BOTH, ncclInvalidArgument, c_unlike },
	{ "no weights", EM, ncclInvalidArgument, c_no_weights },
	{ "too few rows", BOTH, ncclInvalidArgument, c_rows },
	{ "no output", BOTH, ncclInvalidArgument, c_no_tokens },
};

static void answered(struct rig *rig, const char *call, const char *what, ncclResult_t want, ncclResult_t got)
{
	ll_wrong(&rig->verdict, got != want, "rank %d: %s, %s: returned %s, must be %s", seat_rank(rig->seat), call,
		 what, ncclGetErrorString(got), ncclGetErrorString(want));
}

static void refuse_dispatch(struct rig *rig, const struct refusal *row)
{
	struct rig_dispatch_args args;

	rig_dispatch_args(rig, 0, &args);
	row->spoil(&args, NULL);
	answered(rig, "ncclEpDispatch", row->what, row->want,
		 ncclEpDispatch(rig->handle[0].handle, &args.in, &args.out, &args.info, &args.config,
				rig->shim.stream));
}

static void refuse_combine(struct rig *rig, const struct refusal *row)
{
	struct rig_combine_args args;

	rig_combine_args(rig, 0, &args);
	if (row)
		row->spoil(NULL, &args);
	answered(rig, "ncclEpCombine", row ? row->what : "nothing dispatched", row ? row->want : ncclInvalidUsage,
		 ncclEpCombine(rig->handle[0].handle, &args.in, &args.out, &args.config, rig->shim.stream));
}

static void refuse_others(struct rig *rig)
{
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpHandle_t handle = NULL;
	struct rig_tensor idx;
	int mask[2] = { 1, 1 };

	rig_tensor(rig, 0, RIG_IDX, &idx);
	answered(rig, "ncclEpUpdateHandle", "layout_info", ncclInvalidArgument,
		 ncclEpUpdateHandle(rig->handle[0].handle, &idx.t, &info, rig->shim.stream));
	answered(rig, "ncclEpInitHandle", "flat layout", ncclInvalidArgument,
		 ncclEpInitHandle(&handle, rig->group, NCCL_EP_LAYOUT_FLAT, NULL, 2, NULL));
	answered(rig, "ncclEpInitHandle", "no K", ncclInvalidArgument,
		 ncclEpInitHandle(&handle, rig->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, -1, NULL));
	answered(rig, "ncclEpMaskUpdate", "no masks", ncclInvalidUsage,
		 ncclEpMaskUpdate(rig->group, mask, rig->shim.stream));
	answered(rig, "ncclEpMaskClean", "no masks", ncclInvalidUsage, ncclEpMaskClean(rig->group, rig->shim.stream));
	answered(rig, "ncclEpErrorClear", "no error", ncclSuccess, ncclEpErrorClear(rig->group));
	answered(rig, "ncclEpComplete", "nothing staged", ncclSuccess, rig_complete(rig, 0));
	ll_wrong(&rig->verdict, handle != NULL, "rank %d: a rejected handle is not NULL", seat_rank(rig->seat));
}

/* zero_copy ON: expert-major never; rank-major only with a window. */
static int refuse_zero_copy(struct seat *seat, struct rig_cfg cfg, struct ll_verdict *verdict)
{
	struct rig rig;

	cfg.zero_copy = NCCL_EP_ZERO_COPY_ON;
	if (!rig_open(&rig, seat, &cfg) && !rig_update(&rig, 0))
		answered(&rig, "ncclEpDispatch", "zero_copy ON", ncclInvalidArgument, rig_dispatch(&rig, 0, false));
	if (!verdict->wrong)
		*verdict = rig.verdict;
	return rig_close(&rig);
}

int ll_refuse_job(struct seat *seat, const void *arg)
{
	enum ll_layout layout = (enum ll_layout) * (const int *)arg;
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL };
	struct ll_verdict verdict;
	struct rig rig;
	int bit = layout == LL_EXPERT_MAJOR ? EM : RM;

	cfg.shape = (struct ll_shape){ .layout = layout,
				       .ranks = seat_ranks(seat),
				       .experts = 4,
				       .topk = 2,
				       .tmax = 4,
				       .hidden = 64,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = 5 };
	if (!rig_open(&rig, seat, &cfg) && !rig_update(&rig, 0)) {
		refuse_combine(&rig, NULL);
		for (size_t i = 0; i < sizeof(dispatches) / sizeof(dispatches[0]); i++)
			if (dispatches[i].layouts & bit)
				refuse_dispatch(&rig, &dispatches[i]);
		for (size_t i = 0; i < sizeof(combines) / sizeof(combines[0]); i++)
			if (combines[i].layouts & bit)
				refuse_combine(&rig, &combines[i]);
		refuse_others(&rig);
		/* None of it had an effect. */
		rig_script(&rig, "DA CA");
		rig_script(&rig, "dA xA CA");
	}
	verdict = rig.verdict;
	if (!rig_close(&rig))
		refuse_zero_copy(seat, cfg, &verdict);
	if (verdict.wrong)
		seat_fail(seat, "%s", verdict.first);
	return seat_failed(seat) ? -1 : 0;
}
