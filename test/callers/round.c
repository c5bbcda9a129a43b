/* SPDX-License-Identifier: Apache-2.0 */
#include "test/callers/round.h"

#include <stdlib.h>
#include <string.h>

enum { USE_BACK = 0x60, USE_PASS, USE_GRADIENT };

int round_open(struct round *r, const struct ht_shape *shape, const struct ll_data *data, int rank, bool back_quant)
{
	struct ll_shape back = shape->base;
	struct ll_data other = *data;

	*r = (struct round){ .shape = *shape, .data = *data, .rank = rank };
	if (back_quant) {
		back.quant = LL_QUANT_FWD;
		back.token = NUM_E4M3;
		back.scale = NUM_U8;
		back.scale_width = back.hidden / 32;
	} else {
		back.quant = LL_QUANT_NONE;
		back.token = back.combine;
	}
	other.seed = ll_seed(data->seed, USE_BACK, 0);
	r->in = ll_inputs_make(&shape->base, data);
	r->back = ll_inputs_make(&back, data);
	r->plan = r->in ? ht_plans_make(shape, r->in) : NULL;
	for (int i = 0; r->back && i < shape->base.ranks; i++)
		ll_input_fill(&back, &other, i, &r->back[i]);
	return r->in && r->back && r->plan ? 0 : -1;
}

void round_close(struct round *r)
{
	int ranks = r->shape.base.ranks;

	ll_inputs_free(r->in, ranks);
	ll_inputs_free(r->back, ranks);
	ht_plans_free(r->plan, ranks);
	*r = (struct round){ 0 };
}

const struct ll_input *round_mine(const struct round *r)
{
	return &r->in[r->rank];
}

const struct ht_plan *round_plan(const struct round *r)
{
	return &r->plan[r->rank];
}

static int64_t expert_of(const struct round *r, const struct ht_row *row)
{
	return row->expert < 0 ? r->rank : (int64_t)r->rank * ht_local(&r->shape) + row->expert;
}

/* ---- dispatch ---- */

static void bytes_check(const struct round *r, const char *what, size_t row, const void *got, const void *want,
			size_t size, struct ll_verdict *verdict)
{
	ll_wrong(verdict, memcmp(got, want, size) != 0, "rank %d: %s of row %zu of %d are wrong", r->rank, what, row,
		 round_plan(r)->rows);
}

/* A row of tokens or scales: the sender's, zeros in padding, poison after the last. */
static void payload_check(const struct round *r, const char *what, size_t row, const uint8_t *got, const uint8_t *sent,
			  size_t size, struct ll_verdict *verdict)
{
	uint8_t other[16384];

	if (!sent) {
		memset(other, row < (size_t)round_plan(r)->rows ? 0 : LL_POISON_OUT, size);
		sent = other;
	}
	bytes_check(r, what, row, got, sent, size, verdict);
}

static void choices_check(const struct round *r, const struct ht_row *from, size_t row, const struct round_got *got,
			  struct ll_verdict *verdict)
{
	int k = r->shape.base.topk;
	int64_t idx[64];
	float weight[64];

	if (from) {
		ht_expect_choices(&r->shape, &r->in[from->src], from->token, r->rank, idx, weight);
	} else {
		memset(idx, 0xff, sizeof(idx));
		memset(weight, 0, sizeof(weight));
	}
	bytes_check(r, "ids", row, got->idx + row * (size_t)k, idx, (size_t)k * sizeof(*idx), verdict);
	bytes_check(r, "weights", row, got->weights + row * (size_t)k, weight, (size_t)k * sizeof(*weight), verdict);
}

static void weight_check(const struct round *r, const struct ht_row *from, size_t row, const float *got,
			 struct ll_verdict *verdict)
{
	float want = 0;

	if (from)
		want = ht_expect_weight(&r->shape, &r->in[from->src], from->token, expert_of(r, from));
	else if (row >= (size_t)round_plan(r)->rows)
		memset(&want, LL_POISON_OUT, sizeof(want));
	bytes_check(r, "weights", row, got, &want, sizeof(want), verdict);
}

void round_check_rows(const struct round *r, const struct ll_input *from, const struct round_got *got,
		      struct ll_verdict *verdict)
{
	const struct ht_plan *plan = round_plan(r);
	bool e4m3 = got->scales != NULL;
	size_t size = e4m3 ? r->shape.base.hidden : ll_combine_bytes(&r->shape.base), scale = r->shape.base.hidden / 32;

