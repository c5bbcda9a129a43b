/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/rig_buf.h"

#define SYNC_SECONDS 100.0

/* ---- data ---- */

/* Rows of each zone that are poisoned and checked. */
static int zone_rows(const struct rig *rig, const struct rig_handle *h, int zone)
{
	int room = h->expect.cap - h->expect.count[zone];

	return h->expect.count[zone] + (rig->cfg.spare < room ? rig->cfg.spare : room);
}

/* A row is in one piece. */
static bool by_rows(const struct rig *rig, enum rig_buf_id id)
{
	return id != RIG_OUT_SCALES || rig->cfg.shape.scales == LL_SCALES_ROWS;
}

static int zones_fill(struct rig *rig, struct rig_handle *h, enum rig_buf_id id, int byte)
{
	size_t row = rig_row_bytes(rig, id);

	if (!by_rows(rig, id))
		return rig_buf_fill(rig, &h->buf[id], 0, byte, h->buf[id].size);
	for (int z = 0; row && z < h->expect.zones; z++)
		if (rig_buf_fill(rig, &h->buf[id], (size_t)z * (size_t)h->expect.cap * row, byte,
				 (size_t)zone_rows(rig, h, z) * row))
			return -1;
	return 0;
}

static const uint8_t *zones_get(struct rig *rig, struct rig_handle *h, enum rig_buf_id id)
{
	size_t row = rig_row_bytes(rig, id);
	const uint8_t *at = NULL;

	if (!by_rows(rig, id))
		return rig_buf_get(rig, &h->buf[id], 0, h->buf[id].size);
	for (int z = 0; row && z < h->expect.zones; z++) {
		at = rig_buf_get(rig, &h->buf[id], (size_t)z * (size_t)h->expect.cap * row,
				 (size_t)zone_rows(rig, h, z) * row);
		if (!at)
			return NULL;
	}
	return at;
}

static int idx_put(struct rig *rig, struct rig_handle *h, const struct ll_input *in)
{
	size_t n = (size_t)in->t * (size_t)rig->cfg.shape.topk;
	int32_t *narrow;
	int rc;

	if (rig->cfg.idx64)
		return rig_buf_put(rig, &h->buf[RIG_IDX], 0, in->idx, n * sizeof(*in->idx));
	narrow = malloc(n * sizeof(*narrow) + 1);
	if (!narrow)
		return seat_fail(rig->seat, "out of memory");
	for (size_t i = 0; i < n; i++)
		narrow[i] = (int32_t)in->idx[i];
	rc = rig_buf_put(rig, &h->buf[RIG_IDX], 0, narrow, n * sizeof(*narrow));
	free(narrow);
	return rc;
}

int rig_store(struct rig *rig, int handle)
{
	static const enum rig_buf_id outputs[] = { RIG_OUT, RIG_OUT_SCALES, RIG_OUT_IDX, RIG_OUT_WEIGHTS };
	struct rig_handle *h = &rig->handle[handle];
	const struct ll_input *in = &h->in[seat_rank(rig->seat)];
	size_t t = (size_t)in->t;

	if (idx_put(rig, h, in) ||
	    rig_buf_put(rig, &h->buf[RIG_WEIGHTS], 0, in->weight, t * rig_row_bytes(rig, RIG_WEIGHTS)) ||
	    rig_buf_put(rig, &h->buf[RIG_TOKENS], 0, in->tokens, t * rig_row_bytes(rig, RIG_TOKENS)) ||
	    rig_buf_put(rig, &h->buf[RIG_SCALES], 0, in->scales, t * rig_row_bytes(rig, RIG_SCALES)) ||
	    rig_buf_fill(rig, &h->buf[RIG_COUNTS], 0, LL_POISON_OUT, h->buf[RIG_COUNTS].size) ||
	    rig_buf_fill(rig, &h->buf[RIG_SUMS], 0, LL_POISON_OUT, h->buf[RIG_SUMS].size))
		return -1;
	for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++)
		if (zones_fill(rig, h, outputs[i], LL_POISON_OUT))
			return -1;
	return zones_fill(rig, h, RIG_ANSWERS, LL_POISON_IN);
}

