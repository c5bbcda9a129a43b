/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor descriptors of an HT rig, and the calls. */
#include <string.h>
#include <unistd.h>

#include "test/oracle/ht_rig.h"

#define CROSS_SECONDS 10.0

int ht_expect(struct ht_rig *rig, const char *call, ncclResult_t got)
{
	if (got == ncclSuccess)
		return 0;
	return seat_fail(rig->seat, "%s: %s: %s", call, ncclGetErrorString(got), anyEpGetLastError());
}

void ht_want(struct ht_rig *rig, const char *what, ncclResult_t want, ncclResult_t got)
{
	ll_wrong(&rig->verdict, got != want, "rank %d: %s returned %s, must be %s (%s)", seat_rank(rig->seat), what,
		 ncclGetErrorString(got), ncclGetErrorString(want), anyEpGetLastError());
}

static ncclDataType_t type_of(const struct ht_rig *rig, enum ht_buf_id id)
{
	const struct ll_shape *base = &rig->cfg.shape.base;

	switch (id) {
	case HT_IDX:
		return rig->cfg.idx64 ? ncclInt64 : ncclInt32;
	case HT_COUNTS:
	case HT_OFFSETS:
	case HT_TOTAL:
	case HT_SENT_COUNTS:
	case HT_SENT_OFFSETS:
	case HT_SENT_TOTAL:
		return ht_row_bytes(rig, id) == 8 ? ncclInt64 : ncclInt32;
	case HT_TOKENS:
	case HT_OUT:
		return (ncclDataType_t)num_info[base->token].nccl;
	case HT_SCALES:
	case HT_OUT_SCALES:
		return (ncclDataType_t)num_info[base->scale].nccl;
	case HT_BACK:
	case HT_OUT_BACK:
		return (ncclDataType_t)num_info[rig->cfg.back_quant ? base->token : base->combine].nccl;
	case HT_BACK_SCALES:
	case HT_OUT_BACK_SCALES:
		return (ncclDataType_t)num_info[base->scale].nccl;
	case HT_WEIGHTS:
	case HT_OUT_WEIGHTS:
	case HT_BACK_WEIGHTS:
	case HT_OUT_BACK_WEIGHTS:
		return ncclFloat32;
	case HT_OUT_IDX:
		return ncclInt64;
	case HT_MEM:
		return ncclUint8;
	default:
		return (ncclDataType_t)num_info[base->combine].nccl;
	}
}

/* Elements of a row; 0: the tensor has one dimension. */
static size_t width_of(const struct ht_rig *rig, enum ht_buf_id id)
{
	const struct ll_shape *base = &rig->cfg.shape.base;

	switch (id) {
	case HT_COUNTS:
	case HT_OFFSETS:
	case HT_TOTAL:
	case HT_SENT_COUNTS:
	case HT_SENT_OFFSETS:
	case HT_SENT_TOTAL:
	case HT_MEM:
		return 0;
	case HT_OUT_WEIGHTS:
	case HT_BACK_WEIGHTS:
		return rig->cfg.shape.expert_major ? 0 : (size_t)base->topk;
	case HT_IDX:
	case HT_WEIGHTS:
	case HT_OUT_IDX:
	case HT_OUT_BACK_WEIGHTS:
		return (size_t)base->topk;
	case HT_TOKENS:
	case HT_OUT:
		return ht_row_bytes(rig, id) / num_info[base->token].size;
	case HT_BACK:
	case HT_OUT_BACK:
		return ht_row_bytes(rig, id) / num_info[rig->cfg.back_quant ? base->token : base->combine].size;
	case HT_SCALES:
	case HT_OUT_SCALES:
	case HT_BACK_SCALES:
	case HT_OUT_BACK_SCALES:
		return ht_row_bytes(rig, id) / num_info[base->scale].size;
	default:
		return base->hidden;
	}
}

void ht_tensor(const struct ht_rig *rig, int handle, enum ht_buf_id id, struct ht_tensor *out)
{
	const struct ht_handle *h = &rig->handle[handle];
	const struct buf *buf = &h->buf[id];
	size_t width = width_of(rig, id);

	*out = (struct ht_tensor){ .t = NCCL_EP_TENSOR_INIT };
	out->t.datatype = type_of(rig, id);
	out->t.ndim = width ? 2 : 1;
	out->sizes[0] = id == HT_MEM ? buf->size : ht_rows(rig, handle, id);
	out->sizes[1] = width;
	out->t.sizes = out->sizes;
	if (h->kind[id] == SLAB_WINDOW) {
		out->t.win_hdl = buf->window;
		out->t.win_offset = buf->offset;
	} else if (out->sizes[0] || h->data.seed % 2) {
		out->t.data = buf->at; /* NULL is allowed for an empty tensor: every other time */
	}
}

