/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection and the loop that owns it: the objects, their deadlines and what they send. event.h drives them,
 * evloop.h is what owners call.
 */
#ifndef EP_PLUGIN_BOOT_CONN_H
#define EP_PLUGIN_BOOT_CONN_H

#include "plugin/boot/blob.h"
#include "plugin/boot/shake.h"
#include "util/sock.h"

#define EP_LOOP_SCRATCH (2 * EP_FRAME_MAX) /* more than a frame, so that every read makes progress */

enum ep_conn_state {
	EP_CONN_LISTEN,
	EP_CONN_DIAL,  /* client: between attempts (fd -1) or in one */
	EP_CONN_SHAKE, /* handshake; a stranger when at the server */
	EP_CONN_READY,
	EP_CONN_FINISH, /* sends what is queued, then waits for the other end to close */
	EP_CONN_DEAD,	/* freed at the end of the turn */
};

struct ep_dial {
	struct ep_boot_addr addr[EP_BOOT_ADDRS];
	uint16_t port;
	uint8_t naddr, next;
	uint32_t rounds;
	uint32_t hard; /* failures that time will not cure */
	int err;       /* of the last attempt */
	uint64_t give_up;
};

struct ep_conn {
	struct ep_conn *next, *prev, *next_dirty;
	enum ep_conn_state state;
	enum ep_purpose purpose;
	int fd;
	bool server, dirty, out_armed, shut;
	bool was_ready;
	uint32_t peer; /* rank of the other end, once authenticated (client: from the start) */
	uint64_t born;
	uint64_t deadline; /* UINT64_MAX: none */
	struct ep_shake shake;
	union ep_shake_record rec;
	uint32_t got, want; /* bytes of rec */
	struct ep_dial dial;
	union ep_sockaddr at; /* the other end's address */
	struct ep_outq out;
	uint8_t *part; /* the beginning of a frame whose rest has not come */
	uint32_t part_len, part_room;
	void *user; /* the owner's, as is edge */
	int edge;
};

struct ep_loop_ops {
	/* A client has proved the secret: may it in? shake says who (from) wants whom (to). */
	bool (*admit)(void *ctx, struct ep_conn *c);
	void (*ready)(void *ctx, struct ep_conn *c);
	/* A checked frame. Negative: the connection is dropped as lost with that error. */
	int (*frame)(void *ctx, struct ep_conn *c, const struct ep_frame *f, const uint8_t *body);
	/* A ready connection ended (err 0: closed by the other end), or a client's never came to be. Not called after
	 * ep_loop_drop or ep_loop_finish. */
	void (*lost)(void *ctx, struct ep_conn *c, int err);
};

struct ep_loop {
	int epfd, wakefd;
	const struct ep_loop_ops *ops;
	void *ctx;
	const uint8_t *secret;
	char what[40]; /* "rank 3", for the log */
	int lost_ms;   /* see ep_sock_silent */
	struct ep_conn *conns, *dead, *dirty;
	uint64_t next_at; /* no deadline is earlier */
	uint64_t probe_at;
	uint64_t accept_at;	/* listeners rest until then; 0: they do not */
	uint64_t starved_since; /* accept finds no descriptor or memory since then; 0: no */
	uint32_t strangers, strangers_max;
	uint64_t dropped;
	uint8_t *scratch;
};

/* Linked into the loop; NULL when memory is short. */
struct ep_conn *ep_conn_new(struct ep_loop *l, int fd, enum ep_purpose purpose, enum ep_conn_state state);
void ep_conn_close(struct ep_loop *l, struct ep_conn *c);
int ep_conn_watch(struct ep_loop *l, struct ep_conn *c, uint32_t events, bool add);
void ep_conn_reap(struct ep_loop *l); /* frees the dead ones */

/* Queues; -ENOMEM. On anything but a ready connection: nothing, 0. */
int ep_loop_send(struct ep_loop *l, struct ep_conn *c, struct ep_blob *blob);
int ep_loop_post(struct ep_loop *l, struct ep_conn *c, const struct ep_frame *f, const void *body);
void ep_loop_finish(struct ep_loop *l, struct ep_conn *c);
void ep_loop_drop(struct ep_loop *l, struct ep_conn *c);

void ep_loop_arm(struct ep_loop *l, struct ep_conn *c, uint64_t deadline);

/* Sends until the socket is full; the rest goes when it has room. */
void ep_loop_flush(struct ep_loop *l, struct ep_conn *c);

#endif