	for (size_t row = 0; row < got->height; row++) {
		const struct ht_row *at = row < (size_t)plan->rows && plan->row[row].src >= 0 ? &plan->row[row] : NULL;
		const struct ll_input *in = at ? &from[at->src] : NULL;

		payload_check(r, "tokens", row, got->tokens + row * size,
			      at ? in->tokens + (size_t)at->token * size : NULL, size, verdict);
		if (e4m3)
			payload_check(r, "scales", row, got->scales + row * scale,
				      at ? in->scales + (size_t)at->token * scale : NULL, scale, verdict);
		if (got->idx)
			choices_check(r, at, row, got, verdict);
		else if (got->weights)
			weight_check(r, at, row, got->weights + row, verdict);
	}
}

void round_check_counts(const struct round *r, const int64_t *count, const int64_t *total, struct ll_verdict *verdict)
{
	const struct ht_plan *plan = round_plan(r);

	for (int e = 0; count && e < ht_local(&r->shape); e++)
		ll_wrong(verdict, count[e] != plan->count[e], "rank %d: expert %d has %lld rows, must be %lld", r->rank,
			 e, (long long)count[e], (long long)plan->count[e]);
	ll_wrong(verdict, *total != plan->total, "rank %d: recv_total is %lld, must be %lld", r->rank,
		 (long long)*total, (long long)plan->total);
}

/* ---- combine ---- */

static void answer(const struct round *r, int pass, struct ll_row token, int64_t from, uint8_t *out)
{
	struct ll_data data = { .seed = ll_seed(r->data.seed, USE_PASS, (uint64_t)pass) };

	ll_answer(&r->shape.base, &data, r->in, token, from, out);
}

/* In (-2, 2), never 0. */
static float gradient(const struct round *r, int src, int token, int64_t expert)
{
	uint64_t random =
		ll_seed(ll_seed(r->data.seed, USE_GRADIENT, (uint64_t)src), (uint64_t)token, (uint64_t)expert);

	return (float)(int32_t)((random & 0x1ffffff) | 1) / (float)0x1000000 * (random >> 63 ? 1.0f : -1.0f);
}

void round_answers(const struct round *r, int pass, size_t height, uint8_t *rows, float *weights)
{
	const struct ht_plan *plan = round_plan(r);
	size_t size = ll_combine_bytes(&r->shape.base);

	memset(rows, LL_POISON_IN, height * size);
	if (weights)
		memset(weights, LL_POISON_IN, height * sizeof(*weights));
	for (int i = 0; i < plan->rows; i++) {
		const struct ht_row *row = &plan->row[i];

		if (row->src < 0)
			continue;
		answer(r, pass, (struct ll_row){ row->src, row->token }, expert_of(r, row), rows + (size_t)i * size);
		if (weights)
			weights[i] = gradient(r, row->src, row->token, expert_of(r, row));
	}
}

static void gradients_check(const struct round *r, int token, const float *got, struct ll_verdict *verdict)
{
	for (int k = 0; k < r->shape.base.topk; k++) {
		int64_t id = round_mine(r)->idx[token * r->shape.base.topk + k];
		bool there = ht_slot(&r->shape, r->plan, r->rank, token, id) >= 0;
		float want = there ? gradient(r, r->rank, token, id) : 0.0f;

		ll_wrong(verdict, num_bits(got[k]) != num_bits(want), "rank %d: gradient %d of token %d is wrong",
			 r->rank, k, token);
	}
}

void round_check_sums(const struct round *r, int pass, const uint8_t *sums, const float *weights,
		      struct ll_verdict *verdict)
{
	size_t size = ll_combine_bytes(&r->shape.base), hidden = r->shape.base.hidden;
	int k = r->shape.base.topk;
	uint8_t *rows = malloc((size_t)(k + 1) * size);
	float *sum = malloc(2 * hidden * sizeof(*sum));
	const uint8_t *at[64];
	struct ht_term term[64];

	ll_wrong(verdict, !rows || !sum, "out of memory");
	for (int t = 0; rows && sum && t < round_mine(r)->t; t++) {
		int count = ht_terms(&r->shape, r->in, r->plan, r->rank, t, term);

		for (int i = 0; i < count; i++) {
			at[i] = rows + (size_t)i * size;
			answer(r, pass, (struct ll_row){ r->rank, t }, term[i].from, rows + (size_t)i * size);
		}
		ht_expect_sum(&r->shape, r->rank, term, at, count, sum, rows + (size_t)k * size);
		bytes_check(r, "sums", (size_t)t, sums + (size_t)t * size, rows + (size_t)k * size, size, verdict);
		if (weights)
			gradients_check(r, t, weights + (size_t)t * (size_t)k, verdict);
	}
	free(rows);
	free(sum);
}
