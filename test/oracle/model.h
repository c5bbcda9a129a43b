/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The expected outputs of LL dispatch and combine, as a plain model of the contract: from the inputs of all ranks it
 * computes which rows a rank receives, their contents, and the sums. It shares no code with the library.
 */
#ifndef EP_TEST_ORACLE_MODEL_H
#define EP_TEST_ORACLE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "test/oracle/num.h"

enum ll_layout { LL_EXPERT_MAJOR, LL_RANK_MAJOR };
enum ll_quant { LL_QUANT_NONE, LL_QUANT_FWD, LL_QUANT_DS, LL_QUANT_DS_ROUND };
/* Of the output; exponents are by columns too, a byte each. */
enum ll_scales { LL_SCALES_ROWS, LL_SCALES_COLUMNS, LL_SCALES_EXPONENTS };

struct ll_shape {
	enum ll_layout layout;
	enum ll_quant quant;
	int ranks, experts, topk, tmax; /* total experts */
	size_t hidden;
	enum num_type token, scale; /* inputs of dispatch; scale only with LL_QUANT_FWD */
	enum num_type combine;
	size_t scale_width; /* elements of a scale row with LL_QUANT_FWD */
	enum ll_scales scales;
	bool global_ids; /* rank-major: topk_idx returns global ids */
};

/* One rank's inputs of dispatch. */
struct ll_input {
	int t;
	int64_t *idx;	 /* [t][topk] */
	float *weight;	 /* [t][topk] */
	uint8_t *tokens; /* [t] rows of ll_in_bytes() */
	uint8_t *scales; /* [t] rows of ll_scale_bytes() with LL_QUANT_FWD, else NULL */
};

/* A received row by where it came from. */
struct ll_row {
	int src, token;
};

/*
 * The rows a rank receives. A zone is a local expert (expert-major) or a source rank (rank-major); each has room for
 * `cap` rows. Inside a zone the order is free; here it is ascending by (source, token).
 */
struct ll_expect {
	int zones, cap;
	int *count;	    /* [zones] */
	struct ll_row *row; /* [zones][cap] */
};

/* Bytes of a row of the input tokens, the output tokens, its scales (0: none) and how they are returned. */
size_t ll_in_bytes(const struct ll_shape *shape);
size_t ll_out_bytes(const struct ll_shape *shape);
size_t ll_scale_bytes(const struct ll_shape *shape);
size_t ll_out_scale_bytes(const struct ll_shape *shape);
size_t ll_combine_bytes(const struct ll_shape *shape);
/* Element types of the same. */
enum num_type ll_out_type(const struct ll_shape *shape);
enum num_type ll_scale_type(const struct ll_shape *shape);

int ll_zones(const struct ll_shape *shape); /* of one rank */
int ll_cap(const struct ll_shape *shape);
/* The rank an id belongs to, or -1: dropped (-1), out of range, or on a rank that is not active. active NULL: all are.
 */
int ll_owner(const struct ll_shape *shape, const bool *active, int64_t id);

/* Which rows `rank` receives from in[ranks]; an inactive source sends nothing. -ENOMEM or 0. */
int ll_expect_dispatch(const struct ll_shape *shape, const struct ll_input *in, const bool *active, int rank,
		       struct ll_expect *out);
void ll_expect_free(struct ll_expect *expect);

/* The token row and, with scales, the scale row as received for a token of `in`; a row of scales is in one piece here,
 * also where the output has it by columns. */
void ll_expect_payload(const struct ll_shape *shape, const struct ll_input *in, int token, uint8_t *row,
		       uint8_t *scale);
/* Rank-major: the topk_idx row on `rank`. */
void ll_expect_idx(const struct ll_shape *shape, const struct ll_input *in, int token, int rank, int32_t *row);

/*
 * The sum of one token at its home rank. answers[k] is the row returned for topk_idx[k] (rank-major: from the rank of
 * topk_idx[k]); not read where the contract skips k. sum[hidden] is scratch. One fmaf per term, in ascending k: the
 * rounding and the order that the library guarantees.
 */
void ll_expect_sum(const struct ll_shape *shape, const struct ll_input *in, const bool *active, int token,
		   const uint8_t *const *answers, float *sum, uint8_t *row);

#endif
