/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life cycle of engines and ports: ports change engines under traffic, many share one, a sleeping engine is woken by a
 * push and costs little until then, the last user ends the thread, and a forked child does not wait for the threads it
 * does not have.
 */
#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proxy/cpus.h"
#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/bell.h"
#include "util/clock.h"
#include "util/error.h"

#define AREA 65536u
#define SIGNAL_AT(from) ((uint64_t)(from) * 16)

static int stop; /* atomic */

static struct eng_rig *open_rig(const char *spec, int ranks, int engines)
{
	struct eng_opts o = { .spec = spec,
			      .ranks = ranks,
			      .engines = engines,
			      .window = 64,
			      .bytes = 2 * AREA,
			      .max_inline = ENG_INLINE_MAX };

	return eng_open(&o);
}

/* Round trips; each receives what was sent last. */
static void ping_run(struct eng_rank *me)
{
	uint64_t *word = (uint64_t *)(me->mem + AREA);
	int peer = !me->rank;

	for (uint64_t k = 1; k <= 400; k++) {
		for (int turn = 0; turn < 2; turn++) {
			if (turn != me->rank) {
				CHECK(eng_wait(me, SIGNAL_AT(peer), k), "ping %llu", k + 0ull);
				CHECK(*(uint64_t *)(me->mem + 4096) == k * 3, "payload %llu", k + 0ull);
				continue;
			}
			/* The answer to the last message proves that it was sent. */
			*word = k * 3;
			CHECK(eng_put(me, peer, 4096, AREA, 16) == 0, "put");
			CHECK(eng_signal(me, peer, SIGNAL_AT(me->rank), k) == 0, "signal");
		}
		if (me->rank == 0 && eng_quiet(me))
			CHECK(strstr(ep_last_error(), "not attached"), "%s", ep_last_error());
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
}

static void *mover_main(void *arg)
{
	struct eng_rig *rig = arg;
	struct ep_engine *engine[2] = { rig->rank[0].port[0].engine, rig->rank[1].port[0].engine };

	for (unsigned i = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
		struct eng_port *p = &rig->rank[i / 2 % 2].port[0];

		ep_engine_detach(p->engine, p->port, ep_deadline_ms(ENG_WAIT_MS));
		CHECK(ep_port_quiet(p->port, ep_deadline_ms(1000)) == -EP_EUSAGE, "quiet without an engine");
		if (i % 16 == 0)
			usleep(300);
		p->engine = engine[i % 2];
		CHECK(ep_engine_attach(p->engine, p->port) == 0, "%s", ep_last_error());
		CHECK(ep_engine_attach(p->engine, p->port) == -EP_EUSAGE, "attached twice");
		usleep(100);
	}
	/* Each returns the engine it took. */
	for (int r = 0; r < 2; r++) {
		struct eng_port *p = &rig->rank[r].port[0];

		ep_engine_detach(p->engine, p->port, ep_deadline_ms(ENG_WAIT_MS));
		p->engine = engine[r];
		CHECK(ep_engine_attach(p->engine, p->port) == 0, "%s", ep_last_error());
	}
	return NULL;
}

static void moved(const char *spec)
{
	struct eng_rig *rig = open_rig(spec, 2, 2);
	pthread_t mover;

	__atomic_store_n(&stop, 0, __ATOMIC_RELAXED);
	CHECK(pthread_create(&mover, NULL, mover_main, rig) == 0, "no thread");
	eng_run(rig, ping_run);
	pthread_join(mover, NULL);
	eng_close(rig);
}

/* 64 ports on one engine: each rank signals the next. */
static void many(const char *spec)
{
	struct eng_rig *rig = open_rig(spec, ENG_RANKS, 1);

	for (int k = 1; k <= 20; k++)
		for (int r = 0; r < ENG_RANKS; r++) {
			CHECK(eng_put(&rig->rank[r], (r + 1) % ENG_RANKS, 4096, AREA, 1024) == 0, "put");
			CHECK(eng_signal(&rig->rank[r], (r + 1) % ENG_RANKS, SIGNAL_AT(r), (uint64_t)k) == 0, "signal");
		}
	for (int r = 0; r < ENG_RANKS; r++)
		CHECK(eng_wait(&rig->rank[(r + 1) % ENG_RANKS], SIGNAL_AT(r), 20), "no signal from rank %d", r);
	eng_close(rig);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* A thread that answers a bell: the wake-up time of this machine under its current load. */
struct sleeper {
	uint32_t bell;
	uint64_t rung, heard; /* atomic */
};

static void *sleeper_main(void *arg)
{
	struct sleeper *s = arg;
	uint64_t rung;

	do {
		ep_bell_lie_down(&s->bell);
		rung = __atomic_load_n(&s->rung, __ATOMIC_ACQUIRE);
		if (rung == s->heard)
			ep_bell_sleep(&s->bell, 1000000000ull);
		ep_bell_stand_up(&s->bell);
		rung = __atomic_load_n(&s->rung, __ATOMIC_ACQUIRE);
		__atomic_store_n(&s->heard, rung, __ATOMIC_RELEASE);
	} while (rung != UINT64_MAX);
	return NULL;
}

static uint64_t way_ns(const uint64_t *word, uint64_t value, uint64_t start)
{
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value && ep_now_ns() - start < 1000000000ull)
		sched_yield();
	return ep_now_ns() - start;
}

/* Median latency of a signal through an engine that has slept for long, and of a bell alone. */
static bool wakes_in_time(struct eng_rig *rig, struct sleeper *s, uint64_t *k)
{
	enum { TIMES = 61 };
	uint64_t way[TIMES], bare[TIMES], start;

	for (int i = 0; i < TIMES; i++) {
		++*k;
		usleep(12000 + 37 * (unsigned)i);
		start = ep_now_ns();
		__atomic_store_n(&s->rung, *k, __ATOMIC_RELEASE);
		ep_bell_ring(&s->bell);
		bare[i] = way_ns(&s->heard, *k, start);
		start = ep_now_ns();
		CHECK(eng_signal(&rig->rank[0], 1, SIGNAL_AT(0), *k) == 0, "signal");
		way[i] = way_ns((uint64_t *)(rig->rank[1].mem + SIGNAL_AT(0)), *k, start);
	}
	qsort(way, TIMES, sizeof(way[0]), by_size);
	qsort(bare, TIMES, sizeof(bare[0]), by_size);
	printf("# a signal through a sleeping engine %.1f us, a bell alone %.1f us\n", (double)way[TIMES / 2] / 1e3,
	       (double)bare[TIMES / 2] / 1e3);
	return way[TIMES / 2] < 200000 + 2 * bare[TIMES / 2];
}

/* Naps are 1 ms then: without the bell half of the signals would need more than 500 us. */
static void woken(void)
{
	struct eng_rig *rig = open_rig("loop", 2, 1);
	struct sleeper s = { 0 };
	bool in_time = false;
	pthread_t thread;
	uint64_t k = 0;

	CHECK(pthread_create(&thread, NULL, sleeper_main, &s) == 0, "no thread");
	for (int i = 0; i < 3 && !in_time; i++)
		in_time = wakes_in_time(rig, &s, &k);
	CHECK(in_time, "the bell does not wake the engine");
	__atomic_store_n(&s.rung, UINT64_MAX, __ATOMIC_RELEASE);
	ep_bell_ring(&s.bell);
	pthread_join(thread, NULL);
	eng_close(rig);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* CPU time over 200 ms: with a bell, and with the short naps of rings that GPUs push to. */
static void idle(bool no_bell, unsigned percent)
{
	struct eng_opts o = { .spec = "loop", .ranks = 2, .bytes = AREA, .no_bell = no_bell };
	/* It does poll, and with GPUs often: each nap is two turns. */
	uint32_t looks = 0, least = no_bell ? 100 : 10, most = no_bell ? 6000 : 1000;
	uint64_t used = 0;
	struct eng_rig *rig;

	o.max_inline = ENG_INLINE_MAX;
	rig = eng_open(&o);
	/* An overloaded machine shows nothing: a few tries. */
	for (int i = 0; i < 5 && looks < least; i++) {
		uint64_t start;
		uint32_t before;

		usleep(50000);
		before = __atomic_load_n(&rig->rank[0].port[0].probe.calls, __ATOMIC_RELAXED);
		start = cpu_ns();
		usleep(200000);
		used = cpu_ns() - start;
		looks = __atomic_load_n(&rig->rank[0].port[0].probe.calls, __ATOMIC_RELAXED) - before;
	}
	printf("# idle %s bell: %.1f %% of a CPU, %u polls in 200 ms\n", no_bell ? "without" : "with",
	       (double)used / 2e6, looks);
	CHECK(used < 2000000ull * percent, "%llu ns of 200 ms", used + 0ull);
	CHECK(looks >= least && looks <= most, "%u looks", looks);
	eng_close(rig);
}

/* Threads of this process with that name. */
static int threads_named(const char *name)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int n = 0;

	while (dir && (entry = readdir(dir))) {
		char path[300], text[64] = "";
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		f = fopen(path, "r");
		if (f && fgets(text, sizeof(text), f))
			n += strcspn(text, "\n") == strlen(name) && !strncmp(text, name, strlen(name));
		if (f)
			fclose(f);
	}
	if (dir)
		closedir(dir);
	return n;
}

/* A joined thread stays visible in /proc for a moment. */
static bool threads_are(const char *name, int n)
{
	uint64_t end = ep_deadline_ms(2000);

	while (threads_named(name) != n && ep_now_ns() < end)
		usleep(1000);
	return threads_named(name) == n;
}

static void taken(void)
{
	struct ep_engine *a = NULL, *b = NULL, *c = NULL;

	CHECK(ep_engine_take(-1, NULL, &a) == -EP_EARG, "engine -1");
	CHECK(ep_engine_take(7, "0-1", &a) == 0 && ep_engine_take(7, NULL, &b) == 0 && a == b, "one engine 7");
	CHECK(ep_engine_take(8, "no list", &c) == 0 && c != a, "another engine 8");
	CHECK(threads_are("ep-engine-7", 1) && threads_are("ep-engine-8", 1), "threads");
	ep_engine_give(c);
	ep_engine_give(a);
	CHECK(threads_are("ep-engine-8", 0) && threads_are("ep-engine-7", 1), "one of two users left");
	ep_engine_give(b);
	CHECK(threads_are("ep-engine-7", 0), "the last user left");
}

/* The child has the ports but no thread that drives them. */
static void forked(void)
{
	struct eng_rig *rig = open_rig("loop", 2, 1);
	struct eng_port *p = &rig->rank[0].port[0];
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		alarm(10);
		ep_engine_detach(p->engine, p->port, ep_deadline_ms(ENG_WAIT_MS));
		ep_engine_give(p->engine);
		ep_engine_give(p->engine);
		_exit(0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %#x", (unsigned)status);
	CHECK(eng_signal(&rig->rank[0], 1, SIGNAL_AT(0), 5) == 0 && eng_wait(&rig->rank[1], SIGNAL_AT(0), 5),
	      "the parent's engine");
	eng_close(rig);
}

static void lists(void)
{
	static const char *const bad[] = { "x", "1-", "-1", "3-1", "1,,2", "8192", "1 2", "99999999999999999999" };
	struct ep_cpus cpus;

	CHECK(ep_cpus_parse("0-3,8,10-10\n", &cpus) == 0 && CPU_COUNT_S(sizeof(cpus), cpus.set) == 6 &&
		      CPU_ISSET_S(8, sizeof(cpus), cpus.set) && !CPU_ISSET_S(4, sizeof(cpus), cpus.set),
	      "0-3,8,10-10");
	CHECK(ep_cpus_parse("8191", &cpus) == 0 && CPU_ISSET_S(8191, sizeof(cpus), cpus.set), "8191");
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(ep_cpus_parse(bad[i], &cpus) == -EP_EARG, "%s", bad[i]);
}

static void windows(void)
{
	CHECK(ep_port_window(2, 1024) == 1024 && ep_port_window(2, 1000) == 512, "as asked for");
	CHECK(ep_port_window(1 << 20, 4096) == 1024 && ep_port_window((1 << 20) + 1, 4096) == 512, "as wide as it can");
	CHECK(ep_port_window(1 << 24, 64) == 64 && ep_port_window((1 << 24) + 1, 64) == 0, "the least");
	CHECK(ep_port_window(4, 63) == 0, "too narrow");
}

/* An engine stuck in the transport: detach times out, and can be retried. */
static void held(void)
{
	struct eng_rig *rig = open_rig("loop", 2, 2);
	struct eng_rank *me = &rig->rank[0];
	struct eng_port *p = &me->port[0];
	uint64_t start = ep_now_ns(), end = ep_deadline_ms(ENG_WAIT_MS);
	struct ep_engine *other = NULL;

	__atomic_store_n(&p->probe.stall_ms, 2000, __ATOMIC_RELAXED);
	CHECK(eng_put(me, 1, 4096, AREA, 16) == 0, "put");
	while (__atomic_load_n(&p->probe.stall_ms, __ATOMIC_RELAXED) && ep_now_ns() < end)
		usleep(100);
	CHECK(ep_engine_detach(p->engine, p->port, ep_deadline_ms(50)) == -EP_ETIMEOUT, "a stuck engine was detached");
	CHECK(ep_now_ns() - start < 1900000000ull, "the timeout came after the net returned");
	CHECK(strstr(ep_last_error(), "rank 0") && strstr(ep_last_error(), "engine 0"), "%s", ep_last_error());
	CHECK(ep_engine_attach(p->engine, p->port) == -EP_EUSAGE, "attached while the engine is stuck");
	CHECK(ep_engine_take(0, NULL, &other) == 0 && other != p->engine, "a new user gets the stuck engine");
	ep_engine_give(other);
	CHECK(ep_engine_detach(p->engine, p->port, ep_deadline_ms(ENG_WAIT_MS)) == 0, "%s", ep_last_error());
	CHECK(ep_now_ns() - start >= 1900000000ull, "detached before the net returned");
	CHECK(ep_engine_attach(p->engine, p->port) == 0, "%s", ep_last_error());
	CHECK(eng_signal(me, 1, SIGNAL_AT(0), 5) == 0 && eng_wait(&rig->rank[1], SIGNAL_AT(0), 5), "afterwards");
	eng_close(rig);
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && !strcmp(argv[1], "-q"); /* without the parts that depend on timing, for sanitizers */

	alarm(300);
	taken();
	lists();
	windows();
	forked();
	held();
	moved("loop");
	moved("faulty(loop):seed=2,reorder=8,delay=3");
	many("loop");
	many("loop:unordered=1");
	if (!quick) {
		woken();
		idle(false, 10);
		idle(true, 20);
	}
	return check_result("engine_life");
}
