/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint. Its service thread sleeps in the loop and otherwise holds the lock; callers take the lock, queue what
 * they want, wake it, and wait on the condition. The lock is never held across anything that blocks.
 */
#ifndef EP_PLUGIN_BOOT_MESH_H
#define EP_PLUGIN_BOOT_MESH_H

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
void ep_mesh_fail(struct ep_boot *b, int err, uint32_t culprit, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void ep_mesh_give_up(struct ep_boot *b, int err, const char *why); /* fails, and tells all ranks */
int ep_mesh_begin(struct ep_boot *b, const void *mine, size_t n);
void ep_mesh_leave(struct ep_boot *b);
int ep_mesh_start(struct ep_boot *b, const struct ep_boot_id *id); /* before the thread, no lock */
bool ep_mesh_left(struct ep_boot *b);				   /* nothing more to send or to wait for */
uint64_t ep_mesh_tick(struct ep_boot *b);			   /* when to be called again at the latest */

int ep_mesh_dial(struct ep_boot *b, const struct ep_peer *to, uint64_t give_up);

/* boot_notice.c: who is gone. from: the edge it came by, not told again; NULL for our own discovery. */
void ep_notice_gone(struct ep_boot *b, const struct ep_frame *f, const char *why, struct ep_conn *from);
void ep_notice_parted(struct ep_boot *b, const struct ep_frame *f, const char *why, struct ep_conn *from);
void ep_notice_left(struct ep_boot *b, uint32_t rank, uint64_t seq);
void ep_notice_spread_left(struct ep_boot *b, uint32_t rank, uint64_t seq, struct ep_conn *from);
void ep_notice_check_left(struct ep_boot *b);
void ep_notice_tell(struct ep_boot *b, struct ep_conn *c);
void ep_notice_ended(struct ep_boot *b);     /* fails because of end_rank */
void ep_notice_callbacks(struct ep_boot *b); /* drops the lock around each call */
void ep_mesh_repair(struct ep_boot *b);

/* boot_fd.c */
int ep_fd_listen(struct ep_boot *b);
int ep_fd_frame(struct ep_boot *b, struct ep_conn *c, const struct ep_frame *f);
void ep_fd_free(struct ep_boot *b);

#endif