/* ---- calls; descriptors are on the stack, gone when the call has returned ---- */

void ht_args(const struct ht_rig *rig, int handle, enum ht_op op, struct ht_args *args)
{
	bool bwd = op == HT_DISPATCH_BWD || op == HT_COMBINE_BWD;
	bool quant = bwd ? rig->cfg.back_quant : rig->cfg.shape.base.quant == LL_QUANT_FWD;
	struct ht_tensor *t = args->tensor;

	*args = (struct ht_args){ .update_info = NCCL_EP_LAYOUT_INFO_INIT,
				  .dispatch_in = NCCL_EP_DISPATCH_INPUTS_INIT,
				  .dispatch_out = NCCL_EP_DISPATCH_OUTPUTS_INIT,
				  .dispatch_info = NCCL_EP_LAYOUT_INFO_INIT,
				  .dispatch = NCCL_EP_DISPATCH_CONFIG_INIT,
				  .combine_in = NCCL_EP_COMBINE_INPUTS_INIT,
				  .combine_out = NCCL_EP_COMBINE_OUTPUTS_INIT,
				  .combine = NCCL_EP_COMBINE_CONFIG_INIT };
	for (int id = 0; id < HT_BUFS; id++)
		if (rig->handle[handle].buf[id].size)
			ht_tensor(rig, handle, id, &t[id]);
	if (rig->cfg.counters) {
		args->update_info.expert_counters = &t[HT_COUNTS].t;
		args->update_info.expert_offsets = rig->cfg.shape.expert_major ? &t[HT_OFFSETS].t : NULL;
		args->update_info.recv_total_counter = &t[HT_TOTAL].t;
	}
	args->dispatch_in.tokens = &t[bwd ? HT_BACK : HT_TOKENS].t;
	args->dispatch_out.tokens = &t[bwd ? HT_OUT_BACK : HT_OUT].t;
	args->dispatch_in.scales = quant ? &t[bwd ? HT_BACK_SCALES : HT_SCALES].t : NULL;
	args->dispatch_out.scales = quant ? &t[bwd ? HT_OUT_BACK_SCALES : HT_OUT_SCALES].t : NULL;
	args->dispatch.quant_recipe = quant ? NCCL_EP_DISP_QUANT_FWD : NCCL_EP_DISP_QUANT_NONE;
	args->dispatch.pass_direction = args->combine.pass_direction = bwd ? NCCL_EP_BWD_PASS : NCCL_EP_FWD_PASS;
	if (!bwd) {
		args->dispatch_in.topk_weights = &t[HT_WEIGHTS].t;
		args->dispatch_out.topk_weights = &t[HT_OUT_WEIGHTS].t;
		args->dispatch_out.topk_idx = rig->cfg.shape.expert_major ? NULL : &t[HT_OUT_IDX].t;
	}
	args->dispatch_info.recv_topk_idx_kind = (ncclEpExpertIdKind_t)rig->cfg.id_kind;
	args->dispatch_info.expert_counters = ht_counted(rig, handle, HT_SENT_COUNTS) ? &t[HT_SENT_COUNTS].t : NULL;
	args->dispatch_info.expert_offsets = ht_counted(rig, handle, HT_SENT_OFFSETS) ? &t[HT_SENT_OFFSETS].t : NULL;
	args->dispatch_info.recv_total_counter = ht_counted(rig, handle, HT_SENT_TOTAL) ? &t[HT_SENT_TOTAL].t : NULL;
	args->combine_in.tokens = &t[bwd ? HT_BACK_ANSWERS : HT_ANSWERS].t;
	args->combine_in.topk_weights = bwd ? &t[HT_BACK_WEIGHTS].t : NULL;
	args->combine_out.tokens = &t[bwd ? HT_BACK_SUMS : HT_SUMS].t;
	args->combine_out.topk_weights = bwd ? &t[HT_OUT_BACK_WEIGHTS].t : NULL;
}

