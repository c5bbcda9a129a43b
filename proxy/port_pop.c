/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From rings to channels. A ring's head never blocks: every popped command is queued on its channel, even if it could
 * be posted at once. Posting straight from the batch could neither merge adjacent puts nor know which put is the
 * channel's last for now and needs a completion; and the queues are not the bottleneck: 25 M puts/s of 64 bytes go
 * through them on one core (engine_perf).
 */
#include "proxy/port.h"

#include "util/error.h"

#define JOIN_LOOK 16 /* queued puts that a new one is compared with */

/* Whether these bytes lie inside a region. */
static bool place_holds(const struct ep_port *p, uint64_t place, uint64_t n)
{
	uint32_t index = (uint32_t)(place >> EP_REGION_SHIFT);
	uint64_t offset = place & PORT_OFFSET_MASK, size;

	if (index >= p->nregions)
		return false;
	size = p->o.regions->region[index].size;
	return offset <= size && n <= size - offset;
}

/* After an invalid command the rest of the ring is not trusted either. */
static bool cmd_is_sane(struct ep_port *p, int ring, const struct ep_cmd *cmd)
{
	uint32_t rank = ep_cmd_channel(cmd), op = ep_cmd_op(cmd);
	uint64_t n = op == EP_CMD_PUT ? ep_cmd_length(cmd) : sizeof(uint64_t);
	const struct port_channel *ch;

	if (rank >= (uint32_t)p->o.nranks || p->of[rank] == PORT_NO_PEER) {
		EP_FAIL(EP_PROXY, EP_EINTERNAL, "rank %d: command for rank %u of %d%s", p->o.rank, rank, p->o.nranks,
			rank < (uint32_t)p->o.nranks ? ", which it does not put to" : "");
		return false;
	}
	ch = &p->channel[p->of[rank]];
	if (ch->ring != ring && ch->ring >= 0) {
		EP_FAIL(EP_PROXY, EP_EINTERNAL, "rank %d: commands for rank %u in rings %d and %d; must be one ring",
			p->o.rank, rank, ch->ring, ring);
		return false;
	}
	if (place_holds(p, ep_cmd_dst(cmd), n) && (op != EP_CMD_PUT || place_holds(p, ep_cmd_src(cmd), n)))
		return true;
	EP_FAIL(EP_PROXY, EP_EINTERNAL,
		"rank %d: command for %llu bytes from %#llx to %#llx of rank %u is outside the %u regions", p->o.rank,
		n + 0ull, op == EP_CMD_PUT ? ep_cmd_src(cmd) + 0ull : 0ull, ep_cmd_dst(cmd) + 0ull, rank, p->nregions);
	return false;
}

void port_cmd_unlink(struct port_channel *ch, struct port_cmd *cmd)
{
	if (cmd->prev)
		cmd->prev->next = cmd->next;
	else
		ch->cmd = cmd->next;
	if (cmd->next)
		cmd->next->prev = cmd->prev;
	else
		ch->cmd_end = cmd->prev ? &cmd->prev->next : &ch->cmd;
}

/* Whether b continues a at both ends. The address after a region's end is the next region's start: not adjacent. */
static bool puts_meet(const struct port_cmd *a, const struct port_cmd *b)
{
	return a->dst + a->length == b->dst && a->src + a->length == b->src && (b->dst & PORT_OFFSET_MASK) &&
	       (b->src & PORT_OFFSET_MASK);
}

/* Merges a put with one queued after the last signal that ends where it begins, or begins where it ends; NULL: none. */
static struct port_cmd *put_join(const struct ep_port *p, const struct port_channel *ch, const struct port_cmd *put)
{
	/* next is the first member, so cmd_end points at the last command. */
	struct port_cmd *at = ch->cmd ? (struct port_cmd *)ch->cmd_end : NULL;

	for (int n = 0; at && at->length && n < JOIN_LOOK; n++, at = at->prev) {
		if (at == put || (uint64_t)at->length + put->length > p->join_max)
			continue;
		if (puts_meet(at, put)) {
			at->length += put->length;
		} else if (!at->sent && puts_meet(put, at)) {
			at->dst = put->dst;
			at->src = put->src;
			at->length += put->length;
		} else {
			continue;
		}
		at->commands += put->commands;
		return at;
	}
	return NULL;
}

/*
 * Warps claim rows in order and push them when they are written, in any order: so a put is compared with several queued
 * ones, and one that fills a gap joins both sides. Nothing but a signal orders puts. Never delays a put for this.
 */
