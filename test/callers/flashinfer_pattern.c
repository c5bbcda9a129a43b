/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashInfer's way of calling: a fresh handle per forward pass, or one that is updated, on a GPU inside a captured
 * graph; Complete after every operation, staged or not, in HT too; HT flat with more than 8192 tokens into buffers that
 * were never initialised and are read to their end; masks by functions of the global scope, from pinned memory. Ranks
 * are threads, or processes (-g). Exit status 0 or 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/callers/ll.h"
#include "test/callers/round.h"

#define RANKS 4
#define TALL_RANKS 2
#define JOB_SECONDS 120.0

struct job {
	struct caller_options o;
	enum ll_layout layout;
	struct ht_shape ht;
};

static ncclEpGroupConfig_t config_of(ncclEpAlgorithm_t algorithm, const struct ll_shape *shape)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

	config.algorithm = algorithm;
	config.num_experts = (unsigned)shape->experts;
	config.max_dispatch_tokens_per_rank = (unsigned)shape->tmax;
	config.max_token_bytes = (unsigned)(2 * shape->hidden);
	return config;
}

static int group_make(struct caller *c, const ncclEpGroupConfig_t *config, ncclEpGroup_t *group)
{
	return caller_expect(c, "ncclEpCreateGroup", ep.ncclEpCreateGroup(group, c->comm, config));
}

/* ---- LL ---- */

static const struct ll_shape ll_shape = {
	.ranks = RANKS, .experts = 8, .topk = 3, .tmax = 16, .hidden = 2048, .token = NUM_BF16, .combine = NUM_BF16
};

static int ll_pass(struct ll_layer *l)
{
	return ll_layer_dispatch(l) || ll_layer_complete(l) || caller_sync(l->c) || ll_layer_check_rows(l) ||
			       ll_layer_combine(l) || ll_layer_complete(l) || caller_sync(l->c) ||
			       ll_layer_check_sums(l)
		       ? -1
		       : 0;
}

/* A handle for this pass only. */
static int ll_fresh(struct ll_layer *l, ncclEpGroup_t group, uint64_t seed)
{
	const struct ll_data data = { .seed = seed, .fill = LL_FILL_RANDOM, .route = LL_ROUTE_DROPPED };

	return ll_layer_load(l, &data) || ll_layer_create(l, group) || ll_pass(l) || ll_layer_destroy(l) ? -1 : 0;
}

static int ll_step(struct ll_layer *l)
{
	return ll_layer_update(l) || ll_layer_dispatch(l) || ll_layer_complete(l) || ll_layer_echo(l) ||
			       ll_layer_combine(l) || ll_layer_complete(l)
		       ? -1
		       : 0;
}

/* One handle; create and an update outside the capture, update inside. */
static int ll_kept(struct ll_layer *l, ncclEpGroup_t group, int rounds)
{
	struct ll_data data = { .seed = 500, .fixed_t = ll_shape.tmax, .numeric = true, .echo = true };
	struct shim *shim = &l->c->shim;
	void *graph = NULL;
	int rc = ll_layer_load(l, &data) || ll_layer_create(l, group) || ll_layer_update(l) || caller_sync(l->c);

	if (!rc && shim_is_gpu(shim))
		rc = shim->ops->capture_begin(shim) || ll_step(l) || shim->ops->capture_end(shim, &graph);
	for (int i = 0; !rc && i < rounds; i++) {
		data.seed++;
		rc = ll_layer_load(l, &data) || (graph ? shim->ops->graph_launch(shim, graph) : ll_step(l)) ||
		     caller_sync(l->c) || ll_layer_check_rows(l) || ll_layer_check_sums(l);
	}
	shim->ops->graph_destroy(shim, graph);
	if (rc)
		return seat_fail(l->c->seat, "%s", shim->text);
	return ll_layer_destroy(l);
}

