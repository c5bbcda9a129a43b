/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a port in words, for a dump. Written by its own engine, between two turns: nothing of it is atomic. */
#include "proxy/port.h"

#include "util/error.h"
#include "util/lines.h"

#define STATE_PEER 128u /* bytes of a peer's line, */
#define STATE_REST 512u /* and of the others together */

static uint32_t queued(const struct port_channel *ch)
{
	uint32_t n = 0;

	for (const struct port_cmd *cmd = ch->cmd; cmd; cmd = cmd->next)
		n += cmd->commands;
	return n;
}

/* Only peers to which something is under way, or that are lost. */
static void channel_tell(const struct port_channel *ch, struct ep_lines *out)
{
	if (!ch->cmd && !ch->request && !ch->quiet.puts && !ch->failed)
		return;
	ep_lines_add(out, "channel %d queued %u sent %llu completed %llu acked %llu%s%s\n", ch->peer, queued(ch),
		     ch->next + 0ull, ch->clean + 0ull, ch->acked + 0ull, ch->stalled ? " stalled" : "",
		     ch->failed ? " lost" : "");
}

void port_state_tell(struct ep_port *p, uint64_t asked)
{
	struct ep_lines out = { p->state, STATE_REST + (size_t)p->o.peers * STATE_PEER, 0 };

	ep_lines_add(&out, "port requests %llu puts %u bytes %llu%s\n", p->requests + 0ull, p->flow.out.puts,
		     p->flow.out.bytes + 0ull, p->broken ? " broken" : "");
	for (int i = 0; i < p->o.rings; i++) {
		const struct ep_ring *ring = p->ring[i].ring;

		ep_lines_add(&out, "ring %d popped %llu pending %llu%s\n", i, ring->at + 0ull,
			     ep_ring_pending(ring) + 0ull, p->ring[i].dead ? " dead" : "");
	}
	for (uint32_t i = 0; i < p->o.peers; i++)
		channel_tell(&p->channel[i], &out);
	__atomic_store_n(&p->told_state, asked, __ATOMIC_RELEASE); /* R4: pairs with A4 in ep_port_describe */
}

int ep_port_describe(struct ep_port *port, uint64_t deadline, const char **out)
{
	uint64_t ticket;
	int rc;

	/* The port's own: an engine that answers after the deadline writes to it. */
	if (!port->state) {
		port->state = EP_CALLOC(EP_PROXY, 1, STATE_REST + (size_t)port->o.peers * STATE_PEER, "its state");
		if (!port->state)
			return -ENOMEM;
	}
	/* R1: the engine that sees the ticket sees the memory. */
	ticket = __atomic_add_fetch(&port->asked_state, 1, __ATOMIC_RELEASE);
	rc = port_wait(port, &port->told_state, ticket, deadline); /* A4 */
	if (!rc)
		*out = port->state;
	return rc;
}
