/* SPDX-License-Identifier: Apache-2.0 */
/* The same options for every program, each taking those that mean something to it. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/perf.h"
#include "test/oracle/world.h"

/* Switches may stand alone: -z is -z 1. */
enum kind { NUMBER, SIZE, SEED, REAL, WORD, SWITCH, TEXT, NAME, HELP };

/* Options without a letter. */
enum { O_ALIGN = 256, O_BWD, O_DROP, O_EAGER, O_GRAPH_UPDATE, O_MAX_RECV, O_ZERO_COPY };

#define LL PERF_FOR_LL
#define HT PERF_FOR_HT
#define EP (LL | HT)
#define ALL (EP | PERF_FOR_MPI)

/* clang-format off */
static const struct option_row {
	const char *name;
	int letter;
	unsigned use;
	enum kind kind;
	size_t offset;
	long min, max;
	const char *words;
	const char *text;
} rows[] = {
#define AT(member) offsetof(struct perf_opts, member)
	{ "algorithm", 'a', EP, WORD, AT(algorithm), 0, 2, "ll ht", "ll or ht (ll)" },
	{ "mintokens", 'b', ALL, NUMBER, AT(first), 0, 1 << 20, NULL, "tokens per rank at first (ll 1, ht as -e)" },
	{ "maxtokens", 'e', ALL, NUMBER, AT(last), 0, 1 << 20, NULL, "and at last (ll 128, ht 4096, its CPU 512)" },
	{ "stepfactor", 'f', ALL, NUMBER, AT(factor), 2, 1024, NULL, "times this from row to row (2)" },
	{ "hidden", 'H', ALL, SIZE, AT(hidden), 1, 1 << 20, NULL, "elements of a token (7168, ht on the CPU 2048)" },
	{ "topk", 'k', ALL, NUMBER, AT(topk), 1, 1 << 16, NULL, "experts of a token (8)" },
	{ "experts", 'x', ALL, NUMBER, AT(experts), 0, 1 << 20, NULL, "experts in all (ll 32 per rank, ht 256)" },
	/* The second name of a layout is as many words behind the first as there are layouts. */
	{ "layout", 'l', EP, WORD, AT(layout), 0, 3, "expert rank flat em rm", "expert (em), rank (rm) or flat" },
	{ "datatype", 'd', ALL, WORD, AT(dtype), 0, 3, "bf16 fp16 fp32", "bf16, fp16, fp32 (bf16)" },
	{ "quant", 'q', ALL, WORD, AT(quant), 0, 4, "none fwd ds ds_round", "none, fwd (e4m3), ds, ds_round (none)" },
	{ "staged", 's', LL, SWITCH, AT(staged), 0, 1, NULL, "send and receive halves apart (0)" },
	{ "graph", 'G', EP, SWITCH, AT(graph), 0, 1, NULL, "dispatch and combine in a replayed graph (0; GPU)" },
	{ "graph-update", O_GRAPH_UPDATE, HT, SWITCH, AT(graph_update), 0, 1, NULL, "the update in the graph too (0)" },
	{ "windows", 'z', EP, SWITCH, AT(windows), 0, 1, NULL, "tensors in registered windows (0)" },
	{ "zero-copy", O_ZERO_COPY, EP, WORD, AT(zero_copy), 0, 3, "auto off on", "auto, off or on (auto)" },
	{ "bwd", O_BWD, HT, SWITCH, AT(bwd), 0, 1, NULL, "backward dispatch and combine too (0)" },
	{ "align", O_ALIGN, HT, NUMBER, AT(align), 0, 1 << 20, NULL, "rows of an expert are padded to this (0)" },
	{ "eager", O_EAGER, HT, SWITCH, AT(eager), 0, 1, NULL, "outputs as high as the update says (0)" },
	{ "max-recv", O_MAX_RECV, HT, NUMBER, AT(max_recv), 0, 1 << 30, NULL, "rows a rank has room for; 0: enough" },
	{ "drop", O_DROP, HT, SWITCH, AT(drop), 0, 1, NULL, "leave out what does not fit (0)" },
	{ "sms", 'm', EP, NUMBER, AT(sms), 0, 65536, NULL, "max_num_sms; 0: automatic (ll 0, ht 24)" },
	{ "device", 'D', EP, NAME, AT(device), 0, 16, "auto host cuda", "auto, host or cuda (auto)" },
	{ "iters", 'n', ALL, NUMBER, AT(iterations), 1, 100000, NULL, "timed iterations (20)" },
	{ "warmup_iters", 'w', ALL, NUMBER, AT(warmup), 0, 100000, NULL, "iterations before them (5)" },
	{ "check", 'c', ALL, SWITCH, AT(check), 0, 1, NULL, "count wrong values, against the oracle (1)" },
	{ "memcpy", 'M', LL, SWITCH, AT(memcpy), 0, 1, NULL, "the same by plain copies beside it (0; CPU)" },
	{ "puts", 'P', LL, SWITCH, AT(puts), 0, 1, NULL, "between nodes of one rank, bare puts beside it (0; CPU)" },
	{ "bandwidth", 'B', EP, REAL, AT(bandwidth), 1, 0, NULL, "GB/s for the limit by bytes on a GPU (4300)" },
	{ "seed", 'S', ALL, SEED, AT(seed), 0, 1 << 30, NULL, "of routing and data (1)" },
	{ "json", 'J', ALL, TEXT, AT(json), 0, 0, NULL, "write the same figures to this file" },
	{ "processes", 'g', EP, NUMBER, AT(ranks), 1, WORLD_SEATS, NULL, "ranks as processes" },
	{ "threads", 't', EP, NUMBER, AT(ranks), 1, WORLD_SEATS, NULL, "ranks as threads (-t 1)" },
	{ "help", 'h', ALL, HELP, 0, 0, 0, NULL, "this text" },
#undef AT
};
/* clang-format on */
#define ROWS ((int)(sizeof(rows) / sizeof(rows[0])))
_Static_assert(sizeof(rows) / sizeof(rows[0]) <= 64, "perf_opts.given has a bit for each");

