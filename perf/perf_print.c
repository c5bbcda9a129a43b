/* SPDX-License-Identifier: Apache-2.0 */
/* The table. */
#include <stdio.h>
#include <string.h>

#include "perf/perf.h"

const char *const perf_phase_names[PERF_PHASES] = {
	[PERF_UPDATE] = "update",
	[PERF_DISPATCH] = "dispatch",
	[PERF_COMBINE] = "combine",
	[PERF_DISPATCH_BWD] = "dispatch bwd",
	[PERF_COMBINE_BWD] = "combine bwd",
	[PERF_DISPATCH_SEND] = "dispatch send",
	[PERF_DISPATCH_RECV] = "dispatch recv",
	[PERF_COMBINE_SEND] = "combine send",
	[PERF_COMBINE_RECV] = "combine recv",
	[PERF_GRAPH] = "graph",
	[PERF_ALLTOALLV] = "alltoallv",
};

const char *const perf_quant_names[] = { "none", "fwd", "ds", "ds_round" };
const char *const perf_layout_names[] = { "expert-major", "rank-major", "flat" };
static const char *const mode_names[] = { "low latency", "high throughput" };
static const char *const copy_names[] = { "", ", zero-copy off", ", zero-copy on" };

const enum perf_phase *perf_phases(const struct perf_opts *opts)
{
	static const enum perf_phase whole[] = { PERF_DISPATCH, PERF_COMBINE, PERF_PHASES };
	static const enum perf_phase halves[] = { PERF_DISPATCH_SEND, PERF_DISPATCH_RECV, PERF_COMBINE_SEND,
						  PERF_COMBINE_RECV, PERF_PHASES };
	static const enum perf_phase graph[] = { PERF_GRAPH, PERF_PHASES };
	static const enum perf_phase ht[] = { PERF_UPDATE, PERF_DISPATCH, PERF_COMBINE, PERF_PHASES };
	static const enum perf_phase both[] = { PERF_UPDATE,	   PERF_DISPATCH,    PERF_COMBINE,
						PERF_DISPATCH_BWD, PERF_COMBINE_BWD, PERF_PHASES };

	if (opts->graph)
		return graph;
	if (opts->algorithm == PERF_HT)
		return opts->bwd ? both : ht;
	return opts->staged ? halves : whole;
}

int perf_rounds(const struct perf_opts *opts)
{
	return opts->graph && opts->graph_rounds > 1 ? opts->graph_rounds : 1;
}

void perf_print_head(const struct perf_opts *opts)
{
	printf("# %s " EP_VERSION ", %s, %s, %d %s%s, %s%s%s%s%s%s\n", opts->program,
	       opts->title ? opts->title : mode_names[opts->algorithm], perf_layout_names[opts->layout], opts->ranks,
	       opts->launcher	 ? "processes by "
	       : opts->processes ? "processes"
				 : "threads",
	       opts->launcher ? opts->launcher : "", num_info[opts->dtype].name, opts->staged ? ", staged" : "",
	       opts->graph ? ", graph" : "", opts->graph_update ? " with update" : "", opts->windows ? ", windows" : "",
	       copy_names[opts->zero_copy]);
	printf("# tokens %d to %d, times %d; hidden %zu, top-%d of %d experts, quantisation %s, SMs %d\n", opts->first,
	       opts->last, opts->factor, opts->hidden, opts->topk, opts->experts, perf_quant_names[opts->quant],
	       opts->sms);
	if (perf_rounds(opts) > 1)
		printf("# %d dispatches and combines in a graph; times are those of one of each\n", perf_rounds(opts));
	if (opts->align > 1)
		printf("# rows of an expert padded to %d\n", opts->align);
	if (opts->eager)
		printf("# eager: outputs sized by the update\n");
	if (opts->max_recv)
		printf("# room for %d rows per rank%s\n", opts->max_recv, opts->drop ? ", the rest is dropped" : "");
	if (opts->dispatch_sms || opts->combine_sms)
		printf("# SMs of dispatch %d, of combine %d; 0: as above\n", opts->dispatch_sms, opts->combine_sms);
	if (opts->zipf > 0)
		printf("# routing skewed by a Zipf law of exponent %g\n", opts->zipf);
	if (opts->idle)
		printf("# the last %d ranks have no tokens\n", opts->idle);
	if (opts->each)
		printf("# a line per rank: bytes received, those of other ranks, its own times\n");
	printf("# %d iterations after %d of warm-up; times are averages, of the slowest rank\n", opts->iterations,
	       opts->warmup);
}

