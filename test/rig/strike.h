/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One job of a few ranks, each a process, through the public interface only; one rank is struck by a signal before a
 * given call, or at a given time. What every rank's first failed call returned, how long it took and its message lie in
 * shared memory when strike_run returns. The environment of the ranks is the caller's.
 */
#ifndef EP_TEST_RIG_STRIKE_H
#define EP_TEST_RIG_STRIKE_H

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>

#define STRIKE_RANKS 16

/* In the order in which a rank makes them; update to combine are one round. */
enum strike_call {
	STRIKE_INIT,
	STRIKE_GROUP,
	STRIKE_HANDLE,
	STRIKE_UPDATE,
	STRIKE_DISPATCH,
	STRIKE_COMBINE,
	STRIKE_HANDLE_END,
	STRIKE_GROUP_END,
	STRIKE_FINALIZE,
	STRIKE_COMM_END,
	STRIKE_CALLS /* none */
};

struct strike_job {
	int ranks, rounds;
	bool ht, masks;
	int victim;
	int signal;	     /* SIGSTOP or SIGKILL */
	enum strike_call at; /* the victim strikes itself before this call (of `round`); */
	int round;	     /* or, with at = STRIKE_CALLS, */
	unsigned after_us;   /* it is struck so long after the start */
	double patience;     /* seconds that survivors may take in all, before they count as hung */
};

struct strike_rank {
	enum strike_call call; /* that failed; STRIKE_CALLS: none */
	ncclResult_t result;
	double seconds;	       /* of the longest call, also one that succeeded */
	enum strike_call slow; /* which that was */
	bool masked;	       /* with masks: the victim was seen masked */
	bool done;	       /* made all its calls, or one that failed */
	char text[1024];
};

/* 0; -1 with a line on stderr if the job could not be run. */
int strike_run(const struct strike_job *job, struct strike_rank out[STRIKE_RANKS]);
const char *strike_name(enum strike_call call);
/* Whether the text contains "rank N", not followed by another digit. */
bool strike_names(const char *text, int rank);

#endif
