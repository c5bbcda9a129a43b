/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of rings whose producers ring no bell, as GPUs: while an operation is open, and for 10 ms after, the engine
 * does not sleep. A kernel that died does not keep it awake, and engines of producers that ring the bell sleep, only
 * later while an operation is open. The GPU is a model: its two words are set by this thread. Naps and yields are
 * counted where the engine calls the system.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"

#define AREA 4096u
#define WAIT_NS 5000000000ull

static uint32_t naps, yields; /* atomic */
static struct ep_cmd_open words;

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
int __real_sched_yield(void);
int __wrap_sched_yield(void);

/* The linker sends all calls of the program here; only futexes are called this way. */
long __wrap_syscall(long number, ...)
{
	va_list args;
	void *word, *time;
	long op, value;

	va_start(args, number);
	word = va_arg(args, void *);
	op = va_arg(args, int);
	value = va_arg(args, int);
	time = va_arg(args, void *);
	va_end(args);
	if (number == SYS_futex && time)
		__atomic_fetch_add(&naps, 1, __ATOMIC_RELAXED);
	return __real_syscall(number, word, op, value, time, NULL, 0);
}

int __wrap_sched_yield(void)
{
	__atomic_fetch_add(&yields, 1, __ATOMIC_RELAXED);
	return __real_sched_yield();
}

static uint32_t get(const uint32_t *count)
{
	return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static void set(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static struct eng_rig *rig_open(bool no_bell, uint64_t open_ns)
{
	struct eng_opts o = { .spec = "loop",
			      .ranks = 2,
			      .bytes = AREA,
			      .max_inline = ENG_INLINE_MAX,
			      .no_bell = no_bell,
			      .open = &words,
			      .open_ns = open_ns };

	words = (struct ep_cmd_open){ 0 };
	return eng_open(&o);
}

static uint32_t turns(struct eng_rig *rig)
{
	return get(&rig->rank[0].port[0].probe.calls);
}

/* Until the engine has had n more turns. */
static bool turns_pass(struct eng_rig *rig, uint32_t n)
{
	uint32_t from = turns(rig);
	uint64_t start = ep_now_ns();

	while (turns(rig) - from < n && ep_now_ns() - start < WAIT_NS)
		usleep(50);
	return turns(rig) - from >= n;
}

static bool naps_again(void)
{
	uint32_t from = get(&naps);
	uint64_t start = ep_now_ns();

	while (get(&naps) - from < 3 && ep_now_ns() - start < WAIT_NS)
		usleep(50);
	return get(&naps) - from >= 3;
}

/* What the engine does in 30 ms of an open operation. */
static void open_watch(struct eng_rig *rig, const char *what)
{
	uint32_t from, moved;

	CHECK(turns_pass(rig, 3), "%s: the engine does not poll", what); /* it has seen the words */
	from = get(&naps);
	moved = turns(rig);
	usleep(30000);
	printf("# %s: %u turns, %u naps in 30 ms\n", what, turns(rig) - moved, get(&naps) - from);
	CHECK(get(&naps) == from, "%s: %u naps while an operation was open", what, get(&naps) - from);
}

/* The model of a kernel: begun, ended; then a graph of two, replayed. */
static void awake(void)
{
	struct eng_rig *rig = rig_open(true, 0);
	uint32_t n = 0;

	CHECK(naps_again(), "it does not sleep before the first operation");
	for (int i = 0; i < 3; i++) {
		set(&words.begun, ++n);
		open_watch(rig, "open");
		set(&words.ended, n);
		if (i == 1) { /* one that began and ended between two turns counts too */
			set(&words.begun, ++n);
			set(&words.ended, n);
		}
		CHECK(naps_again(), "it does not sleep after operation %u", n);
	}
	eng_close(rig);
}

/* The time between two layers: no nap in the first 5 ms after an operation. */
static void after(void)
{
	struct eng_rig *rig = rig_open(true, 0);
	bool seen = false;

	for (uint32_t n = 1; n <= 20 && !seen; n++) {
		uint64_t start = ep_now_ns();
		uint32_t from;

		set(&words.begun, n);
		CHECK(turns_pass(rig, 3), "the engine does not poll");
		start = ep_now_ns();
		set(&words.ended, n);
		from = get(&naps);
		usleep(5000);
		from = get(&naps) - from;
		if (ep_now_ns() - start > 8000000) /* this machine is too busy to tell */
			continue;
		seen = true;
		CHECK(from == 0, "%u naps in the 5 ms after an operation", from);
		CHECK(naps_again(), "it never sleeps again");
	}
	eng_close(rig);
}

/* A kernel that died leaves its operation open. */
static void dead(void)
{
	struct eng_rig *rig = rig_open(true, 20000000);

	set(&words.begun, 1);
	CHECK(turns_pass(rig, 3) && naps_again(), "an operation that never ends keeps the engine awake");
	eng_close(rig);
}

static void rung(void)
{
	struct eng_rig *rig = rig_open(false, 0);

	set(&words.begun, 1);
	CHECK(turns_pass(rig, 3) && naps_again(), "an engine whose producers ring the bell does not sleep");
	eng_close(rig);
}

/* There it yields for a millisecond after something moved, while an operation is open. */
static void rung_open(void)
{
	struct eng_rig *rig = rig_open(false, 0);
	bool seen = false;

	set(&words.begun, 1);
	for (uint32_t n = 1; n <= 100 && !seen; n++) {
		uint64_t start = ep_now_ns();
		uint32_t from;

		CHECK(eng_signal(&rig->rank[0], 1, 0, n) == 0 && eng_wait(&rig->rank[1], 0, n), "no signal");
		from = get(&naps);
		usleep(250);
		from = get(&naps) - from;
		if (ep_now_ns() - start > 700000) /* this machine is too busy to tell */
			continue;
		seen = true;
		CHECK(from == 0, "%u naps in the 0.3 ms after a signal, while an operation was open", from);
		CHECK(naps_again(), "it never sleeps again");
	}
	eng_close(rig);
}

/* With one CPU every turn yields, else few do. */
static void crowded(bool one_cpu)
{
	uint32_t yielded, moved;
	struct eng_rig *rig;
	cpu_set_t all, one;
	int first = 0;

	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0, "no affinity");
	if (CPU_COUNT(&all) < 2)
		return;
	while (!CPU_ISSET(first, &all))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	if (one_cpu)
		CHECK(sched_setaffinity(0, sizeof(one), &one) == 0, "no affinity");
	rig = rig_open(true, 0);
	set(&words.begun, 1);
	CHECK(turns_pass(rig, 3), "the engine does not poll");
	usleep(1000);
	moved = turns(rig);
	yielded = get(&yields);
	usleep(30000);
	moved = turns(rig) - moved;
	yielded = get(&yields) - yielded;
	printf("# %s: %u turns, %u yields in 30 ms\n", one_cpu ? "one CPU" : "all CPUs", moved, yielded);
	if (one_cpu)
		CHECK(yielded + 10 > moved / 2, "%u yields in %u turns: it holds the only CPU", yielded, moved);
	else
		CHECK(yielded < moved / 8 + 10, "%u yields in %u turns: it does not spin", yielded, moved);
	eng_close(rig);
	sched_setaffinity(0, sizeof(all), &all);
}

int main(void)
{
	alarm(120);
	setenv("NCCL_EP_ENGINE_CPUS", "inherit", 1); /* else it would leave the only CPU, where there are others */
	awake();
	after();
	dead();
	rung();
	rung_open();
	crowded(false);
	crowded(true);
	return check_result("engine_open");
}
