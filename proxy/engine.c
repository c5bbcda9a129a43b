/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of an idle turn limits the ranks per machine: 64 processes whose engines poll every 20 us fill two cores. So
 * an engine spins only while an answer may be in flight, then yields, then sleeps for increasing times. A GPU cannot
 * wake it: while one of its operations is open, and for 10 ms after, an engine of its rings does not sleep at all.
 */
#include "proxy/engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "proxy/cpus.h"
#include "proxy/port.h"
#include "util/bell.h"
#include "util/error.h"
#include "util/param.h"
#include "util/rest.h"

/* Time since something last moved: the thread spins until SPIN, yields until YIELD, then sleeps: NAP, doubled each time
 * up to NAP_MAX. */
#define SPIN_NS 3000u
#define YIELD_NS 50000u
/* Until then while an operation is open on a port whose producers ring: its peers' puts ring no bell. */
#define YIELD_OPEN_NS 1000000u
#define NAP_NS 20000u
#define NAP_MAX_NS 100000u
/* If every producer rings the bell, naps grow up to NAP_LONG_NS after LONG_NS; not earlier, because arrivals from peers
 * ring no bell and must not wait that long during an operation. */
#define LONG_NS 10000000u
#define NAP_LONG_NS 1000000u
/*
 * While a GPU's operation is open, one turn in this many yields. A yield takes 0.5 us even if nobody else wants the
 * CPU, a turn 0.1, so not every turn does; but an engine of another process may be queued for the same CPU, and without
 * any yield this one would keep it for a time slice of milliseconds, while the other's kernel waits. Where the process
 * has fewer CPUs than engines plus one, for the thread that launches, that is certain to happen, and every turn yields.
 */
#define OPEN_TURNS 16u

struct ep_engine {
	uint32_t bell __attribute__((aligned(64)));  /* own cache line: producers read it at every push */
	uint32_t asked __attribute__((aligned(64))); /* atomic: tickets for changes of `attached` or `end` */
	struct ep_engine *next;
	int number, users;
	int cpus; /* of the process */
	bool naps;
	bool stuck; /* atomic: a detach timed out; later takes of this number start a new engine */
	pid_t pid;
	pthread_t thread;
	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t changed;
	struct ep_port *attached; /* by next_attached */
	uint32_t answered;	  /* last ticket the thread has applied */
	bool end;
};

/* Global by necessity: ranks of one process that do not know each other share engines. */
static struct {
	pthread_mutex_t lock;
	struct ep_engine *first;
	int count; /* atomic */
} engines = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* State of the thread. */
struct shift {
	struct ep_engine *engine;
	struct ep_port *ports; /* by next_turned: `attached` as of the last change */
	bool rung;	       /* all their producers ring the bell */
	uint32_t seen;
	uint64_t since; /* idle since; 0: the last turn moved something */
	uint64_t nap;
	uint32_t spins; /* turns without a move while an operation was open */
};

static int ports_turn(const struct shift *s)
{
	int moved = 0;

	for (struct ep_port *p = s->ports; p; p = p->next_turned)
		moved += ep_port_turn(p);
	return moved;
}

/* The longest nap: short while requests are in flight, long if all producers ring. After LONG_NS requests in flight no
 * longer keep it short. */
static uint64_t nap_max(const struct shift *s, uint64_t idle)
{
	bool waits = false;

	for (const struct ep_port *p = s->ports; p && !waits; p = p->next_turned)
		waits = ep_port_waits(p);
	if (idle < LONG_NS)
		return waits ? NAP_NS : NAP_MAX_NS;
	return s->rung && !waits ? NAP_LONG_NS : NAP_MAX_NS;
}

static void shift_sleep(struct shift *s, uint64_t idle)
{
	uint64_t most = nap_max(s, idle);
	struct ep_engine *e = s->engine;

	s->nap = s->nap < most ? s->nap : most;
	ep_bell_lie_down(&e->bell);
	if (__atomic_load_n(&e->asked, __ATOMIC_RELAXED) == s->seen && !ports_turn(s)) {
		ep_bell_sleep(&e->bell, s->nap);
		s->nap *= 2;
	} else {
		s->since = 0;
	}
	ep_bell_stand_up(&e->bell);
}

