/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving on an unordered net: immediates say what has arrived, proxy/order.h when a signal among it is due. Where
 * the device needs it, the net then flushes what it wrote, and the signal is stored when that is done: a flush is a
 * round trip over PCIe, so the engine does not wait for it. Nothing received is trusted: a peer that violates the
 * protocol is lost, and the rest of what it sends is ignored.
 */
#include <string.h>

#include "proxy/port.h"

#include "util/error.h"

static void peer_lied(struct ep_port *p, struct port_channel *ch, int err)
{
	ch->deaf = true;
	port_peer_fail(p, ch, err, "what came from", ep_last_error());
}

/* Opens the window; commands that waited for it go in this turn. */
static void credit_take(struct ep_port *p, struct port_channel *ch, uint64_t taken)
{
	if (taken - ch->acked > ch->next - ch->acked) {
		peer_lied(p, ch,
			  EP_FAIL(EP_PROXY, EP_EREMOTE, "rank %d acknowledged %llu puts, only %llu were sent", ch->peer,
				  taken + 0ull, ch->next + 0ull));
		return;
	}
	ch->acked = taken;
}

static void signal_take(struct ep_port *p, struct port_channel *ch, const struct port_mail *mail)
{
	/* A3: pairs with the release by which regions are added; the peer may have added them earlier. */
	uint32_t n = __atomic_load_n(&p->o.regions->count, __ATOMIC_ACQUIRE);
	uint64_t index = mail->dst >> EP_REGION_SHIFT, offset = mail->dst & PORT_OFFSET_MASK;
	const struct ep_region *region = index < n && index < EP_REGIONS ? &p->o.regions->region[index] : NULL;

	if (mail->dst == PORT_CREDIT) {
		credit_take(p, ch, mail->value);
		return;
	}
	if (!region || !region->host || index == p->o.mail || offset % sizeof(uint64_t) || offset > region->size ||
	    region->size - offset < sizeof(uint64_t)) {
		peer_lied(p, ch,
			  EP_FAIL(EP_PROXY, EP_EREMOTE, "rank %d sent a signal to invalid address %#llx", ch->peer,
				  mail->dst + 0ull));
		return;
	}
	if (__builtin_expect(p->timed, 0))
		port_times_arrived(p);
	/* R4: after everything before it on this channel; pairs with the acquire of the wait on this word. */
	__atomic_store_n((uint64_t *)(region->host + offset), mail->value, __ATOMIC_RELEASE);
}

static const struct port_mail *mail_at(const struct ep_port *p, const struct port_channel *ch, uint64_t number)
{
	return p->inbox + (size_t)ch->index * p->o.window + (number & (p->o.window - 1));
}

/* Stores the signals that are due below upto. */
static void channel_take(struct ep_port *p, struct port_channel *ch, uint64_t upto)
{
	struct port_mail mail;
	uint32_t seq;

	while (ep_order_due(&p->order, ch->index, upto, &seq)) {
		/* Once: the peer may write to its slot at any time, and the address is checked before it is used. */
		mail.dst = __atomic_load_n(&mail_at(p, ch, seq)->dst, __ATOMIC_RELAXED);
		mail.value = __atomic_load_n(&mail_at(p, ch, seq)->value, __ATOMIC_RELAXED);
		if (!ch->deaf)
			signal_take(p, ch, &mail);
	}
	if (port_owes(p, ch) && !ch->failed)
		port_ready(p, ch);
}

/* ---- flushes ---- */

/* Nothing is known of what has arrived: no signal is stored any more. */
static void flush_fail(struct ep_port *p, int err)
{
	if (!ep_last_error()[0])
		EP_FAIL(EP_PROXY, -err, "rank %d: a flush of what the NIC wrote failed: %s", p->o.rank, strerror(-err));
	port_break(p, err);
}

/*
 * Takes what needs no flush: puts before the next signal to a kernel, and credits, which are between ports and lie in
 * host memory. True: such a signal waits.
 */
