/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a kernel reaches ranks that it cannot map: rows are left in memory of its own that the net reads, a command tells
 * an engine to put them, and what other ranks put arrives in memory of its own that the net writes. No address of
 * another node's memory is ever given to a kernel.
 *
 * Windows are divided into areas, one for each source of rows: ranks that are mapped are counted for the one window,
 * those that are not for the other, so that neither has room for the other's.
 */
#ifndef EP_KERNELS_ARGS_FAR_H
#define EP_KERNELS_ARGS_FAR_H

#include "kernels/gx/both.h"
#include "util/ring.h"

/* The area of that rank's rows in this rank's window, and of this rank's rows in that one's. */
struct ep_seat {
	uint32_t here, there;
};
EP_SIZE_IS(ep_seat, 8);

/* All zero in a group whose ranks all map each other. Places are the same on every rank, as commands name them. */
struct ep_far {
	const struct ep_cmd_ring *ring; /* [lanes][ports], in device memory; NULL: there is nobody afar */
	const struct ep_seat *seat;	/* [nranks], in device memory */
	uint8_t *control;		/* laid out as the control page */
	uint8_t *window;		/* rows that arrive; two buffers */
	uint8_t *send;			/* rows that leave; two buffers */
	uint64_t control_place, window_place, send_place;
	uint64_t window_bytes, send_bytes; /* from one buffer to the other */
	uint64_t send_stride; /* from one receiver's part to the next: whatever lies in it, only he frees it */
	uint32_t ports, lanes;
};
EP_SIZE_IS(ep_far, 96);

#endif
