/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every combination LL has, one cell at a time, against the oracle. Cells are lines of "factor=value ..." from
 * tools/cover.py (-f), one of them by hand (-r), or random ones (-n, -s). Ranks are threads, or processes with -g; they
 * and their communicators live from cell to cell, each cell has its own group. Exit status 0, 1, or 77 when there is
 * nothing to run on.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/cells.h"
#include "test/oracle/refuse.h"
#include "test/oracle/rig.h"

#define RANKS_MAX 8
#define CELL_SECONDS 300.0
#define TEXT_MAX 768

/* clang-format off */
enum {
	F_LAYOUT, F_DTYPE, F_QUANT, F_QTOK, F_QSCALE, F_STAGED, F_IDX, F_IDKIND, F_WINDOWS, F_ZERO_COPY, F_RANKS,
	F_HIDDEN, F_TOPK, F_LOCAL, F_TMAX, F_FILL, F_ROUTE, F_HANDLES, F_STREAM, F_COUNTS, F_CREATE, F_MEM, F_MASK,
	F_SMS, F_SKEW, F_ROUNDS, FACTORS
};
/* clang-format on */

/* words: the value is the place of the word. numbers: the value itself, and any other number is taken too. */
static const struct factor {
	const char *name, *words, *numbers;
	int absent;
} factors[FACTORS] = {
	[F_LAYOUT] = { "layout", "em rm", NULL, 0 },
	[F_DTYPE] = { "dtype", "bf16 fp16 fp32", NULL, 0 }, /* of combine, and of dispatch without quantisation */
	[F_QUANT] = { "quant", "none fwd ds ds_round", NULL, 0 },
	[F_QTOK] = { "qtok", "bf16 fp16 fp32 e4m3 e5m2 fp4x2 -", NULL, 6 },
	[F_QSCALE] = { "qscale", "bf16 fp16 fp32 e4m3 e5m2 fp4x2 uint8 -", NULL, 7 },
	[F_STAGED] = { "staged", NULL, "0 1 2", 0 }, /* 2: one operation is, the next is not */
	[F_IDX] = { "idx", "i32 i64", NULL, 0 },
	[F_IDKIND] = { "idkind", "auto local global", NULL, 0 },
	[F_WINDOWS] = { "windows", NULL, "0 1", 0 },
	[F_ZERO_COPY] = { "zero_copy", "auto off on", NULL, 0 },
	[F_RANKS] = { "ranks", NULL, "1 2 3 4 8", 2 },
	[F_HIDDEN] = { "hidden", NULL, "1 7 64 129 512 2048 7168", 512 },
	[F_TOPK] = { "topk", NULL, "1 2 3 8 0", 2 }, /* 0: all experts */
	[F_LOCAL] = { "local", NULL, "1 2 5", 2 },   /* experts of a rank */
	[F_TMAX] = { "tmax", NULL, "1 5 16", 5 },
	[F_FILL] = { "fill", "full zero random none", NULL, 0 },
	[F_ROUTE] = { "route", "uniform dropped twice bad one one_rank", NULL, 0 },
	[F_HANDLES] = { "handles", "one seq nest", NULL, 0 },
	[F_STREAM] = { "stream", NULL, "0 1", 0 },
	[F_COUNTS] = { "counts", NULL, "0 1", 1 },
	[F_CREATE] = { "create", NULL, "0 1", 0 },
	[F_MEM] = { "mem", NULL, "0 1", 0 },
	[F_MASK] = { "mask", NULL, "0 1", 0 },
	[F_SMS] = { "sms", NULL, "0 1 3", 0 },
	[F_SKEW] = { "skew", NULL, "0 1", 0 },
	[F_ROUNDS] = { "rounds", NULL, "3 4", 3 },
};

struct job {
	struct rig_cfg cfg;
	const char *script; /* a constant: alike in forked processes */
	int rounds;
	int filler;
};

