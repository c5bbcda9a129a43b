/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands from a device to a thread of the CPU: what both sides of a ring must agree on. Read by C11, nvcc and clang
 * -x hip. kernels/gx/ring.h pushes, proxy/ring.h pops.
 *
 * A command is 16 bytes, and no device promises that 16 bytes become visible at once: each half of 8 carries the phase
 * of its lap, so an entry is there when both halves say so, and no count has to be published behind it.
 *
 *   half 0   bit 0 phase   1-5 opcode   6-23 channel      24-63 destination, in units of 16 bytes
 *   half 1   bit 0 phase   1-23 length in units of 16     24-63 source, in units of 16 bytes
 *            bit 0 phase   1-63 value, of a signal
 *
 * So windows may have 16 TiB, a put 128 MiB - 16, an engine 2^18 channels. Whoever makes windows and channels checks
 * that once (ep_cmd_fits); packing cuts silently, because a kernel has nobody to tell.
 *
 * Positions count commands from the ring's start and never go back. They are 64 bits wide and compared by their
 * difference, so that even their end is a place like any other; the lap's lowest bit, inverted, is the phase.
 */
#ifndef EP_UTIL_RING_H
#define EP_UTIL_RING_H

#include <stddef.h>
#include <stdint.h>

#ifdef GX_DEV
#define EP_CMD_FN GX_DEV
#else
#define EP_CMD_FN static inline
#endif

enum ep_cmd_op {
	EP_CMD_NONE,   /* never pushed: memory that nobody wrote is no command */
	EP_CMD_NOP,    /* counts as completed when it is popped */
	EP_CMD_PUT,    /* length bytes from source in this rank's window to destination in the channel's */
	EP_CMD_SIGNAL, /* value to the 8 bytes at destination, after every put of the channel before it */
	EP_CMD_OPS
};

#define EP_CMD_UNIT 16u
#define EP_CMD_CHANNELS (1u << 18)
#define EP_CMD_LENGTH_MAX (((1u << 23) - 1) * EP_CMD_UNIT)
#define EP_CMD_REACH ((uint64_t)1 << 44)
#define EP_CMD_VALUE_MAX (UINT64_MAX >> 1)

/* A power of two. The least is twice the widest warp, which may claim for all its lanes at once: see EP_CMD_STEP. */
#define EP_CMD_ENTRIES_MIN 128u
#define EP_CMD_ENTRIES_MAX (1u << 24)
#define EP_CMD_CLAIM_MAX 64u

/*
 * Credits are published when so many entries were popped. Nobody waits for ever for the rest: the first producer that
 * waits has everything before it written, so all but step - 1 of that is published, and its claim of at most
 * EP_CMD_CLAIM_MAX fits into what is left (64 <= entries - entries / 4 from 128 entries on).
 */
#define EP_CMD_STEP(entries) ((entries) / 4)

struct ep_cmd {
	uint64_t half[2];
};

/* Pinned host memory, in front of the entries. Each line of 64 bytes has one side that writes. */
struct ep_cmd_tail {
	uint64_t credit; /* the consumer's: entries before this position may be written again */
	uint64_t done;	 /* the consumer's: so many commands are completed by the net, in whatever order */
	uint64_t pad0[6];
	uint64_t dead; /* a producer's: EP_CMD_DEAD of the first claim that was not filled; 0: none */
	uint64_t pad1[7];
};

/* Device memory, each ring's in a line of its own. */
struct ep_cmd_head {
	uint64_t claim; /* the next position to be had */
	uint64_t seen;	/* what some producer last saw of credit: a look at it costs no way over PCIe */
	uint64_t dead;	/* claims that were not filled; behind the first nothing will be popped */
	uint64_t pad[13];
};

/* What a producer holds: addresses as the device sees them. */
struct ep_cmd_ring {
	struct ep_cmd *entry;
	struct ep_cmd_tail *tail;
	struct ep_cmd_head *head;
	uint32_t entries;
	uint32_t shift; /* log2 of entries */
	uint32_t *bell; /* of the engine (util/bell.h), for producers on the CPU; NULL: it looks by itself */
};

