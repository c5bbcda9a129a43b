/* SPDX-License-Identifier: Apache-2.0 */
/* The table, and the same results as JSON. */
#include <errno.h>
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

static const char *const quant_names[] = { "none", "fwd", "ds", "ds_round" };
static const char *const layout_names[] = { "expert-major", "rank-major", "flat" };
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

void perf_print_head(const struct perf_opts *opts)
{
	printf("# %s " EP_VERSION ", %s, %s, %d %s%s, %s%s%s%s%s%s\n", opts->program,
	       opts->title ? opts->title : mode_names[opts->algorithm], layout_names[opts->layout], opts->ranks,
	       opts->launcher	 ? "processes by "
	       : opts->processes ? "processes"
				 : "threads",
	       opts->launcher ? opts->launcher : "", num_info[opts->dtype].name, opts->staged ? ", staged" : "",
	       opts->graph ? ", graph" : "", opts->graph_update ? " with update" : "", opts->windows ? ", windows" : "",
	       copy_names[opts->zero_copy]);
	printf("# tokens %d to %d, times %d; hidden %zu, top-%d of %d experts, quantisation %s, SMs %d\n", opts->first,
	       opts->last, opts->factor, opts->hidden, opts->topk, opts->experts, quant_names[opts->quant], opts->sms);
	if (opts->align > 1)
		printf("# rows of an expert padded to %d\n", opts->align);
	if (opts->eager)
		printf("# eager: outputs sized by the update\n");
	if (opts->max_recv)
		printf("# room for %d rows per rank%s\n", opts->max_recv, opts->drop ? ", the rest is dropped" : "");
	printf("# %d iterations after %d of warm-up; times are the slowest rank's, averaged\n", opts->iterations,
	       opts->warmup);
}

void perf_print_facts(const struct perf_opts *opts, const struct perf_facts *facts)
{
	const char *beside = facts->beside;

	printf("# device %s", facts->device);
	if (facts->window != UINT64_MAX)
		printf(", windows %llu bytes per rank", (unsigned long long)facts->window);
	if (!strcmp(beside, "limit"))
		printf(", limit: bytes / %.0f GB/s", opts->bandwidth);
	if (facts->first_us >= 0)
		printf("\n# group made in %.2f ms, its first handle in %.2f ms, a later one in %.2f ms",
		       1e-3 * facts->group_us, 1e-3 * facts->first_us, 1e-3 * facts->later_us);
	printf("\n#\n#%9s  %-14s %12s %10s %10s %9s %10s%s %7s\n", "tokens", "phase", "bytes", "time", "host", "algbw",
	       beside, opts->puts ? "   reached" : "", "#wrong");
	printf("#%9s  %-14s %12s %10s %10s %9s %10s%s %7s\n", "", "", "(B/rank)", "(us)", "(us)", "(GB/s)",
	       *beside ? "(us)" : "", opts->puts ? "       (%)" : "", "");
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
	print_or(row->host_us, 10);
	print_or(row->bytes > 0 ? row->algbw : -1, 9);
	print_or(row->beside_us, 10);
	if (opts->puts) /* of the fastest iterations: the two run one after the other, so averages compare badly */
		print_or(row->beside_best_us > 0 ? 100 * row->beside_best_us / row->best_us : -1, 9);
	if (row->wrong < 0)
		printf(" %7s\n", "N/A");
	else
		printf(" %7lld\n", (long long)row->wrong);
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
	double algbw = 0;
	int with_bytes = 0, checked = 0;

	for (int i = 0; i < count; i++) {
		wrong += rows[i].wrong > 0 ? rows[i].wrong : 0;
		checked += rows[i].wrong >= 0;
		algbw += rows[i].algbw;
		with_bytes += rows[i].bytes > 0;
	}
	printf("# Out of bounds values : %lld %s\n", wrong, wrong ? "FAILED" : checked ? "OK" : "not checked");
	printf("# Avg algbw (GB/s)     : %.3f\n", with_bytes ? algbw / with_bytes : 0);
	print_ratios(rows, count, facts->beside);
	printf("#\n");
	perf_print_far(facts, rows, count);
}

