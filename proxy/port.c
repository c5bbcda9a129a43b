/* SPDX-License-Identifier: Apache-2.0 */
/* Open, turn, failure, quiet, close. */
#include "proxy/port.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bell.h"
#include "util/clock.h"
#include "util/error.h"

#define SLAB_NODES 256
#define COVER_MAX 32u
#define JOIN_MAX (1u << 20)
#define QUIET_POLL_NS 20000
#define OPEN_NS 10000000000ull /* a kernel that died never ends */
#define OPEN_AFTER_NS 10000000u
#define ASK_TURNS 256u /* between polls of peer_error for a peer: a quarter of a second when idle */

size_t ep_port_mail_size(uint32_t seats, uint32_t window)
{
	return (size_t)seats * window * 2 * sizeof(struct port_mail);
}

uint32_t ep_port_window(uint32_t seats, uint32_t want)
{
	uint32_t seat_bits = seats > 1 ? 32 - (uint32_t)__builtin_clz(seats - 1) : 0;
	uint32_t widest = seat_bits < 30 ? 1u << (30 - seat_bits) : 0, window = 64;

	if (widest < 64 || want < 64)
		return 0;
	while (window <= widest / 2 && window <= want / 2)
		window *= 2;
	return window;
}

/* More nodes: all but the first go to the pool. */
static union port_node *slab_add(struct ep_port *p)
{
	union port_node *node;

	if (p->slabs == p->slabs_room) {
		uint32_t room = p->slabs_room ? 2 * p->slabs_room : 8;
		union port_node **slab = realloc(p->slab, room * sizeof(*slab));

		if (!slab) {
			EP_FAIL(EP_PROXY, ENOMEM, "rank %d: out of memory: %u slabs of commands", p->o.rank, room);
			return NULL;
		}
		p->slab = slab;
		p->slabs_room = room;
	}
	node = EP_CALLOC(EP_PROXY, SLAB_NODES, sizeof(*node), "queued commands");
	if (!node)
		return NULL;
	p->slab[p->slabs++] = node;
	for (int i = SLAB_NODES - 1; i > 0; i--)
		port_node_put(p, &node[i]);
	return node;
}

union port_node *port_node_get(struct ep_port *p)
{
	union port_node *node = p->spare;

	if (__builtin_expect(!node, 0)) {
		node = slab_add(p);
		if (!node)
			port_break(p, -ENOMEM);
		return node;
	}
	p->spare = node->next;
	return node;
}

void port_ready(struct ep_port *p, struct port_channel *ch)
{
	if (ch->ready)
		return;
	ch->ready = true;
	ch->next_ready = NULL;
	*p->ready.end = ch;
	p->ready.end = &ch->next_ready;
}

static void channel_drop(struct ep_port *p, struct port_channel *ch)
{
	while (ch->cmd) {
		struct port_cmd *cmd = ch->cmd;

		ch->cmd = cmd->next;
		port_done(p, ch, cmd->commands);
		port_count(&p->counts.dropped, cmd->commands);
		port_node_put(p, cmd);
	}
	ch->cmd_end = &ch->cmd;
	/* No completion will cover these: the net drops them with the failed queue. */
	port_done(p, ch, ch->quiet.commands);
	port_flow_sub(p, ch, &ch->quiet);
	ch->quiet = (struct port_load){ 0 };
	if (ch->ring >= 0)
		port_flow_use(p, ch);
	ch->failed = true;
}

/* Once for a peer. A message was logged where it arose; a failure without one is logged here. */
void port_peer_fail(struct ep_port *p, struct port_channel *ch, int err, const char *what, const char *text)
{
	char why[512];

	snprintf(why, sizeof(why), "rank %d: %s rank %d: %.400s", p->o.rank, what, ch->peer,
		 text[0] ? text : strerror(-err));
	if (!text[0] && !ch->failed)
		EP_WARN(EP_PROXY, "%s", why);
	ep_last_error_set("");
	if (ch->failed)
		return;
	channel_drop(p, ch);
	if (p->o.peer_failed && !p->broken)
		p->o.peer_failed(p->o.arg, ch->peer, err, why);
}

void port_tell_failed(struct ep_port *p, int err)
{
	char why[512];

	snprintf(why, sizeof(why), "%s", ep_last_error());
	ep_last_error_set("");
	if (p->told)
		return;
	p->told = true;
	if (p->o.failed)
		p->o.failed(p->o.arg, err, why);
}

void port_break(struct ep_port *p, int err)
{
	if (!p->broken)
		for (uint32_t i = 0; i < p->o.peers; i++)
			channel_drop(p, &p->channel[i]);
	p->broken = true;
	port_tell_failed(p, err);
}

