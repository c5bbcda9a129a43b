/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals wait for a flush that began after everything before them had arrived, one flush at a time; what needs no
 * signal does not wait. A flush that fails, at once or later, stops the port with a message, and nothing is signalled
 * any more. Exit status 0 or 1.
 */
#include <string.h>
#include <unistd.h>

#include "proxy/port.h"
#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define AREA 65536u
#define SIGNAL_AT(from) ((uint64_t)(from) * 16)

static struct eng_rig *open_rig(void)
{
	struct eng_opts o = { .spec = "loop:unordered=1",
			      .ranks = 3,
			      .bytes = 2 * AREA,
			      .window = 64,
			      .max_inline = ENG_INLINE_MAX,
			      .flush = true };

	return eng_open(&o);
}

static void send_some(struct eng_rank *me, int peer, int n, uint64_t value)
{
	for (int i = 0; i < n; i++)
		CHECK(eng_put(me, peer, 4096 + (uint64_t)(i % 64) * 64, AREA, 32) == 0, "put %d", i);
	if (value)
		CHECK(eng_signal(me, peer, SIGNAL_AT(me->rank), value) == 0, "signal");
}

static bool wait_flushes(struct eng_probe *p, uint32_t n)
{
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	while (__atomic_load_n(&p->flushes, __ATOMIC_ACQUIRE) < n && ep_now_ns() < end)
		usleep(100);
	return __atomic_load_n(&p->flushes, __ATOMIC_ACQUIRE) >= n;
}

/* What rank 0 is sent has reached its port: turns begun and ended since. */
static void let_arrive(struct eng_rank *me)
{
	uint32_t from = __atomic_load_n(&me->port[0].probe.calls, __ATOMIC_RELAXED);
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	while (__atomic_load_n(&me->port[0].probe.calls, __ATOMIC_RELAXED) - from < 4 && ep_now_ns() < end)
		usleep(100);
}

static void knob(uint32_t *knob, uint32_t value)
{
	__atomic_store_n(knob, value, __ATOMIC_RELEASE);
}

/* Rank 1 signals, and while the flush for it is under way, rank 2 does, and rank 1 again. */
static void holds(void)
{
	struct eng_rig *rig = open_rig();
	struct eng_rank *me = &rig->rank[0];
	struct eng_probe *p = &me->port[0].probe;

	knob(&p->flushing, 1);
	send_some(&rig->rank[1], 0, 5, 7);
	CHECK(wait_flushes(p, 1), "no flush");
	send_some(&rig->rank[1], 0, 5, 8);
	send_some(&rig->rank[2], 0, 5, 9);
	CHECK(eng_quiet(&rig->rank[1]) == 0 && eng_quiet(&rig->rank[2]) == 0, "%s", ep_last_error());
	let_arrive(me);
	CHECK(eng_word(me, SIGNAL_AT(1)) == 0 && eng_word(me, SIGNAL_AT(2)) == 0, "signalled before the flush ended");
	CHECK(ep_port_look(me->port[0].port, ep_deadline_ms(20)) == -EP_ETIMEOUT, "held signals count as processed");
	CHECK(p->flushes == 1, "%u flushes at a time", p->flushes);

	/* The first flush began before the others had arrived; a second covers both. */
	knob(&p->flushing, 2);
	let_arrive(me);
	CHECK(eng_word(me, SIGNAL_AT(1)) == 0, "signalled before the flush ended");
	knob(&p->flushing, 0);
	CHECK(eng_wait(me, SIGNAL_AT(1), 8) && eng_wait(me, SIGNAL_AT(2), 9), "signals after the flush");
	CHECK(p->flushes == 2, "%u flushes, must be 2", p->flushes);
	CHECK(ep_port_look(me->port[0].port, ep_deadline_ms(ENG_WAIT_MS)) == 0, "nothing is held any more");
	eng_close(rig);
}

