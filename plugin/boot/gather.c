/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/gather.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t pieces(uint64_t total)
{
	return total ? (total - 1) / EP_FRAME_MAX + 1 : 1; /* a barrier's block is one empty piece */
}

static bool complete(const struct ep_block *b)
{
	return b->head && b->have == pieces(b->head->frame.total);
}

static struct ep_gather_slot *slot_of(const struct ep_gather *g, uint64_t seq)
{
	return (struct ep_gather_slot *)&g->slot[seq % EP_GATHER_SLOTS];
}

static bool excused(const struct ep_gather *g, uint32_t rank, uint64_t seq)
{
	return seq >= g->gone_from[rank];
}

static void block_clear(struct ep_block *b)
{
	for (struct ep_blob *blob = b->head, *next; blob; blob = next) {
		next = blob->next;
		ep_blob_put(blob);
	}
	*b = (struct ep_block){ 0 };
}

static void slot_reset(struct ep_gather *g, uint64_t seq)
{
	struct ep_gather_slot *s = slot_of(g, seq);

	s->seq = seq;
	s->begun = false;
	s->total = 0;
	s->waiting = 0;
	for (uint32_t r = 0; r < g->nranks; r++) {
		block_clear(&s->block[r]);
		s->waiting += !excused(g, r, seq);
	}
	for (int e = 0; e < g->edges && g->survive; e++)
		memset(g->edge[e].known[seq % EP_GATHER_SLOTS], 0, g->nranks * sizeof(uint32_t));
}

int ep_gather_init(struct ep_gather *g, uint32_t rank, uint32_t nranks, bool survive)
{
	*g = (struct ep_gather){ .rank = rank, .nranks = nranks, .survive = survive };
	for (int i = 0; i < EP_GATHER_STEPS; i++)
		g->out[i] = -1;
	g->gone_from = malloc(nranks * sizeof(*g->gone_from));
	if (!g->gone_from)
		return -ENOMEM;
	memset(g->gone_from, 0xff, nranks * sizeof(*g->gone_from));
	for (int i = 0; i < EP_GATHER_SLOTS; i++) {
		g->slot[i].block = calloc(nranks, sizeof(struct ep_block));
		if (!g->slot[i].block) {
			ep_gather_free(g);
			return -ENOMEM;
		}
	}
	slot_reset(g, 0);
	slot_reset(g, 1);
	/* The slot before the first collective: matches no number. */
	slot_of(g, 2)->seq = UINT64_MAX;
	return 0;
}

void ep_gather_free(struct ep_gather *g)
{
	for (int i = 0; i < EP_GATHER_SLOTS; i++) {
		for (uint32_t r = 0; r < g->nranks && g->slot[i].block; r++)
			block_clear(&g->slot[i].block[r]);
		free(g->slot[i].block);
	}
	for (int e = 0; e < g->edges; e++)
		free(g->edge[e].known[0]); /* one allocation for all three */
	free(g->edge);
	free(g->gone_from);
	*g = (struct ep_gather){ 0 };
}

static int send_on(struct ep_gather *g, int e, struct ep_gather_slot *s, struct ep_blob *blob)
{
	struct ep_gather_edge *edge = &g->edge[e];

	if (g->survive) {
		uint32_t *known = &edge->known[s->seq % EP_GATHER_SLOTS][blob->frame.rank];

		if (*known > blob->frame.index)
			return 0;
		*known = blob->frame.index + 1;
	}
	return edge->up ? g->emit(g->ctx, edge->user, blob) : 0;
}

/* Sends all blocks held over one edge: after a death, and over a new edge. */
static int push_all(struct ep_gather *g, int e)
{
	int rc = 0;

	for (uint64_t seq = g->seq ? g->seq - 1 : 0; seq <= g->seq + 1 && !rc; seq++) {
		struct ep_gather_slot *s = slot_of(g, seq);

		for (uint32_t r = 0; r < g->nranks && !rc && s->seq == seq; r++)
			for (struct ep_blob *b = s->block[r].head; b && !rc; b = b->next)
				rc = send_on(g, e, s, b);
	}
	return rc;
}

