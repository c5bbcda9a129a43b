/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anyEpHandleScales: the same tokens are dispatched by rows and then by columns or as exponents, and every word must be
 * the one of its row; other layouts from operation to operation and from rank to rank, staged and not, ranks without
 * tokens. Then what is refused. An argument: as many ranks per simulated node. Exit status 0 or 1.
 */
#include <stdbool.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

enum {
	RANKS = 3,
	TMAX = 7,
	EL = 2,
	K = 3,
	H = 1536,
	S = H / 128,
	ROWS = RANKS * TMAX,
	ROUNDS = 8,
	POISON = 0x5a5a5a5a
};

struct data {
	uint16_t x[TMAX][H];
	int64_t idx[TMAX][K];
	uint8_t rows[EL][ROWS][H];
	uint32_t scales[EL * ROWS * S];
	uint32_t want[EL][RANKS][TMAX][S]; /* by source and token, from the dispatch by rows */
	int32_t count[EL], tokens[EL][ROWS];
	int64_t ranges[EL][RANKS];
};

#define TENSOR(name, type, memory, ...)                                                                       \
	ncclEpTensor_t name = { NCCL_EP_TENSOR_INIT_INLINE,                                                   \
				.ndim = sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t), .datatype = type, \
				.data = memory, .sizes = (size_t[]){ __VA_ARGS__ } }

/* All arguments of a dispatch, by rows until scales_as changes it. Not to be copied. */
struct call {
	size_t x_sizes[2], idx_sizes[2], rows_sizes[3], scales_sizes[3], count_sizes[1];
	ncclEpTensor_t x, idx, rows, scales, count;
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info;
	ncclEpDispatchConfig_t config;
};

static ncclEpTensor_t tensor(unsigned ndim, ncclDataType_t type, void *data, size_t *sizes)
{
	return (ncclEpTensor_t){ NCCL_EP_TENSOR_INIT_INLINE, .ndim = ndim, .datatype = type, .data = data,
				 .sizes = sizes };
}

static void call_make(struct call *c, struct data *d, size_t tokens)
{
	*c = (struct call){ .x_sizes = { tokens, H },
			    .idx_sizes = { tokens, K },
			    .rows_sizes = { EL, ROWS, H },
			    .scales_sizes = { EL, ROWS, S },
			    .count_sizes = { EL },
			    .in = NCCL_EP_DISPATCH_INPUTS_INIT,
			    .out = NCCL_EP_DISPATCH_OUTPUTS_INIT,
			    .info = NCCL_EP_LAYOUT_INFO_INIT,
			    .config = NCCL_EP_DISPATCH_CONFIG_INIT };
	c->x = tensor(2, ncclBfloat16, d->x, c->x_sizes);
	c->idx = tensor(2, ncclInt64, d->idx, c->idx_sizes);
	c->rows = tensor(3, ncclFloat8e4m3, d->rows, c->rows_sizes);
	c->scales = tensor(3, ncclFloat32, d->scales, c->scales_sizes);
	c->count = tensor(1, ncclInt32, d->count, c->count_sizes);
	c->in.tokens = &c->x;
	c->out.tokens = &c->rows;
	c->out.scales = &c->scales;
	c->info.expert_counters = &c->count;
	c->config.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	c->config.round_scales = 1;
}

static size_t words_of(anyEpScales_t scales)
{
	return scales == ANYEP_SCALES_EXPONENTS ? S / 4 : S;
}

static void scales_as(struct call *c, anyEpScales_t scales)
{
	c->scales.datatype = scales == ANYEP_SCALES_EXPONENTS ? ncclInt32 : ncclFloat32;
	c->scales_sizes[1] = scales == ANYEP_SCALES_ROWS ? ROWS : words_of(scales);
	c->scales_sizes[2] = scales == ANYEP_SCALES_ROWS ? S : ROWS;
}

/* What one token in the row layout is in another: a word of it. */
static uint32_t word_of(const uint32_t *row, anyEpScales_t scales, size_t word)
{
	uint32_t packed = 0;

	if (scales != ANYEP_SCALES_EXPONENTS)
		return row[word];
	for (unsigned i = 4; i-- > 0;)
		packed = packed << 8 | row[4 * word + i] >> 23;
	return packed;
}

static uint32_t *word_at(struct data *d, anyEpScales_t scales, size_t e, size_t row, size_t word)
{
	size_t words = words_of(scales);

	return &d->scales[scales == ANYEP_SCALES_ROWS ? (e * ROWS + row) * words + word
						      : (e * words + word) * ROWS + row];
}

