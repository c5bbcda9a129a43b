/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From channels to the net, and completions.
 *
 * Three things stop a channel. The net, when it has no room. Flow, the limits in flight of the port and of its ring
 * (port_flow.c): then no other channel that shares the limit may overtake, or a large put would starve behind small
 * ones; but one that has its share in flight lets others pass. The window: on an unordered net the receiver tracks that
 * many numbers. It returns them by credits, which are numbered puts themselves, on the channel of the opposite
 * direction.
 *
 * Two ranks that flood each other do not deadlock: puts and signals of kernels use half of the window, so the other
 * half of a full window are credits. Each credit, when processed, opens at least a quarter of the window on the other
 * side (it was sent because that much had been processed), where the credit owed goes first. So a channel is full only
 * until the other side has processed what is in it, whatever that side's own state. Credits for credits die out: it
 * takes a quarter of a window, 16 puts or more, to cause one.
 */
#include <string.h>

#include "proxy/port.h"

#include "util/error.h"

#define LOOK_BEHIND 32u /* polls of an incomplete first request before later ones are polled too */

enum outcome { GIVEN, NO_ROOM, NO_FLOW, LOST };

static const struct ep_region *place_region(const struct ep_port *p, uint64_t place)
{
	/* Of a credit, which has no place, it is never used; the remainder keeps the compiler from a warning there. */
	return &p->o.regions->region[(place >> EP_REGION_SHIFT) % EP_REGIONS];
}

/* Bytes of a signal on the wire. */
static uint32_t signal_size(const struct ep_port *p)
{
	return p->o.ordered ? sizeof(uint64_t) : sizeof(struct port_mail);
}

/* Bytes of a command that the next put carries. */
static uint64_t cmd_piece(const struct ep_port *p, const struct port_cmd *cmd)
{
	uint64_t left = cmd->length - cmd->sent;

	if (!cmd->length)
		return signal_size(p);
	return left < p->o.max_put ? left : p->o.max_put;
}

/* Whether the receiver's window and the mail slots allow this command as put `number`. */
static bool window_fits(const struct ep_port *p, const struct port_channel *ch, const struct port_cmd *cmd,
			uint64_t number)
{
	if (!p->o.ordered && number - ch->acked >= p->o.window / 2)
		return false;
	return cmd->length || p->o.max_inline >= signal_size(p) || number - ch->clean < p->o.window;
}

/*
 * Whether another put follows this one for certain, if the net has room. Only then may this one go without a completion
 * of its own, since flow, window and quiet wait for completions.
 */
static bool cmd_is_followed(const struct ep_port *p, const struct port_channel *ch, uint64_t piece)
{
	const struct port_cmd *cmd = ch->cmd;
	uint64_t left = cmd->length - cmd->sent - piece;

	if (cmd->length && left)
		return window_fits(p, ch, cmd, ch->next + 1) &&
		       (!p->limited || port_flow_fits(p, ch, piece + (left < p->o.max_put ? left : p->o.max_put), 2));
	cmd = cmd->next;
	return cmd && window_fits(p, ch, cmd, ch->next + 1) &&
	       (!p->limited || port_flow_fits(p, ch, piece + cmd_piece(p, cmd), 2));
}

static void request_add(struct ep_port *p, struct port_channel *ch, struct port_request *r, void *request)
{
	struct port_load one = { .requests = 1 };

	*r = (struct port_request){ .request = request, .load = ch->quiet, .upto = ch->next };
	if (p->limited && r->load.puts) {
		port_flow_add(p, ch, &one);
		r->load.requests = 1;
	}
	if (__builtin_expect(p->o.trace != NULL, 0))
		r->since = ep_now_ns();
	ch->quiet = (struct port_load){ 0 };
	*ch->request_end = r;
	ch->request_end = &r->next;
	p->requests++;
	if (ch->busy)
		return;
	ch->busy = true;
	ch->next_busy = NULL;
	*p->busy.end = ch;
	p->busy.end = &ch->next_busy;
}

