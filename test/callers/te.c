/* SPDX-License-Identifier: Apache-2.0 */
#include "test/callers/te.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TE_SMS 132u

enum { PASS_FORWARD, PASS_BACKWARD };

/* ncclEpGroupConfig_t of API 3 as TransformerEngine's own header declares it, whatever ours does. */
struct te_config {
	unsigned size, magic, version, algorithm;
	unsigned num_experts, max_dispatch, max_recv, max_token_bytes;
	unsigned long rdma_buffer_size;
	unsigned num_qp_per_rank, num_channels, max_num_sms;
	void *alloc_fn, *free_fn, *context;
	unsigned enable_mask;
	uint64_t timeout_ns;
	unsigned zero_copy, overflow_policy, num_topk;
	unsigned char padding_v2[4];
	unsigned dispatch_num_sms, combine_num_sms;
};
_Static_assert(sizeof(struct te_config) == 120 && offsetof(struct te_config, dispatch_num_sms) == 112, "API 3");

static int group_make(struct te *te)
{
	struct te_config config = { .size = sizeof(config), .magic = NCCL_EP_MAGIC, .version = 3 };

	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	config.num_experts = TE_EXPERTS;
	config.max_dispatch = TE_TMAX;
	config.max_token_bytes = 2 * TE_HIDDEN;
	config.max_recv = (unsigned)te->shape.capacity;
	config.max_num_sms = 32;
	config.zero_copy = te->mode.windows ? NCCL_EP_ZERO_COPY_ON : NCCL_EP_ZERO_COPY_OFF;
	config.overflow_policy = te->shape.capacity ? NCCL_EP_OVERFLOW_DROP : NCCL_EP_OVERFLOW_AUTO;
	config.num_topk = TE_TOPK;
	return caller_expect(&te->c, "ncclEpCreateGroup",
			     ep.ncclEpCreateGroup(&te->group, te->c.comm, (const ncclEpGroupConfig_t *)&config));
}

static ncclEpHandleConfig_t handle_config(void)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;

	config.dispatch_output_per_expert_alignment = TE_ALIGN;
	return config;
}

static int bufs_open(struct te *te)
{
	struct caller *c = &te->c;
	enum where w = te->mode.windows ? IN_WINDOW : ON_DEVICE;
	ncclDataType_t sent = te->mode.quant ? ncclFloat8e4m3 : ncclBfloat16;
	size_t n = te->height, local = (size_t)ht_local(&te->shape), t = TE_TMAX, k = TE_TOPK, h = TE_HIDDEN;
	struct tensor *b = te->buf;

	return TENSOR(c, &b[TE_IDX], ON_DEVICE, te->mode.idx32 ? ncclInt32 : ncclInt64, t, k) ||
			       TENSOR(c, &b[TE_COUNTS], ON_DEVICE, ncclInt64, local) ||
			       TENSOR(c, &b[TE_TOTAL], te->mode.eager ? PINNED : ON_DEVICE, ncclInt64, 1) ||
			       TENSOR(c, &b[TE_TOKENS], ON_DEVICE, sent, t, h) ||
			       TENSOR(c, &b[TE_SCALES], ON_DEVICE, ncclUint8, t, h / 32) ||
			       TENSOR(c, &b[TE_WEIGHTS], ON_DEVICE, ncclFloat32, t, k) ||
			       TENSOR(c, &b[TE_OUT], w, sent, n, h) ||
			       TENSOR(c, &b[TE_OUT_SCALES], w, ncclUint8, n, h / 32) ||
			       TENSOR(c, &b[TE_OUT_WEIGHTS], w, ncclFloat32, n) ||
			       TENSOR(c, &b[TE_ANSWERS], w, ncclBfloat16, n, h) ||
			       TENSOR(c, &b[TE_ANSWER_WEIGHTS], w, ncclFloat32, n) ||
			       TENSOR(c, &b[TE_SUMS], ON_DEVICE, ncclBfloat16, t, h) ||
			       TENSOR(c, &b[TE_SUM_WEIGHTS], ON_DEVICE, ncclFloat32, t, k) ||
			       TENSOR(c, &b[TE_BACK], ON_DEVICE, sent, t, h) ||
			       TENSOR(c, &b[TE_BACK_SCALES], ON_DEVICE, ncclUint8, t, h / 32) ||
			       TENSOR(c, &b[TE_BACK_OUT], w, sent, n, h) ||
			       TENSOR(c, &b[TE_BACK_OUT_SCALES], w, ncclUint8, n, h / 32)
		       ? -1
		       : 0;
}

