/* SPDX-License-Identifier: Apache-2.0 */
/* The wires of the NIC made of multiprocessors (nic.cu): when a put has left the sender's and the receiver's. */
#ifndef EP_KERNELS_PROBE_NIC_WIRE_H
#define EP_KERNELS_PROBE_NIC_WIRE_H

#include "kernels/op/op.h"
#include "kernels/probe/args_nic.h"

GX_DEV uint64_t nic_span(const struct ep_nic_args *a, uint32_t bytes)
{
	return ((uint64_t)bytes * a->ps_per_byte + 999) / 1000;
}

#define NIC_LATER UINT64_MAX

/*
 * Whether a wire that is free from then on may be reserved for `at`; until: the end of the context's last turn. The
 * receiver's wire is reserved with the sender's, so it would stay idle where that is far ahead: others would have come
 * first.
 */
GX_DEV uint32_t nic_soon(uint64_t free, uint64_t at, uint64_t until)
{
	return free <= at + (free == until ? EP_NIC_AHEAD / 2 : EP_NIC_AHEAD);
}

/* With the lock: a span on a sender's wire. When it begins, or NIC_LATER: it is not free soon, and not reserved. */
GX_DEV uint64_t nic_send(struct ep_nic_wire *wire, uint64_t at, uint64_t span, uint64_t until)
{
	uint64_t free = gx_ld_relaxed_u64(&wire->free), start = free > at ? free : at;

	if (!nic_soon(free, at, until))
		return NIC_LATER;
	gx_st_relaxed_u64(&wire->free, start + span);
	return start;
}

/*
 * With the lock: a span on a receiver's wire, from `at` on. When it would begin if it were in one piece. What a sender
 * reserved ahead leaves the wire idle before it: others' bytes come there first, as packets do, and the rest behind all
 * that is reserved. One such gap is remembered, the last.
 */
GX_DEV uint64_t nic_receive(struct ep_nic_wire *wire, uint64_t at, uint64_t span)
{
	uint64_t free = gx_ld_relaxed_u64(&wire->free), gap = gx_ld_relaxed_u64(&wire->gap);
	uint64_t end = gx_ld_relaxed_u64(&wire->gap_end), from = gap > at ? gap : at, early = 0, start;

	if (end > from)
		early = end - from < span ? end - from : span;
	if (early != 0)
		gx_st_relaxed_u64(&wire->gap, from + early);
	if (early == span)
		return from;
	start = free > at ? free : at;
	gx_st_relaxed_u64(&wire->free, start + span - early);
	if (start > free) {
		gx_st_relaxed_u64(&wire->gap, free);
		gx_st_relaxed_u64(&wire->gap_end, start);
	}
	return start - early;
}

/* All lanes, each on a wire of its own; NULL: none. until: as nic_soon, or NIC_LATER: a receiver's wire. Another front
 * holds the lock for two accesses. */
GX_DEV uint64_t nic_reserve(struct ep_nic_wire *wire, uint64_t at, uint64_t span, uint64_t until)
{
	uint32_t waits = wire != NULL;
	uint64_t start = at;

	for (uint32_t spin = 0; gx_ballot((int)waits) != 0; spin++) {
		if (waits && gx_dev_cas_acquire_u32(&wire->lock, 0, 1) == 0) {
			if (until == NIC_LATER)
				start = nic_receive(wire, at, span);
			else
				start = nic_send(wire, at, span, until);
			gx_dev_st_release_u32(&wire->lock, 0);
			waits = 0;
		}
		if (gx_ballot((int)waits) != 0)
			gx_pause(spin);
	}
	return start;
}

/* A lane's put; not active: none, with EP_NIC_PORTS as its receiver. */
struct nic_put {
	uint32_t active, bytes, from, to;
};

/* What it has in common with the other puts of the batch. */
struct nic_batch {
	uint64_t before, total; /* on the sender's wire, ns */
	uint64_t ahead, all;	/* of the same receiver: on its wire, ns */
	uint32_t nth, same;	/* and in number */
	uint32_t first;		/* the first lane of them */
};

/* All lanes: what the puts before and all of them take, if each takes span. */
GX_DEV void nic_sums(uint64_t span, uint64_t *before, uint64_t *all)
{
	uint64_t sum = span;

	for (uint32_t d = 1; d < GX_WARP; d *= 2) {
		uint64_t lower = gx_shfl_u64(sum, gx_lane() >= d ? gx_lane() - d : gx_lane());

		sum += gx_lane() >= d ? lower : 0;
	}
	*before = sum - span;
	*all = gx_shfl_u64(sum, GX_WARP - 1);
}