/* Gives a put to the net; on success its load counts as in flight. */
static enum outcome put_give(struct ep_port *p, struct port_channel *ch, ncclEpNetPut_v1_t *put, bool signal,
			     const struct port_load *load)
{
	union port_node *node = NULL;
	void *request = NULL;
	int rc;

	if (!(put->flags & NCCL_EP_NET_QUIET)) {
		node = port_node_get(p);
		if (!node)
			return LOST;
	}
	put->peer = ch->peer;
	if (!p->o.ordered) {
		struct ep_order_put number = { ch->there, (uint32_t)ch->next, signal };

		put->flags |= NCCL_EP_NET_IMM;
		put->imm = ep_order_pack(&p->order, number);
	}
	port_error_clear();
	rc = p->o.hot->iput(p->o.ctx, put, &request);
	if (__builtin_expect(rc || !request, 0)) {
		if (node)
			port_node_put(p, node);
		if (rc)
			port_net_fail(p, ch, rc);
		return rc ? LOST : NO_ROOM;
	}
	ch->next++;
	port_load_add(&ch->quiet, load);
	port_flow_add(p, ch, load);
	if (node)
		request_add(p, ch, &node->request, request);
	return GIVEN;
}

/*
 * On an ordered net the value goes straight to its destination. On an unordered net value and destination go to the
 * peer's mail, in the slot of the put's number, and the peer's port stores the value when it is due.
 */
static enum outcome signal_give(struct ep_port *p, struct port_channel *ch, uint64_t dst, uint64_t value,
				const struct port_load *load, uint32_t flags)
{
	size_t slot = ch->next & (p->o.window - 1);
	struct port_mail mail = { dst, value };
	ncclEpNetPut_v1_t put = { .flags = flags,
				  .size = signal_size(p),
				  .src = p->o.ordered ? &mail.value : &mail.dst };
	const struct ep_region *box = &p->o.regions->region[p->o.mail % EP_REGIONS];

	if (p->o.ordered) {
		put.dstMr = place_region(p, dst)->mr;
		put.dstOffset = dst & PORT_OFFSET_MASK;
	} else {
		put.dstMr = box->mr;
		put.dstOffset = ((size_t)ch->there * p->o.window + slot) * sizeof(mail);
	}
	if (p->o.max_inline >= put.size) {
		put.flags |= NCCL_EP_NET_INLINE;
	} else {
		struct port_mail *out = &p->outbox[(size_t)ch->index * p->o.window + slot];

		memcpy(out, put.src, put.size);
		put.srcMr = box->mr;
		put.srcOffset = (uint64_t)((uint8_t *)out - (uint8_t *)p->inbox);
	}
	return put_give(p, ch, &put, true, load);
}

/* Not subject to flow: 16 bytes per quarter of a window, and the peer waits for them. */
static enum outcome credit_give(struct ep_port *p, struct port_channel *ch)
{
	uint64_t taken = p->order.channel[ch->index].taken;
	struct port_load none = { 0 };
	enum outcome how;

	if (ch->next - ch->acked >= p->o.window ||
	    (p->o.max_inline < sizeof(struct port_mail) && ch->next - ch->clean >= p->o.window))
		return NO_ROOM;
	port_count(&p->counts.credits, 1);
	how = signal_give(p, ch, PORT_CREDIT, taken, &none, 0);
	if (how == GIVEN)
		ch->credited = taken;
	else
		port_count(&p->counts.credits, -1ull);
	return how;
}

static enum outcome piece_give(struct ep_port *p, struct port_channel *ch, uint64_t piece, const struct port_load *load,
			       uint32_t flags)
{
	struct port_cmd *cmd = ch->cmd;
	ncclEpNetPut_v1_t put = {
		.flags = flags,
		.srcMr = place_region(p, cmd->src)->mr,
		.dstMr = place_region(p, cmd->dst)->mr,
		.srcOffset = (cmd->src & PORT_OFFSET_MASK) + cmd->sent,
		.dstOffset = (cmd->dst & PORT_OFFSET_MASK) + cmd->sent,
		.size = piece,
	};

	return put_give(p, ch, &put, false, load);
}

