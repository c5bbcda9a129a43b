/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/ht_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ht_local(const struct ht_shape *shape)
{
	return shape->base.experts / shape->base.ranks;
}

static int zones(const struct ht_shape *shape)
{
	return shape->expert_major ? ht_local(shape) : 1;
}

/* The padded length of a zone; 0 stays 0. */
static int64_t padded(const struct ht_shape *shape, int64_t count)
{
	int64_t align = shape->align > 1 ? shape->align : 1;

	return (count + align - 1) / align * align;
}

int ht_bound(const struct ht_shape *shape)
{
	int tokens = shape->base.ranks * shape->base.tmax, local = ht_local(shape);
	int fan = shape->base.topk < local ? shape->base.topk : local;

	if (!shape->expert_major)
		return tokens;
	return tokens * fan + (shape->align > 1 ? local * (shape->align - 1) : 0);
}

int64_t ht_next(const struct ht_shape *shape, const struct ll_input *in, int token, int64_t after, int *last)
{
	const int64_t *idx = in->idx + (size_t)token * (size_t)shape->base.topk;
	int64_t next = -1;

	for (int k = 0; k < shape->base.topk; k++) {
		if (idx[k] <= after || idx[k] < 0 || idx[k] >= shape->base.experts || (next >= 0 && idx[k] > next))
			continue;
		next = idx[k];
		if (last)
			*last = k;
	}
	return next;
}

static bool names(const struct ht_shape *shape, const struct ll_input *in, int token, int64_t first, int64_t end)
{
	const int64_t *idx = in->idx + (size_t)token * (size_t)shape->base.topk;

	for (int k = 0; k < shape->base.topk; k++)
		if (idx[k] >= first && idx[k] < end)
			return true;
	return false;
}

/* Fills one zone with its expert's tokens by (source, token); the start of the next zone. */
static int64_t zone_make(const struct ht_shape *shape, const struct ll_input *in, int rank, int zone, int64_t start,
			 struct ht_plan *plan)
{
	int local = ht_local(shape);
	int64_t first = (int64_t)rank * local + zone, end = shape->expert_major ? first + 1 : first + local, at = start;
	int64_t room = shape->capacity ? shape->capacity : INT64_MAX;

	for (int src = 0; src < shape->base.ranks; src++)
		for (int t = 0; t < in[src].t; t++) {
			if (!names(shape, &in[src], t, first, end))
				continue;
			if (at < room)
				plan->row[at] = (struct ht_row){ src, t, shape->expert_major ? zone : -1 };
			at++;
		}
	return start + (shape->expert_major ? padded(shape, at - start) : at - start);
}

/* Pairs of a token and an expert, whatever is dropped. */
static void pairs_count(const struct ht_shape *shape, const struct ll_input *in, int rank, struct ht_plan *plan)
{
	int local = ht_local(shape);

	for (int e = 0; e < local; e++)
		for (int src = 0; src < shape->base.ranks; src++)
			for (int t = 0; t < in[src].t; t++)
				plan->count[e] += names(shape, &in[src], t, (int64_t)rank * local + e,
							(int64_t)rank * local + e + 1);
}

static int64_t clamp(const struct ht_shape *shape, int64_t row)
{
	return shape->capacity && row > shape->capacity ? shape->capacity : row;
}

int ht_plan_make(const struct ht_shape *shape, const struct ll_input *in, int rank, struct ht_plan *out)
{
	size_t local = (size_t)ht_local(shape), bound = (size_t)ht_bound(shape);
	struct ht_plan plan = { .row = malloc((bound + 1) * sizeof(*plan.row)),
				.count = calloc(local, sizeof(*plan.count)),
				.offset = calloc(local, sizeof(*plan.offset)) };
	struct ht_row *fit;
	int64_t at = 0;

	if (!plan.row || !plan.count || !plan.offset) {
		ht_plan_free(&plan);
		return -ENOMEM;
	}
	for (size_t i = 0; i < bound; i++)
		plan.row[i] = (struct ht_row){ -1, -1, -1 };
	for (int zone = 0; zone < zones(shape); zone++) {
		int64_t end = zone_make(shape, in, rank, zone, at, &plan);

		plan.offset[zone] = clamp(shape, at);
		plan.count[zone] = shape->expert_major ? clamp(shape, end) - clamp(shape, at) : 0;
		at = end;
	}
	if (!shape->expert_major)
		pairs_count(shape, in, rank, &plan);
	plan.total = at;
	plan.rows = (int)clamp(shape, at);
	/* Every rank has the plans of all: of 512 ranks they must be small. */
	fit = realloc(plan.row, ((size_t)plan.rows + 1) * sizeof(*plan.row));
	plan.row = fit ? fit : plan.row;
	*out = plan;
	return 0;
}

