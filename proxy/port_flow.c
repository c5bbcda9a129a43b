/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits in flight: of the port in bytes and puts, of each ring in puts. One peer must not hold up the others:
 *
 * - A slow one has at most its share of a limit in flight: the limit by the number of channels that use it. The share
 *   of a channel alone is the whole limit, and several reach it together.
 * - One that completes nothing, for 5 to 10 ms in which a limit held somebody up, is stalled: what it has in flight no
 *   longer counts, since it would keep that part of the limit for ever, and nothing more is sent to it until something
 *   completes. The time is long for a fabric, where a put takes microseconds and a congested one a millisecond, and
 *   short for a user. If a whole fabric stops, this sends one limit in 5 ms at most, 0.3 GB/s: no congestion.
 */
#include "proxy/port.h"

#include "util/clock.h"

#define CHECK_NS 5000000u
#define CHECK_TURNS 256u /* too, so that a thread that did not run has seen what completed meanwhile */

static bool limit_fits(const struct port_flow *f, uint64_t bytes, uint32_t puts)
{
	return (!f->max_puts || f->out.puts + puts <= f->max_puts) &&
	       (!f->max_bytes || f->out.bytes + bytes <= f->max_bytes);
}

/* n <= limit / users, rounded up: puts are few. */
static bool share_holds(uint64_t limit, uint32_t users, uint64_t n)
{
	return !limit || (n - 1) * users < limit;
}

static bool share_fits(const struct port_flow *f, const struct port_channel *ch, uint64_t bytes, uint32_t puts)
{
	return share_holds(f->max_puts, f->users, ch->out.puts + puts) &&
	       share_holds(f->max_bytes, f->users, ch->out.bytes + bytes);
}

bool port_flow_fits(const struct ep_port *p, const struct port_channel *ch, uint64_t bytes, uint32_t puts)
{
	const struct port_flow *all = &p->flow, *ring = &p->ring[ch->ring].flow;

	return limit_fits(all, bytes, puts) && limit_fits(ring, bytes, puts) && share_fits(all, ch, bytes, puts) &&
	       share_fits(ring, ch, bytes, puts);
}

/*
 * A limit without a request in flight stops nothing, or it would for ever: a put above the limit, or one after quiet
 * puts that the net had no room to follow up. The share first: what a channel has in flight itself stops no other.
 */
enum port_stop port_flow_stop(const struct ep_port *p, const struct port_channel *ch, uint64_t bytes)
{
	const struct port_flow *all = &p->flow, *ring = &p->ring[ch->ring].flow;

	if (ch->out.requests && (!share_fits(all, ch, bytes, 1) || !share_fits(ring, ch, bytes, 1)))
		return PORT_SHARE;
	if (all->out.requests && !limit_fits(all, bytes, 1))
		return PORT_FLOW;
	return ring->out.requests && !limit_fits(ring, bytes, 1) ? PORT_RING : PORT_GOES;
}

static void channel_stall(struct ep_port *p, struct port_channel *ch)
{
	/* A whole interval lies between two checks, so more than one has passed since the completion. Only a completion
	 * resumes a channel: one whose puts are all quiet has none to come, and needs another put first. */
	if (ch->stalled || !ch->out.requests || p->checks - ch->mark < 2)
		return;
	port_load_sub(&p->flow.out, &ch->out);
	port_load_sub(&p->ring[ch->ring].flow.out, &ch->out);
	ch->stalled = true;
	port_flow_use(p, ch);
}

void port_flow_check(struct ep_port *p)
{
	uint64_t now = ep_now_ns();

	p->blocked = false;
	if (now - p->checked < CHECK_NS || p->turns - p->checked_turns < CHECK_TURNS)
		return;
	p->checked = now;
	p->checked_turns = p->turns;
	p->checks++;
	for (struct port_channel *ch = p->busy.first; ch; ch = ch->next_busy)
		channel_stall(p, ch);
}

void port_flow_resume(struct ep_port *p, struct port_channel *ch)
{
	ch->stalled = false;
	port_load_add(&p->flow.out, &ch->out);
	port_load_add(&p->ring[ch->ring].flow.out, &ch->out);
	port_flow_use(p, ch);
}
