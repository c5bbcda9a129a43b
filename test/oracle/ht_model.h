/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The expected outputs of HT, as a plain model of the contract: from the inputs of all ranks it computes the contents
 * of every row, byte for byte, since in HT every position is fixed. It shares no code with the library.
 */
#ifndef EP_TEST_ORACLE_HT_MODEL_H
#define EP_TEST_ORACLE_HT_MODEL_H

#include "test/oracle/model.h"
#include "test/oracle/nodes.h"

struct ht_shape {
	struct ll_shape base; /* layout and global_ids are unused; quant is NONE or FWD */
	bool expert_major;    /* else flat */
	bool global_ids;
	int align;    /* of experts' zones; 0 and 1: none */
	int capacity; /* max_recv_tokens_per_rank; 0: eager */
	struct far_nodes nodes;
};

/* A row by where it came from; src -1: padding, in expert-major. */
struct ht_row {
	int src, token;
	int expert; /* local; flat: -1 */
};

/* What a rank receives. */
struct ht_plan {
	int64_t total; /* rows before anything is dropped, padding included */
	int rows;      /* delivered, padding included: rows 0 to rows - 1 of the tensors */
	struct ht_row *row;
	int64_t *count, *offset; /* [local experts], as Update returns them; flat has no offsets */
};

int ht_local(const struct ht_shape *shape); /* experts per rank */
/* The most rows a rank can receive. */
int ht_bound(const struct ht_shape *shape);

/* in[ranks]: only t and idx are used. -ENOMEM or 0. */
int ht_plan_make(const struct ht_shape *shape, const struct ll_input *in, int rank, struct ht_plan *out);
void ht_plan_free(struct ht_plan *plan);
/* Of all ranks: plan[ranks]; NULL: out of memory. */
struct ht_plan *ht_plans_make(const struct ht_shape *shape, const struct ll_input *in);
void ht_plans_free(struct ht_plan *plan, int ranks);

/* The lowest expert id above `after` that a token selects, or -1. *last, if not NULL, is the last k that selects it. */
int64_t ht_next(const struct ht_shape *shape, const struct ll_input *in, int token, int64_t after, int *last);

/* Flat: topk_idx[topk] and topk_weights[topk] of a row. */
void ht_expect_choices(const struct ht_shape *shape, const struct ll_input *in, int token, int rank, int64_t *idx,
		       float *weight);
/* Expert-major: the weight of a row. */
float ht_expect_weight(const struct ht_shape *shape, const struct ll_input *in, int token, int64_t expert);

/*
 * The rows returned to a token of `src`, in the order in which combine adds them. from: the rank (flat) or the global
 * expert; both arrays hold topk.
 */
struct ht_term {
	int64_t from;
	int rank, row;
};
int ht_terms(const struct ht_shape *shape, const struct ll_input *in, const struct ht_plan *plans, int src, int token,
	     struct ht_term *terms);
/* The row of a choice, -1: none was delivered. in[ranks] */
int ht_slot(const struct ht_shape *shape, const struct ht_plan *plans, int src, int token, int64_t expert);

/*
 * The sum of the `count` rows at[] of a token of `src`, in the order of `term`. Rows of another node are summed there:
 * in float, starting at 0, rounded to the combine type, as one row crosses; it takes the place of the first of them.
 * Then in float, starting at 0, rounded once at the end. sum[2 * hidden] is scratch.
 */
void ht_expect_sum(const struct ht_shape *shape, int src, const struct ht_term *term, const uint8_t *const *at,
		   int count, float *sum, uint8_t *row);

/*
 * Rows that this rank sends to other nodes: at dispatch one per token and node with an expert of it, also where rows
 * are dropped; at combine the same of the tokens that it relays. in[ranks]
 */
uint64_t ht_crossed_dispatch(const struct ht_shape *shape, const struct ll_input *in, int rank);
uint64_t ht_crossed_combine(const struct ht_shape *shape, const struct ll_input *in, int rank);

/* A model of the wire format: bytes that a rank sends to other nodes at Update, and for one such row of a dispatch and
 * of a combine. */
uint64_t ht_update_bytes(const struct ht_shape *shape);
uint64_t ht_dispatch_bytes(const struct ht_shape *shape, size_t token, size_t scale);
uint64_t ht_combine_bytes(const struct ht_shape *shape, bool backward);

#endif