struct board {
	uint64_t wrong[WORLD_SEATS];
};

struct run {
	struct world *world;
	struct world_opts opts;
	uint64_t seed;
	int filler; /* multiprocessors that a foreign kernel holds meanwhile */
	bool verbose;
	int passed, failed, skipped;
};

/* ---- from text to numbers ---- */

/* The place of a word in a list, or -1; the n-th word of a list. */
static int word_find(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (int i = 0; *list; i++) {
		size_t end = strcspn(list, " ");

		if (end == n && !memcmp(list, word, n))
			return i;
		list += end + strspn(list + end, " ");
	}
	return -1;
}

static int words_count(const char *list)
{
	int count = 0;

	for (; *list; list += strcspn(list, " "), list += strspn(list, " "))
		count++;
	return count;
}

static const char *word_at(const char *list, int index, int *length)
{
	for (; index > 0; index--) {
		list += strcspn(list, " ");
		list += strspn(list, " ");
	}
	*length = (int)strcspn(list, " ");
	return list;
}

/* NULL, or what is wrong with the cell. */
static const char *cell_values(const struct cell *cell, int *v, uint64_t *seed)
{
	static char text[128];
	long number = 0;

	for (int f = 0; f < FACTORS; f++) {
		const char *word = cell_str(cell, factors[f].name);

		v[f] = factors[f].absent;
		snprintf(text, sizeof(text), "%s: no such value", factors[f].name);
		if (!word)
			continue;
		if (factors[f].words && (v[f] = word_find(factors[f].words, word)) < 0)
			return text;
		if (factors[f].numbers && (cell_int(cell, factors[f].name, &number) || number < 0 || number > 1 << 20))
			return text;
		if (factors[f].numbers)
			v[f] = (int)number;
	}
	for (int i = 0; i < cell->count; i++) {
		bool known = !strcmp(cell->name[i], "seed");

		for (int f = 0; f < FACTORS && !known; f++)
			known = !strcmp(cell->name[i], factors[f].name);
		snprintf(text, sizeof(text), "%.100s: no such factor", cell->name[i]);
		if (!known)
			return text;
	}
	if (!cell_int(cell, "seed", &number))
		*seed = (uint64_t)number;
	return NULL;
}

/* The contract's rules: NULL, or why there is no such cell. tools/cover.py gets the same ones in ll_matrix.args. */
static const char *cell_illegal(const int *v)
{
	bool rank_major = v[F_LAYOUT] == LL_RANK_MAJOR, fwd = v[F_QUANT] == LL_QUANT_FWD,
	     ds = v[F_QUANT] >= LL_QUANT_DS;
	int row = fwd && v[F_QTOK] < 6 ? v[F_HIDDEN] * (int)num_info[v[F_QTOK]].size : 0;

	if (fwd != (v[F_QTOK] < 6) || fwd != (v[F_QSCALE] < 7))
		return "qtok and qscale belong to quant=fwd";
	if (ds && v[F_HIDDEN] % 512)
		return "quant=ds needs a multiple of 512";
	if (row % (v[F_QTOK] == NUM_E2M1X2 ? 32 : 16))
		return "quant=fwd needs rows of 16 bytes";
	if (!rank_major && (v[F_IDKIND] || !v[F_COUNTS]))
		return "idkind and counts=0 belong to rank-major";
	if (v[F_ZERO_COPY] == 2 && (!rank_major || !v[F_WINDOWS] || ds))
		return "zero_copy=on needs rank-major, windows, and no quantising";
	if (v[F_RANKS] < 1 || v[F_RANKS] > RANKS_MAX || v[F_LOCAL] < 1 || v[F_TMAX] < 1 || v[F_HIDDEN] < 1)
		return "ranks, local, tmax and hidden start at 1";
	if (v[F_TOPK] > v[F_LOCAL] * v[F_RANKS])
		return "more choices than experts";
	if (v[F_SKEW] && (v[F_WINDOWS] || fwd))
		return "skew is for plain tensors";
	if (v[F_MEM] && v[F_CREATE])
		return "ncclEpCreateHandle takes no memory";
	return NULL;
}

