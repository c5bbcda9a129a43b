/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flow control: the limits are reached and never exceeded, a receiver that does not poll stops its senders at half of
 * the window and nobody else, a peer whose puts do not complete or complete late leaves the others their rate, credits
 * overtake what waits, and ranks that flood each other through the narrowest window do not deadlock.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define AREA 65536u
#define SIGNAL_AT(from) ((uint64_t)(from) * 16)

/* Puts of n bytes, not adjacent, then the signal. */
static void flood(struct eng_rank *me, int peer, int puts, uint32_t n)
{
	for (int i = 0; i < puts; i++)
		CHECK(eng_put(me, peer, 4096 + (uint64_t)(i % 8) * 2 * n, AREA, n) == 0, "put %d", i);
	CHECK(eng_signal(me, peer, SIGNAL_AT(me->rank), (uint64_t)puts) == 0, "signal");
}

struct limit_cell {
	const char *spec;
	ncclEpNetFlow_v1_t flow;
	uint32_t size;
	uint64_t puts, bytes; /* must be reached, within the 16 bytes of a signal */
};

static void limit_run(const struct limit_cell *c)
{
	struct eng_opts o = { .spec = c->spec,
			      .ranks = 3,
			      .bytes = 2 * AREA,
			      .max_inline = ENG_INLINE_MAX,
			      .flow = c->flow,
			      .window = 256 };
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0];
	struct eng_probe *probe = &me->port[0].probe;

	/* Requests are slow, so that the limits are reached. */
	__atomic_store_n(&probe->slow, 20, __ATOMIC_RELAXED);
	flood(me, 1, 300, c->size);
	flood(me, 2, 310, c->size); /* more, so that the signals do not meet, which fit where no two puts do */
	CHECK(eng_wait(&rig->rank[1], SIGNAL_AT(0), 300) && eng_wait(&rig->rank[2], SIGNAL_AT(0), 310), "%s", c->spec);
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	ep_engine_detach(me->port[0].engine, me->port[0].port,
			 ep_deadline_ms(ENG_WAIT_MS)); /* until then the thread writes the probe */
	CHECK(probe->puts_max == c->puts, "%s: %llu puts in flight, must be %llu", c->spec, probe->puts_max + 0ull,
	      c->puts + 0ull);
	CHECK(probe->bytes_max <= c->bytes && probe->bytes_max + 16 >= c->bytes,
	      "%s: %llu bytes in flight, must be %llu", c->spec, probe->bytes_max + 0ull, c->bytes + 0ull);
	CHECK(probe->puts == 0 && probe->bytes == 0, "%s: %llu puts remain", c->spec, probe->puts + 0ull);
	eng_close(rig);
}

static void limits(void)
{
	static const struct limit_cell cells[] = {
		{ "loop", { .maxPuts = 8 }, 64, 8, 8 * 64 },
		{ "loop", { .maxPuts = 1 }, 64, 1, 64 },
		{ "loop", { .maxBytes = 1024 }, 256, 4, 1024 },
		{ "loop", { .maxBytes = 1024, .maxPuts = 3 }, 256, 3, 768 },
		{ "loop", { .maxBytes = 1000 }, 2048, 1, 2048 }, /* larger than the limit: alone */
		{ "loop:unordered=1", { .maxPuts = 8 }, 64, 8, 8 * 64 },
		{ "loop:unordered=1", { .maxBytes = 1024 }, 256, 4, 1024 },
	};

	for (unsigned i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
		limit_run(&cells[i]);
}

static uint64_t puts_of(struct eng_rank *me)
{
	return eng_counts(me).puts;
}

/* The limit of rings: each reaches it, and all together more. */
static void ring_limits(const char *spec)
{
	struct eng_opts o = { .spec = spec,
			      .ranks = 5,
			      .rings = 2,
			      .bytes = 2 * AREA,
			      .max_inline = ENG_INLINE_MAX,
			      .flow = { .maxPuts = 100, .ringPuts = 8 },
			      .window = 256 };
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0];
	struct eng_probe *probe = &me->port[0].probe;

	__atomic_store_n(&probe->slow, 20, __ATOMIC_RELAXED);
	for (int peer = 1; peer < o.ranks; peer++)
		flood(me, peer, 300, 64);
	for (int peer = 1; peer < o.ranks; peer++)
		CHECK(eng_wait(&rig->rank[peer], SIGNAL_AT(0), 300), "%s: rank %d", spec, peer);
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	ep_engine_detach(me->port[0].engine, me->port[0].port, ep_deadline_ms(ENG_WAIT_MS));
	CHECK(probe->ring_max[0] == 8 && probe->ring_max[1] == 8, "%s: %llu and %llu puts in flight of rings, not 8",
	      spec, probe->ring_max[0] + 0ull, probe->ring_max[1] + 0ull);
	CHECK(probe->puts_max > 8 && probe->puts_max <= 16, "%s: %llu puts in flight of 16", spec,
	      probe->puts_max + 0ull);
	eng_close(rig);
}

