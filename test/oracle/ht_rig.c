/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/ht_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SYNC_SECONDS 100.0
#define STALL_US 3000

enum { USE_OP = 0x20, USE_STALL = 0x30, USE_GRADIENT, USE_BIASES = 0x1000, USE_BIAS, USE_BACK = 0x2000 };

const char ht_words[HT_OPS] = { 'U', 'D', 'C', 'E', 'B' };

int ht_sync(struct ht_rig *rig)
{
	return rig->shim.ops->sync(&rig->shim, SYNC_SECONDS) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
}

/* ---- data ---- */

int64_t ht_from(const struct ht_rig *rig, const struct ht_row *row)
{
	int rank = seat_rank(rig->seat);

	return row->expert < 0 ? rank : (int64_t)rank * ht_local(&rig->cfg.shape) + row->expert;
}

void ht_answer(const struct ht_rig *rig, int handle, enum ht_op op, struct ht_row row, int64_t from, uint8_t *out)
{
	const struct ht_handle *h = &rig->handle[handle];
	struct ll_data data = { .seed = h->op[op].seed, .echo = op == HT_COMBINE && rig->cfg.data.echo };

	ll_answer(&rig->cfg.shape.base, &data, h->in, (struct ll_row){ row.src, row.token }, from, out);
}

int ht_biases(const struct ht_rig *rig, int handle)
{
	return (int)(ll_seed(rig->handle[handle].data.seed, USE_BIASES, (uint64_t)seat_rank(rig->seat)) %
		     (uint64_t)(rig->cfg.biases + 1));
}

/* Quantised rows are any bytes. */
void ht_back(const struct ht_rig *rig, int handle, struct ht_row row, enum ht_buf_id id, uint8_t *out)
{
	const struct ht_handle *h = &rig->handle[handle];
	struct ll_data bias = { .seed = ll_seed(h->data.seed, USE_BIAS, (uint64_t)id) };
	size_t bytes = ht_row_bytes(rig, id);
	uint64_t random, word;

	if (id == HT_BIAS || id == HT_BIAS_2) {
		ll_answer(&rig->cfg.shape.base, &bias, h->in, (struct ll_row){ row.src, row.token }, 0, out);
		return;
	}
	if (!rig->cfg.back_quant) {
		ht_answer(rig, handle, HT_DISPATCH_BWD, row, 0, out);
		return;
	}
	random = ll_seed(h->op[HT_DISPATCH_BWD].seed, USE_BACK + (uint64_t)id,
			 (uint64_t)row.src << 32 | (uint64_t)row.token);
	for (size_t i = 0; i < bytes; i += sizeof(word)) {
		word = ll_random(&random);
		memcpy(out + i, &word, bytes - i < sizeof(word) ? bytes - i : sizeof(word));
	}
}

/* In (-2, 2), never 0, to distinguish a returned value from anything else. */
float ht_gradient(const struct ht_rig *rig, int handle, int src, int token, int64_t expert)
{
	uint64_t random = ll_seed(rig->handle[handle].op[HT_COMBINE_BWD].seed, USE_GRADIENT + (uint64_t)src,
				  (uint64_t)token << 32 | (uint64_t)expert);

	return (float)(int32_t)((random & 0x1ffffff) | 1) / (float)0x1000000 * (random >> 63 ? 1.0f : -1.0f);
}

static int put(struct ht_rig *rig, int handle, enum ht_buf_id id, const void *from, size_t rows)
{
	const struct buf_env env = ht_env(rig);

	return buf_put(&env, &rig->handle[handle].buf[id], 0, from, rows * ht_row_bytes(rig, id));
}

static int idx_put(struct ht_rig *rig, int handle, const struct ll_input *in)
{
	size_t n = (size_t)in->t * (size_t)rig->cfg.shape.base.topk;
	int32_t *narrow;
	int rc;

	if (rig->cfg.idx64)
		return put(rig, handle, HT_IDX, in->idx, (size_t)in->t);
	narrow = malloc(n * sizeof(*narrow) + 1);
	if (!narrow)
		return seat_fail(rig->seat, "out of memory");
	for (size_t i = 0; i < n; i++)
		narrow[i] = (int32_t)in->idx[i];
	rc = put(rig, handle, HT_IDX, narrow, (size_t)in->t);
	free(narrow);
	return rc;
}

