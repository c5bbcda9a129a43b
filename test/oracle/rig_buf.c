/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/rig_buf.h"

#include <stdlib.h>
#include <string.h>

/* Bytes before and behind a tensor that nobody may touch. None under AddressSanitizer, which watches the edges itself
 * and reads too. */
#if defined(__SANITIZE_ADDRESS__)
#define GUARD 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GUARD 0
#endif
#endif
#ifndef GUARD
#define GUARD 256
#endif
#define GUARD_BYTE 0xc3

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
		return ll_scale_bytes(shape);
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

/* An element further than what 16 bytes would need: the contract wants tokens aligned to their type, no more. */
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

static int buf_open(struct rig *rig, struct rig_buf *buf, enum rig_buf_id id)
{
	size_t skew = buf_skew(rig, id), total = GUARD + skew + buf->size + GUARD;
	ncclResult_t rc;

	if (!rig->cfg.windows) {
		if (rig->shim.ops->alloc(&rig->shim, total, (void **)&buf->base))
			return seat_fail(rig->seat, "%s: %s", rig_buf_names[id], rig->shim.text);
	} else {
		rc = ncclMemAlloc((void **)&buf->base, total);
		if (rc == ncclSuccess)
			rc = ncclCommWindowRegister(rig->comm, buf->base, total, &buf->window, NCCL_WIN_COLL_SYMMETRIC);
		if (rc != ncclSuccess)
			return seat_fail(rig->seat, "a window for %s: %s", rig_buf_names[id],
					 ncclGetLastError(rig->comm));
	}
	buf->at = buf->base + GUARD + skew;
	if (shim_is_gpu(&rig->shim) && !(buf->mirror = malloc(buf->size)))
		return seat_fail(rig->seat, "no memory");
	if (rig->shim.ops->fill(&rig->shim, buf->base, GUARD_BYTE, GUARD + skew) ||
	    rig->shim.ops->fill(&rig->shim, buf->at + buf->size, GUARD_BYTE, GUARD))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	return 0;
}

int rig_bufs_open(struct rig *rig, struct rig_handle *handle)
{
	for (int id = 0; id < RIG_BUFS; id++) {
		struct rig_buf *buf = &handle->buf[id];

		if (id != RIG_MEM)
			buf->size = buf_rows(rig, id) * rig_row_bytes(rig, id);
		if (buf->size && buf_open(rig, buf, id))
			return -1;
	}
	return 0;
}

void rig_bufs_close(struct rig *rig, struct rig_handle *handle)
{
	for (int id = 0; id < RIG_BUFS; id++) {
		struct rig_buf *buf = &handle->buf[id];

		if (buf->window)
			ncclCommWindowDeregister(rig->comm, buf->window);
		if (buf->base && rig->cfg.windows)
			ncclMemFree(buf->base);
		else if (buf->base)
			rig->shim.ops->free(&rig->shim, buf->base);
		free(buf->mirror);
		*buf = (struct rig_buf){ 0 };
	}
}

int rig_buf_put(struct rig *rig, struct rig_buf *buf, size_t offset, const void *from, size_t size)
{
	if (size && rig->shim.ops->put(&rig->shim, buf->at + offset, from, size))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	return 0;
}

int rig_buf_fill(struct rig *rig, struct rig_buf *buf, size_t offset, int byte, size_t size)
{
	if (size && rig->shim.ops->fill(&rig->shim, buf->at + offset, byte, size))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	return 0;
}

const uint8_t *rig_buf_get(struct rig *rig, struct rig_buf *buf, size_t offset, size_t size)
{
	if (!buf->mirror)
		return buf->at;
	if (size && rig->shim.ops->get(&rig->shim, buf->mirror + offset, buf->at + offset, size)) {
		seat_fail(rig->seat, "%s", rig->shim.text);
		return NULL;
	}
	return buf->mirror;
}

int rig_buf_guards(struct rig *rig, struct rig_buf *buf, const char *name)
{
	size_t before = (size_t)(buf->at - buf->base);
	uint8_t bytes[2 * GUARD + 16];

	if (!buf->size)
		return 0;
	if (rig->shim.ops->get(&rig->shim, bytes, buf->base, before) ||
	    rig->shim.ops->get(&rig->shim, bytes + before, buf->at + buf->size, GUARD))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	for (size_t i = 0; i < before + GUARD; i++)
		ll_wrong(&rig->verdict, bytes[i] != GUARD_BYTE, "rank %d: a byte %s %s was written",
			 seat_rank(rig->seat), i < before ? "before" : "behind", name);
	return 0;
}
