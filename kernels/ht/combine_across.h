/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT combine across nodes. Two kinds of work: sum a client's rows in this node and send the sums home, a step at a
 * time; and sum a token of this rank, when the sums of all its nodes have arrived. Tokens are taken in order, and so
 * are the steps of a channel: the lowest token that waits has its rows in the oldest steps, for which there is always
 * room. Half of a block's warps take tokens only when no steps are left to send: a warp that fills a step while it
 * holds a token lets the token wait, and with it the slots of its rows.
 */
#ifndef EP_KERNELS_HT_COMBINE_ACROSS_H
#define EP_KERNELS_HT_COMBINE_ACROSS_H

#include "kernels/ht/sum.h"

/* ---- for a client ---- */

/* All lanes: what the client's dispatch has left, as the routing of a token. */
GX_DEV void ht_relayed_load(struct ht *ht, uint32_t client, uint32_t row)
{
	uint64_t at = ((uint64_t)client * ht->a->shape.tmax + row) * ht->x.entries;

	gx_syncwarp(); /* the row before no longer uses the list */
	for (uint32_t i = gx_lane(); i < ht->topk; i += GX_WARP) {
		ht->list.expert[i] = i < ht->x.entries ? ht->x.expert[at + i] : -1;
		ht->list.row[i] = i < ht->x.entries ? ht->x.row[at + i] : EP_HT_NONE;
	}
	gx_syncwarp();
}

/* Backward: the weights of its entries. */
GX_DEV void ht_relayed_weights(struct ht *ht, float *to)
{
	for (uint32_t i = gx_lane(); i < ht->topk && ht->list.expert[i] >= 0; i += GX_WARP) {
		uint32_t peer = ht_peer(ht, i), row = ht->list.row[i], first = i;

		while (!ht_is(ht, EP_HT_EXPERT_MAJOR) && !ht_first(ht, first))
			first--;
		to[i] = row < ht->a->shape.capacity ? ((const float *)ht_meta(ht, peer, row))[i - first] : 0.0f;
	}
}

GX_DEV void ht_relay_step(struct ht *ht, struct ht_step step)
{
	uint32_t first = ht_step_first(ht, step.number), rows = ht_step_rows(ht, &ht->x.out, step);
	uint8_t *to = ht_step_at(ht, &ht->x.out, step);

	for (uint32_t i = 0; i < rows; i++, to += ht->x.pitch) {
		struct sum sum = { NULL, NULL, NULL, 0, ht->a->hidden, gx_lane(), GX_WARP };

		ht_relayed_load(ht, step.channel, first + i);
		if (ht_is(ht, EP_HT_BACKWARD))
			ht_relayed_weights(ht, (float *)(to + sizeof(struct ep_ht_row)));
		if (gx_lane() == 0)
			((struct ep_ht_row *)to)->key = ht->a->call_key;
		sum.out = to + ht->x.head;
		sum.term = (const uint8_t *const *)ht->list.dst;
		sum.terms = ht_terms(ht, NULL, (const uint8_t **)ht->list.dst);
		sum_rows_plain(&sum, ht->a->dtype);
	}
	ht_step_send(ht, step);
}

/* ---- at home ---- */

/* All lanes: a relay whose sum for the token, which is in the list, has not arrived; EP_HT_NONE: all have. */
GX_DEV uint32_t ht_missing(const struct ht *ht, uint32_t token)
{
	const uint32_t *cross = ht->x.cross + (uint64_t)token * ht->topk;
	uint32_t missing = EP_HT_NONE;
	uint64_t mask;

	for (uint32_t i = gx_lane(); i < ht->topk; i += GX_WARP) {
		uint32_t node = 0;

		if (cross[i] == EP_HT_NONE)
			continue;
		node = ht->a->across.where[ht_peer(ht, i)];
		if (ht_step_of(ht, cross[i]) >= ht_steps_ready(ht, &ht->x.in, node))
			missing = ht->x.in.peer[node].rank;
	}
	mask = gx_ballot(missing != EP_HT_NONE);
	missing = mask ? gx_shfl_u32(missing, gx_popc((mask & -mask) - 1)) : EP_HT_NONE;
	gx_syncwarp();
	return missing;
}

/* All lanes: whether the rows that have come for the token are of this call. */
GX_DEV uint32_t ht_home_alike(const struct ht *ht, uint32_t token)
{
	const uint32_t *cross = ht->x.cross + (uint64_t)token * ht->topk;
	uint32_t bad = 0;

	for (uint32_t i = gx_lane(); i < ht->topk; i += GX_WARP) {
		const struct ep_ht_row *head;

		if (cross[i] == EP_HT_NONE)
			continue;
		head = (const struct ep_ht_row *)ht_home_row(ht, i, cross[i]);
		if (head->key == ht->a->call_key)
			continue;
		gx_op_fail(&ht->op, EP_KERR_SHAPE, ht->x.in.peer[ht->a->across.where[ht_peer(ht, i)]].rank,
			   EP_KPHASE_RECV);
		bad = 1;
	}
	bad = gx_ballot((int)bad) != 0;
	gx_syncwarp();
	return !bad;
}

