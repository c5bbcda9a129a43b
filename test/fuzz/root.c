/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap root: ranks that come, lie, fail and go, in any order. */
#include "plugin/boot/root.c" /* before the rest: its names come first */

#include "plugin/boot/event.c"

#include "conns.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

static void say(struct ep_root *r, struct feed *f)
{
	struct ep_conn *c = conn_pick(&r->loop, feed_u8(f), EP_CONN_READY);
	struct ep_hello hello = { .nranks = r->nranks ? r->nranks : 1 + feed_u8(f) % 9, .left_ms = 60000 };
	uint8_t any[96], type = feed_u8(f);

	if (!c)
		return;
	hello.self = (struct ep_peer){ .rank = c->peer, .port = 9, .naddr = 1 };
	hello.self.addr[0] = (struct ep_boot_addr){ .family = 4, .ip = { 127, 0, 0, 1 } };
	if (type < 0x60) {
		conn_frame(&r->loop, c, f, (struct ep_frame){ .type = EP_F_HELLO, .bytes = sizeof(hello) }, &hello);
	} else if (type < 0xc0) {
		conn_frame(&r->loop, c, f, (struct ep_frame){ .type = EP_F_DONE, .rank = c->peer, .total = feed_u8(f) },
			   NULL);
	} else if (type < 0xe0) {
		conn_frame(&r->loop, c, f, (struct ep_frame){ .type = EP_F_FAIL, .bytes = feed_u8(f) }, NULL);
	} else {
		feed_bytes(f, any, sizeof(any));
		conn_feed(&r->loop, c, any, type % sizeof(any));
	}
}

static void step(struct ep_root *r, struct feed *f)
{
	struct ep_conn *c;
	uint8_t op = feed_u8(f);

	if (op < 0x40) {
		conn_bare(&r->loop, EP_TO_ROOT, true, op < 0x38 ? op % 9 : (uint32_t)feed_number(f), EP_NO_RANK);
	} else if (op < 0xe0) {
		say(r, f);
	} else if (op < 0xf8) {
		c = conn_pick(&r->loop, feed_u8(f), EP_CONN_READY);
		if (c)
			ep_conn_lost(&r->loop, c, -(int)feed_u8(f));
	} else {
		check_deadlines(r);
	}
	over(r);
	MUST(r->done <= r->nranks && r->told <= r->nranks);
	MUST(!r->err || (r->err > 0 && r->err < 4096));
	MUST(strnlen(r->why, sizeof(r->why)) < sizeof(r->why));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	struct ep_root r = { .host = EP_NO_RANK, .twice = EP_NO_RANK, .culprit = EP_NO_RANK, .timeout_ms = 60000 };

	r.cookie = 7;
	r.end_at = UINT64_MAX;
	loop_bare(&r.loop, &root_ops, &r, r.id.secret);
	for (int i = 0; i < 64 && f.left; i++) {
		step(&r, &f);
		ep_conn_reap(&r.loop);
	}
	loop_bare_free(&r.loop);
	free(r.member);
	return 0;
}
