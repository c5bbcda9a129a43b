/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/data.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { USE_TOKENS = 1, USE_ROUTE, USE_ROW, USE_SCALE, USE_ANSWER, USE_WEIGHT, USE_PICK };

/* Sebastiano Vigna's splitmix64, a published constant-time mixer. */
uint64_t ll_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint64_t ll_seed(uint64_t seed, uint64_t a, uint64_t b)
{
	uint64_t state = seed ^ (a + 1) * 0xd6e8feb86659fd93ull;

	state = ll_random(&state) ^ (b + 1) * 0xa0761d6478bd642full;
	return ll_random(&state);
}

int ll_tokens(const struct ll_shape *shape, const struct ll_data *data, int src)
{
	uint64_t random = ll_seed(data->seed, USE_TOKENS, (uint64_t)src);

	if (src >= shape->ranks - data->idle)
		return 0;
	if (data->fixed_t > 0)
		return data->fixed_t;
	switch (data->fill) {
	case LL_FILL_FULL:
		return shape->tmax;
	case LL_FILL_ZERO_SOME: /* which half is empty depends on the seed */
		return (uint64_t)src % 2 == data->seed % 2 ? 0 : shape->tmax;
	case LL_FILL_RANDOM:
		return (int)(random % (uint64_t)(shape->tmax + 1));
	default:
		return 0;
	}
}

/* K ids in [first, first + n), distinct if n allows. */
static void ids_distinct(int64_t *idx, int k, int first, int n, uint64_t *random)
{
	for (int i = 0; i < k; i++) {
		bool again = true;

		while (again) {
			idx[i] = first + (int64_t)(ll_random(random) % (uint64_t)n);
			again = false;
			for (int j = 0; j < i && i < n; j++)
				again |= idx[j] == idx[i];
		}
	}
}

/* When an expert's clock rings: exponential, of a rate by its popularity, which is dealt to ranks in turn, as a
 * balancer would place experts. */
static double zipf_clock(const struct ll_shape *shape, const struct ll_data *data, uint64_t seed, int64_t expert)
{
	int local = shape->experts / shape->ranks;
	double place = (double)(expert % local * shape->ranks + expert / local + 1);
	double uniform = ((double)(ll_seed(seed, (uint64_t)expert, 0) >> 11) + 0.5) / 9007199254740992.0;

	return -log(uniform) * pow(place, data->zipf);
}

/* The K whose clocks ring first: different ones, each in proportion to its popularity among those that are left. */
static void ids_zipf(const struct ll_shape *shape, const struct ll_data *data, int64_t *idx, uint64_t *random)
{
	uint64_t seed = ll_random(random);
	int used = 0;

	for (int64_t e = 0; e < shape->experts; e++) {
		double at = zipf_clock(shape, data, seed, e);
		int i = used;

		if (used < shape->topk)
			used++;
		else if (zipf_clock(shape, data, seed, idx[--i]) < at)
			continue;
		for (; i > 0 && zipf_clock(shape, data, seed, idx[i - 1]) > at; i--)
			idx[i] = idx[i - 1];
		idx[i] = e;
	}
}

static int64_t bad_id(const struct ll_shape *shape, bool idx64, uint64_t *random)
{
	const int64_t bad[] = { shape->experts, -2, shape->experts + 7, INT32_MAX, INT32_MIN, 1ll << 32, -(1ll << 40) };

	return bad[ll_random(random) % (idx64 ? 7 : 5)];
}

