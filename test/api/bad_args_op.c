/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments of update, dispatch, combine and complete other than tensors: structs, enums, modes, states. */
#include "bad_args_op.h"

TestSuite(bad_args_op, .timeout = 60, .init = bad_args_quiet);

static const struct mode *mode_of(const char *name)
{
	for (size_t i = 0; i < MODES; i++)
		if (!strcmp(modes[i].name, name))
			return &modes[i];
	cr_assert_fail("no mode %s", name);
	return NULL;
}

#define DISP "ncclEpDispatch"
#define COMB "ncclEpCombine"
#define UPD "ncclEpUpdateHandle"

static void good(struct op *op, const char *why)
{
	cr_expect_eq(op_good(op), 0, "%s: %s: must pass, fails with \"%s\"", op->mode->name, why, anyEpGetLastError());
}

Test(bad_args_op, pointers)
{
	for (size_t m = 0; m < MODES; m++) {
		struct op op;

		op_init(&op, &modes[m]);
		EXPECT_ARG(ncclEpUpdateHandle(NULL, op.topk, NULL, NULL), UPD, "handle");
		EXPECT_ARG(ncclEpDispatch(NULL, &op.in, &op.out, &op.info, &op.cfg, NULL), DISP, "handle");
		EXPECT_ARG(ncclEpCombine(NULL, &op.comb_in, &op.comb_out, &op.comb_cfg, NULL), COMB, "handle");
		EXPECT_ARG(ncclEpComplete(NULL, NULL, NULL), "ncclEpComplete", "handle");
		EXPECT_ARG(ncclEpUpdateHandle(op.handle, NULL, NULL, NULL), UPD, "topk_idx");
		EXPECT_ARG(ncclEpDispatch(op.handle, NULL, &op.out, &op.info, &op.cfg, NULL), DISP, "inputs");
		EXPECT_ARG(ncclEpDispatch(op.handle, &op.in, NULL, &op.info, &op.cfg, NULL), DISP, "outputs");
		EXPECT_ARG(ncclEpCombine(op.handle, NULL, &op.comb_out, &op.comb_cfg, NULL), COMB, "inputs");
		EXPECT_ARG(ncclEpCombine(op.handle, &op.comb_in, NULL, &op.comb_cfg, NULL), COMB, "outputs");
		op_free(&op);
	}
}

Test(bad_args_op, structs)
{
	for (size_t m = 0; m < MODES; m++) {
		enum kind kind = modes[m].kind;
		const char *fn = op_fn[kind];
		struct op op;

		op_init(&op, &modes[m]);
		if (kind == DISPATCH) {
			walk_struct(&op.in, 32, fn, "inputs", op_call, op_good, &op);
			walk_struct(&op.out, 40, fn, "outputs", op_call, op_good, &op);
			walk_struct(&op.cfg, 20, fn, "config", op_call, op_good, &op);
		}
		if (kind == COMBINE) {
			walk_struct(&op.comb_in, 24, fn, "inputs", op_call, op_good, &op);
			walk_struct(&op.comb_out, 24, fn, "outputs", op_call, op_good, &op);
			walk_struct(&op.comb_cfg, 16, fn, "config", op_call, op_good, &op);
		}
		if (op.use_info)
			walk_struct(&op.info, 40, fn, "layout_info", op_call, op_good, &op);
		op_free(&op);
	}
}

static ncclResult_t complete_call(void *ctx)
{
	struct op *op = ctx;

	return ncclEpComplete(op->handle, (ncclEpCompleteConfig_t *)op_data, NULL);
}

static int complete_good(void *ctx)
{
	return complete_call(ctx);
}

Test(bad_args_op, complete)
{
	struct op op;

	op_init(&op, mode_of("dispatch LL rank-major"));
	EXPECT_OK(ncclEpComplete(op.handle, NULL, NULL)); /* nothing staged */
	memcpy(op_data, &NCCL_EP_COMPLETE_CONFIG_INIT, 8);
	walk_struct(op_data, 8, "ncclEpComplete", "config", complete_call, complete_good, &op);
	memset(op_data, 0x5A, 8);
	op_free(&op);
	op_init(&op, mode_of("dispatch HT flat"));
	EXPECT_OK(ncclEpComplete(op.handle, NULL, NULL));
	op_free(&op);
}

static void walk_enum(struct op *op, void *field, unsigned count, const char *arg)
{
	static const unsigned bad[] = { 0, 1, 2, 3, 77, 1u << 31, -1u };
	unsigned keep;

	memcpy(&keep, field, 4);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (bad[i] < count)
			continue;
		memcpy(field, &bad[i], 4);
		expect_fail(op_call(op), ncclInvalidArgument, op_fn[op->mode->kind], arg, "out of range");
	}
	memcpy(field, &keep, 4);
	good(op, arg);
}

