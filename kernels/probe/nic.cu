/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC made of multiprocessors (kernels/probe/args_nic.h has the layout). Three roles per context:
 *   front    polls the queue, reserves the wires and makes jobs; the only warp that reads across PCIe for this context
 *   workers  copy the bytes, each every n-th job, as soon as the job is there
 *   back     delivers: once a put's bytes are there, its time has come and, on an ordered net, it is its turn
 * Where warps are few (the CPU device has one) a warp has all roles of a context. No role waits inside: each is a step
 * of the warp's loop, so that one warp can do everything.
 *
 * Copies are neither ordered nor paced; what tells of them is: words, records, and small puts, which the back stores.
 * So a row's bytes may be there before its time, but nobody is told.
 *
 * Orderings, each with its partner (H: the host):
 *   A0 posted			pairs with H's release after the descriptor
 *   R1 jobs -> taken		pairs with A1, the worker's
 *   R2 jobs, fifo -> in	pairs with A2, the back's
 *   R3 bytes -> copied		pairs with A3, the back's
 *   R4 A3 -> word, record	pairs with the acquire of whoever polls it
 *   R5 no more jobs -> closed	pairs with A5: taken is final then
 */
#include "kernels/op/op.h"
#include "kernels/probe/args_nic.h"

#define NIC_OPEN 1u	   /* the role has work left in this launch */
#define NIC_MOVED 2u	   /* this step did something */
#define NIC_QUIT_NS 20000u /* between polls of the host's word */

struct nic {
	const struct ep_nic_args *a;
	uint32_t self, warps; /* this warp among all of the grid: neighbours are in different blocks */
	uint64_t last, next;  /* the leader's: of the last put, of the next poll of quit */
	uint32_t sum;
	struct gx_bulk bulk;
};

/* ---- front ---- */

GX_DEV uint64_t nic_span(const struct ep_nic_args *a, uint32_t bytes)
{
	return ((uint64_t)bytes * a->ps_per_byte + 999) / 1000;
}

/* One lane. When the span begins. Another front holds the lock for two accesses. */
GX_DEV uint64_t nic_reserve(struct ep_nic_wire *wire, uint64_t at, uint64_t span)
{
	uint64_t start = at;

	for (uint32_t spin = 0, done = 0; !done; spin++) {
		if (gx_dev_cas_acquire_u32(&wire->lock, 0, 1) == 0) {
			uint64_t free = gx_ld_relaxed_u64(&wire->free);

			start = free > at ? free : at;
			gx_st_relaxed_u64(&wire->free, start + span);
			gx_dev_st_release_u32(&wire->lock, 0);
			done = 1;
		} else {
			gx_pause(spin);
		}
	}
	return start;
}

/* What a lane's put has in common with the other puts of the batch. */
struct nic_batch {
	uint64_t before, total; /* on the sender's wire, ns */
	uint64_t ahead, all;	/* of the same receiver: on its wire, ns */
	uint32_t nth, same;	/* and in number */
	uint32_t first;		/* the first lane of them */
};

GX_DEV struct nic_batch nic_scan(const struct ep_nic_args *a, uint32_t count, uint32_t bytes, uint32_t to)
{
	struct nic_batch b;

	b.before = b.total = b.ahead = b.all = 0;
	b.nth = b.same = 0;
	b.first = GX_WARP;
	for (uint32_t j = 0; j < count; j++) {
		uint64_t span = nic_span(a, gx_shfl_u32(bytes, j));
		uint32_t port = gx_shfl_u32(to, j);

		b.before += j < gx_lane() ? span : 0;
		b.total += span;
		if (port != to)
			continue;
		b.ahead += j < gx_lane() ? span : 0;
		b.all += span;
		b.nth += j < gx_lane();
		b.same++;
		if (b.first == GX_WARP)
			b.first = j;
	}
	if (b.first == GX_WARP)
		b.first = 0; /* a lane without a put */
	return b;
}

