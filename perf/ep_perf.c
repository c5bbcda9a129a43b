/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time and bandwidth of dispatch and combine, in the manner of nccl-tests: sizes from -b to -e, a line each, a check of
 * every value against the oracle, JSON on request. Exit status 0; 1 when a value was wrong or a call failed; 2 for a
 * bad option.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "perf/ep_perf.h"

#define JOB_SECONDS 600.0
#define ROWS_MAX 256

/* Options that are numbers, words of a list, or switches (0 or 1). */
enum kind { NUMBER, SIZE, WORD, SWITCH, REAL, TEXT, NAME };

/* clang-format off */
static const struct option_row {
	const char *name;
	int letter;
	enum kind kind;
	size_t offset;
	long min, max;
	const char *words;
	const char *text;
} rows[] = {
#define AT(member) offsetof(struct perf_opts, member)
	{ "algorithm", 'a', WORD, AT(ht), 0, 0, "ll ht", "ll or ht" },
	{ "mintokens", 'b', NUMBER, AT(first), 0, 1 << 20, NULL, "tokens per rank to start with (1)" },
	{ "maxtokens", 'e', NUMBER, AT(last), 0, 1 << 20, NULL, "and to end with (128)" },
	{ "stepfactor", 'f', NUMBER, AT(factor), 2, 1024, NULL, "times this from row to row (2)" },
	{ "hidden", 'H', SIZE, AT(hidden), 1, 1 << 20, NULL, "elements of a token (7168)" },
	{ "topk", 'k', NUMBER, AT(topk), 1, 1 << 16, NULL, "experts of a token (8)" },
	{ "experts", 'x', NUMBER, AT(experts), 0, 1 << 20, NULL, "experts in all; 0: 32 per rank (0)" },
	{ "layout", 'l', WORD, AT(layout), 0, 0, "em rm", "em expert-major, rm rank-major (em)" },
	{ "datatype", 'd', WORD, AT(dtype), 0, 0, "bf16 fp16 fp32", "bf16, fp16, fp32 (bf16)" },
	{ "quant", 'q', WORD, AT(quant), 0, 0, "none fwd ds ds_round", "none, fwd (e4m3 + f32 scales), ds, ds_round" },
	{ "staged", 's', SWITCH, AT(staged), 0, 1, NULL, "send and receive halves apart (0)" },
	{ "graph", 'G', SWITCH, AT(graph), 0, 1, NULL, "dispatch and combine in a replayed graph (0; GPU)" },
	{ "windows", 'z', SWITCH, AT(windows), 0, 1, NULL, "tensors in registered windows (0)" },
	{ "sms", 'm', NUMBER, AT(sms), 0, 65536, NULL, "max_num_sms of the group; 0: automatic (0)" },
	{ "device", 'D', NAME, AT(device), 0, 16, NULL, "auto, host or cuda (auto)" },
	{ "iters", 'n', NUMBER, AT(iterations), 1, 100000, NULL, "timed iterations (20)" },
	{ "warmup_iters", 'w', NUMBER, AT(warmup), 0, 100000, NULL, "iterations before them (5)" },
	{ "check", 'c', SWITCH, AT(check), 0, 1, NULL, "count wrong values, against the oracle (1)" },
	{ "memcpy", 'M', SWITCH, AT(memcpy), 0, 1, NULL, "a plain program with the same copies beside it (0; CPU)" },
	{ "bandwidth", 'B', REAL, AT(bandwidth), 1, 0, NULL, "GB/s for the limit by bytes on a GPU (4300)" },
	{ "seed", 'S', NUMBER, AT(seed), 0, 1 << 30, NULL, "of routing and data (1)" },
	{ "json", 'J', TEXT, AT(json), 0, 0, NULL, "write the same figures to this file" },
	{ "processes", 'g', NUMBER, AT(ranks), 1, WORLD_SEATS, NULL, "ranks as processes" },
	{ "threads", 't', NUMBER, AT(ranks), 1, WORLD_SEATS, NULL, "ranks as threads (-t 1)" },
	{ "help", 'h', SWITCH, 0, 0, 0, NULL, "this text" },
#undef AT
};
/* clang-format on */
#define ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ep_perf [options]\n");
	for (int i = 0; i < ROWS; i++)
		fprintf(out, "  -%c, --%-14s %s\n", rows[i].letter, rows[i].name, rows[i].text);
	return status;
}

static int bad(const struct option_row *row, const char *value)
{
	fprintf(stderr, "ep_perf: -%c %s: must be %s\n", row->letter, value, row->text);
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

static int take_number(const struct option_row *row, const char *value, char *at)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(value, &end, 0);
	if (end == value || *end || errno || n < row->min || n > row->max)
		return bad(row, value);
	if (row->kind == SIZE)
		*(size_t *)(void *)at = (size_t)n;
	else if (row->kind == SWITCH)
		*(bool *)at = n != 0;
	else if (row->letter == 'S')
		*(uint64_t *)(void *)at = (uint64_t)n;
	else
		*(int *)(void *)at = (int)n;
	return 0;
}

