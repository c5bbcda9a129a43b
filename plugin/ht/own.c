/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/own.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"

/* A check costs a driver call or two; all slots are checked within a second. */
#define SWEEP 16u
#define SWEEP_NS 40000000ull
/* Offers are replaced no faster: each costs every rank a mapping, and with more tensors in use than slots an offer
 * would be gone before it was used. */
#define EVICT_NS 10000000ull
/* Descriptors on offer: a quarter of what the process may have, within these. */
#define FDS_MIN 64u
#define FDS_MAX 2048u

/* An allocation of the caller; id 0: none. */
struct slot {
	uint64_t id;
	struct ep_buffer at;
	uint64_t used; /* by the clock of uses */
	bool offered;  /* else it is known not to be exportable */
	bool captured; /* replays use the id unseen: it stays as long as the memory */
};

struct ep_own {
	struct ep_reach_ctx ctx;
	struct ep_dev *host; /* its windows are plain shared memory */
	struct ep_mem mem;   /* struct ep_board */

	uint64_t swept_ns;    /* the service thread's */
	pthread_mutex_t lock; /* all below */
	struct slot slot[EP_REACH_SLOTS];
	unsigned sweep;
	uint64_t uses, generation;
	uint64_t evicted, evicted_ns;
	unsigned fds, fds_max;
	bool said_full, said_private;
};

/* ---- allocations: by the device, else by the library that owns the communicator ---- */

/* Plain host memory cannot be opened by other processes; what the stand-in's ncclMemAlloc returns is a file. */
static int buffer_find(const struct ep_own *own, const void *ptr, size_t bytes, struct ep_buffer *out)
{
	struct ep_dev *dev = own->ctx.dev;

	if (dev->ops->knows_buffers)
		return dev->ops->buffer_id(dev, ptr, bytes, out);
	if (!own->ctx.calls->mem_find || !own->ctx.calls->mem_export)
		return -ENOENT;
	out->pieces = 1;
	return own->ctx.calls->mem_find(ptr, &out->base, &out->size, &out->id);
}

static int buffer_export(const struct ep_own *own, const struct ep_buffer *at, uint32_t piece, struct ep_export *out,
			 int *fd)
{
	struct ep_dev *dev = own->ctx.dev;
	uint64_t offset, size;
	int rc;

	if (dev->ops->knows_buffers)
		return dev->ops->user_export(dev, at, piece, out, fd);
	rc = own->ctx.calls->mem_export(at->base, fd, &offset, &size);
	if (!rc)
		*out = (struct ep_export){ .share = EP_SHARE_FD, .kind = dev->ops->kind, .size = size };
	return rc;
}

static bool buffer_same(const struct ep_buffer *a, const struct ep_buffer *b)
{
	return a->id == b->id && a->base == b->base && a->size == b->size;
}

static bool buffer_overlaps(const struct ep_buffer *a, const struct ep_buffer *b)
{
	uintptr_t one = (uintptr_t)a->base, other = (uintptr_t)b->base;

	return one < other + b->size && other < one + a->size;
}

/* ---- offers, under the lock ---- */

static void board_set(struct ep_own *own, const struct slot *slot, uint64_t id)
{
	struct ep_board *board = own->mem.ptr;

	__atomic_store_n(&board->live[slot - own->slot], id, __ATOMIC_RELAXED);
	/* B1: pairs with the acquire in plugin/ht/maps.c. */
	__atomic_fetch_add(&board->changes, 1, __ATOMIC_RELEASE);
}

static void slot_drop(struct ep_own *own, struct slot *slot)
{
	EP_TRACE(EP_GROUP, "rank %d: withdraws allocation %#llx at %p", own->ctx.rank, (unsigned long long)slot->id,
		 slot->at.base);
	if (slot->offered) {
		board_set(own, slot, 0);
		for (uint32_t i = 0; i < slot->at.pieces; i++)
			ep_boot_note_withdraw(own->ctx.boot, ep_offer_key(slot->id, i));
		ep_boot_ptr_withdraw(own->ctx.boot, ep_pointer_key(slot->id));
		own->fds -= slot->at.pieces;
	}
	*slot = (struct slot){ 0 };
}

