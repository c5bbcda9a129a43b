/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a signal is visible, everything pushed before it has arrived: messages of random puts between all ranks at once,
 * over ordered and unordered nets, from any start number; adjacent puts that are merged; counters that match what was
 * pushed. engine_moves [MESSAGES [SPEC...]]: the same over these nets instead.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define DEPTH 8	      /* messages of a pair in flight */
#define MESSAGE 2048u /* bytes at most */
#define WORD 16u      /* from one signal word to the next */
#define PAIRS_AT 4096u

static int messages; /* of each pair, in this cell */

/* Region 0: per rank a word for what has arrived from it and a word for what it has checked, then the areas. */
static uint64_t came_at(int from)
{
	return (uint64_t)from * WORD;
}

static uint64_t checked_at(int by)
{
	return PAIRS_AT / 2 + (uint64_t)by * WORD;
}

static uint64_t area_at(const struct eng_rank *me, bool out, int peer, uint64_t k)
{
	uint64_t pair = (uint64_t)peer * DEPTH + k % DEPTH;

	return PAIRS_AT + (((out ? (uint64_t)me->rig->o.ranks * DEPTH : 0) + pair) * MESSAGE);
}

static size_t bytes_of(int ranks)
{
	return PAIRS_AT + (size_t)ranks * DEPTH * 2 * MESSAGE;
}

static uint8_t byte_of(int from, int to, uint64_t k, uint32_t i)
{
	return (uint8_t)((uint64_t)(from * 7 + to * 13 + 1) * 31 + k * 101 + i * 3 + i / 256);
}

struct side {
	uint64_t sent, taken, bytes, signals, luck;
};

/* Cut at random, pushed in any order: some puts are adjacent, most are not. */
static void message_send(struct eng_rank *me, int peer, struct side *s)
{
	uint64_t k = s->sent++, from = area_at(me, true, peer, k), to = area_at(me, false, me->rank, k);
	uint32_t cut[17] = { 0 }, n = 1, first;

	for (uint32_t i = 0; i < MESSAGE; i++)
		me->mem[from + i] = byte_of(me->rank, peer, k, i);
	while (cut[n - 1] < MESSAGE && n < 16) {
		cut[n] = cut[n - 1] + 16 * (1 + (uint32_t)eng_draw(&s->luck) % 24);
		cut[n] = cut[n] < MESSAGE ? cut[n] : MESSAGE;
		n++;
	}
	if (cut[n - 1] < MESSAGE)
		cut[n++] = MESSAGE;
	/* Two runs, the later one first, every third time; from the last to the first every fifth; else in order. */
	first = k % 3 ? 0 : (uint32_t)eng_draw(&s->luck) % (n - 1);
	for (uint32_t i = 0; i + 1 < n; i++) {
		uint32_t c = k % 5 ? (i + first) % (n - 1) : n - 2 - i;

		CHECK(eng_put(me, peer, to + cut[c], from + cut[c], cut[c + 1] - cut[c]) == 0, "put to %d", peer);
		s->bytes += cut[c + 1] - cut[c];
	}
	CHECK(eng_signal(me, peer, came_at(me->rank), k + 1) == 0, "signal to %d", peer);
	s->signals++;
}

static void message_take(struct eng_rank *me, int peer, struct side *s)
{
	uint64_t k = s->taken++, at = area_at(me, false, peer, k);
	uint32_t wrong = 0;

	for (uint32_t i = 0; i < MESSAGE; i++)
		wrong += me->mem[at + i] != byte_of(peer, me->rank, k, i);
	CHECK(!wrong, "rank %d: message %llu of rank %d: %u bytes", me->rank, k + 0ull, peer, wrong);
	memset(me->mem + at, 0xee, MESSAGE);
	CHECK(eng_signal(me, peer, checked_at(me->rank), k + 1) == 0, "answer to %d", peer);
	s->signals++;
}

static bool pair_step(struct eng_rank *me, int peer, struct side *s, bool *moved)
{
	if (s->sent < (uint64_t)messages && s->sent - eng_word(me, checked_at(peer)) < DEPTH) {
		message_send(me, peer, s);
		*moved = true;
	}
	if (s->taken < eng_word(me, came_at(peer))) {
		message_take(me, peer, s);
		*moved = true;
	}
	return s->taken == (uint64_t)messages && eng_word(me, checked_at(peer)) == (uint64_t)messages;
}

