/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One strike: a few ranks as processes live through a communicator, a group, a handle, operations and the ends of all
 * three, and one of them is killed or stopped somewhere on the way.
 */
#ifndef EP_TEST_CHAOS_STRIKE_H
#define EP_TEST_CHAOS_STRIKE_H

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define STRIKE_RANKS 6

/* In the order in which a rank lives through them. */
enum strike_phase { PHASE_NONE, PHASE_INIT, PHASE_GROUP, PHASE_HANDLE, PHASE_OPS, PHASE_PART, PHASE_GONE, PHASES };

enum strike_net { NET_NONE, NET_LOOP, NET_TCP, NETS };

struct strike {
	uint64_t seed;
	int ranks, victim;
	enum strike_phase phase; /* where the victim is struck, */
	unsigned delay_us;	 /* and how long after it got there */
	enum strike_net net;
	int per_node; /* ranks per simulated node */
	bool ht, masks;
	bool stop;   /* SIGSTOP, not SIGKILL */
	int wake_ms; /* a stopped rank continues this long after the strike; -1: after all others ended */
	int rounds;  /* of operations */
	int timeout_ms;
	double slack; /* seconds that a call may take beyond its timeout */
};

/* What a rank tells about itself; written by the rank, read by the parent while it runs. */
struct strike_rank {
	atomic_int phase;
	_Atomic(double) since; /* start of the running call; 0: in none */
	char call[32];	       /* the running or last call */
	/* The first call that failed, and all that were late. */
	char failed[32], text[512];
	ncclResult_t result;
	double failed_at;
	char late[32];
	double worst; /* seconds of the slowest call */
	int masked;   /* bits of the ranks that it masked */
	atomic_int ended;
};

struct strike_board {
	struct strike strike;
	atomic_int id_ready;
	ncclUniqueId id;
	_Atomic(double) struck; /* when; 0: not yet */
	atomic_int at_strike;	/* the phase the victim was in */
	atomic_int last_round;	/* with masks: where the others stop; 0: not yet known */
	struct strike_rank rank[STRIKE_RANKS];
};

extern const char *const strike_phases[PHASES];
extern const char *const strike_nets[NETS];

double strike_now(void);
/* Seconds within which each call of this strike must return. */
double strike_limit(const struct strike *strike);
/* The life of one rank, in its own process. */
void strike_live(struct strike_board *board, int rank);

#endif