/* Every port is asked: each keeps the time of its last operation. */
static bool ports_open(const struct shift *s, uint64_t now)
{
	bool open = false;

	for (struct ep_port *p = s->ports; p; p = p->next_turned)
		open |= ep_port_open_now(p, now);
	return open;
}

static bool shift_yields(struct shift *s)
{
	return s->engine->cpus <= __atomic_load_n(&engines.count, __ATOMIC_RELAXED) || ++s->spins % OPEN_TURNS == 0;
}

static uint64_t yield_ns(const struct shift *s)
{
	bool open = false;

	for (const struct ep_port *p = s->ports; p && !open; p = p->next_turned)
		open = ep_port_has_open(p);
	return open ? YIELD_OPEN_NS : YIELD_NS;
}

/* After a turn that moved nothing. */
static void shift_rest(struct shift *s)
{
	uint64_t now = ep_now_ns(), idle;
	bool open = ports_open(s, now);

	if (!s->since) {
		s->since = now;
		s->nap = NAP_NS;
	}
	idle = now - s->since;
	if (s->engine->naps && !open && idle >= YIELD_NS && idle >= yield_ns(s))
		shift_sleep(s, idle);
	else if (idle >= SPIN_NS && (!open || shift_yields(s)))
		ep_rest();
}

/* Applies the current list and acknowledges it. False: end of the thread. */
static bool shift_change(struct shift *s)
{
	struct ep_engine *e = s->engine;
	bool end;

	pthread_mutex_lock(&e->lock);
	s->seen = e->answered = e->asked;
	s->ports = e->attached;
	s->rung = true;
	for (struct ep_port *p = s->ports; p; p = p->next_attached) {
		p->next_turned = p->next_attached;
		s->rung &= p->o.rung;
	}
	end = e->end;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
	s->since = 0;
	return !end;
}

static void *engine_main(void *arg)
{
	struct shift s = { .engine = arg };

	/* The default timer slack would add 50 us to a nap of 20. */
	prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
	for (;;) {
		/* A1: pairs with R1 in engine_ask. */
		if (__atomic_load_n(&s.engine->asked, __ATOMIC_ACQUIRE) != s.seen && !shift_change(&s))
			return NULL;
		if (ports_turn(&s))
			s.since = 0;
		else
			shift_rest(&s);
	}
}

/* With the lock held: makes the thread reload the list and `end`. */
static uint32_t engine_ask(struct ep_engine *e)
{
	uint32_t ticket = __atomic_add_fetch(&e->asked, 1, __ATOMIC_RELEASE); /* R1: pairs with A1 in engine_main */

	ep_bell_ring(&e->bell);
	return ticket;
}

/* A forked child has the engine's memory but not its thread, and its lists and locks may be mid-change: it must not
 * touch them. */
static bool engine_is_ours(const struct ep_engine *e)
{
	return e->pid == getpid();
}

static bool engine_is_usable(const struct ep_engine *e)
{
	return engine_is_ours(e) && !__atomic_load_n(&e->stuck, __ATOMIC_RELAXED);
}

static int engine_start(struct ep_engine *e, const char *cpus)
{
	sigset_t all, before;
	char name[16];
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&e->thread, NULL, engine_main, e);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		return EP_FAIL(EP_PROXY, rc, "engine %d: pthread_create failed: %s", e->number, strerror(rc));
	snprintf(name, sizeof(name), "ep-engine-%d", e->number);
	pthread_setname_np(e->thread, name);
	ep_cpus_pin(e->thread, e->number, cpus);
	return 0;
}

static int engine_make(int number, const char *cpus, struct ep_engine **out)
{
	struct ep_engine *e = aligned_alloc(_Alignof(struct ep_engine), sizeof(*e));
	pthread_condattr_t attr;
	int rc;

	if (!e)
		return EP_FAIL(EP_PROXY, ENOMEM, "out of memory: engine %d", number);
	memset(e, 0, sizeof(*e));
	e->number = number;
	e->pid = getpid();
	e->users = 1;
	e->cpus = ep_cpus_count();
	e->naps = ep_param_bool(EP_P_ENGINE_NAP);
	pthread_mutex_init(&e->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&e->changed, &attr);
	pthread_condattr_destroy(&attr);
	rc = engine_start(e, cpus);
	if (rc) {
		free(e);
		return rc;
	}
	*out = e;
	return 0;
}