static void rank_run(struct eng_rank *me)
{
	struct side side[ENG_RANKS] = { { 0 } }, sum = { 0 };
	uint64_t end = ep_deadline_ms(60000), luck = (uint64_t)me->rank + 1;
	int ranks = me->rig->o.ranks, open = ranks;
	struct ep_port_counts c;

	for (int r = 0; r < ranks; r++)
		side[r].luck = (uint64_t)(me->rank * 64 + r);
	while (open && ep_now_ns() < end) {
		bool moved = false;

		open = ranks;
		for (int r = 0; r < ranks; r++)
			open -= pair_step(me, r, &side[r], &moved);
		if (eng_draw(&luck) % 64 == 0)
			usleep(eng_draw(&luck) % 1000); /* a receiver that stalls */
		else if (!moved)
			usleep(20);
	}
	CHECK(!open, "rank %d: %d pairs have not ended", me->rank, open);
	CHECK(eng_quiet(me) == 0, "rank %d: %s", me->rank, ep_last_error());
	for (int r = 0; r < ranks; r++) {
		sum.bytes += side[r].bytes;
		sum.signals += side[r].signals;
	}
	c = eng_counts(me);
	CHECK(c.bytes == sum.bytes, "rank %d: %llu bytes for %llu", me->rank, c.bytes + 0ull, sum.bytes + 0ull);
	CHECK(c.signals == sum.signals, "rank %d: %llu signals for %llu", me->rank, c.signals + 0ull,
	      sum.signals + 0ull);
	CHECK(c.puts + c.signals <= c.commands - c.joined || me->rig->o.max_put, "more puts than commands");
	CHECK(!c.dropped && !me->failed, "dropped %llu: %s", c.dropped + 0ull, me->failed_why);
}

/* Every ring is quiet: as many completed as were claimed. */
static void rings_check(struct eng_rig *rig)
{
	for (int r = 0; r < rig->o.ranks; r++)
		for (int i = 0; i < rig->o.ports; i++)
			for (int k = 0; k < rig->o.rings; k++) {
				const struct ep_cmd_ring *ring = &rig->rank[r].port[i].dev[k];

				CHECK(__atomic_load_n(&ring->tail->done, __ATOMIC_ACQUIRE) == ring->head->claim,
				      "rank %d, ring %d: %llu of %llu", r, k, ring->tail->done + 0ull,
				      ring->head->claim + 0ull);
			}
}

static void cell_run(struct eng_opts o, int n)
{
	struct eng_rig *rig;

	messages = n;
	o.bytes = bytes_of(o.ranks);
	o.max_inline = o.max_inline ? o.max_inline : ENG_INLINE_MAX;
	rig = eng_open(&o);
	eng_run(rig, rank_run);
	rings_check(rig);
	eng_close(rig);
}

