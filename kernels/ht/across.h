/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels between nodes (kernels/ht/args_across.h has the layout): which steps have arrived or may be overwritten, and
 * who does the next one. No wait for another node has a loop of its own: a warp that finds no step to do polls, and
 * does whatever comes first. So one block can finish an operation, and no rank waits for a slot while it holds others.
 *
 * Orderings, each with its partner (S: sender of a step, D: its receiver):
 *   R7  rows in S's memory -> put -> signal	the ring's R1 and the net; pairs with A7, D's acquire of the word
 *   R8  a word was seen -> seen		pairs with A8, whoever takes a step: between warps of a rank
 *   R9  D has read the rows -> credit		pairs with A7 at S: the slot is written again after it
 *   R10 rows of a step summed -> used		pairs with A10, the same counter: the last one sends the credit
 */
#ifndef EP_KERNELS_HT_ACROSS_H
#define EP_KERNELS_HT_ACROSS_H

#include "kernels/ht/ht.h"

#define HT_LOOK 4u			  /* words of a channel that are read at once, if the warp has as many lanes */
#define HT_LOOKS (GX_WARP > 1 ? 16u : 1u) /* times that an idle warp looks before it tries to work again */

/* A step of a channel, and its number within the operation. */
struct ht_step {
	uint32_t channel, number;
};

/* As channel. */
#define HT_NO_STEP UINT32_MAX
#define HT_NO_MORE (UINT32_MAX - 1) /* all are taken */

/* ---- sizes and addresses ---- */

/* The first row of a channel's step, by the step's number. Of the short ones there are as many of each size. */
GX_DEV uint32_t ht_step_first(const struct ht *ht, uint32_t number)
{
	uint32_t ramp = ht->x.ramp, sizes = ht->x.sizes, size;

	if (number >= ramp * sizes)
		return (ramp << sizes) - ramp + (number - ramp * sizes) * ht->x.step_rows;
	size = number / ramp;
	return (ramp << size) - ramp + ((number - size * ramp) << size);
}

/* The number of the step that has a channel's row. */
GX_DEV uint32_t ht_step_of(const struct ht *ht, uint32_t row)
{
	uint32_t ramp = ht->x.ramp, sizes = ht->x.sizes, size = 0, first = (ramp << sizes) - ramp;

	if (row >= first)
		return ramp * sizes + (row - first) / ht->x.step_rows;
	while (row >= (ramp << (size + 1)) - ramp)
		size++;
	return size * ramp + ((row - ((ramp << size) - ramp)) >> size);
}

GX_DEV uint32_t ht_steps(const struct ht *ht, const struct ht_flow *f, uint32_t channel)
{
	return f->rows[channel] ? ht_step_of(ht, f->rows[channel] - 1) + 1 : 0;
}

/* Rows of a step. */
GX_DEV uint32_t ht_step_rows(const struct ht *ht, const struct ht_flow *f, struct ht_step step)
{
	uint32_t first = ht_step_first(ht, step.number), end = ht_step_first(ht, step.number + 1);

	return (end < f->rows[step.channel] ? end : f->rows[step.channel]) - first;
}

GX_DEV uint32_t ht_slot(const struct ht *ht, const struct ht_flow *f, struct ht_step step)
{
	return (uint32_t)((f->channel[step.channel].base + step.number) % ht->a->across.span.steps);
}

/* The first row of a step. */
GX_DEV uint8_t *ht_step_at(const struct ht *ht, const struct ht_flow *f, struct ht_step step)
{
	const struct ep_ht_across *x = &ht->a->across;

	return f->ring + ((uint64_t)step.channel * x->span.steps + ht_slot(ht, f, step)) * x->step_bytes;
}

