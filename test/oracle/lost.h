/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests in which a rank of four is lost in the middle of operations between simulated nodes, by a fault or, if
 * ranks are processes, by a signal: options, the cases one after the other, and what every error must be like.
 */
#ifndef EP_TEST_ORACLE_LOST_H
#define EP_TEST_ORACLE_LOST_H

#include "test/oracle/check.h"
#include "test/oracle/far.h"

#define LOST_RANKS 4

/* On the board. */
struct lost_meet {
	atomic_int survivors, all, checked;
	double told[LOST_RANKS]; /* when each got its error; 0: it got none */
};

struct lost_run {
	const char *program;
	struct world_opts opts;
	struct world *world; /* NULL: a new one for the next case */
	int only;	     /* case number; -1: all */
	int seeds;
	const char *net; /* instead of loop, or NULL */
	bool spare;	 /* no rank is killed */
	double timeout;	 /* seconds */
	int number, passed, failed, checked;
};

struct lost_case {
	char text[96];
	char net[FAR_NET_MAX]; /* with the fault */
	struct far_nodes nodes;
	int killed;	      /* rank; -1: none */
	double spread;	      /* seconds from the first error to the last, at most; 0: any */
	world_fn lost, sound; /* sound: a new group on the same ranks, without fault injection */
	const void *job;
	size_t size;
};

/* From the command line, with world_opts set: -1, or the exit status of the program. */
int lost_open(struct lost_run *run, int argc, char **argv);
/* The transport of case i, into which the fault is injected. */
const char *lost_inner(const struct lost_run *run, int i);
void lost_case(struct lost_run *run, const struct lost_case *c);
/* The exit status. */
int lost_close(struct lost_run *run);

/* Kills this process within so many microseconds. */
int lost_kill_soon(struct seat *seat, uint64_t seed, unsigned most_us);
/* rc and text are those of the call that failed: it names a rank. */
void lost_check(struct ll_verdict *verdict, int rank, ncclResult_t rc, const char *text);
/* A call after it returns the same. */
void lost_check_again(struct ll_verdict *verdict, int rank, bool same_rc, const char *text);

#endif
