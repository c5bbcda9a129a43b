/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ht/maps.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"

/* Of one allocation's requests to its owner; ep_reach_close may have to wait as long. */
#define FETCH_MS 2000
#define PEEK_MS 20
/* A kernel has counted itself in opened before it reads the version: by now one that read the old version shows. */
#define SHOW_NS 2000000ull
/* Closing may wait for every kernel of the GPU, and launches for it: when the group is idle, or after this long. */
#define PATIENCE_NS 1000000000ull
/* Between two checks for that: each copies from the GPU. */
#define CHECK_NS 5000000ull

enum state {
	NONE,
	MAPPED,
	REFUSED,
	ENDING, /* no longer in the table; kernels may still use it */
};

struct map {
	uint64_t id;
	struct ep_mem mem;
	bool borrowed;	  /* a thread's own pointer: nothing to unmap */
	uint64_t ns;	  /* ENDING: since when */
	uint32_t version; /* ENDING: the first that does not have it */
	enum state state;
};

/* A rank of another process or on another device; map is NULL before its first allocation. */
struct peer {
	struct map *map; /* [EP_REACH_SLOTS] */
	struct ep_mem board;
	uint32_t changes; /* of the board, when it was last checked */
	unsigned ending;
};

struct ep_maps {
	struct ep_reach_ctx ctx;
	struct ep_dev *host; /* of the boards */
	struct ep_pinned table;
	uint32_t version;
	unsigned ending;
	uint64_t checked_ns;
	_Atomic uint32_t now, peak;
	_Atomic uint64_t ended, refused;
	struct peer peer[]; /* [nranks] */
};

struct want {
	uint64_t id;
	uint32_t owner;
};

bool ep_maps_peer(const struct ep_topo *topo, int rank, uint32_t owner)
{
	const struct ep_topo_rank *me = &topo->rank[rank], *other;

	if (owner >= (uint32_t)topo->nranks)
		return false;
	other = &topo->rank[owner];
	return other->node == me->node && other->dev.kind == me->dev.kind && !other->apart &&
	       !ep_topo_near(topo, rank, (int)owner);
}

/* ---- the table ---- */

static struct ep_reach_entry *entry_of(struct ep_maps *maps, uint32_t owner, uint64_t id)
{
	struct ep_reach_table *table = maps->table.host;

	return &table->entry[(size_t)owner * EP_REACH_SLOTS + id % EP_REACH_SLOTS];
}

static void version_next(struct ep_maps *maps)
{
	struct ep_reach_table *table = maps->table.host;

	/* T1: pairs with the kernels' acquire: who sees it sees the entries and the mappings. */
	__atomic_store_n(&table->version, ++maps->version, __ATOMIC_RELEASE);
}

static void entry_add(struct ep_maps *maps, const struct want *want, const struct ep_mem *mem)
{
	struct ep_reach_entry *entry = entry_of(maps, want->owner, want->id);

	__atomic_store_n(&entry->base, (uint64_t)(uintptr_t)mem->ptr, __ATOMIC_RELAXED);
	__atomic_store_n(&entry->size, mem->size, __ATOMIC_RELAXED);
	__atomic_store_n(&entry->since, maps->version + 1, __ATOMIC_RELAXED);
	/* T5: pairs with the kernels' acquire of id, which may come before they see the version. */
	__atomic_store_n(&entry->id, want->id, __ATOMIC_RELEASE);
	version_next(maps);
}

static void entry_drop(struct ep_maps *maps, uint32_t owner, uint64_t id)
{
	__atomic_store_n(&entry_of(maps, owner, id)->id, 0, __ATOMIC_RELAXED);
	version_next(maps);
}

/* ---- the end of a mapping ---- */

static void map_end(struct ep_maps *maps, uint32_t owner, struct map *map)
{
	entry_drop(maps, owner, map->id);
	if (map->state == REFUSED) {
		*map = (struct map){ 0 };
		return;
	}
	map->state = ENDING;
	map->version = maps->version;
	map->ns = ep_now_ns();
	maps->peer[owner].ending++;
	maps->ending++;
}

static void map_close(struct ep_maps *maps, uint32_t owner, struct map *map)
{
	EP_TRACE(EP_GROUP, "rank %d: closed allocation %#llx of rank %u", maps->ctx.rank, (unsigned long long)map->id,
		 owner);
	if (!map->borrowed)
		maps->ctx.dev->ops->mem_free(maps->ctx.dev, &map->mem);
	*map = (struct map){ 0 };
	maps->peer[owner].ending--;
	maps->ending--;
	maps->now--;
	maps->ended++;
}