static const char *script_of(const int *v)
{
	/* By handles, then by staged. */
	static const char *const scripts[3][3] = {
		{ "DA CA", "dA xA cA xA", "dA xA CA" },
		{ "DA CA DB CB", "dA xA cA xA dB xB cB xB", "DA cA xA dB xB CB" },
		{ "DA DB CA CB", "dA dB xA xB cA cB xA xB", "dA DB xA cB CA xB" },
	};

	return scripts[v[F_HANDLES]][v[F_STAGED] > 2 ? 2 : v[F_STAGED]];
}

static void job_make(const int *v, uint64_t seed, struct job *job)
{
	struct rig_cfg *cfg = &job->cfg;
	size_t scale = v[F_QSCALE] < NUM_TYPES ? num_info[v[F_QSCALE]].size : 1;

	*job = (struct job){ .script = script_of(v), .rounds = v[F_ROUNDS] };
	cfg->shape = (struct ll_shape){
		.layout = (enum ll_layout)v[F_LAYOUT],
		.quant = (enum ll_quant)v[F_QUANT],
		.ranks = v[F_RANKS],
		.experts = v[F_LOCAL] * v[F_RANKS],
		.topk = v[F_TOPK] ? v[F_TOPK] : v[F_LOCAL] * v[F_RANKS],
		.tmax = v[F_TMAX],
		.hidden = (size_t)v[F_HIDDEN],
		.combine = (enum num_type)v[F_DTYPE],
		.token = (enum num_type)v[F_DTYPE],
		.global_ids = v[F_IDKIND] == 2,
	};
	if (v[F_QUANT] == LL_QUANT_FWD) {
		cfg->shape.token = (enum num_type)v[F_QTOK];
		cfg->shape.scale = (enum num_type)v[F_QSCALE];
		cfg->shape.scale_width = (1 + seed % 4) * 16 / scale; /* 16 to 64 bytes */
	} else if (v[F_QUANT] >= LL_QUANT_DS) {
		cfg->shape.token = NUM_BF16;
	}
	cfg->data =
		(struct ll_data){ .seed = seed, .fill = (enum ll_fill)v[F_FILL], .route = (enum ll_route)v[F_ROUTE] };
	cfg->handles = v[F_HANDLES] ? 2 : 1;
	cfg->windows = v[F_WINDOWS];
	cfg->skew = v[F_SKEW];
	cfg->own_stream = v[F_STREAM];
	cfg->no_counts = !v[F_COUNTS];
	cfg->create = v[F_CREATE];
	cfg->caller_mem = v[F_MEM];
	cfg->mask = v[F_MASK];
	cfg->id_kind = v[F_IDKIND];
	cfg->zero_copy = v[F_ZERO_COPY];
	cfg->sms = v[F_SMS];
	cfg->spare = LL_ALL;
	cfg->idx64 = v[F_IDX];
}

/* ---- running ---- */

static int cell_rounds(struct rig *rig, const struct job *job)
{
	for (int round = 0; round < job->rounds; round++)
		if (rig_script(rig, job->script))
			return -1;
	return 0;
}

/* Freeing memory waits for the filler with a lock that every launch needs: nobody opens or closes while it runs. */
static int cell_play(struct rig *rig, const struct job *job)
{
	int rc;

	if (!job->filler || !shim_is_gpu(&rig->shim))
		return cell_rounds(rig, job);
	if (seat_barrier(rig->seat))
		return -1;
	if (seat_rank(rig->seat) == 0 && rig->shim.ops->filler_start(&rig->shim, job->filler))
		return seat_fail(rig->seat, "filler: %s", rig->shim.text);
	rc = cell_rounds(rig, job);
	return seat_barrier(rig->seat) ? -1 : rc;
}

