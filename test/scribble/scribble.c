/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that overwrites what the others share with it, while all run LL or HT: control page words, counts, row heads,
 * places of tensors, and what lies behind a window. The others must not crash, must not access memory out of bounds
 * (guards, guard pages; AddressSanitizer sees the rest), must not wait past the deadline, and must not return counters
 * and ids out of range as a success. Rows may be wrong. Ranks are processes, or threads (-t). Without -n every field is
 * overwritten once in each of some variants; with it COUNT random cases are run from SEED on. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"
#include "plugin/group/handle.h"
#include "plugin/ht/plan.h"
#include "test/oracle/ht_rig.h"
#include "test/oracle/rig.h"
#include "test/scribble/liar.h"

#define RANKS 3
#define LIAR 2
#define EXPERTS 12
#define LOCAL (EXPERTS / RANKS)
#define TMAX 9
#define TOPK 4
#define HIDDEN 64
#define TIMEOUT_MS 300
#define LL_FIELDS 11 /* of field_list */
#define HT_FIELDS 16
#define MARGIN 3.0 /* seconds; under sanitizers, and with more ranks than cores, even a kernel that only runs is slow */
#define ROUNDS 16

enum variant {
	LL_EXPERT,
	LL_RANK,
	LL_STAGED,
	LL_MASKS,
	LL_VARIANTS,
	HT_FLAT = LL_VARIANTS,
	HT_EXPERT,
	HT_FLAT_STAGED,
	HT_EXPERT_STAGED,
	VARIANTS
};

static const char *const variant_names[VARIANTS] = {
	"LL expert-major", "LL rank-major", "LL staged",      "LL masks",
	"HT flat",	   "HT expert",	    "HT flat staged", "HT expert staged",
};

struct cell {
	enum variant variant;
	int field; /* of field_list */
	uint64_t seed;
	bool fence; /* ranks are processes: nobody else accesses the memory behind windows at the same address */
};

/* On the board: the liar's report. */
struct board {
	char field[40];
	unsigned long written;
	int fields;
	unsigned calls, failures; /* of the other ranks */
};

static bool cell_ht(const struct cell *cell)
{
	return cell->variant >= HT_FLAT;
}

/* ---- every rank ---- */

/* One call: its result is free, its duration and its message are not. 0: success. */
static int timed(struct seat *seat, const char *what, double limit, double start, ncclResult_t rc)
{
	struct board *board = seat_board(seat);
	double took = world_now() - start;

	if (took > limit)
		return seat_fail(seat, "%s took %.1f s, must end within %.1f", what, took, limit);
	if (rc != ncclSuccess && !strstr(anyEpGetLastError(), "rank "))
		return seat_fail(seat, "%s fails without naming a rank: %s", what, anyEpGetLastError());
	__atomic_add_fetch(&board->calls, 1, __ATOMIC_RELAXED);
	if (rc != ncclSuccess)
		__atomic_add_fetch(&board->failures, 1, __ATOMIC_RELAXED);
	return rc != ncclSuccess;
}

static double limit_of(const struct cell *cell)
{
	return (cell->variant == LL_MASKS ? 2 : 1) * TIMEOUT_MS / 1000.0 + MARGIN;
}

/* Only in the liar. */
static int liar_open(struct liar *liar, struct seat *seat, const struct cell *cell, const struct ncclEpGroup *group,
		     const struct field_layout *layout)
{
	struct board *board = seat_board(seat);
	struct field field[FIELDS];
	int n = field_list(group, layout, field);
	uint64_t random = cell->seed;

	*liar = (struct liar){ .group = group, .field = field[cell->field % n], .seed = ll_seed(cell->seed, 1, 2) };
	liar->flip = ll_random(&random) % 3 == 0;
	liar->nap_us = (unsigned)(ll_random(&random) % 3) * 40;
	board->fields = n;
	snprintf(board->field, sizeof(board->field), "%s%s", liar->field.name, liar->flip ? ", flipped" : "");
	return liar_start(liar) ? seat_fail(seat, "cannot start a thread") : 0;
}

