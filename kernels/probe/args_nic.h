/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic: a NIC made of multiprocessors, for tests and measurements of GPUDirect without one (test/gpu/net_sm.c). Each
 * context of the net is a queue of descriptors in pinned memory, which the kernel executes and logs there.
 *
 * A port is the end of a wire: one per rank. A put occupies its sender's wire, then its receiver's, for bytes / rate,
 * and is delivered `latency` later. The contexts of a port take turns on its wire, as the queue pairs of a NIC do: one
 * that has many puts does not keep the others waiting. All counters and indices are 32 bits wide and wrap.
 */
#ifndef EP_KERNELS_ARGS_NIC_H
#define EP_KERNELS_ARGS_NIC_H

#include "kernels/op/args.h"

#define EP_NIC_ENTRIES 512u  /* descriptors of a context in flight; a power of two */
#define EP_NIC_PORTS 64u     /* of all groups of the process */
#define EP_NIC_SMALL 32u     /* bytes: puts up to this size become visible in their turn */
#define EP_NIC_PIECE 131072u /* bytes of a descriptor at most: one warp copies it */
#define EP_NIC_WINDOW 32u    /* puts of a context to one port that are looked at for delivery */
#define EP_NIC_INLINE 1u     /* flag: the bytes are in the descriptor */
#define EP_NIC_TELL 2u	     /* flag: without order the receiver is told the immediate; else by the host */
#define EP_NIC_IMMS 64u	     /* immediates from a context to a port that its host has not taken; a power of two */
#define EP_NIC_TURN 524288u  /* bytes after which a context's turn on the wire ends, */
#define EP_NIC_ALONE 2u	     /* times as many if no other context uses it */
#define EP_NIC_AHEAD 16000u  /* ns before it is free at which it may be reserved, half of it by who had it last */

struct ep_nic_desc {
	uint64_t src, dst;
	uint32_t bytes, imm;
	uint8_t from, to; /* ports */
	uint16_t flags;
	uint32_t pad;
	uint64_t word[EP_NIC_SMALL / 8];
};
EP_SIZE_IS(ep_nic_desc, 64);

/* `stamp`: number of the record, from 1, in the upper half, and the descriptor's index modulo EP_NIC_ENTRIES, with
 * EP_NIC_TOLD where the receiver was told. */
#define EP_NIC_TOLD 0x80000000u
struct ep_nic_record {
	uint64_t stamp;
	uint64_t late_ns; /* delivered so much after the time that rate and latency give */
};
EP_SIZE_IS(ep_nic_record, 16);

/* Pinned, one per context. Host and device write different lines. */
struct ep_nic_queue {
	uint32_t posted; /* by the host */
	uint32_t pad0[31];
	uint32_t delivered; /* by the device */
	uint32_t pad1[31];
	struct ep_nic_desc desc[EP_NIC_ENTRIES];
	struct ep_nic_record log[EP_NIC_ENTRIES];
	uint32_t heard[EP_NIC_PORTS]; /* by each port's host: immediates taken */
	/* By the device: their number, from 1, and in the lower half the value. */
	uint64_t imm[EP_NIC_PORTS][EP_NIC_IMMS];
};
EP_SIZE_IS(ep_nic_queue, 256 + EP_NIC_ENTRIES * 80 + EP_NIC_PORTS * (4 + EP_NIC_IMMS * 8));

/* Pinned. */
struct ep_nic_board {
	uint32_t ended; /* by the device: the number of the launch that ended last */
	uint32_t pad[31];
	uint32_t quit; /* by the host: the number of the launch that is asked to end */
	uint32_t pad2[31];
};
EP_SIZE_IS(ep_nic_board, 256);

/* The rest is device memory, zero at the start. */
struct ep_nic_job {
	uint64_t src, dst, due;
	uint32_t bytes, imm;
	uint8_t from, to; /* ports */
	uint16_t flags;	  /* of the descriptor */
	uint32_t pad[3];
	uint64_t word[EP_NIC_SMALL / 8]; /* EP_NIC_INLINE: the bytes */
};
EP_SIZE_IS(ep_nic_job, 80);

/* Of a context. Between launches all that was taken is delivered. */
struct ep_nic_state {
	uint32_t taken;	   /* descriptors with a job */
	uint32_t next;	   /* all below are begun */
	uint32_t closed;   /* this launch takes no more */
	uint32_t logged;   /* records written */
	uint32_t reserved; /* of those taken: have their time on the wires */
	uint32_t pad;
	uint64_t until;			 /* gx_clock_ns when the last of them has left the sender's */
	uint32_t begun[EP_NIC_ENTRIES];	 /* index + 1: a worker has the job, or it needs none */
	uint32_t copied[EP_NIC_ENTRIES]; /* index + 1: the job's bytes have been copied, or are in it */
	uint32_t in[EP_NIC_PORTS];	 /* jobs to each port, */
	uint32_t out[EP_NIC_PORTS];	 /* those that left the window */
	uint32_t gone[EP_NIC_PORTS];	 /* and those in the window that are delivered, as bits */
	uint32_t told[EP_NIC_PORTS];	 /* immediates of which it was told, */
	uint32_t heard[EP_NIC_PORTS];	 /* and so many its host had taken when they were counted last */
	uint32_t fifo[EP_NIC_PORTS][EP_NIC_ENTRIES];
	struct ep_nic_job job[EP_NIC_ENTRIES];
	uint64_t fetched[EP_NIC_ENTRIES][EP_NIC_SMALL / 8]; /* the bytes of other small puts */
};
EP_SIZE_IS(ep_nic_state, 32 + EP_NIC_ENTRIES * (88 + EP_NIC_SMALL) + EP_NIC_PORTS * (20 + EP_NIC_ENTRIES * 4));

struct ep_nic_wire {
	uint64_t free;	       /* gx_clock_ns from which it is free, */
	uint64_t gap, gap_end; /* and before that: of a receiver's */
	uint32_t lock, pad;
};
EP_SIZE_IS(ep_nic_wire, 32);

struct ep_nic_common {
	uint32_t stop; /* this launch ends */
	uint32_t left; /* blocks that have finished */
	struct ep_nic_wire sends[EP_NIC_PORTS], receives[EP_NIC_PORTS];
};
EP_SIZE_IS(ep_nic_common, 8 + EP_NIC_PORTS * 64);

struct ep_nic_args {
	struct ep_nic_queue *queue; /* [contexts] */
	struct ep_nic_state *state; /* [contexts] */
	struct ep_nic_common *common;
	struct ep_nic_board *board;
	uint64_t latency_ns;
	uint64_t jitter_ns; /* unordered: up to this much more, different for each put */
	uint64_t idle_ns;   /* the launch ends after that long without a put */
	uint32_t ps_per_byte;
	uint32_t contexts, ports;
	uint32_t number; /* of the launch, from 1 */
	uint32_t unordered;
	uint32_t relaxed; /* small puts and records that are due at the same time become visible in any order */
	uint32_t stage;	  /* bytes of dynamic shared memory per warp; 0: the copy engine is not used */
	uint32_t pad;
};
EP_SIZE_IS(ep_nic_args, 88);

#endif
