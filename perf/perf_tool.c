/* SPDX-License-Identifier: Apache-2.0 */
#include "perf/perf_tool.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 64

static bool row_used(const struct perf_args *args, int i)
{
	return !args->rows[i].use || args->rows[i].use & args->use;
}

static void usage(const struct perf_args *args, FILE *out)
{
	fprintf(out, "usage: %s [options]\n", args->program);
	for (int i = 0; i < args->count; i++) {
		const struct perf_arg *row = &args->rows[i];

		if (row_used(args, i) && row->letter < 256)
			fprintf(out, "  -%c, --%-14s %s\n", row->letter, row->name, row->text);
		else if (row_used(args, i))
			fprintf(out, "      --%-14s %s\n", row->name, row->text);
	}
}

static int bad(const struct perf_args *args, const struct perf_arg *row, const char *value)
{
	if (!args->quiet)
		fprintf(stderr, "%s: --%s %s: must be %s\n", args->program, row->name, value, row->text);
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

static int take_number(const struct perf_arg *row, const char *value, void *at)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(value, &end, 0);
	if (end == value || *end || errno || n < row->min || n > row->max)
		return -1;
	if (row->kind == ARG_SIZE)
		*(size_t *)at = (size_t)n;
	else if (row->kind == ARG_U64)
		*(uint64_t *)at = (uint64_t)n;
	else if (row->kind == ARG_SWITCH)
		*(bool *)at = n != 0;
	else
		*(int *)at = (int)n;
	return 0;
}

static int take(const struct perf_arg *row, const char *value, void *opts)
{
	void *at = (char *)opts + row->offset;
	char *end;
	int index;

	switch (row->kind) {
	case ARG_WORD:
		index = word_index(row->words, value);
		if (index < 0)
			return -1;
		*(int *)at = index % (int)row->max;
		return 0;
	case ARG_REAL:
		*(double *)at = strtod(value, &end);
		return *end || end == value || !(*(double *)at >= (double)row->min) ? -1 : 0;
	case ARG_TEXT:
		*(const char **)at = value;
		return 0;
	case ARG_NAME:
		if (word_index(row->words, value) < 0)
			return -1;
		snprintf(at, (size_t)row->max, "%s", value);
		return 0;
	default:
		return take_number(row, value, at);
	}
}

/* The value of a switch: optional, 0 or 1 as the next word. */
static const char *switch_value(int argc, char **argv)
{
	if (optarg)
		return optarg;
	if (optind < argc && (!strcmp(argv[optind], "0") || !strcmp(argv[optind], "1")))
		return argv[optind++];
	return "1";
}

static void getopt_tables(const struct perf_args *args, struct option *longs, char *shorts)
{
	for (int i = 0; i < args->count; i++) {
		const struct perf_arg *row = &args->rows[i];
		int argument = row->kind == ARG_HELP	 ? no_argument
			       : row->kind == ARG_SWITCH ? optional_argument
							 : required_argument;

		if (!row_used(args, i))
			continue;
		*longs++ = (struct option){ row->name, argument, NULL, row->letter };
		if (row->letter >= 256)
			continue;
		*shorts++ = (char)row->letter;
		for (int colons = argument; colons > 0; colons--) /* required 1, optional 2 */
			*shorts++ = ':';
	}
	*longs = (struct option){ 0 };
	*shorts = '\0';
}

int perf_args_take(struct perf_args *args, void *opts, int argc, char **argv)
{
	struct option longs[ROWS_MAX + 1];
	char shorts[3 * ROWS_MAX + 1];
	int c, i;

	getopt_tables(args, longs, shorts);
	opterr = !args->quiet;
	while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		const struct perf_arg *row;
		const char *value;

		for (i = 0; i < args->count && args->rows[i].letter != c; i++)
			;
		if (i == args->count)
			break;
		row = &args->rows[i];
		if (row->kind == ARG_HELP) {
			if (!args->quiet)
				usage(args, stdout);
			return 1;
		}
		value = row->kind == ARG_SWITCH ? switch_value(argc, argv) : optarg;
		if (take(row, value, opts))
			return bad(args, row, value);
		args->given |= 1ull << i;
		if (args->taken)
			args->taken(opts, row);
	}
	if (c == -1 && optind == argc)
		return 0;
	if (!args->quiet)
		usage(args, stderr);
	return -1;
}

int perf_end(double algbw, long long wrong)
{
	if (algbw >= 0)
		printf("# Avg algbw (GB/s) : %.3f   ", algbw);
	else
		printf("# ");
	printf("Out of bounds values : %lld %s\n#\n", wrong, wrong ? "FAILED" : "OK");
	return wrong != 0;
}