GX_DEV struct nic_batch nic_scan(const struct ep_nic_args *a, uint32_t count, uint32_t bytes, uint32_t to)
{
	uint64_t span = nic_span(a, bytes);
	uint32_t one = gx_shfl_u32(to, 0);
	struct nic_batch b;

	nic_sums(span, &b.before, &b.total);
	b.first = 0; /* also in a lane without a put */
	b.nth = gx_lane();
	b.same = count;
	b.ahead = b.before;
	b.all = b.total;
	if (gx_ballot(gx_lane() < count && to != one) == 0)
		return b; /* all to one receiver */
	b.ahead = b.all = 0;
	b.nth = b.same = 0;
	for (uint32_t j = count; j-- > 0;) {
		uint64_t other = gx_shfl_u64(span, j);

		if (gx_shfl_u32(to, j) != to)
			continue;
		b.ahead += j < gx_lane() ? other : 0;
		b.all += other;
		b.nth += j < gx_lane();
		b.same++;
		b.first = j;
	}
	return b;
}

/* All lanes: whether it may be the turn of a context whose next put is lane 0's. */
GX_DEV uint32_t nic_may(const struct ep_nic_args *a, const struct nic_put *put, uint64_t until)
{
	const struct ep_nic_wire *wire = &a->common->sends[gx_shfl_u32(put->from, 0)];

	if (a->ps_per_byte == 0) /* no wire to share */
		return 1;
	return gx_shfl_u32(nic_soon(gx_ld_relaxed_u64(&wire->free), gx_clock_ns(), until), 0);
}

/* All lanes. The time at which the lane's put is delivered, or NIC_LATER, for all; *until: of the context's turns, the
 * last of which ends with the batch. The first put to a receiver reserves for the others. at: when they came: latency
 * includes what it takes to read them. */
GX_DEV uint64_t nic_due(const struct ep_nic_args *a, const struct nic_put *put, const struct nic_batch *b, uint64_t at,
			uint64_t *until)
{
	uint64_t sent, base, span = nic_span(a, put->bytes), due;
	uint32_t reserves = put->active && gx_lane() == b->first;
	struct ep_nic_wire *wire = &a->common->sends[gx_lane() == 0 ? put->from : 0];

	if (a->ps_per_byte == 0) /* no wire to share */
		return at + a->latency_ns;
	sent = nic_reserve(gx_lane() == 0 ? wire : NULL, at, b->total, *until);
	sent = gx_shfl_u64(sent, 0);
	if (sent == NIC_LATER)
		return NIC_LATER;
	*until = sent + b->total;
	sent += b->before;
	base = nic_reserve(reserves ? &a->common->receives[put->to] : NULL, sent + a->latency_ns, b->all, NIC_LATER);
	base = gx_shfl_u64(base, b->first);
	due = base + b->ahead + span;
	return due > sent + span + a->latency_ns ? due : sent + span + a->latency_ns;
}

/* Mixes the bits of an index: neighbours get different delays. */
GX_DEV uint64_t nic_jitter(const struct ep_nic_args *a, uint32_t i)
{
	i = (i ^ i >> 16) * 0x45d9f3bu;
	i = (i ^ i >> 16) * 0x45d9f3bu;
	return (i ^ i >> 16) % (a->jitter_ns + 1);
}

/* All lanes: how many of the puts, from the first lane's on, are in this turn. until: the end of the last one. */
GX_DEV uint32_t nic_turn(const struct ep_nic_args *a, const struct nic_put *put, uint64_t until)
{
	uint64_t before, all, now = gx_clock_ns(), limit = EP_NIC_TURN;

	if (a->ps_per_byte == 0) /* no wire to share */
		return gx_popc(gx_ballot((int)put->active));
	nic_sums(put->bytes, &before, &all);
	if (all > limit) {
		uint64_t free = gx_ld_relaxed_u64(&a->common->sends[gx_shfl_u32(put->from, 0)].free);

		limit *= gx_shfl_u32(free <= (until > now ? until : now), 0) ? EP_NIC_ALONE : 1;
	}
	return gx_popc(gx_ballot(put->active && before < limit));
}

#endif
