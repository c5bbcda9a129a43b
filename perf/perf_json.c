/* SPDX-License-Identifier: Apache-2.0 */
/* The results as JSON, by doc/ep_perf.schema.json: a change of what is written is a change there. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "perf/perf.h"

/* In an object that has a member before. */
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

static void json_text(FILE *out, const char *name, const char *value)
{
	fprintf(out, ", \"%s\": ", name);
	if (!value) {
		fprintf(out, "null");
		return;
	}
	fputc('"', out);
	for (; *value; value++)
		if (*value == '"' || *value == '\\')
			fprintf(out, "\\%c", *value);
		else if ((unsigned char)*value >= ' ')
			fputc(*value, out);
	fputc('"', out);
}

static void json_count(FILE *out, const char *name, int64_t value, bool known)
{
	if (known)
		fprintf(out, ", \"%s\": %lld", name, (long long)value);
	else
		fprintf(out, ", \"%s\": null", name);
}

static void json_each(FILE *out, const struct perf_each *each, int ranks)
{
	fprintf(out, ",\n     \"ranks\": [");
	for (int r = 0; r < ranks; r++) {
		const struct perf_each *e = &each[r];

		fprintf(out, "%s\n      {\"rank\": %d, \"bytes\": %.0f, \"remote_bytes\": %.0f", r ? "," : "", e->rank,
			e->bytes, e->remote);
		json_text(out, "host", e->host);
		json_number(out, "mean_us", e->mean_us);
		json_number(out, "p50_us", e->p50_us);
		json_number(out, "p99_us", e->p99_us);
		json_number(out, "worst_us", e->worst_us);
		json_count(out, "window_bytes", (int64_t)e->window, e->window != UINT64_MAX);
		json_count(out, "wrong", e->wrong, e->wrong >= 0);
		fprintf(out, "}");
	}
	fprintf(out, "]");
}

static const char *beside_name(const char *beside)
{
	return !strcmp(beside, "limit") ? "limit_us" : !strcmp(beside, "puts") ? "puts_us" : "memcpy_us";
}

static void json_rows(FILE *out, const struct perf_report *report)
{
	const char *beside = report->facts->beside;

	for (int i = 0; i < report->count; i++) {
		const struct perf_row *row = &report->rows[i];

		fprintf(out, "%s    {\"tokens\": %d, \"phase\": \"%s\", \"bytes\": %.0f, \"remote_bytes\": %.0f",
			i ? ",\n" : "", row->tokens, perf_phase_names[row->phase], row->bytes, row->remote);
		json_number(out, "device_us", row->device_us);
		json_number(out, "host_us", row->host_us);
		json_number(out, "best_us", row->best_us);
		json_number(out, "p50_us", row->p50_us);
		json_number(out, "p99_us", row->p99_us);
		json_number(out, "algbw", row->bytes > 0 ? row->algbw : -1);
		json_number(out, "busbw", row->bytes > 0 ? row->busbw : -1);
		if (*beside)
			json_number(out, beside_name(beside), row->beside_us);
		perf_json_far(out, row);
		json_count(out, "wrong", row->wrong, row->wrong >= 0);
		if (report->each)
			json_each(out, report->each + (size_t)i * (size_t)report->opts->ranks, report->opts->ranks);
		fprintf(out, "}");
	}
}

static void json_head(FILE *out, const struct perf_opts *opts, const struct perf_facts *facts)
{
	fprintf(out, "{\n  \"program\": \"%s\", \"version\": \"" EP_VERSION "\", \"algorithm\": \"%s\",\n",
		opts->program, opts->algorithm == PERF_HT ? "ht" : "ll");
	fprintf(out, "  \"layout\": \"%s\", \"ranks\": %d, \"device\": \"%s\"", perf_layout_names[opts->layout],
		opts->ranks, facts->device);
	json_bool(out, "processes", opts->processes || opts->launcher);
	json_text(out, "launcher", opts->launcher);
	fprintf(out, ",\n  \"hidden\": %zu, \"topk\": %d, \"experts\": %d, \"dtype\": \"%s\", \"quant\": \"%s\"",
		opts->hidden, opts->topk, opts->experts, num_info[opts->dtype].name, perf_quant_names[opts->quant]);
	fprintf(out, ",\n  \"sms\": %d, \"dispatch_sms\": %d, \"combine_sms\": %d", opts->sms, opts->dispatch_sms,
		opts->combine_sms);
	fprintf(out, ", \"zero_copy\": %d, \"align\": %d, \"max_recv\": %d", opts->zero_copy, opts->align,
		opts->max_recv);
	fprintf(out, ", \"zipf\": %g, \"idle_ranks\": %d", opts->zipf, opts->idle);
	json_bool(out, "eager", opts->eager);
	json_bool(out, "drop", opts->drop);
	json_bool(out, "staged", opts->staged);
	json_bool(out, "graph", opts->graph);
	json_count(out, "graph_rounds", perf_rounds(opts), true);
	json_bool(out, "graph_update", opts->graph_update);
	json_bool(out, "windows", opts->windows);
	fprintf(out, ",\n  \"iterations\": %d, \"warmup\": %d", opts->iterations, opts->warmup);
	json_number(out, "group_us", facts->group_us);
	json_number(out, "first_handle_us", facts->first_us);
	json_number(out, "later_handle_us", facts->later_us);
	json_count(out, "window_bytes", (int64_t)facts->window, facts->window != UINT64_MAX);
	fprintf(out, ",\n");
}

int perf_write_json(const struct perf_report *report)
{
	const struct perf_opts *opts = report->opts;
	FILE *out = fopen(opts->json, "w");
	int failed;

	if (!out) {
		fprintf(stderr, "%s: %s: %s\n", opts->program, opts->json, strerror(errno));
		return -1;
	}
	json_head(out, opts, report->facts);
	perf_json_net(out, &report->facts->net);
	fprintf(out, "  \"rows\": [\n");
	json_rows(out, report);
	fprintf(out, "\n  ]\n}\n");
	failed = ferror(out);
	if (fclose(out) || failed) {
		fprintf(stderr, "%s: %s: %s\n", opts->program, opts->json, strerror(errno));
		return -1;
	}
	return 0;
}