struct share_cell {
	const char *name, *spec;
	ncclEpNetFlow_v1_t flow;
	bool net; /* puts to rank 1 do not complete in the net itself */
};

enum { SHARE_RANKS = 6, SHARE_BAD = 1, SHARE_PUTS = 1000 };
enum share_how { SHARE_IDLE, SHARE_LATE, SHARE_DEAD }; /* rank 1 */

/* To all but rank 0, interleaved, not adjacent. Unless rank 1 is bad, those to it are empty: the ring is as full. */
static void share_push(struct eng_rank *me, int puts, bool bad, uint64_t value)
{
	for (int i = 0; i < puts; i++)
		for (int peer = 1; peer < SHARE_RANKS; peer++)
			CHECK(eng_put(me, peer, 4096 + (uint64_t)(i % 8) * 512, AREA,
				      peer != SHARE_BAD || bad ? 256 : 0) == 0,
			      "put %d", i);
	for (int peer = 2; peer < SHARE_RANKS; peer++)
		CHECK(eng_signal(me, peer, SIGNAL_AT(0), value) == 0, "signal");
}

static void share_wait(struct eng_rig *rig, const char *name, uint64_t value)
{
	for (int peer = 2; peer < SHARE_RANKS; peer++)
		CHECK(eng_wait(&rig->rank[peer], SIGNAL_AT(0), value), "%s: rank %d is held up", name, peer);
}

/* A dead peer completes after all, and nothing was lost. */
static void share_end(struct eng_rank *me, const struct share_cell *c, bool bad)
{
	struct eng_port *port = &me->port[0];

	if (c->net)
		return;
	__atomic_store_n(&port->probe.dead, 0, __ATOMIC_RELAXED);
	CHECK(ep_engine_attach(port->engine, port->port) == 0, "%s", ep_last_error());
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	CHECK(puts_of(me) == (uint64_t)(SHARE_PUTS + 30 * 20) * (SHARE_RANKS - (bad ? 1 : 2)), "%s: %llu puts", c->name,
	      puts_of(me) + 0ull);
}

/*
 * Turns of rank 0's port until its puts to ranks 2 to 5 have completed, without or with as many to rank 1, which
 * completes none or late. Everything is pushed before the first turn, so that turns do not depend on other threads. The
 * time until a dead peer is noticed has passed then.
 */
static uint32_t share_turns(const struct share_cell *c, enum share_how how)
{
	bool bad = how != SHARE_IDLE, dead = how == SHARE_DEAD;
	struct eng_opts o = { .spec = c->spec,
			      .ranks = SHARE_RANKS,
			      .entries = 8192,
			      .bytes = 2 * AREA,
			      .max_inline = ENG_INLINE_MAX,
			      .flow = c->flow };
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0];
	struct eng_port *port = &me->port[0];
	uint32_t turns = 0, start;

	__atomic_store_n(&port->probe.slow, 20, __ATOMIC_RELAXED);
	__atomic_store_n(dead ? &port->probe.dead : &port->probe.late, SHARE_BAD + 1, __ATOMIC_RELAXED);
	for (int i = 1; i <= 30; i++, usleep(1000)) {
		share_push(me, 20, bad, (uint64_t)i);
		share_wait(rig, c->name, (uint64_t)i);
	}
	ep_engine_detach(port->engine, port->port, ep_deadline_ms(ENG_WAIT_MS));
	share_push(me, SHARE_PUTS, bad, 31);
	start = port->probe.calls;
	CHECK(ep_engine_attach(port->engine, port->port) == 0, "%s", ep_last_error());
	share_wait(rig, c->name, 31);
	if (dead)
		CHECK(ep_port_quiet(port->port, ep_deadline_ms(20)) == -EP_ETIMEOUT, "%s: nothing is held", c->name);
	else
		CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	CHECK(!dead || (ep_port_pending(port->port, SHARE_BAD) && !ep_port_pending(port->port, 2)), "%s: pending",
	      c->name);
	ep_engine_detach(port->engine, port->port, ep_deadline_ms(ENG_WAIT_MS));
	for (int peer = 2; peer < SHARE_RANKS; peer++)
		turns = port->probe.done_at[peer] - start > turns ? port->probe.done_at[peer] - start : turns;
	share_end(me, c, bad);
	eng_close(rig);
	return turns;
}

