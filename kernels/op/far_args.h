/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a kernel reaches far ranks (not mapped): it writes rows to send memory that the net reads, a command makes an
 * engine put them, and rows from far ranks arrive in a window that the net writes. A kernel never gets an address in
 * another node's memory.
 *
 * Windows are divided into areas, one per source of rows. The window for near ranks has areas for near ranks only, the
 * one for far ranks for far ranks only.
 */
#ifndef EP_KERNELS_ARGS_FAR_H
#define EP_KERNELS_ARGS_FAR_H

#include "kernels/gx/both.h"
#include "util/ring.h"

/* The area of a rank's rows in this rank's window, and of this rank's rows in that rank's. EP_SEAT_NONE: nothing is put
 * between the two. */
#define EP_SEAT_NONE 0xffffffffu
struct ep_seat {
	uint32_t here, there;
};
EP_SIZE_IS(ep_seat, 8);

/* All zero in a group without far ranks. Places are offsets as commands use them, the same on every rank. */
struct ep_far {
	const struct ep_cmd_ring *ring; /* [lanes][ports], in device memory; NULL: no far ranks */
	const struct ep_seat *seat;	/* [nranks], in device memory */
	struct ep_cmd_open *open;	/* pinned */
	uint8_t *control;		/* the words that far ranks write, packed */
	uint8_t *window;		/* received rows; two buffers */
	uint8_t *send;			/* rows to send; two buffers */
	uint64_t control_place, window_place, send_place;
	uint64_t window_bytes, send_bytes; /* from one buffer to the other */
	uint64_t send_stride; /* from one receiver's part to the next; only that receiver's ack frees a part */
	uint32_t ports, lanes;
	uint32_t control_pinned, window_pinned; /* 1: host memory, across PCIe on a GPU */
};
EP_SIZE_IS(ep_far, 112);

#endif
