/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From rings to channels. A ring's head never waits: every command that was popped goes behind those of its channel,
 * also when it could go at once. Posting straight from the batch would not know which puts are neighbours, nor which is
 * a channel's last for now and needs a completion; and the lists are not what limits: 25 M puts/s of 64 bytes go
 * through them on one core (engine_perf).
 */
#include "proxy/port.h"

#include "util/error.h"

/* Whether these bytes are in a region that there is. */
static bool place_holds(const struct ep_port *p, uint64_t place, uint64_t n)
{
	uint32_t index = (uint32_t)(place >> EP_REGION_SHIFT);
	uint64_t offset = place & PORT_OFFSET_MASK, size;

	if (index >= p->nregions)
		return false;
	size = p->o.regions->region[index].size;
	return offset <= size && n <= size - offset;
}

/* A kernel that pushes nonsense has gone wrong: what follows in its ring is not believed either. */
static bool cmd_is_sane(struct ep_port *p, int ring, const struct ep_cmd *cmd)
{
	uint32_t channel = ep_cmd_channel(cmd), op = ep_cmd_op(cmd);
	uint64_t n = op == EP_CMD_PUT ? ep_cmd_length(cmd) : sizeof(uint64_t);

	if (channel >= (uint32_t)p->o.nranks) {
		EP_FAIL(EP_PROXY, EP_EINTERNAL, "rank %d: a command for rank %u of %d", p->o.rank, channel,
			p->o.nranks);
		return false;
	}
	if (p->channel[channel].ring != ring && p->channel[channel].ring >= 0) {
		EP_FAIL(EP_PROXY, EP_EINTERNAL, "rank %d: commands for rank %u in rings %d and %d: their order is lost",
			p->o.rank, channel, p->channel[channel].ring, ring);
		return false;
	}
	if (place_holds(p, ep_cmd_dst(cmd), n) && (op != EP_CMD_PUT || place_holds(p, ep_cmd_src(cmd), n)))
		return true;
	EP_FAIL(EP_PROXY, EP_EINTERNAL,
		"rank %d: a command for %llu bytes from %#llx to %#llx of rank %u: outside the %u regions", p->o.rank,
		n + 0ull, op == EP_CMD_PUT ? ep_cmd_src(cmd) + 0ull : 0ull, ep_cmd_dst(cmd) + 0ull, channel,
		p->nregions);
	return false;
}

/* A put that goes on where the one before it ends, at both sides, becomes part of it. Nothing waits for that. */
static bool cmd_join(const struct ep_port *p, const struct port_channel *ch, const struct ep_cmd *cmd)
{
	struct port_cmd *last = ch->cmd ? (struct port_cmd *)ch->cmd_end : NULL;
	uint32_t n = ep_cmd_length(cmd);

	/* next is the first member: cmd_end points at the last command itself. */
	if (!last || !last->length || last->dst + last->length != ep_cmd_dst(cmd) ||
	    last->src + last->length != ep_cmd_src(cmd) || (uint64_t)last->length + n > p->join_max)
		return false;
	/* At a region's end the next one's address follows: no neighbour. */
	if (!(ep_cmd_dst(cmd) & PORT_OFFSET_MASK) || !(ep_cmd_src(cmd) & PORT_OFFSET_MASK))
		return false;
	last->length += n;
	last->commands++;
	return true;
}

static int cmd_take(struct ep_port *p, int ring, const struct ep_cmd *cmd)
{
	bool put = ep_cmd_op(cmd) == EP_CMD_PUT;
	struct port_channel *ch;
	struct port_cmd *last;

	if (ep_cmd_op(cmd) == EP_CMD_NOP || (put && !ep_cmd_length(cmd))) {
		p->ring[ring].done++;
		return 0;
	}
	if (__builtin_expect(!cmd_is_sane(p, ring, cmd), 0))
		return -EP_EINTERNAL;
	ch = &p->channel[ep_cmd_channel(cmd)];
	ch->ring = ring;
	if (__builtin_expect(ch->failed, 0)) {
		port_count(&p->counts.dropped, 1);
		p->ring[ring].done++;
		return 0;
	}
	if (put && cmd_join(p, ch, cmd))
		return 0;
	last = (struct port_cmd *)port_node_get(p);
	if (!last) {
		port_count(&p->counts.dropped, 1);
		p->ring[ring].done++;
		return 0;
	}
	*last = (struct port_cmd){ .dst = ep_cmd_dst(cmd), .commands = 1 };
	last->src = put ? ep_cmd_src(cmd) : ep_cmd_value(cmd);
	last->length = put ? ep_cmd_length(cmd) : 0;
	*ch->cmd_end = last;
	ch->cmd_end = &last->next;
	port_ready(p, ch);
	return 0;
}

/* Everything popped counts, also what is dropped: a producer that waits for quiet must not wait for ever. */
static int ring_take(struct ep_port *p, int ring)
{
	struct port_ring *r = &p->ring[ring];
	struct ep_cmd cmd[PORT_BATCH];
	int n = ep_ring_pop(r->ring, cmd, PORT_BATCH), rc = n < 0 ? n : 0;

	if (n > 0) {
		/* A3: pairs with the release of whoever adds regions: all that these commands name are there. */
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
