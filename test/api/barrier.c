/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anyEpGroupBarrier, HT and LL: what a rank has done before its call is seen by every other after its own, between
 * operations whose data is checked; on a stream the call returns although nobody else has come; a rank that never calls
 * is named by the others in time, or masked; a rank that makes another call fails all. On a GPU also in a graph that is
 * replayed. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define LOST 2
#define ROUNDS 24
#define TIMEOUT 0.5
#define LATE 1.5
#define AT_ONCE 5.0

struct job {
	struct far_nodes nodes;
	bool low;    /* LL, else HT */
	bool stream; /* of its own */
	bool mask;
};

struct board {
	atomic_int came[RANKS], met;
};

/* Either rig. */
struct both {
	const struct job *job;
	struct seat *seat;
	struct ht_rig ht;
	struct rig ll;
};

static int both_open(struct both *b, struct seat *seat, const struct job *job)
{
	struct ht_cfg ht = { .handles = 1, .spare = LL_ALL, .tell_topk = true, .own_stream = job->stream };
	struct rig_cfg ll = { .handles = 1, .own_stream = job->stream, .mask = job->mask };

	*b = (struct both){ .job = job, .seat = seat };
	ll.shape = (struct ll_shape){ .ranks = RANKS, .experts = 2 * RANKS, .topk = 3, .tmax = 8, .hidden = 64 };
	ht.data = ll.data = (struct ll_data){ .seed = 11 };
	ht.shape = (struct ht_shape){ .base = ll.shape, .nodes = job->nodes, .capacity = RANKS * 8 };
	ll.per_node = job->nodes.size[0];
	return job->low ? rig_open(&b->ll, seat, &ll) : ht_open(&b->ht, seat, &ht);
}

static ncclResult_t barrier(struct both *b)
{
	return b->job->low ? anyEpGroupBarrier(b->ll.group, b->ll.shim.stream)
			   : anyEpGroupBarrier(b->ht.group, b->ht.shim.stream);
}

static int both_sync(struct both *b)
{
	return b->job->low ? rig_sync(&b->ll) : ht_sync(&b->ht);
}

static struct shim *shim_of(struct both *b)
{
	return b->job->low ? &b->ll.shim : &b->ht.shim;
}

/* Of a call that was to fail: on a GPU it only launches, and the next call tells. */
static ncclResult_t outcome(struct both *b, ncclResult_t got)
{
	if (got != ncclSuccess || !shim_is_gpu(shim_of(b)))
		return got;
	if (both_sync(b))
		return ncclSystemError;
	return b->job->low ? barrier(b) : ncclEpComplete(b->ht.handle[0].handle, NULL, b->ht.shim.stream);
}

static int both_close(struct both *b, bool parted)
{
	if (b->job->low) {
		b->ll.parted = parted;
		rig_close(&b->ll);
		return rig_tell(&b->ll);
	}
	b->ht.parted = parted;
	ht_close(&b->ht);
	return ht_tell(&b->ht);
}

static int operations(struct both *b, int round)
{
	static const char *const scripts[] = { "UA", "DA CA", "UA DA CA" };

	if (round % 4)
		return 0;
	if (b->job->low)
		return rig_script(&b->ll, "DA CA");
	return ht_script(&b->ht, scripts[round / 4 % 2 ? 2 : 1]);
}

/* graph: of a barrier; NULL: a call. */
static int barrier_run(struct both *b, void *graph, int round)
{
	struct shim *shim = shim_of(b);

	if (graph)
		return shim->ops->graph_launch(shim, graph) ? seat_fail(b->seat, "%s", shim->text) : 0;
	if (barrier(b) != ncclSuccess)
		return seat_fail(b->seat, "round %d: %s", round, anyEpGetLastError());
	return 0;
}

/* One rank is late; another, on a stream, has made its call before the others have. */
static int meet(struct both *b, struct board *board, int round, void *graph)
{
	int rank = seat_rank(b->seat), first = b->job->stream && round == 1;

	if (round % RANKS == rank)
		usleep(3000);
	atomic_store(&board->came[rank], round);
	if (first && rank != 0 && seat_meet(b->seat, &board->met, RANKS))
		return -1;
	if (barrier_run(b, graph, round))
		return -1;
	if (first && rank == 0 && seat_meet(b->seat, &board->met, RANKS))
		return -1;
	if (both_sync(b))
		return -1;
	for (int r = 0; r < RANKS; r++)
		if (atomic_load(&board->came[r]) < round)
			return seat_fail(b->seat, "round %d: rank %d went on before rank %d came", round, rank, r);
	return 0;
}

