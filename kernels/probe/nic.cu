/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC made of multiprocessors (kernels/probe/args_nic.h has the layout). Three roles per context:
 *   front    polls the queue, makes jobs and reserves the wires for them; the only warp that reads across PCIe for this
 *	      context
 *   workers  copy the bytes, of any context, as soon as a job is there
 *   back     delivers: once a put's bytes are there, its time has come and, on an ordered net, it is its turn
 * Where warps are few (the CPU device has one) a warp has all roles of a context. Each role is a step of the warp's
 * loop, and none waits inside, but a back of its own for a time that is near.
 *
 * Copies are neither ordered nor paced; what tells of them is: words, records, and small puts, which the back stores.
 * So a row's bytes may be there before its time, but nobody is told. A NIC needs no fence between two words: where they
 * may change places if they are due at the same time (relaxed), there is one for all of them.
 *
 * Orderings, each with its partner (H: the host):
 *   A0 posted			pairs with H's release after the descriptor
 *   R1 jobs -> taken		pairs with A1, the worker's
 *   R2 jobs, fifo -> in	pairs with A2, the back's
 *   R3 bytes -> copied		pairs with A3, the back's
 *   R4 A3 -> word, record, immediate	pairs with the acquire of whoever polls it
 *   R5 no more jobs -> closed	pairs with A5: taken is final then
 */
#include "kernels/probe/nic_wire.h"

#define NIC_OPEN 1u	   /* the role has work left in this launch */
#define NIC_MOVED 2u	   /* this step did something */
#define NIC_QUIT_NS 20000u /* between polls of the host's word */
#define NIC_NEAR_NS 4000u  /* how long a back waits in place for a time: as long as looking again takes */

struct nic {
	const struct ep_nic_args *a;
	uint32_t self, warps; /* this warp among all of the grid: fronts and backs are in the first blocks, where no
			       * copies make their fences slow */
	uint64_t last, next;  /* the leader's: of the last put, of the next poll of quit */
	uint32_t sum;
	uint32_t near_ns; /* 0: a warp with all roles waits for nothing */
	struct gx_bulk bulk;
};

/* ---- front ---- */

/* All lanes: the wires for a turn of puts whose jobs have been made, from that index on, and which came then; the back
 * has them afterwards. 0: it is not the context's turn. */
GX_DEV uint32_t nic_give(const struct nic *n, struct ep_nic_state *s, uint32_t first, uint64_t came, struct nic_put put)
{
	uint32_t count, i = first + gx_lane(), in = 0;
	uint64_t due, until = s->until;
	struct nic_batch b;

	count = nic_turn(n->a, &put, until);
	if (gx_lane() >= count)
		put = (struct nic_put){ 0, 0, 0, EP_NIC_PORTS };
	b = nic_scan(n->a, count, put.bytes, put.to);
	due = nic_due(n->a, &put, &b, came, &until);
	if (due == NIC_LATER)
		return 0;
	due += nic_jitter(n->a, i);
	if (put.active) {
		in = s->in[put.to];
		s->job[i % EP_NIC_ENTRIES].due = due;
		s->fifo[put.to][(in + b.nth) % EP_NIC_ENTRIES] = i;
	}
	gx_syncwarp();
	if (put.active && gx_lane() == b.first)
		gx_dev_st_release_u32(&s->in[put.to], in + b.same); /* R2 */
	if (gx_lane() == 0) {
		s->reserved = first + count;
		s->until = until;
	}
	gx_syncwarp();
	return 1;
}

/* All lanes: the next turn of a context that has jobs without a time on the wires, as nic_give. */
GX_DEV uint32_t nic_next(const struct nic *n, struct ep_nic_state *s, uint32_t reserved, uint32_t taken)
{
	const struct ep_nic_job *job = &s->job[(reserved + gx_lane()) % EP_NIC_ENTRIES];
	struct nic_put put = { gx_lane() < taken - reserved, 0, 0, EP_NIC_PORTS };

	if (put.active) {
		put.bytes = job->bytes;
		put.from = job->from;
		put.to = job->to;
	}
	/* Asked again and again: without the lock. */
	return nic_may(n->a, &put, s->until) && nic_give(n, s, reserved, gx_shfl_u64(gx_clock_ns(), 0), put);
}