void ht_plan_free(struct ht_plan *plan)
{
	free(plan->row);
	free(plan->count);
	free(plan->offset);
	*plan = (struct ht_plan){ 0 };
}

struct ht_plan *ht_plans_make(const struct ht_shape *shape, const struct ll_input *in)
{
	struct ht_plan *plan = calloc((size_t)shape->base.ranks, sizeof(*plan));

	for (int r = 0; plan && r < shape->base.ranks; r++)
		if (ht_plan_make(shape, in, r, &plan[r])) {
			ht_plans_free(plan, shape->base.ranks);
			return NULL;
		}
	return plan;
}

void ht_plans_free(struct ht_plan *plan, int ranks)
{
	for (int r = 0; plan && r < ranks; r++)
		ht_plan_free(&plan[r]);
	free(plan);
}

void ht_expect_choices(const struct ht_shape *shape, const struct ll_input *in, int token, int rank, int64_t *idx,
		       float *weight)
{
	int64_t first = (int64_t)rank * ht_local(shape), id = first - 1;
	int k = shape->base.topk, last = 0, count = 0;

	while ((id = ht_next(shape, in, token, id, &last)) >= 0 && id < first + ht_local(shape)) {
		idx[count] = shape->global_ids ? id : id - first;
		weight[count++] = in->weight[token * k + last];
	}
	for (; count < k; count++) {
		idx[count] = -1;
		weight[count] = 0.0f;
	}
}

float ht_expect_weight(const struct ht_shape *shape, const struct ll_input *in, int token, int64_t expert)
{
	float weight = 0.0f;

	for (int k = 0; k < shape->base.topk; k++)
		if (in->idx[token * shape->base.topk + k] == expert)
			weight = in->weight[token * shape->base.topk + k];
	return weight;
}

/* Whether a row comes before that of a token; padding is behind all. */
static bool is_before(const struct ht_row *row, int src, int token)
{
	return row->src >= 0 && (row->src < src || (row->src == src && row->token < token));
}

/* The row of a token among some that ascend by (source, token), or -1. */
static int row_find(const struct ht_plan *plan, int64_t first, int64_t end, int src, int token)
{
	int64_t low = first, high = end;

	while (low < high) {
		int64_t middle = low + (high - low) / 2;

		if (is_before(&plan->row[middle], src, token))
			low = middle + 1;
		else
			high = middle;
	}
	return low < end && plan->row[low].src == src && plan->row[low].token == token ? (int)low : -1;
}

int ht_slot(const struct ht_shape *shape, const struct ht_plan *plans, int src, int token, int64_t expert)
{
	int rank = ll_owner(&shape->base, NULL, expert), zone;

	if (rank < 0)
		return -1;
	if (!shape->expert_major)
		return row_find(&plans[rank], 0, plans[rank].rows, src, token);
	zone = (int)(expert % ht_local(shape));
	return row_find(&plans[rank], plans[rank].offset[zone], plans[rank].offset[zone] + plans[rank].count[zone], src,
			token);
}

int ht_terms(const struct ht_shape *shape, const struct ll_input *in, const struct ht_plan *plans, int src, int token,
	     struct ht_term *terms)
{
	int count = 0;

	for (int64_t id = ht_next(shape, &in[src], token, -1, NULL); id >= 0;
	     id = ht_next(shape, &in[src], token, id, NULL)) {
		int rank = ll_owner(&shape->base, NULL, id), row = ht_slot(shape, plans, src, token, id);

		if (row < 0 || (!shape->expert_major && count && terms[count - 1].rank == rank))
			continue;
		terms[count++] = (struct ht_term){ shape->expert_major ? id : rank, rank, row };
	}
	return count;
}

