/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/order.h"

#include <stdlib.h>

#include "util/error.h"

/* A flat array: 1024 channels of 512 puts take 144 KiB. */
static uint64_t *order_arrived(const struct ep_order *o, uint32_t channel)
{
	return o->bits + (size_t)channel * 2 * (o->window / 64);
}

static uint64_t *order_signals(const struct ep_order *o, uint32_t channel)
{
	return order_arrived(o, channel) + o->window / 64;
}

static uint32_t seq_mask(const struct ep_order *o)
{
	return (uint32_t)((1ull << o->seq_bits) - 1);
}

int ep_order_init(struct ep_order *order, uint32_t channels, uint32_t window, uint64_t start)
{
	struct ep_order o = { .channels = channels, .window = window };
	uint32_t channel_bits = channels > 1 ? 32 - (uint32_t)__builtin_clz(channels - 1) : 0;

	if (channels == 0 || window < 64 || window & (window - 1))
		return EP_FAIL(EP_PROXY, EP_EARG,
			       "%u channels with a window of %u puts: must be at least 1, and a power of two >= 64",
			       channels, window);
	if (channel_bits > 31 || 1ull << (31 - channel_bits) < 2ull * window)
		return EP_FAIL(EP_PROXY, EP_EUSAGE,
			       "%u channels with a window of %u puts do not fit into a 32-bit immediate: use fewer "
			       "ranks or a smaller window",
			       channels, window);
	o.seq_bits = 31 - channel_bits;
	o.channel = EP_CALLOC(EP_PROXY, channels, sizeof(*o.channel), "channels of an unordered net");
	o.bits = o.channel ? EP_CALLOC(EP_PROXY, (size_t)channels * 2, window / 8, "windows of puts") : NULL;
	if (!o.bits) {
		ep_order_free(&o);
		return -ENOMEM;
	}
	for (uint32_t c = 0; c < channels; c++)
		o.channel[c] = (struct ep_order_channel){ .prefix = start, .taken = start };
	*order = o;
	return 0;
}

void ep_order_free(struct ep_order *order)
{
	free(order->channel);
	free(order->bits);
	*order = (struct ep_order){ 0 };
}

size_t ep_order_bytes(const struct ep_order *order)
{
	return order->channels * (sizeof(*order->channel) + order->window / 4);
}

uint32_t ep_order_pack(const struct ep_order *order, struct ep_order_put put)
{
	uint32_t channel = order->seq_bits < 31 ? put.channel << (order->seq_bits + 1) : 0;

	return channel | (put.seq & seq_mask(order)) << 1 | put.signal;
}

struct ep_order_put ep_order_unpack(const struct ep_order *order, uint32_t imm)
{
	return (struct ep_order_put){ .channel = order->seq_bits < 31 ? imm >> (order->seq_bits + 1) : 0,
				      .seq = imm >> 1 & seq_mask(order),
				      .signal = imm & 1 };
}

/* Advances the prefix over set bits, up to the end of the window: a full lap of set bits must stop there. */
static void order_advance(const struct ep_order *o, uint32_t channel)
{
	struct ep_order_channel *ch = &o->channel[channel];
	const uint64_t *arrived = order_arrived(o, channel);
	uint64_t end = ch->taken + o->window;

	while (ch->prefix != end) {
		uint32_t at = (uint32_t)ch->prefix & (o->window - 1), left = 64 - at % 64;
		uint64_t missing = ~(arrived[at / 64] >> at % 64);
		uint32_t run = missing ? (uint32_t)__builtin_ctzll(missing) : 64;

		run = run < left ? run : left;
		run = run < end - ch->prefix ? run : (uint32_t)(end - ch->prefix);
		ch->prefix += run;
		if (run < left)
			break;
	}
}

int ep_order_arrive(struct ep_order *order, struct ep_order_put put)
{
	struct ep_order_channel *ch;
	uint64_t *arrived, bit, before;
	uint32_t delta, at;

	if (put.channel >= order->channels)
		return EP_FAIL(EP_PROXY, EP_EARG, "put for channel %u of %u", put.channel, order->channels);
	ch = &order->channel[put.channel];
	delta = (put.seq - (uint32_t)ch->taken) & seq_mask(order);
	/* The upper half of the numbers is the past: the sender cannot be that far ahead. */
	if (delta > seq_mask(order) / 2)
		return -EALREADY;
	if (delta >= order->window)
		return EP_FAIL(EP_PROXY, ERANGE, "put %u of channel %u is %u ahead, outside the window of %u", put.seq,
			       put.channel, delta, order->window);
	at = ((uint32_t)ch->taken + delta) & (order->window - 1);
	arrived = order_arrived(order, put.channel);
	bit = 1ull << at % 64;
	if (arrived[at / 64] & bit)
		return -EALREADY;
	arrived[at / 64] |= bit;
	if (put.signal)
		order_signals(order, put.channel)[at / 64] |= bit;
	before = ch->prefix;
	order_advance(order, put.channel);
	return ch->prefix != before;
}

/* The bits of the numbers from `from` to `upto` that lie in the word of the first; *n: how many. */
static uint64_t order_word(const struct ep_order *o, uint64_t from, uint64_t upto, uint32_t *n)
{
	uint32_t at = (uint32_t)from & (o->window - 1), left = 64 - at % 64;

	*n = left < upto - from ? left : (uint32_t)(upto - from);
	return (*n < 64 ? (1ull << *n) - 1 : ~0ull) << at % 64;
}

bool ep_order_waits(const struct ep_order *order, uint32_t channel, uint64_t *number)
{
	const struct ep_order_channel *ch = &order->channel[channel];
	const uint64_t *signals = order_signals(order, channel);
	uint32_t n;

	for (uint64_t at = ch->taken; at != ch->prefix; at += n) {
		uint64_t due = signals[(at & (order->window - 1)) / 64] & order_word(order, at, ch->prefix, &n);

		if (due) {
			*number = at + (uint32_t)__builtin_ctzll(due) - (at & (order->window - 1)) % 64;
			return true;
		}
	}
	return false;
}

bool ep_order_due(struct ep_order *order, uint32_t channel, uint64_t upto, uint32_t *seq)
{
	struct ep_order_channel *ch = &order->channel[channel];
	uint64_t *arrived = order_arrived(order, channel), *signals = order_signals(order, channel);

	while (ch->taken != upto) {
		uint32_t at = (uint32_t)ch->taken & (order->window - 1), n;
		uint64_t through = order_word(order, ch->taken, upto, &n), due = signals[at / 64] & through;

		if (due)
			through = order_word(order, ch->taken, ch->taken + (uint32_t)__builtin_ctzll(due) - at % 64 + 1,
					     &n);
		arrived[at / 64] &= ~through;
		signals[at / 64] &= ~through;
		ch->taken += n;
		if (due) {
			*seq = (uint32_t)(ch->taken - 1) & seq_mask(order);
			return true;
		}
	}
	return false;
}