static bool cmd_join(struct ep_port *p, struct port_channel *ch, const struct port_cmd *put)
{
	struct port_cmd *at = put_join(p, ch, put);

	if (!at)
		return false;
	port_count(&p->counts.joined, 1);
	if (!at->sent && put_join(p, ch, at)) {
		port_count(&p->counts.joined, 1);
		port_cmd_unlink(ch, at);
		port_node_put(p, at);
	}
	return true;
}

/* ahead: before all that waits but others like it. */
static void cmd_queue(struct port_channel *ch, struct port_cmd *cmd, bool ahead)
{
	struct port_cmd **at = ahead ? &ch->cmd : ch->cmd_end;

	cmd->ahead = ahead;
	while (ahead && *at && (*at)->ahead)
		at = &(*at)->next;
	cmd->next = *at;
	cmd->prev = at == &ch->cmd ? NULL : (struct port_cmd *)at;
	*at = cmd;
	if (cmd->next)
		cmd->next->prev = cmd;
	else
		ch->cmd_end = &cmd->next;
}

/* A kernel gives a slot back when it has read what arrived there: with the sender's puts this shows whether rows are
 * passed on while more arrive, without a stamp in the kernel. */
static void credit_trace(const struct ep_port *p, const struct ep_cmd *cmd)
{
	uint64_t now = ep_now_ns();

	ep_trace_span(p->o.trace, p->o.trace_row, "consumed", now, now, (int)ep_cmd_channel(cmd), ep_cmd_value(cmd));
}

static int cmd_take(struct ep_port *p, int ring, const struct ep_cmd *cmd)
{
	bool put = ep_cmd_op(cmd) == EP_CMD_PUT;
	struct port_cmd one = { .dst = ep_cmd_dst(cmd), .commands = 1 }, *last;
	struct port_channel *ch;

	if (ep_cmd_op(cmd) == EP_CMD_NOP || (put && !ep_cmd_length(cmd))) {
		p->ring[ring].done++;
		return 0;
	}
	if (__builtin_expect(!cmd_is_sane(p, ring, cmd), 0))
		return -EP_EINTERNAL;
	ch = &p->channel[p->of[ep_cmd_channel(cmd)]];
	ch->ring = ring;
	if (__builtin_expect(ch->failed, 0)) {
		port_count(&p->counts.dropped, 1);
		p->ring[ring].done++;
		return 0;
	}
	one.src = put ? ep_cmd_src(cmd) : ep_cmd_value(cmd);
	one.length = put ? ep_cmd_length(cmd) : 0;
	if (put && cmd_join(p, ch, &one))
		return 0;
	last = (struct port_cmd *)port_node_get(p);
	if (!last) {
		port_count(&p->counts.dropped, 1);
		p->ring[ring].done++;
		return 0;
	}
	*last = one;
	if (__builtin_expect(p->timed, 0) && ep_cmd_op(cmd) == EP_CMD_SIGNAL)
		port_times_popped(p, last);
	if (__builtin_expect(p->o.trace != NULL, 0) && ep_cmd_op(cmd) == EP_CMD_CREDIT)
		credit_trace(p, cmd);
	cmd_queue(ch, last, ep_cmd_op(cmd) == EP_CMD_CREDIT);
	port_ready(p, ch);
	port_flow_use(p, ch);
	return 0;
}

/* Dropped commands complete too, or a producer waiting for quiet would hang. */
static int ring_take(struct ep_port *p, int ring)
{
	struct port_ring *r = &p->ring[ring];
	struct ep_cmd cmd[PORT_BATCH];
	int n = ep_ring_pop(r->ring, cmd, PORT_BATCH), rc = n < 0 ? n : 0;

	if (n > 0) {
		/* A3: pairs with the release by which regions are added: those that these commands name are visible. */
		p->nregions = __atomic_load_n(&p->o.regions->count, __ATOMIC_ACQUIRE);
		p->nregions = p->nregions < EP_REGIONS ? p->nregions : EP_REGIONS;
		port_count(&p->counts.commands, (uint64_t)n);
	}
	for (int i = 0; i < n; i++) {
		if (rc || (rc = cmd_take(p, ring, &cmd[i]))) {
			port_count(&p->counts.dropped, 1);
			r->done++;
		}
	}
	if (rc) {
		r->dead = true;
		port_tell_failed(p, rc);
	}
	p->drained &= r->dead || n < PORT_BATCH;
	return n > 0 ? n : 0;
}

int port_pop(struct ep_port *p)
{
	int n = 0;

	p->drained = true;
	for (int i = 0; i < p->o.rings; i++)
		if (!p->ring[i].dead)
			n += ring_take(p, i);
	return n;
}
