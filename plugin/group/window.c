/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/error.h"
#include "util/text.h"

/* What every rank tells the others. */
struct offer {
	int32_t rc;
	uint32_t pad;
	uint64_t key;
	struct ep_export export;
};

#define HOST_PAGE 65536u /* the largest page of our hosts: pinned memory is whole pages */

/* The test of a mapping: every rank writes its mark to the windows it maps, in an array by writer that follows what the
 * window is for. The owner must find it; and the owner's own must be what the others read. */
struct mark {
	uint64_t word[2];
};

/* What opening a window needs, all of it before the first exchange: once the others know of the window they use it, and
 * this rank cannot go before they are done. */
struct scratch {
	struct offer *all;	  /* [nranks] */
	uint8_t *bits;		  /* [nranks + 1] rows of a bit per rank */
	struct ep_pinned staging; /* [3 * nranks] marks */
};

#define TABLES_BYTES 65536u /* carved at a time: dozens of windows of hundreds of ranks */

static size_t table_size(int nranks)
{
	return (size_t)nranks * sizeof(void *);
}

static int tables_grow(const struct ep_window_ctx *ctx, size_t bytes)
{
	struct ep_window_tables *tables = ctx->tables;
	struct ep_mem *grown = realloc(tables->mem, (size_t)(tables->count + 1) * sizeof(*grown));
	int rc;

	if (!grown)
		return EP_FAIL(EP_GROUP, ENOMEM, "out of memory: list of window tables");
	tables->mem = grown;
	rc = ctx->dev->ops->mem_alloc(ctx->dev, bytes > TABLES_BYTES ? bytes : TABLES_BYTES, &grown[tables->count]);
	if (rc)
		return rc;
	tables->count++;
	tables->used = 0;
	return 0;
}

/* Tables of closed windows are not reused: a group closes its windows only at its end. */
static int table_get(const struct ep_window_ctx *ctx, struct ep_window *win)
{
	struct ep_window_tables *tables = ctx->tables;
	size_t bytes = (table_size(win->nranks) + 127) / 128 * 128;
	int rc;

	if ((!tables->count || tables->mem[tables->count - 1].size - tables->used < bytes) &&
	    (rc = tables_grow(ctx, bytes)))
		return rc;
	win->peer_dev = (void **)((char *)tables->mem[tables->count - 1].ptr + tables->used);
	tables->used += bytes;
	return 0;
}

static int pin_one(const struct ep_window_ctx *ctx, struct ep_window *win, int r, const struct ep_mem *mem)
{
	return ctx->dev->ops->pin(ctx->dev, mem->ptr, win->size, &win->pinned[r]);
}

/* In memory that its device and, if only through the PCIe root, all others of the node reach. */
static int mine_alloc(const struct ep_window_ctx *ctx, struct ep_window *win)
{
	struct ep_dev *owner = ctx->host ? ctx->host : ctx->dev;
	int rc = owner->ops->mem_alloc(owner, win->size, &win->mine);

	return rc || !ctx->host ? rc : pin_one(ctx, win, ctx->rank, &win->mine);
}

/* Allocates and offers. A failure travels in the offer: the others are waiting for it. */
static void offer_make(const struct ep_window_ctx *ctx, struct ep_window *win, struct offer *offer)
{
	struct ep_dev *owner = ctx->host ? ctx->host : ctx->dev;
	int fd = -1;

	if ((offer->rc = table_get(ctx, win)) || (offer->rc = mine_alloc(ctx, win)))
		return;
	offer->key = (uint64_t)(uintptr_t)win->mine.ptr; /* unique among the live windows of this process */
	offer->rc = ep_boot_ptr_offer(ctx->boot, offer->key, win->mine.ptr, win->size);
	if (offer->rc)
		return;
	if (ctx->topo->locals == 1 && !ctx->host)
		return;
	offer->rc = owner->ops->mem_export(owner, &win->mine, &offer->export, &fd);
	if (!offer->rc && offer->export.share == EP_SHARE_FD)
		offer->rc = ep_boot_fd_offer(ctx->boot, offer->key, fd);
	if (fd >= 0)
		close(fd);
}

static void offer_withdraw(const struct ep_window_ctx *ctx, const struct offer *offer)
{
	ep_boot_fd_withdraw(ctx->boot, offer->key);
	ep_boot_ptr_withdraw(ctx->boot, offer->key);
}