/* All lanes. The time at which the lane's put is delivered. The first put to a receiver reserves for the others. */
GX_DEV uint64_t nic_due(const struct nic *n, const struct ep_nic_desc *d, const struct nic_batch *b, uint32_t active)
{
	const struct ep_nic_args *a = n->a;
	uint64_t sent = 0, base = 0, span = nic_span(a, active ? d->bytes : 0), due;

	if (a->ps_per_byte == 0) /* no wire to share */
		return gx_clock_ns() + a->latency_ns;
	if (gx_lane() == 0)
		sent = nic_reserve(&a->common->sends[d->from], gx_clock_ns(), b->total);
	sent = gx_shfl_u64(sent, 0) + b->before;
	if (active && gx_lane() == b->first)
		base = nic_reserve(&a->common->receives[d->to], sent + a->latency_ns, b->all);
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

GX_DEV void nic_job_make(struct ep_nic_state *s, const struct ep_nic_desc *d, uint32_t i, uint64_t due)
{
	struct ep_nic_job *job = &s->job[i % EP_NIC_ENTRIES];

	job->src = d->src;
	job->dst = d->dst;
	job->due = due;
	job->bytes = d->bytes;
	if (!(d->flags & EP_NIC_INLINE))
		return;
	for (uint32_t w = 0; w < EP_NIC_SMALL / 8; w++)
		job->word[w] = d->word[w];
	gx_st_relaxed_u32(&s->copied[i % EP_NIC_ENTRIES], i + 1); /* R2 */
}

/* By loads of 16 bytes: each is a read over PCIe. */
GX_DEV struct ep_nic_desc nic_desc(const struct ep_nic_desc *from)
{
	union {
		struct ep_nic_desc d;
		gx_u4 v[4];
	} u;

	for (uint32_t i = 0; i < 4; i++)
		u.v[i] = gx_ld_u4((const gx_u4 *)(const void *)from + i);
	return u.d;
}

GX_DEV void nic_admit(const struct nic *n, uint32_t c, uint32_t taken, uint32_t count)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint32_t active = gx_lane() < count, i = taken + gx_lane(), in = 0;
	struct ep_nic_desc d;
	struct nic_batch b;
	uint64_t due;

	d = nic_desc(&n->a->queue[c].desc[(active ? i : taken) % EP_NIC_ENTRIES]);
	if (!active) {
		d.bytes = 0;
		d.to = EP_NIC_PORTS;
	}
	b = nic_scan(n->a, count, d.bytes, d.to);
	due = nic_due(n, &d, &b, active) + nic_jitter(n->a, i);
	if (active) {
		in = s->in[d.to];
		nic_job_make(s, &d, i, due);
		s->fifo[d.to][(in + b.nth) % EP_NIC_ENTRIES] = i;
	}
	gx_syncwarp();
	if (active && gx_lane() == b.first)
		gx_dev_st_release_u32(&s->in[d.to], in + b.same); /* R2 */
	if (gx_lane() == 0)
		gx_dev_st_release_u32(&s->taken, taken + count); /* R1 */
	gx_syncwarp();
}

GX_DEV uint32_t nic_front(const struct nic *n, uint32_t c)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint32_t stop = 0, taken = 0, count = 0;

	if (gx_lane() == 0) {
		stop = gx_ld_relaxed_u32(&s->closed) ? 2 : gx_ld_relaxed_u32(&n->a->common->stop);
		taken = gx_ld_relaxed_u32(&s->taken);
		count = stop ? 0 : gx_ld_acquire_u32(&n->a->queue[c].posted) - taken; /* A0 */
		if (stop == 1)
			gx_dev_st_release_u32(&s->closed, 1); /* R5 */
	}
	stop = gx_shfl_u32(stop, 0);
	taken = gx_shfl_u32(taken, 0);
	count = gx_shfl_u32(count, 0);
	gx_syncwarp();
	if (stop || count == 0)
		return stop ? 0 : NIC_OPEN;
	nic_admit(n, c, taken, count < GX_WARP ? count : GX_WARP);
	return NIC_OPEN | NIC_MOVED;
}