static int group_open(struct te *te, const struct te_mode *mode, int capacity)
{
	ncclEpHandleConfig_t config = handle_config();

	te->mode = *mode;
	te->shape = (struct ht_shape){ .base = { .ranks = te->c.ranks,
						 .experts = TE_EXPERTS,
						 .topk = TE_TOPK,
						 .tmax = TE_TMAX,
						 .hidden = TE_HIDDEN,
						 .token = mode->quant ? NUM_E4M3 : NUM_BF16,
						 .scale = NUM_U8,
						 .scale_width = TE_HIDDEN / 32,
						 .quant = mode->quant ? LL_QUANT_FWD : LL_QUANT_NONE,
						 .combine = NUM_BF16 },
				       .expert_major = true,
				       .align = TE_ALIGN,
				       .capacity = capacity };
	te->height = (size_t)(capacity ? capacity : ht_bound(&te->shape));
	if (group_make(te) || caller_expect(&te->c, "ncclEpHandleMemSize",
					    ep.ncclEpHandleMemSize(te->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &config,
								   &te->mem_size, TE_TOPK)))
		return -1;
	return caller_meet(&te->c) || bufs_open(te) || caller_meet(&te->c) ? -1 : 0;
}

int te_open(struct te *te, struct seat *seat, const struct te_mode *mode, int capacity)
{
	char sms[16];

	*te = (struct te){ .c = { .seat = seat } };
	snprintf(sms, sizeof(sms), "%u", TE_SMS);
	if (seat_rank(seat) == 0) {
		setenv("NCCL_EP_SHUFFLE_SMS", sms, 0);
		setenv("NCCL_EP_PREPROCESS_NUM_SMS", sms, 0);
	}
	if (seat_barrier(seat) || load_te())
		return seat_fail(seat, "libnccl_ep.so cannot be used");
	if (caller_open(&te->c, seat))
		return -1;
	return group_open(te, mode, capacity);
}

static int group_close(struct te *te)
{
	ncclEpGroup_t group = te->group;

	if (caller_meet(&te->c))
		return -1;
	tensors_close(&te->c, te->buf, TE_BUFS);
	te->group = NULL;
	return seat_barrier(te->c.seat) || caller_expect(&te->c, "ncclEpGroupDestroy", ep.ncclEpGroupDestroy(group))
		       ? -1
		       : 0;
}

int te_close(struct te *te)
{
	if (te->group && !seat_failed(te->c.seat))
		group_close(te);
	return caller_close(&te->c);
}

int te_desert(struct te *te)
{
	return caller_close(&te->c);
}

int te_regroup(struct te *te, const struct te_mode *mode, int capacity)
{
	return group_close(te) || group_open(te, mode, capacity) ? -1 : 0;
}

int te_handle(struct te *te, void *mem, ncclEpHandle_t *out)
{
	ncclEpHandleConfig_t config = handle_config();
	size_t size[] = { te->mem_size };
	const ncclEpTensor_t t = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 1, .datatype = ncclUint8, .data = mem,
				   .sizes = size };

	return caller_expect(&te->c, "ncclEpInitHandle",
			     ep.ncclEpInitHandle(out, te->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &config, TE_TOPK, &t));
}

int te_destroy(struct te *te, ncclEpHandle_t *handle)
{
	ncclEpHandle_t old = *handle;

	*handle = NULL;
	return caller_expect(&te->c, "ncclEpHandleDestroy", ep.ncclEpHandleDestroy(old));
}

int layer_data(struct te *te, struct layer *layer, const struct ll_data *data)
{
	round_close(&layer->round);
	if (round_open(&layer->round, &te->shape, data, te->c.rank, te->mode.quant))
		return seat_fail(te->c.seat, "out of memory");
	return 0;
}

/* ---- passes ---- */

static int idx_put(struct te *te, const struct ll_input *in)
{
	int32_t narrow[TE_TMAX * TE_TOPK];

	tensor_rows(&te->buf[TE_IDX], (size_t)in->t);
	for (int i = 0; i < in->t * TE_TOPK; i++)
		narrow[i] = (int32_t)in->idx[i];
	return tensor_put(&te->c, &te->buf[TE_IDX], te->mode.idx32 ? (const void *)narrow : in->idx);
}

