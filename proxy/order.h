/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver's side of an unordered net: puts of a channel are numbered by their sender and arrive in any order; a
 * signal among them is due when everything numbered before it has arrived. Pure: no I/O, and no memory after init.
 *
 * A put brings 32 bits: | channel | sequence | signal |, the last being the lowest bit. Widths are agreed at connect;
 * 2^sequence >= 2 * window keeps numbers of one lap apart from those of the next, and the sender never has more than a
 * window of puts on the way.
 */
#ifndef EP_PROXY_ORDER_H
#define EP_PROXY_ORDER_H

#include <stdbool.h>
#include <stdint.h>

struct ep_order_channel {
	uint64_t prefix; /* everything before has arrived */
	uint64_t taken;	 /* everything before was also looked through for signals; its bits are free again */
};

struct ep_order {
	uint32_t channels, window; /* window: a power of two, 64 at least */
	uint32_t seq_bits;
	struct ep_order_channel *channel; /* [channels] */
	uint64_t *bits;			  /* [channels][2][window / 64]: arrived, signal */
};

struct ep_order_put {
	uint32_t channel, seq;
	bool signal;
};

/*
 * Room for `channels` channels whose senders keep at most window puts on the way. The sequence gets every bit that
 * channels and the signal leave of 32. start: the first number, of all channels; 0 but in tests.
 */
int ep_order_init(struct ep_order *order, uint32_t channels, uint32_t window, uint64_t start);
void ep_order_free(struct ep_order *order);

uint32_t ep_order_pack(const struct ep_order *order, struct ep_order_put put);
struct ep_order_put ep_order_unpack(const struct ep_order *order, uint32_t imm);

/*
 * A put has arrived. 1: the prefix has moved, take what is due; 0: it has not. Refused, without a trace: -ERANGE a
 * number outside the window, -EP_EARG a channel there is not, both with a sentence; -EALREADY what had arrived before,
 * without one, as a net that delivers twice does it again and again.
 */
int ep_order_arrive(struct ep_order *order, struct ep_order_put put);

/* The channel's next signal that is due, in the order of the numbers: true and its number. To be called until it says
 * no: until then the window stays where it was. */
bool ep_order_due(struct ep_order *order, uint32_t channel, uint32_t *seq);

#endif