/* Pushed before the engine is attached, so that merging does not depend on timing. */
static void joined(const char *spec, uint64_t max_put, uint64_t max_bytes, uint64_t must)
{
	struct eng_opts o = {
		.spec = spec, .ranks = 2, .bytes = 65536, .max_inline = ENG_INLINE_MAX, .detached = true
	};
	struct ep_cmd cmd[40];
	struct ep_port_counts c;
	struct eng_rig *rig;
	struct eng_rank *me;
	uint32_t n = 0;

	o.max_put = max_put;
	o.flow.maxBytes = max_bytes;
	rig = eng_open(&o);
	me = &rig->rank[0];
	for (uint32_t i = 0; i < 8192; i++)
		me->mem[32768 + i] = (uint8_t)(i * 7 + i / 256);
	/* 16 adjacent puts; 4 more after a signal; one whose destination and one whose source is not adjacent. */
	for (uint32_t i = 0; i < 16; i++)
		cmd[n++] = ep_cmd_put(1, 1024 + 64 * i, 32768 + 64 * i, 64);
	cmd[n++] = ep_cmd_signal(1, 0, 1);
	for (uint32_t i = 16; i < 20; i++)
		cmd[n++] = ep_cmd_put(1, 1024 + 64 * i, 32768 + 64 * i, 64);
	cmd[n++] = ep_cmd_put(1, 1024 + 64 * 21, 32768 + 64 * 20, 64);
	cmd[n++] = ep_cmd_put(1, 1024 + 64 * 22, 32768 + 64 * 22, 64);
	cmd[n++] = ep_cmd_nop(1);
	cmd[n++] = ep_cmd_signal(1, 0, 2);
	CHECK(eng_push_all(me, 1, cmd, n) == 0, "push");
	for (int r = 0; r < 2; r++)
		CHECK(ep_engine_attach(rig->rank[r].port[0].engine, rig->rank[r].port[0].port) == 0, "attach");
	CHECK(eng_wait(&rig->rank[1], 0, 2), "%s: the signal", spec);
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	c = eng_counts(me);
	CHECK(c.commands == n && c.puts == must && c.bytes == 22 * 64 && c.signals == 2,
	      "%s: %llu puts for %llu, %llu bytes, %llu signals, %llu commands", spec, c.puts + 0ull, must + 0ull,
	      c.bytes + 0ull, c.signals + 0ull, c.commands + 0ull);
	CHECK(c.joined == 22 - must, "%s: %llu puts joined, must be %llu", spec, c.joined + 0ull, 22 - must + 0ull);
	CHECK(memcmp(rig->rank[1].mem + 1024, me->mem + 32768, 20 * 64) == 0, "%s: payload", spec);
	CHECK(memcmp(rig->rank[1].mem + 1024 + 64 * 21, me->mem + 32768 + 64 * 20, 64) == 0, "%s: payload", spec);
	CHECK(me->port[0].probe.quiet > 0 || c.puts + c.signals < 4, "every put requested a completion");
	eng_close(rig);
}

/* As warps push rows: in any order. Those that are written last fill the gaps; nothing crosses a signal. */
static void shuffled(const char *spec, uint32_t rows, uint64_t seed)
{
	struct eng_opts o = {
		.spec = spec, .ranks = 2, .bytes = 65536, .max_inline = ENG_INLINE_MAX, .detached = true
	};
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0];
	struct ep_port_counts c;
	uint32_t order[64];

	for (uint32_t i = 0; i < rows; i++) {
		uint32_t at = (uint32_t)(eng_draw(&seed) % (i + 1));

		order[i] = order[at];
		order[at] = i;
	}
	for (uint32_t i = 0; i < 2 * rows * 64; i++)
		me->mem[32768 + i] = (uint8_t)(i * 7 + i / 256);
	for (uint32_t half = 0; half < 2; half++) {
		for (uint32_t i = 0; i < rows; i++) {
			uint32_t at = (half * rows + order[i]) * 64;

			CHECK(eng_put(me, 1, 1024 + at, 32768 + at, 64) == 0, "push");
		}
		CHECK(eng_signal(me, 1, 0, half + 1) == 0, "push");
	}
	for (int r = 0; r < 2; r++)
		CHECK(ep_engine_attach(rig->rank[r].port[0].engine, rig->rank[r].port[0].port) == 0, "attach");
	CHECK(eng_wait(&rig->rank[1], 0, 2), "%s: the signal", spec);
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	c = eng_counts(me);
	CHECK(c.puts == 2 && c.joined == 2 * (rows - 1) && c.bytes == 2ull * rows * 64,
	      "%s: %u rows twice: %llu puts, %llu joined, %llu bytes", spec, rows, c.puts + 0ull, c.joined + 0ull,
	      c.bytes + 0ull);
	CHECK(memcmp(rig->rank[1].mem + 1024, me->mem + 32768, 2 * rows * 64) == 0, "%s: payload", spec);
	eng_close(rig);
}

