/* SPDX-License-Identifier: Apache-2.0 */
/* Connections and their event loop: allocation, deadlines, sending. event.h has the state machine, evloop.h the API. */
#ifndef EP_PLUGIN_BOOT_CONN_H
#define EP_PLUGIN_BOOT_CONN_H

#include "plugin/boot/blob.h"
#include "plugin/boot/shake.h"
#include "util/sock.h"

#define EP_LOOP_SCRATCH (2 * EP_FRAME_MAX) /* larger than a frame: every read makes progress */

enum ep_conn_state {
	EP_CONN_LISTEN,
	EP_CONN_DIAL,  /* client: connecting, or between attempts (fd -1) */
	EP_CONN_SHAKE, /* in the handshake; at the server: an unauthenticated peer, a "stranger" */
	EP_CONN_READY,
	EP_CONN_FINISH, /* drains the send queue, then waits for the peer to close */
	EP_CONN_DEAD,	/* freed at the end of the turn */
};

struct ep_dial {
	struct ep_boot_addr addr[EP_BOOT_ADDRS];
	uint16_t port;
	uint8_t naddr, next;
	uint32_t rounds;
	uint32_t hard; /* failures that retrying does not fix */
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
	uint32_t peer; /* rank of the peer; at the server known once authenticated */
	uint64_t born;
	uint64_t deadline; /* UINT64_MAX: none */
	struct ep_shake shake;
	union ep_shake_record rec;
	uint32_t got, want; /* bytes of rec */
	struct ep_dial dial;
	union ep_sockaddr at; /* the peer's address */
	struct ep_outq out;
	uint8_t *part; /* incomplete frame */
	uint32_t part_len, part_room;
	uint64_t heard; /* when bytes last arrived */
	void *user;	/* for the owner, as are: */
	int edge;
	bool silent;	 /* see silence.h */
	uint64_t pinged; /* when the last ping was sent */
};

struct ep_loop_ops {
	/* Whether to accept an authenticated client: shake.from wants shake.to. */
	bool (*admit)(void *ctx, struct ep_conn *c);
	void (*ready)(void *ctx, struct ep_conn *c);
	/* A frame that passed ep_frame_check. A negative return drops the connection with that error. */
	int (*frame)(void *ctx, struct ep_conn *c, const struct ep_frame *f, const uint8_t *body);
	/* A ready connection ended (err 0: closed by the peer), or a client could not connect. Not called after
	 * ep_loop_drop or ep_loop_finish. */
	void (*lost)(void *ctx, struct ep_conn *c, int err);
};

struct ep_loop {
	int epfd, wakefd;
	const struct ep_loop_ops *ops;
	void *ctx;
	const uint8_t *secret;
	char what[40]; /* "rank 3", for messages */
	int lost_ms;   /* see ep_sock_silent */
	struct ep_conn *conns, *dead, *dirty;
	uint64_t next_at; /* no deadline is earlier than this */
	uint64_t probe_at;
	uint64_t accept_at;	/* accepting is paused until then; 0: not paused */
	uint64_t starved_since; /* accept fails for lack of descriptors or memory since then; 0: it does not */
	uint32_t strangers, strangers_max;
	uint64_t dropped;
	uint8_t *scratch;
};

/* Added to the loop; NULL when out of memory. */
struct ep_conn *ep_conn_new(struct ep_loop *l, int fd, enum ep_purpose purpose, enum ep_conn_state state);
void ep_conn_close(struct ep_loop *l, struct ep_conn *c);
int ep_conn_watch(struct ep_loop *l, struct ep_conn *c, uint32_t events, bool add);
void ep_conn_reap(struct ep_loop *l); /* frees the dead ones */

/* Queue a frame: 0 or -ENOMEM. On a connection that is not ready: 0, and nothing is sent. */
int ep_loop_send(struct ep_loop *l, struct ep_conn *c, struct ep_blob *blob);
int ep_loop_post(struct ep_loop *l, struct ep_conn *c, const struct ep_frame *f, const void *body);
void ep_loop_finish(struct ep_loop *l, struct ep_conn *c);
void ep_loop_drop(struct ep_loop *l, struct ep_conn *c);

void ep_loop_arm(struct ep_loop *l, struct ep_conn *c, uint64_t deadline);

/* Sends until the socket buffer is full; EPOLLOUT sends the rest. */
void ep_loop_flush(struct ep_loop *l, struct ep_conn *c);

#endif