int rig_load(struct rig *rig, int handle)
{
	struct rig_handle *h = &rig->handle[handle];
	const struct ll_shape *shape = &rig->cfg.shape;

	ll_inputs_free(h->in, shape->ranks);
	ll_expect_free(&h->expect);
	h->data = rig->cfg.data;
	h->data.seed = ll_seed(rig->cfg.data.seed, (uint64_t)handle, (uint64_t)h->round++);
	h->data.idx64 = rig->cfg.idx64;
	h->in = ll_inputs_make(shape, &h->data);
	if (!h->in || ll_expect_dispatch(shape, h->in, rig->active, seat_rank(rig->seat), &h->expect))
		return seat_fail(rig->seat, "out of memory");
	h->loaded = true;
	h->fresh = false;
	return rig_store(rig, handle);
}

int rig_sync(struct rig *rig)
{
	return rig->shim.ops->sync(&rig->shim, SYNC_SECONDS) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
}

/* ---- checks ---- */

static struct ll_scene scene_make(const struct rig *rig, const struct rig_handle *h)
{
	return (struct ll_scene){ .shape = &rig->cfg.shape,
				  .data = &h->data,
				  .in = h->in,
				  .active = rig->active,
				  .rank = seat_rank(rig->seat) };
}

/* The library must not change its inputs. */
static int inputs_check(struct rig *rig, struct rig_handle *h)
{
	const struct ll_input *in = &h->in[seat_rank(rig->seat)];
	const struct {
		enum rig_buf_id id;
		const void *want;
	} inputs[] = { { RIG_WEIGHTS, in->weight }, { RIG_TOKENS, in->tokens }, { RIG_SCALES, in->scales } };

	for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
		size_t size = (size_t)in->t * rig_row_bytes(rig, inputs[i].id);
		const uint8_t *got = size ? rig_buf_get(rig, &h->buf[inputs[i].id], 0, size) : NULL;

		if (size && !got)
			return -1;
		ll_wrong(&rig->verdict, size && memcmp(got, inputs[i].want, size), "rank %d: %s has changed",
			 seat_rank(rig->seat), rig_buf_names[inputs[i].id]);
	}
	return 0;
}

static int guards_check(struct rig *rig, struct rig_handle *h)
{
	for (int id = 0; id < RIG_BUFS; id++)
		if (rig_buf_guards(rig, &h->buf[id], rig_buf_names[id]))
			return -1;
	return 0;
}

/* Scales by columns, as rows. NULL: out of memory. */
static uint8_t *columns_turn(const struct rig *rig, const uint8_t *columns)
{
	size_t zones = (size_t)ll_zones(&rig->cfg.shape), cap = (size_t)ll_cap(&rig->cfg.shape);
	size_t width = rig_row_bytes(rig, RIG_OUT_SCALES) / sizeof(uint32_t);
	uint32_t *rows = malloc(zones * cap * width * sizeof(*rows));

	for (size_t i = 0; rows && i < zones * cap; i++)
		for (size_t w = 0; w < width; w++)
			memcpy(&rows[i * width + w], columns + ((i / cap * width + w) * cap + i % cap) * sizeof(*rows),
			       sizeof(*rows));
	return (uint8_t *)rows;
}

