/* SPDX-License-Identifier: Apache-2.0 */
/* The data of one forward and backward pass through an HT layer, and what every output must hold, by the model. */
#ifndef EP_TEST_CALLERS_ROUND_H
#define EP_TEST_CALLERS_ROUND_H

#include "test/oracle/check.h"
#include "test/oracle/ht_model.h"

struct round {
	struct ht_shape shape;
	struct ll_data data;
	struct ll_input *in;   /* [ranks]: what dispatch sends */
	struct ll_input *back; /* the same routing, other tokens: what backward dispatch sends */
	struct ht_plan *plan;  /* [ranks] */
	int rank;
};

/* back_quant: backward tokens are e4m3 with a uint8 scale per 32 channels. 0 or -1: out of memory. */
int round_open(struct round *r, const struct ht_shape *shape, const struct ll_data *data, int rank, bool back_quant);
void round_close(struct round *r);

const struct ll_input *round_mine(const struct round *r);
const struct ht_plan *round_plan(const struct round *r); /* of this rank */

/* Outputs of a dispatch in host memory, `height` rows of each; NULL: not asked for. */
struct round_got {
	const uint8_t *tokens, *scales;
	const float *weights; /* expert-major [height], flat [height][topk] */
	const int64_t *idx;   /* flat [height][topk] */
	size_t height;
};

/* Every row, also past the last: there tokens keep their poison, ids are -1 and weights 0 in flat. */
void round_check_rows(const struct round *r, const struct ll_input *from, const struct round_got *got,
		      struct ll_verdict *verdict);
/* count, offset: [local experts], or NULL; all int64. */
void round_check_counts(const struct round *r, const int64_t *count, const int64_t *total, struct ll_verdict *verdict);

/* What the experts return: rows [height][hidden] of the combine type, and in the backward pass a weight per row
 * (expert-major). Poison elsewhere. `pass` distinguishes the passes. */
void round_answers(const struct round *r, int pass, size_t height, uint8_t *rows, float *weights);
/* sums[t][hidden]; weights[t][topk] or NULL. */
void round_check_sums(const struct round *r, int pass, const uint8_t *sums, const float *weights,
		      struct ll_verdict *verdict);

#endif