static int tokens_load(struct ht_rig *rig, int handle)
{
	struct ht_handle *h = &rig->handle[handle];
	const struct ll_input *in = &h->in[seat_rank(rig->seat)];
	struct ll_data data = h->data;

	/* The first dispatch of a round uses the round's data. */
	data.seed = h->op[HT_DISPATCH].seed;
	for (int r = 0; h->op[HT_DISPATCH].serial > 1 && r < rig->cfg.shape.base.ranks; r++)
		ll_input_fill(&rig->cfg.shape.base, &data, r, &h->in[r]);
	return put(rig, handle, HT_TOKENS, in->tokens, (size_t)in->t) ||
			       put(rig, handle, HT_SCALES, in->scales, (size_t)in->t) ||
			       put(rig, handle, HT_WEIGHTS, in->weight, (size_t)in->t)
		       ? -1
		       : 0;
}

/* The weights returned with a row: at the position of each of its experts, poison elsewhere. */
static void gradients_make(const struct ht_rig *rig, int handle, const struct ht_row *row, float *out)
{
	const struct ht_shape *shape = &rig->cfg.shape;
	const struct ll_input *in = &rig->handle[handle].in[row->src];
	int64_t first = (int64_t)seat_rank(rig->seat) * ht_local(shape), id = first - 1;

	if (shape->expert_major) {
		*out = ht_gradient(rig, handle, row->src, row->token, ht_from(rig, row));
		return;
	}
	while ((id = ht_next(shape, in, row->token, id, NULL)) >= 0 && id < first + ht_local(shape))
		*out++ = ht_gradient(rig, handle, row->src, row->token, id);
}

/* Combine's input, row by row by the model; poison where nothing may be read. */
static int answers_load(struct ht_rig *rig, int handle, enum ht_op op)
{
	const struct ht_plan *plan = &rig->handle[handle].plan[seat_rank(rig->seat)];
	enum ht_buf_id id = op == HT_COMBINE ? HT_ANSWERS : HT_BACK_ANSWERS;
	size_t bytes = ht_row_bytes(rig, id), weight = op == HT_COMBINE ? 0 : ht_row_bytes(rig, HT_BACK_WEIGHTS);
	size_t rows = ht_rows_seen(rig, handle, id);
	uint8_t *tokens = malloc(rows * bytes + 1), *weights = malloc(rows * weight + 1);
	int rc = -1;

	if (!tokens || !weights) {
		seat_fail(rig->seat, "out of memory");
		goto free_rows;
	}
	memset(tokens, LL_POISON_IN, rows * bytes);
	memset(weights, LL_POISON_IN, rows * weight);
	for (int i = 0; i < plan->rows; i++) {
		const struct ht_row *row = &plan->row[i];

		if (row->src < 0)
			continue;
		ht_answer(rig, handle, op, *row, ht_from(rig, row), tokens + (size_t)i * bytes);
		if (weight)
			gradients_make(rig, handle, row, (float *)(void *)(weights + (size_t)i * weight));
	}
	rc = put(rig, handle, id, tokens, rows);
	if (!rc && weight)
		rc = put(rig, handle, HT_BACK_WEIGHTS, weights, rows);
free_rows:
	free(tokens);
	free(weights);
	return rc;
}

static int back_load(struct ht_rig *rig, int handle, enum ht_buf_id id)
{
	int rank = seat_rank(rig->seat), t = rig->handle[handle].in[rank].t, rc;
	size_t bytes = ht_row_bytes(rig, id);
	uint8_t *rows = malloc((size_t)t * bytes + 1);

	if (!rows)
		return seat_fail(rig->seat, "out of memory");
	for (int i = 0; bytes && i < t; i++)
		ht_back(rig, handle, (struct ht_row){ rank, i, -1 }, id, rows + (size_t)i * bytes);
	rc = put(rig, handle, id, rows, (size_t)t);
	free(rows);
	return rc;
}