int ep_gather_edge_add(struct ep_gather *g, uint32_t rank, void *user)
{
	struct ep_gather_edge *edge = realloc(g->edge, ((size_t)g->edges + 1) * sizeof(*edge));
	uint32_t *known;
	int e = g->edges, rc;

	if (!edge)
		return -ENOMEM;
	g->edge = edge;
	edge[e] = (struct ep_gather_edge){ .rank = rank, .up = true, .user = user };
	if (g->survive) {
		known = calloc((size_t)g->nranks * EP_GATHER_SLOTS, sizeof(*known));
		if (!known)
			return -ENOMEM;
		for (int i = 0; i < EP_GATHER_SLOTS; i++)
			edge[e].known[i] = known + (size_t)i * g->nranks;
	}
	g->edges++;
	for (int i = 0; i < EP_GATHER_STEPS; i++)
		if (ep_mesh_distance(g->rank, rank, g->nranks) == 1u << i && g->out[i] < 0)
			g->out[i] = e;
	rc = g->flood ? push_all(g, e) : 0;
	return rc ? rc : e;
}

void ep_gather_edge_drop(struct ep_gather *g, int edge)
{
	g->edge[edge].up = false;
}

static int forward(struct ep_gather *g, struct ep_gather_slot *s, struct ep_blob *blob, int from)
{
	uint32_t d = ep_mesh_distance(blob->frame.rank, g->rank, g->nranks);
	int rc = 0;

	if (g->flood) {
		for (int e = 0; e < g->edges && !rc; e++)
			if (e != from)
				rc = send_on(g, e, s, blob);
		return rc;
	}
	for (int i = 0; i < EP_GATHER_STEPS && !rc; i++)
		if (1u << i > d && d + (1u << i) < g->nranks && g->out[i] >= 0)
			rc = send_on(g, g->out[i], s, blob);
	return rc;
}

static int add(struct ep_gather *g, struct ep_gather_slot *s, struct ep_blob *blob, int from)
{
	uint32_t rank = blob->frame.rank;
	struct ep_block *b = &s->block[rank];

	ep_blob_get(blob);
	if (b->tail)
		b->tail->next = blob;
	else
		b->head = blob;
	b->tail = blob;
	b->have++;
	if (complete(b) && !excused(g, rank, s->seq))
		s->waiting--;
	return forward(g, s, blob, from);
}

int ep_gather_begin(struct ep_gather *g, const void *mine, size_t n)
{
	struct ep_gather_slot *s = slot_of(g, g->seq);
	int rc = 0;

	for (uint32_t r = 0; r < g->nranks; r++) {
		if (s->block[r].head && s->block[r].head->frame.total != n) {
			g->culprit = r;
			return -EMSGSIZE;
		}
	}
	s->begun = true;
	s->total = n;
	for (uint64_t i = 0; i < pieces(n) && !rc; i++) {
		size_t at = i * EP_FRAME_MAX, left = n - at;
		struct ep_frame f = {
			.type = EP_F_BLOCK, .rank = g->rank, .index = (uint32_t)i, .seq = g->seq, .total = n
		};

		f.bytes = left > EP_FRAME_MAX ? EP_FRAME_MAX : (uint32_t)left;
		struct ep_blob *blob = ep_blob_new(&f, n ? (const char *)mine + at : NULL);

		rc = blob ? add(g, s, blob, -1) : -ENOMEM;
		ep_blob_put(blob);
	}
	return rc;
}

/* Checks a piece by itself, whatever is held so far. */
static bool sane(const struct ep_gather *g, const struct ep_frame *f)
{
	uint64_t left;

	if (f->rank >= g->nranks || f->total > ep_gather_max(g->nranks) || f->index >= pieces(f->total))
		return false;
	left = f->total - (uint64_t)f->index * EP_FRAME_MAX;
	return f->bytes == (left > EP_FRAME_MAX ? EP_FRAME_MAX : left);
}

