/* SPDX-License-Identifier: Apache-2.0 */
/* Test of the LL oracle: number formats exhaustively, the model by small cases computed by hand, the checker by planted
 * errors that it must count exactly. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/check.h"
#include "test/oracle/expect.h"

static void bf16_by_hand(void)
{
	static const struct {
		uint32_t f32;
		uint16_t bf16;
	} row[] = {
		{ 0x00000000, 0x0000 }, { 0x80000000, 0x8000 }, { 0x3f800000, 0x3f80 },
		{ 0x3f808000, 0x3f80 }, /* tie */
		{ 0x3f818000, 0x3f82 }, { 0x3f808001, 0x3f81 }, { 0x3f807fff, 0x3f80 },
		{ 0x7f7fffff, 0x7f80 }, { 0xff7fffff, 0xff80 }, { 0x7f7f7fff, 0x7f7f },
		{ 0x00008000, 0x0000 }, { 0x00008001, 0x0001 }, { 0x00018000, 0x0002 },
		{ 0x7f800000, 0x7f80 },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		EXPECT(num_to_bf16(num_float(row[i].f32)) == row[i].bf16);
	EXPECT(isnan(num_from_bf16(num_to_bf16(NAN))));
}

/* All codes round-trip; the midpoint of two adjacent values rounds to even, slightly above or below to the nearest. */
static void f16_all_codes(void)
{
	for (unsigned code = 0; code < 0x7bff; code++) {
		float low = num_from_f16((uint16_t)code), high = num_from_f16((uint16_t)(code + 1)), middle;

		ASSERT(low < high);
		ASSERT(num_to_f16(low) == code);
		ASSERT(num_to_f16(-low) == (0x8000 | code));
		middle = (low + high) / 2; /* exact: 12 bits */
		ASSERT(num_to_f16(middle) == (code % 2 ? code + 1 : code));
		ASSERT(num_to_f16(nextafterf(middle, 0)) == code);
		ASSERT(num_to_f16(nextafterf(middle, 1e9f)) == code + 1);
	}
	EXPECT(num_from_f16(0x3c00) == 1.0f);
	EXPECT(num_from_f16(0x0001) == 0x1p-24f);
	EXPECT(num_from_f16(0x7bff) == 65504.0f);
	EXPECT(num_to_f16(65519.0f) == 0x7bff);
	EXPECT(num_to_f16(65520.0f) == 0x7c00);
	EXPECT(num_to_f16(-1e30f) == 0xfc00);
	EXPECT(num_to_f16(0x1p-25f) == 0);
	EXPECT(num_to_f16(0x1.000002p-25f) == 1);
	EXPECT(isnan(num_from_f16(num_to_f16(NAN))));
}

static void e4m3_all_codes(void)
{
	for (unsigned code = 0; code < 126; code++) {
		float low = num_from_e4m3((uint8_t)code), high = num_from_e4m3((uint8_t)(code + 1)),
		      middle = (low + high) / 2;

		ASSERT(low < high);
		ASSERT(num_to_e4m3(low) == code);
		ASSERT(num_to_e4m3(-low) == (0x80 | code));
		ASSERT(num_to_e4m3(middle) == (code % 2 ? code + 1 : code));
		ASSERT(num_to_e4m3(nextafterf(middle, 0)) == code);
		ASSERT(num_to_e4m3(nextafterf(middle, 1e9f)) == code + 1);
	}
	EXPECT(num_from_e4m3(0x38) == 1.0f);
	EXPECT(num_from_e4m3(0x01) == 0x1p-9f);
	EXPECT(num_from_e4m3(0x08) == 0x1p-6f);
	EXPECT(num_from_e4m3(0x7e) == 448.0f);
	EXPECT(num_to_e4m3(449.0f) == 0x7e);
	EXPECT(num_to_e4m3(1e9f) == 0x7e);
	EXPECT(num_to_e4m3(-INFINITY) == 0xfe);
	EXPECT(num_to_e4m3(0x1p-10f) == 0);
	EXPECT((num_to_e4m3(NAN) & 0x7f) == 0x7f);
	EXPECT(num_to_e4m3(-0.0f) == 0x80);
}