/* One peer that never completes: the others keep 90 % of their rate. */
static void dead_peer(void)
{
	static const struct share_cell cells[] = {
		{ "no limit", "loop", { 0 } },
		{ "no limit, unordered", "loop:unordered=1", { 0 } },
		{ "32 puts", "loop", { .maxPuts = 32 } },
		{ "32 puts, unordered", "loop:unordered=1", { .maxPuts = 32 } },
		{ "8 KiB", "loop", { .maxBytes = 8192 } },
		{ "1024 puts, 32 of a ring", "loop", { .maxPuts = 1024, .ringPuts = 32 } },
		{ "net of 256 requests", "faulty(loop):mute=1,to=1", { 0 }, true },
	};

	for (unsigned i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
		uint32_t alone = share_turns(&cells[i], SHARE_IDLE), with = share_turns(&cells[i], SHARE_DEAD);

		printf("%-24s turns for %d puts to 4 peers: %u, beside a dead one %u: %.0f %% of the rate\n",
		       cells[i].name, 4 * SHARE_PUTS, alone, with, 100.0 * alone / with);
		CHECK(alone && with * 0.9 <= alone, "%s: %u turns without a dead peer, %u with it", cells[i].name,
		      alone, with);
	}
}

/* One that completes late has its share, a fifth, and the others theirs. */
static void late_peer(void)
{
	static const struct share_cell cells[] = {
		{ "32 puts", "loop", { .maxPuts = 32 } },
		{ "32 of a ring", "loop", { .ringPuts = 32 } },
	};

	for (unsigned i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
		uint32_t alone = share_turns(&cells[i], SHARE_IDLE), with = share_turns(&cells[i], SHARE_LATE);

		printf("%-24s turns for %d puts to 4 peers: %u, beside a slow one %u: %.0f %% of the rate\n",
		       cells[i].name, 4 * SHARE_PUTS, alone, with, 100.0 * alone / with);
		CHECK(alone && with * 0.6 <= alone, "%s: %u turns without a slow peer, %u with it", cells[i].name,
		      alone, with);
	}
}

/* Rank 1 has no engine and receives nothing. Rank 2 has one and is not held up. */
static void window(void)
{
	struct eng_opts o = {
		.spec = "loop:unordered=1", .ranks = 3, .bytes = 2 * AREA, .max_inline = ENG_INLINE_MAX, .window = 128
	};
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0];
	struct eng_port *deaf = &rig->rank[1].port[0];
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	ep_engine_detach(deaf->engine, deaf->port, ep_deadline_ms(ENG_WAIT_MS));
	flood(me, 1, 500, 64);
	while (puts_of(me) < 64 && ep_now_ns() < end)
		usleep(100);
	usleep(20000);
	CHECK(puts_of(me) == 64, "%llu puts to a rank that receives nothing", puts_of(me) + 0ull);
	CHECK(ep_port_quiet(me->port[0].port, ep_deadline_ms(5)) == -EP_ETIMEOUT, "quiet with 436 puts queued");
	flood(me, 2, 500, 64);
	CHECK(eng_wait(&rig->rank[2], SIGNAL_AT(0), 500), "rank 2 waits behind rank 1");
	CHECK(eng_word(&rig->rank[1], SIGNAL_AT(0)) == 0, "received without an engine");
	CHECK(ep_engine_attach(deaf->engine, deaf->port) == 0, "%s", ep_last_error());
	CHECK(eng_wait(&rig->rank[1], SIGNAL_AT(0), 500), "rank 1 received nothing after the attach");
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	CHECK(puts_of(me) == 1000, "%llu puts", puts_of(me) + 0ull);
	eng_close(rig);
}