GX_DEV void nic_job_make(struct ep_nic_state *s, const struct ep_nic_desc *d, uint32_t i)
{
	struct ep_nic_job *job = &s->job[i % EP_NIC_ENTRIES];

	job->src = d->src;
	job->dst = d->dst;
	job->bytes = d->bytes;
	job->imm = d->imm;
	job->from = d->from;
	job->to = d->to;
	job->flags = d->flags;
	if (!(d->flags & EP_NIC_INLINE))
		return;
	for (uint32_t w = 0; w < EP_NIC_SMALL / 8; w++)
		job->word[w] = d->word[w];
	gx_st_relaxed_u32(&s->begun[i % EP_NIC_ENTRIES], i + 1);  /* R1 */
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

GX_DEV void nic_admit(const struct nic *n, uint32_t c, uint32_t taken, uint32_t count, uint64_t came)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint32_t active = gx_lane() < count, i = taken + gx_lane();
	struct nic_put put = { 0, 0, 0, EP_NIC_PORTS };
	struct ep_nic_desc d;

	d = nic_desc(&n->a->queue[c].desc[(active ? i : taken) % EP_NIC_ENTRIES]);
	if (active) {
		put = (struct nic_put){ 1, d.bytes, d.from, d.to };
		nic_job_make(s, &d, i);
	}
	gx_syncwarp();
	if (gx_lane() == 0)
		gx_dev_st_release_u32(&s->taken, taken + count); /* R1 */
	gx_syncwarp();
	nic_give(n, s, taken, came, put);
}

GX_DEV uint32_t nic_front(const struct nic *n, uint32_t c)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint32_t stop = 0, closed = 0, count = 0, reserved = s->reserved, taken = gx_ld_relaxed_u32(&s->taken);

	if (reserved != taken) /* the front alone writes them */
		return NIC_OPEN | (nic_next(n, s, reserved, taken) ? NIC_MOVED : 0);
	if (gx_lane() == 0) {
		closed = gx_ld_relaxed_u32(&s->closed); /* all three are in flight together */
		stop = gx_ld_relaxed_u32(&n->a->common->stop);
		count = gx_ld_acquire_u32(&n->a->queue[c].posted) - taken; /* A0 */
		if (stop && !closed)
			gx_dev_st_release_u32(&s->closed, 1); /* R5 */
	}
	stop = gx_shfl_u32(stop | closed, 0);
	count = gx_shfl_u32(count, 0);
	gx_syncwarp();
	if (stop || count == 0)
		return stop ? 0 : NIC_OPEN;
	nic_admit(n, c, taken, count < GX_WARP ? count : GX_WARP, gx_shfl_u64(gx_clock_ns(), 0));
	return NIC_OPEN | NIC_MOVED;
}

/* ---- workers ---- */

