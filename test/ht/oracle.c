/* SPDX-License-Identifier: Apache-2.0 */
/* Test of the HT model: small cases computed by hand, and the order of sums by values that depend on it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/data.h"
#include "test/oracle/expect.h"
#include "test/oracle/ht_model.h"

/*
 * Two ranks, two experts each. Rank 0: token 0 selects 3, 0 and 3 again; token 1 selects 1, none, 0. Rank 1: token 0
 * selects 2, an invalid expert, and 0; token 1 none.
 */
static int64_t idx0[] = { 3, 0, 3, 1, -1, 0 }, idx1[] = { 2, 4, 0, -1, -2, -1 };
static float weight0[] = { 0.5f, 2.0f, 1.0f, 0.25f, 9.0f, 3.0f }, weight1[] = { 5.0f, 6.0f, 7.0f, 9.0f, 9.0f, 9.0f };

static struct ll_input hand[] = { { 2, idx0, weight0, NULL, NULL }, { 2, idx1, weight1, NULL, NULL } };

static struct ht_shape hand_shape(bool expert_major)
{
	return (struct ht_shape){
		.base = { .ranks = 2, .experts = 4, .topk = 3, .tmax = 2, .hidden = 2, .combine = NUM_F32 },
		.expert_major = expert_major,
	};
}

static bool rows_are(const struct ht_plan *plan, const struct ht_row *want, int count)
{
	bool same = plan->rows == count;

	for (int i = 0; same && i < count; i++)
		same = plan->row[i].src == want[i].src && plan->row[i].token == want[i].token &&
		       plan->row[i].expert == want[i].expert;
	return same;
}

static bool counts_are(const struct ht_plan *plan, int64_t a, int64_t b)
{
	return plan->count[0] == a && plan->count[1] == b;
}

static void flat_rows(void)
{
	static const struct ht_row want0[] = { { 0, 0, -1 }, { 0, 1, -1 }, { 1, 0, -1 } };
	static const struct ht_row want1[] = { { 0, 0, -1 }, { 1, 0, -1 } };
	struct ht_shape shape = hand_shape(false);
	struct ht_plan *plan = ht_plans_make(&shape, hand);

	ASSERT(plan);
	EXPECT(ht_bound(&shape) == 4);
	EXPECT(rows_are(&plan[0], want0, 3) && plan[0].total == 3 && counts_are(&plan[0], 3, 1));
	EXPECT(rows_are(&plan[1], want1, 2) && plan[1].total == 2 && counts_are(&plan[1], 1, 1));
	EXPECT(ht_slot(&shape, plan, 1, 0, 0) == 2);
	EXPECT(ht_slot(&shape, plan, 1, 0, 2) == 1);
	EXPECT(ht_slot(&shape, plan, 1, 0, 4) == -1);
	EXPECT(ht_slot(&shape, plan, 1, 1, -2) == -1);
	ht_plans_free(plan, 2);
}

/* The third row exceeds the capacity; the counters do not change. */
static void flat_dropped(void)
{
	struct ht_shape shape = hand_shape(false);
	struct ht_term term[3];
	struct ht_plan *plan;

	shape.capacity = 2;
	plan = ht_plans_make(&shape, hand);
	ASSERT(plan);
	EXPECT(plan[0].rows == 2 && plan[0].total == 3 && counts_are(&plan[0], 3, 1));
	EXPECT(plan[1].rows == 2 && plan[1].total == 2);
	EXPECT(ht_slot(&shape, plan, 1, 0, 0) == -1);
	ASSERT(ht_terms(&shape, hand, plan, 1, 0, term) == 1);
	EXPECT(term[0].rank == 1 && term[0].row == 1 && term[0].from == 1);
	EXPECT(ht_terms(&shape, hand, plan, 1, 1, term) == 0);
	ASSERT(ht_terms(&shape, hand, plan, 0, 0, term) == 2);
	EXPECT(term[0].rank == 0 && term[0].row == 0 && term[1].rank == 1 && term[1].row == 0);
	ht_plans_free(plan, 2);
}

