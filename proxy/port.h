/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A port between its files: port.c (its life), port_pop.c (from rings to channels), port_send.c (from channels to the
 * net), port_take.c (what others send). All of it runs in the one thread that the port is attached to, but for the few
 * words that are said to be atomic.
 */
#ifndef EP_PROXY_PORT_H
#define EP_PROXY_PORT_H

#include "proxy/engine.h"
#include "proxy/order.h"
#include "util/error.h"

/* Of a ring, of a channel and of the net at a time, so that none of them starves the others. */
#define PORT_BATCH 64

/* Of a place in a region: EP_REGION_AT the other way round. */
#define PORT_OFFSET_MASK (((uint64_t)1 << EP_REGION_SHIFT) - 1)

/* The destination that makes a signal between ports: the value is the receiver's count of what it has taken. */
#define PORT_CREDIT UINT64_MAX

/* A signal on its way over an unordered net: what a slot of the mail region holds. */
struct port_mail {
	uint64_t dst, value;
};

/* What is in flight, or ends with a request: the put that asked for it, and the quiet ones before. */
struct port_load {
	uint64_t bytes;
	uint32_t puts, commands;
};

/* A put or a signal that has not been given to the net, or not all of it. */
struct port_cmd {
	struct port_cmd *next;
	uint64_t dst;
	uint64_t src;	   /* of a signal: the value */
	uint32_t length;   /* 0: a signal */
	uint32_t sent;	   /* bytes, of a put that is longer than the net takes */
	uint32_t commands; /* more than one: neighbours that were joined */
};

struct port_request {
	struct port_request *next;
	void *request;
	struct port_load load;
	uint64_t upto; /* the number behind it */
	bool done;     /* before others that were there first */
};

/* Both are taken from one pool and go back to it. */
union port_node {
	union port_node *next;
	struct port_cmd cmd;
	struct port_request request;
};

/* A directed stream of puts to a peer, and what is known of the one that comes from it. */
struct port_channel {
	int peer, ring;	   /* ring -1: nothing has been pushed yet */
	bool failed;	   /* nothing more goes there */
	bool deaf;	   /* nothing more is believed that comes from there */
	bool moved;	   /* of port_take: more of it has arrived */
	bool ready, busy;  /* is in that list */
	uint32_t looks;	   /* at the first request while it was not done */
	uint64_t next;	   /* number of the next put */
	uint64_t acked;	   /* everything before was taken by the peer */
	uint64_t clean;	   /* everything before is completed, so its mail slot is free */
	uint64_t credited; /* what the peer was told of its own puts */
	struct port_cmd *cmd, **cmd_end;
	struct port_request *request, **request_end;
	struct port_load quiet; /* behind the last request: no completion will tell of them */
	struct port_channel *next_ready, *next_busy;
};

struct port_ring {
	struct ep_ring *ring;
	uint32_t done; /* completed in this turn */
	bool dead;
};

struct port_list {
	struct port_channel *first, **end;
};

struct ep_port {
	struct ep_port_opts o;
	struct ep_engine *engine;		     /* atomic; NULL: detached */
	struct ep_port *next_attached, *next_turned; /* the engine's: under its lock, and its thread's */
	uint32_t cover;				     /* one in so many puts asks for a completion */
	uint32_t join_max;			     /* bytes */
	bool broken;				     /* nothing more goes anywhere */
	bool told;				     /* failed has been called */
	bool odd;				     /* a put that came twice has been logged */
	bool drained;				     /* this turn found every ring empty */
	uint32_t turns;
	uint32_t nregions;	  /* as of this batch of commands */
	struct port_list ready;	  /* have something to send */
	struct port_list busy;	  /* have requests to be tested */
	struct port_load out;	  /* in flight */
	uint64_t requests;	  /* in flight */
	struct ep_order order;	  /* unordered: what arrives */
	struct port_mail *inbox;  /* [nranks][window], where peers put */
	struct port_mail *outbox; /* [nranks][window], for nets that take nothing inline */
	union port_node *spare;
	union port_node **slab; /* [slabs] */
	uint32_t slabs, slabs_room;
	struct port_channel *channel; /* [nranks] */
	struct port_ring *ring;	      /* [o.rings] */
	struct ep_port_counts counts; /* atomic, written here only */
	uint64_t asked, answered;     /* atomic: tickets of ep_port_quiet */
	uint64_t looks, looked;	      /* atomic: tickets of ep_port_look */
};

/* A count that other threads read. */
static inline void port_count(uint64_t *count, uint64_t n)
{
	__atomic_store_n(count, *count + n, __ATOMIC_RELAXED);
}

/* n commands of this channel need nothing more. */
static inline void port_done(struct ep_port *p, const struct port_channel *ch, uint32_t n)
{
	if (n)
		p->ring[ch->ring].done += n;
}

static inline void port_load_add(struct port_load *to, const struct port_load *load)
{
	to->bytes += load->bytes;
	to->puts += load->puts;
	to->commands += load->commands;
}

static inline void port_load_sub(struct port_load *from, const struct port_load *load)
{
	from->bytes -= load->bytes;
	from->puts -= load->puts;
	from->commands -= load->commands;
}

/* NULL: no memory, and the port is broken. */
union port_node *port_node_get(struct ep_port *p);
static inline void port_node_put(struct ep_port *p, void *node)
{
	union port_node *n = node;

	n->next = p->spare;
	p->spare = n;
}

/* Has something to send: a command, or a credit that is due. */
void port_ready(struct ep_port *p, struct port_channel *ch);
/* Before a call of the net: what stands in ep_last_error() after it is of this call. */
static inline void port_error_clear(void)
{
	if (ep_last_error()[0])
		ep_last_error_set("");
}

/* Nothing more goes to this peer; what waits is dropped. `what` is what failed ("a put to"), text why, or "". */
void port_peer_fail(struct ep_port *p, struct port_channel *ch, int err, const char *what, const char *text);
/* The same for a call of the net that failed. */
void port_net_fail(struct ep_port *p, struct port_channel *ch, int err);
/* Nothing more goes anywhere. The sentence is ep_last_error(). */
void port_break(struct ep_port *p, int err);
void port_tell_failed(struct ep_port *p, int err);

/* Each part of a turn says how much it moved. */
int port_pop(struct ep_port *p);
int port_send(struct ep_port *p);
int port_reap(struct ep_port *p);
int port_take(struct ep_port *p);

/* Unordered: what was taken from this peer and not told to it is worth a credit. */
static inline bool port_owes(const struct ep_port *p, const struct port_channel *ch)
{
	return !p->o.ordered && p->order.channel[ch->peer].taken - ch->credited >= p->o.window / 4;
}

/* By the engine: one turn; how much moved. */
int ep_port_turn(struct ep_port *port);
/* Whether the net owes it something: then a nap is short. */
bool ep_port_waits(const struct ep_port *port);

#endif