static int cell_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct board *board = seat_board(seat);
	struct rig rig;

	board->wrong[seat_rank(seat)] = 0;
	if (!rig_open(&rig, seat, &job->cfg))
		cell_play(&rig, job);
	if (rig.shim.ops && job->filler && shim_is_gpu(&rig.shim))
		rig.shim.ops->filler_stop(&rig.shim);
	rig_close(&rig);
	board->wrong[seat_rank(seat)] = rig.verdict.wrong;
	if (rig.verdict.wrong)
		seat_fail(seat, "%s", rig.verdict.first);
	return seat_failed(seat) ? -1 : 0;
}

static void run_report(struct run *run, bool ok, const char *text, double seconds, int ranks)
{
	const struct board *board = world_board(run->world);
	uint64_t wrong = 0;

	for (int r = 0; r < ranks; r++)
		wrong += board->wrong[r];
	run->passed += ok;
	run->failed += !ok;
	if (!ok)
		printf("FAILED %s\n       #wrong %llu; %s\n", text, (unsigned long long)wrong, world_text(run->world));
	else if (run->verbose)
		printf("ok     %s (%.2f s)\n", text, seconds);
	fflush(stdout);
}

static void run_cell(struct run *run, const int *v, uint64_t seed, const char *text)
{
	double start = world_now();
	struct job job;
	int rc;

	job_make(v, seed, &job);
	job.filler = run->filler;
	rc = world_run(run->world, v[F_RANKS], cell_job, &job, sizeof(job), CELL_SECONDS);
	run_report(run, !rc, text, world_now() - start, v[F_RANKS]);
	/* Processes can be replaced; a thread that hangs cannot, and fails all that follow. */
	if (world_lost(run->world) && run->opts.processes) {
		world_close(run->world);
		if (world_open(&run->opts, &run->world))
			exit(1);
	}
}

static void text_of(const struct cell *cell, uint64_t seed, char *text)
{
	size_t n = 0;

	for (int i = 0; i < cell->count && n < TEXT_MAX; i++)
		if (strcmp(cell->name[i], "seed"))
			n += (size_t)snprintf(text + n, TEXT_MAX - n, "%s=%s ", cell->name[i], cell->value[i]);
	if (n < TEXT_MAX)
		snprintf(text + n, TEXT_MAX - n, "seed=%llu", (unsigned long long)seed);
}

static void run_cells(struct run *run, const struct cells *cells, int limit)
{
	for (int i = 0; i < cells->count && (limit <= 0 || i < limit); i++) {
		uint64_t seed = ll_seed(run->seed, 1, (uint64_t)i) >> 40;
		const char *why;
		char text[TEXT_MAX];
		int v[FACTORS];

		why = cell_values(&cells->cell[i], v, &seed);
		if (!why)
			why = cell_illegal(v);
		text_of(&cells->cell[i], seed, text);
		if (!why) {
			run_cell(run, v, seed, text);
			continue;
		}
		printf("FAILED %s\n       not a cell: %s\n", text, why); /* a matrix that asks for it has a hole */
		run->failed++;
	}
}

/* As many legal cells as asked for, every factor drawn from its list. */
static void run_random(struct run *run, int count)
{
	uint64_t random = run->seed;

	for (int done = 0; done < count;) {
		char text[TEXT_MAX];
		size_t n = 0;
		uint64_t seed;
		int v[FACTORS];

		for (int f = 0; f < FACTORS; f++) {
			const char *list = factors[f].words ? factors[f].words : factors[f].numbers;
			int length, pick = (int)(ll_random(&random) % (uint64_t)words_count(list));
			const char *word;

			if ((f == F_QTOK || f == F_QSCALE) && v[F_QUANT] != LL_QUANT_FWD)
				pick = words_count(list) - 1;
			word = word_at(list, pick, &length);
			v[f] = factors[f].words ? pick : atoi(word);
			n += (size_t)snprintf(text + n, TEXT_MAX - n, "%s=%.*s ", factors[f].name, length, word);
		}
		/* The largest rows only where there are few: time, not law. */
		if (cell_illegal(v) || v[F_HIDDEN] * v[F_TMAX] * v[F_RANKS] * v[F_LOCAL] > 2000000)
			continue;
		seed = ll_random(&random) >> 40;
		snprintf(text + n, TEXT_MAX - n, "seed=%llu", (unsigned long long)seed);
		run_cell(run, v, seed, text);
		done++;
	}
}