/* Lanes by k: the rows of the token have been read; the last row of a step frees its slot (R10, A10). */
GX_DEV void ht_home_free(struct ht *ht, uint32_t token)
{
	const uint32_t *cross = ht->x.cross + (uint64_t)token * ht->topk;

	gx_syncwarp(); /* all lanes have read theirs */
	for (uint32_t i0 = 0; i0 < ht->topk; i0 += GX_WARP) {
		uint32_t i = i0 + gx_lane(), last = 0;
		struct ht_step step = { 0, 0 };

		if (i < ht->topk && cross[i] != EP_HT_NONE) {
			uint32_t *used;

			step.channel = ht->a->across.where[ht_peer(ht, i)];
			step.number = ht_step_of(ht, cross[i]);
			used = ht->a->across.used + step.channel * EP_HT_STEPS + ht_slot(ht, &ht->x.in, step);
			last = gx_dev_add_acqrel_u32(used, 1) + 1 >= ht_step_rows(ht, &ht->x.in, step);
			if (last) {
				gx_st_relaxed_u32(used, 0);
				gx_fence_sys();
			}
		}
		if (gx_ballot((int)last) != 0)
			ht_step_credit(ht, step, last); /* R9 */
	}
	gx_syncwarp();
}

/* ---- all of it ---- */

/* The token that a warp has taken and not summed yet. */
struct ht_home {
	uint32_t token;
	uint32_t held;	  /* token is valid, */
	uint32_t more;	  /* or there may be another */
	uint32_t loaded;  /* the list has its routing */
	uint32_t awaited; /* a relay that has not sent its sum; else EP_HT_NONE */
};

/* All lanes: sums a token if it can. */
GX_DEV uint32_t ht_home_some(struct ht *ht, struct ht_home *home, uint32_t *bad)
{
	uint32_t tokens = ht->a->tokens;

	home->awaited = EP_HT_NONE;
	if (!home->held && home->more) {
		home->token = ht_take(ht, HT_WORK);
		home->more = home->token <= tokens; /* one more: a rank without tokens signals too */
		home->held = home->more;
		home->loaded = 0;
	}
	if (!home->held)
		return 0;
	if (home->token < tokens) {
		if (!home->loaded)
			ht_list_load(ht, home->token);
		home->loaded = 1;
		home->awaited = ht_missing(ht, home->token);
		if (home->awaited != EP_HT_NONE)
			return 0;
		*bad = !ht_home_alike(ht, home->token);
		if (*bad)
			return 1;
		ht->ahead = 1; /* the list is loaded */
		ht_sum_token(ht, home->token);
		ht_home_free(ht, home->token);
	}
	home->held = 0;
	return 1;
}

/* All lanes: does one piece of work. */
GX_DEV enum ht_found ht_combine_some(struct ht *ht, struct ht_home *home, uint32_t *bad)
{
	uint32_t sends = gx_warp() < (gx_warps() + 1) / 2;
	struct ht_step out = { HT_NO_MORE, 0 };

	if (sends)
		out = ht_step_take(ht, &ht->x.out);
	if (ht_step_is(out)) {
		ht_relay_step(ht, out);
		home->loaded = 0;
		return HT_DONE_SOME;
	}
	if (gx_warps() > 1 && out.channel != HT_NO_MORE)
		return HT_NOTHING_YET;
	if (ht_home_some(ht, home, bad)) {
		if (gx_warp() == gx_warps() - 1) /* as in a dispatch */
			ht_look(ht, 1);
		return HT_DONE_SOME;
	}
	return out.channel == HT_NO_MORE && !home->held ? HT_NOTHING_LEFT : HT_NOTHING_YET;
}

/* One thread: the rank of another node for which this warp waits. */
GX_DEV uint32_t ht_combine_awaited(const struct ht *ht, const struct ht_home *home)
{
	uint32_t out = ht_untaken(ht, &ht->x.out);

	if (home->awaited != EP_HT_NONE || out >= ht->x.out.n)
		return home->awaited;
	return ht->x.out.peer[out].rank;
}

GX_DEV void ht_combine_across(struct ht *ht)
{
	uint32_t items = ht->a->tokens + 1 + (uint32_t)ht_steps_of(ht, &ht->x.out), n = 0;
	uint32_t bad = !ht_served(ht);
	struct ht_home home = { 0, 0, 1, 0, EP_HT_NONE };
	struct ht_idle idle = { 0, 0 };
	enum ht_found found;

	if (gx_warp() == gx_warps() - 1) /* as in a dispatch: which slots are free */
		ht_look(ht, 1);
	while (!bad && (found = ht_combine_some(ht, &home, &bad)) != HT_NOTHING_LEFT) {
		enum gx_wait_result result;

		if (found == HT_DONE_SOME) {
			idle.spin = 0;
			n++;
			continue;
		}
		result = ht_idle(ht, &idle);
		bad = result != GX_ARRIVED;
		if (bad && gx_lane() == 0)
			ht_idle_fail(ht, result, ht_combine_awaited(ht, &home));
	}
	if (!bad && ht_finished(ht, HT_WORK, n, items))
		HT_TELL_ALL(ht, done);
}

#endif