/* Two ranks, two experts each. Rank 0: token 0 -> experts 3, 0; token 1 -> expert 3 twice. Rank 1: token 0 -> 2, bad.
 */
static int64_t idx0[] = { 3, 0, 3, 3 }, idx1[] = { 2, 4 };
static float weight0[] = { 0.5f, 2.0f, 1.0f, 0.25f }, weight1[] = { 3.0f, 7.0f };
static float tokens0[] = { 10, 11, 12, 13 }, tokens1[] = { 20, 21 };

static struct ll_input hand[] = {
	{ 2, idx0, weight0, (uint8_t *)tokens0, NULL },
	{ 1, idx1, weight1, (uint8_t *)tokens1, NULL },
};

static struct ll_shape hand_shape(enum ll_layout layout)
{
	return (struct ll_shape){ .layout = layout,
				  .ranks = 2,
				  .experts = 4,
				  .topk = 2,
				  .tmax = 3,
				  .hidden = 2,
				  .token = NUM_F32,
				  .combine = NUM_F32 };
}

static void expect_rows(const struct ll_expect *expect, int zone, int count, const struct ll_row *rows)
{
	ASSERT(expect->count[zone] == count);
	for (int i = 0; i < count; i++) {
		EXPECT(expect->row[zone * expect->cap + i].src == rows[i].src);
		EXPECT(expect->row[zone * expect->cap + i].token == rows[i].token);
	}
}

static void expert_major_rows(void)
{
	struct ll_shape shape = hand_shape(LL_EXPERT_MAJOR);
	const struct ll_row expert3[] = { { 0, 0 }, { 0, 1 } }, expert2[] = { { 1, 0 } }, expert0[] = { { 0, 0 } };
	struct ll_expect expect;

	ASSERT(ll_expect_dispatch(&shape, hand, NULL, 0, &expect) == 0);
	EXPECT(expect.cap == 6);
	expect_rows(&expect, 0, 1, expert0);
	expect_rows(&expect, 1, 0, NULL);
	ll_expect_free(&expect);
	ASSERT(ll_expect_dispatch(&shape, hand, NULL, 1, &expect) == 0);
	expect_rows(&expect, 0, 1, expert2);
	expect_rows(&expect, 1, 2, expert3);
	ll_expect_free(&expect);
}

static void masked_ranks_send_and_get_nothing(void)
{
	struct ll_shape shape = hand_shape(LL_EXPERT_MAJOR);
	const bool active[] = { false, true };
	struct ll_expect expect;
	float x[2][2] = { { 100, 200 }, { 1, 2 } }, sum[2], row[2];
	const uint8_t *answers[] = { (uint8_t *)x[0], (uint8_t *)x[1] };

	ASSERT(ll_expect_dispatch(&shape, hand, active, 1, &expect) == 0);
	EXPECT(expect.count[0] == 1);
	EXPECT(expect.count[1] == 0);
	ll_expect_free(&expect);
	/* Token 0 of rank 0 when its own rank is masked: expert 0 is skipped. */
	ll_expect_sum(&shape, &hand[0], active, 0, answers, sum, (uint8_t *)row);
	EXPECT(row[0] == 50.0f);
}

static void rank_major_rows_and_ids(void)
{
	struct ll_shape shape = hand_shape(LL_RANK_MAJOR);
	const struct ll_row from0[] = { { 0, 0 }, { 0, 1 } }, from1[] = { { 1, 0 } };
	struct ll_expect expect;
	int32_t idx[2];

	ASSERT(ll_expect_dispatch(&shape, hand, NULL, 1, &expect) == 0);
	EXPECT(expect.cap == 3);
	expect_rows(&expect, 0, 2, from0);
	expect_rows(&expect, 1, 1, from1);
	ll_expect_free(&expect);
	ll_expect_idx(&shape, &hand[0], 0, 1, idx);
	EXPECT(idx[0] == 1 && idx[1] == -1);
	ll_expect_idx(&shape, &hand[0], 1, 1, idx);
	EXPECT(idx[0] == 1 && idx[1] == 1);
	ll_expect_idx(&shape, &hand[1], 0, 1, idx);
	EXPECT(idx[0] == 0 && idx[1] == -1);
	shape.global_ids = true;
	ll_expect_idx(&shape, &hand[0], 0, 1, idx);
	EXPECT(idx[0] == 3 && idx[1] == -1);
}