static int take(const struct option_row *row, const char *value, struct perf_opts *opts)
{
	char *at = (char *)opts + row->offset, *end;
	int index;

	switch (row->kind) {
	case WORD:
		index = word_index(row->words, value);
		if (index < 0)
			return bad(row, value);
		if (row->letter == 'a')
			opts->ht = index;
		else
			*(int *)(void *)at = index; /* enums are ints */
		return 0;
	case REAL:
		*(double *)(void *)at = strtod(value, &end);
		return *end || end == value || *(double *)(void *)at < (double)row->min ? bad(row, value) : 0;
	case TEXT:
		*(const char **)(void *)at = value;
		return 0;
	case NAME:
		if (word_index("auto host cuda", value) < 0)
			return bad(row, value);
		snprintf(at, (size_t)row->max, "%s", value);
		return 0;
	default:
		if (row->letter == 'g' || row->letter == 't')
			opts->processes = row->letter == 'g';
		return take_number(row, value, at);
	}
}

/* 0, 1 after help, -1 for a mistake. */
static int parse(int argc, char **argv, struct perf_opts *opts)
{
	struct option longs[ROWS + 1] = { 0 };
	char shorts[2 * ROWS + 1], *at = shorts;
	int c;

	for (int i = 0; i < ROWS; i++) {
		bool argument = rows[i].letter != 'h';

		longs[i] = (struct option){ rows[i].name, argument ? required_argument : no_argument, NULL,
					    rows[i].letter };
		*at++ = (char)rows[i].letter;
		if (argument)
			*at++ = ':';
	}
	*at = '\0';
	while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		const struct option_row *row = NULL;

		for (int i = 0; i < ROWS; i++)
			row = rows[i].letter == c ? &rows[i] : row;
		if (!row || c == 'h')
			return c == 'h' ? 1 : -1;
		if (take(row, optarg, opts))
			return -1;
	}
	return optind == argc ? 0 : -1;
}

static int complain(const char *text)
{
	fprintf(stderr, "ep_perf: %s\n", text);
	return -1;
}

/* What cannot be together. */
static int settle(struct perf_opts *opts)
{
	size_t element = num_info[opts->dtype].size;

	if (opts->ht)
		return complain("-a ht: high throughput is not built yet; use -a ll");
	if (!opts->experts)
		opts->experts = 32 * opts->ranks;
	if (opts->last < opts->first || opts->last < 1)
		return complain("-e must be at least -b, and 1");
	if (opts->experts % opts->ranks)
		return complain("-x must be a multiple of the ranks");
	if (opts->topk > opts->experts)
		return complain("-k must not exceed -x");
	if (opts->quant >= LL_QUANT_DS && (opts->hidden % 512 || opts->dtype != NUM_BF16))
		return complain("-q ds wants bf16 and a multiple of 512 for -H");
	if (opts->quant == LL_QUANT_FWD && opts->hidden % 512)
		return complain("-q fwd wants a multiple of 512 for -H: rows and scales of 16 bytes");
	if (opts->hidden * element > 1u << 30)
		return complain("-H is too large");
	return 0;
}

static int run_size(struct world *world, const struct perf_opts *opts, int tokens, struct perf_row *row, int *count)
{
	struct perf_job job = { .opts = *opts, .tokens = tokens };
	const struct perf_rank *rank = perf_board_rank(world_board(world), 0);
	bool first = *count == 0;

	if (world_run(world, opts->ranks, perf_ll_job, &job, sizeof(job), JOB_SECONDS)) {
		fprintf(stderr, "ep_perf: %d tokens: %s\n", tokens, world_text(world));
		return -1;
	}
	if (opts->memcpy && !rank->gpu &&
	    world_run(world, opts->ranks, perf_plain_job, &job, sizeof(job), JOB_SECONDS)) {
		fprintf(stderr, "ep_perf: %d tokens, plain copies: %s\n", tokens, world_text(world));
		return -1;
	}
	if (first)
		perf_print_facts(opts, world_board(world));
	for (const enum perf_phase *phase = perf_phases(opts); *phase != PERF_PHASES && *count < ROWS_MAX; phase++) {
		perf_row_make(opts, world_board(world), tokens, *phase, &row[*count]);
		perf_print_row(&row[(*count)++]);
	}
	fflush(stdout);
	return 0;
}

static int sweep(struct world *world, const struct perf_opts *opts)
{
	struct perf_row row[ROWS_MAX];
	int count = 0, rc = 0;

	perf_print_head(opts);
	for (int tokens = opts->first; tokens <= opts->last && !rc; tokens = tokens ? tokens * opts->factor : 1)
		rc = run_size(world, opts, tokens, row, &count);
	perf_print_end(opts, world_board(world), row, count);
	if (opts->json && perf_write_json(opts, world_board(world), row, count))
		rc = -1;
	for (int i = 0; i < count; i++)
		rc |= row[i].wrong > 0;
	return rc;
}

int main(int argc, char **argv)
{
	struct perf_opts opts = { .first = 1,
				  .last = 128,
				  .factor = 2,
				  .ranks = 1,
				  .hidden = 7168,
				  .topk = 8,
				  .check = true,
				  .iterations = 20,
				  .warmup = 5,
				  .bandwidth = 4300,
				  .seed = 1 };
	struct world_opts world_opts;
	struct world *world;
	int rc = parse(argc, argv, &opts);

	if (rc)
		return usage(rc > 0 ? stdout : stderr, rc > 0 ? 0 : 2);
	if (settle(&opts))
		return 2;
	if (opts.device[0])
		setenv("NCCL_EP_DEVICE", opts.device, 1);
	setenv("NCCL_EP_DEBUG", "WARN", 0);
	world_opts = (struct world_opts){ .seats = opts.ranks,
					  .processes = opts.processes,
					  .board = perf_board_size(&opts) };
	if (world_open(&world_opts, &world))
		return 1;
	rc = sweep(world, &opts);
	return world_close(world) || rc ? 1 : 0;
}
