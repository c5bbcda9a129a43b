/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of a port: port.c (open, turn, failure, close), port_pop.c (rings to channels), port_send.c (channels to
 * the net), port_flow.c (limits in flight), port_take.c (receiving), port_times.c (stamps). All of it runs on the
 * thread of the engine the port is attached to, except for the members marked atomic.
 */
#ifndef EP_PROXY_PORT_H
#define EP_PROXY_PORT_H

#include "proxy/order.h"
#include "proxy/port_api.h"
#include "util/error.h"

/* Limit per turn for each ring, each channel and the net, so that none starves the others. */
#define PORT_BATCH 64

/* The offset part of EP_REGION_AT. */
#define PORT_OFFSET_MASK (((uint64_t)1 << EP_REGION_SHIFT) - 1)

/* Destination of a credit, a signal between ports: the value is the number of puts the receiver has processed. */
#define PORT_CREDIT UINT64_MAX

#define PORT_NO_PEER UINT32_MAX

/* A slot of the mail region: a signal in flight over an unordered net. */
struct port_mail {
	uint64_t dst, value;
};

/* An amount in flight; of a request: its put and the quiet puts before it. Credits count in none of it. */
struct port_load {
	uint64_t bytes;
	uint32_t puts, commands, requests;
};

/* A limit in flight that channels share, and what of it they use. A stalled channel counts in neither. */
struct port_flow {
	uint64_t max_bytes; /* 0: no limit */
	uint32_t max_puts;  /* the same */
	uint32_t users;	    /* channels with something queued or in flight */
	struct port_load out;
};

/* A put or signal that the net has not taken completely. */
struct port_cmd {
	struct port_cmd *next, *prev;
	uint64_t dst;
	uint64_t src;	   /* signal: the value */
	uint32_t length;   /* 0: a signal */
	uint32_t sent;	   /* bytes, when a put exceeds the net's limit */
	uint32_t commands; /* more than one: merged puts */
	bool ahead;	   /* a signal that overtakes */
};

struct port_request {
	struct port_request *next;
	void *request;
	struct port_load load;
	uint64_t upto;	/* number of the next put */
	uint64_t since; /* traced: when it was given to the net */
	bool done;	/* completed before earlier requests */
};

/* One pool for both. */
union port_node {
	union port_node *next;
	struct port_cmd cmd;
	struct port_request request;
};

/* The puts to a peer, and the state of those coming from it. */
struct port_channel {
	int peer, ring;	   /* rank of the peer; ring -1: nothing pushed yet */
	uint32_t index;	   /* of the peer among this port's, */
	uint32_t there;	   /* and of this port among the peer's */
	bool failed;	   /* nothing more is sent */
	bool deaf;	   /* everything received is ignored */
	bool moved;	   /* port_take: the prefix has advanced */
	bool ready, busy;  /* is in that list */
	bool held;	   /* the same: signals are due and wait for a flush */
	bool gap;	   /* a request has completed with an error */
	bool uses;	   /* counts as a user of the limits */
	bool stalled;	   /* nothing completes: what it has in flight does not count, and nothing more is sent */
	uint32_t mark;	   /* port.checks at its last completion, or when its first put was sent */
	uint64_t pending;  /* atomic: the last round of ep_port.pending in which it had puts queued or in flight */
	uint32_t looks;	   /* polls that found the first request incomplete */
	uint64_t next;	   /* number of the next put */
	uint64_t acked;	   /* the peer has processed everything below */
	uint64_t clean;	   /* everything below is completed, so its mail slot is free */
	uint64_t credited; /* last credit sent to the peer */
	uint64_t good;	   /* `upto` of the last request that succeeded */
	uint64_t ended;	   /* and of the first that failed, if there is a gap */
	uint64_t covered;  /* if it is held: the flush under way covers everything below */
	struct port_cmd *cmd, **cmd_end;
	struct port_request *request, **request_end;
	struct port_load quiet; /* after the last request: no completion covers them yet */
	struct port_load out;	/* in flight, with the quiet ones */
	struct port_channel *next_ready, *next_busy, *next_held;
};

struct port_ring {
	struct ep_ring *ring;
	uint32_t done; /* completed in this turn */
	bool dead;
	bool full; /* port_send: its limit is reached in this turn */
	struct port_flow flow;
};

struct port_list {
	struct port_channel *first, **end;
};