/* The pointer of another thread, on the same device or another. */
static int peer_take(const struct ep_window_ctx *ctx, struct ep_window *win, int peer, const struct offer *offer)
{
	const struct ep_topo_rank *me = &ctx->topo->rank[ctx->rank], *other = &ctx->topo->rank[peer];
	struct ep_mem mem = { .size = win->size };
	int rc = ep_boot_ptr_find(ctx->boot, peer, &other->fds, offer->key, win->size, &mem.ptr);

	if (!rc && other->dev.ordinal != me->dev.ordinal)
		rc = ctx->dev->ops->peer_open(ctx->dev, other->dev.ordinal, &mem);
	if (!rc)
		win->peer[peer] = mem.ptr;
	return rc;
}

static int peer_import(const struct ep_window_ctx *ctx, struct ep_window *win, int peer, const struct offer *offer)
{
	struct ep_dev *owner = ctx->host ? ctx->host : ctx->dev;
	int fd = -1, rc;

	if (offer->export.size < win->size)
		return EP_FAIL(EP_GROUP, EP_EREMOTE, "the window of rank %d has %llu bytes, not %zu", peer,
			       (unsigned long long)offer->export.size, win->size);
	if (offer->export.share == EP_SHARE_NONE)
		return EP_FAIL(EP_DEV, EP_EDEVICE, "the window of rank %d cannot be shared between processes", peer);
	if (offer->export.share == EP_SHARE_FD &&
	    (rc = ep_boot_fd_fetch(ctx->boot, &ctx->topo->rank[peer].fds, offer->key, &fd)))
		return rc;
	rc = owner->ops->mem_import(owner, &offer->export, fd, &win->imported[peer]);
	if (fd >= 0)
		close(fd);
	if (!rc && ctx->host)
		rc = pin_one(ctx, win, peer, &win->imported[peer]);
	if (!rc)
		win->peer[peer] = ctx->host ? win->pinned[peer].dev : win->imported[peer].ptr;
	return rc;
}

static int import_one(const struct ep_window_ctx *ctx, struct ep_window *win, int peer, const struct offer *offer)
{
	const struct ep_topo_rank *me = &ctx->topo->rank[ctx->rank], *other = &ctx->topo->rank[peer];

	if (other->dev.kind != me->dev.kind || (ctx->like && !ctx->like->peer[peer]))
		return 0;
	if (ctx->host && peer == ctx->rank) {
		win->peer[peer] = win->pinned[peer].dev;
		return 0;
	}
	/* Host memory is mapped once per rank, in the same process too: each device has it pinned for itself. */
	if (ctx->host)
		return other->home == me->home ? peer_import(ctx, win, peer, offer) : 0;
	if (other->node != me->node)
		return 0;
	return other->pid_rank == me->pid_rank ? peer_take(ctx, win, peer, offer) : peer_import(ctx, win, peer, offer);
}

static void import_all(const struct ep_window_ctx *ctx, struct ep_window *win, const struct offer *all)
{
	int failed = 0, first = 0;

	for (int r = 0; r < win->nranks; r++)
		if (import_one(ctx, win, r, &all[r]) && !failed++)
			first = r;
	if (failed)
		EP_WARN(EP_GROUP, "rank %d cannot map the memory of %d ranks of its node, first of rank %d: %s",
			ctx->rank, failed, first, ep_last_error());
}

/* ---- the test ---- */

static struct mark mark_of(int writer, int owner, const struct offer *all)
{
	uint64_t n = ((uint64_t)writer << 32 | (uint32_t)owner) + 1;

	return (struct mark){ { n * 0x9e3779b97f4a7c15u ^ all[owner].key, ~n * 0xc2b2ae3d27d4eb4fu } };
}

static bool mark_right(const struct mark *got, int writer, int owner, const struct offer *all)
{
	struct mark want = mark_of(writer, owner, all);

	return !memcmp(got, &want, sizeof(want));
}

static struct mark *marks(void *base, const struct ep_window *win)
{
	return (struct mark *)((uint8_t *)base + win->size) - win->nranks;
}

/* A thread on the same device has the memory itself: nothing lies between. */
static bool marked(const struct ep_window_ctx *ctx, const struct ep_window *win, int r)
{
	return win->peer[r] && (r == ctx->rank || !ep_topo_near(ctx->topo, ctx->rank, r));
}

/* staging: [nranks] to write, [nranks] from this rank's window, [nranks] of the owners. */
static int marks_move(const struct ep_window_ctx *ctx, const struct ep_window *win, struct mark *staging, bool write)
{
	const struct ep_dev_ops *ops = ctx->dev->ops;
	size_t size = sizeof(struct mark);
	int n = win->nranks, rc = 0;

	for (int r = 0; !rc && r < n; r++)
		if (marked(ctx, win, r))
			rc = write ? ops->copy(ctx->dev, marks(win->peer[r], win) + ctx->rank, staging + r, size,
					       ctx->stream)
				   : ops->copy(ctx->dev, staging + 2 * n + r, marks(win->peer[r], win) + r, size,
					       ctx->stream);
	if (!rc && !write)
		rc = ops->copy(ctx->dev, staging + n, marks(win->peer[ctx->rank], win), (size_t)n * size, ctx->stream);
	return rc ? rc : ops->sync(ctx->dev, ctx->stream, ep_boot_deadline(ctx->boot));
}