static void ids_make(const struct ll_shape *shape, const struct ll_data *data, int64_t *idx, uint64_t *random)
{
	uint64_t pick = ll_seed(data->seed, USE_PICK, 0);
	int local = shape->experts / shape->ranks, k = shape->topk;

	switch (data->route) {
	case LL_ROUTE_ONE:
		for (int i = 0; i < k; i++)
			idx[i] = i ? -1 : (int64_t)(pick % (uint64_t)shape->experts);
		return;
	case LL_ROUTE_ONE_RANK:
		ids_distinct(idx, k, (int)(pick % (uint64_t)shape->ranks) * local, local, random);
		return;
	case LL_ROUTE_ZIPF:
		ids_zipf(shape, data, idx, random);
		return;
	case LL_ROUTE_NOWHERE:
		for (int i = 0; i < k; i++)
			idx[i] = -1;
		return;
	case LL_ROUTE_TWICE:
		for (int i = 0; i < k; i++)
			idx[i] = i && ll_random(random) % 2 ? idx[ll_random(random) % (uint64_t)i]
							    : (int64_t)(ll_random(random) % (uint64_t)shape->experts);
		return;
	default:
		ids_distinct(idx, k, 0, shape->experts, random);
	}
	for (int i = 0; i < k; i++) {
		if (data->route == LL_ROUTE_DROPPED && ll_random(random) % 3 == 0)
			idx[i] = -1;
		if (data->route == LL_ROUTE_BAD && ll_random(random) % 4 == 0)
			idx[i] = bad_id(shape, data->idx64, random);
	}
}

static void bytes_make(uint8_t *row, size_t n, uint64_t *random)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t word = ll_random(random);

		memcpy(row + i, &word, n - i < 8 ? n - i : 8);
	}
}

/*
 * Finite numbers. Most are within a few powers of two of 1, so that every order of a sum rounds differently; one row in
 * eight is special: zeros, tiny (denormal in the format) or large (sums overflow in fp16). Tokens are special only in
 * every other 128 channels: no two may be equal, or a row could not be traced to its source.
 */
static void numbers_make(enum num_type type, uint8_t *row, size_t n, bool whole, uint64_t *random)
{
	static const struct {
		unsigned bits, fraction, usual, large; /* width, bits of the fraction, first exponents */
	} format[] = {
		[NUM_BF16] = { 16, 7, 120, 135 }, [NUM_F16] = { 16, 10, 8, 23 }, [NUM_F32] = { 32, 23, 120, 135 }
	};
	unsigned fraction = format[type].fraction, kind = (unsigned)(ll_random(random) % 24);
	size_t size = num_info[type].size;
	uint64_t word = 0;

	for (size_t i = 0; i < n; i++) {
		bool special = kind < 3 && (whole || i / 128 % 2);
		unsigned low = !special ? format[type].usual : kind == 1 ? 0 : format[type].large;
		uint32_t bits;

		word = i % 2 ? word >> 32 : ll_random(random);
		bits = (uint32_t)word & ((1u << fraction) - 1);
		bits |= (low + ((uint32_t)word >> 24 & 7)) << fraction;
		bits |= (uint32_t)(word >> 30 & 1) << (format[type].bits - 1);
		if (special && kind == 0)
			bits = 0;
		memcpy(row + i * size, &bits, size); /* little-endian: the low half */
	}
}

/* A row unique within the operation, whatever its width: the token's number mixed with the seed. */
static void row_name(const struct ll_shape *shape, const struct ll_data *data, struct ll_row token, uint8_t *row,
		     size_t n)
{
	uint64_t name = (uint64_t)token.src * (uint64_t)shape->tmax + (uint64_t)token.token;

	name ^= ll_seed(data->seed, USE_PICK, 1);
	memcpy(row, &name, n < 8 ? n : 8);
}

static void tokens_make(const struct ll_shape *shape, const struct ll_data *data, int src, struct ll_input *in)
{
	size_t bytes = ll_in_bytes(shape), scale_bytes = ll_scale_bytes(shape);
	bool numeric = data->numeric || shape->quant >= LL_QUANT_DS;

	for (int t = 0; t < in->t; t++) {
		uint64_t random = ll_seed(data->seed, USE_ROW, (uint64_t)src << 32 | (uint64_t)t);
		uint8_t *row = in->tokens + (size_t)t * bytes;

		if (numeric) {
			numbers_make(shape->token, row, shape->hidden, false, &random);
		} else {
			bytes_make(row, bytes, &random);
			row_name(shape, data, (struct ll_row){ src, t }, row, bytes);
		}
		if (in->scales)
			bytes_make(in->scales + (size_t)t * scale_bytes, scale_bytes, &random);
	}
}