static void sums(void)
{
	struct ll_shape shape = hand_shape(LL_EXPERT_MAJOR);
	float x[2][2] = { { 100, 200 }, { 1, 2 } }, sum[2], row[2];
	const uint8_t *answers[] = { (uint8_t *)x[0], (uint8_t *)x[1] };

	ll_expect_sum(&shape, &hand[0], NULL, 0, answers, sum, (uint8_t *)row);
	EXPECT(row[0] == 52.0f && row[1] == 104.0f);
	/* An expert selected twice counts with both weights. */
	answers[1] = answers[0];
	ll_expect_sum(&shape, &hand[0], NULL, 1, answers, sum, (uint8_t *)row);
	EXPECT(row[0] == 125.0f && row[1] == 250.0f);
	/* A bad id is skipped. */
	answers[1] = NULL;
	ll_expect_sum(&shape, &hand[1], NULL, 0, answers, sum, (uint8_t *)row);
	EXPECT(row[0] == 300.0f);
	/* Rank-major: no weights, each rank once. */
	shape.layout = LL_RANK_MAJOR;
	ll_expect_sum(&shape, &hand[0], NULL, 1, answers, sum, (uint8_t *)row);
	EXPECT(row[0] == 100.0f && row[1] == 200.0f);
	answers[1] = (uint8_t *)x[1];
	ll_expect_sum(&shape, &hand[0], NULL, 0, answers, sum, (uint8_t *)row);
	EXPECT(row[0] == 101.0f && row[1] == 202.0f);
}

/* The reference of the sums is the C library's fmaf: against its definition. a * b is exact in double; the sum with c
 * is rounded to odd there, and then once to float. */
static float fma_by_definition(float a, float b, float c)
{
	double p = (double)a * (double)b, s = p + (double)c, v = s - p, e = (p - (s - v)) + ((double)c - v);
	int64_t bits;

	memcpy(&bits, &s, sizeof(bits));
	if (e != 0 && !(bits & 1)) {
		bits += (e > 0) == (s > 0) ? 1 : -1;
		memcpy(&s, &bits, sizeof(s));
	}
	return (float)s;
}

static void fmaf_is_exact(void)
{
	uint64_t random = 7, apart = 0;

	/* Last places that cancel, halfway cases, sums below the smallest normal number. */
	EXPECT(fmaf(1.0f - 0x1p-13f, 1.0f - 0x1p-13f, -1.0f) == -0x1p-12f + 0x1p-26f);
	EXPECT(fmaf(0x1p-12f, 0x1p-13f, 1.0f + 0x1p-23f) == 1.0f + 0x1p-23f);
	EXPECT(fmaf(0x1.000002p-12f, 0x1.000002p-12f, 1.0f) == 1.0f + 0x1p-23f);
	EXPECT(fmaf(0x1p-75f, 0x1p-75f, 0x1p-149f) == 0x1p-148f);
	for (int i = 0; i < 200000; i++) {
		uint64_t x = ll_random(&random), y = ll_random(&random);
		/* The exponent of c is within 32 of a's, and b in [1, 2). */
		uint32_t ea = 33 + (uint32_t)(x >> 56) % 190, ec = ea - 32 + (uint32_t)(y >> 56) % 64;
		float a = num_float(((uint32_t)x & 0x807fffffu) | ea << 23);
		float b = num_float((uint32_t)(y >> 32) % 0x800000u | 127u << 23);
		float c = num_float(((uint32_t)y & 0x807fffffu) | ec << 23), got = fmaf(a, b, c);

		ASSERT(num_bits(got) == num_bits(fma_by_definition(a, b, c)));
		apart += got != a * b + c;
	}
	EXPECT(apart > 1000);
}

