/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TransformerEngine's way of calling: the library from $NCCL_EP_HOME/lib, one HT group, fixed, fused and eager passes,
 * handles kept by address of their memory, which is freed and used again before they are destroyed; backward passes by
 * new handles over old memory; groups made again and again on one communicator; processes that exit and destroy
 * nothing. Ranks are threads, or processes (-g). Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/callers/te.h"

#define RANKS 4
#define LAYERS 3
#define JOB_SECONDS 120.0
#define GARBAGE 0xa5

struct job {
	struct te_mode mode;
	int handles;
	bool some, exits; /* only the last rank leaves; by ending its process */
};

static struct ll_data data_of(int number, enum ll_fill fill, enum ll_route route)
{
	return (struct ll_data){ .seed = 1000 + (uint64_t)number, .fill = fill, .route = route };
}

static int capacity_of(const struct te_mode *mode, int ranks)
{
	struct ht_shape shape = { .base = { .ranks = ranks, .experts = TE_EXPERTS, .topk = TE_TOPK, .tmax = TE_TMAX },
				  .expert_major = true,
				  .align = TE_ALIGN };

	return mode->eager ? 0 : ht_bound(&shape);
}

/* ---- passes over a few layers ---- */

static int layers_open(struct te *te, struct layer *layer)
{
	if (caller_meet(&te->c))
		return -1;
	for (int i = 0; i < LAYERS; i++)
		if (pages_open(&te->c, te->mem_size, &layer[i].mem) ||
		    te->c.shim.ops->fill(&te->c.shim, layer[i].mem, GARBAGE, te->mem_size) ||
		    te_handle(te, layer[i].mem, &layer[i].handle))
			return seat_fail(te->c.seat, "cannot make a layer: %s", te->c.shim.text);
	return caller_meet(&te->c);
}

/* The framework frees the memory; the handles are still in its cache, and destroyed later. */
static int layers_close(struct te *te, struct layer *layer)
{
	if (caller_meet(&te->c))
		return -1;
	for (int i = 0; i < LAYERS; i++)
		pages_close(&te->c, layer[i].mem, te->mem_size);
	if (seat_barrier(te->c.seat))
		return -1;
	for (int i = 0; i < LAYERS; i++) {
		round_close(&layer[i].round);
		if (te_destroy(te, &layer[i].handle))
			return -1;
	}
	return 0;
}

/* Uniform, a rank without tokens, and everything to one rank: the others receive nothing. */
static const struct {
	enum ll_fill fill;
	enum ll_route route;
} kinds[LAYERS] = { { LL_FILL_FULL, LL_ROUTE_UNIFORM },
		    { LL_FILL_ZERO_SOME, LL_ROUTE_DROPPED },
		    { LL_FILL_RANDOM, LL_ROUTE_ONE_RANK } };

static int steps(struct te *te, struct layer *layer, int number)
{
	for (int i = 0; i < LAYERS; i++) {
		struct ll_data data = data_of(number + i, kinds[i].fill, kinds[i].route);

		if (layer_data(te, &layer[i], &data) || layer_forward(te, &layer[i]))
			return -1;
	}
	/* Evicted in between: new handles over the old memory. */
	for (int i = LAYERS - 1; i >= 0; i--)
		if (te_destroy(te, &layer[i].handle) || te_handle(te, layer[i].mem, &layer[i].handle) ||
		    layer_backward(te, &layer[i]))
			return -1;
	return 0;
}

static int pass_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct layer layer[LAYERS] = { 0 };
	struct te te;

	if (!te_open(&te, seat, &job->mode, capacity_of(&job->mode, seat_ranks(seat))) && !layers_open(&te, layer) &&
	    !steps(&te, layer, 0) && !steps(&te, layer, 50))
		layers_close(&te, layer);
	return te_close(&te);
}

/* ---- the cache of handles ---- */

/* Nobody but the passes writes to the memory. */
static int untouched(struct te *te, const uint8_t *mem, size_t size)
{
	uint8_t *copy = malloc(size);
	size_t wrong = 0;

	if (!copy || te->c.shim.ops->get(&te->c.shim, copy, mem, size)) {
		free(copy);
		return seat_fail(te->c.seat, "cannot read memory of handles: %s", te->c.shim.text);
	}
	for (size_t i = 0; i < size; i++)
		wrong += copy[i] != GARBAGE;
	ll_wrong(&te->c.verdict, wrong, "rank %d: ncclEpInitHandle wrote to %zu bytes of handle_mem", te->c.rank,
		 wrong);
	free(copy);
	return 0;
}

