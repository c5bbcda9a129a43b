/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seats: the index of each rank among those mapped, or among the remote ranks that puts go to. By who maps whom, not by
 * node: a rank of the same node on another kind of device is not mapped.
 */
#include <stdlib.h>

#include "plugin/link/link.h"
#include "util/error.h"

/* How a rank reaches another; two bits in what it tells the others. */
enum reach { NOWISE, MAPPED, BY_NET };
#define REACHES 4 /* in a byte */

static enum reach reach_get(const uint8_t *row, int rank)
{
	return row[rank / REACHES] >> 2 * (rank % REACHES) & 3;
}

static enum reach reach_of(const struct ep_link_ctx *ctx, int rank)
{
	if (ctx->mapped[rank])
		return MAPPED;
	return !ctx->wanted || ctx->wanted[rank] ? BY_NET : NOWISE;
}

/* Ranks below `end` that the row's owner reaches so. */
static uint32_t count_below(const uint8_t *row, enum reach how, int end)
{
	uint32_t n = 0;

	for (int i = 0; i < end; i++)
		n += reach_get(row, i) == how;
	return n;
}

static void seats_fill(struct ep_link *link, const uint8_t *rows, size_t size)
{
	const struct ep_link_ctx *ctx = &link->ctx;
	const uint8_t *mine = rows + size * (size_t)ctx->rank;

	for (int r = 0; r < ctx->nranks; r++) {
		const uint8_t *theirs = rows + size * (size_t)r;
		uint32_t near = count_below(theirs, MAPPED, ctx->nranks),
			 far = count_below(theirs, BY_NET, ctx->nranks);
		enum reach how = reach_get(mine, r);

		link->near = near > link->near ? near : link->near;
		link->far = far > link->far ? far : link->far;
		link->seat[r] = (struct ep_seat){ EP_SEAT_NONE, EP_SEAT_NONE };
		if (how != NOWISE)
			link->seat[r] = (struct ep_seat){ .here = count_below(mine, how, r),
							  .there = count_below(theirs, how, ctx->rank) };
	}
}

/* A pair maps each other or neither does, see agree_reach of plugin/group/window.c; likewise over the net. */
static int seats_check(const struct ep_link_ctx *ctx, const uint8_t *rows, size_t size)
{
	static const char *const verb[] = { "does not connect to", "maps", "connects to", "has no way to" };
	const uint8_t *mine = rows + size * (size_t)ctx->rank;

	for (int r = 0; r < ctx->nranks; r++) {
		enum reach ours = reach_get(mine, r), theirs = reach_get(rows + size * (size_t)r, ctx->rank);

		if (ours != theirs)
			return EP_FAIL(EP_GROUP, EP_EREMOTE, "rank %d %s rank %d, but rank %d %s rank %d", r,
				       verb[theirs], ctx->rank, ctx->rank, verb[ours], r);
	}
	return 0;
}

int ep_link_seats(struct ep_link *link)
{
	const struct ep_link_ctx *ctx = &link->ctx;
	size_t size = ((size_t)ctx->nranks + REACHES - 1) / REACHES;
	uint8_t *mine = EP_CALLOC(EP_GROUP, (size_t)ctx->nranks + 1, size, "seats"), *rows;
	int rc;

	link->seat = mine ? EP_CALLOC(EP_GROUP, (size_t)ctx->nranks, sizeof(*link->seat), "seats") : NULL;
	rc = ep_link_agree(link, link->seat ? 0 : -ENOMEM, "allocate memory");
	for (int r = 0; !rc && r < ctx->nranks; r++)
		mine[r / REACHES] |= (uint8_t)(reach_of(ctx, r) << 2 * (r % REACHES));
	rows = mine + size;
	if (!rc)
		rc = ep_boot_allgather(ctx->boot, mine, size, rows);
	if (!rc)
		rc = seats_check(ctx, rows, size);
	if (!rc)
		seats_fill(link, rows, size);
	free(mine);
	return rc;
}

bool ep_link_puts_to(const struct ep_link *link, int rank)
{
	return !link->ctx.mapped[rank] && link->seat[rank].here != EP_SEAT_NONE;
}
