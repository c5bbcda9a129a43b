/* SPDX-License-Identifier: Apache-2.0 */
/* Producers of kernels/probe/args_ring.h, by ticket: one resident block can run all of them. */
#include "kernels/gx/ring.h"
#include "kernels/op/op.h"
#include "kernels/probe/args_ring.h"

struct ring_push {
	const struct ep_ring_push_args *a;
	struct gx_limit limit;
	struct ep_cmd_ring ring;
	uint32_t producer;
};

/* The payload of command i; its fence comes with the batch. */
GX_DEV void ring_push_payload(const struct ring_push *p, uint32_t i)
{
	const struct ep_ring_push_args *a = p->a;

	if (a->payload)
		a->payload[(uint64_t)p->producer * a->count + i] = ep_ring_push_word(p->producer, i);
}

GX_DEV uint32_t ring_push_batch(const struct ring_push *p, uint32_t i, uint32_t n)
{
	enum gx_wait_result result;
	uint64_t at;

	for (uint32_t k = 0; gx_lane() == 0 && k < n; k++)
		ring_push_payload(p, i + k);
	if (p->a->payload)
		gx_fence_sys(); /* R1 */
	result = gx_ring_claim(&p->ring, n, &p->limit, &at);
	for (uint32_t k = 0; result == GX_ARRIVED && gx_lane() == 0 && k < n; k++)
		gx_ring_store(&p->ring, at + k, ep_ring_push_cmd(p->producer, i + k));
	gx_bell(p->ring.bell);
	return (uint32_t)result;
}

GX_DEV uint32_t ring_push_thread(const struct ring_push *p)
{
	uint32_t count = p->a->count, result = GX_ARRIVED, n;

	for (uint32_t i = 0; result == GX_ARRIVED && i < count; i += n) {
		n = count - i < p->a->batch ? count - i : p->a->batch;
		result = ring_push_batch(p, i, n);
	}
	return result;
}

GX_DEV uint32_t ring_push_warp(const struct ring_push *p)
{
	uint32_t count = p->a->count, result = GX_ARRIVED, n;

	for (uint32_t i = 0; result == GX_ARRIVED && i < count; i += n) {
		n = count - i < GX_WARP ? count - i : GX_WARP;
		if (gx_lane() < n)
			ring_push_payload(p, i + gx_lane());
		if (p->a->payload)
			gx_fence_sys(); /* R1: of each lane, for its own command */
		result = (uint32_t)gx_ring_push_warp(&p->ring, ep_ring_push_cmd(p->producer, i + gx_lane()), n,
						     &p->limit);
	}
	return result;
}

GX_DEV uint32_t ring_push_lanes(const struct ring_push *p)
{
	const struct ep_ring_push_args *a = p->a;
	uint32_t result = GX_ARRIVED;

	for (uint32_t i0 = 0; result == GX_ARRIVED && i0 < a->count; i0 += GX_WARP) {
		uint32_t i = i0 + gx_lane(), ring = (p->producer + i) % a->rings;
		uint64_t bad;

		if (i < a->count)
			ring_push_payload(p, i);
		result = (uint32_t)gx_ring_push_lanes(&a->ring[ring], i < a->count ? ring : GX_NO_RING,
						      ep_ring_push_cmd(p->producer, i), &p->limit, a->payload != 0);
		bad = gx_ballot(result != GX_ARRIVED);
		result = bad ? gx_shfl_u32(result, gx_popc((bad & -bad) - 1)) : (uint32_t)GX_ARRIVED;
	}
	return result;
}

/* Producers of one ring share its entries evenly. */
GX_DEV uint32_t ring_push_raw(const struct ring_push *p)
{
	uint32_t sharers = (p->a->items + p->a->rings - 1) / p->a->rings, room = p->ring.entries / sharers;
	uint64_t base = (uint64_t)(p->producer / p->a->rings % sharers) * room;

	for (uint32_t i = gx_lane(); room > 0 && i < p->a->count; i += GX_WARP)
		gx_ring_store(&p->ring, base + i % room, ep_ring_push_cmd(p->producer, i));
	return GX_ARRIVED;
}

/* Must be alone in its ring, so that the next completion is its own. */
GX_DEV uint32_t ring_push_echo(const struct ring_push *p)
{
	uint64_t start = gx_clock_ns(), at = 0;
	uint32_t result = GX_ARRIVED;

	for (uint32_t i = 0; result == GX_ARRIVED && i < p->a->count; i++) {
		result = (uint32_t)gx_ring_claim(&p->ring, 1, &p->limit, &at);
		if (result != GX_ARRIVED)
			break;
		if (gx_lane() == 0)
			gx_ring_store(&p->ring, at, ep_ring_push_cmd(p->producer, i));
		gx_bell(p->ring.bell);
		result = (uint32_t)gx_ring_wait_done(&p->ring, at + 1, &p->limit);
	}
	if (gx_lane() == 0)
		gx_st_relaxed_u64(&p->a->report->echo_ns, gx_clock_ns() - start);
	/* The same again by gx_ring_quiet, which needs no position. */
	return result == GX_ARRIVED ? (uint32_t)gx_ring_quiet(&p->ring, &p->limit) : result;
}

GX_DEV uint32_t ring_push_producer(const struct ring_push *p)
{
	if (p->a->mode == EP_PUSH_WARP)
		return ring_push_warp(p);
	if (p->a->mode == EP_PUSH_LANES)
		return ring_push_lanes(p);
	if (p->a->mode == EP_PUSH_RAW)
		return ring_push_raw(p);
	return p->a->mode == EP_PUSH_ECHO ? ring_push_echo(p) : ring_push_thread(p);
}

GX_KERNEL(ring_push)(GX_ARGS(struct ep_ring_push_args) a)
{
	struct ring_push p;
	uint32_t item, result;

	p.a = &a;
	p.limit.deadline = gx_clock_ns() + a.timeout_ns;
	p.limit.abort = a.abort;
	p.limit.failed = NULL;
	p.limit.gone = NULL;
	p.limit.afar = NULL;
	while ((item = gx_op_ticket(&a.state->ticket)) < a.items) {
		p.producer = a.first + item;
		p.ring = a.ring[p.producer % a.rings];
		result = ring_push_producer(&p);
		if (result != GX_ARRIVED)
			gx_st_relaxed_u64(&a.report->failed, result);
		gx_syncwarp();
	}
	if (gx_op_leave(&a.state->left) && gx_tid() == 0)
		a.state->ticket = a.state->left = 0;
}
