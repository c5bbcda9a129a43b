/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/reach.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/ht/maps.h"
#include "plugin/ht/own.h"
#include "util/clock.h"
#include "util/error.h"

/*
 * A kernel cannot wake a thread, so the thread polls. Requests come when a rank uses new memory, and then mostly all
 * ranks do: an allocation that is new here makes the naps short, and they double from there. They stay bounded, because
 * replayed graphs ask for mappings, and callers free memory, without any call of ours.
 */
#define NAP_MIN_NS 100000ull
#define NAP_MAX_NS 51200000ull
/* While the caller launches operations: each of them may be the first to need an allocation. */
#define NAP_BUSY_NS 1600000ull

struct ep_reach {
	struct ep_reach_ctx ctx;
	pid_t pid; /* a forked child has no service thread */
	struct ep_own *own;
	struct ep_maps *maps;

	pthread_t thread;
	pthread_mutex_t lock; /* all below */
	pthread_cond_t cond;
	bool stop, fresh;
	unsigned launched; /* the service thread's: the last launch it has noticed */
};

void ep_reach_place(struct ep_reach *reach, const void *ptr, size_t bytes, bool captured, struct ep_place *out)
{
	*out = (struct ep_place){ .address = (uint64_t)(uintptr_t)ptr };
	if (!reach || !ptr || !ep_own_place(reach->own, ptr, bytes, captured, out))
		return;
	pthread_mutex_lock(&reach->lock);
	reach->fresh = true;
	pthread_cond_signal(&reach->cond);
	pthread_mutex_unlock(&reach->lock);
}

/* ---- the service thread ---- */

static void nap(struct ep_reach *reach, uint64_t ns)
{
	struct timespec until = ep_timespec(ep_now_ns() + ns);

	pthread_cond_timedwait(&reach->cond, &reach->lock, &until);
}

static bool stopped(void *arg)
{
	struct ep_reach *reach = arg;
	bool stop;

	pthread_mutex_lock(&reach->lock);
	stop = reach->stop;
	pthread_mutex_unlock(&reach->lock);
	return stop;
}

/* The nap after one of ns. */
static uint64_t nap_next(struct ep_reach *reach, uint64_t ns, bool served)
{
	unsigned launched = reach->ctx.launched ? atomic_load(reach->ctx.launched) : 0;
	uint64_t most = launched == reach->launched ? NAP_MAX_NS : NAP_BUSY_NS;

	reach->launched = launched;
	return served || reach->fresh ? NAP_MIN_NS : ns * 2 < most ? ns * 2 : most;
}

static void *service(void *arg)
{
	struct ep_reach *reach = arg;
	uint64_t ns = NAP_MIN_NS;

	pthread_setname_np(pthread_self(), "ep-reach");
	while (!stopped(reach)) {
		unsigned n = ep_maps_serve(reach->maps, stopped, reach);

		ep_own_sweep(reach->own);
		ep_maps_tidy(reach->maps);
		pthread_mutex_lock(&reach->lock);
		ns = nap_next(reach, ns, n > 0);
		reach->fresh = false;
		if (!reach->stop)
			nap(reach, ns);
		pthread_mutex_unlock(&reach->lock);
	}
	return NULL;
}

/* ---- life ---- */

static bool needed(const struct ep_reach_ctx *ctx)
{
	bool any = false;

	for (int r = 0; r < ctx->topo->nranks; r++)
		any |= ep_maps_peer(ctx->topo, ctx->rank, (uint32_t)r);
	return any;
}

static int sync_init(struct ep_reach *reach)
{
	pthread_condattr_t attr;
	int rc = pthread_condattr_init(&attr);

	if (rc)
		return -rc;
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	rc = pthread_cond_init(&reach->cond, &attr);
	pthread_condattr_destroy(&attr);
	if (rc)
		return -rc;
	rc = pthread_mutex_init(&reach->lock, NULL);
	if (rc)
		pthread_cond_destroy(&reach->cond);
	return -rc;
}

/* Signals are for the program's own threads. The stack keeps its default size: the driver needs it. */
static int thread_start(struct ep_reach *reach)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&reach->thread, NULL, service, reach);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc ? EP_FAIL(EP_GROUP, rc, "rank %d: cannot start the thread that maps other ranks' tensors: %s",
			    reach->ctx.rank, strerror(rc))
		  : 0;
}

static struct ep_reach *reach_new(const struct ep_reach_ctx *ctx)
{
	struct ep_reach *reach = EP_CALLOC(EP_GROUP, 1, sizeof(*reach), "mappings of other ranks' tensors");

	if (!reach)
		return NULL;
	if (sync_init(reach)) {
		EP_FAIL(EP_GROUP, ENOMEM, "rank %d: cannot make the lock of other ranks' mappings", ctx->rank);
		free(reach);
		return NULL;
	}
	reach->ctx = *ctx;
	reach->pid = getpid();
	return reach;
}

static void reach_drop(struct ep_reach *reach)
{
	ep_own_free(reach->own);
	pthread_cond_destroy(&reach->cond);
	pthread_mutex_destroy(&reach->lock);
	free(reach);
}

int ep_reach_open(const struct ep_reach_ctx *ctx, struct ep_reach **out)
{
	struct ep_reach *reach;
	int rc;

	if (!needed(ctx)) {
		*out = NULL;
		return 0;
	}
	reach = reach_new(ctx);
	if (!reach)
		return -ENOMEM;
	if ((rc = ep_own_open(ctx, &reach->own)) || (rc = ep_maps_open(ctx, &reach->maps)) ||
	    (rc = thread_start(reach))) {
		ep_own_close(reach->own);
		ep_maps_free(reach->maps);
		reach_drop(reach);
		return rc;
	}
	*out = reach;
	return 0;
}

void ep_reach_close(struct ep_reach *reach)
{
	if (!reach || reach->pid != getpid())
		return;
	pthread_mutex_lock(&reach->lock);
	reach->stop = true;
	pthread_cond_signal(&reach->cond);
	pthread_mutex_unlock(&reach->lock);
	pthread_join(reach->thread, NULL);
	ep_own_close(reach->own);
}

void ep_reach_abandon(struct ep_reach *reach)
{
	/* In a forked child the parent's thread still counts as a waiter: pthread_cond_destroy would never return. */
	if (!reach || reach->pid != getpid())
		return;
	ep_maps_abandon(reach->maps);
	reach_drop(reach);
}

void ep_reach_free(struct ep_reach *reach)
{
	if (!reach)
		return;
	ep_maps_free(reach->maps);
	if (reach->pid == getpid())
		reach_drop(reach);
}

uint32_t ep_reach_version(const struct ep_reach *reach)
{
	return reach ? ep_maps_version(reach->maps) : 0;
}

struct ep_reach_table *ep_reach_device(const struct ep_reach *reach)
{
	return reach ? ep_maps_device(reach->maps) : NULL;
}

void ep_reach_counts(const struct ep_reach *reach, struct ep_reach_counts *out)
{
	struct ep_maps_counts maps = { 0 };

	if (reach)
		ep_maps_counts(reach->maps, &maps);
	*out = (struct ep_reach_counts){ .mappings = maps.now,
					 .peak = maps.peak,
					 .ended = maps.ended,
					 .refused = maps.refused,
					 .evicted = reach ? ep_own_evicted(reach->own) : 0 };
}
