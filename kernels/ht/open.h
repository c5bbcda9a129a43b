/* SPDX-License-Identifier: Apache-2.0 */
/* How a dispatch or a combine begins: the ranks publish their tensors and agree how each is accessed. */
#ifndef EP_KERNELS_HT_OPEN_H
#define EP_KERNELS_HT_OPEN_H

#include "kernels/ht/ht.h"

/* One thread. Requests a mapping from the host, which may exist by the next operation. */
GX_DEV void ht_want(const struct ht *ht, uint32_t owner, uint64_t id)
{
	uint32_t slot = gx_dev_add_relaxed_u32(&ht->a->state->wants, 1) % EP_REACH_WANTED;
	struct ep_reach_want *want = &ht->a->reach->wanted[slot];

	if (gx_ld_acquire_u64(&want->id) != 0)
		return; /* the ring is full */
	gx_st_relaxed_u32(&want->owner, owner);
	gx_st_release_u64(&want->id, id); /* pairs with the acquire of the host's service thread */
}

/* One thread per owner. Where another process's allocation is mapped here; base 0: it is not. */
GX_DEV struct ep_reach_memo ht_mapped(const struct ht *ht, uint32_t owner, uint64_t id)
{
	struct ep_reach_memo found = { id, 0, 0, ht->version, 0 };
	struct ep_reach_memo *memo = ht->memo + (uint64_t)owner * EP_REACH_MEMO + id % EP_REACH_MEMO;
	const struct ep_reach_entry *e = ht->a->reach->entry + (uint64_t)owner * EP_REACH_SLOTS + id % EP_REACH_SLOTS;

	if (memo->id == id && memo->version == ht->version)
		return *memo;
	if (gx_ld_acquire_u64(&e->id) != id) {
		ht_want(ht, owner, id);
		return found;
	}
	/* Made after this launch: the next one may use it. */
	if ((int32_t)(gx_ld_relaxed_u32(&e->since) - ht->mapped) > 0)
		return found;
	found.base = gx_ld_relaxed_u64(&e->base);
	found.size = gx_ld_relaxed_u64(&e->size);
	*memo = found;
	return found;
}

/* One thread per owner: the address of the owner's tensor of so many bytes on this device, or 0. What is not near is
 * accessed inside the mapping only, whatever the line says: any rank of the node may have written it. */
GX_DEV uint64_t ht_resolve(const struct ht *ht, const struct ep_place *p, uint32_t owner, uint64_t bytes)
{
	uint64_t address = gx_ld_relaxed_u64(&p->address), id = gx_ld_relaxed_u64(&p->id);
	uint64_t offset = gx_ld_relaxed_u64(&p->offset);
	struct ep_reach_memo to;

	if (ht_is(ht, EP_HT_STAGE) || address == 0)
		return 0;
	if (ht_near(ht, owner))
		return address;
	if (id == 0 || !ht->a->reach)
		return 0;
	to = ht_mapped(ht, owner, id);
	return to.base && offset <= to.size && bytes <= to.size - offset ? to.base + offset : 0;
}

/* One thread: publishes this rank's tensors to peer; they stay valid until peer's done. */
GX_DEV void ht_show(const struct ht *ht, uint32_t peer)
{
	struct ep_ht_line *line = ht_line(ht, peer);

	for (uint32_t i = 0; i < 2; i++) {
		gx_st_relaxed_u64(&line->tensor[i].address, ht->a->place[i].address);
		gx_st_relaxed_u64(&line->tensor[i].id, ht->a->place[i].id);
		gx_st_relaxed_u64(&line->tensor[i].offset, ht->a->place[i].offset);
	}
	gx_st_relaxed_u64(&line->key, ht->a->call_key);
	gx_st_relaxed_u64(&line->rows, ht->a->limit);
	gx_st_release_u64(&line->entered, ht->op.epoch); /* R1 */
}