static void flat_choices(void)
{
	struct ht_shape shape = hand_shape(false);
	int64_t idx[3];
	float weight[3];
	int last = -1;

	/* 0 and 1 in order of ids, each with its weight. */
	ht_expect_choices(&shape, &hand[0], 1, 0, idx, weight);
	EXPECT(idx[0] == 0 && idx[1] == 1 && idx[2] == -1);
	EXPECT(weight[0] == 3.0f && weight[1] == 0.25f && weight[2] == 0.0f);
	/* 3 twice: one entry, the last weight. */
	ht_expect_choices(&shape, &hand[0], 0, 1, idx, weight);
	EXPECT(idx[0] == 1 && idx[1] == -1 && idx[2] == -1);
	EXPECT(weight[0] == 1.0f && weight[1] == 0.0f && weight[2] == 0.0f);
	shape.global_ids = true;
	ht_expect_choices(&shape, &hand[0], 0, 1, idx, weight);
	EXPECT(idx[0] == 3 && idx[1] == -1);
	ht_expect_choices(&shape, &hand[1], 1, 0, idx, weight);
	EXPECT(idx[0] == -1 && weight[0] == 0.0f);
	EXPECT(ht_next(&shape, &hand[0], 0, -1, &last) == 0 && last == 1);
	EXPECT(ht_next(&shape, &hand[0], 0, 0, &last) == 3 && last == 2);
	EXPECT(ht_next(&shape, &hand[0], 0, 3, &last) == -1);
	EXPECT(ht_expect_weight(&shape, &hand[0], 0, 3) == 1.0f);
	EXPECT(ht_expect_weight(&shape, &hand[1], 0, 2) == 5.0f);
}

static void expert_zones(void)
{
	static const struct ht_row tight[] = { { 0, 0, 0 }, { 0, 1, 0 }, { 1, 0, 0 }, { 0, 1, 1 } };
	static const struct ht_row padded[] = { { 0, 0, 0 },	{ 0, 1, 0 }, { 1, 0, 0 },
						{ -1, -1, -1 }, { 0, 1, 1 }, { -1, -1, -1 } };
	struct ht_shape shape = hand_shape(true);
	struct ht_plan plan;

	EXPECT(ht_bound(&shape) == 8);
	ASSERT(!ht_plan_make(&shape, hand, 0, &plan));
	EXPECT(rows_are(&plan, tight, 4) && plan.total == 4 && counts_are(&plan, 3, 1));
	EXPECT(plan.offset[0] == 0 && plan.offset[1] == 3);
	ht_plan_free(&plan);
	shape.align = 2;
	EXPECT(ht_bound(&shape) == 10);
	ASSERT(!ht_plan_make(&shape, hand, 0, &plan));
	EXPECT(rows_are(&plan, padded, 6) && plan.total == 6 && counts_are(&plan, 4, 2));
	EXPECT(plan.offset[0] == 0 && plan.offset[1] == 4);
	ht_plan_free(&plan);
	shape.align = 4;
	ASSERT(!ht_plan_make(&shape, hand, 0, &plan));
	EXPECT(plan.rows == 8 && plan.total == 8 && counts_are(&plan, 4, 4) && plan.offset[1] == 4);
	ht_plan_free(&plan);
}

