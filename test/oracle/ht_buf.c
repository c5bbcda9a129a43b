/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and placement of the tensors of an HT rig. */
#include "test/oracle/ht_rig.h"

enum { USE_WHERE = 0x40 };

const char *const ht_buf_names[HT_BUFS] = {
	[HT_IDX] = "topk_idx",
	[HT_COUNTS] = "expert_counters",
	[HT_OFFSETS] = "expert_offsets",
	[HT_TOTAL] = "recv_total_counter",
	[HT_SENT_COUNTS] = "dispatch expert_counters",
	[HT_SENT_OFFSETS] = "dispatch expert_offsets",
	[HT_SENT_TOTAL] = "dispatch recv_total_counter",
	[HT_TOKENS] = "dispatch input tokens",
	[HT_SCALES] = "dispatch input scales",
	[HT_WEIGHTS] = "dispatch input topk_weights",
	[HT_OUT] = "dispatch tokens",
	[HT_OUT_SCALES] = "dispatch scales",
	[HT_OUT_IDX] = "dispatch topk_idx",
	[HT_OUT_WEIGHTS] = "dispatch topk_weights",
	[HT_ANSWERS] = "combine input tokens",
	[HT_SUMS] = "combine tokens",
	[HT_BIAS] = "combine bias",
	[HT_BIAS_2] = "combine second bias",
	[HT_BACK] = "backward dispatch input tokens",
	[HT_BACK_SCALES] = "backward dispatch input scales",
	[HT_OUT_BACK] = "backward dispatch tokens",
	[HT_OUT_BACK_SCALES] = "backward dispatch scales",
	[HT_BACK_ANSWERS] = "backward combine input tokens",
	[HT_BACK_WEIGHTS] = "backward combine input topk_weights",
	[HT_BACK_SUMS] = "backward combine tokens",
	[HT_OUT_BACK_WEIGHTS] = "backward combine topk_weights",
	[HT_MEM] = "handle_mem",
};

struct buf_env ht_env(struct ht_rig *rig)
{
	return (struct buf_env){ .seat = rig->seat, .shim = &rig->shim, .comm = rig->comm, .verdict = &rig->verdict };
}

#define BIT(id) (1u << (id))

unsigned ht_op_bufs(const struct ht_rig *rig, enum ht_op op, bool outputs)
{
	static const unsigned bufs[HT_OPS][2] = {
		[HT_UPDATE] = { BIT(HT_IDX), BIT(HT_COUNTS) | BIT(HT_OFFSETS) | BIT(HT_TOTAL) },
		[HT_DISPATCH] = { BIT(HT_TOKENS) | BIT(HT_SCALES) | BIT(HT_WEIGHTS),
				  BIT(HT_OUT) | BIT(HT_OUT_SCALES) | BIT(HT_OUT_IDX) | BIT(HT_OUT_WEIGHTS) |
					  BIT(HT_SENT_COUNTS) | BIT(HT_SENT_OFFSETS) | BIT(HT_SENT_TOTAL) },
		[HT_COMBINE] = { BIT(HT_ANSWERS), BIT(HT_SUMS) },
		[HT_DISPATCH_BWD] = { BIT(HT_BACK) | BIT(HT_BACK_SCALES), BIT(HT_OUT_BACK) | BIT(HT_OUT_BACK_SCALES) },
		[HT_COMBINE_BWD] = { BIT(HT_BACK_ANSWERS) | BIT(HT_BACK_WEIGHTS),
				     BIT(HT_BACK_SUMS) | BIT(HT_OUT_BACK_WEIGHTS) },
	};
	unsigned there = 0;

	for (int id = 0; id < HT_BUFS; id++)
		if (ht_row_bytes(rig, id))
			there |= BIT(id);
	return bufs[op][outputs] & there;
}

