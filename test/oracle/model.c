/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DS_GROUP 128 /* channels per scale */
#define DS_MAX 448.0f
#define DS_FLOOR 1e-4f

static bool is_ds(const struct ll_shape *shape)
{
	return shape->quant == LL_QUANT_DS || shape->quant == LL_QUANT_DS_ROUND;
}

/* Packed pairs: a byte is two channels. */
static size_t row_bytes(enum num_type type, size_t hidden)
{
	return type == NUM_E2M1X2 ? hidden / 2 : hidden * num_info[type].size;
}

enum num_type ll_out_type(const struct ll_shape *shape)
{
	return is_ds(shape) ? NUM_E4M3 : shape->token;
}

enum num_type ll_scale_type(const struct ll_shape *shape)
{
	return is_ds(shape) ? NUM_F32 : shape->scale;
}

size_t ll_in_bytes(const struct ll_shape *shape)
{
	return row_bytes(shape->token, shape->hidden);
}

size_t ll_out_bytes(const struct ll_shape *shape)
{
	return row_bytes(ll_out_type(shape), shape->hidden);
}

size_t ll_scale_bytes(const struct ll_shape *shape)
{
	if (is_ds(shape))
		return shape->hidden / DS_GROUP * sizeof(float);
	return shape->quant == LL_QUANT_FWD ? shape->scale_width * num_info[shape->scale].size : 0;
}

size_t ll_out_scale_bytes(const struct ll_shape *shape)
{
	return ll_scale_bytes(shape) / (shape->scales == LL_SCALES_EXPONENTS ? sizeof(float) : 1);
}

size_t ll_combine_bytes(const struct ll_shape *shape)
{
	return row_bytes(shape->combine, shape->hidden);
}

int ll_zones(const struct ll_shape *shape)
{
	return shape->layout == LL_EXPERT_MAJOR ? shape->experts / shape->ranks : shape->ranks;
}

int ll_cap(const struct ll_shape *shape)
{
	return shape->layout == LL_EXPERT_MAJOR ? shape->ranks * shape->tmax : shape->tmax;
}

int ll_owner(const struct ll_shape *shape, const bool *active, int64_t id)
{
	int rank;

	if (id < 0 || id >= shape->experts)
		return -1;
	rank = (int)(id / (shape->experts / shape->ranks));
	return active && !active[rank] ? -1 : rank;
}

void ll_expect_free(struct ll_expect *expect)
{
	free(expect->count);
	free(expect->row);
	*expect = (struct ll_expect){ 0 };
}

/* Whether a token of `in` goes to this zone of this rank; once, however often it selects the expert. */
static bool is_sent(const struct ll_shape *shape, const struct ll_input *in, int token, int rank, int zone)
{
	int local = shape->experts / shape->ranks;

	for (int k = 0; k < shape->topk; k++) {
		int64_t id = in->idx[token * shape->topk + k];

		if (ll_owner(shape, NULL, id) != rank)
			continue;
		if (shape->layout == LL_RANK_MAJOR || id - (int64_t)rank * local == zone)
			return true;
	}
	return false;
}

int ll_expect_dispatch(const struct ll_shape *shape, const struct ll_input *in, const bool *active, int rank,
		       struct ll_expect *out)
{
	struct ll_expect expect = { .zones = ll_zones(shape), .cap = ll_cap(shape) };

	expect.count = calloc((size_t)expect.zones, sizeof(*expect.count));
	expect.row = calloc((size_t)expect.zones * (size_t)expect.cap, sizeof(*expect.row));
	if (!expect.count || !expect.row) {
		ll_expect_free(&expect);
		return -ENOMEM;
	}
	for (int zone = 0; zone < expect.zones; zone++)
		for (int src = 0; src < shape->ranks; src++) {
			if (active && !active[src])
				continue;
			if (shape->layout == LL_RANK_MAJOR && src != zone)
				continue;
			for (int t = 0; t < in[src].t; t++)
				if (is_sent(shape, &in[src], t, rank, zone))
					expect.row[zone * expect.cap + expect.count[zone]++] =
						(struct ll_row){ .src = src, .token = t };
		}
	*out = expect;
	return 0;
}