/* What must be refused: once per layout, with two ranks. */
static void run_refusals(struct run *run)
{
	static const char *const names[] = { "refusals layout=em", "refusals layout=rm" };

	for (int layout = 0; layout < 2; layout++) {
		double start = world_now();
		int rc;

		memset(world_board(run->world), 0, sizeof(struct board));
		rc = world_run(run->world, 2, ll_refuse_job, &layout, sizeof(layout), CELL_SECONDS);
		run_report(run, !rc, names[layout], world_now() - start, 2);
	}
}

static int read_cells(const char *file, const char *one, struct cells *cells)
{
	FILE *in = file ? fopen(file, "r") : fmemopen((void *)one, strlen(one), "r");
	int rc = in ? cells_read(in, cells) : -errno;

	if (in)
		fclose(in);
	if (rc)
		fprintf(stderr, "ll_matrix: %s: %s\n", file ? file : one, strerror(-rc));
	return rc;
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ll_matrix [-t | -g] [-f FILE | -r CELL] [-n COUNT] [-s SEED] [-F SMS] [-o SEED] [-v]\n"
		     "  -t        ranks are threads (default)      -g  ranks are processes\n"
		     "  -f FILE   cells, one per line               -r CELL  this one cell\n"
		     "  -n COUNT  at most so many cells; without -f and -r: so many random ones (100)\n"
		     "  -s SEED   of the data and of random cells   -F SMS  a foreign kernel holds so many SMs\n"
		     "  -o SEED   under the emulator: GPU threads in random order\n"
		     "  -v        a line for every cell\n");
	return status;
}

int main(int argc, char **argv)
{
	struct run run = { .seed = 1, .opts = { .seats = RANKS_MAX, .board = sizeof(struct board) } };
	struct cells cells = { 0 };
	const char *file = NULL, *one = NULL;
	double start = world_now();
	int c, limit = 0, rc;

	while ((c = getopt(argc, argv, "tgf:r:n:s:F:o:vh")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 't' || c == 'g')
			run.opts.processes = c == 'g';
		else if (c == 'f')
			file = optarg;
		else if (c == 'r')
			one = optarg;
		else if (c == 'n')
			limit = atoi(optarg);
		else if (c == 's')
			run.seed = strtoull(optarg, NULL, 0);
		else if (c == 'F')
			run.filler = atoi(optarg);
		else if (c == 'v')
			run.verbose = true;
		else if (c == 'o' && world_random_order(strtoull(optarg, NULL, 0)))
			return 1;
		else if (c == 'o')
			continue;
		else
			return usage(stderr, 2);
	}
	if (optind != argc || (file && one))
		return usage(stderr, 2);
	if (((file || one) && read_cells(file, one, &cells)) || world_open(&run.opts, &run.world))
		return 1;
	if (file || one)
		run_cells(&run, &cells, limit);
	else
		run_random(&run, limit > 0 ? limit : 100);
	if (!one)
		run_refusals(&run);
	cells_free(&cells);
	rc = world_close(run.world);
	printf("ll_matrix: %d passed, %d failed, %d skipped; %s, %.1f s\n", run.passed, run.failed, run.skipped,
	       run.opts.processes ? "processes" : "threads", world_now() - start);
	return run.failed || rc ? 1 : 0;
}