/* ---- workers ---- */

/* One lane: into the job; the back stores it. A word is read whole. */
GX_DEV void nic_fetch(struct ep_nic_job *job)
{
	const uint8_t *src = (const uint8_t *)(uintptr_t)job->src;
	uint8_t *to = (uint8_t *)job->word;

	if (job->bytes == 8 && job->src % 8 == 0) {
		job->word[0] = gx_ld_relaxed_u64((const uint64_t *)(const void *)src);
		return;
	}
	for (uint32_t i = 0; i < job->bytes; i++)
		to[i] = src[i];
}

GX_DEV void nic_copy(struct nic *n, struct ep_nic_job *job)
{
	uint8_t *dst = (uint8_t *)(uintptr_t)job->dst;
	const uint8_t *src = (const uint8_t *)(uintptr_t)job->src;
	uint32_t room = gx_bulk_room(&n->bulk), bytes = job->bytes;

	for (uint32_t at = 0; at < bytes; at += room) {
		uint32_t part = bytes - at < room ? bytes - at : room;

		gx_bulk_load(&n->bulk, src + at, part);
		gx_bulk_store(&n->bulk, dst + at, 0, part);
	}
	gx_bulk_drain(&n->bulk);
}

/* Worker k of n->a->state[c]; jobs k, k + of, k + 2 of, ... since the launch began are its own. */
GX_DEV uint32_t nic_work(struct nic *n, uint32_t c, uint32_t k, uint32_t of)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint32_t closed = 0, mine = 0, has = 0;
	struct ep_nic_job *job;

	if (gx_lane() == 0) {
		closed = gx_ld_acquire_u32(&s->closed); /* A5 */
		mine = s->next[k];
		has = (int32_t)(gx_ld_acquire_u32(&s->taken) - mine) > 0; /* A1 */
	}
	closed = gx_shfl_u32(closed, 0);
	mine = gx_shfl_u32(mine, 0);
	has = gx_shfl_u32(has, 0);
	gx_syncwarp();
	if (!has)
		return closed ? 0 : NIC_OPEN;
	job = &s->job[mine % EP_NIC_ENTRIES];
	/* An inline put needs no copy, so it may be delivered, and its entry used again, before its worker comes by. */
	if ((int32_t)(gx_ld_relaxed_u32(&s->copied[mine % EP_NIC_ENTRIES]) - (mine + 1)) < 0) {
		if (job->bytes > EP_NIC_SMALL)
			nic_copy(n, job);
		else if (gx_lane() == 0)
			nic_fetch(job);
		gx_syncwarp();
		if (gx_lane() == 0)
			gx_dev_st_release_u32(&s->copied[mine % EP_NIC_ENTRIES], mine + 1); /* R3 */
	}
	if (gx_lane() == 0)
		s->next[k] = mine + of;
	gx_syncwarp();
	return NIC_OPEN | NIC_MOVED;
}

/* ---- back ---- */

/* One lane. */
GX_DEV void nic_word(const struct ep_nic_job *job)
{
	const uint8_t *from = (const uint8_t *)job->word;
	uint8_t *to = (uint8_t *)(uintptr_t)job->dst;

	if (job->bytes == 8 && job->dst % 8 == 0) {
		gx_st_release_u64((uint64_t *)(void *)to, job->word[0]); /* R4 */
		return;
	}
	gx_fence_sys(); /* R4 */
	for (uint32_t i = 0; i < job->bytes; i++)
		to[i] = from[i];
}