static void usage(const struct perf_opts *opts, FILE *out, unsigned use)
{
	fprintf(out, "usage: %s [options]\n", opts->program);
	for (int i = 0; i < ROWS; i++)
		if (rows[i].use & use && rows[i].letter < 256)
			fprintf(out, "  -%c, --%-14s %s\n", rows[i].letter, rows[i].name, rows[i].text);
		else if (rows[i].use & use)
			fprintf(out, "      --%-14s %s\n", rows[i].name, rows[i].text);
}

static int complain(const struct perf_opts *opts, const char *text)
{
	if (!opts->quiet)
		fprintf(stderr, "%s: %s\n", opts->program, text);
	return -1;
}

static int bad(const struct perf_opts *opts, const struct option_row *row, const char *value)
{
	if (!opts->quiet)
		fprintf(stderr, "%s: --%s %s: must be %s\n", opts->program, row->name, value, row->text);
	return -1;
}

static int word_index(const char *list, const char *word)
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

static int take_number(const struct option_row *row, const char *value, void *at)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(value, &end, 0);
	if (end == value || *end || errno || n < row->min || n > row->max)
		return -1;
	if (row->kind == SIZE)
		*(size_t *)at = (size_t)n;
	else if (row->kind == SEED)
		*(uint64_t *)at = (uint64_t)n;
	else if (row->kind == SWITCH)
		*(bool *)at = n != 0;
	else
		*(int *)at = (int)n;
	return 0;
}

static int take(const struct option_row *row, const char *value, struct perf_opts *opts)
{
	void *at = (char *)opts + row->offset;
	char *end;
	int index;

	switch (row->kind) {
	case WORD:
		index = word_index(row->words, value);
		if (index < 0)
			return bad(opts, row, value);
		*(int *)at = index % (int)row->max;
		return 0;
	case REAL:
		*(double *)at = strtod(value, &end);
		return *end || end == value || !(*(double *)at >= (double)row->min) ? bad(opts, row, value) : 0;
	case TEXT:
		*(const char **)at = value;
		return 0;
	case NAME:
		if (word_index(row->words, value) < 0)
			return bad(opts, row, value);
		snprintf(at, (size_t)row->max, "%s", value);
		return 0;
	default:
		if (row->letter == 'g' || row->letter == 't')
			opts->processes = row->letter == 'g';
		return take_number(row, value, at) ? bad(opts, row, value) : 0;
	}
}

/* The value of a switch, if the next word is one. */
static const char *switch_value(int argc, char **argv)
{
	if (optarg)
		return optarg;
	if (optind < argc && (!strcmp(argv[optind], "0") || !strcmp(argv[optind], "1")))
		return argv[optind++];
	return "1";
}

static void getopt_tables(unsigned use, struct option *longs, char *shorts)
{
	for (int i = 0; i < ROWS; i++) {
		int argument = rows[i].kind == HELP	? no_argument
			       : rows[i].kind == SWITCH ? optional_argument
							: required_argument;

		if (!(rows[i].use & use))
			continue;
		*longs++ = (struct option){ rows[i].name, argument, NULL, rows[i].letter };
		if (rows[i].letter >= 256)
			continue;
		*shorts++ = (char)rows[i].letter;
		for (int colons = argument; colons > 0; colons--) /* required 1, optional 2 */
			*shorts++ = ':';
	}
	*longs = (struct option){ 0 };
	*shorts = '\0';
}

int perf_opts_take(struct perf_opts *opts, unsigned use, int argc, char **argv)
{
	struct option longs[ROWS + 1];
	char shorts[3 * ROWS + 1];
	int c, row;

	getopt_tables(use, longs, shorts);
	opterr = !opts->quiet;
	while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		for (row = 0; row < ROWS && rows[row].letter != c; row++)
			;
		if (row == ROWS)
			break;
		if (rows[row].kind == HELP) {
			if (!opts->quiet)
				usage(opts, stdout, use);
			return 1;
		}
		if (take(&rows[row], rows[row].kind == SWITCH ? switch_value(argc, argv) : optarg, opts))
			return -1;
		opts->given |= 1ull << row;
	}
	if (c == -1 && optind == argc)
		return 0;
	if (!opts->quiet)
		usage(opts, stderr, use);
	return -1;
}

