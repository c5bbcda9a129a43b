/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor descriptors of a rig, and the calls. */
#include <string.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"
#include "test/oracle/rig_buf.h"

#define CROSS_SECONDS 10.0

int rig_expect(struct rig *rig, const char *call, ncclResult_t got)
{
	if (got == ncclSuccess)
		return 0;
	return seat_fail(rig->seat, "%s: %s: %s", call, ncclGetErrorString(got), anyEpGetLastError());
}

static void dims_set(struct rig_tensor *out, unsigned ndim, size_t a, size_t b, size_t c)
{
	out->t.ndim = ndim;
	out->sizes[0] = a;
	out->sizes[1] = b;
	out->sizes[2] = c;
	out->t.sizes = out->sizes;
}

void rig_tensor(const struct rig *rig, int handle, enum rig_buf_id id, struct rig_tensor *out)
{
	const struct ll_shape *shape = &rig->cfg.shape;
	const struct rig_handle *h = &rig->handle[handle];
	const struct buf *buf = &h->buf[id];
	size_t t = (size_t)h->in[seat_rank(rig->seat)].t, k = (size_t)shape->topk;
	size_t zones = (size_t)ll_zones(shape), cap = (size_t)ll_cap(shape), row = rig_row_bytes(rig, id);
	enum num_type type = id == RIG_TOKENS				? shape->token
			     : id == RIG_OUT				? ll_out_type(shape)
			     : id == RIG_SCALES || id == RIG_OUT_SCALES ? ll_scale_type(shape)
									: shape->combine;

	*out = (struct rig_tensor){ .t = NCCL_EP_TENSOR_INIT };
	out->t.datatype = (ncclDataType_t)num_info[type].nccl;
	switch (id) {
	case RIG_IDX:
		out->t.datatype = rig->cfg.idx64 ? ncclInt64 : ncclInt32;
		dims_set(out, 2, t, k, 0);
		break;
	case RIG_WEIGHTS:
		out->t.datatype = ncclFloat32;
		dims_set(out, 2, t, k, 0);
		break;
	case RIG_OUT_IDX:
	case RIG_OUT_WEIGHTS:
		out->t.datatype = id == RIG_OUT_IDX ? ncclInt32 : ncclFloat32;
		dims_set(out, 3, zones, cap, k);
		break;
	case RIG_COUNTS:
		out->t.datatype = ncclInt32;
		dims_set(out, 1, zones, 0, 0);
		break;
	case RIG_MEM:
		out->t.datatype = ncclUint8;
		dims_set(out, 1, buf->size, 0, 0);
		break;
	case RIG_OUT_SCALES:
		if (shape->scales == LL_SCALES_EXPONENTS)
			out->t.datatype = ncclInt32;
		if (shape->scales != LL_SCALES_ROWS) {
			dims_set(out, 3, zones, row / sizeof(uint32_t), cap);
			break;
		}
		/* fallthrough */
	case RIG_OUT:
	case RIG_ANSWERS:
		dims_set(out, 3, zones, cap, row / num_info[type].size);
		break;
	default:
		dims_set(out, 2, t, row / num_info[type].size, 0);
	}
	if (buf->window) {
		out->t.win_hdl = buf->window;
		out->t.win_offset = buf->offset;
	} else if (out->sizes[0] || h->data.seed % 2) {
		out->t.data = buf->at; /* NULL is allowed for an empty tensor: every other time */
	}
}

/* ---- calls; descriptors are on the stack, gone when the call has returned ---- */

int rig_update(struct rig *rig, int handle)
{
	struct rig_handle *h = &rig->handle[handle];
	struct rig_tensor idx;

	if (h->fresh)
		return 0;
	rig_tensor(rig, handle, RIG_IDX, &idx);
	h->fresh = true;
	return rig_expect(rig, "ncclEpUpdateHandle", ncclEpUpdateHandle(h->handle, &idx.t, NULL, rig->shim.stream));
}