static int opts_check(const struct ep_port_opts *o)
{
	uint32_t n = __atomic_load_n(&o->regions->count, __ATOMIC_ACQUIRE);
	const struct ep_region *mail = &o->regions->region[o->mail % EP_REGIONS];

	if (o->nranks < 1 || o->rank < 0 || o->rank >= o->nranks || (uint32_t)o->nranks > EP_CMD_CHANNELS)
		return EP_FAIL(EP_PROXY, EP_EARG, "invalid port: rank %d of %d", o->rank, o->nranks);
	for (uint32_t i = 0; i < o->peers; i++)
		if (o->peers > o->seats || o->peer[i].there >= o->seats || o->peer[i].rank < 0 ||
		    o->peer[i].rank >= o->nranks || (i && o->peer[i].rank <= o->peer[i - 1].rank))
			return EP_FAIL(EP_PROXY, EP_EARG,
				       "rank %d: invalid port: peer %u of %u is rank %d, at %u of %u", o->rank, i,
				       o->peers, o->peer[i].rank, o->peer[i].there, o->seats);
	if (o->rings < 0 || o->max_put < EP_CMD_UNIT)
		return EP_FAIL(EP_PROXY, EP_EARG, "rank %d: invalid port: %d rings, puts of up to %llu bytes", o->rank,
			       o->rings, o->max_put + 0ull);
	if (o->ordered && o->max_inline >= sizeof(uint64_t))
		return 0;
	if (o->window < 64 || o->window & (o->window - 1))
		return EP_FAIL(EP_PROXY, EP_EARG, "a window of %u puts: must be a power of two >= 64", o->window);
	if (o->mail >= n || !mail->host || mail->size < ep_port_mail_size(o->seats, o->window))
		return EP_FAIL(EP_PROXY, EP_EARG, "region %u of %u cannot hold mail: must be host memory of %zu bytes",
			       o->mail, n, ep_port_mail_size(o->seats, o->window));
	return 0;
}

/* At most half of a limit: the other half is sent while the completion is under way. */
static uint32_t cover_of(uint32_t limit, uint32_t most)
{
	uint32_t half = limit > 1 ? limit / 2 : 1;

	return limit && half < most ? half : most;
}

static void port_init(struct ep_port *p, const struct ep_port_opts *o)
{
	uint64_t join = o->max_put < JOIN_MAX ? o->max_put : JOIN_MAX;

	p->o = *o;
	p->o.peer = NULL;
	p->o.open_ns = o->open_ns ? o->open_ns : OPEN_NS;
	p->flow.max_bytes = o->flow.maxBytes;
	p->flow.max_puts = o->flow.maxPuts;
	p->limited = o->flow.maxBytes || o->flow.maxPuts || o->flow.ringPuts;
	p->cover = cover_of(o->flow.maxPuts, cover_of(o->flow.ringPuts, COVER_MAX));
	/* A quarter: a put that uses the whole flow limit leaves the wire idle until it completes. */
	if (o->flow.maxBytes && o->flow.maxBytes / 4 < join)
		join = o->flow.maxBytes / 4;
	p->join_max = (uint32_t)join;
	p->ready.end = &p->ready.first;
	p->busy.end = &p->busy.first;
	if (o->mail < EP_REGIONS && o->regions->region[o->mail].host) {
		p->inbox = (struct port_mail *)o->regions->region[o->mail].host;
		p->outbox = p->inbox + (size_t)o->seats * o->window;
	}
	for (int i = 0; i < o->rings; i++) {
		p->ring[i].ring = o->ring[i];
		p->ring[i].flow.max_puts = o->flow.ringPuts;
	}
	memset(p->of, 0xff, (size_t)o->nranks * sizeof(*p->of)); /* PORT_NO_PEER */
	for (uint32_t i = 0; i < o->peers; i++) {
		struct port_channel *ch = &p->channel[i];

		p->of[o->peer[i].rank] = i;
		*ch = (struct port_channel){ .peer = o->peer[i].rank, .ring = -1, .index = i };
		ch->there = o->peer[i].there;
		ch->cmd_end = &ch->cmd;
		ch->request_end = &ch->request;
		ch->next = ch->acked = ch->clean = ch->credited = ch->good = o->start;
	}
}