/* One lane: for the back, which stores it. A word is read whole. */
GX_DEV void nic_fetch(const struct ep_nic_job *job, uint64_t *word)
{
	const uint8_t *src = (const uint8_t *)(uintptr_t)job->src;
	uint8_t *to = (uint8_t *)word;

	if (job->bytes == 8 && job->src % 8 == 0) {
		word[0] = gx_ld_relaxed_u64((const uint64_t *)(const void *)src);
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

	gx_fence_proxy(); /* A1 */
	for (uint32_t at = 0; at < bytes; at += room) {
		uint32_t part = bytes - at < room ? bytes - at : room;

		gx_bulk_load(&n->bulk, src + at, part);
		gx_bulk_store(&n->bulk, dst + at, 0, part);
	}
	gx_bulk_drain(&n->bulk);
}

#define NIC_PASSED 2u

/*
 * All lanes: a job of a context that nobody has begun; *job: its index. 0: none; NIC_PASSED: none of those looked at,
 * but there are more. Each lane looks at one, and each warp takes another: with a counter of those begun, a context had
 * one taken per round trip, 1.2 million in a second.
 */
GX_DEV uint32_t nic_take(const struct nic *n, struct ep_nic_state *s, uint32_t *job)
{
	uint32_t next = gx_shfl_u32(gx_ld_relaxed_u32(&s->next), 0), i = next + gx_lane(), was = 0, got = 0, first;
	uint32_t there = (int32_t)(gx_ld_acquire_u32(&s->taken) - i) > 0; /* A1 */
	uint64_t all, left;

	if (there)
		was = gx_ld_relaxed_u32(&s->begun[i % EP_NIC_ENTRIES]);
	all = gx_ballot((int)there);
	left = gx_ballot(there && (int32_t)(was - (i + 1)) < 0);
	first = gx_popc(all & ~left & ~((all & ~left) + 1)); /* the oldest, all begun */
	if (gx_lane() == 0 && first)
		gx_dev_cas_acquire_u32(&s->next, next, next + first);
	*job = 0;
	if (left == 0)
		return all != 0 ? NIC_PASSED : 0;
	for (uint32_t skip = n->self % gx_popc(left); skip; skip--)
		left &= left - 1;
	first = gx_popc((left & (0 - left)) - 1);
	if (gx_lane() == first)
		got = gx_dev_cas_acquire_u32(&s->begun[i % EP_NIC_ENTRIES], was, i + 1) == was;
	*job = gx_shfl_u32(i, first);
	return gx_shfl_u32(got, first) ? 1 : NIC_PASSED;
}

/* All lanes: one job of the context, if it has any. */
GX_DEV uint32_t nic_work(struct nic *n, uint32_t c)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint32_t closed = gx_shfl_u32(gx_ld_acquire_u32(&s->closed), 0), mine, has; /* A5 */
	struct ep_nic_job *job;

	has = nic_take(n, s, &mine);
	gx_syncwarp();
	if (has != 1)
		return has == NIC_PASSED ? NIC_OPEN | NIC_MOVED : closed ? 0 : NIC_OPEN;
	job = &s->job[mine % EP_NIC_ENTRIES];
	if (job->bytes > EP_NIC_SMALL)
		nic_copy(n, job);
	else if (gx_lane() == 0)
		nic_fetch(job, s->fetched[mine % EP_NIC_ENTRIES]);
	gx_syncwarp();
	if (gx_lane() == 0)
		gx_dev_st_release_u32(&s->copied[mine % EP_NIC_ENTRIES], mine + 1); /* R3 */
	gx_syncwarp();
	return NIC_OPEN | NIC_MOVED;
}

/* All lanes: a job of any context, starting the search with a different one in each warp. */
GX_DEV uint32_t nic_roam(struct nic *n, uint32_t first)
{
	uint32_t contexts = n->a->contexts, open = 0;

	for (uint32_t b = 0; b < contexts; b += GX_WARP) {
		uint32_t i = b + gx_lane(), c = (first + i) % contexts, has = 0, shut = 1;
		struct ep_nic_state *s = &n->a->state[c];
		uint64_t some;

		if (i < contexts) {
			shut = gx_ld_acquire_u32(&s->closed); /* A5 */
			has = (int32_t)(gx_ld_relaxed_u32(&s->taken) - gx_ld_relaxed_u32(&s->next)) > 0;
		}
		some = gx_ballot((int)has);
		open |= gx_ballot(!shut || has) != 0;
		gx_syncwarp();
		if (some)
			return nic_work(n, (first + b + gx_popc((some & (0 - some)) - 1)) % contexts) | NIC_OPEN;
	}
	return open ? NIC_OPEN : 0;
}

/* ---- back ---- */

/* One lane. strict: after the word before and all bytes; else, on an ordered net, a fence for the bytes of all went
 * before, and an unordered one promises nothing by a word alone. */
GX_DEV void nic_word(const struct ep_nic_job *job, uint32_t strict)
{
	const uint8_t *from = (const uint8_t *)job->word;
	uint8_t *to = (uint8_t *)(uintptr_t)job->dst;

	if (job->bytes == 8 && job->dst % 8 == 0 && strict) {
		gx_st_release_u64((uint64_t *)(void *)to, job->word[0]); /* R4 */
		return;
	}
	if (strict)
		gx_fence_sys(); /* R4 */
	if ((job->bytes | job->dst) % 8 == 0) {
		for (uint32_t w = 0; w < EP_NIC_SMALL / 8; w++)
			if (w < job->bytes / 8)
				gx_st_relaxed_u64((uint64_t *)(void *)to + w, job->word[w]);
		return;
	}
	for (uint32_t i = 0; i < job->bytes; i++)
		to[i] = from[i];
}