Test(bad_args_op, enums)
{
	for (size_t m = 0; m < MODES; m++) {
		struct op op;

		op_init(&op, &modes[m]);
		if (modes[m].kind == DISPATCH) {
			walk_enum(&op, &op.cfg.pass_direction, 2, "config->pass_direction");
			walk_enum(&op, &op.cfg.quant_recipe, 3, "config->quant_recipe");
		}
		if (modes[m].kind == COMBINE) {
			walk_enum(&op, &op.comb_cfg.pass_direction, 2, "config->pass_direction");
			walk_enum(&op, &op.comb_cfg.quant_recipe, 3, "config->quant_recipe");
		}
		if (op.use_info)
			walk_enum(&op, &op.info.recv_topk_idx_kind, 3, "layout_info->recv_topk_idx_kind");
		/* Any value of send_only is a boolean. */
		op.cfg.send_only = op.comb_cfg.send_only = 5;
		good(&op, "send_only");
		op_free(&op);
	}
}

/* An unsupported feature is InvalidUsage, whatever else was passed. */
Test(bad_args_op, capabilities)
{
	struct op op;

	op_init(&op, mode_of("dispatch LL rank-major"));
	op.cfg.pass_direction = NCCL_EP_BWD_PASS;
	EXPECT_USE(op_call(&op), DISP, "pass_direction");
	op_free(&op);
	op_init(&op, mode_of("combine LL expert-major"));
	op.comb_cfg.pass_direction = NCCL_EP_BWD_PASS;
	EXPECT_USE(op_call(&op), COMB, "pass_direction");
	op.comb_cfg.pass_direction = NCCL_EP_FWD_PASS;
	op.comb_cfg.quant_recipe = NCCL_EP_COMB_QUANT_NVFP4;
	EXPECT_USE(op_call(&op), COMB, "NVFP4 is not supported yet");
	op.comb_cfg.quant_recipe = NCCL_EP_COMB_QUANT_MXFP8;
	EXPECT_USE(op_call(&op), COMB, "MXFP8 is not supported yet");
	op_free(&op);
	op_init(&op, mode_of("combine HT expert-major backward"));
	op.comb_cfg.quant_recipe = NCCL_EP_COMB_QUANT_MXFP8;
	EXPECT_USE(op_call(&op), COMB, "MXFP8 is not supported yet");
	op_free(&op);
	op_init(&op, mode_of("dispatch HT flat"));
	op.cfg.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	EXPECT_USE(op_call(&op), DISP, "quant_recipe");
	op_free(&op);
	op_init(&op, mode_of("dispatch HT flat backward"));
	op.cfg.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	EXPECT_USE(op_call(&op), DISP, "quant_recipe");
	op_free(&op);
}

/* Staged, not updated, not dispatched: which states each operation accepts. */
Test(bad_args_op, states)
{
	for (size_t m = 0; m < MODES; m++) {
		bool ht = modes[m].algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT;
		const char *fn = op_fn[modes[m].kind];
		struct op op;

		op_init(&op, &modes[m]);
		op.handle->staged = true;
		EXPECT_USE(op_call(&op), fn, "staged");
		EXPECT_USE(ncclEpHandleDestroy(op.handle), "ncclEpHandleDestroy", "staged");
		op.handle->staged = false;
		op.handle->updated = false;
		if (modes[m].kind == UPDATE || ht) {
			good(&op, "first Update, or routing in the caller's handle_mem");
			op.handle->mem_owned = true;
		}
		if (modes[m].kind != UPDATE)
			EXPECT_USE(op_call(&op), fn, "ncclEpUpdateHandle");
		op.handle->mem_owned = false;
		op.handle->updated = true;
		if (modes[m].kind != UPDATE) {
			op.fake.group.staged = 1;
			good(&op, "one staged elsewhere");
			op.fake.group.staged = 2;
			EXPECT_USE(op_call(&op), fn, "staged");
			op.fake.group.staged = 0;
		}
		op.handle->dispatched = false;
		if (modes[m].kind == COMBINE && !ht)
			EXPECT_USE(op_call(&op), fn, "ncclEpDispatch");
		else
			good(&op, "no dispatch before");
		op_free(&op);
	}
}

static void row_set(struct op *op, enum tensor_id id, unsigned dim, size_t size, void *data)
{
	op->sizes[id][dim] = size;
	op->tensor[id].data = data;
}

