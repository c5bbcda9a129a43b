/* SPDX-License-Identifier: Apache-2.0 */
/* Compares every row of every output of an HT rig with the model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/ht_rig.h"

struct view {
	struct ht_rig *rig;
	int handle;
	const struct ht_handle *h;
	const struct ht_shape *shape;
	const struct ht_plan *plan; /* of this rank */
	int rank;
	float *sum;	      /* [2 * hidden] */
	uint8_t *terms;	      /* [2 + topk] rows, */
	const uint8_t **at;   /* where they are, */
	struct ht_term *term; /* and what */
	int64_t *idx;	      /* [topk] */
	float *weight;
};

static void poison(uint8_t *row, size_t n)
{
	memset(row, LL_POISON_OUT, n);
}

/* A counter, in the tensor's width. */
static void number_store(uint8_t *row, size_t size, int64_t value)
{
	int32_t narrow = (int32_t)value;

	memcpy(row, size == 8 ? (const void *)&value : &narrow, size);
}

/* At Update and at dispatch alike, but those of dispatch are longer, and not all are given. */
static void want_counter(const struct view *v, enum ht_buf_id id, size_t row, uint8_t *want)
{
	bool sent = id >= HT_SENT_COUNTS, total = id == HT_TOTAL || id == HT_SENT_TOTAL;
	size_t bytes = ht_row_bytes(v->rig, id), rows = total ? 1 : (size_t)ht_local(v->shape);

	if ((sent && !ht_counted(v->rig, v->handle, id)) || row >= rows)
		poison(want, bytes);
	else if (total)
		number_store(want, bytes, v->plan->total);
	else
		number_store(want, bytes,
			     id == HT_COUNTS || id == HT_SENT_COUNTS ? v->plan->count[row] : v->plan->offset[row]);
}

/* Dispatch's rows that came from a token. */
static void want_sent(const struct view *v, enum ht_buf_id id, const struct ht_row *row, uint8_t *want)
{
	const struct ll_input *in = &v->h->in[row->src];
	float weight;

	switch (id) {
	case HT_OUT:
		memcpy(want, in->tokens + (size_t)row->token * ll_in_bytes(&v->shape->base),
		       ll_in_bytes(&v->shape->base));
		return;
	case HT_OUT_SCALES:
		memcpy(want, in->scales + (size_t)row->token * ll_scale_bytes(&v->shape->base),
		       ll_scale_bytes(&v->shape->base));
		return;
	case HT_OUT_BACK:
	case HT_OUT_BACK_SCALES:
		ht_back(v->rig, v->handle, *row, id == HT_OUT_BACK ? HT_BACK : HT_BACK_SCALES, want);
		return;
	default:
		break;
	}
	if (v->shape->expert_major) {
		weight = ht_expect_weight(v->shape, in, row->token, ht_from(v->rig, row));
		memcpy(want, &weight, sizeof(weight));
		return;
	}
	ht_expect_choices(v->shape, in, row->token, v->rank, v->idx, v->weight);
	memcpy(want, id == HT_OUT_IDX ? (const void *)v->idx : v->weight, ht_row_bytes(v->rig, id));
}

static void want_received(const struct view *v, enum ht_buf_id id, size_t row, uint8_t *want)
{
	size_t bytes = ht_row_bytes(v->rig, id);
	size_t end = v->shape->capacity ? (size_t)v->shape->capacity : ht_rows(v->rig, v->handle, id);
	bool tail = !v->shape->expert_major && (id == HT_OUT_IDX || id == HT_OUT_WEIGHTS);

	if (row < (size_t)v->plan->rows && v->plan->row[row].src >= 0)
		want_sent(v, id, &v->plan->row[row], want);
	else if (row < (size_t)v->plan->rows)
		memset(want, 0, bytes);
	else if (tail && row < end)
		memset(want, id == HT_OUT_IDX ? 0xff : 0, bytes);
	else
		poison(want, bytes);
}

