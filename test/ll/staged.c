/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged operations in orders that would break buffers chosen by parity, the limits of staging, and a first send half
 * that must return before any peer has called. Against the oracle, with threads or processes (-g), on the CPU and on
 * CUDA, there also captured into a graph and replayed (-G COUNT). Exit status 0, 1, or 77 if -G is given on a device
 * without graphs.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define JOB_SECONDS 300.0

struct job {
	struct rig_cfg cfg;
	char script[96];
	int rounds; /* rounds of the script, or replays of its graph */
};

/* Scripts as in rig.h: each word is an operation and a handle, capital letters are whole operations. */
static const char *const orders[] = {
	"dA DB CB xA",			 /* a whole dispatch and combine while A is staged */
	"dA dB xB dB xA xB",		 /* the younger one is completed and staged again before the older */
	"dA xA cA DB xA CB",		 /* a dispatch inside a staged combine */
	"dA xA dB cA xB xA cB xB",	 /* a combine and a dispatch staged side by side */
	"dA xA dB xB cA cB xB xA",	 /* two combines, completed in the other order */
	"DA CA dA DB CB DB CB DB CB xA", /* one stays staged during an odd number of others */
	"dA DB xA CB CA DB",		 /* five operations: the next round has the other parity */
	"dA xA CA",
	"dA dB xA xB",
};

static struct rig_cfg cfg_make(enum ll_layout layout, uint64_t seed, int nodes)
{
	struct rig_cfg cfg = { .handles = 2, .spare = LL_ALL, .per_node = far_split(RANKS, nodes) };

	cfg.shape = (struct ll_shape){ .layout = layout,
				       .ranks = RANKS,
				       .experts = 8,
				       .topk = 3,
				       .tmax = 9,
				       .hidden = 512,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = seed, .fill = LL_FILL_RANDOM, .route = LL_ROUTE_DROPPED };
	return cfg;
}

static int order_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig rig;

	if (!rig_open(&rig, seat, &job->cfg))
		for (int round = 0; round < job->rounds && !rig_script(&rig, job->script); round++)
			;
	if (!seat_failed(seat))
		rig_check_crossed(&rig);
	rig_close(&rig);
	return rig_tell(&rig);
}

/* The last rank is late: the others' first send halves must return before it calls anything. */
static int held_back_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	int *ready = seat_board(seat), last = seat_ranks(seat) - 1;
	struct rig rig;
	double start, took;

	if (rig_open(&rig, seat, &job->cfg) || rig_update(&rig, 0) || seat_barrier(seat))
		goto close;
	if (seat_rank(seat) == last) {
		double end = world_now() + 20;

		while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) < last && world_now() < end)
			usleep(1000);
		if (__atomic_load_n(ready, __ATOMIC_ACQUIRE) < last)
			seat_fail(seat, "first send halves wait for a rank that has not called yet");
	}
	start = world_now();
	/* As the script's first word, but timed. */
	if (rig_expect(&rig, "ncclEpDispatch", rig_dispatch(&rig, 0, true)) || rig_sync(&rig))
		goto close;
	took = world_now() - start;
	rig.handle[0].staged = 'd';
	rig.handle[0].loaded = false;
	__atomic_add_fetch(ready, 1, __ATOMIC_RELEASE);
	if (seat_rank(seat) != last && took > 10)
		seat_fail(seat, "the first send half took %.1f s", took);
	if (!seat_failed(seat) && !rig_script(&rig, "xA CA"))
		rig_script(&rig, "dA dB xA CA xB CB");
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

static void want(struct rig *rig, const char *what, ncclResult_t want, ncclResult_t got)
{
	ll_wrong(&rig->verdict, got != want, "%s returned %s, must be %s (%s)", what, ncclGetErrorString(got),
		 ncclGetErrorString(want), anyEpGetLastError());
}

