/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/reach.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"

/*
 * A kernel cannot wake a thread, so the thread polls. Requests come when a rank uses new memory, and then mostly all
 * ranks do: an allocation that is new here makes the naps short, and they double from there. They stay bounded, because
 * replayed graphs ask for mappings without any API call.
 */
#define NAP_MIN_NS 100000ull
#define NAP_MAX_NS 51200000ull
/* Of one request to an owner; ep_reach_close may have to wait as long. */
#define FETCH_MS 2000
/* Each holds a descriptor. Torch's allocator has tens of segments, not hundreds. */
#define OWN_MAX 256u
/* Old allocations checked per new one: a check costs a driver call or two. */
#define SWEEP 8u
#define REFUSED_MAX 256u

/* An allocation of this rank's caller. */
struct own {
	uint64_t id;
	void *base;
	bool offered; /* else it is known not to be exportable */
};

struct want {
	uint64_t id;
	uint32_t owner;
};

struct ep_reach {
	struct ep_reach_ctx ctx;
	pid_t pid; /* a forked child has no service thread */
	struct ep_pinned mem;

	pthread_t thread;
	pthread_mutex_t lock; /* all down to sweep */
	pthread_cond_t cond;
	bool stop, fresh;
	bool full; /* has been logged */
	struct own own[OWN_MAX];
	unsigned owned, sweep;

	/* The service thread's alone. */
	struct ep_mem import[EP_REACH_ENTRIES];
	unsigned imported;
	struct want refused[REFUSED_MAX];
	unsigned refusals;
};

/* ---- allocations: by the device, else by the library that owns the communicator ---- */

/* Plain host memory cannot be opened by other processes; what the stand-in's ncclMemAlloc returns is a file. */
static int buffer_find(const struct ep_reach *reach, const void *ptr, struct ep_buffer *out)
{
	struct ep_dev *dev = reach->ctx.dev;

	if (dev->ops->knows_buffers)
		return dev->ops->buffer_id(dev, ptr, out);
	if (!reach->ctx.calls->mem_find || !reach->ctx.calls->mem_export)
		return -ENOENT;
	return reach->ctx.calls->mem_find(ptr, &out->base, &out->size, &out->id);
}

static int buffer_export(const struct ep_reach *reach, const struct ep_buffer *user, struct ep_export *out, int *fd)
{
	struct ep_dev *dev = reach->ctx.dev;
	uint64_t offset, size;
	int rc;

	if (dev->ops->knows_buffers)
		return dev->ops->user_export(dev, user, out, fd);
	rc = reach->ctx.calls->mem_export(user->base, fd, &offset, &size);
	if (!rc)
		*out = (struct ep_export){ .share = EP_SHARE_FD, .kind = dev->ops->kind, .size = size };
	return rc;
}

/* ---- the owner's side ---- */

static void own_drop(struct ep_reach *reach, unsigned i)
{
	if (reach->own[i].offered)
		ep_boot_note_withdraw(reach->ctx.boot, reach->own[i].id);
	reach->own[i] = reach->own[--reach->owned];
}

/* Drops what the caller has freed, and with it the memory that the offered descriptor still holds. */
static void own_sweep(struct ep_reach *reach)
{
	struct ep_buffer now;

	for (unsigned n = 0; n < SWEEP && n < reach->owned; n++) {
		unsigned i = reach->sweep++ % reach->owned;

		if (buffer_find(reach, reach->own[i].base, &now) || now.id != reach->own[i].id)
			own_drop(reach, i);
	}
}

/* The offer is there before anybody can read the id: the kernel that publishes it is launched later. */
static bool own_offer(struct ep_reach *reach, const struct ep_buffer *user)
{
	struct ep_export export;
	int fd = -1, rc = buffer_export(reach, user, &export, &fd);

	if (!rc)
		rc = ep_boot_note_offer(reach->ctx.boot, user->id, &export, sizeof(export), fd);
	if (fd >= 0)
		close(fd);
	return !rc;
}

static struct own *own_add(struct ep_reach *reach, const struct ep_buffer *user)
{
	struct own *own;