static int cache_use(struct te *te, ncclEpHandle_t *handle, uint8_t *mem, size_t pitch, int count)
{
	enum { USES = 12 };
	struct layer layer[USES] = { 0 };
	int rc = -1;

	for (int i = 0; i < USES; i++) {
		int at = (int)(ll_seed(7, (uint64_t)i, 0) % (uint64_t)count);
		struct ll_data data = data_of(200 + i, LL_FILL_RANDOM, LL_ROUTE_DROPPED);

		/* The address came back from the allocator: another EpBuffer, the same handle. */
		layer[i].mem = mem + (size_t)at * pitch;
		layer[i].handle = handle[at];
		if (te->c.shim.ops->fill(&te->c.shim, layer[i].mem, GARBAGE ^ 0xff, pitch) ||
		    layer_data(te, &layer[i], &data) || layer_forward(te, &layer[i]))
			goto close;
		/* In the end the cache is full, and this handle the one that has to go. */
		if (te_destroy(te, &handle[at]) || te_handle(te, layer[i].mem, &handle[at]))
			goto close;
		layer[i].handle = handle[at];
		if (i % 2 && layer_backward(te, &layer[i]))
			goto close;
	}
	rc = 0;
close:
	for (int i = 0; i < USES; i++)
		round_close(&layer[i].round);
	return rc;
}

static int cache_fill(struct te *te, ncclEpHandle_t *handle, uint8_t *mem, size_t pitch, int count)
{
	double start = world_now(), took;

	for (int i = 0; i < count; i++)
		if (te_handle(te, mem + (size_t)i * pitch, &handle[i]))
			return -1;
	took = world_now() - start;
	ll_wrong(&te->c.verdict, took > 5e-3 * count, "rank %d: %d times ncclEpInitHandle took %.1f s", te->c.rank,
		 count, took);
	return untouched(te, mem, (size_t)count * pitch);
}

static int cache_run(struct te *te, const struct job *job, ncclEpHandle_t *handle)
{
	size_t pitch = (te->mem_size + 255) / 256 * 256, size = (size_t)job->handles * pitch;
	void *mem = NULL;

	/* The first one makes the window grow, which is collective; all others are local. */
	if (caller_meet(&te->c) || pages_open(&te->c, size, &mem) ||
	    te->c.shim.ops->fill(&te->c.shim, mem, GARBAGE, size) || caller_meet(&te->c) ||
	    cache_fill(te, handle, mem, pitch, job->handles) || seat_barrier(te->c.seat) ||
	    cache_use(te, handle, mem, pitch, job->handles) || caller_meet(&te->c))
		return -1;
	pages_close(&te->c, mem, size);
	if (seat_barrier(te->c.seat))
		return -1;
	for (int i = 0; i < job->handles; i++)
		if (te_destroy(te, &handle[i]))
			return -1;
	return 0;
}

static int cache_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	ncclEpHandle_t *handle = calloc((size_t)job->handles, sizeof(*handle));
	struct layer layer[LAYERS] = { 0 };
	struct te te;

	if (!handle)
		return seat_fail(seat, "out of memory");
	/* The group outlives its handles and goes on. */
	if (!te_open(&te, seat, &job->mode, capacity_of(&job->mode, seat_ranks(seat))) &&
	    !cache_run(&te, job, handle) && !layers_open(&te, layer) && !steps(&te, layer, 300))
		layers_close(&te, layer);
	free(handle);
	return te_close(&te);
}

/* ---- more capacity ---- */

/* A pass on a new group: memory of a handle belongs to its group's shape. */
static int pass_once(struct te *te, const struct ll_data *data, int64_t *most)
{
	struct layer layer = { 0 };
	int rc = -1;

	if (caller_meet(&te->c) || pages_open(&te->c, te->mem_size, &layer.mem) || caller_meet(&te->c) ||
	    te_handle(te, layer.mem, &layer.handle))
		return -1;
	if (!layer_data(te, &layer, data))
		rc = layer_forward(te, &layer) || layer_backward(te, &layer) ? -1 : 0;
	for (int r = 0; !rc && r < te->c.ranks; r++)
		*most = layer.round.plan[r].total > *most ? layer.round.plan[r].total : *most;
	round_close(&layer.round);
	if (rc || te_destroy(te, &layer.handle) || caller_meet(&te->c))
		return -1;
	pages_close(&te->c, layer.mem, te->mem_size);
	return seat_barrier(te->c.seat);
}