int rig_check_rows(struct rig *rig, int handle)
{
	struct rig_handle *h = &rig->handle[handle];
	struct ll_scene scene = scene_make(rig, h);
	struct ll_got got = { .tokens = zones_get(rig, h, RIG_OUT) };
	uint8_t *turned = NULL;
	int rc;

	if (!got.tokens)
		return -1;
	got.scales = zones_get(rig, h, RIG_OUT_SCALES);
	got.idx = (const int32_t *)(const void *)zones_get(rig, h, RIG_OUT_IDX);
	got.weights = (const float *)(const void *)zones_get(rig, h, RIG_OUT_WEIGHTS);
	if (!rig_rank_major(rig) || !rig->cfg.no_counts)
		got.counts = (const int32_t *)(const void *)rig_buf_get(rig, &h->buf[RIG_COUNTS], 0,
									h->buf[RIG_COUNTS].size);
	if (seat_failed(rig->seat))
		return -1;
	if (!by_rows(rig, RIG_OUT_SCALES))
		got.scales = turned = columns_turn(rig, got.scales);
	rc = !by_rows(rig, RIG_OUT_SCALES) && !turned;
	rc = rc || ll_check_dispatch(&scene, &got, rig->cfg.spare, h->map, &rig->verdict);
	free(turned);
	if (rc)
		return seat_fail(rig->seat, "out of memory");
	return inputs_check(rig, h) || guards_check(rig, h) ? -1 : 0;
}

int rig_answer(struct rig *rig, int handle)
{
	struct rig_handle *h = &rig->handle[handle];
	const struct ll_shape *shape = &rig->cfg.shape;
	size_t bytes = ll_combine_bytes(shape);
	int rank = seat_rank(rig->seat), local = shape->experts / shape->ranks, rc = 0;
	uint8_t *row = malloc(bytes);

	if (!row)
		return seat_fail(rig->seat, "out of memory");
	for (int z = 0; z < h->expect.zones && !rc; z++)
		for (int r = 0; r < h->expect.count[z] && !rc; r++) {
			size_t at = (size_t)z * (size_t)h->expect.cap + (size_t)r;

			if (h->map[at].src < 0)
				continue;
			ll_answer(shape, &h->data, h->in, h->map[at], rig_rank_major(rig) ? rank : rank * local + z,
				  row);
			rc = rig_buf_put(rig, &h->buf[RIG_ANSWERS], at * bytes, row, bytes);
		}
	free(row);
	return rc;
}

int rig_check_sums(struct rig *rig, int handle)
{
	struct rig_handle *h = &rig->handle[handle];
	struct ll_scene scene = scene_make(rig, h);
	struct buf *buf = &h->buf[RIG_SUMS];
	const uint8_t *rows = rig_buf_get(rig, buf, 0, buf->size);
	const uint8_t poison[] = { LL_POISON_OUT, LL_POISON_OUT, LL_POISON_OUT, LL_POISON_OUT };
	size_t row = rig_row_bytes(rig, RIG_SUMS), size = num_info[rig->cfg.shape.combine].size;

	if (!rows)
		return -1;
	if (ll_check_combine(&scene, rows, &rig->verdict))
		return seat_fail(rig->seat, "out of memory");
	for (size_t i = (size_t)h->in [scene.rank].t * row; i < buf->size; i += size)
		ll_wrong(&rig->verdict, memcmp(rows + i, poison, size) != 0,
			 "rank %d: combine tokens[%zu][%zu] was written, but there are only %d", scene.rank, i / row,
			 i % row / size, h->in[scene.rank].t);
	return inputs_check(rig, h) || guards_check(rig, h) ? -1 : 0;
}

static int async_check(struct rig *rig)
{
	int want = rig->bad_ids ? ANYEP_ASYNC_BAD_EXPERT : rig->async, got = -1;

	if (rig->async < 0)
		return 0;
	if (rig_expect(rig, "ncclEpGetAsyncError", ncclEpGetAsyncError(rig->group, &got)))
		return -1;
	ll_wrong(&rig->verdict, got != want, "rank %d: ncclEpGetAsyncError gives %d, must be %d", seat_rank(rig->seat),
		 got, want);
	if (rig->bad_ids && rig_expect(rig, "ncclEpErrorClear", ncclEpErrorClear(rig->group)))
		return -1;
	rig->bad_ids = false;
	return 0;
}