static int outputs_poison(struct ht_rig *rig, int handle, enum ht_op op)
{
	const struct buf_env env = ht_env(rig);
	unsigned mask = ht_op_bufs(rig, op, true);

	for (int id = 0; id < HT_BUFS; id++)
		if (mask >> id & 1 && buf_fill(&env, &rig->handle[handle].buf[id], 0, LL_POISON_OUT,
					       ht_rows_seen(rig, handle, id) * ht_row_bytes(rig, id)))
			return -1;
	return 0;
}

int ht_load(struct ht_rig *rig, int handle, enum ht_op op)
{
	struct ht_handle *h = &rig->handle[handle];
	struct ht_state *state = &h->op[op];
	int rc;

	state->seed = ll_seed(h->data.seed, USE_OP + (uint64_t)op, (uint64_t)state->serial++);
	state->loaded = true;
	if (op == HT_UPDATE)
		rc = idx_put(rig, handle, &h->in[seat_rank(rig->seat)]);
	else if (op == HT_DISPATCH)
		rc = tokens_load(rig, handle);
	else if (op == HT_DISPATCH_BWD)
		rc = back_load(rig, handle, HT_BACK) || back_load(rig, handle, HT_BACK_SCALES);
	else
		rc = answers_load(rig, handle, op);
	return rc || outputs_poison(rig, handle, op) ? -1 : 0;
}

int ht_round(struct ht_rig *rig, int handle)
{
	struct ht_handle *h = &rig->handle[handle];
	const struct ht_shape *shape = &rig->cfg.shape;

	ht_plans_free(h->plan, shape->base.ranks);
	ll_inputs_free(h->in, shape->base.ranks);
	h->plan = NULL;
	h->data = rig->cfg.data;
	h->data.idx64 = rig->cfg.idx64;
	h->data.seed = ll_seed(rig->cfg.data.seed, (uint64_t)handle, (uint64_t)h->round++);
	h->scribbled = rig->cfg.scribble && h->round / 2 % 2;
	memset(h->op, 0, sizeof(h->op));
	h->in = ll_inputs_make(&shape->base, &h->data);
	if (h->in)
		h->plan = ht_plans_make(shape, h->in);
	if (!h->plan)
		return seat_fail(rig->seat, "out of memory");
	if (back_load(rig, handle, HT_BIAS) || back_load(rig, handle, HT_BIAS_2))
		return -1;
	return ht_load(rig, handle, HT_UPDATE);
}

int ht_scribble(struct ht_rig *rig, int handle, enum ht_op op)
{
	const struct buf_env env = ht_env(rig);
	unsigned mask = ht_op_bufs(rig, op, false);

	for (int id = 0; id < HT_BUFS; id++)
		if (mask >> id & 1 && buf_fill(&env, &rig->handle[handle].buf[id], 0, LL_POISON_IN,
					       ht_rows(rig, handle, id) * ht_row_bytes(rig, id)))
			return -1;
	return 0;
}

/* ---- scripts ---- */

static int async_check(struct ht_rig *rig)
{
	int want = rig->bad_ids ? ANYEP_ASYNC_BAD_EXPERT : ANYEP_ASYNC_NONE, got = -1;

	if (ht_expect(rig, "ncclEpGetAsyncError", ncclEpGetAsyncError(rig->group, &got)))
		return -1;
	ll_wrong(&rig->verdict, got != want, "rank %d: ncclEpGetAsyncError gives %d, must be %d", seat_rank(rig->seat),
		 got, want);
	if (rig->bad_ids && ht_expect(rig, "ncclEpErrorClear", ncclEpErrorClear(rig->group)))
		return -1;
	rig->bad_ids = false;
	return 0;
}

int ht_settle(struct ht_rig *rig)
{
	if (ht_sync(rig))
		return -1;
	for (int i = 0; i < rig->cfg.handles; i++)
		for (int op = 0; op < HT_OPS; op++) {
			struct ht_state *state = &rig->handle[i].op[op];

			if (state->pending && ht_check(rig, i, op))
				return -1;
			state->pending = false;
		}
	return ht_sync(rig) || async_check(rig) ? -1 : 0;
}

