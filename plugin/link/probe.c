/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before ranks agree on a net, a word and an immediate go each way between every rank and those it puts to: a device
 * may be there and up, and yet on another network, or behind a firewall. Beyond EVERY ranks a sample is enough, the
 * same for both ends of a pair: the offsets of a ring, and every n-th.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/link/link.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/rest.h"

#define EVERY 256
#define IMMS 16

enum { SENT = 1, ARRIVED = 2, HEARD = 4, ALL = SENT | ARRIVED | HEARD };

struct probe {
	struct ep_link *link;
	void *mr;
	uint64_t *words; /* a word of each rank, then the one that this rank sends */
	uint8_t *state;	 /* of each rank; ALL where nothing is sent */
	void **request;
};

static bool is_power(int n)
{
	return (n & (n - 1)) == 0;
}

bool ep_link_probes(int nranks, int rank, int peer)
{
	int ahead = (peer - rank + nranks) % nranks, behind = nranks - ahead, step = (nranks + EVERY - 1) / EVERY;

	return step == 1 || is_power(ahead) || is_power(behind) || ahead % (2 * step) == 0 || behind % (2 * step) == 0;
}

static uint64_t word_of(int rank)
{
	return 0x50726f6265ull << 24 | (uint64_t)(uint32_t)rank;
}

/* Why a peer is not reached, as the net tells it. */
static int peer_failed(const struct probe *p, int peer, int rc)
{
	const struct ep_link *link = p->link;
	const char *why = NULL;

	if (link->net->ops.queryLastError(link->comm, peer, &why) == 0 || !why || !why[0])
		why = strerror(-rc);
	return EP_FAIL(EP_GROUP, EP_EREMOTE, "rank %d does not reach rank %d by net %s, device %s: %.200s",
		       link->ctx.rank, peer, link->net->name, link->props.name, why);
}

static int word_send(struct probe *p, int peer)
{
	const struct ep_link *link = p->link;
	int nranks = link->ctx.nranks, rank = link->ctx.rank, rc;
	ncclEpNetPut_v1_t put = { .peer = peer,
				  .flags = link->props.immBits ? NCCL_EP_NET_IMM : 0,
				  .imm = (uint32_t)rank,
				  .srcMr = p->mr,
				  .dstMr = p->mr,
				  .srcOffset = (uint64_t)nranks * sizeof(uint64_t),
				  .dstOffset = (uint64_t)rank * sizeof(uint64_t),
				  .size = sizeof(uint64_t) };

	rc = link->net->hot.iput(link->port[0].ctx, &put, &p->request[peer]);
	if (rc)
		return peer_failed(p, peer, rc);
	if (p->request[peer])
		p->state[peer] |= SENT;
	return 0;
}

static int word_test(struct probe *p, int peer)
{
	const struct ep_link *link = p->link;
	int done = 0, rc;

	if (p->request[peer] != NCCL_EP_NET_QUIET_REQUEST) {
		rc = link->net->hot.test(link->port[0].ctx, p->request[peer], &done);
		if (rc)
			return peer_failed(p, peer, rc);
		if (!done)
			return 0;
	}
	p->state[peer] |= ARRIVED;
	return 0;
}

/* Of a net without immediates. With them it need not look: the word may not be visible before a flush. */
static bool is_heard(const struct probe *p, int peer)
{
	return __atomic_load_n(&p->words[peer], __ATOMIC_ACQUIRE) == word_of(peer);
}

static int imms_take(struct probe *p)
{
	const struct ep_link *link = p->link;
	uint32_t imms[IMMS];
	int count, rc = 0;

	for (int i = 0; !rc && i < link->ports; i++) {
		rc = link->net->hot.progress(link->port[i].ctx, imms, IMMS, &count);
		for (int k = 0; k < count; k++) {
			if (imms[k] >= (uint32_t)link->ctx.nranks)
				return EP_FAIL(EP_GROUP, EP_EREMOTE,
					       "rank %d: net %s returned the immediate %u of no rank", link->ctx.rank,
					       link->net->name, imms[k]);
			p->state[imms[k]] |= HEARD;
		}
	}
	return rc;
}

/* One turn. *left: ranks that are not done. */
static int probe_turn(struct probe *p, int *left)
{
	const struct ep_link *link = p->link;
	int rc = imms_take(p);

	*left = 0;
	for (int r = 0; !rc && r < link->ctx.nranks; r++) {
		if (p->state[r] == ALL)
			continue;
		if (!(p->state[r] & SENT))
			rc = word_send(p, r);
		else if (!(p->state[r] & ARRIVED))
			rc = word_test(p, r);
		if (!link->props.immBits && is_heard(p, r))
			p->state[r] |= HEARD;
		*left += p->state[r] != ALL;
	}
	return rc;
}

static int probe_late(const struct probe *p, int left)
{
	const struct ep_link *link = p->link;
	char more[32] = "";
	int r = 0;

	while (p->state[r] == ALL)
		r++;
	if (left > 1)
		snprintf(more, sizeof(more), ", nor %d others", left - 1);
	return EP_FAIL(EP_GROUP, EP_ETIMEOUT,
		       "rank %d: net %s, device %s: %s rank %d%s, in time; check that they are on one network",
		       link->ctx.rank, link->net->name, link->props.name,
		       p->state[r] & HEARD ? "no acknowledgement from" : "nothing came from", r, more);
}

int ep_link_probe(struct ep_link *link, uint32_t region, uint64_t deadline)
{
	int nranks = link->ctx.nranks, left = 0, rc = 0;
	struct probe p = { .link = link,
			   .mr = link->mem[region].mr,
			   .words = link->mem[region].mem.ptr,
			   .state = EP_CALLOC(EP_GROUP, (size_t)nranks, sizeof(*p.state), "the state of peers"),
			   .request = EP_CALLOC(EP_GROUP, (size_t)nranks, sizeof(*p.request), "requests") };

	if (!p.state || !p.request)
		rc = -ENOMEM;
	for (int r = 0; !rc && r < nranks; r++)
		if (r == link->ctx.rank || !ep_link_puts_to(link, r) || !ep_link_probes(nranks, link->ctx.rank, r))
			p.state[r] = ALL;
	if (!rc)
		__atomic_store_n(&p.words[nranks], word_of(link->ctx.rank), __ATOMIC_RELEASE);
	while (!rc && !(rc = probe_turn(&p, &left)) && left) {
		if (ep_now_ns() > deadline)
			rc = probe_late(&p, left);
		ep_rest();
	}
	free(p.state);
	free(p.request);
	return rc;
}