static void liar_close(struct liar *liar, struct seat *seat)
{
	struct board *board = seat_board(seat);

	if (!liar->group)
		return;
	liar_stop(liar);
	board->written = atomic_load(&liar->written);
}

/* ---- LL ---- */

static struct rig_cfg ll_cfg(const struct cell *cell)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .mask = cell->variant == LL_MASKS, .caller_mem = true };

	cfg.shape = (struct ll_shape){ .layout = cell->variant == LL_RANK ? LL_RANK_MAJOR : LL_EXPERT_MAJOR,
				       .ranks = RANKS,
				       .experts = EXPERTS,
				       .topk = TOPK,
				       .tmax = TMAX,
				       .hidden = HIDDEN,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = cell->seed, .fill = LL_FILL_RANDOM, .route = LL_ROUTE_DROPPED };
	return cfg;
}

/* What a caller takes for bounds. */
static int ll_sane(struct rig *rig)
{
	const struct rig_handle *h = &rig->handle[0];
	const int32_t *count = (const int32_t *)(const void *)h->buf[RIG_COUNTS].at;
	const int32_t *idx = (const int32_t *)(const void *)h->buf[RIG_OUT_IDX].at;
	bool rank_major = rig->cfg.shape.layout == LL_RANK_MAJOR;
	int zones = rank_major ? RANKS : LOCAL, cap = rank_major ? TMAX : RANKS * TMAX;

	for (int z = 0; z < zones; z++) {
		if (count[z] < 0 || count[z] > cap)
			return seat_fail(rig->seat, "dispatch returns %d rows in zone %d of %d", count[z], z, cap);
		for (int i = 0; rank_major && i < count[z] * TOPK; i++) {
			int32_t id = idx[z * cap * TOPK + i];

			/* A row may be lost between two totals that were read: its ids are as before. */
			if ((id < -1 || id >= LOCAL) && (uint32_t)id != 0x01010101u * LL_POISON_OUT)
				return seat_fail(rig->seat, "dispatch returns expert %d of %d", id, LOCAL);
		}
	}
	return 0;
}

static int ll_round(struct rig *rig, const struct cell *cell)
{
	double limit = limit_of(cell), start;
	bool staged = cell->variant == LL_STAGED;

	if (rig_load(rig, 0) || rig_update(rig, 0))
		return -1;
	start = world_now();
	if (timed(rig->seat, "ncclEpDispatch", limit, start, rig_dispatch(rig, 0, staged)))
		return -1;
	start = world_now();
	if (staged && timed(rig->seat, "ncclEpComplete", limit, start, rig_complete(rig, 0)))
		return -1;
	if (ll_sane(rig))
		return -1;
	start = world_now();
	if (timed(rig->seat, "ncclEpCombine", limit, start, rig_combine(rig, 0, staged)))
		return -1;
	start = world_now();
	if (staged && timed(rig->seat, "ncclEpComplete", limit, start, rig_complete(rig, 0)))
		return -1;
	start = world_now();
	if (cell->variant == LL_MASKS && rig->handle[0].round % 2 &&
	    timed(rig->seat, "ncclEpMaskClean", limit, start, ncclEpMaskClean(rig->group, rig->shim.stream)))
		return -1;
	return 0;
}

static int ll_guards(struct rig *rig)
{
	struct buf_env env = { .seat = rig->seat, .shim = &rig->shim, .comm = rig->comm, .verdict = &rig->verdict };

	for (int id = 0; id < RIG_BUFS; id++)
		if (buf_guards(&env, &rig->handle[0].buf[id], "a tensor"))
			return -1;
	return 0;
}

