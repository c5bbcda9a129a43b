/* SPDX-License-Identifier: Apache-2.0 */
/* The options of ep_perf and mpi_alltoallv_perf. */
#include <stdio.h>

#include "perf/perf.h"
#include "perf/perf_tool.h"
#include "test/oracle/world.h"

/* Options without a letter. */
enum {
	O_ALIGN = 256,
	O_BWD,
	O_COMBINE_SMS,
	O_DISPATCH_SMS,
	O_DROP,
	O_EAGER,
	O_GRAPH_UPDATE,
	O_GRAPH_ROUNDS,
	O_IDLE,
	O_LATENCY,
	O_MAX_RECV,
	O_RATE,
	O_SEPARATE,
	O_ZERO_COPY,
	O_ZIPF
};

#define LL PERF_FOR_LL
#define HT PERF_FOR_HT
#define EP (LL | HT)
#define ALL (EP | PERF_FOR_MPI)

/* clang-format off */
static const struct perf_arg rows[] = {
#define AT(member) offsetof(struct perf_opts, member)
	{ "algorithm", 'a', EP, ARG_WORD, AT(algorithm), 0, 2, "ll ht", "ll or ht (ll)" },
	{ "mintokens", 'b', ALL, ARG_INT, AT(first), 0, 1 << 20, NULL, "tokens per rank, first row (ll 1, ht as -e)" },
	{ "maxtokens", 'e', ALL, ARG_INT, AT(last), 0, 1 << 20, NULL, "and last row (ll 128, ht 4096, CPU 512)" },
	{ "stepfactor", 'f', ALL, ARG_INT, AT(factor), 2, 1024, NULL, "factor between rows (2)" },
	{ "hidden", 'H', ALL, ARG_SIZE, AT(hidden), 1, 1 << 20, NULL, "elements per token (7168, ht on the CPU 2048)" },
	{ "topk", 'k', ALL, ARG_INT, AT(topk), 1, 1 << 16, NULL, "experts per token (8)" },
	{ "experts", 'x', ALL, ARG_INT, AT(experts), 0, 1 << 20, NULL, "total experts (ll 32 per rank, ht 256)" },
	{ "layout", 'l', EP, ARG_WORD, AT(layout), 0, 3, "expert rank flat em rm", "expert (em), rank (rm) or flat" },
	{ "datatype", 'd', ALL, ARG_WORD, AT(dtype), 0, 3, "bf16 fp16 fp32", "bf16, fp16, fp32 (bf16)" },
	{ "quant", 'q', ALL, ARG_WORD, AT(quant), 0, 4, "none fwd ds ds_round", "none, fwd (e4m3), ds, ds_round" },
	{ "staged", 's', LL, ARG_SWITCH, AT(staged), 0, 1, NULL, "separate send and receive halves (0)" },
	{ "graph", 'G', EP, ARG_SWITCH, AT(graph), 0, 1, NULL, "dispatch and combine as a graph (0; GPU)" },
	{ "graph-rounds", O_GRAPH_ROUNDS, LL, ARG_INT, AT(graph_rounds), 1, 64, NULL, "so often in one graph (1)" },
	{ "graph-update", O_GRAPH_UPDATE, HT, ARG_SWITCH, AT(graph_update), 0, 1, NULL, "update in the graph (0)" },
	{ "windows", 'z', EP, ARG_SWITCH, AT(windows), 0, 1, NULL, "tensors in registered windows (0)" },
	{ "separate", O_SEPARATE, HT, ARG_SWITCH, AT(separate), 0, 1, NULL, "an allocation per tensor (0; GPU: one)" },
	{ "zero-copy", O_ZERO_COPY, EP, ARG_WORD, AT(zero_copy), 0, 3, "auto off on", "auto, off or on (auto)" },
	{ "bwd", O_BWD, HT, ARG_SWITCH, AT(bwd), 0, 1, NULL, "backward dispatch and combine too (0)" },
	{ "align", O_ALIGN, HT, ARG_INT, AT(align), 0, 1 << 20, NULL, "pad rows per expert to a multiple (0)" },
	{ "eager", O_EAGER, HT, ARG_SWITCH, AT(eager), 0, 1, NULL, "outputs sized by the update (0)" },
	{ "max-recv", O_MAX_RECV, HT, ARG_INT, AT(max_recv), 0, 1 << 30, NULL, "rows a rank can receive; 0: all" },
	{ "drop", O_DROP, HT, ARG_SWITCH, AT(drop), 0, 1, NULL, "drop what does not fit (0)" },
	{ "sms", 'm', EP, ARG_INT, AT(sms), 0, 65536, NULL, "max_num_sms; 0: automatic (ll 0, ht 24)" },
	{ "dispatch-sms", O_DISPATCH_SMS, EP, ARG_INT, AT(dispatch_sms), 0, 1 << 20, NULL, "of dispatch; 0: as -m" },
	{ "combine-sms", O_COMBINE_SMS, EP, ARG_INT, AT(combine_sms), 0, 1 << 20, NULL, "of combine; 0: as -m" },
	{ "zipf", O_ZIPF, EP, ARG_REAL, AT(zipf), 0, 0, NULL, "skewed routing: popularity n^-ZIPF; 0: uniform (0)" },
	{ "idle", O_IDLE, EP, ARG_INT, AT(idle), 0, 1 << 20, NULL, "the last so many ranks have no tokens (0)" },
	{ "ranks", 'R', EP, ARG_SWITCH, AT(each), 0, 1, NULL, "a row per rank too (0)" },
	{ "device", 'D', EP, ARG_NAME, AT(device), 0, 16, "auto host cuda", "auto, host or cuda (auto)" },
	{ "iters", 'n', ALL, ARG_INT, AT(iterations), 1, 100000, NULL, "timed iterations (20)" },
	{ "warmup_iters", 'w', ALL, ARG_INT, AT(warmup), 0, 100000, NULL, "warm-up iterations (5)" },
	{ "check", 'c', ALL, ARG_SWITCH, AT(check), 0, 1, NULL, "check all values against the oracle (1)" },
	{ "memcpy", 'M', LL, ARG_SWITCH, AT(memcpy), 0, 1, NULL, "also run plain copies as reference (0; CPU)" },
	{ "puts", 'P', EP, ARG_SWITCH, AT(puts), 0, 1, NULL, "bare puts as reference; ll: a rank per node (CPU)" },
	{ "bandwidth", 'B', EP, ARG_REAL, AT(bandwidth), 1, 0, NULL, "GB/s of GPU memory, for the limit (4300)" },
	{ "rate", O_RATE, EP, ARG_REAL, AT(rate), 0, 0, NULL, "Gb/s of a NIC, for the wire limit (its rate=)" },
	{ "latency", O_LATENCY, EP, ARG_REAL, AT(latency), 0, 0, NULL, "and its latency in us (its latency=, in ns)" },
	{ "seed", 'S', ALL, ARG_U64, AT(seed), 0, 1 << 30, NULL, "seed of routing and data (1)" },
	{ "json", 'J', ALL, ARG_TEXT, AT(json), 0, 0, NULL, "write the results to this file" },
	{ "processes", 'g', EP, ARG_INT, AT(ranks), 1, WORLD_SEATS, NULL, "ranks as processes" },
	{ "threads", 't', EP, ARG_INT, AT(ranks), 1, WORLD_SEATS, NULL, "ranks as threads (-t 1)" },
	{ "help", 'h', ALL, ARG_HELP, 0, 0, 0, NULL, "this text" },
#undef AT
};
/* clang-format on */
#define ROWS PERF_ARGS_COUNT(rows)
_Static_assert(sizeof(rows) / sizeof(rows[0]) <= 64, "perf_args.given has a bit for each");