/* (1 + e) - 1 in ascending k differs from 1 - 1 + e: tests the order and the FMA. */
static void sum_order(void)
{
	struct ll_shape shape = { .ranks = 1, .experts = 3, .topk = 3, .tmax = 1, .hidden = 1, .combine = NUM_F32 };
	int64_t idx[] = { 0, 1, 2 };
	float weight[] = { 1.0f, 1.0f, 1.0f }, x[] = { 1.0f, 0x1p-25f, -1.0f }, sum, row;
	struct ll_input in = { 1, idx, weight, NULL, NULL };
	const uint8_t *answers[] = { (uint8_t *)&x[0], (uint8_t *)&x[1], (uint8_t *)&x[2] };

	ll_expect_sum(&shape, &in, NULL, 0, answers, &sum, (uint8_t *)&row);
	EXPECT(row == 0.0f);
	/* (1 - 2^-13)^2 = 1 - 2^-12 + 2^-26: rounded before it is added, it would lose the 2^-26. */
	idx[2] = -1;
	x[0] = -1.0f;
	weight[1] = x[1] = 1.0f - 0x1p-13f;
	ll_expect_sum(&shape, &in, NULL, 0, answers, &sum, (uint8_t *)&row);
	EXPECT(row == -0x1p-12f + 0x1p-26f);
}

static void ds_row(enum ll_quant quant, const float *x, uint8_t *out, float *scale)
{
	struct ll_shape shape = {
		.quant = quant, .ranks = 1, .experts = 1, .topk = 1, .tmax = 1, .hidden = 512, .token = NUM_BF16
	};
	uint16_t tokens[512];
	struct ll_input in = { .t = 1, .tokens = (uint8_t *)tokens };

	ASSERT(ll_out_bytes(&shape) == 512);
	ASSERT(ll_scale_bytes(&shape) == 16);
	for (int i = 0; i < 512; i++)
		tokens[i] = num_to_bf16(x[i]);
	ll_expect_payload(&shape, &in, 0, out, (uint8_t *)scale);
}

static void ds_fp8(void)
{
	float x[512] = { 0 }, scale[4];
	uint8_t out[512];

	x[0] = 896.0f; /* group 0: amax 896, factor 0.5 */
	x[1] = -1.0f;
	x[128] = 448.0f; /* group 1: exactly a power of two times 448 */
	x[256] = 450.0f; /* group 2: just over */
	x[257] = 225.0f;
	ds_row(LL_QUANT_DS, x, out, scale);
	EXPECT(scale[0] == 896.0f * (1.0f / 448.0f));
	EXPECT(scale[2] == 450.0f * (1.0f / 448.0f));
	EXPECT(scale[3] == 1e-4f * (1.0f / 448.0f));
	EXPECT(out[0] == 0x7e && out[1] == (0x80 | 0x30) && out[128] == 0x7e && out[256] == 0x7e && out[257] == 0x76);
	EXPECT(out[2] == 0 && out[511] == 0);
	ds_row(LL_QUANT_DS_ROUND, x, out, scale);
	EXPECT(scale[0] == 2.0f && scale[1] == 1.0f && scale[2] == 2.0f);
	EXPECT(scale[3] == 0x1p-22f); /* 1e-4 / 448 = 2^-22.1 */
	EXPECT(out[0] == 0x7e && out[256] == 0x76 && out[257] == 0x6e);
}

/* ---- the checker: correct outputs pass, n planted errors count as n ---- */

struct fixture {
	struct ll_shape shape;
	struct ll_data data;
	struct ll_input *in;
	struct ll_scene scene;
	struct ll_expect expect;
	uint8_t *tokens, *scales;
	int32_t *idx, *counts;
	float *weights;
	struct ll_row *map;
};

