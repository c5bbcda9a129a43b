/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the host runs a kernel. A build links one of two implementations: kernels/host/scalar.c (the CPU device) or
 * kernels/simt/ (the emulator); the device row is the same for both.
 */
#ifndef EP_KERNELS_HOST_LAUNCH_H
#define EP_KERNELS_HOST_LAUNCH_H

#include <stddef.h>

#include "kernels/dev.h"

typedef void (*gx_host_fn)(const void *args);

struct gx_host_kernel {
	const char *name;
	size_t args_size;
	gx_host_fn run;
};
extern const struct gx_host_kernel gx_host_kernels[EP_KERNELS];

/* The kernel's function for this CPU, of those that were compiled: gx_host_kernels', or one for wider vectors. */
gx_host_fn gx_host_pick(unsigned kernel);

struct gx_host_shape {
	unsigned warp, sms;
	size_t shared_max;
};
extern const struct gx_host_shape gx_host_shape;

/* Returns when all blocks have finished. Any number of threads may launch at once. */
int gx_host_launch(gx_host_fn fn, const void *args, unsigned grid, unsigned block, size_t shared);

#endif
