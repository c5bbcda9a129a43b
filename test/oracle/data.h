/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test data as a function of the seed: every rank can compute all ranks' inputs and check its own outputs without
 * communication.
 */
#ifndef EP_TEST_ORACLE_DATA_H
#define EP_TEST_ORACLE_DATA_H

#include "test/oracle/model.h"

/* How many tokens the ranks have. */
enum ll_fill { LL_FILL_FULL, LL_FILL_ZERO_SOME, LL_FILL_RANDOM, LL_FILL_NONE };

/* Their routing. */
enum ll_route {
	LL_ROUTE_UNIFORM,  /* K different experts */
	LL_ROUTE_DROPPED,  /* the same, a third of them -1 */
	LL_ROUTE_TWICE,	   /* a token may select an expert twice */
	LL_ROUTE_BAD,	   /* some ids out of range */
	LL_ROUTE_ONE,	   /* everything to one expert */
	LL_ROUTE_ONE_RANK, /* everything to the experts of one rank */
	LL_ROUTE_NOWHERE,  /* all -1 */
	LL_ROUTE_ZIPF	   /* K different experts, some of them popular */
};

struct ll_data {
	uint64_t seed; /* of this operation: cell, handle and round */
	enum ll_fill fill;
	enum ll_route route;
	bool idx64;   /* ids may be beyond 32 bits */
	bool numeric; /* tokens are finite numbers; else any bits, including NaNs (never interpreted) */
	bool echo;    /* experts return what they received: combine's input is dispatch's output */
	int fixed_t;  /* > 0: tokens of every rank */
	int idle;     /* the last so many ranks have no tokens */
	double zipf;  /* LL_ROUTE_ZIPF: the n-th most popular expert is chosen in proportion to n to the power -zipf */
};

/* Derives a seed from another and numbers that distinguish its uses. */
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
/* Whether there are ids out of [-1, experts). */
bool ll_input_bad(const struct ll_shape *shape, const struct ll_input *in);

/* The row that `from` (expert-major: an expert, rank-major: a rank) returns for a token, in the combine type. */
void ll_answer(const struct ll_shape *shape, const struct ll_data *data, const struct ll_input *in, struct ll_row token,
	       int64_t from, uint8_t *row);

#endif
