/* SPDX-License-Identifier: Apache-2.0 */
/* Compares outputs with the model: the exact number of wrong values, and the first one. */
#ifndef EP_TEST_ORACLE_CHECK_H
#define EP_TEST_ORACLE_CHECK_H

#include "test/oracle/data.h"

/* Initial contents of outputs, and of inputs that must not be read: a NaN in bf16, fp16 and fp32. */
#define LL_POISON_OUT 0x5a
#define LL_POISON_IN 0xff

/* All rows. */
#define LL_ALL (1 << 30)

struct ll_verdict {
	uint64_t wrong;
	char first[256];
};

/* Adds `count` wrong values; the first message is kept. */
void ll_wrong(struct ll_verdict *verdict, uint64_t count, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* An operation as one rank sees it. */
struct ll_scene {
	const struct ll_shape *shape;
	const struct ll_data *data;
	const struct ll_input *in; /* [ranks] */
	const bool *active;	   /* [ranks], or NULL: all are */
	int rank;
};

/* Outputs of dispatch in host memory: full tensors of [zones][cap] rows. */
struct ll_got {
	const uint8_t *tokens, *scales; /* scales: or NULL */
	const int32_t *idx;		/* rank-major only, as are the weights */
	const float *weights;
	const int32_t *counts; /* NULL: not requested */
};

/*
 * Rows below the model's count must be the model's as a set, those of one source contiguous; up to `spare` rows after
 * them must be untouched (topk_idx: -1). map[zones][cap] gets the source of each row, src -1 for none.
 */
int ll_check_dispatch(const struct ll_scene *scene, const struct ll_got *got, int spare, struct ll_row *map,
		      struct ll_verdict *verdict);

/* rows[t] of the combine type against the sums. */
int ll_check_combine(const struct ll_scene *scene, const uint8_t *rows, struct ll_verdict *verdict);

#endif
