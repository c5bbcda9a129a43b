/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/text.h"

/* What every rank tells the others. */
struct offer {
	int32_t rc;
	uint32_t pad;
	uint64_t key;
	struct ep_export export;
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

/* Allocates and offers. A failure travels in the offer: the others are waiting for it. */
static void offer_make(const struct ep_window_ctx *ctx, struct ep_window *win, struct offer *offer)
{
	const struct ep_dev_ops *ops = ctx->dev->ops;
	int fd = -1;

	if ((offer->rc = table_get(ctx, win)) || (offer->rc = ops->mem_alloc(ctx->dev, win->size, &win->mine)))
		return;
	offer->key = (uint64_t)(uintptr_t)win->mine.ptr; /* unique among the live windows of this process */
	offer->rc = ep_boot_ptr_offer(ctx->boot, offer->key, win->mine.ptr, win->size);
	if (offer->rc)
		return;
	if (ctx->topo->locals == 1)
		return;
	offer->rc = ops->mem_export(ctx->dev, &win->mine, &offer->export, &fd);
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

static int import_one(const struct ep_window_ctx *ctx, struct ep_window *win, int peer, const struct offer *offer)
{
	const struct ep_topo_rank *me = &ctx->topo->rank[ctx->rank], *other = &ctx->topo->rank[peer];
	const struct ep_dev_ops *ops = ctx->dev->ops;
	int fd = -1, rc;

	if (other->node != me->node || other->dev.kind != me->dev.kind)
		return 0;
	if (other->pid_rank == me->pid_rank) {
		struct ep_mem mem = { .size = win->size };

		if ((rc = ep_boot_ptr_find(ctx->boot, peer, &other->fds, offer->key, win->size, &mem.ptr)))
			return rc;
		if (other->dev.ordinal != me->dev.ordinal && (rc = ops->peer_open(ctx->dev, other->dev.ordinal, &mem)))
			return rc;
		win->peer[peer] = mem.ptr;
		return 0;
	}
	if (offer->export.size < win->size)
		return EP_FAIL(EP_GROUP, EP_EREMOTE, "the window of rank %d has %llu bytes, not %zu", peer,
			       (unsigned long long)offer->export.size, win->size);
	if (offer->export.share == EP_SHARE_NONE)
		return EP_FAIL(EP_DEV, EP_EDEVICE, "the window of rank %d cannot be shared between processes", peer);
	if (offer->export.share == EP_SHARE_FD && (rc = ep_boot_fd_fetch(ctx->boot, &other->fds, offer->key, &fd)))
		return rc;
	rc = ops->mem_import(ctx->dev, &offer->export, fd, &win->imported[peer]);
	if (fd >= 0)
		close(fd);
	if (rc)
		return rc;
	win->peer[peer] = win->imported[peer].ptr;
	return 0;
}

/* One bit per rank that this one can map. A pair uses loads and stores only if both can, else one would wait for stores
 * that the other sends as puts. */
static int agree_reach(const struct ep_window_ctx *ctx, struct ep_window *win)
{
	size_t row = ((size_t)win->nranks + 7) / 8;
	uint8_t *bits = EP_CALLOC(EP_GROUP, (size_t)win->nranks + 1, row, "bits of mapped ranks");
	uint8_t *mine = bits;
	int rc;

	if (!bits)
		return -ENOMEM;
	for (int r = 0; r < win->nranks; r++)
		if (win->peer[r])
			mine[r / 8] |= (uint8_t)(1u << (r % 8));
	rc = ep_boot_allgather(ctx->boot, mine, row, bits + row);
	for (int r = 0; !rc && r < win->nranks; r++)
		if (!(bits[row * (size_t)(r + 1) + (size_t)ctx->rank / 8] & (1u << (ctx->rank % 8))))
			win->peer[r] = NULL;
	free(bits);
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
		rc = ops->sync(ctx->dev, ctx->stream, ep_deadline_ms(10000));
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

int ep_window_open(const struct ep_window_ctx *ctx, size_t size, struct ep_window *out)
{
	int nranks = ctx->topo->nranks, rc;
	struct ep_window win = { .size = (size + 255) / 256 * 256, .rank = ctx->rank, .nranks = nranks };
	struct offer mine = { 0 }, *all = EP_CALLOC(EP_GROUP, (size_t)nranks, sizeof(*all), "window offers");

	win.imported = EP_CALLOC(EP_GROUP, (size_t)nranks, sizeof(*win.imported), "imported windows");
	win.peer = EP_CALLOC(EP_GROUP, (size_t)nranks, sizeof(*win.peer), "window pointers");
	if (!all || !win.imported || !win.peer)
		mine.rc = -ENOMEM;
	else
		offer_make(ctx, &win, &mine);
	if (!all)
		ep_boot_abort(ctx->boot, ENOMEM, ep_last_error()); /* without it this rank cannot say so */
	if (!all || (rc = ep_boot_allgather(ctx->boot, &mine, sizeof(mine), all))) {
		rc = all ? rc : mine.rc;
		goto close_window;
	}
	if ((rc = first_failure(all, &win)))
		goto close_window;
	for (int r = 0; r < nranks; r++)
		if (import_one(ctx, &win, r, &all[r]))
			EP_WARN(EP_GROUP, "rank %d cannot map the window of rank %d: they will use the net", ctx->rank,
				r);
	/* Also the barrier after which nobody fetches descriptors. */
	if ((rc = agree_reach(ctx, &win)) || (rc = table_fill(ctx, &win))) {
		/* The others have no reason to fail: they are told. */
		ep_boot_abort(ctx->boot, -rc, ep_last_error());
		goto close_window;
	}
	offer_withdraw(ctx, &mine);
	free(all);
	*out = win;
	return 0;
close_window:
	offer_withdraw(ctx, &mine);
	free(all);
	ep_window_close(ctx, &win);
	return rc;
}

void ep_window_close(const struct ep_window_ctx *ctx, struct ep_window *win)
{
	for (int r = 0; win->imported && r < win->nranks; r++)
		if (win->imported[r].ptr)
			ctx->dev->ops->mem_free(ctx->dev, &win->imported[r]);
	if (win->mine.ptr)
		ctx->dev->ops->mem_free(ctx->dev, &win->mine);
	free(win->imported);
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
