/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands from a device to a host thread: the layout both sides of a ring share. Read by C11, nvcc and clang -x hip.
 * kernels/gx/ring.h pushes, proxy/ring.h pops.
 *
 * A command is 16 bytes, and no device guarantees that 16 bytes become visible at once: each 8-byte half carries the
 * phase of its lap. An entry is valid when both halves have the phase, so no separate count has to be published.
 *
 *   half 0   bit 0 phase   1-4 opcode   6-23 channel      24-63 destination, in units of 16 bytes
 *	      bit 5: 8 bytes more, of a signal
 *   half 1   bit 0 phase   1-23 length in units of 16     24-63 source, in units of 16 bytes
 *            bit 0 phase   1-63 value, of a signal
 *
 * So a window has at most 16 TiB, a put 128 MiB - 16, an engine 2^18 channels. This is checked once, when windows and
 * channels are created (ep_cmd_fits); packing truncates silently, as a kernel cannot report it.
 *
 * Positions count commands since the ring was created. They are 64 bits and compared by their difference, so that they
 * may wrap; the phase is the inverted lowest bit of the lap.
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
	EP_CMD_NONE,   /* never pushed: zeroed memory is no command */
	EP_CMD_NOP,    /* completed when popped */
	EP_CMD_PUT,    /* length bytes from source in this rank's window to destination in the channel's peer's */
	EP_CMD_SIGNAL, /* value to the 8 bytes at destination, after all earlier puts of the channel */
	EP_CMD_STEP,   /* a signal of a part of an operation: more follow */
	EP_CMD_CREDIT, /* a signal in no order: it may overtake whatever waits */
	EP_CMD_OPS
};

#define EP_CMD_UNIT 16u
#define EP_CMD_CHANNELS (1u << 18)
#define EP_CMD_LENGTH_MAX (((1u << 23) - 1) * EP_CMD_UNIT)
#define EP_CMD_REACH ((uint64_t)1 << 44)
#define EP_CMD_VALUE_MAX (UINT64_MAX >> 1)

/* Powers of two. The minimum is twice the widest warp, which may claim for all its lanes at once: see EP_CMD_STEP. */
#define EP_CMD_ENTRIES_MIN 128u
#define EP_CMD_ENTRIES_MAX (1u << 24)
#define EP_CMD_CLAIM_MAX 64u

/*
 * Credits are published once per so many popped entries. This cannot deadlock: everything before the first waiting
 * producer is written, so all but step - 1 of it is credited, and a claim of at most EP_CMD_CLAIM_MAX fits the rest
 * (64 <= entries - entries / 4 from 128 entries on).
 */
#define EP_CMD_STEP(entries) ((entries) / 4)

struct ep_cmd {
	uint64_t half[2];
};

/* Pinned host memory, in front of the entries. Each 64-byte line has one writer. */
struct ep_cmd_tail {
	uint64_t credit; /* consumer: entries before this position may be reused */
	uint64_t done;	 /* consumer: number of commands completed by the net, in any order */
	uint64_t pad0[6];
	uint64_t dead; /* producer: EP_CMD_DEAD of the first claim that was not filled; 0: none */
	uint64_t pad1[7];
};

/* Device memory, one line per ring. */
struct ep_cmd_head {
	uint64_t claim; /* next free position */
	uint64_t seen;	/* last credit value read by a producer: saves a read over PCIe */
	uint64_t dead;	/* claims that were not filled; nothing behind the first is popped */
	uint64_t pad[13];
};

/*
 * Pinned host memory: operations that the kernels of a rank have begun and ended, each counted in order, so that its
 * engines know when commands may come; kernels of a replayed graph count too. A line per word: a store of one must not
 * wait for the other's. They are two plain stores, so they may be seen in either order.
 */
struct ep_cmd_open {
	uint32_t begun;
	uint32_t pad0[31];
	uint32_t ended;
	uint32_t pad1[31];
};

/* A producer's view: device addresses. */
struct ep_cmd_ring {
	struct ep_cmd *entry;
	struct ep_cmd_tail *tail;
	struct ep_cmd_head *head;
	uint32_t entries;
	uint32_t shift; /* log2 of entries */
	uint32_t *bell; /* of the engine (util/bell.h), for producers on the host; NULL: the engine polls */
};

typedef char ep_cmd_size_[sizeof(struct ep_cmd) == 16 ? 1 : -1];
typedef char ep_cmd_tail_size_[sizeof(struct ep_cmd_tail) == 128 ? 1 : -1];
typedef char ep_cmd_head_size_[sizeof(struct ep_cmd_head) == 128 ? 1 : -1];
typedef char ep_cmd_ring_size_[sizeof(struct ep_cmd_ring) == 40 ? 1 : -1];

/* The dead word: position of the hole and why (enum gx_wait_result, never 0). */
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

/* Whether a channel, a window of so many bytes and puts of length bytes can be encoded. */
EP_CMD_FN int ep_cmd_fits(uint64_t channel, uint64_t window, uint64_t length)
{
	return channel < EP_CMD_CHANNELS && window <= EP_CMD_REACH && length <= EP_CMD_LENGTH_MAX;
}

EP_CMD_FN uint64_t ep_cmd_half0(uint32_t op, uint32_t channel, uint64_t dst)
{
	return (uint64_t)(op & 15) << 1 | (uint64_t)(channel & (EP_CMD_CHANNELS - 1)) << 6 | dst / EP_CMD_UNIT << 24;
}

/* Offsets and length in bytes, multiples of 16. */
EP_CMD_FN struct ep_cmd ep_cmd_put(uint32_t channel, uint64_t dst, uint64_t src, uint32_t length)
{
	struct ep_cmd c;

	c.half[0] = ep_cmd_half0(EP_CMD_PUT, channel, dst);
	c.half[1] = (uint64_t)(length / EP_CMD_UNIT & 0x7fffff) << 1 | src / EP_CMD_UNIT << 24;
	return c;
}

EP_CMD_FN struct ep_cmd ep_cmd_word(uint32_t op, uint32_t channel, uint64_t dst, uint64_t value)
{
	struct ep_cmd c;

	c.half[0] = ep_cmd_half0(op, channel, dst) | (dst / 8 & 1) << 5;
	c.half[1] = value << 1;
	return c;
}

EP_CMD_FN struct ep_cmd ep_cmd_signal(uint32_t channel, uint64_t dst, uint64_t value)
{
	return ep_cmd_word(EP_CMD_SIGNAL, channel, dst, value);
}

EP_CMD_FN struct ep_cmd ep_cmd_step(uint32_t channel, uint64_t dst, uint64_t value)
{
	return ep_cmd_word(EP_CMD_STEP, channel, dst, value);
}

EP_CMD_FN struct ep_cmd ep_cmd_credit(uint32_t channel, uint64_t dst, uint64_t value)
{
	return ep_cmd_word(EP_CMD_CREDIT, channel, dst, value);
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
	return (uint32_t)(c->half[0] >> 1) & 15;
}

EP_CMD_FN uint32_t ep_cmd_channel(const struct ep_cmd *c)
{
	return (uint32_t)(c->half[0] >> 6) & (EP_CMD_CHANNELS - 1);
}

EP_CMD_FN uint64_t ep_cmd_dst(const struct ep_cmd *c)
{
	return (c->half[0] >> 24) * EP_CMD_UNIT + (c->half[0] >> 5 & 1) * 8;
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