/* Invalid calls around staging; none affects what is staged. */
static int limits_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig rig;

	if (rig_open(&rig, seat, &job->cfg))
		goto close;
	want(&rig, "Complete with nothing staged", ncclSuccess, rig_complete(&rig, 0));
	for (int i = 0; i < 3; i++)
		if (rig_update(&rig, i))
			goto close;
	want(&rig, "the first staged dispatch", ncclSuccess, rig_dispatch(&rig, 0, true));
	want(&rig, "a second one on the same handle", ncclInvalidUsage, rig_dispatch(&rig, 0, true));
	want(&rig, "the second staged dispatch", ncclSuccess, rig_dispatch(&rig, 1, true));
	want(&rig, "the third staged dispatch", ncclInvalidUsage, rig_dispatch(&rig, 2, true));
	want(&rig, "a whole dispatch beside two staged ones", ncclInvalidUsage, rig_dispatch(&rig, 2, false));
	want(&rig, "HandleDestroy of a staged handle", ncclInvalidUsage, ncclEpHandleDestroy(rig.handle[0].handle));
	for (int i = 0; i < 2; i++) {
		rig.handle[i].staged = 'd';
		rig.handle[i].loaded = false;
	}
	if (!rig_script(&rig, "xA xB CA CB") && !rig_script(&rig, "DC CC"))
		rig_script(&rig, "dA dC xC xA CA CC");
	want(&rig, "Complete after all is done", ncclSuccess, rig_complete(&rig, 0));
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ---- captured ---- */

/* In the graph combine's input is a copy of dispatch's output, without the host. */
static int graph_word(struct rig *rig, const char *word)
{
	int handle = word[1] - 'A';
	struct rig_handle *h = &rig->handle[handle];
	bool half = word[0] == 'd' || word[0] == 'c';

	if (word[0] == 'x')
		return rig_expect(rig, "ncclEpComplete", rig_complete(rig, handle));
	if (word[0] == 'D' || word[0] == 'd')
		return rig_expect(rig, "ncclEpDispatch", rig_dispatch(rig, handle, half));
	if (rig->shim.ops->copy(&rig->shim, h->buf[RIG_ANSWERS].at, h->buf[RIG_OUT].at, h->buf[RIG_OUT].size))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	return rig_expect(rig, "ncclEpCombine", rig_combine(rig, handle, half));
}

static int graph_capture(struct rig *rig, const char *script, void **graph)
{
	if (rig->shim.ops->capture_begin(&rig->shim))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	for (; *script; script++)
		if (*script != ' ') {
			if (graph_word(rig, script))
				return -1;
			script++;
		}
	return rig->shim.ops->capture_end(&rig->shim, graph) ? seat_fail(rig->seat, "%s", rig->shim.text) : 0;
}

/* New data in the same buffers, one launch, everything checked. */
static int graph_replay(struct rig *rig, const struct job *job, void *graph)
{
	for (int i = 0; i < rig->cfg.handles; i++)
		if (rig_load(rig, i))
			return -1;
	if (rig_sync(rig))
		return -1;
	if (rig->shim.ops->graph_launch(&rig->shim, graph))
		return seat_fail(rig->seat, "%s", rig->shim.text);
	for (int i = 0; i < rig->cfg.handles; i++) {
		char dispatch[] = { 'x', (char)('A' + i), 0 }, whole[] = { 'D', (char)('A' + i), 0 };
		char combine[] = { 'C', (char)('A' + i), 0 }, half[] = { 'c', (char)('A' + i), 0 };
		bool rows = strstr(job->script, dispatch) || strstr(job->script, whole);
		bool sums = strstr(job->script, combine) || strstr(job->script, half);

		if (rig_sync(rig) || (rows && rig_check_rows(rig, i)) || (sums && rig_check_sums(rig, i)))
			return -1;
	}
	return 0;
}

static int graph_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	void *graph = NULL;
	struct rig rig;

	if (rig_open(&rig, seat, &job->cfg))
		goto close;
	if (!shim_is_gpu(&rig.shim)) {
		*(int *)seat_board(seat) = 77;
		goto close;
	}
	for (int i = 0; i < job->cfg.handles; i++)
		if (rig_update(&rig, i))
			goto close;
	if (rig_sync(&rig) || graph_capture(&rig, job->script, &graph))
		goto close;
	for (int i = 0; i < job->rounds && !graph_replay(&rig, job, graph); i++)
		;
