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

static int *slot_at(const struct ht_shape *shape, const struct ht_plan *plan, int src, int token, int zone)
{
	size_t row = (size_t)src * (size_t)shape->base.tmax + (size_t)token;

	return plan->slot + row * (size_t)zones(shape) + zone;
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
			if (at < room) {
				*slot_at(shape, plan, src, t, zone) = (int)at;
				plan->row[at] = (struct ht_row){ src, t, shape->expert_major ? zone : -1 };
			}
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
	size_t slots = (size_t)shape->base.ranks * (size_t)shape->base.tmax * (size_t)zones(shape);
	size_t local = (size_t)ht_local(shape), bound = (size_t)ht_bound(shape);
	struct ht_plan plan = { .row = malloc((bound + 1) * sizeof(*plan.row)),
				.count = calloc(local, sizeof(*plan.count)),
				.offset = calloc(local, sizeof(*plan.offset)),
				.slot = malloc(slots * sizeof(*plan.slot)) };
	int64_t at = 0;

	if (!plan.row || !plan.count || !plan.offset || !plan.slot) {
		ht_plan_free(&plan);
		return -ENOMEM;
	}
	for (size_t i = 0; i < bound; i++)
		plan.row[i] = (struct ht_row){ -1, -1, -1 };
	memset(plan.slot, 0xff, slots * sizeof(*plan.slot));
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
	*out = plan;
	return 0;
}

void ht_plan_free(struct ht_plan *plan)
{
	free(plan->row);
	free(plan->count);
	free(plan->offset);
	free(plan->slot);
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

int ht_slot(const struct ht_shape *shape, const struct ht_plan *plans, int src, int token, int64_t expert)
{
	int rank = ll_owner(&shape->base, NULL, expert);

	if (rank < 0)
		return -1;
	return *slot_at(shape, &plans[rank], src, token, shape->expert_major ? (int)(expert % ht_local(shape)) : 0);
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

/* The lowest node above `after` with a term, or -1. */
static int node_next(const struct ht_shape *shape, const struct ht_term *term, int count, int after)
{
	int next = -1;

	for (int i = 0; i < count; i++) {
		int node = far_node(&shape->nodes, term[i].rank);

		if (node > after && (next < 0 || node < next))
			next = node;
	}
	return next;
}

static void row_add(const struct ht_shape *shape, const uint8_t *row, float *sum)
{
	size_t size = num_info[shape->base.combine].size;

	for (size_t h = 0; h < shape->base.hidden; h++)
		sum[h] = sum[h] + num_load(shape->base.combine, row + h * size);
}

void ht_expect_sum(const struct ht_shape *shape, int src, const struct ht_term *term, const uint8_t *const *at,
		   int count, float *sum, uint8_t *row)
{
	size_t size = num_info[shape->base.combine].size, hidden = shape->base.hidden;
	int home = far_node(&shape->nodes, src);
	float *part = sum + hidden;

	memset(sum, 0, hidden * sizeof(*sum));
	for (int node = -1; (node = node_next(shape, term, count, node)) >= 0;) {
		memset(part, 0, hidden * sizeof(*part));
		for (int i = 0; i < count; i++)
			if (far_node(&shape->nodes, term[i].rank) == node)
				row_add(shape, at[i], node == home ? sum : part);
		if (node == home)
			continue;
		for (size_t h = 0; h < hidden; h++)
			num_store(shape->base.combine, row + h * size, part[h]);
		row_add(shape, row, sum);
	}
	for (size_t h = 0; h < hidden; h++)
		num_store(shape->base.combine, row + h * size, sum[h]);
}

/* Tokens of src with a row in that node. */
static uint64_t rows_into(const struct ht_shape *shape, const struct ll_input *in, const struct ht_plan *plans, int src,
			  int node)
{
	uint64_t rows = 0;

	for (int t = 0; t < in[src].t; t++)
		for (int64_t id = ht_next(shape, &in[src], t, -1, NULL); id >= 0;
		     id = ht_next(shape, &in[src], t, id, NULL))
			if (far_node(&shape->nodes, ll_owner(&shape->base, NULL, id)) == node &&
			    ht_slot(shape, plans, src, t, id) >= 0) {
				rows++;
				break;
			}
	return rows;
}

uint64_t ht_crossed_dispatch(const struct ht_shape *shape, const struct ll_input *in, const struct ht_plan *plans,
			     int rank)
{
	uint64_t rows = 0;

	for (int node = 0; node < far_count(&shape->nodes, shape->base.ranks); node++)
		if (node != far_node(&shape->nodes, rank))
			rows += rows_into(shape, in, plans, rank, node);
	return rows;
}

uint64_t ht_crossed_combine(const struct ht_shape *shape, const struct ll_input *in, const struct ht_plan *plans,
			    int rank)
{
	int node = far_node(&shape->nodes, rank);
	uint64_t rows = 0;

	for (int src = 0; src < shape->base.ranks; src++)
		if (far_node(&shape->nodes, src) != node &&
		    far_relay(&shape->nodes, shape->base.ranks, src, node) == rank)
			rows += rows_into(shape, in, plans, src, node);
	return rows;
}
