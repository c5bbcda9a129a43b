/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer alone: command encoding, when an entry is valid, when credits are published, what is rejected. */
#include <stdlib.h>
#include <string.h>

#include "proxy/ring.h"
#include "test/kernels/kernel_check.h"
#include "util/error.h"

#define ENTRIES 128u

static struct ep_ring ring;
static _Alignas(128) uint8_t memory[sizeof(struct ep_cmd_tail) + ENTRIES * sizeof(struct ep_cmd)];

static void store(uint64_t at, struct ep_cmd c)
{
	uint64_t phase = ep_cmd_phase(at, ring.shift);

	ring.entry[at % ENTRIES] = (struct ep_cmd){ { c.half[0] | phase, c.half[1] | phase } };
}

static void layout(void)
{
	struct ep_cmd c = ep_cmd_put(EP_CMD_CHANNELS - 1, EP_CMD_REACH - 16, 0, EP_CMD_LENGTH_MAX), one = { { 1, 1 } };

	CHECK(ep_cmd_op(&c) == EP_CMD_PUT && ep_cmd_channel(&c) == EP_CMD_CHANNELS - 1, "op and channel");
	CHECK(ep_cmd_dst(&c) == EP_CMD_REACH - 16 && ep_cmd_src(&c) == 0 && ep_cmd_length(&c) == EP_CMD_LENGTH_MAX,
	      "put");
	CHECK(!((c.half[0] | c.half[1]) & 1), "the packer set the phase");
	c = ep_cmd_put(0, 0, EP_CMD_REACH - 16, 0);
	CHECK(ep_cmd_src(&c) == EP_CMD_REACH - 16 && ep_cmd_dst(&c) == 0 && ep_cmd_length(&c) == 0, "put");
	c = ep_cmd_signal(7, 4096, EP_CMD_VALUE_MAX);
	CHECK(ep_cmd_op(&c) == EP_CMD_SIGNAL && ep_cmd_channel(&c) == 7 && ep_cmd_dst(&c) == 4096 &&
		      ep_cmd_value(&c) == EP_CMD_VALUE_MAX,
	      "signal");
	/* The phase changes no field. */
	c = ep_cmd_put(5, 160, 320, 48);
	c.half[0] |= one.half[0];
	c.half[1] |= one.half[1];
	CHECK(ep_cmd_op(&c) == EP_CMD_PUT && ep_cmd_channel(&c) == 5 && ep_cmd_dst(&c) == 160 &&
		      ep_cmd_src(&c) == 320 && ep_cmd_length(&c) == 48,
	      "with phase");
	CHECK(ep_cmd_fits(EP_CMD_CHANNELS - 1, EP_CMD_REACH, EP_CMD_LENGTH_MAX), "the largest");
	CHECK(!ep_cmd_fits(EP_CMD_CHANNELS, 0, 0) && !ep_cmd_fits(0, EP_CMD_REACH + 1, 0) &&
		      !ep_cmd_fits(0, 0, EP_CMD_LENGTH_MAX + 1ull),
	      "more than the largest");
}

/* Three laps from any start, entry by entry, half by half. */
static void halves(uint64_t start)
{
	struct ep_cmd out[4], c;

	CHECK(ep_ring_init(&ring, memory, ENTRIES, start) == 0, "%s", ep_last_error());
	for (uint64_t at = start; at != start + 3 * ENTRIES; at++) {
		struct ep_cmd *e = &ring.entry[at % ENTRIES], before = *e, whole;

		c = ep_cmd_put((uint32_t)at % 1000, at % EP_CMD_REACH * 16, at * 16 % EP_CMD_REACH, 16);
		CHECK(ep_ring_pop(&ring, out, 4) == 0, "position %llx popped before it was written", at + 0ull);
		store(at, c);
		whole = *e;
		e->half[at % 2] = before.half[at % 2];
		CHECK(ep_ring_pop(&ring, out, 4) == 0, "position %llx popped with one half written", at + 0ull);
		*e = whole;
		CHECK(ep_ring_pop(&ring, out, 4) == 1 && !memcmp(out, &c, sizeof(c)), "position %llx", at + 0ull);
	}
}