/*
 * The channel's first command, or as much of it as one put may carry. Counted before it is given, so that whoever has
 * seen the signal sees it counted.
 */
static enum outcome cmd_give(struct ep_port *p, struct port_channel *ch, bool last)
{
	struct port_cmd *cmd = ch->cmd;
	uint64_t piece = cmd_piece(p, cmd), bytes = cmd->length ? piece : 0;
	bool whole = cmd->sent + piece >= cmd->length;
	struct port_load load = { .bytes = piece, .puts = 1, .commands = whole ? cmd->commands : 0 };
	uint64_t *count = cmd->length ? &p->counts.puts : &p->counts.signals;
	uint32_t flags = 0;
	enum outcome how;

	if (!last && cmd_is_followed(p, ch, piece))
		flags = NCCL_EP_NET_MORE | (ch->quiet.puts + 1 < p->cover ? NCCL_EP_NET_QUIET : 0);
	port_count(count, 1);
	port_count(&p->counts.bytes, bytes);
	how = cmd->length ? piece_give(p, ch, piece, &load, flags)
			  : signal_give(p, ch, cmd->dst, cmd->src, &load, flags);
	if (how == GIVEN) {
		cmd->sent += (uint32_t)bytes;
		if (!whole)
			return how;
		if (__builtin_expect(p->timed, 0))
			port_times_given(p, ch, cmd);
		port_cmd_unlink(ch, cmd);
		port_node_put(p, cmd);
		return how;
	}
	port_count(count, -1ull);
	port_count(&p->counts.bytes, -bytes);
	return how;
}

/* Commands that overtake are not subject to flow either: 8 bytes, and the peer waits for them. */
static enum outcome ahead_give(struct ep_port *p, struct port_channel *ch, int *moved)
{
	enum outcome how = GIVEN;

	while (how == GIVEN && ch->cmd && ch->cmd->ahead && window_fits(p, ch, ch->cmd, ch->next)) {
		/* What follows may not go this turn, so only another one like it covers a quiet one. */
		how = cmd_give(p, ch, !ch->cmd->next || !ch->cmd->next->ahead);
		*moved += how == GIVEN;
	}
	return how;
}

static enum outcome channel_serve(struct ep_port *p, struct port_channel *ch, int *moved)
{
	enum outcome how = GIVEN;

	if (port_owes(p, ch) && !ch->failed) {
		how = credit_give(p, ch);
		*moved += how == GIVEN;
	}
	if (ch->stalled)
		return NO_ROOM;
	if (how == GIVEN)
		how = ahead_give(p, ch, moved);
	if (ch->cmd && p->ring[ch->ring].full)
		return NO_ROOM;
	for (int n = 0; how == GIVEN && n < PORT_BATCH && ch->cmd; n++) {
		enum port_stop stop;

		if (!window_fits(p, ch, ch->cmd, ch->next))
			return NO_ROOM;
		stop = p->limited ? port_flow_stop(p, ch, cmd_piece(p, ch->cmd)) : PORT_GOES;
		if (stop != PORT_GOES) {
			p->blocked |= stop != PORT_SHARE;
			p->ring[ch->ring].full = stop == PORT_RING;
			return stop == PORT_FLOW ? NO_FLOW : NO_ROOM;
		}
		how = cmd_give(p, ch, n + 1 == PORT_BATCH);
		*moved += how == GIVEN;
	}
	return how;
}

/* Peers wait for credits even while our flow limit is reached. */
static int credits_give(struct ep_port *p, struct port_channel *ch)
{
	int moved = 0;

	for (; ch; ch = ch->next_ready)
		if (!ch->failed) {
			moved += port_owes(p, ch) && credit_give(p, ch) == GIVEN;
			if (!ch->stalled)
				ahead_give(p, ch, &moved);
		}
	return moved;
}

/*
 * Round robin, each channel once; one stopped by the port's flow is first next time, the others go to the end. One
 * stopped by its ring's goes there before the others of that ring, so it stays the first of them.
 */
