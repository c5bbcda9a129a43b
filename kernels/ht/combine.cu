/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT combine. The home rank reads its tokens' rows in place, in its peers' tensors, sums them in fp32 in ascending
 * (rank, expert) order and rounds once. A peer whose tensor it cannot access copies the rows to its own window first.
 *
 * Roles by ticket: serve (rows and, in the backward pass, weights into this rank's own window), sum (a warp per token).
 */
#include "kernels/ht/combine_across.h"

/* ticket: the first one, in lane 0. */
GX_DEV void ht_sum(struct ht *ht)
{
	uint32_t items = ht->a->tokens + 1, item, n = 0;

	if (!ht_served(ht))
		return;
	while ((item = gx_shfl_u32(ht->ticket, 0)) < items) {
		ht->ticket = gx_op_take(&ht->a->state->ticket[HT_WORK]); /* overlaps with the rows' loads */
		if (item < ht->a->tokens)
			ht_sum_token(ht, item);
		n++;
	}
	if (ht_finished(ht, HT_WORK, n, items))
		HT_TELL_ALL(ht, done);
}

GX_DEV void ht_combine_run(const struct ep_ht_args *a, const struct ep_far *far, uint8_t *shared)
{
	struct ht ht;
	uint32_t go;

	ht_begin(&ht, a, EP_KIND_COMBINE, far, a->topk ? a->topk : a->handle->topk, shared);
	if (far) {
		ht_across_begin(&ht);
	} else {
		ht.ticket = gx_op_take(&a->state->ticket[HT_WORK]);
		ht.ahead = gx_shfl_u32(ht.ticket, 0) < a->tokens;
		if (ht.ahead)
			ht_list_load(&ht, gx_shfl_u32(ht.ticket, 0));
	}
	go = ht_open(&ht);
	if (go)
		ht_serve(&ht);
	if (go && far)
		ht_combine_across(&ht);
	else if (go)
		ht_sum(&ht);
	if (gx_op_leave(&a->state->left)) { /* R6, A6 */
		if (far)
			ht_across_end(&ht);
		ht_end(&ht, go);
	}
}

GX_KERNEL(ht_combine)(GX_ARGS(struct ep_ht_args) a)
{
	GX_DYN_SHARED(shared);

	ht_combine_run(&a, NULL, shared);
}

GX_KERNEL(ht_far_combine)(GX_ARGS(struct ep_ht_args) a)
{
	GX_DYN_SHARED(shared);

	ht_combine_run(&a, &a.across.far, shared);
}
