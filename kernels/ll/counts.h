/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counts of an LL dispatch, in the head of each rank's area. Of near ranks, and with few tokens, they are known
 * when all rows are sent. With many, warps that do not send yet count the routes to far ranks at the beginning: those
 * ranks get the counts early and a step behind each put of rows, and unpack rows while others are on the wire.
 */
#ifndef EP_KERNELS_LL_COUNTS_H
#define EP_KERNELS_LL_COUNTS_H

#include "kernels/ll/ll.h"

/* Adds the row of (token, k), if it goes to a far rank, and the row of the token there. As ll_claim_rows. */
GX_DEV void ll_count_route(const struct ll *ll, uint32_t token, uint32_t k)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	int64_t id = ll_topk(ll->a, token, k), first;
	uint32_t new_id = 1, new_peer = 1, peer = (uint32_t)id / s->per_rank;

	if (id < 0 || id >= (int64_t)s->experts || !ll_far(ll, peer))
		return;
	first = (int64_t)peer * s->per_rank;
	for (uint32_t j = 0; j < k; j++) {
		int64_t other = ll_topk(ll->a, token, j);

		new_id &= other != id;
		new_peer &= other < first || other >= first + s->per_rank;
	}
	if (new_peer)
		gx_dev_add_relaxed_u32(&ll->early_rows[peer], 1);
	if (new_id)
		gx_dev_add_relaxed_u32(&ll->early_back[peer], 1);
	if (new_id)
		gx_dev_add_relaxed_u32(&ll->early_experts[id], 1);
}

/* All lanes: counts routes that no other warp does, by ticket. Whether all are counted now (R8, A8). */
GX_DEV uint32_t ll_count_routes(const struct ll *ll)
{
	uint32_t *ticket = &ll->a->state->count_ticket;
	uint32_t topk = ll->a->shape.topk, all = ll->a->tokens * topk, n = 0, last = 0, i0;

	while ((i0 = gx_op_ticket(ticket) * GX_WARP) < all) {
		uint32_t i = i0 + gx_lane();

		if (i < all)
			ll_count_route(ll, i / topk, i % topk);
		n += all - i0 < GX_WARP ? all - i0 : GX_WARP;
	}
	gx_syncwarp();
	if (gx_lane() == 0 && n != 0)
		last = gx_dev_add_acqrel_u32(&ll->a->state->counted, n) + n == all;
	last = gx_shfl_u32(last, 0);
	gx_syncwarp();
	return last;
}

/* The lane's part of the heads. */
struct ll_heads {
	uint32_t rows, back;
};

GX_DEV struct ll_heads ll_load_heads(const struct ll *ll, uint32_t r, uint32_t far)
{
	const uint32_t *all = far && ll->each ? ll->early_rows : ll->rank_rows;
	const uint32_t *returns = ll_is(ll, EP_LL_RANK_MAJOR) ? all : ll->each ? ll->early_back : ll->back_rows;
	struct ll_heads heads = { 0, 0 };

	if (r < ll->op.nranks) {
		heads.rows = gx_ld_relaxed_u32(&all[r]);
		heads.back = far ? gx_ld_relaxed_u32(&returns[r]) : 0;
	}
	return heads;
}

/* All lanes: the rows of each rank of that part in all, to the head of its area; of a far one also where those begin
 * that return from it, which stays in the handle too. heads: the first lanes', loaded already. */
GX_DEV void ll_write_heads(struct ll *ll, uint32_t far, struct ll_heads heads)
{
	uint32_t from = 0;

	for (uint32_t r0 = 0; r0 < ll->op.nranks; r0 += GX_WARP) {
		uint32_t r = r0 + gx_lane(), told = ll_told(ll, r, far), back = told ? heads.back : 0, at = 0;

		if (told)
			((uint32_t *)ll_out(ll, r))[EP_LL_ROWS] = heads.rows;
		heads = ll_load_heads(ll, r + GX_WARP, far);
		if (!far)
			continue;
		at = from + ll_sum_below(back);
		from = gx_shfl_u32(at + back, GX_WARP - 1);
		if (told) {
			uint32_t *head = (uint32_t *)ll_out(ll, r);

			ll->a->back[r].from = head[EP_LL_BACK_AT] = ll->a->shape.masked ? 0 : at;
			ll->a->back[r].come = head[EP_LL_BACK] = back;
			head[EP_LL_EACH] = ll->each;
		}
	}
}

/* Rows per expert of each rank of that part, to the head of its area. The heads of the first lanes' ranks. */
GX_DEV struct ll_heads ll_write_counts(struct ll *ll, uint32_t far)
{
	const struct ep_ll_shape *s = &ll->a->shape;
	const uint32_t *all = far && ll->each ? ll->early_experts : ll->expert_rows;
	struct ll_heads heads = ll_load_heads(ll, gx_lane(), far); /* in flight with the others */

	for (uint32_t i0 = gx_lane(); i0 < s->experts; i0 += GX_WARP * LL_LOOK) {
		uint32_t n[LL_LOOK];

		for (uint32_t u = 0; u < LL_LOOK; u++)
			n[u] = ll_told(ll, (i0 + u * GX_WARP) / s->per_rank, far)
				       ? gx_ld_relaxed_u32(&all[i0 + u * GX_WARP])
				       : 0;
		for (uint32_t u = 0; u < LL_LOOK && i0 + u * GX_WARP < s->experts; u++) {
			uint32_t i = i0 + u * GX_WARP, peer = i / s->per_rank;

			if (ll_told(ll, peer, far))
				((uint32_t *)ll_out(ll, peer))[EP_LL_COUNTS + i - peer * s->per_rank] = n[u];
		}
	}
	ll_write_heads(ll, far, heads);
	gx_syncwarp();
	return heads;
}

#endif