	own_sweep(reach);
	if (reach->owned == OWN_MAX) {
		if (!reach->full)
			EP_INFO(EP_GROUP,
				"rank %d: its tensors lie in more than %u allocations: staging the rest through the "
				"window for other processes",
				reach->ctx.rank, OWN_MAX);
		reach->full = true;
		return NULL;
	}
	own = &reach->own[reach->owned++];
	*own = (struct own){ .id = user->id, .base = user->base, .offered = own_offer(reach, user) };
	reach->fresh = true;
	pthread_cond_signal(&reach->cond);
	return own;
}

static bool own_offered(struct ep_reach *reach, const struct ep_buffer *user)
{
	const struct own *own = NULL;
	bool offered;

	pthread_mutex_lock(&reach->lock);
	for (unsigned i = 0; i < reach->owned && !own; i++)
		if (reach->own[i].id == user->id)
			own = &reach->own[i];
	if (!own)
		own = own_add(reach, user);
	offered = own && own->offered;
	pthread_mutex_unlock(&reach->lock);
	return offered;
}

void ep_reach_place(struct ep_reach *reach, const void *ptr, struct ep_place *out)
{
	struct ep_place place = { .address = (uint64_t)(uintptr_t)ptr };
	struct ep_buffer user;

	if (reach && ptr && !buffer_find(reach, ptr, &user) && user.id && own_offered(reach, &user)) {
		place.id = user.id;
		place.offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)user.base);
	}
	*out = place;
}

/* ---- the reader's side: the service thread ---- */

static bool peer_maps(const struct ep_topo *topo, int rank, uint32_t owner)
{
	const struct ep_topo_rank *me = &topo->rank[rank], *other;

	if (owner >= (uint32_t)topo->nranks)
		return false;
	other = &topo->rank[owner];
	return other->node == me->node && other->pid_rank != me->pid_rank && other->dev.kind == me->dev.kind &&
	       !other->apart;
}

static bool want_settled(const struct ep_reach *reach, const struct want *want)
{
	const struct ep_reach_table *table = reach->mem.host;
	unsigned refused = reach->refusals < REFUSED_MAX ? reach->refusals : REFUSED_MAX;

	for (unsigned i = 0; i < reach->imported; i++)
		if (table->entry[i].id == want->id && table->entry[i].owner == want->owner)
			return true;
	for (unsigned i = 0; i < refused; i++)
		if (reach->refused[i].id == want->id && reach->refused[i].owner == want->owner)
			return true;
	return false;
}

static void want_refuse(struct ep_reach *reach, const struct want *want, const char *why)
{
	EP_INFO(EP_GROUP, "rank %d: not mapping allocation %#llx of rank %u: %s; staging its rows through the window",
		reach->ctx.rank, (unsigned long long)want->id, want->owner, why);
	reach->refused[reach->refusals++ % REFUSED_MAX] = *want;
}

static int want_map(struct ep_reach *reach, const struct want *want, struct ep_mem *out)
{
	struct ep_export export;
	int fd, rc;

	rc = ep_boot_note_fetch(reach->ctx.boot, &reach->ctx.topo->rank[want->owner].fds, want->id,
				ep_deadline_ms(FETCH_MS), &export, sizeof(export), &fd);
	if (rc)
		return rc;
	rc = reach->ctx.dev->ops->mem_import(reach->ctx.dev, &export, fd, out);
	if (fd >= 0)
		close(fd);
	return rc;
}

static void want_add(struct ep_reach *reach, const struct want *want, const struct ep_mem *mem)
{
	struct ep_reach_table *table = reach->mem.host;
	struct ep_reach_entry *entry = &table->entry[reach->imported];

	reach->import[reach->imported++] = *mem;
	entry->id = want->id;
	entry->base = (uint64_t)(uintptr_t)mem->ptr;
	entry->size = mem->size;
	entry->owner = want->owner;
	/* T1: pairs with the kernels' acquire of count: who sees it sees the entry and the mapping. */
	__atomic_store_n(&table->count, reach->imported, __ATOMIC_RELEASE);
}

