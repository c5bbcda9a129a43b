/* SPDX-License-Identifier: Apache-2.0 */
/* The table, and the same figures as JSON. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "perf/ep_perf.h"

static const char *const quant_names[] = { "none", "fwd", "ds", "ds_round" };

void perf_print_head(const struct perf_opts *opts)
{
	printf("# ep_perf " EP_VERSION ", low latency, %s, %d %s, %s%s%s%s\n",
	       opts->layout == LL_EXPERT_MAJOR ? "expert-major" : "rank-major", opts->ranks,
	       opts->processes ? "processes" : "threads", num_info[opts->dtype].name, opts->staged ? ", staged" : "",
	       opts->graph ? ", graph" : "", opts->windows ? ", windows" : "");
	printf("# tokens %d to %d, times %d; hidden %zu, top-%d of %d experts, quantisation %s, SMs %d\n", opts->first,
	       opts->last, opts->factor, opts->hidden, opts->topk, opts->experts, quant_names[opts->quant], opts->sms);
	printf("# %d iterations after %d of warm-up; times are the slowest rank's, averaged\n", opts->iterations,
	       opts->warmup);
}

static const char *beside_name(const struct perf_opts *opts, bool gpu)
{
	return gpu ? "limit" : opts->memcpy ? "memcpy" : "";
}

void perf_print_facts(const struct perf_opts *opts, void *board)
{
	const struct perf_rank *rank = perf_board_rank(board, 0);
	const char *beside = beside_name(opts, rank->gpu);

	printf("# device %s, windows ", rank->gpu ? "cuda" : "host");
	if (rank->window == UINT64_MAX)
		printf("unknown");
	else
		printf("%llu bytes per rank", (unsigned long long)rank->window);
	if (rank->gpu)
		printf(", limit: bytes / %.0f GB/s", opts->bandwidth);
	printf("\n#\n#%9s  %-14s %12s %10s %10s %9s %10s %7s\n", "tokens", "phase", "bytes", "time", "host", "algbw",
	       beside, "#wrong");
	printf("#%9s  %-14s %12s %10s %10s %9s %10s %7s\n", "", "", "(B/rank)", "(us)", "(us)", "(GB/s)",
	       *beside ? "(us)" : "", "");
}

static void print_or(double value, int width)
{
	if (value < 0)
		printf(" %*s", width, "-");
	else
		printf(" %*.2f", width, value);
}

void perf_print_row(const struct perf_row *row)
{
	printf("%10d  %-14s %12.0f", row->tokens, perf_phase_names[row->phase], row->bytes);
	print_or(row->device_us < 0 ? row->host_us : row->device_us, 10);
	print_or(row->host_us, 10);
	print_or(row->algbw, 9);
	print_or(row->beside_us, 10);
	if (row->wrong < 0)
		printf(" %7s\n", "N/A");
	else
		printf(" %7lld\n", (long long)row->wrong);
}

/* Of the largest size, in the fastest iterations. */
static void print_ratios(const struct perf_row *rows, int count, const char *beside)
{
	for (int i = 0; *beside && i < count; i++)
		if (rows[i].tokens == rows[count - 1].tokens && rows[i].beside_best_us > 0)
			printf("# %-20s : %.2f times the %s at %d tokens, %.2f us\n", perf_phase_names[rows[i].phase],
			       rows[i].best_us / rows[i].beside_best_us, beside, rows[i].tokens, rows[i].best_us);
}

void perf_print_end(const struct perf_opts *opts, void *board, const struct perf_row *rows, int count)
{
	const char *beside = beside_name(opts, perf_board_rank(board, 0)->gpu);
	long long wrong = 0;
	double algbw = 0;

	for (int i = 0; i < count; i++) {
		wrong += rows[i].wrong > 0 ? rows[i].wrong : 0;
		algbw += rows[i].algbw / count;
	}
	printf("# Out of bounds values : %lld %s\n# Avg algbw (GB/s)     : %.3f\n", wrong, wrong ? "FAILED" : "OK",
	       algbw);
	print_ratios(rows, count, beside);
	printf("#\n");
}

static void json_number(FILE *out, const char *name, double value)
{
	if (value < 0)
		fprintf(out, ", \"%s\": null", name);
	else
		fprintf(out, ", \"%s\": %.3f", name, value);
}

static void json_rows(FILE *out, const struct perf_opts *opts, bool gpu, const struct perf_row *rows, int count)
{
	for (int i = 0; i < count; i++) {
		const struct perf_row *row = &rows[i];

		fprintf(out, "%s    {\"tokens\": %d, \"phase\": \"%s\", \"bytes\": %.0f", i ? ",\n" : "", row->tokens,
			perf_phase_names[row->phase], row->bytes);
		json_number(out, "device_us", row->device_us);
		json_number(out, "host_us", row->host_us);
		json_number(out, "best_us", row->best_us);
		json_number(out, "algbw", row->algbw);
		if (*beside_name(opts, gpu))
			json_number(out, gpu ? "limit_us" : "memcpy_us", row->beside_us);
		if (row->wrong < 0)
			fprintf(out, ", \"wrong\": null}");
		else
			fprintf(out, ", \"wrong\": %lld}", (long long)row->wrong);
	}
}

int perf_write_json(const struct perf_opts *opts, void *board, const struct perf_row *rows, int count)
{
	const struct perf_rank *rank = perf_board_rank(board, 0);
	FILE *out = fopen(opts->json, "w");
	int failed;

	if (!out) {
		fprintf(stderr, "ep_perf: %s: %s\n", opts->json, strerror(errno));
		return -1;
	}
	fprintf(out, "{\n  \"program\": \"ep_perf\", \"version\": \"" EP_VERSION "\", \"algorithm\": \"ll\",\n");
	fprintf(out, "  \"layout\": \"%s\", \"ranks\": %d, \"processes\": %s, \"device\": \"%s\",\n",
		opts->layout == LL_EXPERT_MAJOR ? "expert-major" : "rank-major", opts->ranks,
		opts->processes ? "true" : "false", rank->gpu ? "cuda" : "host");
	fprintf(out, "  \"hidden\": %zu, \"topk\": %d, \"experts\": %d, \"dtype\": \"%s\", \"quant\": \"%s\",\n",
		opts->hidden, opts->topk, opts->experts, num_info[opts->dtype].name, quant_names[opts->quant]);
	fprintf(out, "  \"staged\": %s, \"graph\": %s, \"windows\": %s, \"sms\": %d,\n",
		opts->staged ? "true" : "false", opts->graph ? "true" : "false", opts->windows ? "true" : "false",
		opts->sms);
	fprintf(out, "  \"iterations\": %d, \"warmup\": %d, ", opts->iterations, opts->warmup);
	if (rank->window == UINT64_MAX)
		fprintf(out, "\"window_bytes\": null,\n");
	else
		fprintf(out, "\"window_bytes\": %llu,\n", (unsigned long long)rank->window);
	fprintf(out, "  \"rows\": [\n");
	json_rows(out, opts, rank->gpu, rows, count);
	fprintf(out, "\n  ]\n}\n");
	failed = ferror(out);
	if (fclose(out) || failed) {
		fprintf(stderr, "ep_perf: %s: %s\n", opts->json, strerror(errno));
		return -1;
	}
	return 0;
}
