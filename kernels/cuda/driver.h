/* SPDX-License-Identifier: Apache-2.0 */
/* The driver library: opened at the first call that needs it, never closed. */
#ifndef EP_KERNELS_CUDA_DRIVER_H
#define EP_KERNELS_CUDA_DRIVER_H

#include "kernels/cuda/driver_api.h"

/* Filled once by ep_cu_load, read-only afterwards. Optional symbols may be NULL. */
extern struct ep_cu_api ep_cu;

/*
 * Opens libcuda and resolves its symbols; -ENODEV with a message if there is none. Not a failure: logged at INFO only.
 * Does not initialise the driver, so that a process that only queries may still fork.
 */
int ep_cu_load(void);

/* ep_cu_load, then cuInit; -ENODEV likewise if the driver sees no GPU. */
int ep_cu_init(void);

/* 0 for CUDA_SUCCESS; else -EP_EDEVICE with "CALL: NAME (text) WHAT; REMEDY", where fmt gives WHAT ("for ..."). */
int ep_cu_check_(unsigned result, const char *call, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* For clean-up, where the first failure must keep its message: only logs. */
void ep_cu_note_(unsigned result, const char *call);

/* EP_CU(cuMemFree_v2, (ptr), "for ..."): the call, checked. */
#define EP_CU(call, args, ...) ep_cu_check_(ep_cu.call args, #call, __FILE__, __LINE__, __VA_ARGS__)
#define EP_CU_NOTE(call, args) ep_cu_note_(ep_cu.call args, #call)

/* "CUDA_ERROR_OUT_OF_MEMORY"; never NULL. */
const char *ep_cu_name(unsigned result);

#endif
