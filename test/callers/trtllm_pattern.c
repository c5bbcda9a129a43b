/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TensorRT-LLM's way of calling: LL rank-major, int32 top-k, global expert ids, dispatch into a window; one handle,
 * created with the first routing and updated for every other one, on a GPU inside a captured graph. Ranks are threads,
 * or processes (-g). Exit status 0 or 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/callers/ll.h"

#define RANKS 4
#define JOB_SECONDS 120.0

struct job {
	bool window;
	struct caller_options o;
};

static const struct ll_shape shape = { .layout = LL_RANK_MAJOR,
				       .ranks = RANKS,
				       .experts = 16,
				       .topk = 4,
				       .tmax = 24,
				       .hidden = 1024,
				       .token = NUM_BF16,
				       .combine = NUM_BF16,
				       .global_ids = true };

static int group_make(struct caller *c, ncclEpGroup_t *group)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = (unsigned)shape.experts;
	config.max_dispatch_tokens_per_rank = (unsigned)shape.tmax;
	config.max_recv_tokens_per_rank = (unsigned)(RANKS * shape.tmax);
	config.max_token_bytes = (unsigned)(2 * shape.hidden);
	return caller_expect(c, "ncclEpCreateGroup", ep.ncclEpCreateGroup(group, c->comm, &config));
}

/* A forward pass with a new routing; the first creates the handle. */
static int forward(struct ll_layer *l, ncclEpGroup_t group, uint64_t seed)
{
	const struct ll_data data = { .seed = seed, .fill = LL_FILL_RANDOM, .route = LL_ROUTE_DROPPED };

	if (ll_layer_load(l, &data) || (l->handle ? ll_layer_update(l) : ll_layer_create(l, group)) ||
	    ll_layer_dispatch(l) || caller_sync(l->c) || ll_layer_check_rows(l) || ll_layer_combine(l) ||
	    caller_sync(l->c) || ll_layer_check_sums(l))
		return -1;
	return 0;
}

/* The handle goes from one routing to another and back: the same sums, bit for bit. */
static int back_and_forth(struct ll_layer *l, ncclEpGroup_t group)
{
	size_t size = l->sums.bytes;
	uint8_t *first = malloc(size);
	const uint8_t *again;
	int rc = -1;

	if (!first || forward(l, group, 1) || !(again = tensor_get(l->c, &l->sums)))
		goto out;
	memcpy(first, again, size);
	if (forward(l, group, 2) || forward(l, group, 1) || !(again = tensor_get(l->c, &l->sums)))
		goto out;
	ll_wrong(&l->c->verdict, memcmp(first, again, size) != 0, "rank %d: the first routing gave other sums before",
		 l->c->rank);
	rc = 0;
out:
	free(first);
	return rc;
}

static int step(struct ll_layer *l)
{
	struct shim *shim = &l->c->shim;

	if (ll_layer_update(l))
		return -1;
	if (shim->ops->fill(shim, l->out_idx.at, 0xff, l->out_idx.bytes))
		return seat_fail(l->c->seat, "%s", shim->text);
	return ll_layer_dispatch(l) || ll_layer_echo(l) || ll_layer_combine(l) ? -1 : 0;
}

/* What a graph runs: captured once and replayed with other routings; on the CPU called every time. */
static int steps(struct ll_layer *l, int rounds)
{
	struct ll_data data = {
		.seed = 100, .route = LL_ROUTE_DROPPED, .fixed_t = shape.tmax, .numeric = true, .echo = true
	};
	const struct shim_ops *ops = l->c->shim.ops;
	void *graph = NULL;
	int rc = ll_layer_load(l, &data);

	if (!rc && shim_is_gpu(&l->c->shim)) {
		rc = ops->capture_begin(&l->c->shim) || step(l) || ops->capture_end(&l->c->shim, &graph);
		if (rc)
			seat_fail(l->c->seat, "%s", l->c->shim.text);
	}
	for (int i = 0; !rc && i < rounds; i++) {
		data.seed++;
		rc = ll_layer_load(l, &data);
		if (!rc)
			rc = graph ? ops->graph_launch(&l->c->shim, graph) : step(l);
		if (!rc)
			rc = caller_sync(l->c) || ll_layer_check_rows(l) || ll_layer_check_sums(l);
	}
	ops->graph_destroy(&l->c->shim, graph);
	return rc ? seat_fail(l->c->seat, "%s", l->c->shim.text) : 0;
}

static int pattern(struct ll_layer *l, const struct job *job, ncclEpGroup_t group)
{
	if (back_and_forth(l, group))
		return -1;
	for (int i = 0; i < job->o.rounds; i++)
		if (forward(l, group, 10 + (uint64_t)i))
			return -1;
	if (steps(l, job->o.rounds) || caller_healthy(l->c, group) || ll_layer_destroy(l))
		return -1;
	return 0;
}

static int job_run(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	ncclEpGroup_t group = NULL;
	struct ll_layer l = { 0 };
	struct caller c;

	if (load_python(job->o.library))
		return seat_fail(seat, "libnccl_ep.so cannot be used");
	if (!caller_open(&c, seat) && !group_make(&c, &group) && !ll_layer_open(&l, &c, &shape, true, job->window) &&
	    !pattern(&l, job, group) && !seat_barrier(seat))
		caller_expect(&c, "ncclEpGroupDestroy", ep.ncclEpGroupDestroy(group));
	ll_layer_close(&l);
	return caller_close(&c);
}

int main(int argc, char **argv)
{
	struct job job = { 0 };
	int status = caller_options(&job.o, "trtllm_pattern", argc, argv), failed = 0;
	struct world_opts opts = { .seats = RANKS, .processes = job.o.processes };
	struct world *world;

	if (status >= 0)
		return status;
	if (world_open(&opts, &world))
		return 1;
	for (int i = 0; i < 2; i++) {
		job.window = i == 0;
		if (world_run(world, RANKS, job_run, &job, sizeof(job), JOB_SECONDS)) {
			printf("FAILED %s: %s\n", job.window ? "window" : "plain", world_text(world));
			failed++;
		}
	}
	failed += world_close(world) != 0;
	printf("trtllm_pattern: %s, %s\n", failed ? "failed" : "passed", opts.processes ? "processes" : "threads");
	return failed ? 1 : 0;
}