/* The first request to rank 1 does not complete; later ones do, and release their share of the flow limit. */
static void behind(void)
{
	struct eng_opts o = {
		.spec = "loop", .ranks = 2, .bytes = 2 * AREA, .max_inline = ENG_INLINE_MAX, .flow = { .maxPuts = 4 }
	};
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0];
	uint32_t *hold = &me->port[0].probe.hold;

	__atomic_store_n(hold, 1, __ATOMIC_RELAXED);
	flood(me, 1, 100, 64);
	CHECK(eng_wait(&rig->rank[1], SIGNAL_AT(0), 100), "later requests wait for the first");
	CHECK(__atomic_load_n(hold, __ATOMIC_RELAXED) == 2, "nothing was held");
	CHECK(ep_port_quiet(me->port[0].port, ep_deadline_ms(20)) == -EP_ETIMEOUT, "quiet with a put in flight");
	__atomic_store_n(hold, 0, __ATOMIC_RELAXED);
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	eng_close(rig);
}

/* Rank 0 may have one put in flight, which does not complete: rank 2 still gets its credits. */
static void credits(void)
{
	struct eng_opts o = { .spec = "loop:unordered=1",
			      .ranks = 3,
			      .bytes = 2 * AREA,
			      .window = 64,
			      .max_inline = ENG_INLINE_MAX,
			      .flow = { .maxPuts = 1 } };
	struct eng_rig *rig = eng_open(&o);
	uint32_t *hold = &rig->rank[0].port[0].probe.hold;

	__atomic_store_n(hold, 1, __ATOMIC_RELAXED);
	flood(&rig->rank[0], 1, 10, 64);
	flood(&rig->rank[2], 0, 500, 64);
	CHECK(eng_wait(&rig->rank[0], SIGNAL_AT(2), 500), "credits wait for flow");
	CHECK(__atomic_load_n(hold, __ATOMIC_RELAXED) == 2 && eng_counts(&rig->rank[0]).puts == 1, "%llu puts of 1",
	      eng_counts(&rig->rank[0]).puts + 0ull);
	__atomic_store_n(hold, 0, __ATOMIC_RELAXED);
	CHECK(eng_wait(&rig->rank[1], SIGNAL_AT(0), 10), "the rest");
	CHECK(eng_quiet(&rig->rank[0]) == 0, "%s", ep_last_error());
	eng_close(rig);
}

/* Values that the net reads late keep a slot of their own until then. */
static void slots(const char *spec)
{
	struct eng_opts o = { .spec = spec, .ranks = 2, .bytes = 2 * AREA, .window = 64, .max_inline = 0 };
	struct eng_rig *rig = eng_open(&o);
	int wrong = 0;

	for (uint64_t i = 1; i <= 2000; i++)
		CHECK(eng_signal(&rig->rank[0], 1, i * 16, i) == 0, "signal");
	CHECK(eng_wait(&rig->rank[1], 2000 * 16, 2000), "%s: the last", spec);
	for (uint64_t i = 1; i <= 2000; i++)
		wrong += eng_word(&rig->rank[1], i * 16) != i;
	CHECK(!wrong, "%s: %d of 2000 signals have another's value", spec, wrong);
	CHECK(eng_quiet(&rig->rank[0]) == 0, "%s", ep_last_error());
	eng_close(rig);
}

static int rounds;

/* All to all, as fast as the rings accept it. */
static void flood_run(struct eng_rank *me)
{
	int ranks = me->rig->o.ranks;

	for (int i = 0; i < rounds; i++)
		for (int r = 0; r < ranks; r++) {
			CHECK(eng_put(me, r, 4096 * (uint64_t)(me->rank + 1) + (uint64_t)(i % 64) * 32, AREA, 16) == 0,
			      "put");
			if (i % 7 == 0 || i + 1 == rounds)
				CHECK(eng_signal(me, r, SIGNAL_AT(me->rank), (uint64_t)i + 1) == 0, "signal");
		}
	for (int r = 0; r < ranks; r++)
		CHECK(eng_wait(me, SIGNAL_AT(r), (uint64_t)rounds), "rank %d: %llu of %d from rank %d", me->rank,
		      eng_word(me, SIGNAL_AT(r)) + 0ull, rounds, r);
	CHECK(eng_quiet(me) == 0, "rank %d: %s", me->rank, ep_last_error());
	/* Also when the net often had no room and puts were retried. */
	CHECK(eng_counts(me).puts == (uint64_t)rounds * (uint64_t)ranks, "%llu puts", eng_counts(me).puts + 0ull);
	for (int r = 0; r < ranks; r++)
		CHECK(!me->peer_failed[r], "rank %d: %s", me->rank, me->peer_why[r]);
}