GX_DEV struct ht_flow ht_flow_of(const struct ht *ht, uint32_t flow)
{
	const struct ep_ht_across *x = &ht->a->across;
	uint32_t in = (flow & 1) == 0, by_client = flow == EP_HT_DISPATCH_IN || flow == EP_HT_COMBINE_OUT;
	uint64_t ring = (uint64_t)ep_ht_ring_of(&x->span, flow, 0) * x->span.steps * x->step_bytes;
	struct ht_flow f;

	f.flow = flow;
	f.n = by_client ? x->clients : x->span.others;
	f.channel = x->channel + ep_ht_flow_first(&x->span, flow);
	f.peer = by_client ? x->client : x->relay;
	f.rows = by_client ? x->rows_in : x->rows_out;
	f.ring = (in ? x->far.window : x->far.send) + ep_ht_rings_at(&x->span, ht->a->shape.bins, in) + ring;
	return f;
}

/* After ht_begin, in kernels for several nodes; ht_across_begin does it. */
GX_DEV void ht_across_begun(const struct ht *ht)
{
	if (gx_block() == 0 && gx_tid() == 0) /* engines spin from here to ht_across_end */
		gx_st_relaxed_u32(&ht->a->across.far.open->begun, ht->a->state->opens + 1);
}

/* The same, where rows are moved. */
GX_DEV void ht_across_begin(struct ht *ht)
{
	const struct ep_ht_args *a = ht->a;
	const struct ep_ht_span *s = &a->across.span;
	uint32_t combine = ht->op.kind == EP_KIND_COMBINE;
	uint32_t in = combine ? EP_HT_COMBINE_IN : EP_HT_DISPATCH_IN;
	uint8_t *at = a->routed + 5 * ep_ht_routed_bytes(a->shape.tmax, ht->topk);
	struct ht_across *x = &ht->x;

	x->entries = ep_ht_entries(s, ht->topk);
	x->cross = (uint32_t *)at;
	at += ep_ht_routed_bytes(a->shape.tmax, ht->topk);
	x->tokens = (uint32_t *)at;
	at += ep_ht_tokens_bytes(s, a->shape.tmax);
	x->expert = (int32_t *)at;
	x->row = (uint32_t *)(at + ep_ht_relayed_bytes(s, a->shape.tmax, x->entries));
	x->head = (uint32_t)ep_ht_row_head(in, x->entries, ht_is(ht, EP_HT_BACKWARD));
	x->pitch = x->head + ht_pad(a->row_bytes) + (combine ? 0 : ht_pad(a->scale_bytes));
	x->step_rows = (uint32_t)(a->across.step_bytes / x->pitch);
	x->ramp = s->ramp[combine];
	for (x->sizes = 0; x->sizes < EP_HT_SIZES && (1u << x->sizes) < x->step_rows; x->sizes++)
		;
	x->in = ht_flow_of(ht, in);
	x->out = ht_flow_of(ht, in + 1);
	ht_across_begun(ht);
}

GX_DEV void ht_flow_end(const struct ht *ht, const struct ht_flow *f)
{
	for (uint32_t i = gx_tid(); i < f->n; i += gx_threads()) {
		f->channel[i].base += ht_steps(ht, f, i);
		f->channel[i].taken = 0;
	}
}

/* All threads of the last block: every step has been done, or the group has failed. */
GX_DEV void ht_across_end(const struct ht *ht)
{
	struct ep_ht_state *state = ht->a->state;

	if (ht->op.kind != EP_KIND_UPDATE && ht->op.kind != EP_KIND_BARRIER) {
		ht_flow_end(ht, &ht->x.in);
		ht_flow_end(ht, &ht->x.out);
	} else if (gx_tid() == 0) {
		state->updates++;
	}
	if (gx_tid() == 0)
		gx_st_relaxed_u32(&ht->a->across.far.open->ended, ++state->opens);
}

/* ---- to other nodes: all lanes, each for a peer or a step of its own ---- */