static bool is_pending(const struct ht_handle *h)
{
	bool pending = false;

	for (int op = 0; op < HT_OPS; op++)
		pending |= h->op[op].pending;
	return pending;
}

static ncclEpLayout_t layout_of(const struct ht_rig *rig)
{
	return rig->cfg.shape.expert_major ? NCCL_EP_LAYOUT_EXPERT_MAJOR : NCCL_EP_LAYOUT_FLAT;
}

static int handle_init(struct ht_rig *rig, int handle, bool tell_topk, ncclEpHandle_t *out)
{
	struct ht_handle *h = &rig->handle[handle];
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	struct ht_tensor mem;

	config.dispatch_output_per_expert_alignment = (size_t)rig->cfg.shape.align;
	if (h->buf[HT_MEM].size)
		ht_tensor(rig, handle, HT_MEM, &mem);
	return ht_expect(rig, "ncclEpInitHandle",
			 ncclEpInitHandle(out, rig->group, layout_of(rig), rig->cfg.shape.align ? &config : NULL,
					  tell_topk ? rig->cfg.shape.base.topk : -1,
					  h->buf[HT_MEM].size ? &mem.t : NULL));
}

/* InitHandle may be collective and may allocate: no kernel may run meanwhile. */
static int twin_init(struct ht_rig *rig, int handle)
{
	if (ht_settle(rig) || seat_barrier(rig->seat) ||
	    handle_init(rig, handle, rig->cfg.twin == HT_TWIN_TOPK, &rig->handle[handle].twin))
		return -1;
	return seat_barrier(rig->seat);
}

static void stall(const struct ht_rig *rig)
{
	uint64_t random = ll_seed(rig->cfg.data.seed, USE_STALL, rig->words);

	if (rig->cfg.stall && random % (uint64_t)rig->cfg.shape.base.ranks == (uint64_t)seat_rank(rig->seat))
		usleep((useconds_t)((random >> 32) % (STALL_US + 1)));
}

static int do_op(struct ht_rig *rig, int handle, enum ht_op op, bool send_only)
{
	static const char *const names[] = { "ncclEpUpdateHandle", "ncclEpDispatch", "ncclEpCombine",
					     "ncclEpDispatch (BWD)", "ncclEpCombine (BWD)" };
	struct ht_handle *h = &rig->handle[handle];
	struct ht_state *state = &h->op[op];

	if (op >= HT_COMBINE && rig->cfg.twin && !h->twin && twin_init(rig, handle))
		return -1;
	if (op == HT_UPDATE && h->created) {
		h->created = false;
		return 0;
	}
	if ((op == HT_UPDATE ? is_pending(h) : state->pending) && ht_settle(rig))
		return -1;
	if (!state->loaded && (op == HT_UPDATE ? ht_round(rig, handle) : ht_load(rig, handle, op)))
		return -1;
	if (op == HT_UPDATE)
		rig->bad_ids |= ll_input_bad(&rig->cfg.shape.base, &h->in[seat_rank(rig->seat)]);
	if (ht_expect(rig, names[op], ht_call(rig, handle, op, send_only)))
		return -1;
	state->loaded = false;
	state->pending = true;
	return h->scribbled ? ht_scribble(rig, handle, op) : 0;
}

static int do_word(struct ht_rig *rig, const char *word)
{
	int handle = word[1] - 'A';

	if (handle < 0 || handle >= rig->cfg.handles)
		return seat_fail(rig->seat, "no handle for %.2s", word);
	rig->words++;
	stall(rig);
	if (word[0] == 'x')
		return ht_expect(rig, "ncclEpComplete",
				 ncclEpComplete(rig->handle[handle].handle, NULL, rig->shim.stream));
	for (int op = 0; op < HT_OPS; op++)
		if ((word[0] & ~0x20) == ht_words[op])
			return do_op(rig, handle, op, word[0] != ht_words[op]);
	return seat_fail(rig->seat, "unknown operation %.2s", word);
}

/* Whether the word occurs before `end`, in either case. */
static bool is_word(const char *script, const char *end, char op, char handle)
{
	for (; script < end; script++)
		if ((script[0] & ~0x20) == op && script[1] == handle)
			return true;
	return false;
}