/* Whether the caller has freed it. */
static bool slot_gone(const struct ep_own *own, const struct slot *slot)
{
	struct ep_buffer now;

	return buffer_find(own, slot->at.base, slot->at.size, &now) || !buffer_same(&now, &slot->at);
}

static int piece_offer(struct ep_own *own, uint64_t id, const struct ep_buffer *at, uint32_t piece)
{
	struct ep_offer note = { .pieces = at->pieces };
	int fd = -1, rc = buffer_export(own, at, piece, &note.export, &fd);

	if (!rc)
		rc = ep_boot_note_offer(own->ctx.boot, ep_offer_key(id, piece), &note, sizeof(note), fd);
	if (fd >= 0)
		close(fd);
	return rc;
}

/* The offer is there before anybody can read the id: the kernel that publishes it is launched later. */
static void slot_offer(struct ep_own *own, struct slot *slot)
{
	uint32_t done = 0;
	int rc = 0;

	while (done < slot->at.pieces && !(rc = piece_offer(own, slot->id, &slot->at, done)))
		done++;
	if (!rc)
		rc = ep_boot_ptr_offer(own->ctx.boot, ep_pointer_key(slot->id), slot->at.base, slot->at.size);
	slot->offered = !rc;
	if (!rc) {
		own->fds += slot->at.pieces;
		board_set(own, slot, slot->id);
		return;
	}
	while (done)
		ep_boot_note_withdraw(own->ctx.boot, ep_offer_key(slot->id, --done));
	if (!own->said_private)
		EP_INFO(EP_GROUP,
			"rank %d: %zu bytes at %p cannot be shared with other processes (%s): such tensors are staged "
			"through the window, at lower speed. Allocate them by cudaMalloc, ncclMemAlloc or torch's "
			"native allocator; expandable segments need torch 2.5 or later",
			own->ctx.rank, slot->at.size, slot->at.base, strerror(-rc));
	own->said_private = true;
}

static struct slot *slot_oldest(struct ep_own *own)
{
	struct slot *oldest = NULL;

	for (struct slot *s = own->slot; s < own->slot + EP_REACH_SLOTS; s++)
		if (s->id && !s->captured && (!oldest || s->used < oldest->used))
			oldest = s;
	return oldest;
}

/* Ends the offer unused for longest, unless another one ended just now. */
static bool slot_evict(struct ep_own *own)
{
	struct slot *oldest = slot_oldest(own);
	uint64_t now = ep_now_ns();

	if (!oldest || (now - own->evicted_ns < EVICT_NS && !slot_gone(own, oldest)))
		return false;
	slot_drop(own, oldest);
	own->evicted_ns = now;
	own->evicted++;
	return true;
}

/* What lies where the new allocation is was freed before. */
static struct slot *slot_free(struct ep_own *own, const struct ep_buffer *at)
{
	struct slot *free = NULL;

	for (struct slot *s = own->slot; s < own->slot + EP_REACH_SLOTS; s++) {
		if (s->id && buffer_overlaps(&s->at, at) && slot_gone(own, s))
			slot_drop(own, s);
		if (!s->id && !free)
			free = s;
	}
	return free;
}

static struct slot *slot_add(struct ep_own *own, const struct ep_buffer *at)
{
	struct slot *slot = slot_free(own, at);
	bool room = at->pieces <= own->fds_max;

	while (room && (!slot || own->fds + at->pieces > own->fds_max) && (room = slot_evict(own)))
		slot = slot_free(own, at);
	if (room && slot) {
		*slot = (struct slot){ .id = ++own->generation * EP_REACH_SLOTS + (uint64_t)(slot - own->slot),
				       .at = *at };
		slot_offer(own, slot);
		EP_TRACE(EP_GROUP, "rank %d: %s allocation %#llx: %zu bytes at %p in %u pieces", own->ctx.rank,
			 slot->offered ? "offers" : "cannot offer", (unsigned long long)slot->id, at->size, at->base,
			 at->pieces);
		return slot;
	}
	if (!own->said_full)
		EP_INFO(EP_GROUP,
			"rank %d: its tensors lie in more than %u allocations or %u pieces: staging some through the "
			"window for other processes; a higher limit of open files (ulimit -n) allows more pieces",
			own->ctx.rank, EP_REACH_SLOTS, own->fds_max);
	own->said_full = true;
	return NULL;
}