/* The smallest power of two that is at least amax / 448, found by trying: every step is exact in double. */
static float power_scale(float amax)
{
	int exponent = -160;

	while (ldexp(DS_MAX, exponent) < amax)
		exponent++;
	return ldexpf(1.0f, exponent);
}

static void scale_store(const struct ll_shape *shape, uint8_t *scales, size_t index, float scale)
{
	if (shape->scales == LL_SCALES_EXPONENTS)
		scales[index] = (uint8_t)(ilogbf(scale) + 127);
	else
		memcpy(scales + index * sizeof(scale), &scale, sizeof(scale));
}

static void quantise(const struct ll_shape *shape, const uint8_t *in, uint8_t *out, uint8_t *scales)
{
	for (size_t group = 0; group < shape->hidden / DS_GROUP; group++) {
		const uint8_t *from = in + group * DS_GROUP * sizeof(uint16_t);
		float amax = DS_FLOOR, scale, factor;

		for (int i = 0; i < DS_GROUP; i++)
			amax = fmaxf(amax, fabsf(num_load(NUM_BF16, from + (size_t)i * 2)));
		if (shape->quant == LL_QUANT_DS_ROUND) {
			scale = power_scale(amax);
			factor = 1.0f / scale;
		} else {
			scale = amax * (1.0f / DS_MAX);
			factor = DS_MAX / amax;
		}
		for (int i = 0; i < DS_GROUP; i++)
			out[group * DS_GROUP + (size_t)i] =
				num_to_e4m3(num_load(NUM_BF16, from + (size_t)i * 2) * factor);
		scale_store(shape, scales, group, scale);
	}
}

void ll_expect_payload(const struct ll_shape *shape, const struct ll_input *in, int token, uint8_t *row, uint8_t *scale)
{
	const uint8_t *from = in->tokens + (size_t)token * ll_in_bytes(shape);
	size_t scale_bytes = ll_scale_bytes(shape);

	if (is_ds(shape)) {
		quantise(shape, from, row, scale);
		return;
	}
	memcpy(row, from, ll_out_bytes(shape));
	if (!scale_bytes)
		return;
	from = in->scales + (size_t)token * scale_bytes;
	if (shape->scales == LL_SCALES_EXPONENTS)
		for (size_t i = 0; i < scale_bytes; i += 4)
			scale[i / 4] = (uint8_t)(from[i + 3] << 1 | from[i + 2] >> 7); /* any bits: maybe no number */
	else
		memcpy(scale, from, scale_bytes);
}

void ll_expect_idx(const struct ll_shape *shape, const struct ll_input *in, int token, int rank, int32_t *row)
{
	int local = shape->experts / shape->ranks;

	for (int k = 0; k < shape->topk; k++) {
		int64_t id = in->idx[token * shape->topk + k];

		if (ll_owner(shape, NULL, id) != rank)
			row[k] = -1;
		else
			row[k] = (int32_t)(shape->global_ids ? id : id - (int64_t)rank * local);
	}
}

/* Rank-major sums each rank once, at the first k that selects it. */
static bool is_first(const struct ll_shape *shape, const struct ll_input *in, int token, int k)
{
	const int64_t *idx = in->idx + token * shape->topk;

	for (int j = 0; j < k; j++)
		if (ll_owner(shape, NULL, idx[j]) == ll_owner(shape, NULL, idx[k]))
			return false;
	return true;
}

void ll_expect_sum(const struct ll_shape *shape, const struct ll_input *in, const bool *active, int token,
		   const uint8_t *const *answers, float *sum, uint8_t *row)
{
	size_t size = num_info[shape->combine].size;
	bool weighted = shape->layout == LL_EXPERT_MAJOR;

	for (size_t h = 0; h < shape->hidden; h++)
		sum[h] = 0.0f;
	for (int k = 0; k < shape->topk; k++) {
		float weight = weighted ? in->weight[token * shape->topk + k] : 1.0f;

		if (ll_owner(shape, active, in->idx[token * shape->topk + k]) < 0)
			continue;
		if (!weighted && !is_first(shape, in, token, k))
			continue;
		for (size_t h = 0; h < shape->hidden; h++)
			sum[h] = fmaf(weight, num_load(shape->combine, answers[k] + h * size), sum[h]);
	}
	for (size_t h = 0; h < shape->hidden; h++)
		num_store(shape->combine, row + h * size, sum[h]);
}