/* The word of a step's slot at the other end: that it has arrived, or that it may be overwritten. */
GX_DEV struct ep_cmd ht_step_word(const struct ht *ht, const struct ht_flow *f, struct ht_step step)
{
	const struct ep_ht_peer *peer = &f->peer[step.channel];
	uint64_t at = ep_ht_slot_word(&ht->a->across.span, f->flow ^ 1, peer->there, ht_slot(ht, f, step));
	uint64_t value = f->channel[step.channel].base + step.number + 1;

	/* Credits do not queue behind this rank's own rows: where both ends send at the line rate, each would wait for
	 * all that the other has in flight. */
	return f->flow & 1 ? far_signal(ht->op.far, peer->rank, at, value)
			   : far_credit(ht->op.far, peer->rank, at, value);
}

/* All lanes, each with a command of its own; peer FAR_NOBODY: none. */
GX_DEV void ht_far_push(const struct ht *ht, uint32_t peer, struct ep_cmd cmd)
{
	struct far_cmd to = far_to(ht->op.far, peer, cmd);
	uint32_t rc = far_push(ht->op.far, &to, &ht->op.limit, 0);

	if (rc != 0)
		gx_op_fail_push(&ht->op, rc, peer);
}

/* A step whose rows have been read, of each lane that says yes. */
GX_DEV void ht_step_credit(const struct ht *ht, struct ht_step step, uint32_t yes)
{
	const struct ht_flow *f = &ht->x.in;
	struct ep_cmd none = { { 0, 0 } };

	ht_far_push(ht, yes ? f->peer[step.channel].rank : FAR_NOBODY, yes ? ht_step_word(ht, f, step) : none);
}

/* When the rows of a step are in this rank's memory: to the other end (R7). One push for both: the second lane's
 * command follows the first's. */
GX_DEV void ht_step_send(struct ht *ht, struct ht_step step)
{
	const struct ep_ht_across *x = &ht->a->across;
	const struct ht_flow *f = &ht->x.out;
	const struct ep_ht_peer *peer = &f->peer[step.channel];
	uint32_t rows = ht_step_rows(ht, f, step), ring = ep_ht_ring_of(&x->span, f->flow ^ 1, peer->there);
	uint64_t to = ep_ht_rings_at(&x->span, ht->a->shape.bins, 1) +
		      ((uint64_t)ring * x->span.steps + ht_slot(ht, f, step)) * x->step_bytes;
	uint64_t from = (uint64_t)(ht_step_at(ht, f, step) - x->far.send);
	struct ep_cmd put =
		ep_cmd_put(peer->rank, x->far.window_place + to, x->far.send_place + from, rows * ht->x.pitch);
	struct ep_cmd word = ht_step_word(ht, f, step);

	gx_bulk_drain(&ht->bulk); /* its barrier orders what all lanes wrote */
	if (gx_lane() == 0)
		gx_fence_sys();
	for (uint32_t i = gx_lane(), i0 = 0; i0 < 2; i += GX_WARP, i0 += GX_WARP)
		ht_far_push(ht, i < 2 ? peer->rank : FAR_NOBODY, i == 0 ? put : word);
	if (gx_lane() == 0)
		gx_dev_add_relaxed_u64(&ht->a->state->crossed[ht->op.kind == EP_KIND_COMBINE], rows);
	gx_syncwarp();
}

/* When a step's rows have been read: its slot may be overwritten (R9). */
GX_DEV void ht_step_free(struct ht *ht, struct ht_step step)
{
	gx_bulk_drain(&ht->bulk);
	if (gx_lane() == 0)
		gx_fence_sys();
	ht_step_credit(ht, step, gx_lane() == 0);
	gx_syncwarp();
}

/* ---- from other nodes ---- */

/* How many words of a channel are read at once: all lanes together read those of all channels, if they can. */
GX_DEV uint32_t ht_look_words(uint32_t n)
{
	uint32_t words = GX_WARP < HT_LOOK ? GX_WARP : HT_LOOK;

	while (2 * words * n <= GX_WARP && words < 32)
		words *= 2;
	return words;
}

