/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of this process with ports on a net: connected, registered, attached to engines. Commands are pushed by the
 * kernels' code, compiled for the CPU. A probe between ports and net counts, and injects faults.
 */
#ifndef EP_TEST_ENGINE_RIG_H
#define EP_TEST_ENGINE_RIG_H

#include <pthread.h>
#include <stdbool.h>

#include "net/net.h"
#include "proxy/engine.h"

#define ENG_RANKS 64
#define ENG_PORTS 4
#define ENG_RINGS 4
#define ENG_WAIT_MS 20000

struct eng_opts {
	const char *spec;
	int ranks, ports, rings, engines; /* 0: one of each */
	uint32_t entries, window;	  /* 0: 1024, 256 */
	uint64_t start, ring_start;
	size_t bytes;		 /* of region 0, of each rank */
	uint32_t max_inline;	 /* at most */
	uint64_t max_put;	 /* at most; 0: as the net says */
	ncclEpNetFlow_v1_t flow; /* 0: no limit */
	bool no_bell;		 /* no bell, as with GPUs */
	bool flush;		 /* signals wait for flushes of region 0 */
	const struct ep_cmd_open *open;
	uint64_t open_ns;
	bool (*peers)(int a, int b); /* who puts to whom, both ways; NULL: everybody, also to itself */
	bool detached;		     /* the test attaches the ports */
	bool bare;		     /* no probe, for measurements */
};

/* Before eng_open: as the net says. */
#define ENG_INLINE_MAX UINT32_MAX

struct eng_rank;

/* Written by the engine's thread, except for the knobs. */
struct probe_request;
struct eng_probe {
	const ncclEpNetHot_v1_t *inner;
	void *ctx;
	struct eng_rank *rank;
	uint64_t bytes, puts, bytes_max, puts_max; /* in flight, and its maximum; without credits */
	uint64_t bytes_top;			   /* the largest put */
	uint64_t ring_puts[ENG_RINGS], ring_max[ENG_RINGS];
	uint32_t done_at[ENG_RANKS]; /* `calls` at the last completion, by peer */
	uint64_t iputs, quiet, more;
	struct probe_request *open; /* not complete */
	uint32_t calls;		    /* of progress; atomic */
	uint32_t flushes;	    /* that began; atomic */
	void *flush;		    /* under way */
	/* Knobs, atomic. */
	uint32_t stall_ms;	  /* the next iput sleeps this long, once */
	uint32_t slow;		  /* requests complete after this many turns */
	uint32_t room;		  /* n + 1: the net takes n more puts; 0: all */
	int refusal;		  /* its result then; 0: no room, retry */
	int progress_rc;	  /* of progress, */
	const char *text;	  /* with this message or, NULL, without one */
	uint32_t late;		  /* n + 1: requests of puts to rank n take 10 times as many */
	uint32_t dead;		  /* n + 1: requests of puts to rank n do not complete */
	uint32_t hold;		  /* 1: hold the next request until this is 0; 2: it is held */
	uint32_t flushing;	  /* 1: flushes end when this is 0; 2: the net has no room for one, nor does one end */
	uint32_t hold_next_flush; /* sets the one above to 1 with the next flush */
	int flush_rc;		  /* result of iflush, */
	int flushed_rc;		  /* and of its request */
};

struct eng_port {
	struct ep_port *port;
	struct ep_engine *engine;
	struct eng_probe probe;
	void *ctx, *mail_mr, *mail;
	struct ep_ring ring[ENG_RINGS];
	struct ep_cmd_ring dev[ENG_RINGS];
	struct ep_cmd_head *head; /* [ENG_RINGS] */
	void *pinned[ENG_RINGS];
};

struct eng_rank {
	struct eng_rig *rig;
	int rank;
	struct ep_net *net;
	ncclEpNetProperties_v1_t props;
	void *comm, *mr;
	uint8_t *mem; /* region 0 */
	struct ep_regions regions;
	struct eng_port port[ENG_PORTS];
	/* What the callbacks reported; atomic counts, whose messages are complete once the count is set. */
	int peer_failed[ENG_RANKS], peer_err[ENG_RANKS], failed, failed_err;
	char peer_why[ENG_RANKS][256], failed_why[256];
	/* Atomic knob: the net reports the peer lost, with this message. */
	bool net_lost[ENG_RANKS];
	char net_why[64];
};

struct eng_rig {
	struct eng_opts o;
	struct eng_rank rank[ENG_RANKS];
};

/* Exits with a message on stderr on failure. One rig at a time. */
struct eng_rig *eng_open(const struct eng_opts *opts);
void eng_close(struct eng_rig *rig);

/* Peers of the rank that has most of them. */
uint32_t eng_seats(const struct eng_rig *rig);

/* The port and the ring of a pair of ranks; both ends use the same port index. */
struct eng_port *eng_port_to(struct eng_rank *me, int peer);
struct ep_cmd_ring *eng_ring_to(struct eng_rank *me, int peer);
/* 0, or why the wait for room ended (enum gx_wait_result). */
int eng_push(struct eng_rank *me, int peer, struct ep_cmd cmd);
/* n in one claim, at most EP_CMD_CLAIM_MAX. */
int eng_push_all(struct eng_rank *me, int peer, const struct ep_cmd *cmd, uint32_t n);
/* A claim that is never filled: the producer gave up. */
void eng_give_up(struct eng_rank *me, int peer);

int eng_put(struct eng_rank *me, int peer, uint64_t dst, uint64_t src, uint32_t n);
int eng_signal(struct eng_rank *me, int peer, uint64_t dst, uint64_t value);
uint64_t eng_word(struct eng_rank *me, uint64_t at);
/* Until the word is at least that; false after ENG_WAIT_MS. */
bool eng_wait(struct eng_rank *me, uint64_t at, uint64_t value);
/* All ports of the rank. */
int eng_quiet(struct eng_rank *me);
/* Of all ports of the rank. */
struct ep_port_counts eng_counts(struct eng_rank *me);

/* One thread for each rank, until all have ended. */
void eng_run(struct eng_rig *rig, void (*run)(struct eng_rank *me));

uint64_t eng_draw(uint64_t *state);

#endif
