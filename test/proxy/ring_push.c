/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many producers, one consumer: every command arrives once, whole, in its producer's order, its payload visible; from
 * any start position, also across wrap-around. "ring_push cuda" runs on a GPU.
 */
#include <string.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/kernels/rowsig_order.h"
#include "test/rig/ring_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define JOBS 3
#define PER_JOB 6
#define PRODUCERS (JOBS * PER_JOB)
#define COUNT 700

struct cell {
	uint32_t rings, entries, mode, batch;
	uint64_t start;
};

#define RINGS_MAX 3

struct watch {
	uint32_t next[PRODUCERS][RINGS_MAX];
	uint32_t step; /* from one command of a producer in a ring to the next one's number */
	uint64_t got;
};

/* The number of the producer's first command for a ring, if they go to all rings in turn. */
static uint32_t first_of(uint32_t p, uint32_t ring, uint32_t rings)
{
	return (ring + rings - p % rings) % rings;
}

static void take(const struct ring_rig *rig, const struct ep_cmd *cmd, uint32_t ring, struct watch *w)
{
	uint32_t p = ep_cmd_channel(cmd), i = (uint32_t)(ep_cmd_src(cmd) / EP_CMD_UNIT);
	const uint64_t *payload = rig->payload.host;
	struct ep_cmd must;

	CHECK(p < PRODUCERS && i < COUNT, "producer %u, command %u", p, i);
	if (p >= PRODUCERS || i >= COUNT)
		return;
	must = ep_ring_push_cmd(p, i);
	CHECK(w->next[p][ring] == i, "producer %u: command %u instead of %u", p, i, w->next[p][ring]);
	CHECK((w->step == 1 ? p : p + i) % rig->rings == ring, "command %u of producer %u in ring %u", i, p, ring);
	CHECK(memcmp(cmd, &must, sizeof(must)) == 0, "command %u of producer %u is torn", i, p);
	CHECK(payload[p * COUNT + i] == ep_ring_push_word(p, i), "payload of command %u of producer %u", i, p);
	w->next[p][ring] = i + w->step;
	w->got++;
}

static void consume(struct ring_rig *rig, struct watch *w)
{
	uint64_t deadline = ep_deadline_ms(60000);
	struct ep_cmd cmd[48];
	int n;

	while (w->got < (uint64_t)PRODUCERS * COUNT && ep_now_ns() < deadline) {
		uint64_t before = w->got;

		for (uint32_t r = 0; r < rig->rings; r++) {
			n = ep_ring_pop(&rig->ring[r], cmd, 48);
			CHECK(n >= 0, "%s", ep_last_error());
			if (n < 0)
				return;
			for (int i = 0; i < n; i++)
				take(rig, &cmd[i], r, w);
			if (n > 0)
				CHECK(ep_ring_complete(&rig->ring[r], (uint32_t)n) == 0, "%s", ep_last_error());
		}
		if (w->got == before)
			usleep(20);
	}
}

static void check_end(struct ring_rig *rig, const struct cell *c)
{
	struct ep_cmd_head head;
	struct ep_cmd none;
	uint64_t issued = 0;

	for (uint32_t r = 0; r < rig->rings; r++) {
		CHECK(rig_head(rig, r, &head) == 0, "%s", ep_last_error());
		CHECK(head.claim == rig->ring[r].tail->done, "ring %u: issued to %llu, completed to %llu", r,
		      head.claim + 0ull, rig->ring[r].tail->done + 0ull);
		CHECK(ep_ring_pop(&rig->ring[r], &none, 1) == 0, "one too many");
		issued += head.claim - c->start;
	}
	CHECK(issued == (uint64_t)PRODUCERS * COUNT, "%llu issued", issued + 0ull);
}

static void run(enum ep_dev_kind kind, const struct cell *c)
{
	static struct ring_rig rig;
	struct rig_job job[JOBS];
	struct watch w = { .step = c->mode == EP_PUSH_LANES ? c->rings : 1 };
	uint64_t failed;

	for (uint32_t p = 0; c->mode == EP_PUSH_LANES && p < PRODUCERS; p++)
		for (uint32_t r = 0; r < c->rings; r++)
			w.next[p][r] = first_of(p, r, c->rings);

	if (rig_open(&rig, kind, c->rings, c->entries, c->start, (size_t)PRODUCERS * COUNT)) {
		CHECK(0, "%s", ep_last_error());
		return;
	}
	for (int j = 0; j < JOBS; j++) {
		job[j] = (struct rig_job){ .rig = &rig, .index = j, .grid = 2, .warps = 2 };
		job[j].args = (struct ep_ring_push_args){ .first = (uint32_t)j * PER_JOB,
							  .items = PER_JOB,
							  .count = COUNT,
							  .batch = c->batch,
							  .mode = c->mode,
							  .timeout_ns = 60000000000ull };
		CHECK(rig_start(&job[j]) == 0, "no thread");
	}
	consume(&rig, &w);
	for (int j = 0; j < JOBS; j++) {
		CHECK(rig_join(&job[j], &failed) == 0, "%s", ep_last_error());
		CHECK(failed == 0, "a push ended with %llu", failed + 0ull);
	}
	CHECK(w.got == (uint64_t)PRODUCERS * COUNT, "%llu commands arrived", w.got + 0ull);
	check_end(&rig, c);
	rig_close(&rig);
}

int main(int argc, char **argv)
{
	enum ep_dev_kind kind = argc > 1 && !strcmp(argv[1], "cuda") ? EP_DEV_CUDA : EP_DEV_HOST;
	/* Near the end of 33 bits, of the signed half, and of the 64-bit number. */
	static const uint64_t starts[] = { 0, (1ull << 33) - 4096, (1ull << 63) - 4096, 0 - 4096ull };
	static const struct cell cells[] = {
		{ .rings = 1, .entries = 128, .mode = EP_PUSH_THREAD, .batch = 1 },
		{ .rings = 2, .entries = 256, .mode = EP_PUSH_THREAD, .batch = 7 },
		{ .rings = 1, .entries = 128, .mode = EP_PUSH_THREAD, .batch = EP_CMD_CLAIM_MAX },
		{ .rings = 2, .entries = 128, .mode = EP_PUSH_WARP, .batch = 1 },
		{ .rings = 1, .entries = 4096, .mode = EP_PUSH_WARP, .batch = 1 },
		{ .rings = 3, .entries = 128, .mode = EP_PUSH_LANES, .batch = 1 },
	};
	int count = 0;

	alarm(300);
	if (kind == EP_DEV_CUDA && ep_dev_row(kind)->count(&count)) {
		printf("skipped: %s\n", ep_last_error());
		return 77;
	}
	for (int pass = 0; pass < rowsig_orders(); pass++) {
		rowsig_order(pass);
		for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
			struct cell c = cells[i];

			/* All starts with the first cell, then one each. */
			for (size_t s = 0; s < (i == 0 && pass == 0 ? 4 : 1); s++) {
				c.start = starts[(s + i + (size_t)pass) % 4];
				run(kind, &c);
			}
		}
	}
	return check_result("ring_push");
}
