/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rowsig: every rank sends rows to every rank, directly into the receiver's window, and signals; the receiver copies
 * them out and acknowledges the buffer. The smallest operation that has everything the real ones need.
 *
 *   window    [2 buffers][source rank]: a head of 16 bytes (the number of rows), then room for cap rows
 *   control   64-bit words: signal[source rank], ack[destination rank], failed
 *   state     private to this rank, advanced by the kernel; zero at the start
 */
#ifndef EP_KERNELS_ARGS_ROWSIG_H
#define EP_KERNELS_ARGS_ROWSIG_H

#include "kernels/op/args.h"

struct ep_rowsig_state {
	uint64_t epoch;	  /* operations done; all blocks of a launch read it, the last to leave advances it */
	uint64_t used[2]; /* the last epoch that used each buffer */
	uint32_t buffer;  /* the one to use next */
	uint32_t send_ticket, recv_ticket;
	uint32_t left;	 /* blocks that have finished */
	uint32_t errors; /* 0: the report is free */
	uint32_t pad;
	/* uint32_t sent[nranks], received[nranks] follow: slices finished for each destination, of each source */
};
EP_SIZE_IS(ep_rowsig_state, 48);

struct ep_rowsig_args {
	const uint8_t *in;	  /* [nranks][cap] rows of row bytes, by destination */
	uint8_t *out;		  /* the same, by source */
	const uint32_t *count;	  /* [nranks] rows for each destination, at most cap */
	uint32_t *got;		  /* [nranks] rows received from each source */
	uint8_t *const *window;	  /* [nranks] each rank's window, in device memory */
	uint64_t *const *control; /* [nranks] each rank's control words, in device memory */
	struct ep_rowsig_state *state;
	struct ep_kernel_report *report;
	const uint64_t *abort; /* pinned */
	uint64_t timeout_ns;
	uint64_t row; /* bytes */
	uint32_t rank, nranks, cap;
	uint32_t slices; /* work items per peer, the same in all launches; nranks * slices < 2^31 */
	uint32_t stage;	 /* bytes of dynamic shared memory per warp; 0: the copy engine is not used */
	uint32_t single; /* 1: always the same buffer; each operation waits until all have read the one before */
};
EP_SIZE_IS(ep_rowsig_args, 112);

#define EP_ROWSIG_HEAD 16u

/* Rows in the window are 16-byte aligned. */
EP_BOTH uint64_t ep_rowsig_pitch(uint64_t row)
{
	return (row + 15) / 16 * 16;
}

/* Bytes of one [buffer][source] block. */
EP_BOTH uint64_t ep_rowsig_block(uint64_t row, uint32_t cap)
{
	return EP_ROWSIG_HEAD + ep_rowsig_pitch(row) * cap;
}

EP_BOTH uint64_t ep_rowsig_window_size(uint64_t row, uint32_t cap, uint32_t nranks)
{
	return 2 * (uint64_t)nranks * ep_rowsig_block(row, cap);
}

EP_BOTH uint64_t ep_rowsig_control_size(uint32_t nranks)
{
	return (2 * (uint64_t)nranks + 1) * sizeof(uint64_t);
}

EP_BOTH uint64_t ep_rowsig_state_size(uint32_t nranks)
{
	return sizeof(struct ep_rowsig_state) + 2 * (uint64_t)nranks * sizeof(uint32_t);
}

#endif