/* What the back knows of the lane's port. Lanes share the ports that have puts: so many of them look at each. */
struct nic_window {
	uint32_t port, out, room; /* room: puts that have not left it; 0: the lane has no port */
	uint32_t gone;		  /* those of them that are delivered, as bits */
	uint32_t told, heard;	  /* immediates: told, and taken by the port's host when they were counted last */
	uint32_t each, at;	  /* lanes of a port, and this one's number among them */
};

/* One lane: whether the bytes of the put at k are there; *job: a copy. The loads wait for each other only where they
 * must. */
GX_DEV uint32_t nic_there(const struct ep_nic_state *s, const struct nic_window *w, uint32_t k, uint32_t *index,
			  struct ep_nic_job *job)
{
	if (k >= w->room || (w->gone >> k & 1))
		return 0;
	*index = s->fifo[w->port][(w->out + k) % EP_NIC_ENTRIES];
	*job = s->job[*index % EP_NIC_ENTRIES];
	if (gx_ld_acquire_u32(&s->copied[*index % EP_NIC_ENTRIES]) != *index + 1) /* A3 */
		return 0;
	if (job->bytes <= EP_NIC_SMALL && !(job->flags & EP_NIC_INLINE))
		for (uint32_t i = 0; i < EP_NIC_SMALL / 8; i++)
			job->word[i] = s->fetched[*index % EP_NIC_ENTRIES][i];
	return 1;
}

/* All lanes: the bits of the lane's port. */
GX_DEV uint32_t nic_own(const struct nic_window *w, uint64_t mask)
{
	return (uint32_t)(mask >> (gx_lane() - w->at) & (((uint64_t)1 << w->each) - 1));
}

/* All lanes: of the lanes with yes, which deliver. Ordered: those before which all of the port do. */
GX_DEV uint32_t nic_turns(const struct nic *n, const struct nic_window *w, uint32_t yes)
{
	uint32_t own = nic_own(w, gx_ballot((int)yes));

	return n->a->unordered ? own : own & ~(own + 1);
}

/* All lanes: until the first of those times, if it is near; without a pause, which could be longer. The time then. */
GX_DEV uint64_t nic_await(uint64_t due, uint32_t near_ns)
{
	uint64_t now = gx_shfl_u64(gx_clock_ns(), 0), other;

	for (uint32_t d = 1; d < GX_WARP; d *= 2) {
		other = gx_shfl_u64(due, gx_lane() ^ d);
		due = other < due ? other : due;
	}
	if (due > now + near_ns)
		return now;
	while (now < due)
		now = gx_shfl_u64(gx_clock_ns(), 0);
	return now;
}

/* All lanes: the small puts among them, each port's one after the other; unordered: the last first. */
GX_DEV void nic_words(const struct nic *n, const struct nic_window *w, const struct ep_nic_job *job, uint32_t yes)
{
	uint32_t unordered = n->a->unordered, strict = !unordered && !n->a->relaxed;
	uint32_t small = yes && job->bytes <= EP_NIC_SMALL;
	uint64_t any = gx_ballot((int)small);

	gx_syncwarp(); /* A3 of all lanes before the first word */
	if (!unordered && n->a->relaxed)
		gx_fence_sys(); /* R4 */
	for (uint32_t j = 0; any && j < w->each; j++) {
		uint32_t at = unordered ? w->each - 1 - j : j, mine = small && w->at == at;

		if (gx_ballot((int)mine) == 0)
			continue;
		if (mine)
			nic_word(job, strict);
		gx_syncwarp();
	}
}

/* All lanes: tells the receivers of puts with an immediate, behind a fence for the bytes; whether the lane's was told.
 * A receiver that has not taken those before is told by the host. */