/*
 * Prepares all data first, so that operations follow each other without the host where possible. Operations before a
 * handle's first Update use the old routing; data of those after it can be made only then.
 */
static int script_load(struct ht_rig *rig, const char *script)
{
	for (int i = 0; i < rig->cfg.handles; i++) {
		struct ht_handle *h = &rig->handle[i];
		const char handle = (char)('A' + i), update[] = { 'U', handle, 0 };
		const char *first = strchr(script, handle), *end = strstr(script, update);
		bool begins = first && end && first == end + 1;

		if (!end || begins)
			end = script + strlen(script);
		if (begins && !h->created && !h->op[HT_UPDATE].loaded && ht_round(rig, i))
			return -1;
		for (int op = HT_DISPATCH; op < HT_OPS; op++)
			if (!h->op[op].loaded && !h->op[op].pending && is_word(script, end, ht_words[op], handle) &&
			    ht_load(rig, i, op))
				return -1;
	}
	return 0;
}

int ht_script(struct ht_rig *rig, const char *script)
{
	if (script_load(rig, script))
		return -1;
	for (; *script; script++) {
		if (*script == ' ')
			continue;
		if (do_word(rig, script))
			return -1;
		script++;
	}
	return ht_settle(rig);
}

/* ---- opening and closing ---- */

static unsigned largest_row(const struct ll_shape *base)
{
	size_t in = ll_in_bytes(base) + ll_scale_bytes(base), combine = ll_combine_bytes(base);

	return (unsigned)(((in > combine ? in : combine) + 15) / 16 * 16);
}

static int group_open(struct ht_rig *rig)
{
	const struct ht_cfg *cfg = &rig->cfg;
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	double start = world_now();
	int rc;

	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	config.num_experts = (unsigned)cfg->shape.base.experts;
	config.max_dispatch_tokens_per_rank = (unsigned)cfg->shape.base.tmax;
	config.max_recv_tokens_per_rank = (unsigned)cfg->shape.capacity;
	config.max_token_bytes = cfg->max_token_bytes ? cfg->max_token_bytes : largest_row(&cfg->shape.base);
	config.max_num_sms = (unsigned)cfg->sms;
	config.dispatch_num_sms = (unsigned)cfg->dispatch_sms;
	config.combine_num_sms = (unsigned)cfg->combine_sms;
	config.zero_copy = (ncclEpZeroCopyMode_t)cfg->zero_copy;
	config.overflow_policy = (ncclEpOverflowPolicy_t)cfg->overflow;
	config.num_topk = cfg->tell_topk ? (unsigned)cfg->shape.base.topk : 0;
	rc = ht_expect(rig, "ncclEpCreateGroup", ncclEpCreateGroup(&rig->group, rig->comm, &config));
	rig->group_seconds = world_now() - start;
	return rc;
}

static int handle_create(struct ht_rig *rig, int handle)
{
	struct ht_handle *h = &rig->handle[handle];
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	struct ht_args args;

	config.dispatch_output_per_expert_alignment = (size_t)rig->cfg.shape.align;
	ht_args(rig, handle, HT_UPDATE, &args);
	ht_crossed_add(rig, handle, HT_UPDATE);
	h->created = h->op[HT_UPDATE].pending = true;
	h->op[HT_UPDATE].loaded = false;
	rig->bad_ids |= ll_input_bad(&rig->cfg.shape.base, &h->in[seat_rank(rig->seat)]);
	return ht_expect(rig, "ncclEpCreateHandle",
			 ncclEpCreateHandle(&h->handle, rig->group, layout_of(rig), &args.tensor[HT_IDX].t,
					    rig->cfg.counters ? &args.update_info : NULL,
					    rig->cfg.shape.align ? &config : NULL, rig->shim.stream));
}