static void floods(int n)
{
	static const struct eng_opts cells[] = {
		{ .spec = "loop:unordered=1", .ranks = 2, .window = 64 },
		{ .spec = "faulty(loop):seed=3,reorder=128,delay=5", .ranks = 2, .window = 64 },
		{ .spec = "faulty(loop):seed=4,reorder=128", .ranks = 2, .window = 64, .engines = 2 },
		{ .spec = "faulty(loop):delay=50", .ranks = 2, .window = 64 },
		{ .spec = "faulty(loop):seed=5,reorder=64,delay=20",
		  .ranks = 4,
		  .window = 64,
		  .engines = 2,
		  .flow = { .maxPuts = 16, .maxBytes = 300 } },
	};

	for (unsigned i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
		struct eng_opts o = cells[i];
		struct eng_rig *rig;

		o.bytes = 2 * AREA;
		o.max_inline = ENG_INLINE_MAX;
		rounds = o.ranks > 2 ? n / 8 : n;
		rig = eng_open(&o);
		eng_run(rig, flood_run);
		CHECK(eng_counts(&rig->rank[0]).credits > (uint64_t)rounds / 32 || rig->rank[0].props.ordered,
		      "%llu credits", eng_counts(&rig->rank[0]).credits + 0ull);
		eng_close(rig);
	}
}

/* The limit is reached, puts and their signal wait: two credits behind them arrive, and the signal does not. */
static void overtaking(const char *spec)
{
	struct eng_opts o = { .spec = spec,
			      .ranks = 2,
			      .bytes = 2 * AREA,
			      .max_inline = ENG_INLINE_MAX,
			      .flow = { .maxPuts = 1 },
			      .window = 256 };
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0], *peer = &rig->rank[1];
	uint32_t *hold = &me->port[0].probe.hold, n = 0;
	struct ep_cmd cmd[24];

	__atomic_store_n(hold, 1, __ATOMIC_RELAXED);
	CHECK(eng_put(me, 1, 4096 - 128, AREA, 64) == 0, "the first put");
	for (int i = 0; i < ENG_WAIT_MS * 50 && __atomic_load_n(hold, __ATOMIC_RELAXED) != 2; i++)
		usleep(20);
	for (; n < 20; n++)
		cmd[n] = ep_cmd_put(1, 4096 + (uint64_t)n * 128, AREA, 64);
	cmd[n++] = ep_cmd_signal(1, 0, 7);
	cmd[n++] = ep_cmd_credit(1, 16, 1);
	cmd[n++] = ep_cmd_credit(1, 16, 2);
	CHECK(eng_push_all(me, 1, cmd, n) == 0, "push");
	CHECK(eng_wait(peer, 16, 2), "%s: the credits wait too", spec);
	CHECK(eng_word(peer, 0) == 0 && eng_counts(me).puts == 1, "%s: %llu puts went beyond the limit", spec,
	      eng_counts(me).puts + 0ull);
	__atomic_store_n(hold, 0, __ATOMIC_RELAXED);
	CHECK(eng_wait(peer, 0, 7), "%s: the signal", spec);
	CHECK(eng_word(peer, 16) == 2, "%s: the credits changed places", spec);
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	eng_close(rig);
}

int main(int argc, char **argv)
{
	alarm(300);
	limits();
	ring_limits("loop");
	ring_limits("loop:unordered=1");
	dead_peer();
	late_peer();
	window();
	behind();
	credits();
	overtaking("loop");
	overtaking("loop:unordered=1");
	slots("faulty(loop):delay=50");
	slots("faulty(loop):seed=6,reorder=100,delay=20");
	floods(argc > 1 ? atoi(argv[1]) : 20000);
	return check_result("engine_flow");
}