typedef char ep_cmd_size_[sizeof(struct ep_cmd) == 16 ? 1 : -1];
typedef char ep_cmd_tail_size_[sizeof(struct ep_cmd_tail) == 128 ? 1 : -1];
typedef char ep_cmd_head_size_[sizeof(struct ep_cmd_head) == 128 ? 1 : -1];
typedef char ep_cmd_ring_size_[sizeof(struct ep_cmd_ring) == 40 ? 1 : -1];

/* The dead word: where the hole is and why (enum gx_wait_result, never 0). */
#define EP_CMD_DEAD(position, why) ((uint64_t)(position) << 2 | (uint64_t)(why))
#define EP_CMD_DEAD_WHY(word) ((unsigned)((word) & 3))
#define EP_CMD_DEAD_AT(word) ((uint64_t)(word) >> 2)

/* Bytes of pinned memory: the tail, then the entries. */
EP_CMD_FN uint64_t ep_cmd_pinned_size(uint32_t entries)
{
	return sizeof(struct ep_cmd_tail) + (uint64_t)entries * sizeof(struct ep_cmd);
}

EP_CMD_FN uint64_t ep_cmd_phase(uint64_t position, uint32_t shift)
{
	return ~(position >> shift) & 1;
}

/* Whether a channel, a window of so many bytes and puts of at most length bytes can be named. */
EP_CMD_FN int ep_cmd_fits(uint64_t channel, uint64_t window, uint64_t length)
{
	return channel < EP_CMD_CHANNELS && window <= EP_CMD_REACH && length <= EP_CMD_LENGTH_MAX;
}

EP_CMD_FN uint64_t ep_cmd_half0(uint32_t op, uint32_t channel, uint64_t dst)
{
	return (uint64_t)(op & 31) << 1 | (uint64_t)(channel & (EP_CMD_CHANNELS - 1)) << 6 | dst / EP_CMD_UNIT << 24;
}

/* Offsets and length in bytes, multiples of 16. */
EP_CMD_FN struct ep_cmd ep_cmd_put(uint32_t channel, uint64_t dst, uint64_t src, uint32_t length)
{
	struct ep_cmd c;

	c.half[0] = ep_cmd_half0(EP_CMD_PUT, channel, dst);
	c.half[1] = (uint64_t)(length / EP_CMD_UNIT & 0x7fffff) << 1 | src / EP_CMD_UNIT << 24;
	return c;
}

EP_CMD_FN struct ep_cmd ep_cmd_signal(uint32_t channel, uint64_t dst, uint64_t value)
{
	struct ep_cmd c;

	c.half[0] = ep_cmd_half0(EP_CMD_SIGNAL, channel, dst);
	c.half[1] = value << 1;
	return c;
}

EP_CMD_FN struct ep_cmd ep_cmd_nop(uint32_t channel)
{
	struct ep_cmd c;

	c.half[0] = ep_cmd_half0(EP_CMD_NOP, channel, 0);
	c.half[1] = 0;
	return c;
}

EP_CMD_FN uint32_t ep_cmd_op(const struct ep_cmd *c)
{
	return (uint32_t)(c->half[0] >> 1) & 31;
}

EP_CMD_FN uint32_t ep_cmd_channel(const struct ep_cmd *c)
{
	return (uint32_t)(c->half[0] >> 6) & (EP_CMD_CHANNELS - 1);
}

EP_CMD_FN uint64_t ep_cmd_dst(const struct ep_cmd *c)
{
	return (c->half[0] >> 24) * EP_CMD_UNIT;
}

EP_CMD_FN uint64_t ep_cmd_src(const struct ep_cmd *c)
{
	return (c->half[1] >> 24) * EP_CMD_UNIT;
}

EP_CMD_FN uint32_t ep_cmd_length(const struct ep_cmd *c)
{
	return ((uint32_t)(c->half[1] >> 1) & 0x7fffff) * EP_CMD_UNIT;
}

EP_CMD_FN uint64_t ep_cmd_value(const struct ep_cmd *c)
{
	return c->half[1] >> 1;
}

#endif