int rig_settle(struct rig *rig)
{
	if (rig_sync(rig))
		return -1;
	for (int i = 0; i < rig->cfg.handles; i++) {
		struct rig_handle *h = &rig->handle[i];

		if (h->rows_pending && (rig_check_rows(rig, i) || rig_answer(rig, i)))
			return -1;
		if (h->sums_pending && rig_check_sums(rig, i))
			return -1;
		h->rows_pending = h->sums_pending = false;
	}
	return rig_sync(rig) || async_check(rig) ? -1 : 0;
}

int rig_check_mask(struct rig *rig)
{
	int ranks = rig->cfg.shape.ranks, *got = calloc((size_t)ranks, sizeof(*got)), rc = -1;
	size_t size = (size_t)ranks * sizeof(*got);
	const struct shim_ops *ops = rig->shim.ops;
	void *device = NULL;

	if (!got || ops->alloc(&rig->shim, size, &device) || ops->fill(&rig->shim, device, 0x77, size)) {
		seat_fail(rig->seat, "%s", got ? rig->shim.text : "out of memory");
		goto out;
	}
	if (rig_expect(rig, "ncclEpMaskQuery", ncclEpMaskQuery(rig->group, device, rig->shim.stream)) || rig_sync(rig))
		goto out;
	if (ops->get(&rig->shim, got, device, size)) {
		seat_fail(rig->seat, "%s", rig->shim.text);
		goto out;
	}
	for (int r = 0; r < ranks; r++)
		ll_wrong(&rig->verdict, got[r] != rig->active[r], "rank %d: the mask of rank %d is %d, must be %d",
			 seat_rank(rig->seat), r, got[r], rig->active[r]);
	rc = 0;
out:
	if (device)
		ops->free(&rig->shim, device);
	free(got);
	return rc;
}

void rig_set_round(struct rig *rig, int round)
{
	for (int i = 0; i < rig->cfg.handles; i++) {
		rig->handle[i].round = round;
		rig->handle[i].loaded = rig->handle[i].rows_pending = rig->handle[i].sums_pending = false;
		rig->handle[i].staged = 0;
	}
}

/* ---- scripts ---- */

static int do_dispatch(struct rig *rig, int handle, bool send_only)
{
	struct rig_handle *h = &rig->handle[handle];

	if ((h->rows_pending || h->sums_pending) && rig_settle(rig))
		return -1;
	if ((!h->loaded && rig_load(rig, handle)) || rig_update(rig, handle))
		return -1;
	h->loaded = false;
	rig->bad_ids |= ll_input_bad(&rig->cfg.shape, &h->in[seat_rank(rig->seat)]);
	if (rig_expect(rig, "ncclEpDispatch", rig_dispatch(rig, handle, send_only)))
		return -1;
	h->staged = send_only ? 'd' : 0;
	h->rows_pending = !send_only;
	return 0;
}

static int do_combine(struct rig *rig, int handle, bool send_only)
{
	struct rig_handle *h = &rig->handle[handle];

	if ((h->rows_pending && rig_settle(rig)) ||
	    rig_expect(rig, "ncclEpCombine", rig_combine(rig, handle, send_only)))
		return -1;
	h->staged = send_only ? 'c' : 0;
	h->sums_pending = !send_only;
	return 0;
}

static int do_complete(struct rig *rig, int handle)
{
	struct rig_handle *h = &rig->handle[handle];

	if (rig_expect(rig, "ncclEpComplete", rig_complete(rig, handle)))
		return -1;
	h->rows_pending |= h->staged == 'd';
	h->sums_pending |= h->staged == 'c';
	h->staged = 0;
	return 0;
}

