/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the rows of an expert-major dispatch came from, out of what it left in the handle. One block, in stream order.
 * Rows of a source are contiguous in an expert, so the one whose predecessor has another source is its first.
 */
#include "kernels/ll/ll.h"

/* One of the rows that this rank holds. */
struct ll_held {
	uint32_t row; /* of the experts' rows, one expert after the other */
	uint32_t home;
	uint32_t token;
};

/* The i-th of the rows of other ranks, then of (token, k) of this rank. 0: no row. */
GX_DEV uint32_t ll_held_at(const struct ep_ll_args *a, uint64_t i, struct ll_held *out)
{
	uint64_t rows = a->handle->rows, all = rows + a->handle->far_rows;
	int32_t own;

	if (i < all) {
		const struct ep_ll_entry *e = ll_entry(a, i >= rows, i < rows ? i : i - rows);

		out->row = e->row;
		out->home = e->home;
		out->token = e->token;
		return 1;
	}
	own = a->home_row[i - all];
	out->row = (uint32_t)own;
	out->home = a->shape.rank;
	out->token = (uint32_t)((i - all) / a->shape.topk);
	return own >= 0;
}

GX_DEV void ll_sources_count(const struct ep_ll_source_args *m, const struct ll_held *held)
{
	const struct ep_ll_shape *s = &m->ll.shape;
	uint32_t height = s->nranks * s->tmax, at = held->row % height;
	uint32_t *range = (uint32_t *)&m->ranges[(uint64_t)(held->row / height) * s->nranks + held->home];

	gx_dev_add_relaxed_u32(&range[0], 1);
	if (at == 0 || m->tokens[held->row - 1] != (int32_t)held->home)
		range[1] = at;
}

GX_KERNEL(ll_sources)(GX_ARGS(struct ep_ll_source_args) m)
{
	const struct ep_ll_args *a = &m.ll;
	uint64_t all = a->handle->rows + (uint64_t)a->handle->far_rows + (uint64_t)a->tokens * a->shape.topk;
	struct ll_held held;

	for (uint64_t i = gx_tid(); i < (uint64_t)a->shape.per_rank * a->shape.nranks; i += gx_threads())
		m.ranges[i] = 0;
	for (uint64_t i = gx_tid(); i < all; i += gx_threads())
		if (ll_held_at(a, i, &held))
			m.tokens[held.row] = (int32_t)held.home; /* for now */
	gx_syncthreads();
	for (uint64_t i = gx_tid(); i < all; i += gx_threads())
		if (ll_held_at(a, i, &held))
			ll_sources_count(&m, &held);
	gx_syncthreads();
	for (uint64_t i = gx_tid(); i < all; i += gx_threads())
		if (ll_held_at(a, i, &held))
			m.tokens[held.row] = (int32_t)held.token;
	gx_op_end(a->counted, &a->state->ended);
}