static void marks_judge(const struct ep_window_ctx *ctx, struct ep_window *win, const struct mark *staging,
			const struct offer *all)
{
	int n = win->nranks, failed = 0, first = 0;

	for (int r = 0; r < n; r++) {
		if (!marked(ctx, win, r) ||
		    (mark_right(staging + n + r, r, ctx->rank, all) && mark_right(staging + 2 * n + r, r, r, all)))
			continue;
		win->peer[r] = NULL;
		if (!failed++)
			first = r;
	}
	if (failed)
		EP_WARN(EP_GROUP,
			"rank %d: memory shared with %d ranks of its node does not hold what is written to it, first "
			"with rank %d: not used. Between GPUs check ACS and the IOMMU, which can break peer access",
			ctx->rank, failed, first);
}

/* Collective. Where one of a pair does not map the other the marks are missing too, and the pair is none. */
static int marks_test(const struct ep_window_ctx *ctx, struct ep_window *win, const struct scratch *scratch)
{
	struct mark *mark = scratch->staging.host;
	int rc, met;

	for (int r = 0; r < win->nranks; r++)
		mark[r] = mark_of(ctx->rank, r, scratch->all);
	rc = marks_move(ctx, win, mark, true);
	met = ep_boot_barrier(ctx->boot); /* in any case: the others wait */
	if (!rc && !(rc = met) && !(rc = marks_move(ctx, win, mark, false)))
		marks_judge(ctx, win, mark, scratch->all);
	return rc;
}

static size_t bits_row(const struct ep_window *win)
{
	return ((size_t)win->nranks + 7) / 8;
}

/* One bit per rank that this one can map. A pair uses loads and stores only if both can, else one would wait for stores
 * that the other sends as puts. */
static int agree_reach(const struct ep_window_ctx *ctx, struct ep_window *win, uint8_t *bits)
{
	size_t row = bits_row(win);
	int rc;

	for (int r = 0; r < win->nranks; r++)
		if (win->peer[r])
			bits[r / 8] |= (uint8_t)(1u << (r % 8));
	rc = ep_boot_allgather(ctx->boot, bits, row, bits + row);
	win->whole = true;
	for (int r = 0; !rc && r < win->nranks; r++) {
		const uint8_t *theirs = bits + row * (size_t)(r + 1);

		for (int other = 0; other < win->nranks; other++)
			win->whole &= theirs[other / 8] >> (other % 8) & 1;
		if (!(theirs[ctx->rank / 8] & (1u << (ctx->rank % 8))))
			win->peer[r] = NULL;
	}
	return rc;
}

static int table_fill(const struct ep_window_ctx *ctx, struct ep_window *win)
{
	const struct ep_dev_ops *ops = ctx->dev->ops;
	size_t size = table_size(win->nranks);
	struct ep_pinned staging;
	int rc = ops->pinned_alloc(ctx->dev, size, &staging);

	if (rc)
		return rc;
	memcpy(staging.host, win->peer, size);
	rc = ops->copy(ctx->dev, win->peer_dev, staging.host, size, ctx->stream);
	if (!rc)
		rc = ops->sync(ctx->dev, ctx->stream, ep_boot_deadline(ctx->boot));
	ops->pinned_free(ctx->dev, &staging);
	return rc;
}

static int first_failure(const struct offer *offer, const struct ep_window *win)
{
	/* This rank's own message says more, such as which limit. */
	for (int r = 0; !offer[win->rank].rc && r < win->nranks; r++)
		if (offer[r].rc)
			return EP_FAIL(EP_GROUP, EP_EREMOTE,
				       "rank %d could not allocate or share its window of %zu bytes: %s", r, win->size,
				       strerror(-ep_rc_take(offer[r].rc)));
	return offer[win->rank].rc;
}

static size_t window_size(const struct ep_window_ctx *ctx, size_t size)
{
	size_t unit = ctx->host ? HOST_PAGE : 256;

	if (!ctx->host && !ctx->like)
		size = (size + 255) / 256 * 256 + (size_t)ctx->topo->nranks * sizeof(struct mark);
	return (size + unit - 1) / unit * unit;
}