static int complain(const struct perf_opts *opts, const char *text)
{
	if (!opts->quiet)
		fprintf(stderr, "%s: %s\n", opts->program, text);
	return -1;
}

static void taken(void *opts, const struct perf_arg *row)
{
	if (row->letter == 'g' || row->letter == 't')
		((struct perf_opts *)opts)->processes = row->letter == 'g';
}

int perf_opts_take(struct perf_opts *opts, unsigned use, int argc, char **argv)
{
	struct perf_args args = {
		.program = opts->program, .rows = rows, .count = ROWS, .use = use, .quiet = opts->quiet, .taken = taken
	};
	int rc = perf_args_take(&args, opts, argc, argv);

	opts->given = args.given;
	return rc;
}

/* ---- defaults ---- */

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
	/* Kernels that wait for each other must be resident together: for more ranks leave it to the library. */
	if (!given(opts, 'm'))
		opts->sms = d->sms * opts->ranks <= 128 ? d->sms : 0;
}

/* ---- conflicts ---- */

static int fits_ht(const struct perf_opts *opts)
{
	if (opts->layout == PERF_RANK_MAJOR)
		return complain(opts, "-l: ht supports flat and expert");
	if (opts->quant >= LL_QUANT_DS)
		return complain(opts, "-q: ht supports none and fwd");
	if (opts->align & (opts->align - 1))
		return complain(opts, "--align must be a power of two");
	if (opts->align > 1 && opts->layout != PERF_EXPERT_MAJOR)
		return complain(opts, "--align needs -l expert");
	if (opts->eager && (opts->max_recv || opts->graph))
		return complain(opts, "--eager excludes --max-recv and -G");
	if (opts->max_recv && opts->max_recv < opts->last)
		return complain(opts, "--max-recv must be at least -e");
	if (opts->drop && !opts->max_recv)
		return complain(opts, "--drop needs --max-recv");
	if (opts->graph && opts->bwd)
		return complain(opts, "-G excludes --bwd");
	if (opts->graph_update && !opts->graph)
		return complain(opts, "--graph-update needs -G");
	return 0;
}