int ep_gather_take(struct ep_gather *g, int edge, struct ep_blob *blob)
{
	const struct ep_frame *f = &blob->frame;
	struct ep_gather_slot *s = slot_of(g, f->seq);
	struct ep_block *b;

	if (!sane(g, f) || f->seq > g->seq + 1)
		return -EPROTO;
	if (f->seq < g->seq)
		return 0; /* complete here: a late duplicate */
	b = &s->block[f->rank];
	if (f->rank == g->rank && !s->begun)
		return -EPROTO;
	if (b->head && b->head->frame.total != f->total)
		return -EPROTO;
	if (s->begun && s->total != f->total) {
		g->culprit = f->rank;
		return -EMSGSIZE;
	}
	if (f->index > b->have)
		return -EPROTO;
	if (g->survive) {
		uint32_t *known = &g->edge[edge].known[f->seq % EP_GATHER_SLOTS][f->rank];

		*known = *known > f->index ? *known : f->index + 1;
	}
	return f->index < b->have ? 0 : add(g, s, blob, edge);
}

int ep_gather_gone(struct ep_gather *g, uint32_t rank, uint64_t from)
{
	uint64_t before = g->gone_from[rank];
	int rc = 0;

	if (from >= before)
		return 0;
	g->gone_from[rank] = from;
	for (uint64_t seq = g->seq; seq <= g->seq + 1; seq++)
		if (seq >= from && seq < before && !complete(&slot_of(g, seq)->block[rank]))
			slot_of(g, seq)->waiting--;
	if (!g->survive)
		return 0;
	g->flood = true;
	for (int e = 0; e < g->edges && !rc; e++)
		rc = push_all(g, e);
	return rc;
}

bool ep_gather_done(const struct ep_gather *g)
{
	const struct ep_gather_slot *s = slot_of(g, g->seq);

	return s->begun && (!s->waiting || (!s->total && g->passed > g->seq));
}

void ep_gather_passed(struct ep_gather *g, uint64_t seq)
{
	g->passed = seq > g->passed ? seq : g->passed;
}

void ep_gather_end(struct ep_gather *g, void *all)
{
	struct ep_gather_slot *s = slot_of(g, g->seq);

	for (uint32_t r = 0; r < g->nranks; r++) {
		struct ep_blob *b = s->total && complete(&s->block[r]) ? s->block[r].head : NULL;

		for (size_t at = r * s->total; b; at += b->frame.bytes, b = b->next)
			memcpy((char *)all + at, b->body, b->frame.bytes);
		/* With survive kept for one more collective: a rank cut off by a death may still need them. */
		if (!g->survive)
			block_clear(&s->block[r]);
	}
	g->seq++;
	slot_reset(g, g->seq + 1);
}

uint32_t ep_gather_missing(const struct ep_gather *g, char *buf, size_t size)
{
	const struct ep_gather_slot *s = slot_of(g, g->seq);
	const uint32_t show = 8;
	uint32_t n = 0;
	size_t at = 0;

	buf[0] = '\0';
	for (uint32_t r = 0; r < g->nranks; r++) {
		if (complete(&s->block[r]) || excused(g, r, g->seq))
			continue;
		if (n++ < show && at < size)
			at += (size_t)snprintf(buf + at, size - at, "%s%u", n > 1 ? ", rank " : "", r);
	}
	if (n > show && at < size)
		snprintf(buf + at, size - at, " and %u more", n - show);
	return n;
}

bool ep_gather_seen(const struct ep_gather *g, uint64_t seq)
{
	/* Earlier collectives are complete, and no rank is more than one ahead. */
	for (uint64_t q = seq > g->seq ? seq : g->seq; q <= g->seq + 1; q++) {
		const struct ep_gather_slot *s = slot_of(g, q);

		if (s->begun)
			return true;
		for (uint32_t r = 0; r < g->nranks; r++)
			if (s->block[r].head)
				return true;
	}
	return false;
}