/* Correct outputs, rows of a zone in reverse order. */
static void fixture_open(struct fixture *f, enum ll_layout layout, enum ll_quant quant)
{
	size_t rows;

	f->shape = (struct ll_shape){ .layout = layout,
				      .quant = quant,
				      .ranks = 3,
				      .experts = 6,
				      .topk = 3,
				      .tmax = 5,
				      .hidden = 512,
				      .token = NUM_BF16,
				      .scale = NUM_U8,
				      .scale_width = 16,
				      .combine = NUM_BF16 };
	f->data = (struct ll_data){ .seed = 1, .fill = LL_FILL_FULL, .route = LL_ROUTE_TWICE };
	f->in = ll_inputs_make(&f->shape, &f->data);
	ASSERT(f->in);
	f->scene = (struct ll_scene){ &f->shape, &f->data, f->in, NULL, 1 };
	ASSERT(ll_expect_dispatch(&f->shape, f->in, NULL, 1, &f->expect) == 0);
	rows = (size_t)f->expect.zones * (size_t)f->expect.cap;
	f->tokens = malloc(rows * ll_out_bytes(&f->shape));
	f->scales = malloc(rows * ll_scale_bytes(&f->shape) + 1);
	f->idx = malloc(rows * 3 * 4);
	f->weights = malloc(rows * 3 * 4);
	f->counts = malloc((size_t)f->expect.zones * 4);
	f->map = malloc(rows * sizeof(*f->map));
	memset(f->tokens, LL_POISON_OUT, rows * ll_out_bytes(&f->shape));
	memset(f->scales, LL_POISON_OUT, rows * ll_scale_bytes(&f->shape));
	memset(f->idx, 0xff, rows * 3 * 4);
	memset(f->weights, LL_POISON_OUT, rows * 3 * 4);
	for (int z = 0; z < f->expect.zones; z++) {
		f->counts[z] = f->expect.count[z];
		for (int i = 0; i < f->expect.count[z]; i++) {
			struct ll_row from = f->expect.row[z * f->expect.cap + f->expect.count[z] - 1 - i];
			size_t row = (size_t)(z * f->expect.cap + i);

			ll_expect_payload(&f->shape, &f->in[from.src], from.token,
					  f->tokens + row * ll_out_bytes(&f->shape),
					  f->scales + row * ll_scale_bytes(&f->shape));
			ll_expect_idx(&f->shape, &f->in[from.src], from.token, 1, f->idx + row * 3);
			memcpy(f->weights + row * 3, f->in[from.src].weight + from.token * 3, 12);
		}
	}
}

static uint64_t fixture_check(struct fixture *f)
{
	struct ll_verdict verdict = { 0 };
	struct ll_got got = {
		.tokens = f->tokens, .scales = f->scales, .idx = f->idx, .weights = f->weights, .counts = f->counts
	};

	ASSERT(ll_check_dispatch(&f->scene, &got, LL_ALL, f->map, &verdict) == 0);
	ASSERT((verdict.wrong == 0) == (verdict.first[0] == '\0'));
	return verdict.wrong;
}

static void fixture_close(struct fixture *f)
{
	ll_inputs_free(f->in, 3);
	ll_expect_free(&f->expect);
	free(f->tokens);
	free(f->scales);
	free(f->idx);
	free(f->weights);
	free(f->counts);
	free(f->map);
}

static void right_outputs_pass(void)
{
	for (int layout = 0; layout < 2; layout++)
		for (int quant = 0; quant < 4; quant++) {
			struct fixture f;

			fixture_open(&f, layout, quant);
			EXPECT(fixture_check(&f) == 0);
			for (int z = 0; z < f.expect.zones; z++)
				for (int i = 0; i < f.expect.count[z]; i++) {
					struct ll_row want = f.expect.row[z * f.expect.cap + f.expect.count[z] - 1 - i];
					struct ll_row got = f.map[z * f.expect.cap + i];

					EXPECT(want.src == got.src && want.token == got.token);
				}
			fixture_close(&f);
		}
}