/* T = 0 on this rank: no rows, no data, and nothing else changes. */
Test(bad_args_op, no_tokens)
{
	for (size_t m = 0; m < MODES; m++) {
		struct op op;

		op_init(&op, &modes[m]);
		op.handle->t = 0;
		for (size_t i = 0; i < modes[m].count; i++)
			if (modes[m].spec[i].dim[0] == T && strchr("ro", modes[m].spec[i].need))
				row_set(&op, modes[m].spec[i].id, 0, 0, NULL);
		good(&op, "T = 0");
		op.handle->t = T;
		op_free(&op);
	}
}

/* Without an Update since Init, T is the number of token rows, up to Tmax; weights must match. */
Test(bad_args_op, rows_without_update)
{
	struct op op;

	op_init(&op, mode_of("dispatch HT flat"));
	op.handle->updated = false;
	op.sizes[IN_TOKENS][0] = op.sizes[IN_WEIGHTS][0] = TMAX;
	good(&op, "T from the tokens");
	op.sizes[IN_WEIGHTS][0] = TMAX - 1;
	EXPECT_ARG(op_call(&op), DISP, "inputs->topk_weights");
	op.sizes[IN_WEIGHTS][0] = 0;
	EXPECT_ARG(op_call(&op), DISP, "inputs->topk_weights");
	op.sizes[IN_TOKENS][0] = op.sizes[IN_WEIGHTS][0] = TMAX + 1;
	EXPECT_ARG(op_call(&op), DISP, "max_dispatch_tokens_per_rank");
	op_free(&op);
	/* K of a handle created with num_topk -1 and never updated: the tensors must agree with each other. */
	op_init(&op, mode_of("combine HT flat backward"));
	op.handle->updated = false;
	op.handle->k = op.handle->args.k = -1;
	op.sizes[COMB_IN_WEIGHTS][1] = op.sizes[COMB_OUT_WEIGHTS][1] = 6;
	good(&op, "K from the weights");
	op.sizes[COMB_OUT_WEIGHTS][1] = 5;
	EXPECT_ARG(op_call(&op), COMB, "outputs->topk_weights");
	op.handle->k = op.handle->args.k = K;
	op_free(&op);
}

/* Eager mode: output rows as reported by Update; all outputs empty or none. */
Test(bad_args_op, eager)
{
	struct op op;

	op_init(&op, mode_of("dispatch HT flat"));
	op.fake.group.cfg.max_recv = 0;
	op.sizes[OUT_TOKENS][0] = op.sizes[OUT_WEIGHTS][0] = op.sizes[OUT_IDX][0] = 1;
	good(&op, "one row");
	row_set(&op, OUT_TOKENS, 0, 0, NULL);
	EXPECT_ARG(op_call(&op), DISP, "outputs->topk_weights");
	row_set(&op, OUT_WEIGHTS, 0, 0, NULL);
	EXPECT_ARG(op_call(&op), DISP, "outputs->topk_idx");
	row_set(&op, OUT_IDX, 0, 0, NULL);
	good(&op, "no rows at all");
	op.fake.group.cfg.zero_copy = NCCL_EP_ZERO_COPY_ON;
	good(&op, "nothing to be window-backed");
	op_free(&op);

	op_init(&op, mode_of("combine HT flat backward"));
	row_set(&op, COMB_IN, 0, 0, NULL);
	EXPECT_ARG(op_call(&op), COMB, "inputs->topk_weights");
	row_set(&op, COMB_IN_WEIGHTS, 0, 0, NULL);
	good(&op, "nothing received");
	op_free(&op);
}

Test(bad_args_op, row_bytes)
{
	struct op op;

	op_init(&op, mode_of("dispatch LL rank-major"));
	op.fake.group.cfg.max_token_bytes = H * 2;
	good(&op, "just fits");
	op.fake.group.cfg.max_token_bytes--;
	EXPECT_ARG(op_call(&op), DISP, "max_token_bytes");
	op_free(&op);
	op_init(&op, mode_of("combine HT flat"));
	op.fake.group.cfg.max_token_bytes = H * 2 - 1;
	EXPECT_ARG(op_call(&op), COMB, "max_token_bytes");
	op_free(&op);
	op_init(&op, mode_of("dispatch LL rank-major quant fwd"));
	op.fake.group.cfg.max_token_bytes = H / 2 + 32;
	good(&op, "token and scales just fit");
	op.fake.group.cfg.max_token_bytes--;
	EXPECT_ARG(op_call(&op), DISP, "max_token_bytes");
	op_free(&op);
}