/* When what happened to the operation under way; 0: not yet. */
struct port_stamps {
	uint32_t number; /* as in o.open */
	uint64_t begun, popped, given, completed, arrived, ended;
	const struct port_cmd *cmd;    /* the signal, until it is given to the net, */
	const struct port_channel *ch; /* then its channel */
	uint64_t upto;		       /* and the number of the next put */
};

struct ep_port {
	struct ep_port_opts o;
	uint32_t *bell;				     /* atomic: the engine's; NULL: detached */
	struct ep_port *next_attached, *next_turned; /* engine.c: under its lock; its thread's */
	uint32_t cover;				     /* one put in this many requests a completion */
	uint32_t join_max;			     /* bytes */
	bool broken;				     /* nothing more is sent */
	bool told;				     /* o.failed has been called */
	bool odd;				     /* a duplicate put has been logged */
	bool drained;				     /* every ring was empty in this turn */
	uint32_t turns;
	uint32_t begun, ended;	  /* o.open, as last seen */
	uint64_t changed, opened; /* when it last changed, and when an operation was last open; 0: never */
	uint32_t nregions;	  /* at the current batch of commands */
	struct port_list ready;	  /* channels with something to send */
	struct port_list busy;	  /* channels with requests to test */
	struct port_channel *held;
	void *flush;		  /* the request under way; NULL: none */
	bool limited;		  /* by any limit in flight; otherwise only flow.out is counted, for a dump */
	struct port_flow flow;	  /* of all rings together */
	bool blocked;		  /* a limit stopped a channel in this turn */
	uint32_t checks;	  /* for stalled channels, */
	uint32_t checked_turns;	  /* and when the last one was: turns, */
	uint64_t checked;	  /* and time */
	uint64_t requests;	  /* in flight, credits and stalled channels included */
	struct ep_order order;	  /* unordered: the receiving side */
	struct port_mail *inbox;  /* [seats][window], written by peers */
	struct port_mail *outbox; /* [seats][window], where the net takes no inline data */
	union port_node *spare;
	union port_node **slab; /* [slabs] */
	uint32_t slabs, slabs_room;
	struct port_channel *channel; /* [peers] */
	uint32_t *of;		      /* [nranks]: index of a rank's channel; PORT_NO_PEER: it has none */
	struct port_ring *ring;	      /* [o.rings] */
	struct ep_port_counts counts; /* atomic, written by the engine's thread only */
	bool timing, timed;	      /* atomic: stamps are asked for; the same, as of this turn */
	struct port_stamps stamps;
	struct port_stamps late;    /* the operation before, if its signal was not completed when this one began */
	struct ep_port_times times; /* atomic, written by the engine's thread only */
	uint64_t asked, answered;   /* atomic: tickets of ep_port_quiet, */
	uint64_t pending;	    /* and rounds in which channels were found pending */
	uint64_t looks, looked;	    /* atomic: tickets of ep_port_look */
	uint64_t asked_state, told_state; /* atomic: tickets of ep_port_describe */
	char *state;			  /* what the engine wrote for the last of them; NULL: nobody has asked */
};

/* Adds to a counter that other threads read. */
static inline void port_count(uint64_t *count, uint64_t n)
{
	__atomic_store_n(count, *count + n, __ATOMIC_RELAXED);
}

/* n commands of this channel are complete. */
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
	to->requests += load->requests;
}

static inline void port_load_sub(struct port_load *from, const struct port_load *load)
{
	from->bytes -= load->bytes;
	from->puts -= load->puts;
	from->commands -= load->commands;
	from->requests -= load->requests;
}

/* After a change of what the channel has queued or in flight, or of `stalled`. */
static inline void port_flow_use(struct ep_port *p, struct port_channel *ch)
{
	bool uses = !ch->stalled && (ch->cmd || ch->out.puts);

	if (!p->limited || uses == ch->uses)
		return;
	ch->uses = uses;
	p->flow.users += uses ? 1u : -1u;
	p->ring[ch->ring].flow.users += uses ? 1u : -1u;
}

static inline void port_flow_add(struct ep_port *p, struct port_channel *ch, const struct port_load *load)
{
	if (!p->limited) {
		port_load_add(&p->flow.out, load);
		return;
	}
	if (!load->puts && !load->requests) /* a credit: its channel may have no ring yet */
		return;
	if (!ch->out.puts)
		ch->mark = p->checks;
	port_load_add(&ch->out, load);
	if (ch->stalled) /* a credit that covers quiet puts */
		return;
	port_load_add(&p->flow.out, load);
	port_load_add(&p->ring[ch->ring].flow.out, load);
}