static void want_sum(const struct view *v, enum ht_op op, size_t token, uint8_t *want)
{
	size_t bytes = ll_combine_bytes(&v->shape->base);
	int biases = ht_biases(v->rig, v->handle), count = biases;
	struct ht_row home = { v->rank, (int)token, -1 };

	count += ht_terms(v->shape, v->h->in, v->h->plan, v->rank, (int)token, v->term + biases);
	for (int i = 0; i < count; i++) {
		v->at[i] = v->terms + (size_t)i * bytes;
		if (i < biases) { /* as a row of this rank */
			v->term[i].rank = v->rank;
			ht_back(v->rig, v->handle, home, HT_BIAS + i, v->terms + (size_t)i * bytes);
		} else {
			ht_answer(v->rig, v->handle, op, home, v->term[i].from, v->terms + (size_t)i * bytes);
		}
	}
	ht_expect_sum(v->shape, v->rank, v->term, v->at, count, v->sum, want);
}

static void want_gradients(const struct view *v, size_t token, float *want)
{
	for (int k = 0; k < v->shape->base.topk; k++) {
		int64_t id = v->h->in[v->rank].idx[token * (size_t)v->shape->base.topk + (size_t)k];
		bool there = ht_slot(v->shape, v->h->plan, v->rank, (int)token, id) >= 0;

		want[k] = there ? ht_gradient(v->rig, v->handle, v->rank, (int)token, id) : 0.0f;
	}
}

static void want_row(const struct view *v, enum ht_buf_id id, size_t row, uint8_t *want)
{
	size_t bytes = ht_row_bytes(v->rig, id);
	bool past = row >= (size_t)v->h->in[v->rank].t;

	switch (id) {
	case HT_COUNTS:
	case HT_OFFSETS:
	case HT_TOTAL:
	case HT_SENT_COUNTS:
	case HT_SENT_OFFSETS:
	case HT_SENT_TOTAL:
		want_counter(v, id, row, want);
		return;
	case HT_SUMS:
	case HT_BACK_SUMS:
		if (past)
			poison(want, bytes);
		else
			want_sum(v, id == HT_SUMS ? HT_COMBINE : HT_COMBINE_BWD, row, want);
		return;
	case HT_OUT_BACK_WEIGHTS:
		if (past)
			poison(want, bytes);
		else
			want_gradients(v, row, (float *)(void *)want);
		return;
	default:
		want_received(v, id, row, want);
	}
}

/* Describes the row, for the message. */
static void row_tell(const struct view *v, enum ht_buf_id id, size_t row, char *text, size_t size)
{
	const struct ht_row *at = &v->plan->row[row];

	if (id < HT_OUT || id == HT_SUMS || id >= HT_BACK_SUMS)
		snprintf(text, size, "of %d tokens", v->h->in[v->rank].t);
	else if (row >= (size_t)v->plan->rows)
		snprintf(text, size, "past the %d rows of this rank", v->plan->rows);
	else if (at->src < 0)
		snprintf(text, size, "padding");
	else
		snprintf(text, size, "token %d of rank %d, local expert %d", at->token, at->src, at->expert);
}

static size_t element_of(const struct view *v, enum ht_buf_id id)
{
	const struct ll_shape *base = &v->shape->base;

	switch (id) {
	case HT_COUNTS:
	case HT_OFFSETS:
	case HT_TOTAL:
	case HT_SENT_COUNTS:
	case HT_SENT_OFFSETS:
	case HT_SENT_TOTAL:
		return ht_row_bytes(v->rig, id);
	case HT_OUT_IDX:
		return 8;
	case HT_OUT_WEIGHTS:
	case HT_OUT_BACK_WEIGHTS:
		return 4;
	case HT_OUT:
		return num_info[base->token].size;
	case HT_OUT_BACK:
		return num_info[v->rig->cfg.back_quant ? base->token : base->combine].size;
	case HT_OUT_SCALES:
	case HT_OUT_BACK_SCALES:
		return num_info[base->scale].size;
	default:
		return num_info[base->combine].size;
	}
}

