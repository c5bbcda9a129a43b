/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels compiled as C for the host, and their table for the host row. */
#include "kernels/kernels.cu"

#include "kernels/host/launch.h"

/* Compiled several times where the CPU decides (isa_x86_64.c), with a name each. */
#ifndef GX_HOST_KERNELS
#define GX_HOST_KERNELS gx_host_kernels
#endif
extern const struct gx_host_kernel GX_HOST_KERNELS[EP_KERNELS];

#define EP_KERNEL(name, args)                                    \
	static void run_##name(const void *p)                    \
	{                                                        \
		EP_KERNEL_SYMBOL(name)(*(const struct args *)p); \
	}
#include "kernels/list.h"
#undef EP_KERNEL

const struct gx_host_kernel GX_HOST_KERNELS[EP_KERNELS] = {
#define EP_KERNEL(name, args) { #name, sizeof(struct args), run_##name },
#include "kernels/list.h"
#undef EP_KERNEL
};
