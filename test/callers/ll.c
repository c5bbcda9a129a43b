/* SPDX-License-Identifier: Apache-2.0 */
#include "test/callers/ll.h"

#include <stdlib.h>
#include <string.h>

static bool rank_major(const struct ll_layer *l)
{
	return l->shape.layout == LL_RANK_MAJOR;
}

int ll_layer_open(struct ll_layer *l, struct caller *c, const struct ll_shape *shape, bool idx32, bool window)
{
	size_t zones = (size_t)ll_zones(shape), cap = (size_t)ll_cap(shape), t = (size_t)shape->tmax;
	size_t k = (size_t)shape->topk, h = shape->hidden;

	*l = (struct ll_layer){ .c = c, .shape = *shape };
	for (int r = 0; r < LL_RANKS_MAX; r++)
		l->active[r] = true;
	l->map = calloc(zones * cap, sizeof(*l->map));
	if (!l->map)
		return seat_fail(c->seat, "out of memory");
	return caller_meet(c) || TENSOR(c, &l->idx, ON_DEVICE, idx32 ? ncclInt32 : ncclInt64, t, k) ||
			       TENSOR(c, &l->tokens, ON_DEVICE, ncclBfloat16, t, h) ||
			       TENSOR(c, &l->weights, ON_DEVICE, ncclFloat32, t, k) ||
			       TENSOR(c, &l->out, window ? IN_WINDOW : ON_DEVICE, ncclBfloat16, zones, cap, h) ||
			       TENSOR(c, &l->out_weights, ON_DEVICE, ncclFloat32, zones, cap, k) ||
			       TENSOR(c, &l->out_idx, ON_DEVICE, ncclInt32, zones, cap, k) ||
			       TENSOR(c, &l->counts, ON_DEVICE, ncclInt32, zones) ||
			       TENSOR(c, &l->answers, ON_DEVICE, ncclBfloat16, zones, cap, h) ||
			       TENSOR(c, &l->sums, ON_DEVICE, ncclBfloat16, t, h) || caller_meet(c)
		       ? -1
		       : 0;
}

void ll_layer_close(struct ll_layer *l)
{
	struct tensor *all[] = { &l->idx,     &l->tokens, &l->weights, &l->out, &l->out_weights,
				 &l->out_idx, &l->counts, &l->answers, &l->sums };

	for (size_t i = 0; l->c && i < sizeof(all) / sizeof(all[0]); i++)
		tensor_close(l->c, all[i]);
	ll_inputs_free(l->in, l->shape.ranks);
	free(l->map);
	*l = (struct ll_layer){ 0 };
}

static int idx_put(struct ll_layer *l, const struct ll_input *in)
{
	size_t n = (size_t)in->t * (size_t)l->shape.topk;
	int32_t *narrow = malloc(n * sizeof(*narrow) + 1);
	int rc;

	if (!narrow)
		return seat_fail(l->c->seat, "out of memory");
	for (size_t i = 0; i < n; i++)
		narrow[i] = (int32_t)in->idx[i];
	tensor_rows(&l->idx, (size_t)in->t);
	rc = tensor_put(l->c, &l->idx, l->idx.t.datatype == ncclInt32 ? (const void *)narrow : in->idx);
	free(narrow);
	return rc;
}

int ll_layer_load(struct ll_layer *l, const struct ll_data *data)
{
	const struct ll_input *in;

	ll_inputs_free(l->in, l->shape.ranks);
	l->data = *data;
	l->in = ll_inputs_make(&l->shape, data);
	if (!l->in)
		return seat_fail(l->c->seat, "out of memory");
	in = &l->in[l->c->rank];
	tensor_rows(&l->tokens, (size_t)in->t);
	tensor_rows(&l->weights, (size_t)in->t);
	tensor_rows(&l->sums, (size_t)in->t);
	return idx_put(l, in) || tensor_put(l->c, &l->tokens, in->tokens) ||
			       tensor_put(l->c, &l->weights, in->weight) || tensor_fill(l->c, &l->out, LL_POISON_OUT) ||
			       tensor_fill(l->c, &l->out_weights, LL_POISON_OUT) ||
			       tensor_fill(l->c, &l->out_idx, 0xff) || tensor_fill(l->c, &l->counts, LL_POISON_OUT) ||
			       tensor_fill(l->c, &l->answers, LL_POISON_IN) ||
			       tensor_fill(l->c, &l->sums, LL_POISON_OUT) || caller_sync(l->c)
		       ? -1
		       : 0;
}

/* ---- calls ---- */