/* ---- what was not given ---- */

static bool given(const struct perf_opts *opts, int letter)
{
	for (int i = 0; i < ROWS; i++)
		if (rows[i].letter == letter)
			return opts->given >> i & 1;
	return false;
}

/* [algorithm][on a GPU] */
static const struct defaults {
	int first, last;
	size_t hidden;
	int experts, sms, layout;
} defaults[2][2] = {
	[PERF_LL] = { { 1, 128, 7168, 0, 0, PERF_EXPERT_MAJOR }, { 1, 128, 7168, 0, 0, PERF_EXPERT_MAJOR } },
	[PERF_HT] = { { 512, 512, 2048, 256, 0, PERF_FLAT }, { 4096, 4096, 7168, 256, 24, PERF_FLAT } },
};

static void fill_in(struct perf_opts *opts, bool gpu)
{
	const struct defaults *d = &defaults[opts->algorithm][gpu];
	bool sweeps = d->first < d->last;

	if (!given(opts, 'b') && !given(opts, 'e'))
		opts->last = d->last;
	if (!given(opts, 'b'))
		opts->first = sweeps && d->first < opts->last ? d->first : opts->last;
	else if (!given(opts, 'e'))
		opts->last = sweeps && d->last > opts->first ? d->last : opts->first;
	if (!given(opts, 'H'))
		opts->hidden = d->hidden;
	if (!given(opts, 'l'))
		opts->layout = d->layout;
	if (!given(opts, 'x') || !opts->experts)
		opts->experts = d->experts && d->experts % opts->ranks == 0 ? d->experts : 32 * opts->ranks;
	/* Kernels that wait for each other must all be on the GPU at once: beyond its size the library's own choice. */
	if (!given(opts, 'm'))
		opts->sms = d->sms * opts->ranks <= 128 ? d->sms : 0;
}

/* ---- what cannot be together ---- */

static int fits_ht(const struct perf_opts *opts)
{
	if (opts->layout == PERF_RANK_MAJOR)
		return complain(opts, "-l: ht is flat or expert-major");
	if (opts->quant >= LL_QUANT_DS)
		return complain(opts, "-q: ht carries none or fwd");
	if (opts->align & (opts->align - 1))
		return complain(opts, "--align must be a power of two");
	if (opts->align > 1 && opts->layout != PERF_EXPERT_MAJOR)
		return complain(opts, "--align is for -l expert");
	if (opts->eager && (opts->max_recv || opts->graph))
		return complain(opts, "--eager goes with neither --max-recv nor -G");
	if (opts->max_recv && opts->max_recv < opts->last)
		return complain(opts, "--max-recv must be at least -e");
	if (opts->drop && !opts->max_recv)
		return complain(opts, "--drop wants --max-recv");
	if (opts->graph && opts->bwd)
		return complain(opts, "-G is forward only");
	if (opts->graph_update && !opts->graph)
		return complain(opts, "--graph-update wants -G");
	return 0;
}

static int fits_ll(const struct perf_opts *opts)
{
	if (opts->layout == PERF_FLAT)
		return complain(opts, "-l: ll is expert-major or rank-major");
	if (opts->memcpy && opts->puts)
		return complain(opts, "-M and -P are two programs beside it: one at a time");
	if (opts->quant >= LL_QUANT_DS && (opts->hidden % 512 || opts->dtype != NUM_BF16))
		return complain(opts, "-q ds wants bf16 and a multiple of 512 for -H");
	return 0;
}

int perf_opts_settle(struct perf_opts *opts, unsigned use, bool gpu)
{
	static const char *const names[] = { "ll", "ht" };

	use &= use == PERF_FOR_MPI ? use : 1u << opts->algorithm;
	for (int i = 0; i < ROWS; i++)
		if (opts->given >> i & 1 && !(rows[i].use & use)) {
			if (!opts->quiet)
				fprintf(stderr, "%s: --%s is not for %s\n", opts->program, rows[i].name,
					names[opts->algorithm]);
			return -1;
		}
	fill_in(opts, gpu);
	if (opts->last < opts->first || opts->last < 1)
		return complain(opts, "-e must be at least -b, and 1");
	if (opts->experts % opts->ranks)
		return complain(opts, "-x must be a multiple of the ranks");
	if (opts->topk > opts->experts)
		return complain(opts, "-k must not exceed -x");
	if (opts->quant == LL_QUANT_FWD && opts->hidden % 512)
		return complain(opts, "-q fwd wants a multiple of 512 for -H: rows and scales of 16 bytes");
	return opts->algorithm == PERF_HT ? fits_ht(opts) : fits_ll(opts);
}