Test(bad_args_op, quantised)
{
	static const enum tensor_id scales[] = { IN_SCALES, OUT_SCALES }, tokens[] = { IN_TOKENS, OUT_TOKENS };
	struct op op;

	op_init(&op, mode_of("dispatch LL rank-major quant fwd"));
	op.cfg.round_scales = 1;
	EXPECT_ARG(op_call(&op), DISP, "round_scales");
	op.cfg.round_scales = 0;
	for (int i = 0; i < 2; i++) {
		op.tensor[scales[i]].data = op_data + 8;
		EXPECT_ARG(op_call(&op), DISP, "16");
		op.tensor[scales[i]].data = op_data;
	}
	op.sizes[IN_SCALES][1] = op.sizes[OUT_SCALES][2] = 24; /* rows of 24 bytes */
	EXPECT_ARG(op_call(&op), DISP, "inputs->scales");
	op.sizes[IN_SCALES][1] = op.sizes[OUT_SCALES][2] = 32;
	op.sizes[tokens[0]][1] = op.sizes[tokens[1]][2] = 100;
	EXPECT_ARG(op_call(&op), DISP, "inputs->tokens");
	op_free(&op);

	op_init(&op, mode_of("dispatch LL expert-major fp8"));
	op.cfg.round_scales = 1;
	good(&op, "round_scales");
	op.sizes[IN_TOKENS][1] = op.sizes[OUT_TOKENS][2] = 640;
	op.sizes[OUT_SCALES][2] = 5;
	EXPECT_ARG(op_call(&op), DISP, "512");
	op.sizes[IN_TOKENS][1] = op.sizes[OUT_TOKENS][2] = 1024;
	EXPECT_ARG(op_call(&op), DISP, "outputs->scales");
	op.sizes[OUT_SCALES][2] = 8;
	good(&op, "H = 1024");
	op_free(&op);
}

static void window_back(struct op *op, enum tensor_id id)
{
	op->tensor[id].win_hdl = (ncclWindow_t)op_data;
	op->tensor[id].data = NULL;
}

Test(bad_args_op, zero_copy)
{
	static const struct {
		const char *mode;
		enum tensor_id id;
		const char *arg; /* "": never accepted */
	} rows[] = {
		{ "dispatch HT flat", OUT_TOKENS, "outputs->tokens" },
		{ "dispatch HT expert-major", OUT_TOKENS, "outputs->tokens" },
		{ "dispatch HT flat backward", OUT_TOKENS, "outputs->tokens" },
		{ "combine HT flat", COMB_IN, "inputs->tokens" },
		{ "combine HT expert-major backward", COMB_IN, "inputs->tokens" },
		{ "dispatch LL rank-major", OUT_TOKENS, "outputs->tokens" },
		{ "dispatch LL rank-major quant fwd", OUT_SCALES, "outputs->tokens" },
	};
	struct op op;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		op_init(&op, mode_of(rows[i].mode));
		op.fake.group.cfg.zero_copy = NCCL_EP_ZERO_COPY_OFF;
		good(&op, "OFF");
		op.fake.group.cfg.zero_copy = NCCL_EP_ZERO_COPY_ON;
		EXPECT_ARG(op_call(&op), op_fn[op.mode->kind], rows[i].arg);
		window_back(&op, rows[i].id);
		good(&op, "window-backed");
		op_free(&op);
	}
	op_init(&op, mode_of("dispatch LL expert-major"));
	op.fake.group.cfg.zero_copy = NCCL_EP_ZERO_COPY_ON;
	window_back(&op, OUT_TOKENS);
	EXPECT_ARG(op_call(&op), DISP, "rank-major");
	op_free(&op);
	op_init(&op, mode_of("dispatch LL rank-major fp8"));
	op.fake.group.cfg.zero_copy = NCCL_EP_ZERO_COPY_ON;
	window_back(&op, OUT_TOKENS);
	EXPECT_ARG(op_call(&op), DISP, "quant_recipe");
	op_free(&op);
	op_init(&op, mode_of("dispatch HT flat quant fwd"));
	window_back(&op, OUT_TOKENS);
	EXPECT_ARG(op_call(&op), DISP, "outputs->scales");
	window_back(&op, OUT_SCALES);
	good(&op, "both");
	op_free(&op);
}