int port_send(struct ep_port *p)
{
	struct port_channel *end = NULL, *ch;
	int moved = 0;

	for (int i = 0; i < p->o.rings; i++)
		p->ring[i].full = false;
	while ((ch = p->ready.first) && ch != end) {
		if (channel_serve(p, ch, &moved) == NO_FLOW) {
			moved += credits_give(p, ch->next_ready);
			break;
		}
		p->ready.first = ch->next_ready;
		if (!p->ready.first)
			p->ready.end = &p->ready.first;
		ch->ready = false;
		if (ch->failed || (!ch->cmd && !port_owes(p, ch)))
			continue;
		port_ready(p, ch);
		end = end ? end : ch;
	}
	return moved;
}

/*
 * P3 of nccl_ep_net.h: on an ordered net nothing succeeds after a failed put, in whatever order requests are tested. If
 * something does, the peer may have seen a signal without the data before it, and nothing else of this net is trusted.
 */
static void order_broken(struct ep_port *p, const struct port_channel *ch)
{
	if (p->broken)
		return;
	EP_FAIL(EP_PROXY, EP_EINTERNAL,
		"rank %d: the transport completed a put to rank %d after an earlier one had failed (rule P3 of "
		"nccl_ep_net.h): rank %d may have used data that never arrived; report this to the transport's author",
		p->o.rank, ch->peer, ch->peer);
	port_break(p, -EP_EINTERNAL);
}

static void order_check(struct ep_port *p, struct port_channel *ch, uint64_t upto, int rc)
{
	if (!rc)
		ch->good = (int64_t)(upto - ch->good) > 0 ? upto : ch->good;
	else if (!ch->gap || (int64_t)(upto - ch->ended) < 0)
		ch->ended = upto;
	ch->gap |= rc != 0;
	if (__builtin_expect(ch->gap, 0) && (int64_t)(ch->good - ch->ended) > 0)
		order_broken(p, ch);
}

static bool request_test(struct ep_port *p, struct port_channel *ch, struct port_request *r)
{
	int done = 0, rc;

	port_error_clear();
	rc = p->o.hot->test(p->o.ctx, r->request, &done);
	if (!done && !rc)
		return false;
	if (__builtin_expect(ch->stalled, 0))
		port_flow_resume(p, ch);
	ch->mark = p->checks;
	port_flow_sub(p, ch, &r->load);
	port_done(p, ch, r->load.commands);
	p->requests--;
	if (__builtin_expect(p->timed, 0))
		port_times_completed(p, ch, r->upto);
	if (__builtin_expect(p->o.trace != NULL, 0))
		ep_trace_span(p->o.trace, p->o.trace_row, "put", r->since, ep_now_ns(), ch->peer, r->load.bytes);
	if (p->o.ordered)
		order_check(p, ch, r->upto, rc);
	if (rc)
		port_net_fail(p, ch, rc);
	return true;
}

/* Whether requests are left. They complete in any order; one that is slow must not hold back the flow of the rest. */
static bool channel_reap(struct ep_port *p, struct port_channel *ch, int *moved)
{
	struct port_request *r;

	while ((r = ch->request) && (r->done || request_test(p, ch, r))) {
		ch->clean = r->upto;
		ch->request = r->next;
		port_node_put(p, r);
		++*moved;
	}
	if (!r) {
		ch->request_end = &ch->request;
		return false;
	}
	if (++ch->looks % LOOK_BEHIND)
		return true;
	for (r = r->next; r; r = r->next)
		if (!r->done && request_test(p, ch, r)) {
			r->done = true;
			++*moved;
		}
	return true;
}

int port_reap(struct ep_port *p)
{
	struct port_channel *ch = p->busy.first, *next;
	int moved = 0;

	p->busy.first = NULL;
	p->busy.end = &p->busy.first;
	for (; ch; ch = next) {
		next = ch->next_busy;
		ch->next_busy = NULL;
		ch->busy = channel_reap(p, ch, &moved);
		if (!ch->busy)
			continue;
		*p->busy.end = ch;
		p->busy.end = &ch->next_busy;
	}
	return moved;
}