static int scratch_get(const struct ep_window_ctx *ctx, struct ep_window *win, struct scratch *out)
{
	size_t n = (size_t)win->nranks;

	out->bits = EP_CALLOC(EP_GROUP, n + 1, bits_row(win), "bits of mapped ranks");
	win->imported = EP_CALLOC(EP_GROUP, n, sizeof(*win->imported), "imported windows");
	win->pinned = EP_CALLOC(EP_GROUP, n, sizeof(*win->pinned), "pinned windows");
	win->peer = EP_CALLOC(EP_GROUP, n, sizeof(*win->peer), "window pointers");
	if (!out->bits || !win->imported || !win->pinned || !win->peer)
		return -ENOMEM;
	return ctx->dev->ops->pinned_alloc(ctx->dev, 3 * n * sizeof(struct mark), &out->staging);
}

static void scratch_put(const struct ep_window_ctx *ctx, struct scratch *scratch)
{
	if (scratch->staging.host)
		ctx->dev->ops->pinned_free(ctx->dev, &scratch->staging);
	free(scratch->bits);
	free(scratch->all);
}

/* Maps, tests and agrees. If the exchange fails, a thread on another device may still be at its test in this rank's
 * window: it is leaked, as that is better than an access to unmapped memory. Processes have mappings of their own. */
static int windows_join(const struct ep_window_ctx *ctx, struct ep_window *win, struct scratch *scratch)
{
	const struct ep_topo_rank *rank = ctx->topo->rank;
	int rc = 0, agreed;

	import_all(ctx, win, scratch->all);
	if (!ctx->host && !ctx->like)
		rc = marks_test(ctx, win, scratch);
	/* Also the barrier after which nobody fetches descriptors. */
	agreed = agree_reach(ctx, win, scratch->bits);
	for (int r = 0; agreed && r < win->nranks; r++)
		if (rank[r].pid_rank == rank[ctx->rank].pid_rank && !ep_topo_near(ctx->topo, ctx->rank, r))
			win->mine.ptr = NULL;
	rc = rc ? rc : agreed;
	return rc ? rc : table_fill(ctx, win);
}

int ep_window_open(const struct ep_window_ctx *ctx, size_t size, struct ep_window *out)
{
	int nranks = ctx->topo->nranks, rc;
	struct ep_window win = { .size = window_size(ctx, size), .rank = ctx->rank, .nranks = nranks };
	struct scratch scratch = { .all = EP_CALLOC(EP_GROUP, (size_t)nranks, sizeof(struct offer), "window offers") };
	struct offer mine = { 0 };

	if (!scratch.all) {
		ep_boot_abort(ctx->boot, ENOMEM, ep_last_error()); /* without it this rank cannot say so */
		return -ENOMEM;
	}
	if (!(mine.rc = scratch_get(ctx, &win, &scratch)))
		offer_make(ctx, &win, &mine);
	if ((rc = ep_boot_allgather(ctx->boot, &mine, sizeof(mine), scratch.all)))
		goto close_window;
	if ((rc = first_failure(scratch.all, &win)))
		goto close_window;
	if ((rc = windows_join(ctx, &win, &scratch))) {
		/* The others have no reason to fail: they are told. */
		ep_boot_abort(ctx->boot, -rc, ep_last_error());
		goto close_window;
	}
	offer_withdraw(ctx, &mine);
	scratch_put(ctx, &scratch);
	*out = win;
	return 0;
close_window:
	offer_withdraw(ctx, &mine);
	scratch_put(ctx, &scratch);
	ep_window_close(ctx, &win);
	return rc;
}

void ep_window_close(const struct ep_window_ctx *ctx, struct ep_window *win)
{
	struct ep_dev *owner = ctx->host ? ctx->host : ctx->dev;

	for (int r = 0; win->pinned && r < win->nranks; r++)
		if (win->pinned[r].host)
			ctx->dev->ops->unpin(ctx->dev, &win->pinned[r]);
	for (int r = 0; win->imported && r < win->nranks; r++)
		if (win->imported[r].ptr)
			owner->ops->mem_free(owner, &win->imported[r]);
	if (win->mine.ptr)
		owner->ops->mem_free(owner, &win->mine);
	free(win->imported);
	free(win->pinned);
	free(win->peer);
	*win = (struct ep_window){ 0 };
}

void ep_window_tables_close(const struct ep_window_ctx *ctx)
{
	struct ep_window_tables *tables = ctx->tables;

	for (int i = 0; i < tables->count; i++)
		ctx->dev->ops->mem_free(ctx->dev, &tables->mem[i]);
	free(tables->mem);
	*tables = (struct ep_window_tables){ NULL };
}