static int ll_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	ncclEpGroupConfig_t config = config_of(NCCL_EP_ALGO_LOW_LATENCY, &ll_shape);
	struct ll_shape shape = ll_shape;
	ncclEpGroup_t group = NULL;
	struct ll_layer l = { 0 };
	struct caller c;
	int rc = 0;

	shape.layout = job->layout;
	if (load_python(job->o.library))
		return seat_fail(seat, "libnccl_ep.so cannot be used");
	if (caller_open(&c, seat) || group_make(&c, &config, &group) || ll_layer_open(&l, &c, &shape, false, false))
		goto close;
	for (int i = 0; i < job->o.rounds && !rc; i++)
		rc = ll_fresh(&l, group, (uint64_t)i);
	if (!rc && !ll_kept(&l, group, job->o.rounds) && !caller_healthy(&c, group) && !seat_barrier(seat))
		caller_expect(&c, "ncclEpGroupDestroy", ep.ncclEpGroupDestroy(group));
close:
	ll_layer_close(&l);
	return caller_close(&c);
}

/* ---- masks ---- */

#define VICTIM (RANKS - 1)

static int mask_is(struct ll_layer *l, ncclEpGroup_t group, struct tensor *mask)
{
	const int32_t *got;

	if (tensor_fill(l->c, mask, LL_POISON_OUT) || caller_sync(l->c) ||
	    caller_expect(l->c, "ncclEpMaskQuery",
			  ep.ncclEpMaskQuery(group, (int *)(void *)mask->at, l->c->shim.stream)) ||
	    caller_sync(l->c) || !(got = tensor_get(l->c, mask)))
		return -1;
	for (int r = 0; r < RANKS; r++)
		ll_wrong(&l->c->verdict, got[r] != l->active[r], "rank %d: the mask of rank %d is %d, must be %d",
			 l->c->rank, r, got[r], l->active[r]);
	return 0;
}

/* The survivors go on without a rank, then clean their masks and the error. */
static int survive(struct ll_layer *l, ncclEpGroup_t group, struct tensor *mask, struct tensor *pinned)
{
	const int32_t without[RANKS] = { 1, 1, 1, 0 };

	if (tensor_put(l->c, pinned, without) ||
	    caller_expect(l->c, "ncclEpMaskUpdate",
			  ep.ncclEpMaskUpdate(group, (const int *)(void *)pinned->at, l->c->shim.stream)))
		return -1;
	l->active[VICTIM] = false;
	if (mask_is(l, group, mask) || ll_fresh(l, group, 700) || ll_fresh(l, group, 701) ||
	    caller_expect(l->c, "ncclEpMaskClean", ep.ncclEpMaskClean(group, l->c->shim.stream)) || caller_sync(l->c) ||
	    caller_expect(l->c, "ncclEpErrorClear", ep.ncclEpErrorClear(group)))
		return -1;
	l->active[VICTIM] = true;
	return mask_is(l, group, mask);
}

static int mask_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	ncclEpGroupConfig_t config = config_of(NCCL_EP_ALGO_LOW_LATENCY, &ll_shape);
	struct tensor mask = { 0 }, pinned = { 0 };
	ncclEpGroup_t group = NULL;
	struct ll_layer l = { 0 };
	struct caller c;

	config.enable_mask = 1;
	config.timeout_ns = 20ull * 1000 * 1000 * 1000;
	if (load_python(job->o.library))
		return seat_fail(seat, "libnccl_ep.so cannot be used");
	if (caller_open(&c, seat) || group_make(&c, &config, &group) ||
	    TENSOR(&c, &mask, ON_DEVICE, ncclInt32, RANKS) || TENSOR(&c, &pinned, PINNED, ncclInt32, RANKS) ||
	    ll_layer_open(&l, &c, &ll_shape, false, false))
		goto close;
	if (mask_is(&l, group, &mask) || ll_fresh(&l, group, 600) || caller_meet(&c) ||
	    (c.rank != VICTIM && survive(&l, group, &mask, &pinned)) || seat_barrier(seat))
		goto close;
	if (!ll_fresh(&l, group, 800) && !ll_fresh(&l, group, 801) && !mask_is(&l, group, &mask) &&
	    !caller_healthy(&c, group) && !seat_barrier(seat))
		caller_expect(&c, "ncclEpGroupDestroy", ep.ncclEpGroupDestroy(group));
