/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/endpoint.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "util/clock.h"
#include "util/error.h"

#define REPAIR_MS 10000

uint64_t ep_endpoint_deadline(const struct ep_boot *b)
{
	uint64_t own = ep_deadline_ms(b->timeout_ms);

	return b->limit && b->limit < own ? b->limit : own;
}

void ep_endpoint_fail(struct ep_boot *b, int err, uint32_t culprit, const char *fmt, ...)
{
	struct ep_blame blame = { culprit == EP_NO_RANK ? -1 : (int)culprit, EP_EV_CERTAIN };
	char why[EP_WHY_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	ep_endpoint_blame(b, err, blame, why);
}

void ep_endpoint_blame(struct ep_boot *b, int err, struct ep_blame blame, const char *why)
{
	struct ep_frame f = { .type = EP_F_FAIL, .err = (uint16_t)err };

	if (b->err && blame.evidence <= b->blame.evidence)
		return;
	snprintf(b->why, sizeof(b->why), "%s", why);
	b->blame = blame;
	b->err = err;
	f.rank = blame.rank < 0 ? EP_NO_RANK : (uint32_t)blame.rank;
	f.bytes = (uint32_t)strlen(b->why);
	/* If this is out of memory the root sees the connection close. */
	if (b->phase == EP_MEETING && b->root)
		ep_loop_post(&b->loop, b->root, &f, b->why);
	pthread_cond_broadcast(&b->cond);
}

/* The scope of a link-local address is local to the connecting host. */
void ep_endpoint_scope(const struct ep_boot *b, struct ep_dial *d)
{
	for (int i = 0; i < d->naddr && b->scope; i++)
		if (d->addr[i].family == 6 && d->addr[i].ip[0] == 0xfe && (d->addr[i].ip[1] & 0xc0) == 0x80)
			d->addr[i].scope = b->scope;
}

int ep_endpoint_dial(struct ep_boot *b, const struct ep_peer *to, uint64_t give_up)
{
	struct ep_shake who = { .purpose = EP_TO_RANK, .from = b->rank, .to = to->rank };
	struct ep_dial d = { .port = to->port, .naddr = to->naddr, .give_up = give_up };

	if (!ep_peer_ok(to, to->rank))
		return -EPROTO; /* it published none */
	memcpy(d.addr, to->addr, sizeof(d.addr));
	ep_endpoint_scope(b, &d);
	return ep_loop_dial(&b->loop, &who, &d) ? 0 : -ENOMEM;
}

/* Connected or connecting. */
static bool connected(const struct ep_boot *b, uint32_t rank)
{
	for (const struct ep_conn *c = b->loop.conns; c; c = c->next)
		if (c->purpose == EP_TO_RANK && c->peer == rank && c->state <= EP_CONN_READY)
			return true;
	return false;
}

/*
 * With survive, enough deaths partition the mesh (of 8 ranks, 0 has no neighbour left when 1, 2, 4, 6, 7 are dead).
 * Each rank that waits in a collective therefore connects to the next live rank; once all wait, the live ranks form a
 * ring.
 */
void ep_endpoint_repair(struct ep_boot *b)
{
	int rc = -EPROTO;

	while (b->survive && b->phase == EP_RUNNING && b->busy && b->peers && rc == -EPROTO) {
		uint32_t to = b->rank;

		do
			to = (to + 1) % b->nranks;
		while (to != b->rank && b->state[to] != EP_RANK_ALIVE);
		if (to == b->rank || connected(b, to))
			return;
		EP_INFO(EP_BOOT, "rank %u connects to rank %u to repair the mesh", b->rank, to);
		rc = ep_endpoint_dial(b, &b->peers[to], ep_deadline_ms(REPAIR_MS));
		if (rc)
			b->state[to] = EP_RANK_UNREACHABLE; /* it died before it published its address */
	}
	if (rc == -ENOMEM)
		ep_endpoint_fail(b, ENOMEM, b->rank, "rank %u: out of memory for a connection", b->rank);
}
