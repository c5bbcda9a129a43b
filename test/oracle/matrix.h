/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test matrix as a program: cells are lines of "factor=value ..." from tools/cover.py (-f), one of them by hand (-r),
 * or random ones (-n, -s). Ranks are threads, or processes with -g; they and their communicators live from cell to
 * cell, each cell has its own group.
 */
#ifndef EP_TEST_ORACLE_MATRIX_H
#define EP_TEST_ORACLE_MATRIX_H

#include "test/oracle/check.h"
#include "test/oracle/world.h"

#define MATRIX_FACTORS 32
#define MATRIX_RANKS 8

/* words: the value is the place of the word. numbers: the value itself, and any other number is taken too. */
struct factor {
	const char *name, *words, *numbers;
	int absent;
};

struct matrix {
	const char *name;
	const struct factor *factor;
	int factors, ranks; /* ranks: the factor that says how many */
	int plain; /* factors from this on are drawn in random cells with -N only; else they are absent. 0: none is */
	/* The contract's rules: NULL, or why there is no such cell. cover.py gets the same ones in the .args file. */
	const char *(*illegal)(const int *v);
	/* A random cell that would take too long: time, not law. */
	bool (*heavy)(const int *v);
	/* Factors that others rule out take this value in random cells instead of one that is drawn; else -1. */
	int (*forced)(const int *v, int factor);
	/* job[size], at most WORLD_ARG bytes, for fn; filler: multiprocessors a foreign kernel holds meanwhile. */
	void (*make)(const int *v, uint64_t seed, int filler, void *job);
	/* What the groups of a cell find in the environment; v NULL: of the jobs beside the cells; net: what -k said or
	 * NULL. May be NULL. */
	void (*env)(struct world *world, const int *v, uint64_t seed, const char *net);
	size_t size;
	world_fn fn;
	/* Jobs beside the cells, run where neither -f nor -r is given, or with -f; may be NULL. */
	const struct matrix_extra {
		const char *name;
		world_fn fn;
		int ranks, arg;
	} *extra;
	int extras;
};

/* What a job tells: the number of wrong values of a seat. */
void matrix_wrong(struct seat *seat, const struct ll_verdict *verdict);

int matrix_main(const struct matrix *matrix, int argc, char **argv);

#endif