static int ll_job(struct seat *seat, const void *arg)
{
	const struct cell *cell = arg;
	struct field_layout layout = { .topk = TOPK, .row_bytes = 2 * HIDDEN, .rank_major = cell->variant == LL_RANK };
	struct rig_cfg cfg = ll_cfg(cell);
	struct liar liar = { .group = NULL };
	struct rig rig;

	if (rig_open(&rig, seat, &cfg))
		goto close;
	rig.parted = true;
	if (cell->fence)
		field_fence(rig.group, true);
	if (seat_barrier(seat) || (seat_rank(seat) == LIAR && liar_open(&liar, seat, cell, rig.group, &layout)) ||
	    seat_barrier(seat))
		goto stop;
	for (int i = 0; i < (cfg.mask ? ROUNDS / 3 : ROUNDS) && !ll_round(&rig, cell); i++)
		;
stop:
	liar_close(&liar, seat);
	if (cell->fence)
		field_fence(rig.group, false);
	if (!seat_failed(seat) && !seat_barrier(seat))
		ll_guards(&rig);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ---- HT ---- */

static struct ht_cfg ht_cfg(const struct cell *cell)
{
	bool staged = cell->variant >= HT_FLAT_STAGED;
	struct ht_cfg cfg = { .handles = 1,
			      .counters = 32,
			      .spare = LL_ALL,
			      .backward = true,
			      .tell_topk = true, /* expert-major in eager mode needs it */
			      .where = staged ? HT_PLAIN : HT_WINDOW,
			      .zero_copy = staged ? NCCL_EP_ZERO_COPY_OFF : 0 };

	cfg.shape = (struct ht_shape){ .base = { .ranks = RANKS,
						 .experts = EXPERTS,
						 .topk = TOPK,
						 .tmax = TMAX,
						 .hidden = HIDDEN,
						 .token = NUM_BF16,
						 .combine = NUM_BF16 } };
	cfg.data = (struct ll_data){ .seed = cell->seed, .fill = LL_FILL_RANDOM, .route = LL_ROUTE_DROPPED };
	cfg.shape.expert_major = cell->variant == HT_EXPERT || cell->variant == HT_EXPERT_STAGED;
	cfg.shape.capacity = cell->seed % 4 ? RANKS * TMAX * TOPK : 0;
	return cfg;
}

static int ht_sane(struct ht_rig *rig)
{
	const struct ht_handle *h = &rig->handle[0];
	const int64_t *idx = (const int64_t *)(const void *)h->buf[HT_OUT_IDX].at;
	size_t rows = rig->cfg.shape.expert_major ? 0 : ht_rows(rig, 0, HT_OUT_IDX);

	for (size_t i = 0; i < rows * TOPK; i++)
		if (idx[i] < -1 || idx[i] >= LOCAL)
			return seat_fail(rig->seat, "dispatch returns expert %lld of %d", (long long)idx[i], LOCAL);
	return 0;
}

static int ht_turn(struct ht_rig *rig, const struct cell *cell)
{
	static const char *const names[HT_OPS] = { "ncclEpUpdateHandle", "ncclEpDispatch", "ncclEpCombine",
						   "ncclEpDispatch, backward", "ncclEpCombine, backward" };
	double start;

	for (int op = HT_UPDATE; op < HT_OPS; op++) {
		if (op == HT_UPDATE ? ht_round(rig, 0) : ht_load(rig, 0, (enum ht_op)op))
			return -1;
		start = world_now();
		if (timed(rig->seat, names[op], limit_of(cell), start, ht_call(rig, 0, (enum ht_op)op, false)) ||
		    (op == HT_DISPATCH && ht_sane(rig)))
			return -1;
	}
	return 0;
}

/* Tensors that other processes may map are theirs to overwrite; those of the variants that stage are not. */
static int ht_guards(struct ht_rig *rig, const struct cell *cell)
{
	const struct buf_env env = ht_env(rig);

	for (int id = 0; cell->variant >= HT_FLAT_STAGED && id < HT_BUFS; id++)
		if (buf_guards(&env, &rig->handle[0].buf[id], ht_buf_names[id]))
			return -1;
	return 0;
}

static int ht_job(struct seat *seat, const void *arg)
{
	const struct cell *cell = arg;
	struct ht_cfg cfg = ht_cfg(cell);
	struct field_layout layout = { .topk = TOPK, .row_bytes = 2 * HIDDEN, .expert_major = cfg.shape.expert_major };
	struct liar liar = { .group = NULL };
	struct ht_rig rig = { .seat = seat };
	struct ep_ht_window window;

	if (ht_open(&rig, seat, &cfg) || seat_barrier(seat))
		goto close;
	rig.parted = true;
	if (seat_rank(seat) == LIAR) {
		if (ep_ht_window("test", rig.group, &rig.handle[0].handle->args, &window))
			goto close;
		layout.stage_at = window.stage;
		if (liar_open(&liar, seat, cell, rig.group, &layout))
			goto close;
	}
	if (cell->fence)
		field_fence(rig.group, true);
	if (seat_barrier(seat))
		goto stop;
	for (int i = 0; i < ROUNDS && !ht_turn(&rig, cell); i++)
		;
stop:
	liar_close(&liar, seat);
	if (cell->fence)
		field_fence(rig.group, false);
	if (!seat_failed(seat) && !seat_barrier(seat))
		ht_guards(&rig, cell);
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

/* ---- one lie at a time, whose effect is known ---- */

enum exact {
	EXACT_TOTAL,
	EXACT_COUNT,
	EXACT_TOKEN,
	EXACT_ENTRIES,
	EXACT_EXPERT,
	EXACT_ROW,
	EXACT_K,
	EXACT_RANK_TOTAL,
	EXACT_RANK_TOKEN,
	EXACT_RANK_K,
	EXACT_FAILED,
	EXACT_HT,
	EXACTS
};

static const struct {
	const char *name;
	uint64_t at; /* words from the start of the liar's area (head of the area, then the first row's head) */
	bool row;
	uint32_t value;
} exacts[EXACTS] = {
	[EXACT_TOTAL] = { "LL: a total of more rows than a rank has", 0, false, TMAX + 1 },
	[EXACT_COUNT] = { "LL: a count of more rows than a rank has", 4, false, TMAX + 1 },
	[EXACT_TOKEN] = { "LL: a row of a token that is none", 0, true, TMAX },
	[EXACT_ENTRIES] = { "LL: a row for more experts than a rank has", 1, true, LOCAL + 1 },
	[EXACT_EXPERT] = { "LL: a row for an expert that is none", 4, true, LOCAL },
	[EXACT_ROW] = { "LL: a row at a position outside the tensor", 5, true, 0x7fffffff },
	[EXACT_K] = { "LL: a row of a k that is none", 6, true, TOPK },
	[EXACT_RANK_TOTAL] = { "LL rank-major: a total of more rows than a rank has", 0, false, UINT32_MAX },
	[EXACT_RANK_TOKEN] = { "LL rank-major: a row of a token that is none", 0, true, UINT32_MAX },
	[EXACT_RANK_K] = { "LL rank-major: a row of a k that is none", 1, true, TOPK },
	[EXACT_FAILED] = { "LL: a failed word that names no rank", 0, false, 0 },
	[EXACT_HT] = { "HT: a count of more rows than a rank has", 0, false, TMAX + 1 },
};

struct exact_job {
	struct cell cell;
	enum exact exact;
};

static void exact_write(const struct ncclEpGroup *group, const struct exact_job *job, int victim)
{
	const struct ep_window *win = group->payload.win[group->payload.count - 1];
	struct ep_ll_shape s = { .nranks = RANKS, .per_rank = LOCAL, .tmax = TMAX, .topk = TOPK, .fan = TOPK };
	uint64_t head = ep_ll_row_head_bytes(&s, job->cell.variant == LL_RANK);
	uint64_t area = ep_ll_area(&s, ep_ll_align(head + ep_ll_pad(2 * HIDDEN))), at = LIAR * area;

	if (job->exact == EXACT_FAILED) {
		*(uint64_t *)((char *)group->control.peer[victim] + ep_ll_failed_at(RANKS)) =
			EP_FAILED_WORD(4711u, 4711u);
		return;
	}
	at += (exacts[job->exact].row ? ep_ll_source_head(&s) : 0) + 4 * exacts[job->exact].at;
	*(uint32_t *)((char *)win->peer[victim] + at) = exacts[job->exact].value;
}

static int exact_judge(struct seat *seat, const struct exact_job *job, ncclResult_t rc)
{
	ncclResult_t want = job->exact == EXACT_FAILED ? ncclRemoteError : ncclInternalError;
	const char *text = anyEpGetLastError();

	if (rc != want && rc != ncclRemoteError) /* the other one may have found it first */
		return seat_fail(seat, "it returns %d: %s", (int)rc, rc == ncclSuccess ? "" : text);
	if (rc == ncclInternalError && !strstr(text, "from rank 2"))
		return seat_fail(seat, "the message does not name rank 2: %s", text);
	if (strstr(text, "4711"))
		return seat_fail(seat, "the message names a rank that is none: %s", text);
	return 0;
}

/* All send, then the liar overwrites what it sent, then all receive: in the first buffer, which a group takes first. */
static int exact_job(struct seat *seat, const void *arg)
{
	const struct exact_job *job = arg;
	struct rig_cfg cfg = ll_cfg(&job->cell);
	struct rig rig;

	cfg.data.fill = LL_FILL_FULL;
	cfg.data.route = LL_ROUTE_UNIFORM;
	if (rig_open(&rig, seat, &cfg))
		goto close;
	rig.parted = true;
	if (rig_update(&rig, 0) || rig_expect(&rig, "ncclEpDispatch", rig_dispatch(&rig, 0, true)) ||
	    seat_barrier(seat))
		goto close;
	for (int r = 0; seat_rank(seat) == LIAR && r < RANKS; r++)
		if (r != LIAR)
			exact_write(rig.group, job, r);
	if (seat_barrier(seat))
		goto close;
	if (seat_rank(seat) != LIAR)
		exact_judge(seat, job, rig_complete(&rig, 0));
	if (!seat_failed(seat) && !seat_barrier(seat))
		ll_guards(&rig);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* The liar makes no call. It answers the others' counts with one of its own that is too large. */
static int exact_ht_lie(struct seat *seat, const struct ncclEpGroup *group)
{
	const struct ep_ht_line *from = (const void *)((char *)group->control.mine.ptr + ep_ht_line_at(0));
	double end = world_now() + 20;

	while (__atomic_load_n(&from->counts, __ATOMIC_ACQUIRE) == 0)
		if (world_now() > end)
			return seat_fail(seat, "rank 0 did not send its counts");
	for (int r = 0; r < RANKS; r++) {
		char *page = group->control.peer[r];
		struct ep_ht_line *line = (void *)(page + ep_ht_line_at(LIAR));

		if (r == LIAR)
			continue;
		*(uint32_t *)(page + ep_ht_counts_at(RANKS, EXPERTS, LIAR)) = exacts[EXACT_HT].value;
		line->key = from->key;
		__atomic_store_n(&line->counts, 1, __ATOMIC_RELEASE);
	}
	return 0;
}

static int exact_ht_job(struct seat *seat, const void *arg)
{
	const struct exact_job *job = arg;
	struct ht_cfg cfg = ht_cfg(&job->cell);
	struct ht_rig rig = { .seat = seat };

	if (ht_open(&rig, seat, &cfg))
		goto close;
	rig.parted = true;
	if (ht_round(&rig, 0) || seat_barrier(seat))
		goto close;
	if (seat_rank(seat) == LIAR)
		exact_ht_lie(seat, rig.group);
	else
		exact_judge(seat, job, ht_call(&rig, 0, HT_UPDATE, false));
	if (!seat_failed(seat))
		seat_barrier(seat);
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

/* ---- runs ---- */

struct run {
	bool threads;
	int passed, failed;
};

/* Each in a world of its own: groups that failed keep their memory until their process ends. */
static void run_job(struct run *run, const char *name, world_fn fn, const void *arg, size_t size)
{
	struct world_opts opts = { .seats = RANKS, .processes = !run->threads, .board = sizeof(struct board) };
	struct world *world;
	struct board board;
	double start = world_now();
	int rc;

	printf("%s ... ", name);
	fflush(stdout);
	if (world_open(&opts, &world)) {
		run->failed++;
		return;
	}
	rc = world_run(world, RANKS, fn, arg, size, 60);
	memcpy(&board, world_board(world), sizeof(board));
	printf("%s: %u calls, %u failed, %lu words written: %s (%.1f s)%s%s\n", rc ? "FAILED" : "ok", board.calls,
	       board.failures, board.written, board.field, world_now() - start, rc ? ": " : "",
	       rc ? world_text(world) : "");
	fflush(stdout);
	if (world_close(world) && !rc) {
		printf("FAILED: a rank ended with an error\n");
		rc = -1;
	}
	run->passed += !rc;
	run->failed += rc != 0;
}

static void run_cell(struct run *run, struct cell *cell)
{
	char name[80];

	cell->fence = !run->threads;
	snprintf(name, sizeof(name), "%s, field %d, seed %llu", variant_names[cell->variant], cell->field,
		 (unsigned long long)cell->seed);
	run_job(run, name, cell_ht(cell) ? ht_job : ll_job, cell, sizeof(*cell));
}

static void run_exact(struct run *run)
{
	for (int i = 0; i < EXACTS; i++) {
		struct exact_job job = { .exact = (enum exact)i, .cell = { .seed = 1 } };

		job.cell.variant = i == EXACT_HT ? HT_FLAT_STAGED : i >= EXACT_RANK_TOTAL ? LL_RANK : LL_EXPERT;
		if (i == EXACT_HT && run->threads)
			continue; /* ranks of one process do not use the control page */
		run_job(run, exacts[i].name, i == EXACT_HT ? exact_ht_job : exact_job, &job, sizeof(job));
	}
}

/* Every field twice, in variants that follow each other. */
static void run_cover(struct run *run)
{
	for (int ht = 0; ht < 2; ht++)
		for (int i = 0; i < 2 * (ht ? HT_FIELDS : LL_FIELDS); i++) {
			struct cell cell = { .field = i / 2, .seed = (uint64_t)(100 * ht + i) };

			cell.variant = (enum variant)((ht ? HT_FLAT : 0) + (i + i / 2) % 4);
			run_cell(run, &cell);
		}
}

int main(int argc, char **argv)
{
	struct run run = { 0 };
	uint64_t seed = 1;
	long count = 0;
	char timeout[16];
	int c;

	while ((c = getopt(argc, argv, "tn:s:")) != -1) {
		if (c == '?') {
			fprintf(stderr, "usage: scribble [-t] [-s SEED] [-n COUNT]\n");
			return 2;
		}
		run.threads |= c == 't';
		seed = c == 's' ? strtoull(optarg, NULL, 0) : seed;
		count = c == 'n' ? atol(optarg) : count;
	}
	snprintf(timeout, sizeof(timeout), "%d", TIMEOUT_MS);
	setenv("NCCL_EP_TIMEOUT_MS", timeout, 1);
	if (!count) {
		run_exact(&run);
		run_cover(&run);
	}
	for (long i = 0; i < count; i++) {
		uint64_t random = seed + (uint64_t)i;
		struct cell cell = { .seed = random };

		cell.variant = (enum variant)(ll_random(&random) % VARIANTS);
		cell.field = (int)(ll_random(&random) % 64);
		run_cell(&run, &cell);
	}
	printf("scribble: %d passed, %d failed\n", run.passed, run.failed);
	return run.failed ? 1 : 0;
}