static struct slot *slot_find(struct ep_own *own, const struct ep_buffer *at)
{
	for (struct slot *s = own->slot; s < own->slot + EP_REACH_SLOTS; s++)
		if (s->id && buffer_same(&s->at, at))
			return s;
	return NULL;
}

bool ep_own_place(struct ep_own *own, const void *ptr, size_t bytes, bool captured, struct ep_place *out)
{
	struct ep_buffer at;
	struct slot *slot;
	bool fresh;

	if (buffer_find(own, ptr, bytes, &at) || !at.id)
		return false;
	pthread_mutex_lock(&own->lock);
	slot = slot_find(own, &at);
	fresh = !slot && (slot = slot_add(own, &at)) && slot->offered;
	if (slot) {
		slot->used = ++own->uses;
		slot->captured |= captured;
	}
	if (slot && slot->offered) {
		out->id = slot->id;
		out->offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)at.base);
	}
	pthread_mutex_unlock(&own->lock);
	return fresh;
}

void ep_own_sweep(struct ep_own *own)
{
	uint64_t now = ep_now_ns();

	if (now - own->swept_ns < SWEEP_NS)
		return;
	own->swept_ns = now;
	pthread_mutex_lock(&own->lock);
	for (unsigned n = 0, checked = 0; n < EP_REACH_SLOTS && checked < SWEEP; n++) {
		struct slot *slot = &own->slot[own->sweep++ % EP_REACH_SLOTS];

		checked += slot->id != 0;
		if (slot->id && slot_gone(own, slot))
			slot_drop(own, slot);
	}
	pthread_mutex_unlock(&own->lock);
}

uint64_t ep_own_evicted(struct ep_own *own)
{
	uint64_t n;

	pthread_mutex_lock(&own->lock);
	n = own->evicted;
	pthread_mutex_unlock(&own->lock);
	return n;
}

/* ---- life ---- */

static int board_offer(struct ep_own *own)
{
	struct ep_export export;
	int fd = -1, rc = own->host->ops->mem_alloc(own->host, sizeof(struct ep_board), &own->mem);

	if (!rc)
		rc = own->host->ops->mem_export(own->host, &own->mem, &export, &fd);
	if (!rc)
		rc = ep_boot_note_offer(own->ctx.boot, EP_BOARD_KEY, &export, sizeof(export), fd);
	if (fd >= 0)
		close(fd);
	return rc;
}

static unsigned fds_limit(void)
{
	struct rlimit limit;
	rlim_t n = getrlimit(RLIMIT_NOFILE, &limit) ? 0 : limit.rlim_cur / 4;

	return n < FDS_MIN ? FDS_MIN : n < FDS_MAX ? (unsigned)n : FDS_MAX;
}

int ep_own_open(const struct ep_reach_ctx *ctx, struct ep_own **out)
{
	struct ep_own *own = EP_CALLOC(EP_GROUP, 1, sizeof(*own), "this rank's shared allocations");
	int rc;

	if (!own)
		return -ENOMEM;
	own->ctx = *ctx;
	own->fds_max = fds_limit();
	pthread_mutex_init(&own->lock, NULL);
	rc = ep_dev_row(EP_DEV_HOST)->open(0, &own->host);
	if (!rc)
		rc = board_offer(own);
	if (rc) {
		ep_own_free(own);
		return rc;
	}
	*out = own;
	return 0;
}

void ep_own_close(struct ep_own *own)
{
	if (!own)
		return;
	for (struct slot *s = own->slot; s < own->slot + EP_REACH_SLOTS; s++)
		if (s->id)
			slot_drop(own, s);
	ep_boot_note_withdraw(own->ctx.boot, EP_BOARD_KEY);
}

void ep_own_free(struct ep_own *own)
{
	if (!own)
		return;
	if (own->mem.ptr)
		own->host->ops->mem_free(own->host, &own->mem);
	if (own->host)
		own->host->ops->close(own->host);
	pthread_mutex_destroy(&own->lock);
	free(own);
}
