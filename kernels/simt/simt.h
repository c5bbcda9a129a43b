/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU on the CPU, for tests: each GPU thread is a fiber, each block a thread of its own, all blocks of a launch run
 * side by side (unless told otherwise), so kernels that wait for each other work. Barriers, warp operations and pauses
 * are the points where another thread of the block may run; under TSan the barriers, and nothing else of the emulator,
 * order memory, which makes it a race detector for kernels.
 *
 * What it finds by itself ends the program with a sentence on stderr: lanes or threads that meet at different places,
 * barriers and warp operations that not all take part in, and blocks in which nobody can go on. It cannot show wrong
 * scopes, caches of GPUs, copy engines, or a spin loop that does not call gx_pause.
 */
#ifndef EP_SIMT_H
#define EP_SIMT_H

#include <stdint.h>

struct simt_options {
	uint64_t seed;	   /* 0: threads run in order; else in a random order that this number decides */
	unsigned resident; /* blocks of a launch that run at once; 0: all */
	void (*report)(const char *sentence); /* called before the program is ended; may end it in its own way */
};

/* For all launches after it, of all threads. */
void simt_configure(const struct simt_options *options);

#endif