close:
	if (rig.shim.ops)
		rig.shim.ops->graph_destroy(&rig.shim, graph);
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ---- */

struct run {
	struct world *world;
	int rounds, nodes;
	bool graph;
	uint64_t seed;
	int passed, failed;
};

static void run_job(struct run *run, const char *name, world_fn fn, const struct job *job)
{
	double start = world_now();
	int rc;

	memset(world_board(run->world), 0, 4096);
	rc = world_run(run->world, job->cfg.shape.ranks, fn, job, sizeof(*job), JOB_SECONDS);
	printf("%s %s %s%s%s (%.2f s)\n", rc ? "FAILED" : "ok    ",
	       job->cfg.shape.layout == LL_EXPERT_MAJOR ? "em" : "rm", name, rc ? ": " : "",
	       rc ? world_text(run->world) : "", world_now() - start);
	fflush(stdout);
	run->passed += !rc;
	run->failed += rc != 0;
}

static void run_layout(struct run *run, enum ll_layout layout)
{
	struct job job = { .cfg = cfg_make(layout, run->seed, run->nodes), .rounds = run->rounds };

	if (run->graph) {
		job.cfg.data.fixed_t = job.cfg.shape.tmax; /* T is in the captured arguments */
		job.cfg.data.numeric = job.cfg.data.echo = true;
	}
	for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		snprintf(job.script, sizeof(job.script), "%s", orders[i]);
		run_job(run, orders[i], run->graph ? graph_job : order_job, &job);
		job.cfg.own_stream = !job.cfg.own_stream;
		job.cfg.mask = i % 3 == 1;
	}
	if (run->graph)
		return;
	job.cfg = cfg_make(layout, run->seed, run->nodes);
	run_job(run, "a first send half before a peer has called", held_back_job, &job);
	job.cfg.handles = 3;
	run_job(run, "limits", limits_job, &job);
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ll_staged [-t | -g] [-n ROUNDS] [-G REPLAYS] [-s SEED] [-o SEED] [-N NODES [-k NET]]\n"
		     "  -t  ranks are threads (default)   -g  ranks are processes\n"
		     "  -n  rounds of every order (5)     -G  capture into a graph, replay this many times\n"
		     "  -o  under the emulator: GPU threads in random order\n"
		     "  -N  simulated nodes (1)           -k  transport between them: loop, unordered, faulty or as "
		     "NCCL_EP_NET\n");
	return status;
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS, .board = 4096 };
	struct run run = { .rounds = 5, .nodes = 1, .seed = 7 };
	const char *net = "loop";
	int c, rc;

	while ((c = getopt(argc, argv, "tgn:G:s:o:N:k:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 't' || c == 'g')
			opts.processes = c == 'g';
		else if (c == 'n' || c == 'G')
			run.rounds = atoi(optarg), run.graph |= c == 'G';
		else if (c == 's')
			run.seed = strtoull(optarg, NULL, 0);
		else if (c == 'N')
			run.nodes = atoi(optarg);
		else if (c == 'k')
			net = optarg;
		else if (c == 'o' && world_random_order(strtoull(optarg, NULL, 0)))
			return 1;
		else if (c != 'o')
			return usage(stderr, 2);
	}
	if (optind != argc || run.rounds < 1 || !far_splits(RANKS, run.nodes))
		return usage(stderr, 2);
	far_set(NULL, far_split(RANKS, run.nodes), net, run.seed);
	if (world_open(&opts, &run.world))
		return 1;
	for (int layout = 0; layout < 2; layout++)
		run_layout(&run, (enum ll_layout)layout);
	rc = *(int *)world_board(run.world);
	if (world_close(run.world))
		run.failed++;
	if (rc == 77 && !run.failed) {
		printf("ll_staged: skipped: graphs need a GPU\n");
		return 77;
	}
	printf("ll_staged: %d passed, %d failed; %s\n", run.passed, run.failed,
	       opts.processes ? "processes" : "threads");
	return run.failed ? 1 : 0;
}