static void fill(struct data *d, const struct rank *me, int round, int tokens)
{
	uint32_t random = (uint32_t)(me->rank * 977 + round * 31 + 1);

	for (int t = 0; t < tokens; t++) {
		for (int i = 0; i < H; i++) { /* exponents differ from group to group */
			random = random * 1664525u + 1013904223u;
			d->x[t][i] = (uint16_t)((random >> 16 & 0x80ff) | (0x38u + (uint32_t)(t + i / 128) % 13) << 8);
		}
		for (int k = 0; k < K; k++)
			d->idx[t][k] = (t + k + round) % 7 == 3 ? -1 : (t * 5 + me->rank + round + k) % (EL * me->n);
	}
}

/* One dispatch; the layout that is set while it is staged is none of its own. */
static int dispatch(ncclEpHandle_t handle, struct data *d, struct call *c, anyEpScales_t scales, bool staged)
{
	int bad = 0;
	TENSOR(tokens, ncclInt32, d->tokens, EL, ROWS);
	TENSOR(ranges, ncclInt64, d->ranges, EL, RANKS);

	for (size_t i = 0; i < EL * ROWS * S; i++)
		d->scales[i] = POISON;
	scales_as(c, scales);
	c->config.send_only = staged;
	EXPECT_OK(anyEpHandleScales(handle, scales));
	EXPECT_OK(ncclEpUpdateHandle(handle, &c->idx, NULL, NULL));
	EXPECT_OK(ncclEpDispatch(handle, &c->in, &c->out, &c->info, &c->config, NULL));
	if (staged) {
		EXPECT_OK(anyEpHandleScales(handle, (anyEpScales_t)((scales + 1) % 3)));
		EXPECT_OK(ncclEpComplete(handle, NULL, NULL));
	}
	EXPECT_OK(anyEpHandleSources(handle, &tokens, &ranges, NULL));
	return bad;
}

/* The source of a row. */
static int source_of(const struct data *d, size_t e, int row)
{
	for (int r = 0; r < RANKS; r++) {
		int first = (int)(d->ranges[e][r] >> 32), n = (int)(d->ranges[e][r] & 0xffff);

		if (row >= first && row < first + n)
			return r;
	}
	abort(); /* test/ll/sources.c checks that it cannot be */
}

static void keep(struct data *d)
{
	for (size_t e = 0; e < EL; e++)
		for (int row = 0; row < d->count[e]; row++)
			memcpy(d->want[e][source_of(d, e, row)][d->tokens[e][row]],
			       word_at(d, ANYEP_SCALES_ROWS, e, (size_t)row, 0), S * sizeof(uint32_t));
}

static int check(struct data *d, anyEpScales_t scales)
{
	size_t words = words_of(scales);
	int bad = 0;

	for (size_t e = 0; e < EL && !bad; e++)
		for (int row = 0; row < ROWS && !bad; row++) {
			bool valid = row < d->count[e];
			const uint32_t *want =
				valid ? d->want[e][source_of(d, e, row)][d->tokens[e][row]] : (uint32_t *)d->x;

			for (size_t w = 0; w < words && !bad; w++)
				EXPECT(*word_at(d, scales, e, (size_t)row, w) ==
				       (valid ? word_of(want, scales, w) : POISON));
		}
	for (size_t i = EL * ROWS * words; i < EL * ROWS * S && !bad; i++)
		EXPECT(d->scales[i] == POISON);
	return bad;
}

static int round_run(struct rank *me, ncclEpHandle_t handle, struct data *d, int round)
{
	anyEpScales_t scales = (anyEpScales_t)((round + me->rank) % 3);
	int tokens = (round + me->rank) % 4 == 0 ? 0 : TMAX - round % 2, bad = 0;
	struct call c;

	fill(d, me, round, tokens);
	call_make(&c, d, (size_t)tokens);
	bad += dispatch(handle, d, &c, ANYEP_SCALES_ROWS, false);
	keep(d);
	bad += dispatch(handle, d, &c, scales, round % 2);
	return bad + check(d, scales);
}

static ncclEpGroup_t group_make(struct rank *me, ncclEpAlgorithm_t algorithm)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;

	c.algorithm = algorithm;
	c.num_experts = (unsigned)(EL * me->n);
	c.max_dispatch_tokens_per_rank = TMAX;
	c.max_token_bytes = H * sizeof(uint16_t);
	c.max_recv_tokens_per_rank = algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT ? ROWS : NCCL_EP_AUTO;
	return ncclEpCreateGroup(&group, me->comm, &c) == ncclSuccess ? group : NULL;
}