static int capture(struct both *b, void **graph)
{
	struct shim *shim = shim_of(b);

	if (shim->ops->capture_begin(shim))
		return seat_fail(b->seat, "%s", shim->text);
	if (barrier(b) != ncclSuccess)
		return seat_fail(b->seat, "captured: %s", anyEpGetLastError());
	return shim->ops->capture_end(shim, graph) ? seat_fail(b->seat, "%s", shim->text) : 0;
}

/* On a GPU, in the second half of the rounds, calls and replays of a graph take turns. */
static int order_job(struct seat *seat, const void *arg)
{
	struct both *b = malloc(sizeof(*b));
	void *graph = NULL;
	int rc;

	if (!b)
		return seat_fail(seat, "out of memory");
	rc = both_open(b, seat, arg);
	if (!rc && !b->job->low)
		rc = ht_script(&b->ht, "UA");
	for (int round = 1; !rc && round <= ROUNDS; round++) {
		if (round == ROUNDS / 2 && shim_is_gpu(shim_of(b)))
			rc = capture(b, &graph);
		rc = rc || operations(b, round) || meet(b, seat_board(seat), round, round % 3 ? graph : NULL);
	}
	if (graph)
		shim_of(b)->ops->graph_destroy(shim_of(b), graph);
	rc = both_close(b, false);
	free(b);
	return rc;
}

/* One rank does something else, or nothing, and the group ends without the others' consent. */
static int parted(struct seat *seat, const void *arg, void (*scene)(struct both *b))
{
	struct both *b = malloc(sizeof(*b));
	struct board *board = seat_board(seat);
	int rc;

	if (!b)
		return seat_fail(seat, "out of memory");
	if (!both_open(b, seat, arg) && !seat_barrier(seat))
		scene(b);
	seat_meet(seat, &board->met, RANKS); /* a rank that ends its group at once may take the news with it */
	rc = both_close(b, true);
	free(b);
	return rc;
}

static void lost_scene(struct both *b)
{
	double start = world_now();
	ncclResult_t got;
	const char *text;

	if (seat_rank(b->seat) == LOST)
		return;
	got = outcome(b, barrier(b));
	text = got == ncclSuccess ? "" : anyEpGetLastError();
	if (got != ncclTimeout && got != ncclRemoteError)
		seat_fail(b->seat, "returned %s (%s)", ncclGetErrorString(got), text);
	else if (!strstr(text, "rank 2"))
		seat_fail(b->seat, "\"%s\" does not name rank %d", text, LOST);
	else if (world_now() - start > TIMEOUT + LATE)
		seat_fail(b->seat, "error after %.1f s", world_now() - start);
}

static int lost_job(struct seat *seat, const void *arg)
{
	return parted(seat, arg, lost_scene);
}

/* The first masks the rank that does not come, the second does not wait for it. */
static void masked_scene(struct both *b)
{
	int rc = 0, flag = 0;

	for (int i = 0; !rc && seat_rank(b->seat) != LOST && i < 2; i++) {
		double start = world_now();

		if (barrier(b) != ncclSuccess)
			rc = seat_fail(b->seat, "%s", anyEpGetLastError());
		else if (both_sync(b))
			rc = -1;
		else if (i == 1 && world_now() - start > TIMEOUT / 2)
			rc = seat_fail(b->seat, "waited %.1f s for a masked rank", world_now() - start);
		else if (ncclEpGetAsyncError(b->ll.group, &flag) != ncclSuccess || flag != ANYEP_ASYNC_TIMEOUT)
			rc = seat_fail(b->seat, "ncclEpGetAsyncError gives %d", flag);
	}
}

static int masked_job(struct seat *seat, const void *arg)
{
	return parted(seat, arg, masked_scene);
}

/* HT: an update of one rank is no barrier of the others. */
static void unlike_scene(struct both *b)
{
	ncclResult_t got;
	double start;

	if (ht_script(&b->ht, "UA UA") || ht_round(&b->ht, 0) || seat_barrier(b->seat))
		return;
	start = world_now();
	got = outcome(b, seat_rank(b->seat) == LOST ? ht_call(&b->ht, 0, HT_UPDATE, false) : barrier(b));
	if (got != ncclInvalidUsage && got != ncclRemoteError)
		seat_fail(b->seat, "returned %s (%s)", ncclGetErrorString(got), anyEpGetLastError());
	else if (world_now() - start > AT_ONCE)
		seat_fail(b->seat, "error after %.1f s", world_now() - start);
}