static int handle_bufs(struct ht_rig *rig, int handle)
{
	struct ht_handle *h = &rig->handle[handle];
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;

	config.dispatch_output_per_expert_alignment = (size_t)rig->cfg.shape.align;
	if (rig->cfg.caller_mem &&
	    ht_expect(rig, "ncclEpHandleMemSize",
		      ncclEpHandleMemSize(rig->group, layout_of(rig), rig->cfg.shape.align ? &config : NULL,
					  &h->buf[HT_MEM].size,
					  rig->cfg.init == HT_INIT_AUTO || rig->cfg.twin == HT_TWIN_AUTO
						  ? -1
						  : rig->cfg.shape.base.topk)))
		return -1;
	return ht_bufs_open(rig, handle) || ht_round(rig, handle) ? -1 : 0;
}

static int handles_open(struct ht_rig *rig)
{
	const struct ht_cfg *cfg = &rig->cfg;

	for (int i = 0; i < cfg->handles; i++)
		if (handle_bufs(rig, i))
			return -1;
	if (ht_sync(rig))
		return -1;
	for (int i = 0; i < cfg->handles; i++) {
		double start;

		/* Ranks that share a GPU: no kernel may wait for this rank while it allocates, since allocating may
		 * wait for that kernel. */
		if (seat_barrier(rig->seat))
			return -1;
		start = world_now();
		if (cfg->init == HT_INIT_CREATE
			    ? handle_create(rig, i)
			    : handle_init(rig, i, cfg->init == HT_INIT_TOPK, &rig->handle[i].handle))
			return -1;
		rig->handle[i].init_seconds = world_now() - start;
	}
	return seat_barrier(rig->seat);
}

int ht_open(struct ht_rig *rig, struct seat *seat, const struct ht_cfg *cfg)
{
	*rig = (struct ht_rig){ .seat = seat, .cfg = *cfg };
	rig->comm = seat_comm(seat);
	if (!rig->comm)
		return -1;
	if (shim_open(&rig->shim, rig->comm, cfg->own_stream))
		return seat_fail(seat, "%s", rig->shim.text);
	return group_open(rig) || handles_open(rig) ? -1 : 0;
}

int ht_join(struct ht_rig *rig, const struct ht_rig *host, const struct ht_cfg *cfg)
{
	*rig = (struct ht_rig){ .seat = host->seat,
				.cfg = *cfg,
				.comm = host->comm,
				.shim = host->shim,
				.group = host->group,
				.guest = true };
	return handles_open(rig);
}

int ht_close(struct ht_rig *rig)
{
	bool failed = seat_failed(rig->seat) || rig->parted;

	/* Memory is freed only when no kernel runs: on some devices freeing waits for them. */
	if (!failed && seat_barrier(rig->seat))
		failed = true;
	for (int i = 0; i < rig->cfg.handles; i++) {
		struct ht_handle *h = &rig->handle[i];
		ncclResult_t rc = ncclEpHandleDestroy(h->twin), then = ncclEpHandleDestroy(h->handle);

		if (!failed)
			ht_expect(rig, "ncclEpHandleDestroy", rc == ncclSuccess ? then : rc);
	}
	if (rig->group && !rig->guest) {
		ncclResult_t rc = ncclEpGroupDestroy(rig->group);

		if (!failed)
			ht_expect(rig, "ncclEpGroupDestroy", rc);
	}
	for (int i = 0; i < rig->cfg.handles; i++) {
		struct ht_handle *h = &rig->handle[i];

		ht_bufs_close(rig, i);
		ht_plans_free(h->plan, rig->cfg.shape.base.ranks);
		ll_inputs_free(h->in, rig->cfg.shape.base.ranks);
	}
	if (!rig->guest)
		shim_close(&rig->shim);
	return seat_failed(rig->seat) ? -1 : 0;
}

ncclResult_t ht_outcome(struct ht_rig *rig, enum ht_op op, struct ht_args *args)
{
	ncclResult_t rc = ht_call_with(rig, 0, op, args);

	if (rc != ncclSuccess || !shim_is_gpu(&rig->shim))
		return rc;
	return ht_sync(rig) ? ncclSystemError : ncclEpComplete(rig->handle[0].handle, NULL, rig->shim.stream);
}

int ht_tell(struct ht_rig *rig)
{
	if (rig->verdict.wrong)
		seat_fail(rig->seat, "#wrong %llu: %s", (unsigned long long)rig->verdict.wrong, rig->verdict.first);
	return seat_failed(rig->seat) ? -1 : 0;
}
