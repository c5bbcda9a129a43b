/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/matrix.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/data.h"
#include "test/tools/cells.h"

#define CELL_SECONDS 300.0
#define TEXT_MAX 1024

struct board {
	uint64_t wrong[WORLD_SEATS];
};

struct run {
	const struct matrix *matrix;
	struct world *world;
	struct world_opts opts;
	uint64_t seed;
	int filler; /* SMs occupied by another kernel */
	bool verbose, far;
	const char *net; /* transport between simulated nodes; NULL: loop */
	int passed, failed;
};

void matrix_wrong(struct seat *seat, const struct ll_verdict *verdict)
{
	struct board *board = seat_board(seat);

	board->wrong[seat_rank(seat)] = verdict->wrong;
	if (verdict->wrong)
		seat_fail(seat, "%s", verdict->first);
}

/* ---- from text to numbers ---- */

/* The index of a word in a list, or -1; the n-th word of a list. */
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
static const char *cell_values(const struct matrix *m, const struct cell *cell, int *v, uint64_t *seed)
{
	static char text[128];
	long number = 0;

	for (int f = 0; f < m->factors; f++) {
		const struct factor *factor = &m->factor[f];
		const char *word = cell_str(cell, factor->name);

		v[f] = factor->absent;
		snprintf(text, sizeof(text), "%s: no such value", factor->name);
		if (!word)
			continue;
		if (factor->words && (v[f] = word_find(factor->words, word)) < 0)
			return text;
		if (factor->numbers && (cell_int(cell, factor->name, &number) || number < 0 || number > 1 << 20))
			return text;
		if (factor->numbers)
			v[f] = (int)number;
	}
	for (int i = 0; i < cell->count; i++) {
		bool known = !strcmp(cell->name[i], "seed");

		for (int f = 0; f < m->factors && !known; f++)
			known = !strcmp(cell->name[i], m->factor[f].name);
		snprintf(text, sizeof(text), "%.100s: no such factor", cell->name[i]);
		if (!known)
			return text;
	}
	if (!cell_int(cell, "seed", &number))
		*seed = (uint64_t)number;
	if (m->derive)
		m->derive(v);
	return NULL;
}

static const char *cell_illegal(const struct matrix *m, const int *v)
{
	if (v[m->ranks] < 1 || v[m->ranks] > MATRIX_RANKS_FAR)
		return "not enough ranks";
	return m->illegal(v);
}

/* ---- running ---- */

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

static void run_job(struct run *run, int ranks, world_fn fn, const void *job, size_t size, const char *text)
{
	double start = world_now();
	int rc;

	memset(world_board(run->world), 0, sizeof(struct board));
	rc = world_run(run->world, ranks, fn, job, size, CELL_SECONDS);
	run_report(run, !rc, text, world_now() - start, ranks);
	/* Processes can be replaced; a thread that hangs cannot, and fails all later cells. */
	if (world_lost(run->world) && run->opts.processes) {
		world_close(run->world);
		if (world_open(&run->opts, &run->world))
			exit(1);
	}
}

static void run_cell(struct run *run, const int *v, uint64_t seed, const char *text)
{
	_Alignas(16) char job[WORLD_ARG];

	run->matrix->make(v, seed, run->filler, job);
	if (run->matrix->env)
		run->matrix->env(run->world, v, seed, run->net);
	run_job(run, v[run->matrix->ranks], run->matrix->fn, job, run->matrix->size, text);
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
		int v[MATRIX_FACTORS] = { 0 };

		why = cell_values(run->matrix, &cells->cell[i], v, &seed);
		if (!why)
			why = cell_illegal(run->matrix, v);
		text_of(&cells->cell[i], seed, text);
		if (!why) {
			run_cell(run, v, seed, text);
			continue;
		}
		printf("FAILED %s\n       not a cell: %s\n", text, why); /* it would be a gap in the matrix */
		run->failed++;
	}
}

/* Every factor from its list; those of simulated nodes only with -N. */
static void cell_draw(const struct run *run, uint64_t *random, int *v)
{
	const struct matrix *m = run->matrix;
	int drawn = m->plain && !run->far ? m->plain : m->factors;

	for (int f = drawn; f < m->factors; f++)
		v[f] = m->factor[f].absent;
	for (int f = 0; f < drawn; f++) {
		const char *list = m->factor[f].words ? m->factor[f].words : m->factor[f].numbers;
		int length, pick = (int)(ll_random(random) % (uint64_t)words_count(list));
		int forced = m->forced ? m->forced(v, f) : -1;

		pick = forced < 0 ? pick : forced;
		v[f] = m->factor[f].words ? pick : atoi(word_at(list, pick, &length));
	}
	if (m->derive)
		m->derive(v);
}