/* All lanes: the puts of the window that can be delivered, as bits; each lane looks at its own. */
GX_DEV uint32_t nic_ready(const struct nic *n, struct ep_nic_state *s, uint32_t port, uint64_t now)
{
	uint32_t out = s->out[port], gone = s->gone[port], ready = 0;
	uint32_t room = gx_ld_acquire_u32(&s->in[port]) - out; /* A2 */

	for (uint32_t b = 0; b < EP_NIC_WINDOW; b += GX_WARP) {
		uint32_t k = b + gx_lane(), yes = 0;

		if (k < EP_NIC_WINDOW && k < room && !(gone >> k & 1)) {
			uint32_t i = s->fifo[port][(out + k) % EP_NIC_ENTRIES];

			yes = gx_ld_acquire_u32(&s->copied[i % EP_NIC_ENTRIES]) == i + 1 && /* A3 */
			      s->job[i % EP_NIC_ENTRIES].due <= now;
		}
		ready |= (uint32_t)gx_ballot(yes != 0) << b;
	}
	return n->a->unordered ? ready : ready & ~(ready + 1); /* ordered: up to the first that is not */
}

/* The small puts among them, one after the other; unordered: the last first. */
GX_DEV void nic_words(const struct nic *n, const struct ep_nic_state *s, uint32_t port, uint32_t picks)
{
	for (uint32_t j = 0; j < EP_NIC_WINDOW; j++) {
		uint32_t k = n->a->unordered ? EP_NIC_WINDOW - 1 - j : j;

		if (picks >> k & 1) {
			uint32_t i = s->fifo[port][(s->out[port] + k) % EP_NIC_ENTRIES];
			const struct ep_nic_job *job = &s->job[i % EP_NIC_ENTRIES];

			if (job->bytes <= EP_NIC_SMALL) {
				if (gx_lane() == k % GX_WARP)
					nic_word(job);
				gx_syncwarp();
			}
		}
	}
}

GX_DEV void nic_log(const struct nic *n, uint32_t c, uint32_t port, uint32_t picks, uint64_t now)
{
	const struct ep_nic_state *s = &n->a->state[c];
	struct ep_nic_queue *q = &n->a->queue[c];

	gx_fence_sys(); /* R4 */
	for (uint32_t k = gx_lane(); k < EP_NIC_WINDOW; k += GX_WARP) {
		uint32_t i = s->fifo[port][(s->out[port] + k) % EP_NIC_ENTRIES];
		uint32_t at = s->logged + gx_popc(n->a->unordered ? picks >> k >> 1 : picks & ((1u << k) - 1));
		uint64_t *record = &q->log[at % EP_NIC_ENTRIES].stamp;

		if (picks >> k & 1)
			gx_st_fenced_u64x2(record, (uint64_t)(at + 1) << 32 | i, now - s->job[i % EP_NIC_ENTRIES].due);
	}
	gx_syncwarp();
}

/* All lanes; whether something was delivered. */
GX_DEV uint32_t nic_deliver(const struct nic *n, uint32_t c, uint32_t port)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint64_t now = gx_shfl_u64(gx_clock_ns(), 0);
	uint32_t picks = nic_ready(n, s, port, now);

	gx_syncwarp();
	if (picks == 0)
		return 0;
	nic_words(n, s, port, picks);
	nic_log(n, c, port, picks, now);
	if (gx_lane() == 0) {
		uint32_t gone = s->gone[port] | picks;
		uint32_t left = gx_popc(gone & ~(gone + 1)); /* the oldest, all delivered */

		s->out[port] += left;
		s->gone[port] = left < EP_NIC_WINDOW ? gone >> left : 0;
		s->logged += gx_popc(picks);
		gx_st_release_u32(&n->a->queue[c].delivered, s->logged);
	}
	gx_syncwarp();
	return 1;
}

GX_DEV uint32_t nic_back(const struct nic *n, uint32_t c)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint32_t closed = gx_shfl_u32(gx_ld_acquire_u32(&s->closed), 0); /* A5 */
	uint32_t taken = gx_shfl_u32(gx_ld_relaxed_u32(&s->taken), 0), moved = 0;

	for (uint32_t b = 0; b < n->a->ports; b += GX_WARP) {
		uint32_t port = b + gx_lane();
		uint64_t some = gx_ballot(port < n->a->ports && gx_ld_relaxed_u32(&s->in[port]) != s->out[port]);

		for (; some; some &= some - 1)
			moved |= nic_deliver(n, c, b + gx_popc((some & (0 - some)) - 1));
	}
	if (moved)
		return NIC_OPEN | NIC_MOVED;
	return closed && s->logged == taken ? 0 : NIC_OPEN;
}