/* All lanes of the warp that holds the lock. Steps beyond this operation are not looked for. Whether any was found. */
GX_DEV uint32_t ht_look_flow(const struct ht *ht, const struct ht_flow *f)
{
	const struct ep_ht_span *s = &ht->a->across.span;
	uint32_t words = ht_look_words(f->n), word = gx_lane() % words, low = gx_lane() - word, found = 0;

	for (uint32_t c0 = 0; c0 < f->n; c0 += GX_WARP / words) {
		uint32_t c = c0 + gx_lane() / words, came = 0;
		struct ep_ht_channel *channel = &f->channel[c < f->n ? c : 0];
		uint64_t seen = gx_ld_relaxed_u64(&channel->seen), next = seen + word, mask;
		/* A slot that is free at the beginning was so before the operation: the steps of it need no more. */
		uint64_t end = channel->base + (c < f->n ? ht_steps(ht, f, c) : 0) - (f->flow & 1 ? s->steps : 0);

		if (c < f->n && (int64_t)(end - next) > 0) {
			uint64_t at = ep_ht_slot_word(s, f->flow, c, (uint32_t)(next % s->steps));

			came = gx_ld_acquire_u64((const uint64_t *)(ht->op.far->control + at)) > next; /* A7 */
		}
		mask = gx_ballot((int)came);
		found |= mask != 0;
		mask = ~(mask >> low);
		gx_syncwarp(); /* the ballot orders nothing: what other lanes acquired comes before R8 */
		if (word == 0 && came)
			gx_st_release_u64(&channel->seen, /* R8 */
					  seen + gx_popc(((mask & -mask) - 1) & (((uint64_t)1 << words) - 1)));
	}
	return found;
}

/* All lanes: reads the words that the net writes, unless another warp does: they may be across PCIe. times: until
 * something has come. 0: another warp does. */
GX_DEV uint32_t ht_look(const struct ht *ht, uint32_t times)
{
	uint32_t *lock = &ht->a->state->looking, taken = 0;

	if (gx_lane() == 0)
		taken = gx_ld_relaxed_u32(lock) == 0 && gx_dev_cas_acquire_u32(lock, 0, 1) == 0;
	if (!gx_shfl_u32(taken, 0))
		return 0;
	gx_syncwarp();
	for (uint32_t i = 0; i < times; i++) {
		uint32_t found = ht_look_flow(ht, &ht->x.in);

		if (found | ht_look_flow(ht, &ht->x.out))
			break;
		if (i + 1 < times)
			gx_pause(i);
	}
	gx_syncwarp();
	gx_fence_proxy(); /* what was seen may be done next */
	if (gx_lane() == 0)
		gx_dev_st_release_u32(lock, 0);
	return 1;
}

/* One thread. Steps of this operation that may be done, by what has been seen: that have arrived, or whose slot is
 * free. */
GX_DEV uint32_t ht_steps_seen(const struct ht *ht, const struct ht_flow *f, uint32_t channel, uint64_t seen)
{
	const struct ep_ht_channel *c = &f->channel[channel];
	int64_t ready = (int64_t)(seen - c->base) + (f->flow & 1 ? (int64_t)ht->a->across.span.steps : 0);
	uint32_t all = ht_steps(ht, f, channel);

	return ready < 0 ? 0 : ready < (int64_t)all ? (uint32_t)ready : all;
}

GX_DEV uint32_t ht_steps_ready(const struct ht *ht, const struct ht_flow *f, uint32_t channel)
{
	return ht_steps_seen(ht, f, channel, gx_ld_acquire_u64(&f->channel[channel].seen)); /* A8 */
}

/* One thread: the next step of a channel, if it may be done. */
GX_DEV uint32_t ht_step_take_of(const struct ht *ht, const struct ht_flow *f, uint32_t channel, uint32_t *number)
{
	uint32_t *at = &f->channel[channel].taken, ready = ht_steps_ready(ht, f, channel), taken;

	while ((taken = gx_ld_relaxed_u32(at)) < ready)
		if (gx_dev_cas_acquire_u32(at, taken, taken + 1) == taken) {
			*number = taken;
			return 1;
		}
	return 0;
}

/* All lanes: takes a step that may be done, of any channel, starting with a different one in each warp. The lanes look
 * at the channels side by side, without the atomic and the acquire. */
