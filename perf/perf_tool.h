/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by all programs here: command lines by table (one row per option, whose value is stored in a member of the
 * program's options struct), and the last line of the output.
 */
#ifndef EP_PERF_PERF_TOOL_H
#define EP_PERF_PERF_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum perf_arg_kind {
	ARG_INT,    /* int, or uint32_t with min >= 0 */
	ARG_SIZE,   /* size_t */
	ARG_U64,    /* uint64_t */
	ARG_REAL,   /* double, at least min */
	ARG_WORD,   /* int: index in words, modulo max; words from max on are synonyms */
	ARG_SWITCH, /* bool; may stand alone: -z is -z 1 */
	ARG_TEXT,   /* const char * */
	ARG_NAME,   /* char[max]: one of words */
	ARG_HELP
};

struct perf_arg {
	const char *name;
	int letter;   /* 256 or more: long form only */
	unsigned use; /* accepted where it shares a bit with perf_args.use; 0: always */
	enum perf_arg_kind kind;
	size_t offset;
	long min, max;
	const char *words; /* separated by spaces */
	const char *text;  /* in the usage, and after "must be" in an error */
};

struct perf_args {
	const char *program;
	const struct perf_arg *rows;
	int count; /* 64 at most */
	unsigned use;
	bool quiet;					       /* print nothing: another rank does */
	void (*taken)(void *opts, const struct perf_arg *row); /* after each value that was stored; or NULL */
	uint64_t given;					       /* out: a bit per row */
};

#define PERF_ARGS_COUNT(rows) ((int)(sizeof(rows) / sizeof((rows)[0])))

/* 0; 1 after help; -1 for an error, which has been printed. opts holds the defaults before. */
int perf_args_take(struct perf_args *args, void *opts, int argc, char **argv);

/* algbw: GB/s, the average over rows; < 0: not printed. Returns the program's exit code. */
int perf_end(double algbw, long long wrong);

#endif