/* ---- the warp ---- */

/* One lane of the grid: decides when the launch ends. What was taken until then is delivered before it ends; what was
 * not stays in its queue for the next launch. */
GX_DEV void nic_lead(struct nic *n)
{
	const struct ep_nic_args *a = n->a;
	uint64_t now = gx_clock_ns();
	uint32_t sum = 0, quit = 0;

	for (uint32_t c = 0; c < a->contexts; c++)
		sum += gx_ld_relaxed_u32(&a->state[c].taken);
	if (sum != n->sum)
		n->last = now;
	n->sum = sum;
	if (now >= n->next) {
		quit = gx_ld_relaxed_u32(&a->board->quit) == a->number;
		n->next = now + NIC_QUIT_NS;
	}
	if (quit || now - n->last > a->idle_ns)
		gx_st_relaxed_u32(&a->common->stop, 1);
}

/* One role per warp: contexts' fronts, their backs, workers in turn. */
GX_DEV uint32_t nic_step_own(struct nic *n)
{
	uint32_t contexts = n->a->contexts, k = n->self - 2 * contexts, c = k % contexts;

	if (n->self < contexts)
		return nic_front(n, n->self);
	if (n->self < 2 * contexts)
		return nic_back(n, n->self - contexts);
	return nic_work(n, c, k / contexts, (n->warps - 2 * contexts - c + contexts - 1) / contexts);
}

GX_DEV uint32_t nic_step_all(struct nic *n)
{
	uint32_t did = 0;

	for (uint32_t c = n->self; c < n->a->contexts; c += n->warps) {
		did |= nic_front(n, c);
		did |= nic_work(n, c, 0, 1);
		did |= nic_back(n, c);
	}
	return did;
}

GX_DEV void nic_open(struct nic *n, const struct ep_nic_args *a, uint8_t *stage)
{
	n->a = a;
	n->self = gx_warp() * gx_blocks() + gx_block();
	n->warps = gx_warps() * gx_blocks();
	n->last = n->next = gx_clock_ns();
	n->sum = 0;
	gx_bulk_open(&n->bulk, stage, a->stage);
}

/* The first job of the launch for each worker. */
GX_DEV void nic_workers_open(const struct nic *n, uint32_t own)
{
	uint32_t contexts = n->a->contexts;

	if (gx_lane() == 0 && own && n->self >= 2 * contexts) {
		uint32_t k = n->self - 2 * contexts;
		struct ep_nic_state *s = &n->a->state[k % contexts];

		s->next[k / contexts] = s->begin + k / contexts;
	}
	for (uint32_t c = n->self; gx_lane() == 0 && !own && c < contexts; c += n->warps)
		n->a->state[c].next[0] = n->a->state[c].begin;
	gx_syncwarp();
}

GX_KERNEL(nic)(GX_ARGS(struct ep_nic_args) a)
{
	GX_DYN_SHARED(stage);
	struct nic n;
	uint32_t own, leads, did = NIC_OPEN;

	nic_open(&n, &a, stage);
	own = n.warps >= 3 * a.contexts;
	leads = n.self == (own ? n.warps - 1 : 0);
	nic_workers_open(&n, own);
	for (uint32_t spin = 0; did & NIC_OPEN; spin = did & NIC_MOVED ? 0 : spin + 1) {
		did = own ? nic_step_own(&n) : nic_step_all(&n);
		if (leads && gx_lane() == 0)
			nic_lead(&n);
		gx_syncwarp();
		gx_pause(spin);
	}
	if (!gx_op_leave(&a.common->left) || gx_tid() != 0)
		return;
	for (uint32_t c = 0; c < a.contexts; c++) {
		a.state[c].begin = a.state[c].taken;
		a.state[c].closed = 0;
	}
	a.common->stop = a.common->left = 0;
	gx_st_release_u32(&a.board->ended, a.number); /* pairs with the host's acquire before it launches again */
}