static int unlike_job(struct seat *seat, const void *arg)
{
	return parted(seat, arg, unlike_scene);
}

/* HT: before the first handle, when there is no window yet. */
static int early_job(struct seat *seat, const void *arg)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	struct board *board = seat_board(seat);
	ncclComm_t comm = seat_comm(seat);
	ncclEpGroup_t group = NULL;
	struct shim shim;

	(void)arg;
	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	config.num_experts = RANKS;
	config.max_dispatch_tokens_per_rank = 8;
	config.max_token_bytes = 256;
	if (!comm || shim_open(&shim, comm, false))
		return seat_fail(seat, "no device");
	if (ncclEpCreateGroup(&group, comm, &config) != ncclSuccess)
		return seat_fail(seat, "%s", anyEpGetLastError());
	for (int round = 1; round <= ROUNDS; round++) {
		if (round % RANKS == seat_rank(seat))
			usleep(3000);
		atomic_store(&board->came[seat_rank(seat)], round);
		if (anyEpGroupBarrier(group, shim.stream) != ncclSuccess)
			return seat_fail(seat, "round %d: %s", round, anyEpGetLastError());
		if (shim.ops->sync(&shim, LATE))
			return seat_fail(seat, "round %d: %s", round, shim.text);
		for (int r = 0; r < RANKS; r++)
			if (atomic_load(&board->came[r]) < round)
				return seat_fail(seat, "round %d: went on before rank %d came", round, r);
	}
	shim_close(&shim);
	return ncclEpGroupDestroy(group) == ncclSuccess ? 0 : seat_fail(seat, "%s", anyEpGetLastError());
}

struct scene {
	const char *name;
	world_fn fn;
	bool low, stream, mask;
};

static int run_scene(const struct world_opts *opts, const char *net, struct job *job, const struct scene *scene)
{
	struct world *world;
	char ms[16];
	int rc;

	if (world_open(opts, &world))
		return 1;
	job->low = scene->low;
	job->stream = scene->stream;
	job->mask = scene->mask;
	snprintf(ms, sizeof(ms), "%d",
		 scene->fn == lost_job || scene->fn == masked_job ? (int)(1000 * TIMEOUT) : 30000);
	world_setenv(world, "NCCL_EP_TIMEOUT_MS", ms);
	if (job->nodes.size[0])
		far_set_nodes(world, &job->nodes, net, 5);
	rc = world_run(world, RANKS, scene->fn, job, sizeof(*job), 60);
	printf("%s %s%s%s\n", rc ? "FAILED" : "ok    ", scene->name, rc ? ": " : "", rc ? world_text(world) : "");
	fflush(stdout);
	return world_close(world) || rc ? 1 : 0;
}

int main(int argc, char **argv)
{
	static const struct scene scenes[] = {
		{ "HT in order", order_job, false, false, false },
		{ "HT in order, on a stream", order_job, false, true, false },
		{ "HT without a rank", lost_job, false, false, false },
		{ "HT against an update", unlike_job, false, false, false },
		{ "HT before the first handle", early_job, false, false, false },
		{ "LL in order", order_job, true, false, false },
		{ "LL in order, on a stream", order_job, true, true, false },
		{ "LL in order, with masks", order_job, true, false, true },
		{ "LL without a rank", lost_job, true, false, false },
		{ "LL without a rank that is masked", masked_job, true, false, true },
	};
	struct world_opts opts = { .seats = RANKS, .board = sizeof(struct board) };
	struct job job = { 0 };
	const char *net = "loop";
	int c, failed = 0;

	while ((c = getopt(argc, argv, "gN:k:")) != -1) {
		if (c == '?') {
			fprintf(stderr,
				"usage: barrier [-g] [-N SIZE] [-k NET]   ranks are threads or (-g) processes, in "
				"simulated nodes of SIZE\n");
			return 2;
		}
		if (c == 'N')
			job.nodes.size[0] = (uint8_t)atoi(optarg);
		else if (c == 'k')
			net = optarg;
		else
			opts.processes = true;
	}
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
		failed += run_scene(&opts, net, &job, &scenes[i]);
	printf("barrier: %d failed\n", failed);
	return failed ? 1 : 0;
}