static inline void port_flow_sub(struct ep_port *p, struct port_channel *ch, const struct port_load *load)
{
	if (!p->limited) {
		port_load_sub(&p->flow.out, load);
		return;
	}
	if (!load->puts)
		return;
	port_load_sub(&ch->out, load);
	if (!ch->stalled) {
		port_load_sub(&p->flow.out, load);
		port_load_sub(&p->ring[ch->ring].flow.out, load);
	}
	port_flow_use(p, ch);
}

/* What stops a channel: nothing, its own share, its ring's limit or the port's. */
enum port_stop { PORT_GOES, PORT_SHARE, PORT_RING, PORT_FLOW };

/* Whether the limits, where there are any, certainly allow the channel that much more. */
bool port_flow_fits(const struct ep_port *p, const struct port_channel *ch, uint64_t bytes, uint32_t puts);
/* The same for one put, which goes in any case where no completion could make room for it. */
enum port_stop port_flow_stop(const struct ep_port *p, const struct port_channel *ch, uint64_t bytes);
/* After a turn in which a limit stopped a channel: finds those that do not complete. */
void port_flow_check(struct ep_port *p);
/* A request of a stalled channel has completed. */
void port_flow_resume(struct ep_port *p, struct port_channel *ch);

/* NULL: out of memory, and the port is broken. */
union port_node *port_node_get(struct ep_port *p);
static inline void port_node_put(struct ep_port *p, void *node)
{
	union port_node *n = node;

	n->next = p->spare;
	p->spare = n;
}

/* Appends to the ready list: it has a command to send, or owes a credit. */
void port_cmd_unlink(struct port_channel *ch, struct port_cmd *cmd);
void port_ready(struct ep_port *p, struct port_channel *ch);
/* Before a call of the net, so that ep_last_error() after it belongs to that call. */
static inline void port_error_clear(void)
{
	if (ep_last_error()[0])
		ep_last_error_set("");
}

/* Nothing more goes to this peer; what waits is dropped. `what` is what failed ("a put to"), text why, or "". */
void port_peer_fail(struct ep_port *p, struct port_channel *ch, int err, const char *what, const char *text);
/* The same for a call of the net that failed. */
void port_net_fail(struct ep_port *p, struct port_channel *ch, int err);
/* Stops the whole port. The message is ep_last_error(). */
void port_break(struct ep_port *p, int err);
void port_tell_failed(struct ep_port *p, int err);

/* The parts of a turn; each returns how much it moved. */
int port_pop(struct ep_port *p);
int port_send(struct ep_port *p);
int port_reap(struct ep_port *p);
int port_take(struct ep_port *p);

/* Stamps. The last four are called where p->timed is set. */
void port_times_begin(struct ep_port *p);
void port_times_end(struct ep_port *p);
void port_times_popped(struct ep_port *p, const struct port_cmd *cmd);
void port_times_given(struct ep_port *p, const struct port_channel *ch, const struct port_cmd *cmd);
/* Every put of the channel below upto. */
void port_times_completed(struct ep_port *p, const struct port_channel *ch, uint64_t upto);
void port_times_arrived(struct ep_port *p);

/* Unordered: a quarter of the window was processed since the last credit. */
static inline bool port_owes(const struct ep_port *p, const struct port_channel *ch)
{
	return !p->o.ordered && p->order.channel[ch->index].taken - ch->credited >= p->o.window / 4;
}

/* Until the engine has answered the ticket; -EP_ETIMEOUT, without a message, past the deadline. */
int port_wait(struct ep_port *port, const uint64_t *answered, uint64_t ticket, uint64_t deadline);
/* The engine: writes its state, and answers. */
void port_state_tell(struct ep_port *p, uint64_t asked);

/* Called by the engine: one turn; returns how much moved. */
int ep_port_turn(struct ep_port *port);
/*
 * Whether an operation of producers that ring no bell is open, or was in the last 10 ms: the engine then does not
 * sleep. Layers of a model are 100 us or more apart, and steps a few milliseconds.
 */
bool ep_port_open_now(struct ep_port *port, uint64_t now);
/* Whether an operation is open, whatever its producers do. */
bool ep_port_has_open(const struct ep_port *port);
/* Whether requests are in flight or commands queued: the engine then sleeps only briefly. */
bool ep_port_waits(const struct ep_port *port);

#endif