/* ---- JSON ---- */

static void json_number(FILE *out, const char *name, double value)
{
	if (value < 0)
		fprintf(out, ", \"%s\": null", name);
	else
		fprintf(out, ", \"%s\": %.3f", name, value);
}

static void json_bool(FILE *out, const char *name, bool value)
{
	fprintf(out, ", \"%s\": %s", name, value ? "true" : "false");
}

static void json_rows(FILE *out, const char *beside, const struct perf_row *rows, int count)
{
	for (int i = 0; i < count; i++) {
		const struct perf_row *row = &rows[i];

		fprintf(out, "%s    {\"tokens\": %d, \"phase\": \"%s\", \"bytes\": %.0f", i ? ",\n" : "", row->tokens,
			perf_phase_names[row->phase], row->bytes);
		json_number(out, "device_us", row->device_us);
		json_number(out, "host_us", row->host_us);
		json_number(out, "best_us", row->best_us);
		json_number(out, "algbw", row->algbw);
		if (*beside)
			json_number(out,
				    !strcmp(beside, "limit")  ? "limit_us"
				    : !strcmp(beside, "puts") ? "puts_us"
							      : "memcpy_us",
				    row->beside_us);
		perf_json_far(out, row);
		if (row->wrong < 0)
			fprintf(out, ", \"wrong\": null}");
		else
			fprintf(out, ", \"wrong\": %lld}", (long long)row->wrong);
	}
}

static void json_head(FILE *out, const struct perf_opts *opts, const struct perf_facts *facts)
{
	fprintf(out, "{\n  \"program\": \"%s\", \"version\": \"" EP_VERSION "\", \"algorithm\": \"%s\",\n",
		opts->program, opts->algorithm == PERF_HT ? "ht" : "ll");
	fprintf(out, "  \"layout\": \"%s\", \"ranks\": %d, \"device\": \"%s\"", layout_names[opts->layout], opts->ranks,
		facts->device);
	json_bool(out, "processes", opts->processes);
	fprintf(out, ",\n  \"hidden\": %zu, \"topk\": %d, \"experts\": %d, \"dtype\": \"%s\", \"quant\": \"%s\"",
		opts->hidden, opts->topk, opts->experts, num_info[opts->dtype].name, quant_names[opts->quant]);
	fprintf(out, ",\n  \"sms\": %d, \"zero_copy\": %d, \"align\": %d, \"max_recv\": %d", opts->sms, opts->zero_copy,
		opts->align, opts->max_recv);
	json_bool(out, "eager", opts->eager);
	json_bool(out, "drop", opts->drop);
	json_bool(out, "staged", opts->staged);
	json_bool(out, "graph", opts->graph);
	json_bool(out, "graph_update", opts->graph_update);
	json_bool(out, "windows", opts->windows);
	fprintf(out, ",\n  \"iterations\": %d, \"warmup\": %d", opts->iterations, opts->warmup);
	json_number(out, "group_us", facts->group_us);
	json_number(out, "first_handle_us", facts->first_us);
	json_number(out, "later_handle_us", facts->later_us);
	if (facts->window == UINT64_MAX)
		fprintf(out, ", \"window_bytes\": null,\n");
	else
		fprintf(out, ", \"window_bytes\": %llu,\n", (unsigned long long)facts->window);
}

int perf_write_json(const struct perf_opts *opts, const struct perf_facts *facts, const struct perf_row *rows,
		    int count)
{
	FILE *out = fopen(opts->json, "w");
	int failed;

	if (!out) {
		fprintf(stderr, "%s: %s: %s\n", opts->program, opts->json, strerror(errno));
		return -1;
	}
	json_head(out, opts, facts);
	perf_json_net(out, &facts->net);
	fprintf(out, "  \"rows\": [\n");
	json_rows(out, facts->beside, rows, count);
	fprintf(out, "\n  ]\n}\n");
	failed = ferror(out);
	if (fclose(out) || failed) {
		fprintf(stderr, "%s: %s: %s\n", opts->program, opts->json, strerror(errno));
		return -1;
	}
	return 0;
}
