/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_push: producers push commands into rings, to test and to measure them. Producer p is a warp,
 * p = first .. first + items - 1; it pushes `count` commands into ring p % rings.
 */
#ifndef EP_KERNELS_ARGS_RING_H
#define EP_KERNELS_ARGS_RING_H

#include "kernels/gx/both.h"
#include "util/ring.h"

enum ep_ring_push_mode {
	EP_PUSH_THREAD, /* the warp's first lane, batch commands per claim */
	EP_PUSH_WARP,	/* every lane one command, one claim for all of them */
	EP_PUSH_LANES,	/* every lane one command, command i into ring (p + i) % rings: several rings at once */
	EP_PUSH_RAW,	/* as EP_PUSH_WARP into private entries: no claim, no credit, no pops; the raw store rate */
	EP_PUSH_ECHO,	/* as EP_PUSH_THREAD, one at a time, waiting for each to complete: the round trip */
};

/* Zero at the start; reset by the last block to leave. */
struct ep_ring_push_state {
	uint32_t ticket, left;
};
EP_SIZE_IS(ep_ring_push_state, 8);

/* Pinned, zero at the start. */
struct ep_ring_push_report {
	uint64_t failed;  /* enum gx_wait_result of a push that failed */
	uint64_t echo_ns; /* EP_PUSH_ECHO: all round trips of the last producer */
};
EP_SIZE_IS(ep_ring_push_report, 16);

struct ep_ring_push_args {
	const struct ep_cmd_ring *ring; /* [rings], in device memory */
	struct ep_ring_push_state *state;
	struct ep_ring_push_report *report;
	uint64_t *payload;     /* [producer][count] words written before their commands; NULL: commands alone */
	const uint64_t *abort; /* pinned */
	uint64_t timeout_ns;
	uint32_t rings, first, items, count;
	uint32_t batch; /* 1 to EP_CMD_CLAIM_MAX */
	uint32_t mode;	/* enum ep_ring_push_mode */
};
EP_SIZE_IS(ep_ring_push_args, 72);

/* The payload of a command, and the command: known to the consumer, which checks them. */
EP_BOTH uint64_t ep_ring_push_word(uint32_t producer, uint32_t i)
{
	return ((uint64_t)producer << 32 | i) * 0x9e3779b97f4a7c15u;
}

EP_BOTH struct ep_cmd ep_ring_push_cmd(uint32_t producer, uint32_t i)
{
	uint64_t word = ep_ring_push_word(producer, i);

	return ep_cmd_put(producer, word % EP_CMD_REACH, (uint64_t)i * EP_CMD_UNIT, (uint32_t)(word >> 36));
}

#endif