static int do_word(struct rig *rig, const char *word)
{
	int handle = word[1] - 'A';

	if (handle < 0 || handle >= rig->cfg.handles)
		return seat_fail(rig->seat, "no handle for %.2s", word);
	switch (word[0]) {
	case 'D':
	case 'd':
		return do_dispatch(rig, handle, word[0] == 'd');
	case 'C':
	case 'c':
		return do_combine(rig, handle, word[0] == 'c');
	case 'x':
		return do_complete(rig, handle);
	}
	return seat_fail(rig->seat, "unknown operation %.2s", word);
}

/* A handle whose first word is a dispatch. */
static bool is_dispatched(const char *script, int handle)
{
	const char *at = strchr(script, 'A' + handle);

	return at && at > script && (at[-1] == 'D' || at[-1] == 'd');
}

void rig_nap(struct rig *rig)
{
	if (rig->naps)
		usleep((unsigned)(1000 + ll_random(&rig->naps) % 49001));
}

int rig_script(struct rig *rig, const char *script)
{
	int word = 0;

	/* Prepares all data first, so that operations follow each other without the host where possible. */
	for (int i = 0; i < rig->cfg.handles; i++) {
		struct rig_handle *h = &rig->handle[i];

		if (!h->loaded && is_dispatched(script, i) && rig_load(rig, i))
			return -1;
	}
	for (; *script; script++) {
		if (*script == ' ')
			continue;
		if (++word == rig->stall_at)
			usleep(rig->stall_us);
		rig_nap(rig);
		if (do_word(rig, script))
			return -1;
		script++;
	}
	return rig_settle(rig);
}

/* ---- opening and closing ---- */

static unsigned largest_row(const struct ll_shape *shape)
{
	size_t in = ll_in_bytes(shape) + (shape->quant == LL_QUANT_FWD ? ll_scale_bytes(shape) : 0);
	size_t out = ll_out_bytes(shape) + ll_scale_bytes(shape), combine = ll_combine_bytes(shape);

	in = in > out ? in : out;
	return (unsigned)(in > combine ? in : combine);
}

static int group_open(struct rig *rig)
{
	const struct rig_cfg *cfg = &rig->cfg;
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = (unsigned)cfg->shape.experts;
	config.max_dispatch_tokens_per_rank = (unsigned)cfg->shape.tmax;
	config.max_token_bytes = cfg->max_token_bytes ? cfg->max_token_bytes : largest_row(&cfg->shape);
	config.max_num_sms = (unsigned)cfg->sms;
	config.dispatch_num_sms = (unsigned)cfg->dispatch_sms;
	config.combine_num_sms = (unsigned)cfg->combine_sms;
	config.rdma_buffer_size = cfg->buffer_bytes;
	config.enable_mask = cfg->mask;
	config.zero_copy = (ncclEpZeroCopyMode_t)cfg->zero_copy;
	return rig_expect(rig, "ncclEpCreateGroup", ncclEpCreateGroup(&rig->group, rig->comm, &config));
}

/* The enums have the same order. Without a call the layout is by rows. */
static int scales_set(struct rig *rig, const struct rig_handle *h)
{
	enum ll_scales scales = rig->cfg.shape.scales;

	if (scales == LL_SCALES_ROWS)
		return 0;
	return rig_expect(rig, "anyEpHandleScales", anyEpHandleScales(h->handle, (anyEpScales_t)scales));
}