GX_DEV uint32_t nic_tell(const struct nic *n, uint32_t c, struct nic_window *w, const struct ep_nic_job *job,
			 uint32_t yes)
{
	uint32_t own = nic_own(w, gx_ballot(yes && (job->flags & EP_NIC_TELL))), mine = own >> w->at & 1, told;
	uint32_t at = w->told + gx_popc(own & ((1u << w->at) - 1));
	struct ep_nic_queue *queue = &n->a->queue[c];

	if (nic_own(w, gx_ballot(mine && at - w->heard >= EP_NIC_IMMS)) != 0)
		w->heard = gx_ld_acquire_u32(&queue->heard[w->port]);
	w->heard = gx_shfl_u32(w->heard, gx_lane() - w->at);
	told = mine && at - w->heard < EP_NIC_IMMS;
	if (told)
		gx_st_fenced_u64(&queue->imm[w->port][at % EP_NIC_IMMS], (uint64_t)(at + 1) << 32 | job->imm);
	w->told += gx_popc(nic_own(w, gx_ballot((int)told)));
	return told;
}

/* All lanes: delivers what can be of each port's puts from the first on, as many as it has lanes; how many in all. */
GX_DEV uint32_t nic_some(const struct nic *n, uint32_t c, struct nic_window *w, uint32_t first, uint32_t logged)
{
	uint64_t now, mask, before = ((uint64_t)1 << gx_lane()) - 1;
	uint32_t unordered = n->a->unordered, index = 0, there = 0, yes, own, at, told;
	struct ep_nic_job job = { 0 };

	/* Ordered: up to the first that cannot be, if all before these are. */
	if (unordered || (~w->gone & ((1u << first) - 1)) == 0)
		there = nic_there(&n->a->state[c], w, first + w->at, &index, &job);
	there = nic_turns(n, w, there) >> w->at & 1;
	if (gx_ballot((int)there) == 0)
		return 0;
	/* At the first ones only. Unordered, some behind them may be due sooner, and are late then. */
	now = nic_await(there ? job.due : UINT64_MAX, first == 0 ? n->near_ns : 0);
	own = nic_turns(n, w, there && job.due <= now);
	yes = own >> w->at & 1;
	mask = gx_ballot((int)yes);
	if (mask == 0)
		return 0;
	nic_words(n, w, &job, yes);
	if (unordered || !n->a->relaxed)
		gx_fence_sys(); /* R4; the immediate must not come before a word */
	told = unordered ? nic_tell(n, c, w, &job, yes) : 0;
	at = logged + gx_popc(unordered ? mask >> gx_lane() >> 1 : mask & before);
	index = index % EP_NIC_ENTRIES | (told ? EP_NIC_TOLD : 0);
	if (yes)
		gx_st_fenced_u64x2(&n->a->queue[c].log[at % EP_NIC_ENTRIES].stamp, (uint64_t)(at + 1) << 32 | index,
				   now - job.due);
	w->gone |= own << first;
	gx_syncwarp();
	return gx_popc(mask);
}

/* All lanes: shares the ports of those bits among them. w: what each lane has read of the port that it stands for. */
GX_DEV void nic_share(uint64_t ports, struct nic_window *w)
{
	uint32_t n = gx_popc(ports), nth, from;

	w->each = GX_WARP < EP_NIC_WINDOW ? GX_WARP : EP_NIC_WINDOW;
	while (w->each * n > GX_WARP)
		w->each /= 2;
	nth = gx_lane() / w->each;
	w->at = gx_lane() % w->each;
	for (uint32_t i = 0; i < nth; i++)
		ports &= ports - 1;
	from = nth < n ? gx_popc((ports & (0 - ports)) - 1) : 0;
	w->port = gx_shfl_u32(w->port, from);
	w->out = gx_shfl_u32(w->out, from);
	w->gone = gx_shfl_u32(w->gone, from);
	w->room = gx_shfl_u32(w->room, from);
	w->told = gx_shfl_u32(w->told, from);
	w->heard = gx_shfl_u32(w->heard, from);
	if (nth >= n)
		w->port = w->out = w->room = w->gone = 0;
}

