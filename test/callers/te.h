/* SPDX-License-Identifier: Apache-2.0 */
/* One rank as TransformerEngine drives the library: one HT group, expert-major handles over memory of the caller. */
#ifndef EP_TEST_CALLERS_TE_H
#define EP_TEST_CALLERS_TE_H

#include "test/callers/caller.h"
#include "test/callers/round.h"

#define TE_EXPERTS 12
#define TE_TOPK 3
#define TE_TMAX 64
#define TE_HIDDEN 512
#define TE_ALIGN 16

/* eager: max_recv 0, the number of rows read in pinned memory. fused: counters at dispatch. quant: e4m3 with scales
 * forward and backward. windows: zero_copy ON, what is received and what experts return is in windows. */
struct te_mode {
	const char *name;
	bool eager, fused, quant, windows, idx32;
};

enum te_buf {
	TE_IDX,
	TE_COUNTS,
	TE_TOTAL,
	TE_TOKENS,
	TE_SCALES,
	TE_WEIGHTS,
	TE_OUT,
	TE_OUT_SCALES,
	TE_OUT_WEIGHTS,
	TE_ANSWERS,
	TE_ANSWER_WEIGHTS,
	TE_SUMS,
	TE_SUM_WEIGHTS,
	TE_BACK,
	TE_BACK_SCALES,
	TE_BACK_OUT,
	TE_BACK_OUT_SCALES,
	TE_BUFS
};

struct te {
	struct caller c;
	struct te_mode mode;
	struct ht_shape shape; /* capacity 0: eager */
	ncclEpGroup_t group;
	size_t mem_size; /* of a handle */
	size_t height;	 /* rows of outputs; eager: the most there can be */
	struct tensor buf[TE_BUFS];
};

/* An EpBuffer: a handle over memory of the caller, and the pass that was last run with it. */
struct layer {
	struct round round;
	void *mem;
	ncclEpHandle_t handle;
};

/* All collective unless noted; 0, or -1 after seat_fail. capacity 0: eager. */
int te_open(struct te *te, struct seat *seat, const struct te_mode *mode, int capacity);
/* Destroys the group and closes the rank; also after a failure. */
int te_close(struct te *te);
/* Instead of te_close: nothing is destroyed. */
int te_desert(struct te *te);
/* The group only: destroyed and created again with another capacity. */
int te_regroup(struct te *te, const struct te_mode *mode, int capacity);

/* Local, as all below but the passes. */
int te_handle(struct te *te, void *mem, ncclEpHandle_t *out);
int te_destroy(struct te *te, ncclEpHandle_t *handle);
/* A new pass: tokens, routing and what must come out. */
int layer_data(struct te *te, struct layer *layer, const struct ll_data *data);

/* The passes, each checked. Forward with Update; backward without: the routing is in the memory. */
int layer_forward(struct te *te, struct layer *layer);
int layer_backward(struct te *te, struct layer *layer);

#endif
