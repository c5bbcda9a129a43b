/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/rig_buf.h"

const char *const rig_buf_names[RIG_BUFS] = {
	[RIG_IDX] = "topk_idx",
	[RIG_WEIGHTS] = "topk_weights",
	[RIG_TOKENS] = "dispatch input tokens",
	[RIG_SCALES] = "dispatch input scales",
	[RIG_OUT] = "dispatch output tokens",
	[RIG_OUT_SCALES] = "dispatch output scales",
	[RIG_OUT_IDX] = "dispatch output topk_idx",
	[RIG_OUT_WEIGHTS] = "dispatch output topk_weights",
	[RIG_COUNTS] = "counters",
	[RIG_ANSWERS] = "combine input tokens",
	[RIG_SUMS] = "combine output tokens",
	[RIG_MEM] = "handle_mem",
};

size_t rig_row_bytes(const struct rig *rig, enum rig_buf_id id)
{
	const struct ll_shape *shape = &rig->cfg.shape;
	size_t k = (size_t)shape->topk;
	bool rank_major = shape->layout == LL_RANK_MAJOR;

	switch (id) {
	case RIG_IDX:
		return k * (rig->cfg.idx64 ? 8 : 4);
	case RIG_WEIGHTS:
		return k * 4;
	case RIG_TOKENS:
		return ll_in_bytes(shape);
	case RIG_SCALES:
		return shape->quant == LL_QUANT_FWD ? ll_scale_bytes(shape) : 0;
	case RIG_OUT:
		return ll_out_bytes(shape);
	case RIG_OUT_SCALES:
		return ll_out_scale_bytes(shape);
	case RIG_OUT_IDX:
	case RIG_OUT_WEIGHTS:
		return rank_major ? k * 4 : 0;
	case RIG_COUNTS:
		return 4;
	case RIG_ANSWERS:
	case RIG_SUMS:
		return ll_combine_bytes(shape);
	default:
		return 0;
	}
}

static size_t buf_rows(const struct rig *rig, enum rig_buf_id id)
{
	const struct ll_shape *shape = &rig->cfg.shape;

	switch (id) {
	case RIG_OUT:
	case RIG_OUT_SCALES:
	case RIG_OUT_IDX:
	case RIG_OUT_WEIGHTS:
	case RIG_ANSWERS:
		return (size_t)ll_zones(shape) * (size_t)ll_cap(shape);
	case RIG_COUNTS:
		return (size_t)ll_zones(shape);
	default:
		return (size_t)shape->tmax;
	}
}

/* One element past a 16-byte boundary: the contract requires tokens aligned to their type only. */
static size_t buf_skew(const struct rig *rig, enum rig_buf_id id)
{
	const struct ll_shape *shape = &rig->cfg.shape;

	if (!rig->cfg.skew || rig->cfg.windows || shape->quant == LL_QUANT_FWD)
		return 0;
	if (id == RIG_TOKENS)
		return num_info[shape->token].size;
	if (id == RIG_OUT)
		return num_info[ll_out_type(shape)].size;
	return id == RIG_ANSWERS || id == RIG_SUMS ? num_info[shape->combine].size : 0;
}

static struct buf_env env_of(struct rig *rig)
{
	return (struct buf_env){ .seat = rig->seat, .shim = &rig->shim, .comm = rig->comm, .verdict = &rig->verdict };
}

int rig_bufs_open(struct rig *rig, struct rig_handle *handle)
{
	const struct buf_env env = env_of(rig);

	for (int id = 0; id < RIG_BUFS; id++) {
		struct buf *buf = &handle->buf[id];

		if (id != RIG_MEM)
			buf->size = buf_rows(rig, id) * rig_row_bytes(rig, id);
		if (buf->size && buf_open(&env, buf, rig->cfg.windows ? SLAB_WINDOW : SLAB_PLAIN, buf_skew(rig, id)))
			return -1;
	}
	return 0;
}

void rig_bufs_close(struct rig *rig, struct rig_handle *handle)
{
	const struct buf_env env = env_of(rig);

	for (int id = 0; id < RIG_BUFS; id++)
		buf_close(&env, &handle->buf[id]);
}

int rig_buf_put(struct rig *rig, struct buf *buf, size_t offset, const void *from, size_t size)
{
	const struct buf_env env = env_of(rig);

	return buf_put(&env, buf, offset, from, size);
}

int rig_buf_fill(struct rig *rig, struct buf *buf, size_t offset, int byte, size_t size)
{
	const struct buf_env env = env_of(rig);

	return buf_fill(&env, buf, offset, byte, size);
}

const uint8_t *rig_buf_get(struct rig *rig, struct buf *buf, size_t offset, size_t size)
{
	const struct buf_env env = env_of(rig);

	return buf_get(&env, buf, offset, size);
}

int rig_buf_guards(struct rig *rig, struct buf *buf, const char *name)
{
	const struct buf_env env = env_of(rig);

	return buf_guards(&env, buf, name);
}
