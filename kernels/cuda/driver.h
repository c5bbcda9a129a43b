/* SPDX-License-Identifier: Apache-2.0 */
/* The driver library: opened at the first call that needs it, never closed. */
#ifndef EP_KERNELS_CUDA_DRIVER_H
#define EP_KERNELS_CUDA_DRIVER_H

#include "kernels/cuda/driver_api.h"

/* Filled once by ep_cu_load, read-only afterwards. Symbols that are not needed may be NULL. */
extern struct ep_cu_api ep_cu;

/*
 * Opens libcuda and resolves its symbols; -ENODEV with the sentence when there is none. That is an answer, not a
 * failure: it is logged at INFO only. Does not initialise the driver, so a process that only asks may still fork.
 */
int ep_cu_load(void);

/* ep_cu_load, then cuInit; -ENODEV in the same way when the driver sees no GPU. */
int ep_cu_init(void);

/*
 * 0 for CUDA_SUCCESS; else -EP_EDEVICE with "CALL: NAME (text) WHAT; REMEDY", where fmt gives WHAT ("for ...").
 */
int ep_cu_check_(unsigned result, const char *call, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* For clean-up, where a first failure must keep its sentence: only logs. */
void ep_cu_note_(unsigned result, const char *call);

/* EP_CU(cuMemFree_v2, (ptr), "for ..."): the call, checked. */
#define EP_CU(call, args, ...) ep_cu_check_(ep_cu.call args, #call, __FILE__, __LINE__, __VA_ARGS__)
#define EP_CU_NOTE(call, args) ep_cu_note_(ep_cu.call args, #call)

/* "CUDA_ERROR_OUT_OF_MEMORY"; never NULL. */
const char *ep_cu_name(unsigned result);

#endif