static uint64_t op_bytes(const struct ht_rig *rig, int handle, enum ht_op op)
{
	const struct ht_shape *shape = &rig->cfg.shape;
	const struct ll_input *in = rig->handle[handle].in;
	int rank = seat_rank(rig->seat);

	switch (op) {
	case HT_UPDATE:
		return ht_update_bytes(shape);
	case HT_DISPATCH:
		return ht_crossed_dispatch(shape, in, rank) *
		       ht_dispatch_bytes(shape, ht_row_bytes(rig, HT_TOKENS), ht_row_bytes(rig, HT_SCALES));
	case HT_DISPATCH_BWD:
		return ht_crossed_dispatch(shape, in, rank) *
		       ht_dispatch_bytes(shape, ht_row_bytes(rig, HT_BACK), ht_row_bytes(rig, HT_BACK_SCALES));
	default:
		return ht_crossed_combine(shape, in, rank) * ht_combine_bytes(shape, op == HT_COMBINE_BWD);
	}
}

void ht_crossed_add(struct ht_rig *rig, int handle, enum ht_op op)
{
	if (rig->cfg.shape.nodes.size[0] || rig->cfg.shape.nodes.dealt)
		rig->crossed += op_bytes(rig, handle, op);
}

/* All operations are complete, so every put has arrived; an engine may still have to count it. */
int ht_check_crossed(struct ht_rig *rig, uint64_t more)
{
	double end = world_now() + CROSS_SECONDS;
	uint64_t want = rig->crossed + more;
	anyEpNetCounts_t counts = ANYEP_NET_COUNTS_INIT;

	if (ht_sync(rig) || seat_barrier(rig->seat))
		return -1;
	do {
		usleep(100);
		if (ht_expect(rig, "anyEpGroupNetCounts", anyEpGroupNetCounts(rig->group, &counts)))
			return -1;
	} while (counts.bytes < want && world_now() < end);
	ll_wrong(&rig->verdict, counts.bytes != want, "rank %d: %llu bytes sent between nodes, must be %llu",
		 seat_rank(rig->seat), (unsigned long long)counts.bytes, (unsigned long long)want);
	return 0;
}

/* Biases are set for one combine only, which keeps them. */
static ncclResult_t combine(struct ht_rig *rig, int handle, ncclEpHandle_t use, struct ht_args *args)
{
	const ncclEpTensor_t *const bias[] = { &args->tensor[HT_BIAS].t, &args->tensor[HT_BIAS_2].t };
	ncclResult_t rc = ncclSuccess, then = ncclSuccess;

	if (rig->cfg.biases)
		rc = anyEpHandleBias(use, bias, ht_biases(rig, handle));
	if (rc != ncclSuccess)
		return rc;
	rc = ncclEpCombine(use, &args->combine_in, &args->combine_out, &args->combine, rig->shim.stream);
	if (rig->cfg.biases)
		then = anyEpHandleBias(use, NULL, 0);
	return rc != ncclSuccess ? rc : then;
}

static ncclResult_t call(struct ht_rig *rig, int handle, enum ht_op op, struct ht_args *args)
{
	struct ht_handle *h = &rig->handle[handle];
	ncclEpHandle_t use = h->twin && op >= HT_COMBINE ? h->twin : h->handle;
	bool info = op == HT_DISPATCH && (rig->cfg.id_kind || rig->cfg.count);

	switch (op) {
	case HT_UPDATE:
		return ncclEpUpdateHandle(h->handle, &args->tensor[HT_IDX].t,
					  rig->cfg.counters ? &args->update_info : NULL, rig->shim.stream);
	case HT_DISPATCH:
	case HT_DISPATCH_BWD:
		return ncclEpDispatch(use, &args->dispatch_in, &args->dispatch_out, info ? &args->dispatch_info : NULL,
				      &args->dispatch, rig->shim.stream);
	default:
		return combine(rig, handle, use, args);
	}
}

ncclResult_t ht_call_with(struct ht_rig *rig, int handle, enum ht_op op, struct ht_args *args)
{
	ncclResult_t rc = call(rig, handle, op, args);

	if (rc == ncclSuccess)
		ht_crossed_add(rig, handle, op);
	return rc;
}

ncclResult_t ht_call(struct ht_rig *rig, int handle, enum ht_op op, bool send_only)
{
	struct ht_args args;
	ncclResult_t rc;

	ht_args(rig, handle, op, &args);
	args.dispatch.send_only = args.combine.send_only = send_only;
	rc = ht_call_with(rig, handle, op, &args);
	memset(&args, 0xee, sizeof(args));
	return rc;
}