/* One thread per peer: how this rank accesses its tensors. Tokens and scales use the same path. */
GX_DEV void ht_choose(const struct ht *ht, uint32_t peer)
{
	const struct ep_ht_line *line = ht_from(ht, peer);
	uint64_t *to = ht->to + 2 * (uint64_t)peer;
	uint32_t rows = (uint32_t)gx_ld_relaxed_u64(&line->rows);

	to[0] = ht_resolve(ht, &line->tensor[0], peer, (uint64_t)rows * ht->a->row_bytes);
	to[1] = to[0];
	if (ht->a->scale_bytes)
		to[1] = ht_resolve(ht, &line->tensor[1], peer, (uint64_t)rows * ht->a->scale_bytes);
	if (to[1] == 0)
		to[0] = 0;
	if (peer != ht->op.rank)
		gx_dev_add_relaxed_u64(to[0] ? &ht->a->state->direct : &ht->a->state->staged, 1);
	ht->rows[peer] = to[0] ? rows : ht->a->stage_rows;
	gx_st_release_u64(&ht_line(ht, peer)->way, ht->op.epoch * 2 + (to[0] == 0)); /* R2 */
}

/* One thread. Checks the routing in the handle's memory against the call. 0: they do not match. */
GX_DEV uint32_t ht_routed(const struct ht *ht)
{
	const struct ep_ht_args *a = ht->a;
	const struct ep_ht_handle *h = a->handle;
	uint32_t code = EP_KERR_UNROUTED;

	if (h->magic == EP_HT_MAGIC && h->key == a->routing_key && h->topk <= a->shape.room && h->tokens == a->tokens &&
	    (a->topk == 0 || h->topk == a->topk)) {
		if (ht->op.far && ht->op.kind == EP_KIND_COMBINE && !h->relayed)
			code = EP_KERR_UNSENT;
		else if (h->rows <= a->limit)
			return 1;
		else
			code = EP_KERR_SHORT;
	}
	gx_op_fail(&ht->op, code, a->shape.rank, EP_KPHASE_START);
	return 0;
}

/* Whether rows between this rank and peer may go through the window. */
GX_DEV uint32_t ht_may_stage(const struct ht *ht, uint32_t peer)
{
	return ht_is(ht, EP_HT_STAGE) || !ht_near(ht, peer);
}

/* One warp. A combine must know before it begins which peers want its rows in the window; a dispatch, at its end. */
GX_DEV uint32_t ht_wait_ways(struct ht *ht, uint32_t combine)
{
	uint32_t any = 0, bad = 0;

	for (uint32_t i0 = 0; i0 < ht_mates(ht); i0 += GX_WARP) {
		uint32_t has = i0 + gx_lane() < ht_mates(ht), r = ht_mate(ht, has ? i0 + gx_lane() : 0);
		const uint64_t *way = &ht_from(ht, r)->way;
		uint32_t serve = has && ht_may_stage(ht, r);

		if (combine)
			bad |= !ht_wait(ht, serve ? way : NULL, ht->op.epoch * 2, r, EP_KPHASE_START); /* A2 */
		if (serve && combine)
			serve = gx_ld_relaxed_u64(way) & 1;
		if (has)
			ht->serve[r] = serve;
		any |= serve;
	}
	any = gx_ballot((int)any) != 0;
	if (gx_lane() == 0)
		*ht->any = any;
	return gx_ballot((int)bad) == 0;
}

/* All lanes, before any mapping is used; now: the table's version. A mapping is used only by kernels launched after it
 * was made; the host does not see the launches of a graph, so there the operation before must have found it. */
GX_DEV void ht_version(struct ht *ht, uint32_t now)
{
	struct ep_ht_state *state = ht->a->state;
	uint32_t before = state->version;

	ht->mapped = ht->a->mapped == EP_REACH_CAPTURED ? before : ht->a->mapped;
	if (gx_lane() == 0 && now != before) {
		now = gx_ld_acquire_u32(&ht->a->reach->version); /* T1 */
		/* T4: what earlier versions had is no longer used: earlier operations have ended, and this one finds
		 * it no more. Pairs with the host's acquire. */
		gx_st_release_u32(&ht->a->reach->seen, now);
	}
	ht->version = gx_shfl_u32(now, 0);
	gx_syncwarp();
	if (gx_lane() == 0)
		state->version = ht->version;
}