static int fits_ll(const struct perf_opts *opts)
{
	if (opts->layout == PERF_FLAT)
		return complain(opts, "-l: ll supports expert and rank");
	if (opts->staged && opts->graph)
		return complain(opts, "-s excludes -G: a graph is of whole operations");
	if (opts->graph_rounds > 1 && !opts->graph)
		return complain(opts, "--graph-rounds needs -G");
	if (opts->memcpy && opts->puts)
		return complain(opts, "-M excludes -P");
	if (opts->quant >= LL_QUANT_DS && (opts->hidden % 512 || opts->dtype != NUM_BF16))
		return complain(opts, "-q ds needs -d bf16 and -H a multiple of 512");
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
	if (opts->launcher && (given(opts, 'g') || given(opts, 't')))
		return complain(opts, "-g and -t start ranks, but a launcher has started them: leave both out");
	fill_in(opts, gpu);
	if (opts->last < opts->first || opts->last < 1)
		return complain(opts, "-e must be at least 1 and at least -b");
	if (opts->experts % opts->ranks)
		return complain(opts, "-x must be a multiple of the number of ranks");
	if (opts->idle >= opts->ranks)
		return complain(opts, "--idle must be less than the number of ranks");
	if (opts->topk > opts->experts)
		return complain(opts, "-k must not exceed -x");
	if (opts->quant == LL_QUANT_FWD && opts->hidden % 512)
		return complain(opts, "-q fwd needs -H a multiple of 512: rows and scales are 16-byte aligned");
	if (opts->launcher && (opts->memcpy || (opts->puts && opts->algorithm == PERF_HT)))
		return complain(opts, "-M and -a ht -P need ranks that share memory: -g or -t, without a launcher");
	return opts->algorithm == PERF_HT ? fits_ht(opts) : fits_ll(opts);
}