static void values_are_counted(void)
{
	struct fixture f;
	size_t row, last;

	fixture_open(&f, LL_RANK_MAJOR, LL_QUANT_FWD);
	row = (size_t)f.expect.cap; /* the first of zone 1 */
	ASSERT(f.expect.count[1] >= 2);
	ASSERT(f.expect.count[2] < f.expect.cap);
	f.tokens[row * 1024] ^= 1;
	f.tokens[row * 1024 + 1] ^= 1; /* the same value */
	f.tokens[row * 1024 + 1023] ^= 1;
	EXPECT(fixture_check(&f) == 2);
	f.scales[row * 16 + 3] ^= 1;
	f.idx[row * 3 + 2] = 77;
	f.weights[(row + 1) * 3] = -9.0f;
	EXPECT(fixture_check(&f) == 5);
	f.counts[0]++;
	EXPECT(fixture_check(&f) == 6);
	last = (size_t)(2 * f.expect.cap + f.expect.count[2]);
	f.tokens[last * 1024] ^= 1;
	f.idx[last * 3 + 1] = 0;
	f.weights[last * 3] = 0.0f; /* cleared is allowed */
	f.weights[last * 3 + 1] = 1.0f;
	EXPECT(fixture_check(&f) == 9);
	fixture_close(&f);
}

static void rows_that_are_lost_doubled_or_scattered(void)
{
	uint8_t row[1024], *first, *second;
	int32_t count;
	struct fixture f;

	fixture_open(&f, LL_EXPERT_MAJOR, LL_QUANT_NONE);
	count = f.expect.count[0];
	ASSERT(count >= 3);
	first = f.tokens;
	second = f.tokens + 1024 * (size_t)(count - 1);
	ASSERT(f.expect.row[0].src != f.expect.row[count - 1].src);
	memcpy(row, first, 1024); /* swap first and last: rows of a source are no longer contiguous */
	memcpy(first, second, 1024);
	memcpy(second, row, 1024);
	EXPECT(fixture_check(&f) >= 1);
	EXPECT(fixture_check(&f) <= 2);
	memcpy(first, second,
	       1024); /* one row twice, the other missing: all its values, except those equal by chance */
	EXPECT(fixture_check(&f) >= 505);
	fixture_close(&f);
}

static void combine_values_are_counted(void)
{
	struct fixture f;
	struct ll_verdict verdict = { 0 };
	uint8_t *rows, room[3][1024];
	const uint8_t *answers[3] = { room[0], room[1], room[2] };
	float sum[512];

	fixture_open(&f, LL_EXPERT_MAJOR, LL_QUANT_NONE);
	rows = malloc(5 * 1024);
	for (int t = 0; t < 5; t++) {
		for (int k = 0; k < 3; k++)
			ll_answer(&f.shape, &f.data, f.in, (struct ll_row){ 1, t }, f.in[1].idx[t * 3 + k], room[k]);
		ll_expect_sum(&f.shape, &f.in[1], NULL, t, answers, sum, rows + t * 1024);
	}
	ASSERT(ll_check_combine(&f.scene, rows, &verdict) == 0);
	EXPECT(verdict.wrong == 0);
	rows[1023] ^= 1;
	rows[2048] ^= 1;
	rows[2050] ^= 1;
	ASSERT(ll_check_combine(&f.scene, rows, &verdict) == 0);
	EXPECT(verdict.wrong == 3);
	EXPECT(strstr(verdict.first, "tokens[0][511]"));
	free(rows);
	fixture_close(&f);
}

int main(void)
{
	bf16_by_hand();
	f16_all_codes();
	e4m3_all_codes();
	expert_major_rows();
	masked_ranks_send_and_get_nothing();
	rank_major_rows_and_ids();
	sums();
	fmaf_is_exact();
	sum_order();
	ds_fp8();
	right_outputs_pass();
	values_are_counted();
	rows_that_are_lost_doubled_or_scattered();
	combine_values_are_counted();
	printf("ll_oracle: %d failed\n", failures);
	return failures != 0;
}