struct quiet {
	uint64_t now;
	uint32_t seen;
	bool idle; /* no operation is under way */
	bool done; /* ... nor waits in a stream, as far as the host knows */
};

static bool word_is(const struct ep_maps *maps, const uint32_t *word, uint32_t value)
{
	struct ep_dev *dev = maps->ctx.dev;
	uint32_t now;

	return word && !dev->ops->peek(dev, word, ep_deadline_ms(PEEK_MS), &now) && now == value;
}

/* Whoever reads opened as 0 SHOW_NS after a new version knows that later kernels see the version. */
static struct quiet quiet_now(const struct ep_maps *maps)
{
	const struct ep_reach_table *table = maps->table.host;
	struct quiet q = { .now = ep_now_ns() };

	q.done = maps->ctx.launched && word_is(maps, maps->ctx.ended, atomic_load(maps->ctx.launched));
	q.idle = word_is(maps, maps->ctx.opened, 0);
	q.seen = __atomic_load_n(&table->seen, __ATOMIC_ACQUIRE); /* T4: pairs with the kernels' release */
	return q;
}

static bool map_unused(const struct map *map, const struct quiet *q)
{
	bool safe = (int32_t)(q->seen - map->version) >= 0 || (q->idle && q->now - map->ns >= SHOW_NS);

	return safe && ((q->idle && q->done) || q->now - map->ns >= PATIENCE_NS);
}

static void peer_close(struct ep_maps *maps, uint32_t owner, const struct quiet *q)
{
	struct peer *peer = &maps->peer[owner];

	for (unsigned i = 0; i < EP_REACH_SLOTS && peer->ending; i++)
		if (peer->map[i].state == ENDING && map_unused(&peer->map[i], q))
			map_close(maps, owner, &peer->map[i]);
}

static bool offered(const struct peer *peer, uint64_t id)
{
	const struct ep_board *board = peer->board.ptr;

	return __atomic_load_n(&board->live[id % EP_REACH_SLOTS], __ATOMIC_ACQUIRE) == id;
}

static void peer_check(struct ep_maps *maps, uint32_t owner)
{
	struct peer *peer = &maps->peer[owner];
	const struct ep_board *board = peer->board.ptr;
	uint32_t changes = __atomic_load_n(&board->changes, __ATOMIC_ACQUIRE); /* B1 */

	if (changes == peer->changes)
		return;
	peer->changes = changes;
	for (unsigned i = 0; i < EP_REACH_SLOTS; i++) {
		struct map *map = &peer->map[i];

		if ((map->state == MAPPED || map->state == REFUSED) && !offered(peer, map->id))
			map_end(maps, owner, map);
	}
}

void ep_maps_tidy(struct ep_maps *maps)
{
	uint32_t n = (uint32_t)maps->ctx.topo->nranks;
	struct quiet q;

	for (uint32_t r = 0; r < n; r++)
		if (maps->peer[r].map)
			peer_check(maps, r);
	if (!maps->ending || ep_now_ns() - maps->checked_ns < CHECK_NS)
		return;
	q = quiet_now(maps);
	maps->checked_ns = q.now;
	for (uint32_t r = 0; r < n; r++)
		if (maps->peer[r].ending)
			peer_close(maps, r, &q);
}

/* ---- requests ---- */

static int peer_open(struct ep_maps *maps, uint32_t owner)
{
	struct peer *peer = &maps->peer[owner];
	struct ep_export export;
	int fd, rc;

	if (peer->map)
		return 0;
	rc = ep_boot_note_fetch(maps->ctx.boot, &maps->ctx.topo->rank[owner].fds, EP_BOARD_KEY,
				ep_deadline_ms(FETCH_MS), &export, sizeof(export), &fd);
	if (rc)
		return rc;
	if (export.size < sizeof(struct ep_board))
		rc = -EPROTO;
	else
		rc = maps->host->ops->mem_import(maps->host, &export, fd, &peer->board);
	if (fd >= 0)
		close(fd);
	if (!rc)
		peer->map = EP_CALLOC(EP_GROUP, EP_REACH_SLOTS, sizeof(*peer->map), "mappings of a rank's tensors");
	if (!rc && !peer->map)
		maps->host->ops->mem_free(maps->host, &peer->board);
	return rc ? rc : peer->map ? 0 : -ENOMEM;
}