int ep_port_open(const struct ep_port_opts *opts, struct ep_port **out)
{
	struct ep_port *p;
	int rc = opts_check(opts);

	if (rc)
		return rc;
	p = EP_CALLOC(EP_PROXY, 1, sizeof(*p), "a port");
	if (!p)
		return -ENOMEM;
	p->channel = EP_CALLOC(EP_PROXY, opts->peers, sizeof(*p->channel), "channels");
	p->of = p->channel ? EP_CALLOC(EP_PROXY, (size_t)opts->nranks, sizeof(*p->of), "channels") : NULL;
	p->ring = p->of ? EP_CALLOC(EP_PROXY, (size_t)opts->rings, sizeof(*p->ring), "rings") : NULL;
	if (!p->ring)
		rc = -ENOMEM;
	else if (!opts->ordered)
		rc = ep_order_init(&p->order, opts->seats, opts->window, opts->start);
	if (rc) {
		ep_port_close(p);
		return rc;
	}
	port_init(p, opts);
	*out = p;
	return 0;
}

void ep_port_close(struct ep_port *port)
{
	if (!port)
		return;
	for (uint32_t i = 0; i < port->slabs; i++)
		free(port->slab[i]);
	free(port->slab);
	ep_order_free(&port->order);
	free(port->ring);
	free(port->of);
	free(port->channel);
	free(port->state);
	free(port);
}

size_t ep_port_bytes(const struct ep_port *port)
{
	const struct ep_port_opts *o = &port->o;

	return sizeof(*port) + o->peers * sizeof(*port->channel) + (size_t)o->nranks * sizeof(*port->of) +
	       (size_t)o->rings * sizeof(*port->ring) + ep_order_bytes(&port->order);
}

void ep_port_counts(const struct ep_port *port, struct ep_port_counts *out)
{
	const struct ep_port_counts *c = &port->counts;

	*out = (struct ep_port_counts){
		.commands = __atomic_load_n(&c->commands, __ATOMIC_RELAXED),
		.joined = __atomic_load_n(&c->joined, __ATOMIC_RELAXED),
		.puts = __atomic_load_n(&c->puts, __ATOMIC_RELAXED),
		.bytes = __atomic_load_n(&c->bytes, __ATOMIC_RELAXED),
		.signals = __atomic_load_n(&c->signals, __ATOMIC_RELAXED),
		.credits = __atomic_load_n(&c->credits, __ATOMIC_RELAXED),
		.dropped = __atomic_load_n(&c->dropped, __ATOMIC_RELAXED),
	};
}

int port_wait(struct ep_port *port, const uint64_t *answered, uint64_t ticket, uint64_t deadline)
{
	struct timespec nap = ep_timespec(QUIET_POLL_NS);

	/* A2: pairs with R2 in port_settle and ep_port_turn. */
	while ((int64_t)(__atomic_load_n(answered, __ATOMIC_ACQUIRE) - ticket) < 0) {
		uint32_t *bell = __atomic_load_n(&port->bell, __ATOMIC_ACQUIRE);

		if (!bell)
			return EP_FAIL(EP_PROXY, EP_EUSAGE, "rank %d: the port is not attached to an engine",
				       port->o.rank);
		if (ep_now_ns() > deadline)
			return -EP_ETIMEOUT;
		ep_bell_ring(bell);
		nanosleep(&nap, NULL);
	}
	return 0;
}

int ep_port_quiet(struct ep_port *port, uint64_t deadline)
{
	/* R1: pairs with A1 in ep_port_turn; a turn that sees the ticket sees what was pushed before. */
	uint64_t ticket = __atomic_add_fetch(&port->asked, 1, __ATOMIC_RELEASE);

	return port_wait(port, &port->answered, ticket, deadline);
}

bool ep_port_pending(const struct ep_port *port, int rank)
{
	uint32_t i = port->of[rank];
	uint64_t round;

	/* A5: pairs with R5 in pending_note: the channels of this round are marked, or already those of a later one. */
	round = __atomic_load_n(&port->pending, __ATOMIC_ACQUIRE);
	return i != PORT_NO_PEER && round && __atomic_load_n(&port->channel[i].pending, __ATOMIC_RELAXED) >= round;
}

int ep_port_look(struct ep_port *port, uint64_t deadline)
{
	uint64_t ticket = __atomic_add_fetch(&port->looks, 1, __ATOMIC_RELEASE); /* R1 */

	if (port->o.ordered)
		return 0;
	return port_wait(port, &port->looked, ticket, deadline);
}

/* For ep_port_pending. Only channels that are in a list: a turn must not cost as much as there are peers. */
static void pending_note(struct ep_port *p)
{
	uint64_t round = p->pending + 1;

	for (struct port_channel *ch = p->busy.first; ch; ch = ch->next_busy)
		__atomic_store_n(&ch->pending, round, __ATOMIC_RELAXED);
	for (struct port_channel *ch = p->ready.first; ch; ch = ch->next_ready)
		if (ch->cmd)
			__atomic_store_n(&ch->pending, round, __ATOMIC_RELAXED);
	__atomic_store_n(&p->pending, round, __ATOMIC_RELEASE); /* R5: pairs with A5 in ep_port_pending */
}

