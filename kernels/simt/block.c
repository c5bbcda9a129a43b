/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simt/block.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/simt/san.h"

static _Thread_local struct simt_block *block_now;
static _Thread_local struct simt_thread *thread_now;

SIMT_RAW struct simt_block *simt_block_now(void)
{
	return block_now;
}

SIMT_RAW struct simt_thread *simt_thread_now(void)
{
	return thread_now;
}

SIMT_RAW const struct simt_where *simt_where(void)
{
	return &thread_now->where;
}

SIMT_RAW void *gx_host_shared(void)
{
	return block_now->shared;
}

SIMT_RAW void simt_die(struct simt_block *b, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	dprintf(2, "simt: %s\n", text);
	if (b->report)
		b->report(text);
	abort();
}

SIMT_RAW static void block_deadlock(struct simt_block *b)
{
	static const char *const names[SIMT_STATES] = { "running", "spinning", "at a warp operation",
							"at a block barrier", "ended" };
	unsigned count[SIMT_STATES] = { 0 };

	for (unsigned i = 0; i < b->n; i++)
		count[b->thread[i].state]++;
	simt_die(b, "deadlock in block %u: %u threads %s (%s), %u %s (%s), %u %s", b->thread[0].where.block,
		 count[SIMT_AT_WARP], names[SIMT_AT_WARP], b->warp[0].meet.where ? b->warp[0].meet.where : "-",
		 count[SIMT_AT_BLOCK], names[SIMT_AT_BLOCK], b->meet.where ? b->meet.where : "-", count[SIMT_DONE],
		 names[SIMT_DONE]);
}

/* The next runnable thread after number from, or a random one; NULL if there is none. */
SIMT_RAW static struct simt_thread *block_next(struct simt_block *b, unsigned from)
{
	unsigned i = from;

	if (b->random) {
		b->random ^= b->random << 13;
		b->random ^= b->random >> 7;
		b->random ^= b->random << 17;
		i = (unsigned)(b->random >> 32) % b->n;
	}
	for (unsigned k = 0; k < b->n; k++) {
		i = i + 1 < b->n ? i + 1 : 0;
		if (b->thread[i].state <= SIMT_SPIN)
			return &b->thread[i];
	}
	return NULL;
}

/* Switches to another thread of the block, or back to the launch when all have ended. */
SIMT_RAW static void block_leave(struct simt_block *b, struct simt_thread *me)
{
	struct simt_thread *to = block_next(b, me->where.tid);

	if (!to && b->alive > 0)
		block_deadlock(b);
	if (to == me)
		return;
	thread_now = to;
	simt_fiber_switch(&me->fiber, to ? &to->fiber : &b->main);
}

SIMT_RAW void simt_wait(struct simt_block *b, struct simt_thread *me, enum simt_state state)
{
	me->state = state;
	while (me->state == state)
		block_leave(b, me);
}

SIMT_RAW void simt_wake(struct simt_block *b, unsigned first, unsigned n, enum simt_state state)
{
	for (unsigned i = first; i < first + n && i < b->n; i++)
		if (b->thread[i].state == state)
			b->thread[i].state = SIMT_RUN;
}

SIMT_RAW void simt_meet_check(struct simt_block *b, struct simt_meet *m, const char *what, const char *where)
{
	if (m->arrived == 0) {
		m->what = what;
		m->where = where;
	} else if (m->where != where && strcmp(m->where, where) != 0) {
		simt_die(b, "block %u: divergent %s: thread %u at %s, others in a %s at %s", thread_now->where.block,
			 what, thread_now->where.tid, where, m->what, m->where);
	}
}

SIMT_RAW void simt_acquired_bring(struct simt_meet *m, const struct simt_thread *me)
{
	if (m->arrived == 0)
		m->acquired[m->turn] = 0;
	m->acquired[m->turn] |= me->acquired;
}

SIMT_RAW void simt_acquired_take(const struct simt_meet *m, unsigned turn, struct simt_thread *me)
{
	me->acquired |= m->acquired[turn];
}

SIMT_RAW void simt_acquired(void)
{
	thread_now->acquired = 1;
}

SIMT_RAW void simt_fence_proxy(void)
{
	thread_now->acquired = 0;
}

SIMT_RAW void simt_copies(const char *where)
{
	if (thread_now->acquired)
		simt_die(block_now, "block %u: thread %u copies at %s after an acquire without a proxy fence",
			 thread_now->where.block, thread_now->where.tid, where);
}

