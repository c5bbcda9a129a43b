/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reordering on the receiver of an unordered net: the sender numbers the puts of a channel, they arrive in any order,
 * and a signal is due when everything numbered before it has arrived. Pure: no I/O, no allocation after init.
 *
 * A put carries a 32-bit immediate: | channel | sequence | signal |, signal in the lowest bit. Both sides derive the
 * widths from the number of channels; 2^sequence >= 2 * window tells a number from that of the next lap, as the sender
 * never has more than a window of puts in flight.
 */
#ifndef EP_PROXY_ORDER_H
#define EP_PROXY_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ep_order_channel {
	uint64_t prefix; /* everything below has arrived */
	uint64_t taken;	 /* everything below was also searched for signals; its bits are free */
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
 * For `channels` channels whose senders keep at most `window` puts in flight. The sequence gets all bits that channel
 * and signal leave of 32. start: the first number of every channel; not 0 only in tests.
 */
int ep_order_init(struct ep_order *order, uint32_t channels, uint32_t window, uint64_t start);
void ep_order_free(struct ep_order *order);
size_t ep_order_bytes(const struct ep_order *order);

uint32_t ep_order_pack(const struct ep_order *order, struct ep_order_put put);
struct ep_order_put ep_order_unpack(const struct ep_order *order, uint32_t imm);

/*
 * A put has arrived. 1: the prefix has advanced, signals may be due; 0: it has not. Rejected without effect: -ERANGE
 * outside the window and -EP_EARG for an invalid channel, both with a message; -EALREADY for a duplicate, without one,
 * since a net that delivers twice keeps doing so.
 */
int ep_order_arrive(struct ep_order *order, struct ep_order_put put);

/* Whether signals of the channel are due, and the number of the first. */
bool ep_order_waits(const struct ep_order *order, uint32_t channel, uint64_t *number);

/* The channel's next due signal below `upto`, which is at most its prefix, in order of numbers: true and its number. To
 * be called until it returns false: the window does not advance before. */
bool ep_order_due(struct ep_order *order, uint32_t channel, uint64_t upto, uint32_t *seq);

#endif