void perf_print_facts(const struct perf_opts *opts, const struct perf_facts *facts)
{
	const char *beside = facts->beside;

	printf("# device %s", facts->device);
	if (facts->window != UINT64_MAX)
		printf(", EP memory (windows) at most %llu bytes per rank", (unsigned long long)facts->window);
	if (!strcmp(beside, "limit"))
		printf(", limit: bytes / %.0f GB/s", opts->bandwidth);
	if (facts->first_us >= 0)
		printf("\n# group made in %.2f ms, its first handle in %.2f ms, a later one in %.2f ms",
		       1e-3 * facts->group_us, 1e-3 * facts->first_us, 1e-3 * facts->later_us);
	printf("\n#\n#%9s  %-14s %12s %10s %10s %10s %10s %9s %9s %10s%s %7s\n", "tokens", "phase", "bytes", "time",
	       "p50", "p99", "host", "algbw", "busbw", beside, opts->puts ? "   reached" : "", "#wrong");
	printf("#%9s  %-14s %12s %10s %10s %10s %10s %9s %9s %10s%s %7s\n", "", "", "(B/rank)", "(us)", "(us)", "(us)",
	       "(us)", "(GB/s)", "(GB/s)", *beside ? "(us)" : "", opts->puts ? "       (%)" : "", "");
}

static void print_or(double value, int width)
{
	if (value < 0)
		printf(" %*s", width, "-");
	else
		printf(" %*.2f", width, value);
}

void perf_print_row(const struct perf_opts *opts, const struct perf_row *row)
{
	printf("%10d  %-14s %12.0f", row->tokens, perf_phase_names[row->phase], row->bytes);
	print_or(row->device_us < 0 ? row->host_us : row->device_us, 10);
	print_or(row->p50_us, 10);
	print_or(row->p99_us, 10);
	print_or(row->host_us, 10);
	print_or(row->bytes > 0 ? row->algbw : -1, 9);
	print_or(row->bytes > 0 ? row->busbw : -1, 9);
	print_or(row->beside_us, 10);
	if (opts->puts) /* of the fastest iterations: the two run one after the other, so averages compare badly */
		print_or(row->beside_best_us > 0 ? 100 * row->beside_best_us / row->best_us : -1, 9);
	if (row->wrong < 0)
		printf(" %7s\n", "N/A");
	else
		printf(" %7lld\n", (long long)row->wrong);
	fflush(stdout);
}

/* Times on the device where there is one, as in the column `time`. */
void perf_print_each(const struct perf_each *each, int count)
{
	for (int r = 0; r < count; r++) {
		const struct perf_each *e = &each[r];

		printf("# rank %4d on %-16s %12.0f %12.0f B, mean %.2f p50 %.2f p99 %.2f worst %.2f us", e->rank,
		       e->host, e->bytes, e->remote, e->mean_us, e->p50_us, e->p99_us, e->worst_us);
		if (e->window != UINT64_MAX)
			printf(", windows %llu B", (unsigned long long)e->window);
		printf(", wrong %lld\n", (long long)(e->wrong > 0 ? e->wrong : 0));
	}
	fflush(stdout);
}

/* For the largest size, by the fastest iterations. */
static void print_ratios(const struct perf_row *rows, int count, const char *beside)
{
	for (int i = 0; *beside && i < count; i++)
		if (rows[i].tokens == rows[count - 1].tokens && rows[i].beside_best_us > 0)
			printf("# %-20s : %.2f times the %s at %d tokens, %.2f us\n", perf_phase_names[rows[i].phase],
			       rows[i].best_us / rows[i].beside_best_us, beside, rows[i].tokens, rows[i].best_us);
}

void perf_print_end(const struct perf_facts *facts, const struct perf_row *rows, int count)
{
	long long wrong = 0;
	double algbw = 0, busbw = 0;
	int with_bytes = 0, checked = 0;

	for (int i = 0; i < count; i++) {
		wrong += rows[i].wrong > 0 ? rows[i].wrong : 0;
		checked += rows[i].wrong >= 0;
		algbw += rows[i].algbw;
		busbw += rows[i].busbw > 0 ? rows[i].busbw : 0;
		with_bytes += rows[i].bytes > 0;
	}
	printf("# Out of bounds values : %lld %s\n", wrong, wrong ? "FAILED" : checked ? "OK" : "not checked");
	printf("# Avg algbw (GB/s)     : %.3f\n", with_bytes ? algbw / with_bytes : 0);
	printf("# Avg busbw (GB/s)     : %.3f\n", with_bytes ? busbw / with_bytes : 0);
	print_ratios(rows, count, facts->beside);
	printf("#\n");
	perf_print_far(facts, rows, count);
}
