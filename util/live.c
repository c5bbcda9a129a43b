/* SPDX-License-Identifier: Apache-2.0 */
#include "util/live.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "util/error.h"

#define FIRST_ROOM 64u
#define HELD ((uintptr_t)8)  /* malloc aligns to 16: three bits of kind below it */
#define EMPTY ((uintptr_t)0) /* ends a search */
#define GONE HELD	     /* of no address: may be used again, but a search continues */

/* Open addressing, at most half full. A table that became too small stays: a lookup may be in it. They double, so all
 * together are as large as the last. */
struct table {
	struct table *former;
	size_t room; /* a power of two */
	_Atomic uintptr_t slot[];
};

/* Process-wide, as the addresses are. */
static struct {
	pthread_mutex_t lock; /* of everything that writes */
	_Atomic(struct table *) table;
	size_t used;
} live = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uintptr_t word_of(enum ep_live_kind kind, const void *ptr)
{
	return (uintptr_t)ptr | kind;
}

/* The slot that has the word; NULL if none does. */
static _Atomic uintptr_t *find(struct table *table, uintptr_t word)
{
	/* Fibonacci hashing, without the bits of kind and HELD. */
	size_t at = (size_t)((word >> 4) * 0x9e3779b97f4a7c15ull >> 20);

	for (size_t i = 0; table && i < table->room; i++) {
		_Atomic uintptr_t *slot = &table->slot[(at + i) & (table->room - 1)];
		/* Relaxed: the caller got the address from whoever added it, and so knows of it. */
		uintptr_t seen = atomic_load_explicit(slot, memory_order_relaxed);

		if (seen == word)
			return slot;
		if (seen == EMPTY)
			return NULL;
	}
	return NULL;
}

/* With the lock; there is room. */
static void put(struct table *table, uintptr_t word)
{
	size_t at = (size_t)((word >> 4) * 0x9e3779b97f4a7c15ull >> 20);

	for (;; at++) {
		_Atomic uintptr_t *slot = &table->slot[at & (table->room - 1)];

		if (atomic_load_explicit(slot, memory_order_relaxed) <= GONE) {
			atomic_store_explicit(slot, word, memory_order_relaxed);
			return;
		}
	}
}

static struct table *table_now(void)
{
	/* A1: pairs with R1 in grow: a table that is seen has its room and slots. */
	return atomic_load_explicit(&live.table, memory_order_acquire);
}

/* With the lock. */
static int grow(void)
{
	struct table *old = table_now(), *made;
	size_t room = old ? 2 * old->room : FIRST_ROOM;

	made = EP_CALLOC(EP_INIT, 1, sizeof(*made) + room * sizeof(made->slot[0]), "the list of live objects");
	if (!made)
		return -ENOMEM;
	made->room = room;
	made->former = old;
	for (size_t i = 0; old && i < old->room; i++) {
		uintptr_t word = atomic_load_explicit(&old->slot[i], memory_order_relaxed);

		if (word > GONE)
			put(made, word);
	}
	atomic_store_explicit(&live.table, made, memory_order_release); /* R1 */
	return 0;
}

int ep_live_add(enum ep_live_kind kind, const void *ptr)
{
	struct table *table;
	int rc = 0;

	pthread_mutex_lock(&live.lock);
	table = table_now();
	if (!table || 2 * (live.used + 1) > table->room)
		rc = grow();
	if (!rc) {
		put(table_now(), word_of(kind, ptr));
		live.used++;
	}
	pthread_mutex_unlock(&live.lock);
	return rc;
}

/* Other addresses could be taken for one with a kind. */
static bool aligned(const void *ptr)
{
	return ((uintptr_t)ptr & 15) == 0;
}

bool ep_live_has(enum ep_live_kind kind, const void *ptr)
{
	return aligned(ptr) && find(table_now(), word_of(kind, ptr)) != NULL;
}

/* Whether there was such a word. */
static bool change(uintptr_t from, uintptr_t to)
{
	_Atomic uintptr_t *slot;

	pthread_mutex_lock(&live.lock);
	slot = find(table_now(), from);
	if (slot) {
		atomic_store_explicit(slot, to, memory_order_relaxed);
		live.used -= to == GONE;
	}
	pthread_mutex_unlock(&live.lock);
	return slot != NULL;
}

bool ep_live_hold(enum ep_live_kind kind, const void *ptr)
{
	return aligned(ptr) && change(word_of(kind, ptr), word_of(kind, ptr) | HELD);
}

void ep_live_back(enum ep_live_kind kind, const void *ptr)
{
	change(word_of(kind, ptr) | HELD, word_of(kind, ptr));
}

void ep_live_drop(enum ep_live_kind kind, const void *ptr)
{
	if (!change(word_of(kind, ptr) | HELD, GONE))
		change(word_of(kind, ptr), GONE);
}