/* `rows` rows of what this rank sends. */
static int sent_put(struct te *te, enum te_buf tokens, const struct ll_input *in)
{
	struct tensor *b = &te->buf[tokens];

	tensor_rows(&b[0], (size_t)in->t);
	tensor_rows(&b[1], (size_t)in->t);
	if (tensor_put(&te->c, &b[0], in->tokens))
		return -1;
	return te->mode.quant ? tensor_put(&te->c, &b[1], in->scales) : 0;
}

static void received_rows(struct te *te, enum te_buf tokens, size_t rows)
{
	tensor_rows(&te->buf[tokens], rows);
	tensor_rows(&te->buf[tokens + 1], rows);
}

static size_t rows_of(const struct te *te, const struct layer *layer)
{
	return te->mode.eager ? (size_t)round_plan(&layer->round)->rows : te->height;
}

static ncclResult_t dispatch(struct te *te, struct layer *layer, const ncclEpLayoutInfo_t *info, bool backward)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	struct tensor *from = &te->buf[backward ? TE_BACK : TE_TOKENS], *to = &te->buf[backward ? TE_BACK_OUT : TE_OUT];

	in.tokens = &from[0].t;
	out.tokens = &to[0].t;
	if (te->mode.quant) {
		in.scales = &from[1].t;
		out.scales = &to[1].t;
		config.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
	}
	if (!backward) {
		in.topk_weights = &te->buf[TE_WEIGHTS].t;
		out.topk_weights = &te->buf[TE_OUT_WEIGHTS].t;
	}
	config.pass_direction = backward ? NCCL_EP_BWD_PASS : NCCL_EP_FWD_PASS;
	return ep.ncclEpDispatch(layer->handle, &in, &out, info, &config, te->c.shim.stream);
}

static int rows_check(struct te *te, struct layer *layer, bool backward)
{
	struct tensor *b = &te->buf[backward ? TE_BACK_OUT : TE_OUT];
	struct round_got got = { .height = rows_of(te, layer), .tokens = tensor_get(&te->c, &b[0]) };

	if (te->mode.quant)
		got.scales = tensor_get(&te->c, &b[1]);
	if (!backward)
		got.weights = tensor_get(&te->c, &te->buf[TE_OUT_WEIGHTS]);
	if (seat_failed(te->c.seat))
		return -1;
	round_check_rows(&layer->round, backward ? layer->round.back : layer->round.in, &got, &te->c.verdict);
	return 0;
}

static int counts_check(struct te *te, struct layer *layer)
{
	const int64_t *count = tensor_get(&te->c, &te->buf[TE_COUNTS]);
	const int64_t *total = tensor_get(&te->c, &te->buf[TE_TOTAL]);

	if (!count || !total)
		return -1;
	round_check_counts(&layer->round, count, total, &te->c.verdict);
	return 0;
}

/* What the experts return. */
static int answers_put(struct te *te, struct layer *layer, int pass)
{
	size_t rows = rows_of(te, layer);
	uint8_t *tokens = malloc(rows * 2 * TE_HIDDEN + 1);
	float *weights = malloc(rows * sizeof(*weights) + 1);
	int rc = -1;

	if (tokens && weights) {
		round_answers(&layer->round, pass, rows, tokens, weights);
		tensor_rows(&te->buf[TE_ANSWERS], rows);
		tensor_rows(&te->buf[TE_ANSWER_WEIGHTS], rows);
		rc = tensor_put(&te->c, &te->buf[TE_ANSWERS], tokens) ||
				     tensor_put(&te->c, &te->buf[TE_ANSWER_WEIGHTS], weights)
			     ? -1
			     : 0;
	}
	free(tokens);
	free(weights);
	return rc;
}

