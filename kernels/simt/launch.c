/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches. Each launching thread keeps its own worker threads (a crew), one per block, for its lifetime: the lock of a
 * shared pool would order the launching threads' memory and so hide races between ranks from TSan.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/simt/block.h"
#include "kernels/simt/simt.h"
#include "util/error.h"

const struct gx_host_shape gx_host_shape = { .warp = GX_WARP, .sms = 4, .shared_max = 1 << 18 };

struct worker {
	struct crew *crew;
	unsigned index;
	pthread_t thread;
	uint64_t seen; /* number of the last launch it has seen */
	struct simt_block block;
};

struct crew {
	pid_t pid; /* a forked child has the memory but not the threads */
	pthread_mutex_t lock;
	pthread_cond_t wake, done;
	struct worker **worker;
	unsigned workers;
	bool stop;
	uint64_t launch;
	unsigned grid, threads, resident;
	unsigned running, left;
	atomic_uint started;
};

static pthread_key_t crew_key;
static pthread_once_t crew_once = PTHREAD_ONCE_INIT;
static _Thread_local struct crew *crew_now;

/* Relaxed atomics for the same reason: a lock would order the ranks that launch. */
static _Atomic uint64_t option_seed;
static atomic_uint option_resident;
static void (*_Atomic option_report)(const char *message);

void simt_configure(const struct simt_options *options)
{
	atomic_store_explicit(&option_seed, options->seed, memory_order_relaxed);
	atomic_store_explicit(&option_resident, options->resident, memory_order_relaxed);
	atomic_store_explicit(&option_report, options->report, memory_order_relaxed);
}

/* Waits until this block may run in the next launch that includes it; false: the crew is dismissed. */
static bool worker_next(struct worker *w)
{
	struct crew *c = w->crew;

	while (!c->stop) {
		if (w->seen == c->launch || w->index >= c->grid)
			w->seen = c->launch;
		else if (c->running < c->resident)
			return true;
		pthread_cond_wait(&c->wake, &c->lock);
	}
	return false;
}

/*
 * Concurrent blocks start together: if a block took the lock after another had ended, that block's memory accesses
 * would be ordered before its own, and TSan would miss races between the two (it did, in one launch of six). Relaxed,
 * because the start must not order memory either.
 */
static void worker_together(struct crew *c)
{
	atomic_fetch_add_explicit(&c->started, 1, memory_order_relaxed);
	if (c->resident < c->grid)
		return;
	while (atomic_load_explicit(&c->started, memory_order_relaxed) < c->grid)
		sched_yield();
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct crew *c = w->crew;

	pthread_mutex_lock(&c->lock);
	while (worker_next(w)) {
		w->seen = c->launch;
		c->running++;
		pthread_mutex_unlock(&c->lock);
		worker_together(c);
		simt_block_run(&w->block, w->index, c->grid, c->threads);
		pthread_mutex_lock(&c->lock);
		c->running--;
		if (--c->left == 0)
			pthread_cond_signal(&c->done);
		pthread_cond_broadcast(&c->wake);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static void crew_dismiss(void *arg)
{
	struct crew *c = arg;

	if (c->pid != getpid())
		return;
	pthread_mutex_lock(&c->lock);
	c->stop = true;
	pthread_cond_broadcast(&c->wake);
	pthread_mutex_unlock(&c->lock);
	for (unsigned i = 0; i < c->workers; i++) {
		pthread_join(c->worker[i]->thread, NULL);
		simt_block_free(&c->worker[i]->block);
		free(c->worker[i]);
	}
	free(c->worker);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->wake);
	pthread_cond_destroy(&c->done);
	free(c);
}

static void crew_key_make(void)
{
	pthread_key_create(&crew_key, crew_dismiss);
}

static struct crew *crew_get(void)
{
	struct crew *c = crew_now;

	if (c && c->pid == getpid())
		return c;
	pthread_once(&crew_once, crew_key_make);
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->pid = getpid();
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->wake, NULL);
	pthread_cond_init(&c->done, NULL);
	crew_now = c;
	pthread_setspecific(crew_key, c);
	return c;
}

/* Between launches, when only this thread accesses the crew's list. */
static int crew_grow(struct crew *c, unsigned grid)
{
	struct worker **list = realloc(c->worker, grid * sizeof(*list));

	if (!list)
		return -ENOMEM;
	c->worker = list;
	while (c->workers < grid) {
		struct worker *w = calloc(1, sizeof(*w));

		if (!w)
			return -ENOMEM;
		w->crew = c;
		w->index = c->workers;
		w->seen = c->launch;
		if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
			free(w);
			return -EAGAIN;
		}
		c->worker[c->workers++] = w;
	}
	return 0;
}

static int crew_prepare(struct crew *c, unsigned grid, unsigned block, size_t shared)
{
	uint64_t seed = atomic_load_explicit(&option_seed, memory_order_relaxed);
	int rc = grid > c->workers ? crew_grow(c, grid) : 0;

	for (unsigned i = 0; i < grid && rc == 0; i++) {
		struct simt_block *b = &c->worker[i]->block;

		rc = simt_block_reserve(b, block, shared);
		b->report = atomic_load_explicit(&option_report, memory_order_relaxed);
		/* Odd, hence never 0, which means in order. */
		b->random = seed ? (seed * 1000003 + c->launch * 8191 + i) * 2 + 1 : 0;
	}
	return rc;
}

int gx_host_launch(gx_host_fn fn, const void *args, unsigned grid, unsigned block, size_t shared)
{
	unsigned resident = atomic_load_explicit(&option_resident, memory_order_relaxed);
	struct crew *c = crew_get();
	int rc = c ? crew_prepare(c, grid, block, shared) : -ENOMEM;

	if (rc != 0)
		return EP_FAIL(EP_DEV, -rc, "out of resources for %u emulated blocks of %u threads", grid, block);
	pthread_mutex_lock(&c->lock);
	for (unsigned i = 0; i < grid; i++) {
		c->worker[i]->block.fn = fn;
		c->worker[i]->block.args = args;
	}
	c->grid = c->left = grid;
	c->threads = block;
	c->resident = resident ? resident : grid;
	c->launch++;
	atomic_store_explicit(&c->started, 0, memory_order_relaxed);
	pthread_cond_broadcast(&c->wake);
	while (c->left > 0)
		pthread_cond_wait(&c->done, &c->lock);
	pthread_mutex_unlock(&c->lock);
	return 0;
}
