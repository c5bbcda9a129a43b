/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU emulated on the CPU, for tests: each GPU thread is a fiber, each block a thread, and all blocks of a launch run
 * concurrently (unless limited by resident), so kernels that wait for each other work. Another thread of the block may
 * run at barriers, warp operations and pauses only; under TSan the barriers, and nothing else in the emulator, order
 * memory, which makes it a race detector for kernels.
 *
 * It aborts the program with a message on stderr when lanes or threads meet at different source locations, when not all
 * take part in a barrier or warp operation, when a lane waits (gx_pause) without all others of its warp, when a thread
 * starts a copy (gx_bulk) after an acquire without a proxy fence, and when no thread of a block can continue. It cannot
 * detect wrong scopes, or other errors in the use of GPU caches and copy engines, or a spin loop that does not call
 * gx_pause.
 */
#ifndef EP_SIMT_H
#define EP_SIMT_H

#include <stdint.h>

struct simt_options {
	uint64_t seed;	   /* 0: threads run in order; else in a random order determined by the seed */
	unsigned resident; /* blocks of a launch that run at once; 0: all */
	void (*report)(const char *message); /* called before the program is aborted; may exit by itself */
};

/* For all later launches of all threads. */
void simt_configure(const struct simt_options *options);

#endif
