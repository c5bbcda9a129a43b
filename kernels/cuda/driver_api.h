/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our own declarations of the CUDA driver's interface: the build needs no CUDA header, and one binary serves machines
 * with and without a driver. The driver's enumerations are plain unsigned here (that is their ABI).
 */
#ifndef EP_KERNELS_CUDA_DRIVER_API_H
#define EP_KERNELS_CUDA_DRIVER_API_H

#include <stdbool.h>
#include <stddef.h>

struct CUctx_st;
struct CUfunc_st;
struct CUmod_st;
struct CUstream_st;
struct CUuuid_st;

enum ep_cu_constant {
#define EP_CU_CONST(name, theirs, value) EP_CU_##name = value,
#include "kernels/cuda/constants.h"
#undef EP_CU_CONST
};

struct ep_cu_location {
	unsigned type;
	int id;
};

struct ep_cu_access {
	struct ep_cu_location location;
	unsigned flags;
};

struct ep_cu_mem_prop {
	unsigned type;
	unsigned handle_types;
	struct ep_cu_location location;
	void *unused;
	struct {
		unsigned char compression;
		unsigned char rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct ep_cu_ipc {
	char bytes[64];
};

/* A context's share of the device; type says which member counts, and all of it is the driver's to write. */
struct ep_cu_resource {
	unsigned type;
	unsigned char unused[92];
	unsigned sms;
	unsigned char room[156]; /* newer drivers have written more than the 144 bytes of the first version */
};

struct ep_cu_api {
#define EP_CU_SYM(needed, symbol, parameters) unsigned(*symbol) parameters;
#include "kernels/cuda/symbols.h"
#undef EP_CU_SYM
};

#endif