close:
	ll_layer_close(&l);
	tensor_close(&c, &mask);
	tensor_close(&c, &pinned);
	return caller_close(&c);
}

/* ---- HT ---- */

struct ht {
	struct caller c;
	struct ht_shape shape;
	struct round round;
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	size_t height; /* rows of outputs */
	struct tensor idx, total, tokens, weights, out, out_weights, out_idx, answers, sums;
};

static int ht_open(struct ht *h, struct seat *seat, const struct job *job)
{
	struct caller *c = &h->c;
	ncclEpGroupConfig_t config = config_of(NCCL_EP_ALGO_HIGH_THROUGHPUT, &job->ht.base);
	size_t t = (size_t)job->ht.base.tmax, k = (size_t)job->ht.base.topk, w = job->ht.base.hidden;

	*h = (struct ht){ .shape = job->ht, .height = (size_t)job->ht.capacity, .c = { .seat = seat } };
	config.max_recv_tokens_per_rank = (unsigned)job->ht.capacity;
	if (load_python(job->o.library))
		return seat_fail(seat, "libnccl_ep.so cannot be used");
	return caller_open(c, seat) || group_make(c, &config, &h->group) ||
			       TENSOR(c, &h->idx, ON_DEVICE, ncclInt64, t, k) ||
			       TENSOR(c, &h->total, ON_DEVICE, ncclInt32, 1) ||
			       TENSOR(c, &h->tokens, ON_DEVICE, ncclBfloat16, t, w) ||
			       TENSOR(c, &h->weights, ON_DEVICE, ncclFloat32, t, k) ||
			       TENSOR(c, &h->out, ON_DEVICE, ncclBfloat16, h->height, w) ||
			       TENSOR(c, &h->out_weights, ON_DEVICE, ncclFloat32, h->height, k) ||
			       TENSOR(c, &h->out_idx, ON_DEVICE, ncclInt64, h->height, k) ||
			       TENSOR(c, &h->answers, ON_DEVICE, ncclBfloat16, h->height, w) ||
			       TENSOR(c, &h->sums, ON_DEVICE, ncclBfloat16, t, w) || caller_meet(c)
		       ? -1
		       : 0;
}

static int ht_close(struct ht *h)
{
	struct tensor *all[] = { &h->idx,	  &h->total,   &h->tokens,  &h->weights, &h->out,
				 &h->out_weights, &h->out_idx, &h->answers, &h->sums };

	if (!seat_failed(h->c.seat) && !caller_meet(&h->c))
		caller_expect(&h->c, "ncclEpGroupDestroy", ep.ncclEpGroupDestroy(h->group));
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		tensor_close(&h->c, all[i]);
	round_close(&h->round);
	return caller_close(&h->c);
}

/* New tokens and routing, and outputs with whatever was in that memory. */
static int ht_load(struct ht *h, const struct ll_data *data)
{
	const struct ll_input *in;
	struct caller *c = &h->c;

	round_close(&h->round);
	if (round_open(&h->round, &h->shape, data, c->rank, false))
		return seat_fail(c->seat, "out of memory");
	in = round_mine(&h->round);
	tensor_rows(&h->idx, (size_t)in->t);
	tensor_rows(&h->tokens, (size_t)in->t);
	tensor_rows(&h->weights, (size_t)in->t);
	tensor_rows(&h->sums, (size_t)in->t);
	return tensor_put(c, &h->idx, in->idx) || tensor_put(c, &h->tokens, in->tokens) ||
			       tensor_put(c, &h->weights, in->weight) || tensor_fill(c, &h->out, LL_POISON_OUT) ||
			       tensor_fill(c, &h->out_weights, LL_POISON_OUT) ||
			       tensor_fill(c, &h->out_idx, LL_POISON_OUT) || tensor_fill(c, &h->sums, LL_POISON_OUT) ||
			       tensor_fill(c, &h->total, LL_POISON_OUT) || caller_sync(c)
		       ? -1
		       : 0;
}