/* One warp of one block. HT_GO or HT_STOP. */
GX_DEV uint32_t ht_agree(struct ht *ht)
{
	uint32_t bad = 0, n = ht_mates(ht), settled = ht->a->state->settled == ht->op.epoch - 1, version = 0;

	if (gx_lane() == 0)
		bad = ht_dead(ht) || !ht_routed(ht);
	if (gx_ballot((int)bad) != 0)
		return HT_STOP;
	if (!settled && !HT_WAIT_ALL(ht, done, ht->op.epoch - 1, EP_KPHASE_START))
		return HT_STOP;
	for (uint32_t i = gx_lane(); i < n; i += GX_WARP)
		ht_show(ht, ht_mate(ht, i));
	gx_syncwarp();
	/* After opened, which the host polls. Used only after the wait, which hides most of its time. */
	if (gx_lane() == 0 && ht->a->reach)
		version = gx_ld_relaxed_u32(&ht->a->reach->version);
	if (!HT_WAIT_ALL(ht, entered, ht->op.epoch, EP_KPHASE_START) || !ht_alike(ht)) /* A1 */
		return HT_STOP;
	if (ht->a->reach)
		ht_version(ht, version);
	for (uint32_t i = gx_lane(); i < n; i += GX_WARP)
		ht_choose(ht, ht_mate(ht, i));
	gx_syncwarp();
	bad = !ht_wait_ways(ht, ht->op.kind == EP_KIND_COMBINE);
	gx_syncwarp();
	return bad ? HT_STOP : HT_GO;
}

/* All threads. 0: this launch must do nothing. */
GX_DEV uint32_t ht_open(struct ht *ht)
{
	GX_SHARED uint32_t opener;
	const struct ep_ht_args *a = ht->a;

	if (gx_tid() == 0)
		opener = gx_dev_add_relaxed_u32(&a->state->opened, 1) == 0;
	gx_syncthreads();
	if (opener && gx_warp() == 0) {
		uint32_t go = ht_agree(ht);

		if (gx_lane() == 0)
			gx_dev_add_acqrel_u32(&a->state->ready, go); /* R3 */
	}
	if (!ht_ready(ht))
		return 0;
	for (uint32_t r = gx_tid(); r < a->shape.nranks; r += gx_threads()) {
		uint32_t here = ht_via(ht, r) == r; /* else it has no rows that this rank could access */

		ht->near_to[2 * r] = here ? ht->to[2 * r] : 0;
		ht->near_to[2 * r + 1] = here ? ht->to[2 * r + 1] : 0;
		ht->window[r] = here ? ht_window(ht, r) : NULL;
		ht->near_rows[r] = here ? ht->rows[r] : 0;
	}
	gx_syncthreads();
	gx_fence_proxy(); /* A1, A3: rows go to the peers' tensors and windows */
	return 1;
}

/* The last block: waits until no rank accesses this rank's tensors any more. */
GX_DEV void ht_end(struct ht *ht, uint32_t go)
{
	if (go && gx_warp() == 0)
		HT_WAIT_ALL(ht, done, ht->op.epoch, EP_KPHASE_RECV);
	ht_close(ht, go);
}

/* ---- a token's routing, for dispatch and combine ---- */

GX_DEV uint32_t ht_peer(const struct ht *ht, uint32_t i)
{
	return (uint32_t)ht->list.expert[i] / ht->a->shape.per_rank;
}

/* Whether entry i is the first of its rank. */
GX_DEV uint32_t ht_first(const struct ht *ht, uint32_t i)
{
	return i == 0 || ht_peer(ht, i - 1) != ht_peer(ht, i);
}

/* All lanes. */
GX_DEV void ht_list_load(struct ht *ht, uint32_t token)
{
	uint64_t at = (uint64_t)token * ht->topk;
	uint32_t expert_major = ht_is(ht, EP_HT_EXPERT_MAJOR);

	gx_syncwarp(); /* the token before no longer uses it */
	for (uint32_t i = gx_lane(); i < ht->topk; i += GX_WARP) {
		ht->list.expert[i] = ht->expert[at + i];
		ht->list.row[i] = ht->row[at + i];
		ht->list.flat[i] = expert_major ? ht->flat[at + i] : ht->row[at + i];
	}
	gx_syncwarp();
}

#endif
