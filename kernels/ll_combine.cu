/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LL combine. Rows go back to the slot of (token, k) at their home rank, which adds them up in k order, in fp32, and
 * rounds once. Own rows of an operation in one launch are read where they lie.
 *
 * Roles: return (a warp per row), signal (the warp that finished last), sum (a block per token).
 */
#include "kernels/args.h"
#include "kernels/ll.h"
#include "kernels/sum.h"

/* ---- send ---- */

GX_DEV void ll_return_row(struct ll *ll, uint32_t row, uint32_t home, uint32_t slot)
{
	const struct ep_ll_args *a = ll->a;
	const uint8_t *src = a->in + (uint64_t)row * a->row_bytes;
	uint8_t *dst = ll_slot(ll, home, a->shape.rank, slot);
	uint32_t room = gx_bulk_room(&ll->bulk), ok = 0;

	if (gx_lane() == 0)
		ok = !ll_off(ll, home) && ll_wait_free(ll, home);
	if (!gx_shfl_u32(ok, 0))
		return;
	gx_syncwarp();
	for (uint32_t at = 0; at < a->row_bytes; at += room) {
		uint32_t n = a->row_bytes - at < room ? a->row_bytes - at : room;

		gx_bulk_load(&ll->bulk, src + at, n);
		gx_bulk_store(&ll->bulk, dst + at, 0, n);
	}
}

/* Items: the rows of others by the list, then, where own rows must not wait in the caller's tensor, (token, k) of this
 * rank, then one that is nothing, for the rank that has no row at all. */
GX_DEV void ll_return(struct ll *ll)
{
	const struct ep_ll_args *a = ll->a;
	uint32_t rows = a->handle->rows, own = ll->direct ? 0 : a->tokens * a->shape.topk;
	uint32_t items = rows + own + 1, item;

	if (gx_warp() != 0 && gx_warp() * gx_blocks() >= items)
		return;
	while ((item = gx_op_ticket(&a->state->send_ticket)) < items) {
		if (item < rows) {
			const struct ep_ll_entry *e = &ll->a->list[item];

			ll_return_row(ll, e->row, e->home, e->slot);
		} else if (item < rows + own && ll->a->home_row[item - rows] >= 0) {
			uint32_t at = item - rows;

			ll_return_row(ll, (uint32_t)ll->a->home_row[at], a->shape.rank,
				      a->shape.masked ? ll->a->sent_slot[at] : at);
		}
		if (ll_finished(ll, items))
			ll_signal(ll);
	}
}

/* ---- receive ---- */

/* The row that position k of a token adds, or NULL for none; waits for its rank. One thread. */
GX_DEV const uint8_t *ll_term(struct ll *ll, uint32_t token, uint32_t k)
{
	const struct ep_ll_args *a = ll->a;
	const struct ep_ll_shape *s = &a->shape;
	uint32_t rank_major = ll_is(ll, EP_LL_RANK_MAJOR), first = k, peer;
	int64_t id = ll_topk(a, token, k);

	if (id < 0 || id >= (int64_t)s->experts)
		return NULL;
	peer = (uint32_t)id / s->per_rank;
	for (uint32_t j = 0; j < first; j++) {
		int64_t other = ll_topk(a, token, j);
		uint32_t same =
			rank_major ? other >= 0 && other < (int64_t)s->experts && (uint32_t)other / s->per_rank == peer
				   : other == id;

		first = same ? j : first;
	}
	/* A rank adds its sum once; an expert named twice adds its one row with both weights. */
	if (rank_major && first != k)
		return NULL;
	k = (uint32_t)(token * s->topk + first);
	if (peer == s->rank && ll->direct)
		return ll->a->home_row[k] < 0 ? NULL : a->in + (uint64_t)(uint32_t)ll->a->home_row[k] * a->row_bytes;
	if (ll_off(ll, peer) || !ll_wait_signal(ll, peer))
		return NULL;
	return ll_slot(ll, s->rank, peer, s->masked ? ll->a->sent_slot[k] : k);
}

GX_DEV void ll_sum(struct ll *ll, uint8_t *shared)
{
	GX_SHARED uint32_t ticket;
	const struct ep_ll_args *a = ll->a;
	/* Behind the warps' stages: those hold barriers of the copy engine. */
	const uint8_t **term = (const uint8_t **)(shared + ep_ll_terms_at(a, gx_warps()));
	float *weight = (float *)(term + a->shape.topk);
	struct sum sum = { NULL, term, weight, a->shape.topk, a->hidden };

	for (;;) {
		uint32_t token;

		gx_syncthreads(); /* the terms of the last token have been read, and every warp's stage is idle */
		if (gx_tid() == 0)
			ticket = gx_dev_add_relaxed_u32(&a->state->recv_ticket, 1);
		gx_syncthreads();
		token = ticket;
		if (token >= a->tokens)
			return;
		for (uint32_t k = gx_tid(); k < a->shape.topk; k += gx_threads()) {
			term[k] = ll_term(ll, token, k);
			weight[k] = a->topk_weights ? a->topk_weights[(uint64_t)token * a->shape.topk + k] : 1.0f;
		}
		gx_syncthreads();
		sum.out = a->out + (uint64_t)token * a->row_bytes;
		sum_rows(&sum, a->dtype);
	}
}

GX_KERNEL(ll_combine)(GX_ARGS(struct ep_ll_args) a)
{
	GX_DYN_SHARED(shared);
	struct ll ll;
	uint32_t go = ll_open(&ll, &a, EP_KIND_COMBINE, shared);

	if (go && (a.flags & EP_LL_SEND))
		ll_return(&ll);
	if (go && (a.flags & EP_LL_RECV))
		ll_sum(&ll, shared);
	if (!gx_op_leave(&a.state->left)) /* R3, A3 */
		return;
	if (go && (a.flags & EP_LL_SEND))
		ll_end_send(&ll);
	if (go && (a.flags & EP_LL_RECV))
		ll_end_recv(&ll);
	if (gx_tid() == 0)
		a.state->left = 0;
}