size_t ht_row_bytes(const struct ht_rig *rig, enum ht_buf_id id)
{
	const struct ht_cfg *cfg = &rig->cfg;
	const struct ll_shape *base = &cfg->shape.base;
	size_t k = (size_t)base->topk, wide = (size_t)cfg->counters / 8;
	bool flat = !cfg->shape.expert_major;

	if (id >= HT_BACK && id < HT_MEM && !cfg->backward)
		return 0;
	switch (id) {
	case HT_IDX:
		return k * (cfg->idx64 ? 8 : 4);
	case HT_COUNTS:
		return flat && wide ? 4 : wide; /* flat: int32, by the contract */
	case HT_OFFSETS:
		return flat ? 0 : wide;
	case HT_TOTAL:
		return wide;
	case HT_SENT_COUNTS:
	case HT_SENT_OFFSETS:
	case HT_SENT_TOTAL:
		return (size_t)cfg->count / 8;
	case HT_TOKENS:
	case HT_OUT:
		return ll_in_bytes(base);
	case HT_SCALES:
	case HT_OUT_SCALES:
		return ll_scale_bytes(base);
	case HT_BACK:
	case HT_OUT_BACK:
		return cfg->back_quant ? ll_in_bytes(base) : ll_combine_bytes(base);
	case HT_BACK_SCALES:
	case HT_OUT_BACK_SCALES:
		return cfg->back_quant ? ll_scale_bytes(base) : 0;
	case HT_WEIGHTS:
	case HT_OUT_BACK_WEIGHTS:
		return k * 4;
	case HT_OUT_IDX:
		return flat ? k * 8 : 0;
	case HT_OUT_WEIGHTS:
	case HT_BACK_WEIGHTS:
		return flat ? k * 4 : 4;
	case HT_BIAS:
	case HT_BIAS_2:
		return cfg->biases > (int)id - HT_BIAS ? ll_combine_bytes(base) : 0;
	case HT_MEM:
	case HT_BUFS:
		return 0;
	default:
		return ll_combine_bytes(base);
	}
}

/* Whether the first dimension is N, the rows received. */
static bool is_received(enum ht_buf_id id)
{
	return (id >= HT_OUT && id <= HT_ANSWERS) || (id >= HT_OUT_BACK && id <= HT_BACK_WEIGHTS);
}

static bool is_counter(enum ht_buf_id id)
{
	return id >= HT_COUNTS && id <= HT_SENT_TOTAL;
}

bool ht_counted(const struct ht_rig *rig, int handle, enum ht_buf_id id)
{
	static const unsigned some[] = { BIT(HT_SENT_COUNTS) | BIT(HT_SENT_OFFSETS) | BIT(HT_SENT_TOTAL),
					 BIT(HT_SENT_COUNTS) | BIT(HT_SENT_TOTAL), BIT(HT_SENT_TOTAL),
					 BIT(HT_SENT_OFFSETS) };

	/* A graph has captured the first round's. */
	return rig->cfg.count && some[rig->cfg.tall ? 0 : rig->handle[handle].data.seed / 2 % 4] & BIT(id);
}

static bool is_answer(enum ht_buf_id id)
{
	return id == HT_ANSWERS || id == HT_BACK_ANSWERS || id == HT_BACK_WEIGHTS;
}

size_t ht_rows_max(const struct ht_rig *rig, enum ht_buf_id id)
{
	const struct ht_shape *shape = &rig->cfg.shape;

	if (is_received(id))
		return (size_t)((shape->capacity ? shape->capacity : ht_bound(shape)) + rig->cfg.extra);
	if (id == HT_COUNTS || id == HT_OFFSETS)
		return (size_t)ht_local(shape);
	if (id == HT_SENT_COUNTS || id == HT_SENT_OFFSETS)
		return (size_t)(ht_local(shape) + rig->cfg.extra); /* more than is written */
	if (id == HT_SENT_TOTAL)
		return (size_t)(1 + rig->cfg.extra);
	return id == HT_TOTAL ? 1 : (size_t)shape->base.tmax;
}

size_t ht_rows(const struct ht_rig *rig, int handle, enum ht_buf_id id)
{
	const struct ht_handle *h = &rig->handle[handle];
	int rank = seat_rank(rig->seat);
	size_t extra = (size_t)rig->cfg.extra, rows;

	if (is_counter(id))
		return ht_rows_max(rig, id);
	if (!is_received(id))
		return (size_t)h->in[rank].t;
	rows = (size_t)h->plan[rank].rows;
	if (rig->cfg.tall)
		return ht_rows_max(rig, id);
	/* Eager outputs and what is combined fit exactly, every other time; else heights differ from tensor to tensor.
	 */
	if (h->round % 2 && (is_answer(id) || !rig->cfg.shape.capacity))
		return rows;
	if (is_answer(id))
		return ht_rows_max(rig, id);
	extra -= id == HT_OUT_WEIGHTS && extra && (rows || rig->cfg.shape.capacity);
	return (rig->cfg.shape.capacity ? (size_t)rig->cfg.shape.capacity : rows) + extra;
}