int ep_engine_take(int number, const char *cpus, struct ep_engine **out)
{
	struct ep_engine *e;
	int rc = 0;

	if (number < 0)
		return EP_FAIL(EP_PROXY, EP_EARG, "engine number %d is negative", number);
	pthread_mutex_lock(&engines.lock);
	for (e = engines.first; e && (e->number != number || !engine_is_usable(e)); e = e->next)
		;
	if (e) {
		e->users++;
	} else {
		rc = engine_make(number, cpus, &e);
		if (!rc) {
			e->next = engines.first;
			engines.first = e;
			__atomic_fetch_add(&engines.count, 1, __ATOMIC_RELAXED);
		}
	}
	pthread_mutex_unlock(&engines.lock);
	if (!rc)
		*out = e;
	return rc;
}

void ep_engine_give(struct ep_engine *engine)
{
	struct ep_engine **at;

	if (!engine || !engine_is_ours(engine))
		return;
	pthread_mutex_lock(&engines.lock);
	if (--engine->users) {
		pthread_mutex_unlock(&engines.lock);
		return;
	}
	for (at = &engines.first; *at != engine; at = &(*at)->next)
		;
	*at = engine->next;
	__atomic_fetch_sub(&engines.count, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&engines.lock);
	pthread_mutex_lock(&engine->lock);
	engine->end = true;
	engine_ask(engine);
	pthread_mutex_unlock(&engine->lock);
	pthread_join(engine->thread, NULL);
	free(engine);
}

int ep_engine_attach(struct ep_engine *engine, struct ep_port *port)
{
	pthread_mutex_lock(&engine->lock);
	if (port->bell) {
		pthread_mutex_unlock(&engine->lock);
		return EP_FAIL(EP_PROXY, EP_EUSAGE, "rank %d: the port is already attached to an engine", port->o.rank);
	}
	__atomic_store_n(&port->bell, &engine->bell, __ATOMIC_RELEASE);
	port->next_attached = engine->attached;
	engine->attached = port;
	engine_ask(engine);
	pthread_mutex_unlock(&engine->lock);
	return 0;
}

/* With the lock held: until the thread has applied this ticket. */
static int engine_answer_wait(struct ep_engine *e, uint32_t ticket, uint64_t deadline)
{
	struct timespec until = ep_timespec(deadline);

	while ((int32_t)(e->answered - ticket) < 0)
		if (pthread_cond_timedwait(&e->changed, &e->lock, &until) == ETIMEDOUT)
			return (int32_t)(e->answered - ticket) < 0 ? -EP_ETIMEOUT : 0;
	return 0;
}

/* A turn never waits, so only a transport that blocks makes this time out. */
int ep_engine_detach(struct ep_engine *engine, struct ep_port *port, uint64_t deadline)
{
	struct ep_port **at;
	int rc = 0;

	if (!engine_is_ours(engine))
		return 0;
	pthread_mutex_lock(&engine->lock);
	if (port->bell == &engine->bell) {
		for (at = &engine->attached; *at && *at != port; at = &(*at)->next_attached)
			;
		if (*at)
			*at = port->next_attached;
		rc = engine_answer_wait(engine, engine_ask(engine), deadline);
		__atomic_store_n(&engine->stuck, rc != 0, __ATOMIC_RELAXED);
		if (!rc)
			__atomic_store_n(&port->bell, NULL, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&engine->lock);
	if (!rc)
		return 0;
	return EP_FAIL(EP_PROXY, -rc, "rank %d: engine %d is stuck in the transport; leaking its port", port->o.rank,
		       engine->number);
}

uint32_t *ep_engine_bell(struct ep_engine *engine)
{
	return &engine->bell;
}

void ep_engine_wake(struct ep_engine *engine)
{
	ep_bell_ring(&engine->bell);
}
