/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint. Its service thread sleeps in the loop and otherwise holds the lock; callers take the lock, queue what
 * they want, wake it, and wait on the condition. The lock is never held across anything that blocks.
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
	EP_RANK_UNREACHABLE, /* alive for all we know, but no way to repair the mesh */
	EP_RANK_SUSPECT,     /* its connection closed during the meeting; the meeting point will say why */
	EP_RANK_LEFT,
	EP_RANK_GONE, /* died or gave up */
};

struct ep_fd_offer {
	struct ep_fd_offer *next;
	uint64_t key;
	int fd;		/* -1: a note without one */
	uint32_t bytes; /* of the note; 0: no note, a key of the other kind */
	uint8_t note[];
};

struct ep_boot {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	pthread_t thread;
	pid_t pid; /* a forked child has this memory but neither thread nor sockets */

	uint8_t secret[EP_BOOT_SECRET];
	uint32_t rank, nranks;
	int timeout_ms;
	bool survive;
	ep_boot_gone_fn gone_fn;
	void *gone_ctx;

	struct ep_loop loop;
	enum ep_boot_phase phase;
	uint64_t deadline; /* of the meeting, then of leaving */
	struct ep_peer self;
	uint32_t scope; /* of this host's link-local addresses; 0: none in use */

	struct ep_conn *root; /* NULL after the meeting */
	uint32_t host;	      /* rank that lives in the meeting point's process */
	bool have_table, said_done;
	uint32_t edges, edges_up; /* wanted for the meeting; there */
	uint64_t suspect_at;	  /* when the first rank became suspect; 0: none is */

	struct ep_gather gather;
	bool busy;	     /* a caller is inside a collective */
	uint8_t *state;	     /* [nranks] enum ep_rank_state */
	uint64_t *left_seq;  /* [nranks] collectives a rank that left took part in; UINT64_MAX: has not, or all know */
	uint64_t left_first; /* the smallest of them */
	struct ep_blob *notices, *notices_tail; /* what everybody shall know; also told to new edges */
	struct ep_blob *told;			/* the last one that gone_fn knows */
	bool opened;				/* only then is gone_fn called */
	uint64_t end_seq;			/* no collective from this one on: */
	uint32_t end_rank;			/* this rank has left (without survive) */
	struct ep_peer *peers;			/* [nranks], survive only */

	int err; /* positive errno; set once, every collective returns it from then on */
	char why[EP_WHY_MAX];
	uint32_t failed_rank; /* the first that died or gave up */
	char failed_why[EP_WHY_MAX];

	struct ep_fd_token token;
	struct ep_fd_offer *offers;
};

/* All with the lock held. */
void ep_endpoint_fail(struct ep_boot *b, int err, uint32_t culprit, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
int ep_endpoint_dial(struct ep_boot *b, const struct ep_peer *to, uint64_t give_up);
void ep_endpoint_scope(const struct ep_boot *b, struct ep_dial *d); /* sets this host's link where one is needed */
void ep_endpoint_repair(struct ep_boot *b);

#endif
