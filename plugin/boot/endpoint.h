/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint. Its service thread holds the lock except while it sleeps in the event loop; callers take the lock, queue
 * their request, wake the thread, and wait on the condition. Nothing blocks with the lock held.
 */
#ifndef EP_PLUGIN_BOOT_ENDPOINT_H
#define EP_PLUGIN_BOOT_ENDPOINT_H

#include <pthread.h>
#include <sys/types.h>

#include "plugin/boot/evloop.h"
#include "plugin/boot/gather.h"

enum ep_boot_phase { EP_MEETING, EP_RUNNING, EP_LEAVING };

enum ep_rank_state {
	EP_RANK_ALIVE,
	EP_RANK_UNREACHABLE, /* not known to be dead, but cannot be connected to */
	EP_RANK_SUSPECT,     /* its connection closed before all ranks were connected; the root knows why */
	EP_RANK_LEFT,
	EP_RANK_GONE, /* dead: died or gave up */
};

struct ep_fd_offer {
	struct ep_fd_offer *next;
	uint64_t key;
	int fd;		/* -1: a note without one */
	uint32_t bytes; /* of the note; 0: a descriptor alone */
	uint8_t note[];
};

struct ep_boot {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	pthread_t thread;
	pid_t pid; /* a forked child has a copy of this memory, but neither thread nor sockets */

	uint8_t secret[EP_BOOT_SECRET];
	uint32_t rank, nranks;
	int timeout_ms;
	uint64_t limit; /* of the call in progress, see ep_boot_limit; 0: each collective has its own */
	bool survive;
	ep_boot_gone_fn gone_fn;
	void *gone_ctx;

	struct ep_loop loop;
	enum ep_boot_phase phase;
	uint64_t deadline; /* of EP_MEETING, then of EP_LEAVING */
	struct ep_peer self;
	uint32_t scope; /* of this host's link-local addresses; 0: none used */

	struct ep_conn *root; /* connection to the root; NULL once all are connected */
	uint32_t host;	      /* rank in the root's process, EP_NO_RANK: not known */
	bool have_table, said_done;
	uint32_t edges, edges_up; /* needed by EP_F_DONE; connected */
	uint64_t suspect_at;	  /* when the first rank became suspect; 0: none */

	struct ep_gather gather;
	bool busy;	/* a caller is inside a collective */
	uint8_t *state; /* [nranks] enum ep_rank_state */
	/* [nranks] collectives a rank took part in before it left; UINT64_MAX: has not left, or all know */
	uint64_t *left_seq;
	uint64_t left_first;			/* the smallest of them */
	struct ep_blob *notices, *notices_tail; /* sent to every rank, also over new edges */
	struct ep_blob *told;			/* last notice given to gone_fn */
	bool opened;				/* gone_fn is called from then on */
	uint64_t end_seq;			/* collectives from this one on fail: */
	uint32_t end_rank;			/* this rank has left (without survive) */
	struct ep_peer *peers;			/* [nranks], survive only */

	bool judged; /* the evidence for err was weighed */
	int err;     /* positive errno, once set never 0; every later collective returns it */
	struct ep_blame blame;
	char why[EP_WHY_MAX];
	struct ep_blame failed; /* of the ranks that died or gave up; rank -1: none has */
	char failed_why[EP_WHY_MAX];

	uint64_t lost_at; /* when to accuse a rank that the net lost; 0: none */
	int lost_rank;
	char lost_why[EP_WHY_MAX];

	struct ep_silence *silence; /* [nranks] */
	struct {
		uint32_t rank;
		uint64_t ms, until, from;
	} late; /* whom this rank, and when all have met the ranks, waited for longest, see silence.h */
	uint64_t ping_ns, ping_at; /* between pings of a quiet edge; when to check the edges next */

	struct ep_fd_token token;
	struct ep_fd_offer *offers;

	struct ep_boot *next_local; /* see local.h */
	struct ep_ptr_offer *ptrs;
};

/* All with the lock held. */
uint64_t ep_endpoint_deadline(const struct ep_boot *b); /* of a wait that starts now */
void ep_endpoint_fail(struct ep_boot *b, int err, uint32_t culprit, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* The same with less than certain evidence: replaces a failure with weaker evidence. */
void ep_endpoint_blame(struct ep_boot *b, int err, struct ep_blame blame, const char *why);
int ep_endpoint_dial(struct ep_boot *b, const struct ep_peer *to, uint64_t give_up);
void ep_endpoint_scope(const struct ep_boot *b, struct ep_dial *d); /* sets the scope of link-local addresses */
void ep_endpoint_repair(struct ep_boot *b);

#endif
