/* SPDX-License-Identifier: Apache-2.0 */
/* One MoE layer over LL: its tensors, the calls, and what must come out, by the model. */
#ifndef EP_TEST_CALLERS_LL_H
#define EP_TEST_CALLERS_LL_H

#include "test/callers/caller.h"
#include "test/oracle/data.h"

#define LL_RANKS_MAX 8

struct ll_layer {
	struct caller *c;
	struct ll_shape shape;
	struct ll_data data;
	struct ll_input *in; /* [ranks] */
	struct ll_row *map;  /* where received rows came from */
	bool active[LL_RANKS_MAX];
	ncclEpHandle_t handle;
	struct tensor idx, tokens, weights, out, out_weights, out_idx, counts, answers, sums;
};

/* Collective. window: dispatch's output is in a registered window. */
int ll_layer_open(struct ll_layer *l, struct caller *c, const struct ll_shape *shape, bool idx32, bool window);
void ll_layer_close(struct ll_layer *l);

/* New tokens and routing; outputs are poisoned, received ids filled with -1 as callers do. */
int ll_layer_load(struct ll_layer *l, const struct ll_data *data);

int ll_layer_create(struct ll_layer *l, ncclEpGroup_t group);
int ll_layer_update(struct ll_layer *l);
int ll_layer_dispatch(struct ll_layer *l);
int ll_layer_combine(struct ll_layer *l);
int ll_layer_complete(struct ll_layer *l);
int ll_layer_destroy(struct ll_layer *l);
/* Experts that return what they received (ll_data.echo), on the device. */
int ll_layer_echo(struct ll_layer *l);

/* After the stream was synchronised. The first also gives the experts' answers. */
int ll_layer_check_rows(struct ll_layer *l);
int ll_layer_check_sums(struct ll_layer *l);

#endif