static void want_serve(struct ep_reach *reach, const struct want *want)
{
	struct ep_mem mem = { .ptr = NULL };
	int rc;

	if (want_settled(reach, want))
		return;
	if (!peer_maps(reach->ctx.topo, reach->ctx.rank, want->owner)) {
		want_refuse(reach, want, "its owner is no rank of another process on this node");
	} else if (reach->imported == EP_REACH_ENTRIES) {
		want_refuse(reach, want, "the table is full");
	} else if (!(rc = want_map(reach, want, &mem))) {
		want_add(reach, want, &mem);
		EP_INFO(EP_GROUP, "rank %d: mapped allocation %#llx of rank %u, %zu bytes", reach->ctx.rank,
			(unsigned long long)want->id, want->owner, mem.size);
	} else if (rc != -ETIMEDOUT) { /* an owner that was only slow is asked again at the next request */
		want_refuse(reach, want, rc == -ENOENT ? "not offered by its owner" : strerror(-rc));
	}
}

/* Returns how many there were. */
static unsigned wants_take(struct ep_reach *reach, struct want *out)
{
	struct ep_reach_table *table = reach->mem.host;
	unsigned n = 0;

	for (unsigned i = 0; i < EP_REACH_WANTED; i++) {
		struct ep_reach_want *slot = &table->wanted[i];
		/* T2: pairs with the kernels' release of id: the owner beside it is the one it was written with. */
		uint64_t id = __atomic_load_n(&slot->id, __ATOMIC_ACQUIRE);

		if (!id)
			continue;
		out[n++] = (struct want){ .id = id, .owner = __atomic_load_n(&slot->owner, __ATOMIC_RELAXED) };
		/* T3: release, so that the owner is read before the slot may be written again. */
		__atomic_store_n(&slot->id, 0, __ATOMIC_RELEASE);
	}
	return n;
}

static void nap(struct ep_reach *reach, uint64_t ns)
{
	struct timespec until = ep_timespec(ep_now_ns() + ns);

	pthread_cond_timedwait(&reach->cond, &reach->lock, &until);
}

static bool stopped(struct ep_reach *reach)
{
	bool stop;

	pthread_mutex_lock(&reach->lock);
	stop = reach->stop;
	pthread_mutex_unlock(&reach->lock);
	return stop;
}

static void *service(void *arg)
{
	struct ep_reach *reach = arg;
	struct want want[EP_REACH_WANTED];
	uint64_t ns = NAP_MIN_NS;

	pthread_setname_np(pthread_self(), "ep-reach");
	while (!stopped(reach)) {
		unsigned n = wants_take(reach, want);

		for (unsigned i = 0; i < n && !stopped(reach); i++)
			want_serve(reach, &want[i]);
		pthread_mutex_lock(&reach->lock);
		ns = n || reach->fresh ? NAP_MIN_NS : ns * 2 < NAP_MAX_NS ? ns * 2 : NAP_MAX_NS;
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
		any |= peer_maps(ctx->topo, ctx->rank, (uint32_t)r);
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
	rc = reach->ctx.dev->ops->pinned_alloc(reach->ctx.dev, sizeof(struct ep_reach_table), &reach->mem);
	if (rc)
		goto abandon;
	rc = thread_start(reach);
	if (rc)
		goto free_table;
	*out = reach;
	return 0;
free_table:
	reach->ctx.dev->ops->pinned_free(reach->ctx.dev, &reach->mem);
abandon:
	ep_reach_abandon(reach);
	return rc;
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
	while (reach->owned)
		own_drop(reach, reach->owned - 1);
}

void ep_reach_abandon(struct ep_reach *reach)
{
	/* In a forked child the parent's thread still counts as a waiter: pthread_cond_destroy would never return. */
	if (!reach || reach->pid != getpid())
		return;
	pthread_cond_destroy(&reach->cond);
	pthread_mutex_destroy(&reach->lock);
	free(reach);
}

void ep_reach_free(struct ep_reach *reach)
{
	if (!reach)
		return;
	for (unsigned i = 0; i < reach->imported; i++)
		reach->ctx.dev->ops->mem_free(reach->ctx.dev, &reach->import[i]);
	reach->ctx.dev->ops->pinned_free(reach->ctx.dev, &reach->mem);
	ep_reach_abandon(reach);
}

uint32_t ep_reach_count(const struct ep_reach *reach)
{
	const struct ep_reach_table *table = reach ? reach->mem.host : NULL;

	return table ? __atomic_load_n(&table->count, __ATOMIC_ACQUIRE) : 0; /* T1 */
}

struct ep_reach_table *ep_reach_device(const struct ep_reach *reach)
{
	return reach ? reach->mem.dev : NULL;
}
