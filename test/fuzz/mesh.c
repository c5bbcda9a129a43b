/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's mesh, with and without survive: neighbours and a root that lie, collectives, deaths, repairs, farewells. */
#include "plugin/boot/boot.c"
#include "plugin/boot/event.c"
#include "plugin/boot/mesh.c"

#include "conns.h"

#include "../boot/liar.h"

#define MOST 9

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

static struct ep_boot *mesh_new(struct feed *f)
{
	static const struct ep_boot_id id = { .port = 1 };
	uint8_t shape = feed_u8(f);
	int nranks = 2 + shape % (MOST - 1);
	struct ep_boot *b = liar_new(&id, (shape >> 4) % nranks, nranks, shape & 8);

	b->deadline = UINT64_MAX / 2;
	loop_bare(&b->loop, &mesh_ops, b, b->secret);
	MUST(!ep_gather_init(&b->gather, b->rank, b->nranks, b->survive));
	b->gather.emit = emit;
	b->gather.ctx = b;
	b->edges = 1;
	if (feed_u8(f) & 1) {
		b->phase = EP_RUNNING;
		b->opened = true;
	} else {
		b->root = ep_conn_new(&b->loop, -1, EP_TO_ROOT, EP_CONN_READY);
		MUST(b->root);
		b->root->was_ready = true;
	}
	return b;
}

static void root_says(struct ep_boot *b, struct feed *f)
{
	static const uint8_t types[] = { EP_F_HOST, EP_F_TABLE, EP_F_TABLE, EP_F_GO, EP_F_FAIL };
	struct ep_peer table[16];
	struct ep_frame head = { .type = types[feed_u8(f) % sizeof(types)] };

	for (uint32_t i = 0; i < 16; i++) {
		table[i] = (struct ep_peer){ .rank = (b->rank + (1u << i)) % b->nranks, .port = 9, .naddr = 1 };
		table[i].addr[0].family = 4;
	}
	if (head.type == EP_F_TABLE)
		head.bytes = (feed_u8(f) % 17) * (uint32_t)sizeof(table[0]);
	else if (head.type == EP_F_FAIL)
		head.bytes = feed_u8(f);
	if (b->root)
		conn_frame(&b->loop, b->root, f, head, table);
}

/* A true address, before it is changed. */
static void block_says(struct ep_boot *b, struct ep_conn *c, struct feed *f)
{
	static const uint32_t sizes[] = { 0, 4, sizeof(struct ep_peer), EP_FRAME_MAX };
	static uint8_t body[EP_FRAME_MAX];
	struct ep_peer self = { .rank = feed_u8(f) % b->nranks, .port = 9, .naddr = 1 };
	struct ep_frame head = { .type = EP_F_BLOCK, .rank = self.rank, .seq = b->gather.seq };

	self.addr[0].family = 6;
	head.total = head.bytes = sizes[feed_u8(f) % 4];
	memcpy(body, &self, sizeof(self));
	conn_frame(&b->loop, c, f, head, body);
}

static void edge_says(struct ep_boot *b, struct feed *f)
{
	static const uint8_t types[] = { EP_F_BLOCK, EP_F_GONE, EP_F_LEFT, EP_F_PARTED, EP_F_BYE, EP_F_BLOCK };
	struct ep_conn *c = conn_pick(&b->loop, feed_u8(f), EP_CONN_READY);
	struct ep_frame head = { .type = types[feed_u8(f) % sizeof(types)], .seq = b->gather.seq };
	uint8_t any[96];

	if (!c || c->purpose != EP_TO_RANK)
		return;
	if (head.type == EP_F_BLOCK) {
		block_says(b, c, f);
	} else if (feed_u8(f) < 0xf0) {
		head.bytes = head.type == EP_F_GONE || head.type == EP_F_PARTED ? feed_u8(f) : 0;
		head.rank = feed_u8(f) % b->nranks;
		conn_frame(&b->loop, c, f, head, NULL);
	} else {
		feed_bytes(f, any, sizeof(any));
		conn_feed(&b->loop, c, any, sizeof(any));
	}
}

/* The service thread and a caller in a collective, as one. */
static void collective(struct ep_boot *b, struct feed *f)
{
	static const size_t sizes[] = { 0, 4, sizeof(struct ep_peer), EP_FRAME_MAX, EP_FRAME_MAX + 1 };
	static uint8_t mine[EP_FRAME_MAX + 1], all[MOST * (EP_FRAME_MAX + 1)];
	size_t n = sizes[feed_u8(f) % 5];

	if (b->phase != EP_RUNNING)
		return;
	if (!b->busy && !b->err) {
		b->busy = !ep_mesh_begin(b, mine, n);
		return;
	}
	if (!b->busy || !ep_gather_done(&b->gather))
		return;
	ep_gather_end(&b->gather, all);
	b->busy = false;
}

/* What learn_peers does with the blocks of a collective. */
static void addresses(struct ep_boot *b, struct feed *f)
{
	if (!b->survive || b->peers || b->phase != EP_RUNNING)
		return;
	b->peers = calloc(b->nranks, sizeof(*b->peers));
	MUST(b->peers);
	for (uint32_t r = 0; r < b->nranks; r++) {
		b->peers[r] = (struct ep_peer){ .rank = r, .port = 9, .naddr = 1 };
		b->peers[r].addr[0].family = 4;
		if (r != b->rank)
			feed_patch(f, &b->peers[r], sizeof(b->peers[r]));
		peer_check(b, r, &b->peers[r]);
	}
}

static void connection(struct ep_boot *b, struct feed *f)
{
	uint8_t op = feed_u8(f);
	uint32_t peer = op < 0xf0 ? op % b->nranks : (uint32_t)feed_number(f);
	struct ep_conn *c;

	if (b->phase == EP_LEAVING)
		return;
	switch (feed_u8(f) % 4) {
	case 0:
	case 1:
		conn_bare(&b->loop, EP_TO_RANK, true, peer, op & 1 ? b->rank : (uint32_t)feed_number(f));
		break;
	case 2: /* one that this rank opened */
		c = conn_pick(&b->loop, op, EP_CONN_DIAL);
		if (c && op & 4)
			become_ready(&b->loop, c);
		else if (c)
			ep_conn_lost(&b->loop, c, op & 8 ? -ECONNREFUSED : -ETIMEDOUT);
		break;
	default:
		c = conn_pick(&b->loop, op, EP_CONN_READY);
		if (c)
			ep_conn_lost(&b->loop, c, op & 8 ? -ECONNRESET : 0);
	}
}

static void step(struct ep_boot *b, struct feed *f)
{
	uint8_t op = feed_u8(f);

	if (op < 0x40)
		connection(b, f);
	else if (op < 0xa0)
		edge_says(b, f);
	else if (op < 0xb0)
		root_says(b, f);
	else if (op < 0xd0)
		collective(b, f);
	else if (op < 0xe0)
		addresses(b, f);
	else if (op < 0xf0)
		ep_boot_parted(b, feed_u8(f) % MOST, "lost");
	else if (op < 0xf8)
		ep_notice_callbacks(b);
	else if (op == 0xff && b->phase != EP_LEAVING)
		ep_mesh_leave(b);
	else
		ep_mesh_tick(b);
	ep_conn_reap(&b->loop);
	MUST(!b->err || (b->err > 0 && b->err < 4096));
	for (const char *c = b->why; *c; c++)
		MUST(*c >= ' ' && *c <= '~');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	struct ep_boot *b = mesh_new(&f);

	for (int i = 0; i < 64 && f.left; i++)
		step(b, &f);
	loop_bare_free(&b->loop);
	liar_free(b);
	return 0;
}