#define REFUSED(call, result, text)                                \
	do {                                                       \
		EXPECT((call) == (result));                        \
		EXPECT(strstr(anyEpGetLastError(), text) != NULL); \
	} while (0)
#define DISPATCH_REFUSED(text) \
	REFUSED(ncclEpDispatch(handle, &c.in, &c.out, &c.info, &c.config, NULL), ncclInvalidArgument, text)

/* The caller's own scales, which may have any type by rows. */
static int forward_refused(ncclEpHandle_t handle, struct data *d)
{
	struct call c;
	int bad = 0;
	TENSOR(given, ncclUint8, d->want, TMAX, 16);

	call_make(&c, d, TMAX);
	c.x.datatype = ncclFloat8e4m3;
	c.in.scales = &given;
	c.config.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
	c.config.round_scales = 0;
	EXPECT_OK(anyEpHandleScales(handle, ANYEP_SCALES_COLUMNS));
	c.scales.datatype = ncclUint8;
	DISPATCH_REFUSED("inputs->scales: dtype");
	EXPECT_OK(anyEpHandleScales(handle, ANYEP_SCALES_EXPONENTS));
	scales_as(&c, ANYEP_SCALES_EXPONENTS);
	given.datatype = ncclFloat32;
	given.sizes[1] = 6;
	DISPATCH_REFUSED("inputs->scales: a row has 6 scales, must be a multiple of 4");
	return bad;
}

static int refused(ncclEpHandle_t handle, struct data *d)
{
	struct call c;
	int bad = 0;

	call_make(&c, d, TMAX);
	EXPECT_OK(ncclEpUpdateHandle(handle, &c.idx, NULL, NULL));
	EXPECT_OK(anyEpHandleScales(handle, ANYEP_SCALES_COLUMNS));
	REFUSED(anyEpHandleScales(handle, (anyEpScales_t)3), ncclInvalidArgument, "anyEpHandleScales: scales");
	REFUSED(anyEpHandleScales(NULL, ANYEP_SCALES_ROWS), ncclInvalidArgument, "anyEpHandleScales: handle");
	DISPATCH_REFUSED("outputs->scales: sizes[1]"); /* still columns, and given rows */
	scales_as(&c, ANYEP_SCALES_COLUMNS);
	c.scales.datatype = ncclInt32;
	DISPATCH_REFUSED("outputs->scales: dtype");
	EXPECT_OK(anyEpHandleScales(handle, ANYEP_SCALES_EXPONENTS));
	DISPATCH_REFUSED("outputs->scales: sizes[1]");
	scales_as(&c, ANYEP_SCALES_EXPONENTS);
	c.scales.datatype = ncclFloat32;
	DISPATCH_REFUSED("outputs->scales: dtype");
	c.scales.datatype = ncclInt32;
	c.config.round_scales = 0;
	DISPATCH_REFUSED("config->round_scales must be 1");
	c.config.round_scales = 1;
	c.x_sizes[1] = c.rows_sizes[2] = 640;
	DISPATCH_REFUSED("H is 640");
	return bad + forward_refused(handle, d);
}

static int run(struct rank *me)
{
	struct data *d = calloc(1, sizeof(*d));
	ncclEpGroup_t group = group_make(me, NCCL_EP_ALGO_LOW_LATENCY);
	ncclEpHandle_t handle = NULL;
	int bad = 0;

	EXPECT(d && group);
	if (bad)
		return bad;
	EXPECT_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, K, NULL));
	for (int round = 0; round < ROUNDS; round++)
		bad += round_run(me, handle, d, round);
	bad += refused(handle, d);
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT_OK(ncclEpGroupDestroy(group));
	group = group_make(me, NCCL_EP_ALGO_HIGH_THROUGHPUT);
	EXPECT_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_FLAT, NULL, K, NULL));
	REFUSED(anyEpHandleScales(handle, ANYEP_SCALES_COLUMNS), ncclInvalidUsage, "only LL");
	EXPECT_OK(ncclEpHandleDestroy(handle));
	EXPECT_OK(ncclEpGroupDestroy(group));
	free(d);
	return bad;
}

int main(int argc, char **argv)
{
	int failed;

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	if (argc > 1)
		setenv("NCCL_EP_RANKS_PER_NODE", argv[1], 1);
	failed = ranks_threads(RANKS, run, NULL);
	printf("%s ll scales\n", failed ? "not ok" : "ok");
	return failed ? 1 : 0;
}
