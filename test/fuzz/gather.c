/* SPDX-License-Identifier: Apache-2.0 */
/* The allgather alone: pieces in any order, from any edge, with deaths, and what is kept stays bounded. */
#include "plugin/boot/gather.c"

#include "fuzz.h"

#define MOST 9
#define BLOCK (2 * EP_FRAME_MAX)

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

static int count(void *ctx, void *user, struct ep_blob *blob)
{
	(void)user;
	MUST(blob->frame.type == EP_F_BLOCK && blob->frame.bytes <= EP_FRAME_MAX);
	++*(unsigned *)ctx;
	return 0;
}

static void piece(struct ep_gather *g, struct feed *f)
{
	static const uint32_t totals[] = { 0, 4, EP_FRAME_MAX, EP_FRAME_MAX + 5, BLOCK };
	static const uint8_t body[EP_FRAME_MAX];
	uint8_t how = feed_u8(f);
	struct ep_frame head = { .type = EP_F_BLOCK, .rank = feed_u8(f) % g->nranks, .seq = g->seq + (how & 1) };
	struct ep_blob *blob;
	uint64_t left;

	head.total = totals[feed_u8(f) % 5];
	head.index = how & 2;
	if (how & 4)
		head.total = feed_number(f);
	if (how & 8)
		head.seq = feed_number(f);
	if (how & 16)
		head.index = (uint32_t)feed_number(f);
	if (how & 32)
		head.rank = (uint32_t)feed_number(f);
	left = head.total - (uint64_t)head.index * EP_FRAME_MAX;
	head.bytes = left > EP_FRAME_MAX ? EP_FRAME_MAX : (uint32_t)left;
	if (how & 64)
		head.bytes = (uint32_t)(feed_number(f) % (EP_FRAME_MAX + 1));
	if (!g->edges || !(blob = ep_blob_new(&head, body)))
		return;
	ep_gather_take(g, feed_u8(f) % g->edges, blob);
	ep_blob_put(blob);
}

static void step(struct ep_gather *g, struct feed *f)
{
	static const size_t sizes[] = { 0, 4, EP_FRAME_MAX, EP_FRAME_MAX + 5, BLOCK };
	static uint8_t mine[BLOCK], all[MOST * BLOCK];
	uint8_t op = feed_u8(f), arg = feed_u8(f);
	char missing[64];

	if (op < 0x90)
		piece(g, f);
	else if (op < 0xa0 && g->edges < 16)
		MUST(ep_gather_edge_add(g, arg % g->nranks, NULL) >= 0);
	else if (op < 0xc0 && !slot_of(g, g->seq)->begun)
		ep_gather_begin(g, mine, sizes[arg % 5]);
	else if (op < 0xd8 && ep_gather_done(g))
		ep_gather_end(g, all);
	else if (op < 0xe8)
		ep_gather_gone(g, arg % g->nranks, arg & 0x80 ? 0 : g->seq + (arg >> 5));
	else if (op < 0xf0 && g->edges)
		ep_gather_edge_drop(g, arg % g->edges);
	else
		ep_gather_missing(g, missing, 1 + arg % sizeof(missing));
	ep_gather_seen(g, feed_u8(f));
}

static uint64_t held(const struct ep_gather *g)
{
	uint64_t n = 0;

	for (int i = 0; i < EP_GATHER_SLOTS; i++)
		for (uint32_t r = 0; r < g->nranks; r++)
			for (const struct ep_blob *b = g->slot[i].block[r].head; b; b = b->next) {
				MUST(b->frame.total <= ep_gather_max(g->nranks));
				n += b->frame.bytes;
			}
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	uint8_t shape = feed_u8(&f);
	uint32_t nranks = 1 + shape % MOST;
	struct ep_gather g;
	unsigned sent = 0;

	MUST(!ep_gather_init(&g, (shape >> 4) % nranks, nranks, shape & 8));
	g.emit = count;
	g.ctx = &sent;
	for (int i = 0; i < 64 && f.left; i++) {
		step(&g, &f);
		for (uint64_t seq = g.seq; seq <= g.seq + 1; seq++)
			MUST(slot_of(&g, seq)->waiting <= nranks);
	}
	MUST(held(&g) <= EP_GATHER_SLOTS * EP_GATHER_BYTES);
	ep_gather_free(&g);
	return 0;
}