static int combine(struct te *te, struct layer *layer, int pass)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;
	struct tensor *b = te->buf;
	bool backward = pass == PASS_BACKWARD;
	const uint8_t *sums;
	const float *weights = NULL;

	tensor_rows(&b[TE_SUMS], (size_t)round_mine(&layer->round)->t);
	tensor_rows(&b[TE_SUM_WEIGHTS], (size_t)round_mine(&layer->round)->t);
	if (answers_put(te, layer, pass) || tensor_fill(&te->c, &b[TE_SUMS], LL_POISON_OUT) ||
	    tensor_fill(&te->c, &b[TE_SUM_WEIGHTS], LL_POISON_OUT))
		return -1;
	in.tokens = &b[TE_ANSWERS].t;
	in.topk_weights = backward ? &b[TE_ANSWER_WEIGHTS].t : NULL;
	out.tokens = &b[TE_SUMS].t;
	out.topk_weights = backward ? &b[TE_SUM_WEIGHTS].t : NULL;
	config.pass_direction = NCCL_EP_BWD_PASS;
	if (caller_expect(&te->c, backward ? "ncclEpCombine (BWD)" : "ncclEpCombine",
			  ep.ncclEpCombine(layer->handle, &in, &out, backward ? &config : NULL, te->c.shim.stream)) ||
	    caller_sync(&te->c))
		return -1;
	sums = tensor_get(&te->c, &b[TE_SUMS]);
	if (backward)
		weights = tensor_get(&te->c, &b[TE_SUM_WEIGHTS]);
	if (seat_failed(te->c.seat))
		return -1;
	round_check_sums(&layer->round, pass, sums, weights, &te->c.verdict);
	return 0;
}

static int outputs_poison(struct te *te, enum te_buf tokens)
{
	return tensor_fill(&te->c, &te->buf[tokens], LL_POISON_OUT) ||
			       tensor_fill(&te->c, &te->buf[tokens + 1], LL_POISON_OUT)
		       ? -1
		       : 0;
}

/* Update, and in eager mode the rows that the host reads. */
static int update(struct te *te, struct layer *layer, const ncclEpLayoutInfo_t *info)
{
	struct tensor *b = te->buf;

	if (caller_expect(&te->c, "ncclEpUpdateHandle",
			  ep.ncclEpUpdateHandle(layer->handle, &b[TE_IDX].t, te->mode.fused ? NULL : info,
						te->c.shim.stream)))
		return -1;
	if (!te->mode.eager)
		return 0;
	if (caller_sync(&te->c))
		return -1;
	if (*(const int64_t *)(const void *)b[TE_TOTAL].at != round_plan(&layer->round)->total)
		return seat_fail(te->c.seat, "recv_total is %lld in pinned memory, must be %lld",
				 (long long)*(const int64_t *)(const void *)b[TE_TOTAL].at,
				 (long long)round_plan(&layer->round)->total);
	return 0;
}

int layer_forward(struct te *te, struct layer *layer)
{
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	const struct ll_input *in = round_mine(&layer->round);
	struct tensor *b = te->buf;

	info.expert_counters = &b[TE_COUNTS].t;
	info.recv_total_counter = &b[TE_TOTAL].t;
	tensor_rows(&b[TE_WEIGHTS], (size_t)in->t);
	received_rows(te, TE_OUT, te->height);
	tensor_rows(&b[TE_OUT_WEIGHTS], te->height);
	if (idx_put(te, in) || sent_put(te, TE_TOKENS, in) || tensor_put(&te->c, &b[TE_WEIGHTS], in->weight) ||
	    outputs_poison(te, TE_OUT) || tensor_fill(&te->c, &b[TE_OUT_WEIGHTS], LL_POISON_OUT) ||
	    tensor_fill(&te->c, &b[TE_COUNTS], LL_POISON_OUT) || tensor_fill(&te->c, &b[TE_TOTAL], LL_POISON_OUT) ||
	    caller_sync(&te->c) || update(te, layer, &info))
		return -1;
	received_rows(te, TE_OUT, rows_of(te, layer));
	tensor_rows(&b[TE_OUT_WEIGHTS], rows_of(te, layer));
	if (caller_expect(&te->c, "ncclEpDispatch", dispatch(te, layer, te->mode.fused ? &info : NULL, false)) ||
	    caller_sync(&te->c) || counts_check(te, layer) || rows_check(te, layer, false))
		return -1;
	return combine(te, layer, PASS_FORWARD);
}

int layer_backward(struct te *te, struct layer *layer)
{
	received_rows(te, TE_BACK_OUT, te->height);
	if (sent_put(te, TE_BACK, &layer->round.back[te->c.rank]) || outputs_poison(te, TE_BACK_OUT) ||
	    caller_sync(&te->c))
		return -1;
	received_rows(te, TE_BACK_OUT, rows_of(te, layer));
	if (caller_expect(&te->c, "ncclEpDispatch (BWD)", dispatch(te, layer, NULL, true)) || caller_sync(&te->c) ||
	    rows_check(te, layer, true))
		return -1;
	return combine(te, layer, PASS_BACKWARD);
}