struct pieces {
	struct ep_export *export;
	int *fd;
	uint32_t n, all;
};

static void pieces_free(struct pieces *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->fd[i] >= 0)
			close(p->fd[i]);
	free(p->export);
	free(p->fd);
}

static int piece_fetch(struct ep_maps *maps, const struct want *want, uint32_t i, uint64_t deadline,
		       struct ep_offer *out, int *fd)
{
	return ep_boot_note_fetch(maps->ctx.boot, &maps->ctx.topo->rank[want->owner].fds, ep_offer_key(want->id, i),
				  deadline, out, sizeof(*out), fd);
}

/* The number is the owner's claim, and bounded. */
static int pieces_fetch(struct ep_maps *maps, const struct want *want, struct pieces *p)
{
	uint64_t deadline = ep_deadline_ms(FETCH_MS);
	struct ep_offer offer;
	int fd = -1, rc = piece_fetch(maps, want, 0, deadline, &offer, &fd);

	if (rc)
		return rc;
	p->all = offer.pieces;
	if (p->all && p->all <= EP_OFFER_PIECES) {
		p->export = EP_CALLOC(EP_GROUP, p->all, sizeof(*p->export), "pieces of an allocation");
		p->fd = EP_CALLOC(EP_GROUP, p->all, sizeof(*p->fd), "pieces of an allocation");
	}
	if (!p->export || !p->fd) {
		if (fd >= 0)
			close(fd);
		return p->all && p->all <= EP_OFFER_PIECES ? -ENOMEM : -EPROTO;
	}
	for (;;) {
		p->export[p->n] = offer.export;
		p->fd[p->n] = fd;
		if (++p->n == p->all)
			return 0;
		if ((rc = piece_fetch(maps, want, p->n, deadline, &offer, &fd)))
			return rc;
	}
}

/* Of a thread on another device: its pointer, piece by piece, as access is a property of each. */
static int thread_open(struct ep_maps *maps, const struct want *want, const struct pieces *p, struct ep_mem *out)
{
	const struct ep_topo_rank *owner = &maps->ctx.topo->rank[want->owner];
	struct ep_dev *dev = maps->ctx.dev;
	struct ep_mem all = { .size = p->export->size * p->n };
	int rc = ep_boot_ptr_find(maps->ctx.boot, (int)want->owner, &owner->fds, ep_pointer_key(want->id), all.size,
				  &all.ptr);

	for (uint32_t i = 0; !rc && i < p->n; i++) {
		struct ep_mem piece = { .ptr = (uint8_t *)all.ptr + i * p->export->size, .size = p->export->size };

		rc = dev->ops->peer_open(dev, owner->dev.ordinal, &piece);
	}
	if (!rc)
		*out = all;
	return rc;
}

static int want_map(struct ep_maps *maps, const struct want *want, struct map *map)
{
	const struct ep_topo_rank *rank = maps->ctx.topo->rank;
	struct ep_dev *dev = maps->ctx.dev;
	struct pieces p = { 0 };
	int rc = pieces_fetch(maps, want, &p);

	map->borrowed = rank[want->owner].pid_rank == rank[maps->ctx.rank].pid_rank;
	if (!rc)
		rc = map->borrowed ? thread_open(maps, want, &p, &map->mem)
				   : dev->ops->user_import(dev, p.export, p.fd, p.n, &map->mem);
	pieces_free(&p);
	return rc;
}

static void want_added(struct ep_maps *maps, const struct want *want, struct map *map)
{
	*map = (struct map){ .id = want->id, .mem = map->mem, .borrowed = map->borrowed, .state = MAPPED };
	if (++maps->now > maps->peak)
		maps->peak = maps->now;
	entry_add(maps, want, &map->mem);
	EP_INFO(EP_GROUP, "rank %d: mapped allocation %#llx of rank %u, %zu bytes", maps->ctx.rank,
		(unsigned long long)want->id, want->owner, map->mem.size);
}

/* Remembered as long as it is on offer: kernels do not request it again. */
static void want_refuse(struct ep_maps *maps, const struct want *want, struct map *map, const char *why)
{
	EP_INFO(EP_GROUP, "rank %d: not mapping allocation %#llx of rank %u: %s; staging its rows through the window",
		maps->ctx.rank, (unsigned long long)want->id, want->owner, why);
	*map = (struct map){ .id = want->id, .state = REFUSED };
	maps->refused++;
	entry_add(maps, want, &(struct ep_mem){ 0 });
}

