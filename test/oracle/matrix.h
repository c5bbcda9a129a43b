/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test matrix as a program: cells are lines of "factor=value ..." from tools/cover.py (-f), a single one (-r), or
 * random ones (-n, -s). Ranks are threads, or processes with -g; they and their communicators are kept from cell to
 * cell, each cell has its own group.
 */
#ifndef EP_TEST_ORACLE_MATRIX_H
#define EP_TEST_ORACLE_MATRIX_H

#include "test/oracle/check.h"
#include "test/oracle/world.h"

#define MATRIX_FACTORS 40
#define MATRIX_RANKS 8	    /* in one node, */
#define MATRIX_RANKS_FAR 16 /* and with simulated ones */

/* words: the value is the index of the word. numbers: the values to draw; any other number is accepted too. */
struct factor {
	const char *name, *words, *numbers;
	int absent;
};

struct matrix {
	const char *name;
	const struct factor *factor;
	int factors, ranks; /* ranks: the factor with their number */
	int plain;	    /* factors from this on are drawn in random cells with -N only, else absent; 0: none */
	/* Sets factors that follow from others. May be NULL. */
	void (*derive)(int *v);
	/* The rules of the contract: NULL, or why the cell is illegal. cover.py gets the same in the .args file. */
	const char *(*illegal)(const int *v);
	/* Legal, but too slow for a random cell. */
	bool (*heavy)(const int *v);
	/* The value a factor must have in a random cell because of other factors; -1: drawn. */
	int (*forced)(const int *v, int factor);
	/* job[size], at most WORLD_ARG bytes, for fn; filler: SMs occupied by another kernel. */
	void (*make)(const int *v, uint64_t seed, int filler, void *job);
	/* Sets the environment for a cell; v NULL: for the extra jobs; net: value of -k or NULL. May be NULL. */
	void (*env)(struct world *world, const int *v, uint64_t seed, const char *net);
	size_t size;
	world_fn fn;
	/* Extra jobs, not run with -r; may be NULL. */
	const struct matrix_extra {
		const char *name;
		world_fn fn;
		int ranks, arg;
	} *extra;
	int extras;
};

/* Reports the number of wrong values of a seat. */
void matrix_wrong(struct seat *seat, const struct ll_verdict *verdict);

int matrix_main(const struct matrix *matrix, int argc, char **argv);

#endif