/* Too little: an eager group runs the step again, then a fixed one that is large enough. */
static int grow_job(struct seat *seat, const void *arg)
{
	const struct te_mode fixed = ((const struct job *)arg)->mode, eager = { .eager = true };
	struct te te;
	int64_t most;

	if (te_open(&te, seat, &fixed, TE_TMAX))
		return te_close(&te);
	for (int i = 0; i < 3; i++) {
		struct ll_data data = data_of(400 + i, LL_FILL_FULL, i ? LL_ROUTE_ONE_RANK : LL_ROUTE_UNIFORM);

		most = 0;
		if (pass_once(&te, &data, &most))
			break;
		if (most <= te.shape.capacity) {
			seat_fail(seat, "%lld rows do not overflow", (long long)most);
			break;
		}
		if (te_regroup(&te, &eager, 0) || pass_once(&te, &data, &most) ||
		    te_regroup(&te, &fixed, (int)(most + TE_TMAX) / TE_TMAX * TE_TMAX) ||
		    pass_once(&te, &data, &most) || te_regroup(&te, &fixed, TE_TMAX))
			break;
	}
	return te_close(&te);
}

/* ---- processes that exit ---- */

static int leave_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	bool leaves = !job->some || seat_rank(seat) == seat_ranks(seat) - 1;
	struct layer layer[LAYERS] = { 0 };
	struct te te;

	if (te_open(&te, seat, &job->mode, capacity_of(&job->mode, seat_ranks(seat))) || layers_open(&te, layer) ||
	    steps(&te, layer, 500))
		return te_desert(&te);
	if (seat_barrier(seat))
		return te_desert(&te);
	if (leaves && job->exits)
		seat_leave(seat);
	/* Where others stay, they notice nothing but that it is gone. */
	for (int i = 0; !leaves && i < LAYERS; i++) {
		usleep(100000);
		te_destroy(&te, &layer[i].handle);
	}
	return te_desert(&te);
}

/* ---- all ---- */

static const struct te_mode modes[] = {
	{ .name = "fixed" },
	{ .name = "fixed, windows", .windows = true },
	{ .name = "fixed, e4m3", .quant = true, .idx32 = true },
	{ .name = "fixed, e4m3, windows", .quant = true, .windows = true },
	{ .name = "fused", .fused = true },
	{ .name = "fused, e4m3", .fused = true, .quant = true },
	{ .name = "eager", .eager = true },
	{ .name = "eager, e4m3", .eager = true, .quant = true, .idx32 = true },
};

static int run_one(struct world *world, const char *name, int ranks, world_fn fn, const struct job *job)
{
	double start = world_now();
	int rc = world_run(world, ranks, fn, job, sizeof(*job), JOB_SECONDS);

	printf("%s %s, %s (%.2f s)%s%s\n", rc ? "FAILED" : "ok    ", name, job->mode.name, world_now() - start,
	       rc ? ": " : "", rc ? world_text(world) : "");
	fflush(stdout);
	return rc != 0;
}

static int run_all(struct world *world, int handles, bool processes)
{
	struct job job = { .handles = handles };
	int failed = 0;

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		job.mode = modes[i];
		failed += run_one(world, "passes", RANKS, pass_job, &job);
	}
	job.mode = modes[0];
	failed += run_one(world, "cache", RANKS, cache_job, &job);
	failed += run_one(world, "capacity", RANKS, grow_job, &job);
	if (!processes)
		return failed;
	job.some = job.exits = true;
	failed += run_one(world, "one leaves", RANKS, leave_job, &job);
	failed += run_one(world, "after that", RANKS - 1, pass_job, &job);
	job.some = false;
	return failed + run_one(world, "all leave", RANKS - 1, leave_job, &job);
}

/* A process of several rank threads ends while its group is alive. */
static int threads_leave(void)
{
	const struct world_opts opts = { .seats = RANKS };
	const struct job job = { .mode = modes[0] };
	struct world *world;
	int status = -1;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid) {
		if (world_open(&opts, &world))
			exit(2);
		exit(run_one(world, "all leave", RANKS, leave_job, &job));
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
		printf("FAILED a process that leaves ended with status %#x\n", (unsigned)status);
		return 1;
	}
	return 0;
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: NCCL_EP_HOME=FOLDER te_pattern [-t | -g] [-n HANDLES]\n"
		     "  -t  ranks are threads (default)   -g  ranks are processes   -n  handles in the cache (4096)\n");
	return status;
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	int c, failed = 0, handles = 4096;

	while ((c = getopt(argc, argv, "tgn:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 't' || c == 'g')
			opts.processes = c == 'g';
		else if (c == 'n')
			handles = atoi(optarg);
		else
			return usage(stderr, 2);
	}
	if (optind != argc || handles < 1)
		return usage(stderr, 2);
	/* Before this process has any thread. */
	if (!opts.processes)
		failed += threads_leave();
	if (world_open(&opts, &world))
		return 1;
	failed += run_all(world, handles, opts.processes);
	if (world_close(world)) {
		printf("FAILED a rank's process did not end with exit status 0\n");
		failed++;
	}
	printf("te_pattern: %s, %s\n", failed ? "failed" : "passed", opts.processes ? "processes" : "threads");
	return failed ? 1 : 0;
}
