/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares our declarations of the CUDA driver's interface with the vendor's, where its header is installed (the build
 * then sets EP_CUDA_HEADER): prototypes and layouts at compile time, values at run time.
 */
#include <stdio.h>

#include "kernels/cuda/driver_api.h"

#ifdef EP_CUDA_HEADER
#include EP_CUDA_HEADER

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(struct ours) == sizeof(theirs), #ours)
#define SAME_PLACE(ours, a, theirs, b) _Static_assert(offsetof(struct ours, a) == offsetof(theirs, b), #ours "." #a)

SAME_SIZE(ep_cu_ipc, CUipcMemHandle);
SAME_SIZE(ep_cu_location, CUmemLocation);
SAME_PLACE(ep_cu_location, id, CUmemLocation, id);
SAME_SIZE(ep_cu_access, CUmemAccessDesc);
SAME_PLACE(ep_cu_access, flags, CUmemAccessDesc, flags);
SAME_SIZE(ep_cu_mem_prop, CUmemAllocationProp);
SAME_PLACE(ep_cu_mem_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(ep_cu_mem_prop, location, CUmemAllocationProp, location);
SAME_PLACE(ep_cu_mem_prop, unused, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(ep_cu_mem_prop, flags.rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_PLACE(ep_cu_mem_prop, flags.usage, CUmemAllocationProp, allocFlags.usage);
_Static_assert(sizeof(struct ep_cu_resource) >= sizeof(CUdevResource), "ep_cu_resource");
SAME_PLACE(ep_cu_resource, sms, CUdevResource, sm.smCount);

/* The vendor's enumerations are unsigned, so our prototypes have the same type once the structs have their names. */
#define ep_cu_ipc CUipcMemHandle_st
#define ep_cu_access CUmemAccessDesc_st
#define ep_cu_mem_prop CUmemAllocationProp_st
#define ep_cu_resource CUdevResource_st
#define EP_CU_SYM(needed, symbol, parameters) \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), unsigned(*) parameters), #symbol);
#include "kernels/cuda/symbols.h"
#undef EP_CU_SYM

static const struct {
	const char *name;
	int ours, theirs;
} constants[] = {
#define EP_CU_CONST(name, vendor, value) { #name, EP_CU_##name, (int)vendor },
#include "kernels/cuda/constants.h"
#undef EP_CU_CONST
};

int main(void)
{
	int failed = 0;

	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
		if (constants[i].ours != constants[i].theirs) {
			fprintf(stderr, "%s is %d, the vendor says %d\n", constants[i].name, constants[i].ours,
				constants[i].theirs);
			failed = 1;
		}
	printf("%zu constants and all prototypes compared with CUDA %d\n", sizeof(constants) / sizeof(constants[0]),
	       CUDA_VERSION);
	return failed;
}
#else
int main(void)
{
	printf("skipped: no CUDA header here\n");
	return 77;
}
#endif