void rig_dispatch_args(const struct rig *rig, int handle, struct rig_dispatch_args *args)
{
	static const ncclEpDispQuant_t recipe[] = { NCCL_EP_DISP_QUANT_NONE, NCCL_EP_DISP_QUANT_FWD,
						    NCCL_EP_DISP_QUANT_DS_FP8E3M4, NCCL_EP_DISP_QUANT_DS_FP8E3M4 };
	enum ll_quant quant = rig->cfg.shape.quant;

	*args = (struct rig_dispatch_args){ .in = NCCL_EP_DISPATCH_INPUTS_INIT,
					    .out = NCCL_EP_DISPATCH_OUTPUTS_INIT,
					    .info = NCCL_EP_LAYOUT_INFO_INIT,
					    .config = NCCL_EP_DISPATCH_CONFIG_INIT };
	for (int id = 0; id < RIG_BUFS; id++)
		rig_tensor(rig, handle, id, &args->tensor[id]);
	args->in.tokens = &args->tensor[RIG_TOKENS].t;
	args->out.tokens = &args->tensor[RIG_OUT].t;
	if (rig_rank_major(rig)) {
		args->in.topk_weights = &args->tensor[RIG_WEIGHTS].t;
		args->out.topk_weights = &args->tensor[RIG_OUT_WEIGHTS].t;
		args->out.topk_idx = &args->tensor[RIG_OUT_IDX].t;
		args->info.recv_topk_idx_kind = (ncclEpExpertIdKind_t)rig->cfg.id_kind;
		args->info.src_rank_counters = rig->cfg.no_counts ? NULL : &args->tensor[RIG_COUNTS].t;
	} else {
		args->info.expert_counters = &args->tensor[RIG_COUNTS].t;
	}
	args->in.scales = quant == LL_QUANT_FWD ? &args->tensor[RIG_SCALES].t : NULL;
	args->out.scales = quant != LL_QUANT_NONE ? &args->tensor[RIG_OUT_SCALES].t : NULL;
	args->config.quant_recipe = recipe[quant];
	args->config.round_scales = quant == LL_QUANT_DS_ROUND;
}

ncclResult_t rig_dispatch(struct rig *rig, int handle, bool send_only)
{
	struct rig_dispatch_args args;
	ncclResult_t rc;

	rig_dispatch_args(rig, handle, &args);
	args.config.send_only = send_only;
	rc = ncclEpDispatch(rig->handle[handle].handle, &args.in, &args.out, &args.info, &args.config,
			    rig->shim.stream);
	memset(&args, 0xee, sizeof(args));
	if (rc == ncclSuccess && rig->cfg.per_node)
		rig->crossed += far_dispatch_bytes(&rig->cfg.shape, rig->handle[handle].in, rig->active,
						   seat_rank(rig->seat), rig->cfg.per_node);
	return rc;
}

void rig_combine_args(const struct rig *rig, int handle, struct rig_combine_args *args)
{
	*args = (struct rig_combine_args){ .in = NCCL_EP_COMBINE_INPUTS_INIT,
					   .out = NCCL_EP_COMBINE_OUTPUTS_INIT,
					   .config = NCCL_EP_COMBINE_CONFIG_INIT };
	rig_tensor(rig, handle, RIG_ANSWERS, &args->answers);
	rig_tensor(rig, handle, RIG_SUMS, &args->sums);
	rig_tensor(rig, handle, RIG_WEIGHTS, &args->weights);
	args->in.tokens = &args->answers.t;
	args->out.tokens = &args->sums.t;
	if (!rig_rank_major(rig))
		args->out.topk_weights = &args->weights.t;
}

ncclResult_t rig_combine(struct rig *rig, int handle, bool send_only)
{
	struct rig_combine_args args;
	ncclResult_t rc;

	rig_combine_args(rig, handle, &args);
	args.config.send_only = send_only;
	rc = ncclEpCombine(rig->handle[handle].handle, &args.in, &args.out, &args.config, rig->shim.stream);
	memset(&args, 0xee, sizeof(args));
	if (rc == ncclSuccess && rig->cfg.per_node)
		rig->crossed += far_combine_bytes(&rig->cfg.shape, &rig->handle[handle].expect, rig->active,
						  seat_rank(rig->seat), rig->cfg.per_node);
	return rc;
}

ncclResult_t rig_complete(struct rig *rig, int handle)
{
	return ncclEpComplete(rig->handle[handle].handle, NULL, rig->shim.stream);
}

/* All operations are complete, so every put has arrived; an engine may still have to count it. */
int rig_check_crossed(struct rig *rig)
{
	double end = world_now() + CROSS_SECONDS;
	anyEpNetCounts_t counts = ANYEP_NET_COUNTS_INIT;

	if (rig_sync(rig) || seat_barrier(rig->seat))
		return -1;
	do {
		usleep(100);
		if (rig_expect(rig, "anyEpGroupNetCounts", anyEpGroupNetCounts(rig->group, &counts)))
			return -1;
	} while (counts.bytes < rig->crossed && world_now() < end);
	ll_wrong(&rig->verdict, counts.bytes != rig->crossed, "rank %d: %llu bytes sent between nodes, must be %llu",
		 seat_rank(rig->seat), (unsigned long long)counts.bytes, (unsigned long long)rig->crossed);
	ll_wrong(&rig->verdict, !rig->crossed != !counts.puts || counts.puts * 16 > counts.bytes,
		 "rank %d: %llu puts for %llu bytes", seat_rank(rig->seat), (unsigned long long)counts.puts,
		 (unsigned long long)counts.bytes);
	ll_wrong(&rig->verdict, !rig->cfg.per_node && counts.signals,
		 "rank %d: %llu signals by the net within one node", seat_rank(rig->seat),
		 (unsigned long long)counts.signals);
	return 0;
}