/* Zones end at the capacity; rows keep their numbers. */
static void expert_dropped(void)
{
	static const struct {
		int capacity, rows;
		int64_t count[2], offset[2];
		int slot; /* of token 1 of rank 0 at expert 1 */
	} cases[] = {
		{ 6, 6, { 4, 2 }, { 0, 4 }, 4 },  { 5, 5, { 4, 1 }, { 0, 4 }, 4 },  { 4, 4, { 4, 0 }, { 0, 4 }, -1 },
		{ 3, 3, { 3, 0 }, { 0, 3 }, -1 }, { 2, 2, { 2, 0 }, { 0, 2 }, -1 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ht_shape shape = hand_shape(true);
		struct ht_plan *plan;

		shape.align = 2;
		shape.capacity = cases[i].capacity;
		plan = ht_plans_make(&shape, hand);
		ASSERT(plan);
		EXPECT(plan[0].rows == cases[i].rows && plan[0].total == 6);
		EXPECT(counts_are(&plan[0], cases[i].count[0], cases[i].count[1]));
		EXPECT(plan[0].offset[0] == cases[i].offset[0] && plan[0].offset[1] == cases[i].offset[1]);
		EXPECT(ht_slot(&shape, plan, 0, 1, 1) == cases[i].slot);
		EXPECT(ht_slot(&shape, plan, 1, 0, 0) == (cases[i].capacity > 2 ? 2 : -1));
		ht_plans_free(plan, 2);
	}
}

/* An expert without tokens has no rows, padded or not. */
static void expert_empty(void)
{
	int64_t idx[] = { 1, -1, -1 };
	struct ll_input in[] = { { 1, idx, weight0, NULL, NULL }, { 0, idx, weight0, NULL, NULL } };
	struct ht_shape shape = hand_shape(true);
	struct ht_plan plan;

	shape.align = 128;
	ASSERT(!ht_plan_make(&shape, in, 0, &plan));
	EXPECT(counts_are(&plan, 0, 128) && plan.offset[0] == 0 && plan.offset[1] == 0 && plan.total == 128);
	EXPECT(plan.row[0].src == 0 && plan.row[0].expert == 1 && plan.row[1].src == -1 && plan.row[127].src == -1);
	ht_plan_free(&plan);
	ASSERT(!ht_plan_make(&shape, in, 1, &plan));
	EXPECT(counts_are(&plan, 0, 0) && plan.total == 0 && plan.rows == 0);
	ht_plan_free(&plan);
}

static void terms_in_order(void)
{
	int64_t idx[] = { 3, 1, 0 };
	struct ll_input in[] = { { 1, idx, weight0, NULL, NULL }, { 0, idx, weight0, NULL, NULL } };
	struct ht_shape shape = hand_shape(true);
	struct ht_plan *plan = ht_plans_make(&shape, in);
	struct ht_term term[3];

	ASSERT(plan && ht_terms(&shape, in, plan, 0, 0, term) == 3);
	EXPECT(term[0].from == 0 && term[0].row == 0 && term[1].from == 1 && term[1].row == 1);
	EXPECT(term[2].from == 3 && term[2].rank == 1 && term[2].row == 0);
	ht_plans_free(plan, 2);
	shape.expert_major = false;
	plan = ht_plans_make(&shape, in);
	ASSERT(plan && ht_terms(&shape, in, plan, 0, 0, term) == 2);
	EXPECT(term[0].from == 0 && term[1].from == 1);
	ht_plans_free(plan, 2);
}

static struct ht_term row_of(int rank)
{
	return (struct ht_term){ .from = rank, .rank = rank };
}

/* (2^24 + 1) + 1 loses both ones; 1 + 1 + 2^24 keeps them. Only the last step rounds to the type. */
static void sums(void)
{
	static const float big[] = { 0x1p24f, 1.0f }, one[] = { 1.0f, -0.0f };
	const struct ht_term term[] = { row_of(0), row_of(0), row_of(1) };
	struct ht_shape shape = hand_shape(false);
	const uint8_t *down[] = { (const uint8_t *)big, (const uint8_t *)one, (const uint8_t *)one };
	const uint8_t *up[] = { (const uint8_t *)one, (const uint8_t *)one, (const uint8_t *)big };
	/* 1 + 2^-8 + 2^-8: rounded to bf16 in between it would stay 1; rounded once it is the next bf16. */
	uint16_t half[] = { 0x3f80, 0x3b80, 0x3b80 }, sum16[1];
	const uint8_t *thirds[] = { (uint8_t *)&half[0], (uint8_t *)&half[1], (uint8_t *)&half[2] };
	float scratch[4], row[2];

	ht_expect_sum(&shape, 0, term, down, 3, scratch, (uint8_t *)row);
	EXPECT(row[0] == 0x1p24f && row[1] == 1.0f);
	ht_expect_sum(&shape, 0, term, up, 3, scratch, (uint8_t *)row);
	EXPECT(row[0] == 0x1p24f + 2.0f);
	ht_expect_sum(&shape, 0, term, up, 1, scratch, (uint8_t *)row);
	EXPECT(row[1] == 0.0f && !signbit(row[1])); /* 0 + -0 */
	ht_expect_sum(&shape, 0, term, up, 0, scratch, (uint8_t *)row);
	EXPECT(row[0] == 0.0f && row[1] == 0.0f);
	shape.base.combine = NUM_BF16;
	shape.base.hidden = 1;
	ht_expect_sum(&shape, 0, term, thirds, 3, scratch, (uint8_t *)sum16);
	EXPECT(sum16[0] == 0x3f81);
}

static void nodes_of(struct far_nodes nodes, int ranks, const int *node, const int *local)
{
	for (int r = 0; r < ranks; r++)
		EXPECT(far_node(&nodes, r) == node[r] && far_local(&nodes, r) == local[r]);
	EXPECT(far_count(&nodes, ranks) == node[ranks - 1] + 1 || nodes.dealt);
}

static void nodes(void)
{
	static const int node13[] = { 0, 1, 1, 1 }, local13[] = { 0, 0, 1, 2 };
	static const int node214[] = { 0, 0, 1, 2, 2, 2, 2, 3, 3 }, local214[] = { 0, 1, 0, 0, 1, 2, 3, 0, 1 };
	static const int dealt[] = { 0, 1, 0, 1, 0 }, dealt_local[] = { 0, 0, 1, 1, 2 };
	static const int zeros[] = { 0, 0, 0 }, count[] = { 0, 1, 2 };
	struct far_nodes a = { .size = { 1, 3 } }, b = { .size = { 2, 1, 4 } }, c = { .dealt = 2 }, one = { 0 };
	char text[FAR_TEXT_MAX];

	nodes_of(a, 4, node13, local13);
	nodes_of(b, 9, node214, local214); /* the last size repeats */
	nodes_of(c, 5, dealt, dealt_local);
	nodes_of(one, 3, zeros, count);
	EXPECT(far_count(&c, 5) == 2 && far_count(&c, 1) == 1);
	EXPECT(far_relay(&a, 4, 0, 1) == 1 && far_relay(&a, 4, 1, 0) == 0 && far_relay(&a, 4, 3, 0) == 0);
	EXPECT(far_relay(&b, 9, 6, 0) == 1 && far_relay(&b, 9, 5, 0) == 0 && far_relay(&b, 9, 6, 1) == 2);
	EXPECT(far_relay(&b, 9, 6, 3) == 8 && far_relay(&b, 9, 1, 2) == 4 && far_relay(&b, 9, 2, 3) == 7);
	EXPECT(far_relay(&c, 5, 4, 1) == 1 && far_relay(&c, 5, 3, 0) == 2);
	far_text(&b, text);
	EXPECT(!strcmp(text, "2,1,4"));
	far_text(&one, text);
	EXPECT(!strcmp(text, "0"));
}

/* Ranks 0 | 1 2 3. The row of another node is rounded before the last sum, that of the own node is not. */
static void node_sums(void)
{
	static const float big[] = { 0x1p24f }, one[] = { 1.0f };
	static const uint16_t whole[] = { 0x3f80 }, bit[] = { 0x3b80 }; /* 1 and 2^-8, half of its last bit */
	const struct ht_term term[] = { row_of(0), row_of(1), row_of(2) };
	struct ht_shape shape = hand_shape(false);
	const uint8_t *rows[] = { (const uint8_t *)bit, (const uint8_t *)whole, (const uint8_t *)bit };
	const uint8_t *first[] = { (const uint8_t *)big, (const uint8_t *)one, (const uint8_t *)one };
	const uint8_t *middle[] = { (const uint8_t *)one, (const uint8_t *)big, (const uint8_t *)one };
	float scratch[2], sum;
	uint16_t sum16;

	shape.nodes = (struct far_nodes){ .size = { 1, 3 } };
	shape.base.ranks = 4;
	shape.base.hidden = 1;
	/* 2^24 + (1 + 1) at rank 0; ((2^24) + 1) + 1 at rank 1. */
	ht_expect_sum(&shape, 0, term, first, 3, scratch, (uint8_t *)&sum);
	EXPECT(sum == 0x1p24f + 2.0f);
	ht_expect_sum(&shape, 1, term, first, 3, scratch, (uint8_t *)&sum);
	EXPECT(sum == 0x1p24f);
	/* Nodes 0 2 | 1 3: (1 + 2^24) + 1 at rank 0: the other node's row is second; (1 + 1) + 2^24 at rank 3. */
	shape.nodes = (struct far_nodes){ .dealt = 2 };
	ht_expect_sum(&shape, 0, term, middle, 3, scratch, (uint8_t *)&sum);
	EXPECT(sum == 0x1p24f);
	ht_expect_sum(&shape, 3, term, middle, 3, scratch, (uint8_t *)&sum);
	EXPECT(sum == 0x1p24f + 2.0f);
	/* 2^-8 + bf16(1 + 2^-8) at rank 0; bf16(2^-8) + 1 + 2^-8 at rank 3; one node: as at rank 3. */
	shape.base.combine = NUM_BF16;
	shape.nodes = (struct far_nodes){ .size = { 1, 3 } };
	ht_expect_sum(&shape, 0, term, rows, 3, scratch, (uint8_t *)&sum16);
	EXPECT(sum16 == 0x3f80);
	ht_expect_sum(&shape, 3, term, rows, 3, scratch, (uint8_t *)&sum16);
	EXPECT(sum16 == 0x3f81);
	ht_expect_sum(&shape, 3, term, rows, 0, scratch, (uint8_t *)&sum16);
	EXPECT(sum16 == 0);
}

/* Ranks 0 | 1 2 3 with an expert each: the rows that each sends to the other node. */
static void crossings(void)
{
	static const uint64_t sent[] = { 2, 0, 1, 1 }, returned[] = { 2, 2, 0, 0 };
	int64_t idx[4][9] = { { 1, 2, 0, 0, -1, -1, 3, 1, 2 }, { 0 }, { 0, 1, 3, 2, 3, 9 }, { 0, 0, -1 } };
	struct ll_input in[] = { { .t = 3, .idx = idx[0] },
				 { .t = 0, .idx = idx[1] },
				 { .t = 2, .idx = idx[2] },
				 { .t = 1, .idx = idx[3] } };
	struct ht_shape shape = { .base = { .ranks = 4, .experts = 4, .topk = 3, .tmax = 3, .hidden = 5 },
				  .nodes = { .size = { 1, 3 } } };

	shape.base.combine = NUM_BF16;
	for (int r = 0; r < 4; r++)
		EXPECT(ht_crossed_dispatch(&shape, in, r) == sent[r] &&
		       ht_crossed_combine(&shape, in, r) == returned[r]);
	/* 4 + 4 + 1 counts behind 16 bytes, to one other node; three entries. */
	EXPECT(ht_update_bytes(&shape) == 128 && ht_dispatch_bytes(&shape, 10, 1) == 16 + 48 + 16 + 16);
	EXPECT(ht_combine_bytes(&shape, false) == 16 + 16 && ht_combine_bytes(&shape, true) == 16 + 16 + 16);
	/* Two others; two entries, since no node has more experts. */
	shape.nodes = (struct far_nodes){ .size = { 1, 1, 2 } };
	EXPECT(ht_update_bytes(&shape) == 256 && ht_dispatch_bytes(&shape, 10, 0) == 16 + 32 + 16);
	shape.nodes = (struct far_nodes){ 0 };
	EXPECT(ht_crossed_dispatch(&shape, in, 0) == 0 && ht_crossed_combine(&shape, in, 0) == 0);
	EXPECT(ht_update_bytes(&shape) == 0);
}

/* For any routing, total rows sent equal total rows received. */
static void nothing_lost(void)
{
	for (int route = LL_ROUTE_UNIFORM; route <= LL_ROUTE_ONE_RANK; route++)
		for (int em = 0; em < 2; em++) {
			struct ht_shape shape = { .base = { .ranks = 4,
							    .experts = 12,
							    .topk = 3,
							    .tmax = 20,
							    .hidden = 2,
							    .token = NUM_F32,
							    .combine = NUM_F32 },
						  .expert_major = em };
			struct ll_data data = { .seed = 3, .fill = LL_FILL_RANDOM, .route = (enum ll_route)route };
			struct ll_input *in = ll_inputs_make(&shape.base, &data);
			struct ht_plan *plan = in ? ht_plans_make(&shape, in) : NULL;
			struct ht_term term[3];
			int64_t sent = 0, got = 0;

			ASSERT(plan);
			for (int r = 0; r < 4; r++) {
				got += plan[r].total;
				for (int t = 0; t < in[r].t; t++)
					sent += ht_terms(&shape, in, plan, r, t, term);
			}
			EXPECT(sent == got && got > 0);
			ht_plans_free(plan, 4);
			ll_inputs_free(in, 4);
		}
}

int main(void)
{
	flat_rows();
	flat_dropped();
	flat_choices();
	expert_zones();
	expert_dropped();
	expert_empty();
	terms_in_order();
	sums();
	nodes();
	node_sums();
	crossings();
	nothing_lost();
	printf("ht_oracle: %d failures\n", failures);
	return failures ? 1 : 0;
}