static void row_check(const struct view *v, enum ht_buf_id id, size_t row, const uint8_t *got, const uint8_t *want)
{
	size_t bytes = ht_row_bytes(v->rig, id), size = element_of(v, id);
	char text[80];

	if (!memcmp(got, want, bytes))
		return;
	row_tell(v, id, row, text, sizeof(text));
	for (size_t i = 0; i < bytes; i += size) {
		uint64_t is = 0, must = 0;

		memcpy(&is, got + i, size);
		memcpy(&must, want + i, size);
		ll_wrong(&v->rig->verdict, is != must, "handle %c, round %d: %s[%zu][%zu] is %#llx, must be %#llx (%s)",
			 'A' + v->handle, v->h->round, ht_buf_names[id], row, i / size, (unsigned long long)is,
			 (unsigned long long)must, text);
	}
}

static int buf_check(const struct view *v, enum ht_buf_id id)
{
	const struct buf_env env = ht_env(v->rig);
	struct buf *buf = &v->rig->handle[v->handle].buf[id];
	size_t bytes = ht_row_bytes(v->rig, id), rows = ht_rows_seen(v->rig, v->handle, id);
	const uint8_t *got = buf_get(&env, buf, 0, rows * bytes);
	uint8_t *want = malloc(bytes);

	if (!want)
		seat_fail(v->rig->seat, "out of memory");
	for (size_t row = 0; got && want && row < rows; row++) {
		want_row(v, id, row, want);
		row_check(v, id, row, got + row * bytes, want);
	}
	free(want);
	return got && want ? 0 : -1;
}

/* The library must not change its inputs. */
static int inputs_check(const struct view *v, enum ht_op op)
{
	const struct ll_input *in = &v->h->in[v->rank];
	const struct buf_env env = ht_env(v->rig);
	const struct {
		enum ht_buf_id id;
		const void *want;
	} inputs[] = { { HT_WEIGHTS, in->weight }, { HT_TOKENS, in->tokens }, { HT_SCALES, in->scales } };

	for (size_t i = 0; op == HT_DISPATCH && !v->h->scribbled && i < sizeof(inputs) / sizeof(inputs[0]); i++) {
		size_t size = (size_t)in->t * ht_row_bytes(v->rig, inputs[i].id);
		const uint8_t *got = size ? buf_get(&env, &v->rig->handle[v->handle].buf[inputs[i].id], 0, size) : NULL;

		if (size && !got)
			return -1;
		ll_wrong(&v->rig->verdict, size && memcmp(got, inputs[i].want, size), "rank %d: %s has changed",
			 v->rank, ht_buf_names[inputs[i].id]);
	}
	return 0;
}

static int view_open(struct view *v)
{
	size_t k = (size_t)v->shape->base.topk;

	v->sum = malloc(2 * v->shape->base.hidden * sizeof(*v->sum));
	v->terms = malloc((2 + k) * ll_combine_bytes(&v->shape->base));
	v->at = calloc(2 + k, sizeof(*v->at));
	v->term = calloc(2 + k, sizeof(*v->term));
	v->idx = calloc(k, sizeof(*v->idx));
	v->weight = calloc(k, sizeof(*v->weight));
	return v->sum && v->terms && v->at && v->term && v->idx && v->weight ? 0
									     : seat_fail(v->rig->seat, "out of memory");
}

static void view_close(struct view *v)
{
	free(v->sum);
	free(v->terms);
	free(v->at);
	free(v->term);
	free(v->idx);
	free(v->weight);
}

int ht_check(struct ht_rig *rig, int handle, enum ht_op op)
{
	const struct buf_env env = ht_env(rig);
	unsigned mask = ht_op_bufs(rig, op, true);
	int rank = seat_rank(rig->seat);
	struct view view = { .rig = rig,
			     .handle = handle,
			     .h = &rig->handle[handle],
			     .shape = &rig->cfg.shape,
			     .plan = &rig->handle[handle].plan[rank],
			     .rank = rank };
	int rc = view_open(&view);

	for (int id = 0; id < HT_BUFS && !rc; id++)
		if (mask >> id & 1)
			rc = buf_check(&view, id);
	for (int id = 0; id < HT_BUFS && !rc; id++)
		rc = buf_guards(&env, &rig->handle[handle].buf[id], ht_buf_names[id]);
	if (!rc)
		rc = inputs_check(&view, op);
	view_close(&view);
	return rc;
}