SIMT_RAW void simt_syncthreads(const char *where)
{
	struct simt_block *b = block_now;
	struct simt_thread *me = thread_now;
	struct simt_meet *m = &b->meet;
	unsigned turn = m->turn;
	char *sync = &m->sync[turn];

	simt_meet_check(b, m, "block barrier", where);
	simt_wait_check(b, me, where);
	/* On some GPUs threads that have ended count as arrived; kernels that rely on it are not portable. */
	if (b->alive < b->n)
		simt_die(b, "block %u: block barrier at %s with only %u of %u threads left", me->where.block, where,
			 b->alive, b->n);
	san_release(sync);
	simt_acquired_bring(m, me);
	if (++m->arrived == b->n) {
		m->arrived = 0;
		m->turn ^= 1;
		b->idle = 0;
		simt_wake(b, 0, b->n, SIMT_AT_BLOCK);
	} else {
		simt_wait(b, me, SIMT_AT_BLOCK);
	}
	simt_acquired_take(m, turn, me);
	san_acquire(sync);
}

/* When all runnable warps only pause, progress must come from another block or rank: yield to it. */
SIMT_RAW void simt_rest(struct simt_block *b, struct simt_thread *me)
{
	if (++b->idle > b->alive / GX_WARP) {
		b->idle = 0;
		sched_yield();
	}
	me->state = SIMT_SPIN;
	block_leave(b, me);
	me->state = SIMT_RUN;
}

SIMT_RAW static void thread_end(struct simt_block *b, struct simt_thread *me)
{
	struct simt_warp *w = &b->warp[me->where.tid / GX_WARP];

	w->gone++;
	b->alive--;
	b->idle = 0;
	if (w->meet.arrived > 0)
		simt_die(b, "block %u: thread %u ended while %u lanes of its warp wait at %s", me->where.block,
			 me->where.tid, w->meet.arrived, w->meet.where);
	if (b->meet.arrived > 0)
		simt_die(b, "block %u: thread %u ended while %u threads wait at the block barrier at %s",
			 me->where.block, me->where.tid, b->meet.arrived, b->meet.where);
}

/* A fiber lives as long as its block's thread; each iteration is one launch. */
SIMT_RAW static void thread_main(void)
{
	simt_fiber_begin();
	for (;;) {
		struct simt_block *b = block_now;
		struct simt_thread *me = thread_now;

		san_acquire(&b->start);
		b->fn(b->args);
		san_release(&b->end);
		thread_end(b, me);
		simt_wait(b, me, SIMT_DONE);
	}
}

int simt_block_reserve(struct simt_block *b, unsigned n, size_t shared)
{
	if (shared > b->shared_cap) {
		free(b->shared);
		b->shared = aligned_alloc(128, (shared + 127) / 128 * 128);
		b->shared_cap = b->shared ? shared : 0;
		if (!b->shared)
			return -ENOMEM;
	}
	if (n <= b->cap)
		return 0;
	if (b->cap > 0)
		simt_fiber_destroy(b->fiber, b->cap, b->map);
	b->cap = 0;
	free(b->thread);
	free(b->fiber);
	free(b->warp);
	b->thread = calloc(n, sizeof(*b->thread));
	b->fiber = calloc(n, sizeof(*b->fiber));
	b->warp = calloc((n + GX_WARP - 1) / GX_WARP, sizeof(*b->warp));
	if (!b->thread || !b->fiber || !b->warp)
		return -ENOMEM;
	for (unsigned i = 0; i < n; i++)
		b->fiber[i] = &b->thread[i].fiber;
	if (simt_fiber_create(b->fiber, n, thread_main, &b->map) != 0)
		return -ENOMEM;
	b->cap = n;
	return 0;
}

void simt_block_free(struct simt_block *b)
{
	if (b->cap > 0)
		simt_fiber_destroy(b->fiber, b->cap, b->map);
	free(b->thread);
	free(b->fiber);
	free(b->warp);
	free(b->shared);
	memset(b, 0, sizeof(*b));
}

SIMT_RAW void simt_block_run(struct simt_block *b, unsigned block, unsigned blocks, unsigned threads)
{
	if (!b->main.stack)
		simt_fiber_adopt(&b->main);
	block_now = b;
	b->n = b->alive = threads;
	b->idle = 0;
	b->meet.arrived = 0;
	for (unsigned i = 0; i < threads; i++) {
		struct simt_warp *w = &b->warp[i / GX_WARP];

		b->thread[i].where =
			(struct simt_where){ .tid = i, .threads = threads, .block = block, .blocks = blocks };
		b->thread[i].state = SIMT_RUN;
		b->thread[i].acquired = 0;
		w->meet.arrived = 0;
		w->gone = w->polls = 0;
		w->lanes = i % GX_WARP + 1;
	}
	san_release(&b->start);
	thread_now = block_next(b, threads - 1);
	simt_fiber_switch(&b->main, &thread_now->fiber);
	san_acquire(&b->end);
	block_now = NULL;
}