static void row_add(const struct ht_shape *shape, const uint8_t *row, float *sum)
{
	size_t size = num_info[shape->base.combine].size;

	for (size_t h = 0; h < shape->base.hidden; h++)
		sum[h] = sum[h] + num_load(shape->base.combine, row + h * size);
}

/* Whether no term before i is of its node. */
static bool is_first_of_node(const struct ht_shape *shape, const struct ht_term *term, int i)
{
	for (int j = 0; j < i; j++)
		if (far_node(&shape->nodes, term[j].rank) == far_node(&shape->nodes, term[i].rank))
			return false;
	return true;
}

void ht_expect_sum(const struct ht_shape *shape, int src, const struct ht_term *term, const uint8_t *const *at,
		   int count, float *sum, uint8_t *row)
{
	size_t size = num_info[shape->base.combine].size, hidden = shape->base.hidden;
	int home = far_node(&shape->nodes, src);
	float *part = sum + hidden;

	memset(sum, 0, hidden * sizeof(*sum));
	for (int i = 0; i < count; i++) {
		int node = far_node(&shape->nodes, term[i].rank);

		if (node == home)
			row_add(shape, at[i], sum);
		if (node == home || !is_first_of_node(shape, term, i))
			continue;
		memset(part, 0, hidden * sizeof(*part));
		for (int j = i; j < count; j++)
			if (far_node(&shape->nodes, term[j].rank) == node)
				row_add(shape, at[j], part);
		for (size_t h = 0; h < hidden; h++)
			num_store(shape->base.combine, row + h * size, part[h]);
		row_add(shape, row, sum);
	}
	for (size_t h = 0; h < hidden; h++)
		num_store(shape->base.combine, row + h * size, sum[h]);
}

/* Tokens of src with an expert in that node. */
static uint64_t rows_into(const struct ht_shape *shape, const struct ll_input *in, int node)
{
	uint64_t rows = 0;

	for (int t = 0; t < in->t; t++) {
		int k = 0, owner = -1;

		for (; k < shape->base.topk; k++) {
			owner = ll_owner(&shape->base, NULL, in->idx[t * shape->base.topk + k]);
			if (owner >= 0 && far_node(&shape->nodes, owner) == node)
				break;
		}
		rows += k < shape->base.topk;
	}
	return rows;
}

uint64_t ht_crossed_dispatch(const struct ht_shape *shape, const struct ll_input *in, int rank)
{
	uint64_t rows = 0;

	for (int node = 0; node < far_count(&shape->nodes, shape->base.ranks); node++)
		if (node != far_node(&shape->nodes, rank))
			rows += rows_into(shape, &in[rank], node);
	return rows;
}

uint64_t ht_crossed_combine(const struct ht_shape *shape, const struct ll_input *in, int rank)
{
	int node = far_node(&shape->nodes, rank);
	uint64_t rows = 0;

	for (int src = 0; src < shape->base.ranks; src++)
		if (far_node(&shape->nodes, src) != node &&
		    far_relay(&shape->nodes, shape->base.ranks, src, node) == rank)
			rows += rows_into(shape, &in[src], node);
	return rows;
}

/* ---- bytes ---- */

static uint64_t pad(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

/* Experts that a row can name: of one token, on the largest node. */
static uint64_t entries(const struct ht_shape *shape)
{
	int most = 0, ranks = shape->base.ranks, wide;

	for (int r = 0; r < ranks; r++)
		most = far_local(&shape->nodes, r) >= most ? far_local(&shape->nodes, r) + 1 : most;
	wide = most * ht_local(shape);
	return (uint64_t)(shape->base.topk < wide ? shape->base.topk : wide);
}

uint64_t ht_update_bytes(const struct ht_shape *shape)
{
	uint64_t others = (uint64_t)far_count(&shape->nodes, shape->base.ranks) - 1;

	return others * pad(16 + 4 * ((uint64_t)shape->base.ranks + (uint64_t)shape->base.experts + others), 128);
}

uint64_t ht_dispatch_bytes(const struct ht_shape *shape, size_t token, size_t scale)
{
	return 16 + 16 * entries(shape) + pad(token, 16) + pad(scale, 16);
}

uint64_t ht_combine_bytes(const struct ht_shape *shape, bool backward)
{
	return 16 + (backward ? pad(4 * entries(shape), 16) : 0) + pad(ll_combine_bytes(&shape->base), 16);
}