GX_DEV struct ht_step ht_step_take(const struct ht *ht, const struct ht_flow *f)
{
	struct ht_step got = { HT_NO_MORE, 0 };
	uint32_t first = f->n ? (gx_block() * gx_warps() + gx_warp()) % f->n : 0, tried = 0;

	for (uint32_t i0 = 0; i0 < f->n; i0 += GX_WARP) {
		uint32_t i = i0 + gx_lane(), c = (first + i) % f->n, taken = 0, more = 0, yes = 0;
		uint64_t mask;

		if (i < f->n) {
			taken = gx_ld_relaxed_u32(&f->channel[c].taken);
			more = taken < ht_steps(ht, f, c);
			yes = more && taken < ht_steps_seen(ht, f, c, gx_ld_relaxed_u64(&f->channel[c].seen));
		}
		if (gx_ballot((int)more) && got.channel == HT_NO_MORE)
			got.channel = HT_NO_STEP;
		for (mask = gx_ballot((int)yes); mask; mask &= mask - 1) {
			uint32_t at = gx_popc((mask & -mask) - 1), won = 0;

			tried = 1;
			if (gx_lane() == at)
				won = ht_step_take_of(ht, f, c, &got.number);
			if (!gx_shfl_u32(won, at))
				continue;
			got.channel = gx_shfl_u32(c, at);
			got.number = gx_shfl_u32(got.number, at);
			gx_syncwarp();
			gx_fence_proxy(); /* A8: the step's rows are read, or its slot is written */
			return got;
		}
	}
	gx_syncwarp();
	if (tried)
		gx_fence_proxy(); /* A8 of steps that other warps were faster to take */
	return got;
}

GX_DEV uint32_t ht_step_is(struct ht_step step)
{
	return step.channel < HT_NO_MORE;
}

/* One thread: a channel with steps that nobody has taken; f->n: none. */
GX_DEV uint32_t ht_untaken(const struct ht *ht, const struct ht_flow *f)
{
	uint32_t c = 0;

	while (c < f->n && gx_ld_relaxed_u32(&f->channel[c].taken) >= ht_steps(ht, f, c))
		c++;
	return c;
}

GX_DEV uint64_t ht_steps_of(const struct ht *ht, const struct ht_flow *f)
{
	uint64_t n = 0;

	for (uint32_t c = 0; c < f->n; c++)
		n += ht_steps(ht, f, c);
	return n;
}

/* ---- idle ---- */

/* What a warp that looked for work has found. */
enum ht_found { HT_DONE_SOME, HT_NOTHING_YET, HT_NOTHING_LEFT };

/* Of a warp that found nothing to do. */
struct ht_idle {
	uint32_t spin;
	uint64_t next;
};

/* All lanes: looks for what has come, or leaves that to the warp that does, and whether to go on. */
GX_DEV enum gx_wait_result ht_idle(const struct ht *ht, struct ht_idle *idle)
{
	struct gx_limit limit = ht_limit_later(ht, 1);
	uint32_t result = GX_ARRIVED;

	gx_pause(ht_look(ht, HT_LOOKS) ? idle->spin : GX_REST);
	if (gx_lane() == 0)
		result = (uint32_t)gx_limit_reached(&limit, idle->spin, &idle->next);
	if (gx_lane() == 0 && result == GX_ARRIVED && idle->spin % 64 == 63 && gx_ld_relaxed_u32(ht->op.errors) != 0)
		result = GX_FAILED; /* another warp has reported it */
	idle->spin++;
	return (enum gx_wait_result)gx_shfl_u32(result, 0);
}

/* One thread, when ht_idle says that the operation has failed. awaited: a rank of another node that has to send
 * something. */
GX_DEV void ht_idle_fail(const struct ht *ht, enum gx_wait_result why, uint32_t awaited)
{
	if (gx_ld_relaxed_u32(ht->op.errors) == 0)
		gx_op_fail_wait(&ht->op, why, awaited, awaited, EP_KPHASE_RECV);
}

#endif