/* All lanes; whether something was delivered to these ports. */
GX_DEV uint32_t nic_deliver(const struct nic *n, uint32_t c, uint64_t ports, struct nic_window *w)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint32_t logged = s->logged, was = logged, left;

	nic_share(ports, w);
	gx_syncwarp();
	for (uint32_t first = 0; first < EP_NIC_WINDOW; first += w->each)
		if (gx_ballot(w->room > first) != 0)
			logged += nic_some(n, c, w, first, logged);
	if (logged == was)
		return 0;
	left = gx_popc(w->gone & ~(w->gone + 1)); /* the oldest, all delivered */
	if (w->room != 0 && w->at == 0) {
		s->out[w->port] = w->out + left;
		s->gone[w->port] = left < EP_NIC_WINDOW ? w->gone >> left : 0;
		s->told[w->port] = w->told;
		s->heard[w->port] = w->heard;
	}
	if (gx_lane() == 0) {
		s->logged = logged;
		gx_st_fenced_u32(&n->a->queue[c].delivered, logged); /* nic_some's: for the bytes */
	}
	gx_syncwarp();
	return 1;
}

GX_DEV uint32_t nic_back(const struct nic *n, uint32_t c)
{
	struct ep_nic_state *s = &n->a->state[c];
	uint32_t moved = 0, waits = 0, closed;

	for (uint32_t b = 0; b < n->a->ports; b += GX_WARP) {
		struct nic_window w = { 0 };
		uint64_t some;

		if (b + gx_lane() < n->a->ports) {
			w.port = b + gx_lane();
			w.out = s->out[w.port];
			w.gone = s->gone[w.port];
			w.told = s->told[w.port];
			w.heard = s->heard[w.port];
			w.room = gx_ld_acquire_u32(&s->in[w.port]) - w.out; /* A2 */
		}
		some = gx_ballot(w.room != 0);
		waits |= some != 0;
		if (some)
			moved |= nic_deliver(n, c, some, &w);
	}
	if (waits)
		return NIC_OPEN | (moved ? NIC_MOVED : 0);
	closed = gx_shfl_u32(gx_ld_acquire_u32(&s->closed), 0); /* A5 */
	gx_syncwarp();
	return closed && s->logged == gx_shfl_u32(gx_ld_relaxed_u32(&s->taken), 0) ? 0 : NIC_OPEN;
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

/* One role per warp: contexts' fronts, their backs, workers. */
GX_DEV uint32_t nic_step_own(struct nic *n)
{
	uint32_t contexts = n->a->contexts;

	if (n->self < contexts)
		return nic_front(n, n->self);
	if (n->self < 2 * contexts)
		return nic_back(n, n->self - contexts);
	return nic_roam(n, n->self % contexts);
}

GX_DEV uint32_t nic_step_all(struct nic *n)
{
	uint32_t did = 0;

	for (uint32_t c = n->self; c < n->a->contexts; c += n->warps) {
		did |= nic_front(n, c);
		did |= nic_work(n, c);
		did |= nic_back(n, c);
	}
	return did;
}

GX_DEV void nic_open(struct nic *n, const struct ep_nic_args *a, uint8_t *stage)
{
	n->a = a;
	n->self = gx_block() * gx_warps() + gx_warp();
	n->warps = gx_warps() * gx_blocks();
	n->last = n->next = gx_clock_ns();
	n->sum = 0;
	gx_bulk_open(&n->bulk, stage, a->stage);
}

GX_KERNEL(nic)(GX_ARGS(struct ep_nic_args) a)
{
	GX_DYN_SHARED(stage);
	struct nic n;
	uint32_t own, leads, did = NIC_OPEN;

	nic_open(&n, &a, stage);
	own = n.warps >= 3 * a.contexts;
	n.near_ns = own ? NIC_NEAR_NS : 0;
	leads = n.self == (own ? n.warps - 1 : 0);
	for (uint32_t spin = 0; did & NIC_OPEN; spin = did & NIC_MOVED ? 0 : spin + 1) {
		did = own ? nic_step_own(&n) : nic_step_all(&n);
		if (leads && gx_lane() == 0)
			nic_lead(&n);
		gx_syncwarp();
		/* Fronts with nothing to do read across PCIe again and again; one that waits for a wire has time. */
		gx_pause(own && n.self < a.contexts && spin != 0 ? GX_REST : spin);
	}
	if (!gx_op_leave(&a.common->left) || gx_tid() != 0)
		return;
	for (uint32_t c = 0; c < a.contexts; c++) {
		a.state[c].next = a.state[c].taken;
		a.state[c].closed = 0;
	}
	a.common->stop = a.common->left = 0;
	gx_st_release_u32(&a.board->ended, a.number); /* pairs with the host's acquire before it launches again */
}