/* LL writes its counters in dispatch, not in update. */
Test(bad_args_op, layout_info_in_ll)
{
	struct op op;

	op_init(&op, mode_of("update LL rank-major"));
	op.use_info = true;
	EXPECT_ARG(op_call(&op), UPD, "layout_info");
	op_free(&op);
	op_init(&op, mode_of("dispatch LL expert-major"));
	op.use_info = false;
	EXPECT_ARG(op_call(&op), DISP, "layout_info->expert_counters");
	op_free(&op);
	op_init(&op, mode_of("dispatch LL rank-major"));
	op.use_info = false;
	good(&op, "counters are optional");
	op_free(&op);
}

/* Backward dispatch counts nothing. */
Test(bad_args_op, layout_info_backward)
{
	for (size_t m = 0; m < MODES; m++) {
		struct op op;

		if (modes[m].kind != DISPATCH || modes[m].pass != NCCL_EP_BWD_PASS)
			continue;
		op_init(&op, &modes[m]);
		op.use_info = true;
		EXPECT_ARG(op_call(&op), DISP, "layout_info must be NULL");
		op_free(&op);
	}
}

/* Counters in memory that the device cannot write are refused before anything is launched. */
Test(bad_args_op, pageable_counters)
{
	static const struct {
		const char *mode, *name;
		enum tensor_id id;
	} rows[] = {
		{ "update HT flat", "layout_info->expert_counters", INFO_COUNTERS },
		{ "update HT flat", "layout_info->recv_total_counter", INFO_TOTAL },
		{ "update HT expert-major", "layout_info->expert_counters", INFO_COUNTERS },
		{ "update HT expert-major", "layout_info->expert_offsets", INFO_OFFSETS },
		{ "update HT expert-major", "layout_info->recv_total_counter", INFO_TOTAL },
		{ "dispatch HT expert-major", "layout_info->expert_counters", INFO_COUNTERS },
		{ "dispatch HT expert-major", "layout_info->expert_offsets", INFO_OFFSETS },
		{ "dispatch HT expert-major", "layout_info->recv_total_counter", INFO_TOTAL },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct op op;

		op_init(&op, mode_of(rows[i].mode));
		fake_pageable = op.tensor[rows[i].id].data = op_data + 16;
		EXPECT_ARG(op_call(&op), op_fn[op.mode->kind], rows[i].name);
		EXPECT_ARG(op_call(&op), op_fn[op.mode->kind], "cudaHostAlloc");
		fake_pageable = NULL;
		op_free(&op);
	}
}

static void *short_copy(const void *src, size_t size)
{
	unsigned *copy = malloc(size);

	memcpy(copy, src, size);
	copy[0] = (unsigned)size;
	return copy;
}

/* Callers of API 1 have shorter structs; on the heap here, so that a sanitizer detects reads past them. */
Test(bad_args_op, version_1)
{
	for (size_t m = 0; m < MODES; m++) {
		struct ep_dispatch dispatch;
		struct ep_combine combine;
		struct op op;

		if (modes[m].quant != NCCL_EP_DISP_QUANT_NONE || modes[m].kind == UPDATE)
			continue;
		op_init(&op, &modes[m]);
		op.cfg.quant_recipe = (ncclEpDispQuant_t)2; /* past the end of version 1 */
		op.comb_cfg.quant_recipe = (ncclEpCombQuant_t)1;
		op.comb_in.scales = (void *)0x10;
		op.info.recv_topk_idx_kind = (ncclEpExpertIdKind_t)9;
		ncclEpDispatchConfig_t *cfg = short_copy(&op.cfg, 20);
		ncclEpLayoutInfo_t *info = short_copy(&op.info, 40);
		ncclEpCombineInputs_t *in = short_copy(&op.comb_in, 24);
		ncclEpCombineConfig_t *comb_cfg = short_copy(&op.comb_cfg, 16);

		if (modes[m].kind == DISPATCH) {
			cr_expect_eq(ep_check_dispatch(op.handle, &op.in, &op.out, op.use_info ? info : NULL, cfg,
						       &dispatch),
				     0, "%s: %s", modes[m].name, anyEpGetLastError());
			cr_expect(!dispatch.cfg.quant_recipe && !dispatch.info.recv_topk_idx_kind);
			cr_expect(dispatch.t == T && dispatch.h == H && dispatch.s == 0);
		} else {
			cr_expect_eq(ep_check_combine(op.handle, in, &op.comb_out, comb_cfg, &combine), 0, "%s: %s",
				     modes[m].name, anyEpGetLastError());
			cr_expect(!combine.cfg.quant_recipe && !combine.in.scales && combine.t == T && combine.h == H);
		}
		free(cfg);
		free(info);
		free(in);
		free(comb_cfg);
		op_free(&op);
	}
}