size_t ht_rows_seen(const struct ht_rig *rig, int handle, enum ht_buf_id id)
{
	size_t max = ht_rows_max(rig, id), valid;

	if (!is_received(id))
		return max;
	valid = (size_t)rig->handle[handle].plan[seat_rank(rig->seat)].rows;
	return (size_t)rig->cfg.spare < max - valid ? valid + (size_t)rig->cfg.spare : max;
}

/* ---- memory ---- */

static enum slab_kind where_is(const struct ht_rig *rig, int handle, enum ht_buf_id id)
{
	static const enum slab_kind kinds[] = { SLAB_PLAIN, SLAB_WINDOW, SLAB_NCCL };
	/* Both windows or neither. */
	enum ht_buf_id as = id == HT_OUT_SCALES ? HT_OUT : id == HT_OUT_BACK_SCALES ? HT_OUT_BACK : id;
	bool reached = as == HT_OUT || as == HT_OUT_BACK || as == HT_ANSWERS || as == HT_BACK_ANSWERS;
	uint64_t seed = ll_seed(rig->cfg.data.seed, USE_WHERE + (uint64_t)handle, (uint64_t)seat_rank(rig->seat));

	if (rig->cfg.pinned && is_counter(id))
		return SLAB_PINNED;
	if (rig->cfg.where != HT_MIXED)
		return kinds[rig->cfg.where];
	if (reached && rig->cfg.zero_copy == NCCL_EP_ZERO_COPY_ON)
		return SLAB_WINDOW;
	return kinds[ll_seed(seed, (uint64_t)as, 0) % 3];
}

static size_t skew_of(const struct ht_rig *rig, enum ht_buf_id id)
{
	if (!rig->cfg.skew)
		return 0;
	if (id == HT_TOKENS || id == HT_OUT)
		return num_info[rig->cfg.shape.base.token].size;
	return id == HT_ANSWERS || id == HT_SUMS || id == HT_BACK || id == HT_OUT_BACK || id == HT_BACK_ANSWERS ||
			       id == HT_BACK_SUMS || id == HT_BIAS_2
		       ? num_info[rig->cfg.shape.base.combine].size
		       : 0;
}

#define GPU_PAGE ((size_t)2 << 20)

/* Slabs are large enough for all tensors: registration is collective, with equal sizes. */
int ht_bufs_open(struct ht_rig *rig, int handle)
{
	struct ht_handle *h = &rig->handle[handle];
	const struct buf_env env = ht_env(rig);
	enum ht_where where = rig->cfg.where;
	bool carve = shim_is_gpu(&rig->shim) && !rig->cfg.separate;
	size_t total = 0;

	for (int id = 0; id < HT_BUFS; id++) {
		if (id != HT_MEM)
			h->buf[id].size = ht_rows_max(rig, id) * ht_row_bytes(rig, id);
		total += h->buf[id].size ? slab_piece(h->buf[id].size) : 0;
	}
	if (where != HT_PLAIN && slab_open(&env, &h->window, where == HT_POINTER ? SLAB_NCCL : SLAB_WINDOW, total))
		return -1;
	/* On the CPU every plain tensor is a separate allocation, for sanitizers. On a GPU the slab's size is a
	 * multiple of a large page, as a segment of torch's allocator: CUDA IPC maps other sizes with small pages. */
	total = (total + GPU_PAGE - 1) / GPU_PAGE * GPU_PAGE;
	if (carve && (where == HT_PLAIN || where == HT_MIXED) && slab_open(&env, &h->slab, SLAB_PLAIN, total))
		return -1;
	for (int id = 0; id < HT_BUFS; id++) {
		struct buf *buf = &h->buf[id];
		int rc = 0;

		h->kind[id] = where_is(rig, handle, id);
		if (!buf->size)
			continue;
		if (h->kind[id] == SLAB_PINNED)
			rc = buf_open(&env, buf, SLAB_PINNED, 0);
		else if (h->kind[id] != SLAB_PLAIN)
			rc = buf_carve(&env, buf, &h->window, 0);
		else
			rc = carve ? buf_carve(&env, buf, &h->slab, skew_of(rig, id))
				   : buf_open(&env, buf, SLAB_PLAIN, skew_of(rig, id));
		if (rc)
			return -1;
	}
	return 0;
}

void ht_bufs_close(struct ht_rig *rig, int handle)
{
	struct ht_handle *h = &rig->handle[handle];
	const struct buf_env env = ht_env(rig);

	for (int id = 0; id < HT_BUFS; id++)
		buf_close(&env, &h->buf[id]);
	slab_close(&env, &h->slab);
	slab_close(&env, &h->window);
}