/* The first flush ends alone: it must not release what arrived after it began. */
static void covers(void)
{
	struct eng_rig *rig = open_rig();
	struct eng_rank *me = &rig->rank[0];
	struct eng_probe *p = &me->port[0].probe;

	knob(&p->flushing, 1);
	send_some(&rig->rank[1], 0, 5, 7);
	CHECK(wait_flushes(p, 1), "no flush");
	send_some(&rig->rank[1], 0, 5, 8);
	send_some(&rig->rank[2], 0, 5, 9);
	CHECK(eng_quiet(&rig->rank[1]) == 0 && eng_quiet(&rig->rank[2]) == 0, "%s", ep_last_error());
	let_arrive(me);
	knob(&p->hold_next_flush, 1);
	knob(&p->flushing, 0);
	CHECK(eng_wait(me, SIGNAL_AT(1), 7) && wait_flushes(p, 2), "the first signal");
	let_arrive(me);
	CHECK(eng_word(me, SIGNAL_AT(1)) == 7 && eng_word(me, SIGNAL_AT(2)) == 0,
	      "%llu and %llu by a flush before them", eng_word(me, SIGNAL_AT(1)) + 0ull,
	      eng_word(me, SIGNAL_AT(2)) + 0ull);
	knob(&p->hold_next_flush, 0);
	knob(&p->flushing, 0);
	CHECK(eng_wait(me, SIGNAL_AT(1), 8) && eng_wait(me, SIGNAL_AT(2), 9), "the others");
	eng_close(rig);
}

/* Rows alone: more than the window, so that credits must come back, and no flush. */
static void rows_alone(void)
{
	struct eng_rig *rig = open_rig();
	struct eng_rank *me = &rig->rank[0];

	knob(&me->port[0].probe.flushing, 1);
	send_some(&rig->rank[1], 0, 500, 0);
	CHECK(eng_quiet(&rig->rank[1]) == 0, "rows wait for a flush");
	CHECK(me->port[0].probe.flushes == 0, "%u flushes for rows alone", me->port[0].probe.flushes);
	knob(&me->port[0].probe.flushing, 0);
	eng_close(rig);
}

/* No room at first; then it fails. */
static void fails(bool later, const char *text)
{
	struct eng_rig *rig = open_rig();
	struct eng_rank *me = &rig->rank[1];
	struct eng_probe *p = &me->port[0].probe;
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	knob(&p->flushing, 2);
	send_some(&rig->rank[0], 1, 5, 5);
	CHECK(eng_quiet(&rig->rank[0]) == 0, "%s", ep_last_error());
	let_arrive(me);
	CHECK(!eng_word(me, SIGNAL_AT(0)) && !me->failed, "no room is no failure");
	p->text = text;
	__atomic_store_n(later ? &p->flushed_rc : &p->flush_rc, -EIO, __ATOMIC_RELEASE);
	knob(&p->flushing, 0);
	while (!__atomic_load_n(&me->failed, __ATOMIC_ACQUIRE) && ep_now_ns() < end)
		usleep(100);
	CHECK(me->failed == 1 && me->failed_err == -EIO && strstr(me->failed_why, text ? text : "rank 1: a flush of"),
	      "%d: %s", me->failed_err, me->failed_why);
	CHECK(eng_word(me, SIGNAL_AT(0)) == 0, "signalled without a flush");
	send_some(me, 0, 500, 5);
	CHECK(eng_quiet(me) == 0 && eng_counts(me).dropped == 501 && me->failed == 1, "%llu dropped",
	      eng_counts(me).dropped + 0ull);
	CHECK(ep_port_look(me->port[0].port, ep_deadline_ms(ENG_WAIT_MS)) == 0, "a broken port answers");
	eng_close(rig);
}

int main(void)
{
	alarm(120);
	holds();
	covers();
	rows_alone();
	fails(false, NULL);
	fails(true, "injected flush failure");
	return check_result("engine_flush");
}