int ll_layer_create(struct ll_layer *l, ncclEpGroup_t group)
{
	return caller_expect(l->c, "ncclEpCreateHandle",
			     ep.ncclEpCreateHandle(&l->handle, group,
						   rank_major(l) ? NCCL_EP_LAYOUT_RANK_MAJOR
								 : NCCL_EP_LAYOUT_EXPERT_MAJOR,
						   &l->idx.t, NULL, NULL, l->c->shim.stream));
}

int ll_layer_update(struct ll_layer *l)
{
	return caller_expect(l->c, "ncclEpUpdateHandle",
			     ep.ncclEpUpdateHandle(l->handle, &l->idx.t, NULL, l->c->shim.stream));
}

int ll_layer_dispatch(struct ll_layer *l)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;

	in.tokens = &l->tokens.t;
	out.tokens = &l->out.t;
	if (rank_major(l)) {
		in.topk_weights = &l->weights.t;
		out.topk_weights = &l->out_weights.t;
		out.topk_idx = &l->out_idx.t;
		info.src_rank_counters = &l->counts.t;
		info.recv_topk_idx_kind = l->shape.global_ids ? NCCL_EP_EXPERT_ID_GLOBAL : NCCL_EP_EXPERT_ID_AUTO;
	} else {
		info.expert_counters = &l->counts.t;
	}
	return caller_expect(l->c, "ncclEpDispatch",
			     ep.ncclEpDispatch(l->handle, &in, &out, &info, &config, l->c->shim.stream));
}

int ll_layer_combine(struct ll_layer *l)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;

	in.tokens = &l->answers.t;
	out.tokens = &l->sums.t;
	out.topk_weights = rank_major(l) ? NULL : &l->weights.t;
	return caller_expect(l->c, "ncclEpCombine", ep.ncclEpCombine(l->handle, &in, &out, NULL, l->c->shim.stream));
}

int ll_layer_complete(struct ll_layer *l)
{
	return caller_expect(l->c, "ncclEpComplete", ep.ncclEpComplete(l->handle, NULL, l->c->shim.stream));
}

int ll_layer_destroy(struct ll_layer *l)
{
	ncclEpHandle_t handle = l->handle;

	l->handle = NULL;
	return caller_expect(l->c, "ncclEpHandleDestroy", ep.ncclEpHandleDestroy(handle));
}

int ll_layer_echo(struct ll_layer *l)
{
	return l->c->shim.ops->copy(&l->c->shim, l->answers.at, l->out.at, l->out.bytes)
		       ? seat_fail(l->c->seat, "%s", l->c->shim.text)
		       : 0;
}

/* ---- checks ---- */

static struct ll_scene scene_of(const struct ll_layer *l)
{
	return (struct ll_scene){
		.shape = &l->shape, .data = &l->data, .in = l->in, .active = l->active, .rank = l->c->rank
	};
}

static int answers_put(struct ll_layer *l)
{
	size_t bytes = ll_combine_bytes(&l->shape), rows = (size_t)ll_zones(&l->shape) * (size_t)ll_cap(&l->shape);
	int local = l->shape.experts / l->shape.ranks, rc;
	uint8_t *all = malloc(rows * bytes);

	if (!all)
		return seat_fail(l->c->seat, "out of memory");
	memset(all, LL_POISON_IN, rows * bytes);
	for (size_t i = 0; i < rows; i++) {
		int zone = (int)(i / (size_t)ll_cap(&l->shape));

		if (l->map[i].src >= 0)
			ll_answer(&l->shape, &l->data, l->in, l->map[i],
				  rank_major(l) ? l->c->rank : l->c->rank * local + zone, all + i * bytes);
	}
	rc = tensor_put(l->c, &l->answers, all);
	free(all);
	return rc;
}

int ll_layer_check_rows(struct ll_layer *l)
{
	struct ll_scene scene = scene_of(l);
	struct ll_got got = { .tokens = tensor_get(l->c, &l->out), .counts = tensor_get(l->c, &l->counts) };

	if (rank_major(l)) {
		got.idx = tensor_get(l->c, &l->out_idx);
		got.weights = tensor_get(l->c, &l->out_weights);
	}
	if (seat_failed(l->c->seat))
		return -1;
	if (ll_check_dispatch(&scene, &got, LL_ALL, l->map, &l->c->verdict))
		return seat_fail(l->c->seat, "out of memory");
	return l->data.echo ? 0 : answers_put(l);
}

int ll_layer_check_sums(struct ll_layer *l)
{
	struct ll_scene scene = scene_of(l);
	const uint8_t *rows = tensor_get(l->c, &l->sums);

	if (!rows)
		return -1;
	return ll_check_combine(&scene, rows, &l->c->verdict) ? seat_fail(l->c->seat, "out of memory") : 0;
}