/* Publishes the turn's completions at once, and answers quiet tickets taken before the turn if nothing is left. */
static void port_settle(struct ep_port *p, uint64_t asked)
{
	bool quiet = p->drained;

	for (int i = 0; i < p->o.rings; i++) {
		struct port_ring *r = &p->ring[i];

		if (r->done && ep_ring_complete(r->ring, r->done))
			port_break(p, -EP_EINTERNAL);
		r->done = 0;
		quiet &= ep_ring_pending(r->ring) == 0;
	}
	if (!quiet && asked != p->answered)
		pending_note(p);
	if (quiet && asked != p->answered)
		__atomic_store_n(&p->answered, asked, __ATOMIC_RELEASE); /* R2: pairs with A2 in ep_port_quiet */
}

/* The net's record of the peer, else the message of the failed call. */
void port_net_fail(struct ep_port *p, struct port_channel *ch, int err)
{
	char left[512];
	const char *why = "";

	/* Copied first: a net without records overwrites it. */
	snprintf(left, sizeof(left), "%s", ep_last_error());
	if (!p->o.peer_error || !p->o.peer_error(p->o.arg, ch->peer, &why) || !why || !why[0])
		why = left;
	port_peer_fail(p, ch, err, "a put to", why);
}

/*
 * No probe puts: they would be traffic between all pairs, most of which are idle. This turn's part of the peers: all of
 * them at once would be the longest turn of a large group.
 */
static void port_peers_ask(struct ep_port *p)
{
	uint64_t turn = p->turns++ % ASK_TURNS;
	uint32_t end = (uint32_t)((turn + 1) * p->o.peers / ASK_TURNS);
	const char *why = "";

	for (uint32_t i = (uint32_t)(turn * p->o.peers / ASK_TURNS); p->o.peer_error && i < end; i++) {
		struct port_channel *ch = &p->channel[i];
		int rc = ch->failed ? 0 : p->o.peer_error(p->o.arg, ch->peer, &why);

		if (!rc)
			continue;
		port_peer_fail(p, ch, rc, "the way to", why);
	}
}

int ep_port_turn(struct ep_port *port)
{
	/* A1: pairs with R1 in ep_port_quiet and ep_port_look. */
	uint64_t asked = __atomic_load_n(&port->asked, __ATOMIC_ACQUIRE);
	uint64_t looks = __atomic_load_n(&port->looks, __ATOMIC_ACQUIRE);
	uint64_t since = __builtin_expect(port->o.trace != NULL, 0) ? ep_now_ns() : 0;
	int moved;

	port_times_begin(port);
	moved = port_take(port);
	if (!moved && (!port->held || port->broken) && looks != port->looked)
		__atomic_store_n(&port->looked, looks, __ATOMIC_RELEASE); /* R2 */
	moved += port_pop(port);
	moved += port_send(port);
	moved += port_reap(port);
	if (port->blocked)
		port_flow_check(port);
	port_peers_ask(port);
	port_times_end(port);
	port_settle(port, asked);
	if (__builtin_expect(since && moved, 0))
		ep_trace_span(port->o.trace, port->o.trace_row, "batch", since, ep_now_ns(), -1, (uint64_t)moved);
	/* A1, as above. */
	asked = __atomic_load_n(&port->asked_state, __ATOMIC_ACQUIRE);
	if (__builtin_expect(asked != port->told_state, 0))
		port_state_tell(port, asked);
	return moved;
}

bool ep_port_open_now(struct ep_port *port, uint64_t now)
{
	const struct ep_cmd_open *open = port->o.rung && !port->timed ? NULL : port->o.open;
	uint32_t begun = open ? __atomic_load_n(&open->begun, __ATOMIC_RELAXED) : 0;
	uint32_t ended = open ? __atomic_load_n(&open->ended, __ATOMIC_RELAXED) : 0;

	if (begun != port->begun || ended != port->ended) {
		port->begun = begun;
		port->ended = ended;
		port->changed = port->opened = now;
	} else if (begun != ended && now - port->changed < port->o.open_ns) {
		port->opened = now;
	}
	return port->opened && now - port->opened < OPEN_AFTER_NS;
}

bool ep_port_has_open(const struct ep_port *port)
{
	const struct ep_cmd_open *open = port->o.open;

	return open &&
	       __atomic_load_n(&open->begun, __ATOMIC_RELAXED) != __atomic_load_n(&open->ended, __ATOMIC_RELAXED);
}

bool ep_port_waits(const struct ep_port *port)
{
	return port->requests || port->ready.first || (port->held && !port->broken);
}