static int handle_open(struct rig *rig, int index)
{
	struct rig_handle *h = &rig->handle[index];
	const struct ll_shape *shape = &rig->cfg.shape;
	ncclEpLayout_t layout = rig_rank_major(rig) ? NCCL_EP_LAYOUT_RANK_MAJOR : NCCL_EP_LAYOUT_EXPERT_MAJOR;
	size_t rows = (size_t)ll_zones(shape) * (size_t)ll_cap(shape);
	struct rig_tensor tensor;

	if (rig->cfg.caller_mem &&
	    rig_expect(rig, "ncclEpHandleMemSize",
		       ncclEpHandleMemSize(rig->group, layout, NULL, &h->buf[RIG_MEM].size, shape->topk)))
		return -1;
	h->map = calloc(rows, sizeof(*h->map));
	if (!h->map)
		return seat_fail(rig->seat, "out of memory");
	if (rig_bufs_open(rig, h) || rig_load(rig, index) || rig_sync(rig))
		return -1;
	if (rig->cfg.create) {
		rig_tensor(rig, index, RIG_IDX, &tensor);
		h->fresh = true;
		if (rig_expect(rig, "ncclEpCreateHandle",
			       ncclEpCreateHandle(&h->handle, rig->group, layout, &tensor.t, NULL, NULL,
						  rig->shim.stream)))
			return -1;
		return scales_set(rig, h);
	}
	rig_tensor(rig, index, RIG_MEM, &tensor);
	if (rig_expect(rig, "ncclEpInitHandle",
		       ncclEpInitHandle(&h->handle, rig->group, layout, NULL, shape->topk,
					h->buf[RIG_MEM].size ? &tensor.t : NULL)))
		return -1;
	return scales_set(rig, h);
}

static int handles_open(struct rig *rig)
{
	size_t ranks = (size_t)rig->cfg.shape.ranks;

	rig->active = malloc(ranks * sizeof(*rig->active));
	if (!rig->active)
		return seat_fail(rig->seat, "out of memory");
	memset(rig->active, true, ranks * sizeof(*rig->active));
	for (int i = 0; i < rig->cfg.handles; i++)
		if (handle_open(rig, i))
			return -1;
	/* Ranks that share a GPU: no kernel may wait for this rank while it allocates, since allocating may wait for
	 * that kernel. */
	return seat_barrier(rig->seat);
}

int rig_open(struct rig *rig, struct seat *seat, const struct rig_cfg *cfg)
{
	*rig = (struct rig){ .seat = seat, .cfg = *cfg };
	rig->comm = seat_comm(seat);
	if (!rig->comm)
		return -1;
	if (shim_open(&rig->shim, rig->comm, cfg->own_stream))
		return seat_fail(seat, "%s", rig->shim.text);
	return group_open(rig) || handles_open(rig) ? -1 : 0;
}

int rig_join(struct rig *rig, const struct rig *host, const struct rig_cfg *cfg)
{
	*rig = (struct rig){ .seat = host->seat,
			     .cfg = *cfg,
			     .comm = host->comm,
			     .shim = host->shim,
			     .group = host->group,
			     .guest = true };
	return handles_open(rig);
}

int rig_close(struct rig *rig)
{
	bool failed = seat_failed(rig->seat) || rig->parted;

	/* Memory is freed only when no kernel runs: on some devices freeing waits for them. */
	if (!failed && seat_barrier(rig->seat))
		failed = true;
	for (int i = 0; i < rig->cfg.handles; i++) {
		struct rig_handle *h = &rig->handle[i];
		ncclResult_t rc = ncclEpHandleDestroy(h->handle);

		if (!failed)
			rig_expect(rig, "ncclEpHandleDestroy", rc);
	}
	if (rig->group && !rig->guest) {
		ncclResult_t rc = ncclEpGroupDestroy(rig->group);

		if (!failed)
			rig_expect(rig, "ncclEpGroupDestroy", rc);
	}
	for (int i = 0; i < rig->cfg.handles; i++) {
		struct rig_handle *h = &rig->handle[i];

		rig_bufs_close(rig, h);
		ll_inputs_free(h->in, rig->cfg.shape.ranks);
		ll_expect_free(&h->expect);
		free(h->map);
	}
	free(rig->active);
	if (!rig->guest)
		shim_close(&rig->shim);
	return seat_failed(rig->seat) ? -1 : 0;
}

int rig_tell(struct rig *rig)
{
	if (rig->verdict.wrong)
		seat_fail(rig->seat, "#wrong %llu: %s", (unsigned long long)rig->verdict.wrong, rig->verdict.first);
	return seat_failed(rig->seat) ? -1 : 0;
}
