/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's management library, opened at run time: it sees the whole GPU, whatever part CUDA shows to a process. */
#ifndef EP_KERNELS_CUDA_NVML_H
#define EP_KERNELS_CUDA_NVML_H

#include <stddef.h>
#include <stdint.h>

struct ep_nvml_query {
	const uint8_t *uuid; /* 16 bytes of a GPU or a MIG slice; zeros: unknown */
	const char *bus;     /* domain:bus:device.function; "": unknown. Not of a slice */
	int major, minor;    /* compute capability */
};

/* Multiprocessors of that GPU or slice; 0, and why, where NVML is absent or does not say. */
unsigned ep_nvml_sms(const struct ep_nvml_query *query, const char **why);

#endif