static bool channel_waits(struct ep_port *p, struct port_channel *ch)
{
	uint64_t number;

	while (p->o.flush && !ch->deaf && ep_order_waits(&p->order, ch->index, &number)) {
		if (__atomic_load_n(&mail_at(p, ch, number)->dst, __ATOMIC_RELAXED) != PORT_CREDIT)
			return true;
		channel_take(p, ch, number + 1);
	}
	channel_take(p, ch, p->order.channel[ch->index].prefix);
	return false;
}

/* One is under way at a time: what becomes due meanwhile shares the next. */
static void flush_begin(struct ep_port *p)
{
	int rc;

	for (struct port_channel *ch = p->held; ch; ch = ch->next_held)
		ch->covered = p->order.channel[ch->index].prefix;
	port_error_clear();
	rc = p->o.hot->iflush(p->o.ctx, p->o.flush, &p->flush);
	if (rc)
		flush_fail(p, rc);
}

/* Stores what it covered; true: it has ended. */
static bool flush_end(struct ep_port *p)
{
	struct port_channel **at = &p->held, *ch;
	int done = 0, rc;

	port_error_clear();
	rc = p->o.hot->test(p->o.ctx, p->flush, &done);
	if (!done && !rc)
		return false;
	p->flush = NULL;
	if (rc) {
		flush_fail(p, rc);
		return true;
	}
	while ((ch = *at)) {
		channel_take(p, ch, ch->covered);
		ch->held = channel_waits(p, ch);
		if (ch->held)
			at = &ch->next_held;
		else
			*at = ch->next_held;
	}
	return true;
}

/* The channel whose prefix has advanced, or NULL. The immediate names the sender. */
static struct port_channel *imm_take(struct ep_port *p, uint32_t imm)
{
	struct ep_order_put put = ep_order_unpack(&p->order, imm);
	struct port_channel *ch = put.channel < p->o.peers ? &p->channel[put.channel] : NULL;
	int rc = ch && !ch->deaf ? ep_order_arrive(&p->order, put) : -EALREADY;

	if (rc >= 0)
		return rc ? ch : NULL;
	if (rc != -EALREADY)
		peer_lied(p, ch, rc);
	else if (!p->odd && (!ch || !ch->deaf)) {
		EP_INFO(EP_PROXY, "rank %d: put %u of peer %u (rank %d) %s; ignored, as are later ones", p->o.rank,
			put.seq, put.channel, ch ? ch->peer : -1, ch ? "arrived twice" : "has an unknown sender");
		p->odd = true;
	}
	return NULL;
}

/* The prefix has advanced. */
static void channel_moved(struct ep_port *p, struct port_channel *ch)
{
	if (ch->held || !channel_waits(p, ch))
		return;
	ch->held = true;
	ch->covered = p->order.channel[ch->index].taken; /* by none yet */
	ch->next_held = p->held;
	p->held = ch;
}

/* n <= PORT_BATCH. */
static void imms_take(struct ep_port *p, const uint32_t *imm, int n)
{
	struct port_channel *moved[PORT_BATCH], *ch;
	int count = 0;

	for (int i = 0; i < n; i++) {
		ch = imm_take(p, imm[i]);
		if (ch && !ch->moved) {
			ch->moved = true;
			moved[count++] = ch;
		}
	}
	for (int i = 0; i < count; i++) {
		moved[i]->moved = false;
		channel_moved(p, moved[i]);
	}
}

int port_take(struct ep_port *p)
{
	uint32_t imm[PORT_BATCH];
	int n = 0, rc;

	port_error_clear();
	rc = p->o.hot->progress(p->o.ctx, imm, PORT_BATCH, &n);
	if (__builtin_expect(rc, 0) && !p->broken) {
		if (!ep_last_error()[0])
			EP_FAIL(EP_PROXY, -rc, "rank %d: network context failed: %s", p->o.rank, strerror(-rc));
		port_break(p, rc);
	}
	if (n > 0 && n <= PORT_BATCH && !p->o.ordered && !p->broken)
		imms_take(p, imm, n);
	if (p->held && !p->flush && !p->broken)
		flush_begin(p);
	if (p->flush && !p->broken)
		n += flush_end(p);
	return n;
}
