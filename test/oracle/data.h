/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test data that every rank can make alone: whatever a rank gives to an operation is a function of the seed, so each
 * checks its own outputs against all inputs without asking anybody.
 */
#ifndef EP_TEST_ORACLE_DATA_H
#define EP_TEST_ORACLE_DATA_H

#include "test/oracle/model.h"

/* How many tokens the ranks have. */
enum ll_fill { LL_FILL_FULL, LL_FILL_ZERO_SOME, LL_FILL_RANDOM, LL_FILL_NONE };

/* Where they go. */
enum ll_route {
	LL_ROUTE_UNIFORM, /* K different experts */
	LL_ROUTE_DROPPED, /* the same, a third of them -1 */
	LL_ROUTE_TWICE,	  /* experts come up again in a token */
	LL_ROUTE_BAD,	  /* ids out of range among good ones */
	LL_ROUTE_ONE,	  /* everything to one expert */
	LL_ROUTE_ONE_RANK /* everything to the experts of one rank, others get nothing */
};

struct ll_data {
	uint64_t seed; /* of this operation: cell, handle and round */
	enum ll_fill fill;
	enum ll_route route;
	bool idx64;   /* ids may be beyond 32 bits */
	bool numeric; /* tokens are numbers to calculate with; else any bits, NaNs too (nothing may look at them) */
	bool echo;    /* an expert answers with what it got: combine's input is dispatch's output */
	int fixed_t;  /* tokens of every rank, where > 0 */
};

/* A new seed from an old one and numbers that tell the uses apart. */
uint64_t ll_seed(uint64_t seed, uint64_t a, uint64_t b);
uint64_t ll_random(uint64_t *state);

int ll_tokens(const struct ll_shape *shape, const struct ll_data *data, int src);
/* 0 or -ENOMEM. */
int ll_input_make(const struct ll_shape *shape, const struct ll_data *data, int src, struct ll_input *out);
/* Other weights, tokens and scales with the same routing. */
void ll_input_fill(const struct ll_shape *shape, const struct ll_data *data, int src, struct ll_input *in);
void ll_input_free(struct ll_input *in);
/* All ranks' inputs, in[ranks]. */
struct ll_input *ll_inputs_make(const struct ll_shape *shape, const struct ll_data *data);
void ll_inputs_free(struct ll_input *in, int ranks);
/* Are there ids out of [-1, experts)? */
bool ll_input_bad(const struct ll_shape *shape, const struct ll_input *in);

/* What `from` (expert-major: an expert, rank-major: a rank) answers for a token: a row of the combine type. */
void ll_answer(const struct ll_shape *shape, const struct ll_data *data, const struct ll_input *in, struct ll_row token,
	       int64_t from, uint8_t *row);

#endif
