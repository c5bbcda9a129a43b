/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine says about the time of operations: begin, first signal popped, given, completed, signals stored, end.
 * A model of the kernels: this thread sets their words and pushes, with pauses that the sums must contain.
 */
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"

#define AREA 4096u
#define PAUSE_US 3000
#define PAUSE_NS (PAUSE_US * 1000ull)
#define SIGNAL_AT(from) ((uint64_t)(from) * 16)

static struct ep_cmd_open words; /* of both ranks */

static void set(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static struct eng_rig *rig_open(const char *spec, bool no_bell)
{
	struct eng_opts o = { .spec = spec,
			      .ranks = 2,
			      .bytes = AREA,
			      .max_inline = ENG_INLINE_MAX,
			      .no_bell = no_bell,
			      .open = &words };

	words = (struct ep_cmd_open){ .begun = UINT32_MAX, .ended = UINT32_MAX }; /* counts wrap */
	return eng_open(&o);
}

static struct ep_port_times times_of(struct eng_rank *me)
{
	struct ep_port_times t;

	CHECK(eng_quiet(me) == 0, "quiet");
	ep_port_times(me->port[0].port, &t);
	return t;
}

/* Until the engine of this rank has had two more turns, each with the words as they are. */
static void turns_pass(struct eng_rank *me)
{
	CHECK(eng_quiet(me) == 0 && eng_quiet(me) == 0, "quiet");
}

/* The same while something is in flight. */
static void polls_pass(const struct eng_probe *probe)
{
	uint32_t from = __atomic_load_n(&probe->calls, __ATOMIC_RELAXED);
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	while (__atomic_load_n(&probe->calls, __ATOMIC_RELAXED) - from < 3 && ep_now_ns() < end)
		usleep(50);
}

/* Operation n: pause, rank 0's signal, whose completion takes a pause, rank 1's after another, a second signal of rank
 * 0, pause, end. */
static void operate(struct eng_rig *rig, uint32_t n)
{
	struct eng_rank *me = &rig->rank[0], *peer = &rig->rank[1];
	struct eng_probe *probe = &me->port[0].probe;

	set(&words.begun, n);
	turns_pass(me);
	turns_pass(peer);
	usleep(PAUSE_US);
	__atomic_store_n(&probe->hold, 1, __ATOMIC_RELAXED);
	CHECK(eng_signal(me, 1, SIGNAL_AT(0), n + 1) == 0, "signal");
	CHECK(eng_wait(peer, SIGNAL_AT(0), n + 1), "no signal");
	usleep(PAUSE_US);
	__atomic_store_n(&probe->hold, 0, __ATOMIC_RELAXED);
	CHECK(eng_quiet(me) == 0, "quiet");
	CHECK(eng_signal(peer, 0, SIGNAL_AT(1), n + 1) == 0 && eng_wait(me, SIGNAL_AT(1), n + 1), "signal");
	CHECK(eng_signal(me, 1, SIGNAL_AT(0) + 32, n + 1) == 0, "signal");
	usleep(PAUSE_US);
	set(&words.ended, n);
}

static void timed(const char *spec, bool ordered, bool no_bell)
{
	struct eng_rig *rig = rig_open(spec, no_bell);
	struct ep_port_times t;

	operate(rig, 0);
	t = times_of(&rig->rank[0]); /* from here on */
	CHECK(!t.operations && !t.popped && !t.ended, "%s: times of %llu operations nobody asked for", spec,
	      t.operations + 0ull);
	times_of(&rig->rank[1]);
	for (uint32_t n = 1; n <= 2; n++)
		operate(rig, n);
	t = times_of(&rig->rank[0]);
	printf("# %s: %llu operations, popped %.2f, given %.2f, completed %.2f, arrived %.2f, ended %.2f ms\n", spec,
	       t.operations + 0ull, (double)t.popped / 2e6, (double)t.given / 2e6, (double)t.completed / 2e6,
	       (double)t.arrived / 2e6, (double)t.ended / 2e6);
	CHECK(t.operations == 2, "%s: %llu operations", spec, t.operations + 0ull);
	CHECK(t.popped >= 2 * PAUSE_NS, "%s: popped before the pause", spec);
	CHECK(t.given >= t.popped, "%s: given before it was popped", spec);
	CHECK(t.completed >= t.given + 2 * PAUSE_NS, "%s: completed while it was held", spec);
	CHECK(t.ended >= t.completed + 2 * PAUSE_NS, "%s: ended before the last pause", spec);
	CHECK(t.arrivals == (ordered ? 0 : 2), "%s: %llu arrivals", spec, t.arrivals + 0ull);
	CHECK(ordered || (t.arrived >= t.completed && t.arrived + 2 * PAUSE_NS <= t.ended), "%s: arrived at %llu", spec,
	      t.arrived + 0ull);
	t = times_of(&rig->rank[1]); /* its own first signal, after two pauses */
	CHECK(t.operations == 2 && t.popped >= 4 * PAUSE_NS, "%s: rank 1 has %llu, popped %llu", spec,
	      t.operations + 0ull, t.popped + 0ull);
	eng_close(rig);
}

/* As in a graph: the next kernel begins before the net has completed the signal of the one before. */
static void overlapped(void)
{
	struct eng_rig *rig = rig_open("loop", true);
	struct eng_rank *me = &rig->rank[0];
	struct eng_probe *probe = &me->port[0].probe;
	struct ep_port_times t = times_of(me);

	turns_pass(me); /* with the words before */
	set(&words.begun, 0);
	turns_pass(me);
	__atomic_store_n(&probe->hold, 1, __ATOMIC_RELAXED);
	CHECK(eng_signal(me, 1, SIGNAL_AT(0), 1) == 0 && eng_wait(&rig->rank[1], SIGNAL_AT(0), 1), "signal");
	set(&words.ended, 0);
	polls_pass(probe);
	set(&words.begun, 1);
	polls_pass(probe);
	usleep(PAUSE_US);
	__atomic_store_n(&probe->hold, 0, __ATOMIC_RELAXED);
	CHECK(eng_signal(me, 1, SIGNAL_AT(0), 2) == 0 && eng_quiet(me) == 0, "signal");
	set(&words.ended, 1);
	t = times_of(me);
	CHECK(t.operations == 2, "%llu operations of two that overlap", t.operations + 0ull);
	CHECK(t.completed >= t.given + PAUSE_NS, "completed while it was held");
	eng_close(rig);
}

/* An operation without a signal is not counted, and does not lend its begin to the next. */
static void silent(void)
{
	struct eng_rig *rig = rig_open("loop", true);
	struct eng_rank *me = &rig->rank[0];
	struct ep_port_times t = times_of(me);

	turns_pass(me); /* with the words before */
	set(&words.begun, 0);
	turns_pass(me);
	CHECK(eng_put(me, 1, 0, 1024, 512) == 0, "put");
	usleep(3 * PAUSE_US);
	set(&words.ended, 0);
	turns_pass(me);
	set(&words.begun, 1);
	turns_pass(me);
	CHECK(eng_signal(me, 1, SIGNAL_AT(0), 1) == 0, "signal");
	CHECK(eng_quiet(me) == 0, "quiet");
	set(&words.ended, 1);
	t = times_of(me);
	CHECK(t.operations == 1, "%llu operations", t.operations + 0ull);
	eng_close(rig);
}

int main(void)
{
	alarm(120);
	timed("loop", true, true);
	timed("loop:unordered=1", false, true);
	timed("loop:unordered=1", false, false);
	silent();
	overlapped();
	return check_result("engine_times");
}