static void route_make(const struct ll_shape *shape, const struct ll_data *data, int src, struct ll_input *in)
{
	for (int t = 0; t < in->t; t++) {
		uint64_t random = ll_seed(data->seed, USE_ROUTE, (uint64_t)src << 32 | (uint64_t)t);

		ids_make(shape, data, in->idx + (size_t)t * (size_t)shape->topk, &random);
	}
}

static void weights_make(const struct ll_shape *shape, const struct ll_data *data, int src, struct ll_input *in)
{
	for (int t = 0; t < in->t; t++) {
		uint64_t random = ll_seed(data->seed, USE_WEIGHT, (uint64_t)src << 32 | (uint64_t)t);

		for (int k = 0; k < shape->topk; k++) {
			int32_t bits = (int32_t)(ll_random(&random) & 0x3ffffff) - 0x1ffffff;

			/* In (-2, 2), using all bits of the fraction; sometimes 0. */
			in->weight[t * shape->topk + k] =
				ll_random(&random) % 16 ? (float)bits / (float)0x1000000 : 0.0f;
		}
	}
}

void ll_input_fill(const struct ll_shape *shape, const struct ll_data *data, int src, struct ll_input *in)
{
	weights_make(shape, data, src, in);
	tokens_make(shape, data, src, in);
}

int ll_input_make(const struct ll_shape *shape, const struct ll_data *data, int src, struct ll_input *out)
{
	struct ll_input in = { .t = ll_tokens(shape, data, src) };
	size_t t = (size_t)in.t, k = (size_t)shape->topk;

	in.idx = calloc(t * k + 1, sizeof(*in.idx));
	in.weight = calloc(t * k + 1, sizeof(*in.weight));
	in.tokens = calloc(t * ll_in_bytes(shape) + 1, 1);
	if (shape->quant == LL_QUANT_FWD)
		in.scales = calloc(t * ll_scale_bytes(shape) + 1, 1);
	if (!in.idx || !in.weight || !in.tokens || (shape->quant == LL_QUANT_FWD && !in.scales)) {
		ll_input_free(&in);
		return -ENOMEM;
	}
	route_make(shape, data, src, &in);
	ll_input_fill(shape, data, src, &in);
	*out = in;
	return 0;
}

void ll_input_free(struct ll_input *in)
{
	free(in->idx);
	free(in->weight);
	free(in->tokens);
	free(in->scales);
	*in = (struct ll_input){ 0 };
}

struct ll_input *ll_inputs_make(const struct ll_shape *shape, const struct ll_data *data)
{
	struct ll_input *in = calloc((size_t)shape->ranks, sizeof(*in));

	for (int r = 0; in && r < shape->ranks; r++)
		if (ll_input_make(shape, data, r, &in[r])) {
			ll_inputs_free(in, shape->ranks);
			return NULL;
		}
	return in;
}

void ll_inputs_free(struct ll_input *in, int ranks)
{
	for (int r = 0; in && r < ranks; r++)
		ll_input_free(&in[r]);
	free(in);
}

bool ll_input_bad(const struct ll_shape *shape, const struct ll_input *in)
{
	for (int i = 0; i < in->t * shape->topk; i++)
		if (in->idx[i] < -1 || in->idx[i] >= shape->experts)
			return true;
	return false;
}

void ll_answer(const struct ll_shape *shape, const struct ll_data *data, const struct ll_input *in, struct ll_row token,
	       int64_t from, uint8_t *row)
{
	uint64_t random = ll_seed(data->seed, USE_ANSWER, (uint64_t)from);

	if (data->echo) {
		memcpy(row, in[token.src].tokens + (size_t)token.token * ll_in_bytes(shape), ll_combine_bytes(shape));
		return;
	}
	random = ll_seed(random, (uint64_t)token.src, (uint64_t)token.token);
	numbers_make(shape->combine, row, shape->hidden, true, &random);
}