static void draw_tell(const struct run *run, const int *v, uint64_t seed, char *text)
{
	const struct matrix *m = run->matrix;
	int drawn = m->plain && !run->far ? m->plain : m->factors, length;
	size_t n = 0;

	for (int f = 0; f < drawn; f++) {
		const char *word = m->factor[f].words ? word_at(m->factor[f].words, v[f], &length) : NULL;

		if (word)
			n += (size_t)snprintf(text + n, TEXT_MAX - n, "%s=%.*s ", m->factor[f].name, length, word);
		else
			n += (size_t)snprintf(text + n, TEXT_MAX - n, "%s=%d ", m->factor[f].name, v[f]);
	}
	snprintf(text + n, TEXT_MAX - n, "seed=%llu", (unsigned long long)seed);
}

/* The requested number of legal cells. */
static void run_random(struct run *run, int count)
{
	const struct matrix *m = run->matrix;
	uint64_t random = run->seed;

	for (int done = 0; done < count;) {
		char text[TEXT_MAX];
		uint64_t seed;
		int v[MATRIX_FACTORS] = { 0 };

		cell_draw(run, &random, v);
		if (cell_illegal(m, v) || m->heavy(v))
			continue;
		seed = ll_random(&random) >> 40;
		draw_tell(run, v, seed, text);
		run_cell(run, v, seed, text);
		done++;
	}
}

/* No more than the cells need: on a GPU every process has a context. */
static int seats_of(const struct run *run, const struct cells *cells)
{
	int seats = run->far ? MATRIX_RANKS_FAR : MATRIX_RANKS;

	for (int i = 0; i < cells->count; i++) {
		int v[MATRIX_FACTORS] = { 0 };
		uint64_t seed;

		if (!cell_values(run->matrix, &cells->cell[i], v, &seed) && !cell_illegal(run->matrix, v) &&
		    v[run->matrix->ranks] > seats)
			seats = MATRIX_RANKS_FAR;
	}
	return seats;
}

static int read_cells(const struct matrix *m, const char *file, const char *one, struct cells *cells)
{
	FILE *in = file ? fopen(file, "r") : fmemopen((void *)one, strlen(one), "r");
	int rc = in ? cells_read(in, cells) : -errno;

	if (in)
		fclose(in);
	if (rc)
		fprintf(stderr, "%s: %s: %s\n", m->name, file ? file : one, strerror(-rc));
	return rc;
}

static int usage(const struct matrix *m, FILE *out, int status)
{
	fprintf(out,
		"usage: %s [-t | -g] [-f FILE | -r CELL] [-n COUNT] [-s SEED] [-N] [-k NET] [-F SMS] [-o SEED] [-v]\n"
		"  -t        ranks are threads (default)      -g  ranks are processes\n"
		"  -f FILE   cells, one per line               -r CELL  this one cell\n"
		"  -n COUNT  at most this many cells; without -f and -r: random ones (100)\n"
		"  -s SEED   of data and random cells          -F SMS  occupy this many SMs by another kernel\n"
		"  -N        random cells are split into simulated nodes\n"
		"  -k NET    transport between simulated nodes instead of loop\n"
		"  -o SEED   under the emulator: GPU threads in random order; odd: one block of a launch at a time\n"
		"  -v        a line for every cell\n",
		m->name);
	return status;
}

static int run_all(struct run *run, const struct cells *cells, bool one, int limit)
{
	const struct matrix *m = run->matrix;
	double start = world_now();
	int rc;

	run->opts.seats = seats_of(run, cells);
	if (world_open(&run->opts, &run->world))
		return 1;
	if (cells->count)
		run_cells(run, cells, limit);
	else
		run_random(run, limit > 0 ? limit : 100);
	if (m->env && !one)
		m->env(run->world, NULL, 0, NULL);
	for (int i = 0; !one && i < m->extras; i++)
		run_job(run, m->extra[i].ranks, m->extra[i].fn, &m->extra[i].arg, sizeof(m->extra[i].arg),
			m->extra[i].name);
	rc = world_close(run->world);
	printf("%s: %d passed, %d failed; %s, %.1f s\n", m->name, run->passed, run->failed,
	       run->opts.processes ? "processes" : "threads", world_now() - start);
	return run->failed || rc ? 1 : 0;
}

int matrix_main(const struct matrix *matrix, int argc, char **argv)
{
	struct run run = { .matrix = matrix, .seed = 1, .opts = { .board = sizeof(struct board) } };
	struct cells cells = { 0 };
	const char *file = NULL, *one = NULL;
	int c, limit = 0, rc;

	while ((c = getopt(argc, argv, "tgf:r:n:s:Nk:F:o:vh")) != -1) {
		if (c == 'h')
			return usage(matrix, stdout, 0);
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
		else if (c == 'N')
			run.far = true;
		else if (c == 'k')
			run.net = optarg;
		else if (c == 'v')
			run.verbose = true;
		else if (c == 'o' && world_random_order(strtoull(optarg, NULL, 0)))
			return 1;
		else if (c != 'o')
			return usage(matrix, stderr, 2);
	}
	if (optind != argc || (file && one))
		return usage(matrix, stderr, 2);
	if ((file || one) && read_cells(matrix, file, one, &cells))
		return 1;
	rc = run_all(&run, &cells, one, limit);
	cells_free(&cells);
	return rc;
}