static int ht_dispatch(struct ht *h)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;

	in.tokens = &h->tokens.t;
	in.topk_weights = &h->weights.t;
	out.tokens = &h->out.t;
	out.topk_weights = &h->out_weights.t;
	out.topk_idx = &h->out_idx.t;
	return caller_expect(&h->c, "ncclEpDispatch",
			     ep.ncclEpDispatch(h->handle, &in, &out, NULL, &config, h->c.shim.stream)) ||
			       caller_expect(&h->c, "ncclEpComplete",
					     ep.ncclEpComplete(h->handle, NULL, h->c.shim.stream))
		       ? -1
		       : 0;
}

static int ht_combine(struct ht *h)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;

	in.tokens = &h->answers.t;
	out.tokens = &h->sums.t;
	return caller_expect(&h->c, "ncclEpCombine",
			     ep.ncclEpCombine(h->handle, &in, &out, &config, h->c.shim.stream)) ||
			       caller_expect(&h->c, "ncclEpComplete",
					     ep.ncclEpComplete(h->handle, NULL, h->c.shim.stream))
		       ? -1
		       : 0;
}

static int ht_check_rows(struct ht *h)
{
	struct round_got got = { .tokens = tensor_get(&h->c, &h->out),
				 .weights = tensor_get(&h->c, &h->out_weights),
				 .idx = tensor_get(&h->c, &h->out_idx),
				 .height = h->height };

	if (seat_failed(h->c.seat))
		return -1;
	round_check_rows(&h->round, h->round.in, &got, &h->c.verdict);
	return 0;
}

static int ht_check_sums(struct ht *h)
{
	const uint8_t *sums = tensor_get(&h->c, &h->sums);

	if (!sums)
		return -1;
	round_check_sums(&h->round, 0, sums, NULL, &h->c.verdict);
	return 0;
}

static int ht_answers(struct ht *h)
{
	uint8_t *rows = malloc(h->answers.bytes);
	int rc;

	if (!rows)
		return seat_fail(h->c.seat, "out of memory");
	round_answers(&h->round, 0, h->height, rows, NULL);
	rc = tensor_put(&h->c, &h->answers, rows);
	free(rows);
	return rc;
}

static int ht_create(struct ht *h, bool counted)
{
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;

	info.recv_total_counter = &h->total.t;
	return caller_expect(&h->c, "ncclEpCreateHandle",
			     ep.ncclEpCreateHandle(&h->handle, h->group, NCCL_EP_LAYOUT_FLAT, &h->idx.t,
						   counted ? &info : NULL, NULL, h->c.shim.stream));
}

static int ht_destroy(struct ht *h)
{
	return caller_expect(&h->c, "ncclEpHandleDestroy", ep.ncclEpHandleDestroy(h->handle));
}

/* A handle for this pass only. Creating one may allocate, for which no kernel may run; see caller_meet. */
static int ht_fresh(struct ht *h, uint64_t seed)
{
	const struct ll_data data = { .seed = seed, .fill = (enum ll_fill)(seed % 3), .route = LL_ROUTE_DROPPED };
	bool counted = seed % 2;
	const int32_t *total;

	if (ht_load(h, &data) || ht_create(h, counted) || ht_dispatch(h) || caller_sync(&h->c) || ht_check_rows(h) ||
	    ht_answers(h) || ht_combine(h) || caller_sync(&h->c) || ht_check_sums(h) ||
	    !(total = tensor_get(&h->c, &h->total)))
		return -1;
	ll_wrong(&h->c.verdict, counted && *total != round_plan(&h->round)->total,
		 "rank %d: recv_total is %d, not %lld", h->c.rank, *total, (long long)round_plan(&h->round)->total);
	return ht_destroy(h);
}