/* In steps, never ahead of what was popped, never a whole step behind. */
static void credits(uint64_t start)
{
	struct ep_cmd out[ENTRIES];
	uint64_t last = start, stores = 0;

	CHECK(ep_ring_init(&ring, memory, ENTRIES, start) == 0, "%s", ep_last_error());
	for (uint64_t at = start; at != start + 4 * ENTRIES; at++) {
		store(at, ep_cmd_nop(1));
		CHECK(ep_ring_pop(&ring, out, 1) == 1, "position %llx", at + 0ull);
		CHECK(at + 1 - ring.tail->credit < EP_CMD_STEP(ENTRIES), "credit %llx at %llx",
		      ring.tail->credit + 0ull, at + 0ull);
		stores += ring.tail->credit != last;
		last = ring.tail->credit;
	}
	CHECK(stores == 16, "%llu stores for 512 commands", stores + 0ull);
	for (uint64_t i = 0; i < ENTRIES; i++)
		store(start + 4 * ENTRIES + i, ep_cmd_nop(1));
	CHECK(ep_ring_pop(&ring, out, 100) == 100 && ep_ring_pop(&ring, out, 100) == 28, "a batch");
	CHECK(ring.tail->done == start, "popped is not completed");
	CHECK(ep_ring_complete(&ring, 5 * ENTRIES) == 0 && ring.tail->done == start + 5 * ENTRIES, "completed");
	CHECK(ep_ring_complete(&ring, 1) == -EP_EINTERNAL, "more completions than commands");
}

static void refused(void)
{
	struct ep_cmd out[2];

	CHECK(ep_ring_init(&ring, memory, 64, 0) == -EP_EARG, "64 entries");
	CHECK(ep_ring_init(&ring, memory, 192, 0) == -EP_EARG, "192 entries");
	CHECK(ep_ring_init(&ring, memory, 2 * EP_CMD_ENTRIES_MAX, 0) == -EP_EARG, "too many entries");
	CHECK(ep_ring_init(&ring, memory + 64, ENTRIES, 0) == -EP_EARG, "not aligned");
	CHECK(ep_ring_init(&ring, NULL, ENTRIES, 0) == -EP_EARG, "no memory");
	/* An invalid command stops the ring, after the valid ones before it. */
	CHECK(ep_ring_init(&ring, memory, ENTRIES, 0) == 0, "%s", ep_last_error());
	store(0, ep_cmd_nop(3));
	store(1, (struct ep_cmd){ { EP_CMD_OPS << 1, 0 } });
	CHECK(ep_ring_pop(&ring, out, 2) == 1, "the first");
	CHECK(ep_ring_pop(&ring, out, 2) == -EP_EINTERNAL && ep_ring_pop(&ring, out, 2) == -EP_EINTERNAL, "operation");
	store(1, (struct ep_cmd){ { EP_CMD_NONE << 1, 0 } });
	CHECK(ep_ring_pop(&ring, out, 2) == -EP_EINTERNAL, "none");
	/* A dead ring first returns what it holds. */
	store(1, ep_cmd_nop(4));
	ring.tail->dead = EP_CMD_DEAD(2, 3);
	CHECK(ep_ring_pop(&ring, out, 2) == 1, "the second");
	CHECK(ep_ring_pop(&ring, out, 2) == -EP_EREMOTE && strstr(ep_last_error(), "command 2 "), "%s",
	      ep_last_error());
}

int main(void)
{
	static const uint64_t starts[] = { 0, 77, (1ull << 33) - 200, 0 - 200ull };

	setenv("NCCL_EP_DEBUG", "NONE", 1);
	layout();
	for (int i = 0; i < 4; i++) {
		halves(starts[i]);
		credits(starts[i]);
	}
	refused();
	return check_result("ring_pop");
}