/* Quiet covers what was pushed, not only what was popped. */
static void drained(void)
{
	struct eng_opts o = { .spec = "loop",
			      .ranks = 2,
			      .entries = 16384,
			      .bytes = 1 << 20,
			      .max_inline = ENG_INLINE_MAX,
			      .detached = true };
	struct eng_rig *rig = eng_open(&o);
	const struct ep_cmd_ring *ring = eng_ring_to(&rig->rank[0], 1);

	for (uint32_t i = 0; i < 16000; i++)
		CHECK(eng_put(&rig->rank[0], 1, 32768 * (i % 16), 1 << 19, 16384) == 0, "push");
	CHECK(ep_engine_attach(rig->rank[0].port[0].engine, rig->rank[0].port[0].port) == 0, "attach");
	CHECK(eng_quiet(&rig->rank[0]) == 0, "%s", ep_last_error());
	CHECK(__atomic_load_n(&ring->tail->done, __ATOMIC_ACQUIRE) == 16000, "quiet with %llu of 16000",
	      ring->tail->done + 0ull);
	eng_close(rig);
}

/* Near wrap-around: of the sequence with 2 to 5 ranks, of 33 bits, and of the 64-bit number. */
static void wraps(int n)
{
	static const uint64_t starts[] = { (1ull << 28) - 40, (1ull << 33) - 4096, 0 - 300ull };

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		struct eng_opts o = { .spec = "faulty(loop):seed=5,reorder=16,delay=3",
				      .ranks = 2 + (int)i,
				      .window = 64,
				      .entries = 128,
				      .start = starts[i],
				      .ring_start = starts[i] };

		o.start = i ? starts[i] : (1ull << (o.ranks > 2 ? 29 : 30)) - 40;
		cell_run(o, n);
	}
}

/* For an external net. */
static void over(const char *spec, int n)
{
	struct eng_opts cells[] = {
		{ .ranks = 2 },
		{ .ranks = 3, .rings = 2, .entries = 128, .max_inline = 4, .window = 64 },
		{ .ranks = 3, .engines = 2, .flow = { .maxBytes = 4096, .maxPuts = 4 } },
	};

	for (unsigned i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
		cells[i].spec = spec;
		cell_run(cells[i], n);
	}
}

int main(int argc, char **argv)
{
	static const struct eng_opts cells[] = {
		{ .spec = "loop", .ranks = 2 },
		{ .spec = "loop", .ranks = 5, .ports = 2, .rings = 2, .engines = 2, .entries = 128 },
		{ .spec = "loop", .ranks = 3, .max_inline = 4, .window = 64 },
		{ .spec = "loop:unordered=1", .ranks = 2, .window = 64 },
		{ .spec = "loop:unordered=1", .ranks = 4, .ports = 3, .rings = 2, .engines = 2, .window = 128 },
		{ .spec = "loop:unordered=1", .ranks = 3, .max_inline = 8, .window = 64, .max_put = 128 },
		{ .spec = "faulty(loop):delay=5", .ranks = 3, .max_put = 96 },
		{ .spec = "faulty(loop):seed=7,reorder=16,delay=3", .ranks = 3, .engines = 2 },
		{ .spec = "faulty(loop):seed=8,reorder=128,delay=9", .ranks = 5, .ports = 2, .window = 64 },
		{ .spec = "faulty(loop):seed=9,reorder=64,delay=2,dup=50000", .ranks = 2, .max_inline = 1 },
		{ .spec = "loop:unordered=1", .ranks = 2, .flow = { .maxBytes = 4096, .maxPuts = 4 } },
		{ .spec = "loop", .ranks = 3, .no_bell = true, .flow = { .maxBytes = 1000, .maxPuts = 1 } },
	};
	int n = argc > 1 ? atoi(argv[1]) : 100;

	alarm(300);
	for (int i = 2; i < argc; i++)
		over(argv[i], n);
	if (argc > 2)
		return check_result("engine_moves");
	joined("loop", 0, 0, 1 + 1 + 1 + 1);
	joined("loop:unordered=1", 0, 0, 1 + 1 + 1 + 1);
	joined("faulty(loop):reorder=8", 512, 0, 2 + 1 + 1 + 1);
	joined("loop", 0, 2048, 2 + 1 + 1 + 1); /* a quarter of the flow limit */
	shuffled("loop", 30, 1);
	shuffled("loop:unordered=1", 30, 2);
	drained();
	for (unsigned i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
		cell_run(cells[i], n);
	wraps(n);
	return check_result("engine_moves");
}