static int ht_step(struct ht *h)
{
	return caller_expect(&h->c, "ncclEpUpdateHandle",
			     ep.ncclEpUpdateHandle(h->handle, &h->idx.t, NULL, h->c.shim.stream)) ||
			       ht_dispatch(h) || ht_combine(h)
		       ? -1
		       : 0;
}

/* One handle, updated inside a graph. The experts' answers depend on the routing and are there before. */
static int ht_kept(struct ht *h, int rounds)
{
	struct ll_data data = { .seed = 900, .fixed_t = h->shape.base.tmax, .route = LL_ROUTE_DROPPED };
	struct shim *shim = &h->c.shim;
	void *graph = NULL;
	int rc = ht_load(h, &data) || ht_create(h, false) || caller_sync(&h->c);

	if (!rc && shim_is_gpu(shim))
		rc = shim->ops->capture_begin(shim) || ht_step(h) || shim->ops->capture_end(shim, &graph);
	for (int i = 0; !rc && i < rounds; i++) {
		data.seed++;
		rc = ht_load(h, &data) || ht_answers(h) || caller_sync(&h->c) ||
		     (graph ? shim->ops->graph_launch(shim, graph) : ht_step(h)) || caller_sync(&h->c) ||
		     ht_check_rows(h) || ht_check_sums(h);
	}
	shim->ops->graph_destroy(shim, graph);
	if (rc)
		return seat_fail(h->c.seat, "%s", shim->text);
	return ht_destroy(h);
}

static int ht_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht h;
	int rc = ht_open(&h, seat, job);

	for (int i = 0; i < job->o.rounds && !rc; i++)
		rc = ht_fresh(&h, (uint64_t)i);
	if (!rc && !ht_kept(&h, job->o.rounds))
		caller_healthy(&h.c, h.group);
	return ht_close(&h);
}

/* ---- all ---- */

static struct ht_shape ht_shape(int ranks, int tmax, size_t hidden)
{
	struct ht_shape shape = { .base = { .ranks = ranks,
					    .experts = 4 * ranks,
					    .topk = 3,
					    .tmax = tmax,
					    .hidden = hidden,
					    .token = NUM_BF16,
					    .combine = NUM_BF16 },
				  .capacity = ranks * tmax };

	return shape;
}

static int run_one(struct world *world, const char *name, int ranks, world_fn fn, const struct job *job)
{
	double start = world_now();
	int rc = world_run(world, ranks, fn, job, sizeof(*job), JOB_SECONDS);

	printf("%s %s (%.2f s)%s%s\n", rc ? "FAILED" : "ok    ", name, world_now() - start, rc ? ": " : "",
	       rc ? world_text(world) : "");
	fflush(stdout);
	return rc != 0;
}

int main(int argc, char **argv)
{
	struct job job = { 0 };
	int status = caller_options(&job.o, "flashinfer_pattern", argc, argv), failed = 0;
	struct world_opts opts = { .seats = RANKS, .processes = job.o.processes };
	struct world *world;

	if (status >= 0)
		return status;
	if (world_open(&opts, &world))
		return 1;
	job.layout = LL_EXPERT_MAJOR;
	failed += run_one(world, "LL expert-major", RANKS, ll_job, &job);
	job.layout = LL_RANK_MAJOR;
	failed += run_one(world, "LL rank-major", RANKS, ll_job, &job);
	failed += run_one(world, "masks", RANKS, mask_job, &job);
	job.ht = ht_shape(RANKS, 40, 1024);
	failed += run_one(world, "HT flat", RANKS, ht_job, &job);
	job.ht = ht_shape(TALL_RANKS, 8192 + 500, 64);
	job.o.rounds = 2;
	failed += run_one(world, "HT flat, 8692 tokens", TALL_RANKS, ht_job, &job);
	failed += world_close(world) != 0;
	printf("flashinfer_pattern: %s, %s\n", failed ? "failed" : "passed", opts.processes ? "processes" : "threads");
	return failed ? 1 : 0;
}