/* What cannot be done now is requested again by the next operation that needs it. */
static void want_serve(struct ep_maps *maps, const struct want *want)
{
	struct peer *peer;
	struct map *map;
	int rc;

	if (!ep_maps_peer(maps->ctx.topo, maps->ctx.rank, want->owner) || peer_open(maps, want->owner))
		return;
	peer = &maps->peer[want->owner];
	map = &peer->map[want->id % EP_REACH_SLOTS];
	if (map->id == want->id || !offered(peer, want->id))
		return;
	if (map->state != NONE) { /* the slot's former allocation; when it is closed there is room */
		if (map->state != ENDING)
			map_end(maps, want->owner, map);
		if (map->state != NONE)
			return;
	}
	peer_check(maps, want->owner); /* before ending is asked */
	rc = want_map(maps, want, map);
	if (!rc)
		want_added(maps, want, map);
	/* CUDA IPC opens no allocation at the address of another one of the same process that is still open. */
	else if (rc == -ETIMEDOUT || !offered(peer, want->id) || peer->ending)
		EP_TRACE(EP_GROUP, "rank %d: allocation %#llx of rank %u is not mapped yet: %s", maps->ctx.rank,
			 (unsigned long long)want->id, want->owner, strerror(-rc));
	else
		want_refuse(maps, want, map, strerror(-rc));
}

/* Returns how many there were. */
static unsigned wants_take(struct ep_maps *maps, struct want *out)
{
	struct ep_reach_table *table = maps->table.host;
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

unsigned ep_maps_serve(struct ep_maps *maps, bool (*stopped)(void *), void *arg)
{
	struct want want[EP_REACH_WANTED];
	unsigned n = wants_take(maps, want);

	for (unsigned i = 0; i < n && !stopped(arg); i++)
		want_serve(maps, &want[i]);
	return n;
}

/* ---- life ---- */

int ep_maps_open(const struct ep_reach_ctx *ctx, struct ep_maps **out)
{
	size_t ranks = (size_t)ctx->topo->nranks;
	size_t bytes = sizeof(struct ep_reach_table) + ranks * EP_REACH_SLOTS * sizeof(struct ep_reach_entry);
	struct ep_maps *maps = EP_CALLOC(EP_GROUP, 1, sizeof(*maps) + ranks * sizeof(maps->peer[0]),
					 "mappings of other ranks' tensors");
	int rc;

	if (!maps)
		return -ENOMEM;
	maps->ctx = *ctx;
	rc = ep_dev_row(EP_DEV_HOST)->open(0, &maps->host);
	if (!rc)
		rc = ctx->dev->ops->pinned_alloc(ctx->dev, bytes, &maps->table);
	if (rc) {
		ep_maps_abandon(maps);
		return rc;
	}
	*out = maps;
	return 0;
}

void ep_maps_abandon(struct ep_maps *maps)
{
	if (!maps)
		return;
	for (int r = 0; r < maps->ctx.topo->nranks; r++) {
		if (maps->peer[r].map)
			maps->host->ops->mem_free(maps->host, &maps->peer[r].board);
		free(maps->peer[r].map);
	}
	if (maps->host)
		maps->host->ops->close(maps->host);
	free(maps);
}

void ep_maps_free(struct ep_maps *maps)
{
	struct ep_dev *dev = maps ? maps->ctx.dev : NULL;

	if (!maps)
		return;
	for (int r = 0; r < maps->ctx.topo->nranks; r++)
		for (unsigned i = 0; maps->peer[r].map && i < EP_REACH_SLOTS; i++)
			if (maps->peer[r].map[i].mem.ptr && !maps->peer[r].map[i].borrowed)
				dev->ops->mem_free(dev, &maps->peer[r].map[i].mem);
	dev->ops->pinned_free(dev, &maps->table);
	ep_maps_abandon(maps);
}

struct ep_reach_table *ep_maps_device(const struct ep_maps *maps)
{
	return maps->table.dev;
}

uint32_t ep_maps_version(const struct ep_maps *maps)
{
	const struct ep_reach_table *table = maps->table.host;

	return __atomic_load_n(&table->version, __ATOMIC_ACQUIRE); /* T1 */
}

void ep_maps_counts(const struct ep_maps *maps, struct ep_maps_counts *out)
{
	*out = (struct ep_maps_counts){
		.now = maps->now, .peak = maps->peak, .ended = maps->ended, .refused = maps->refused
	};
}
