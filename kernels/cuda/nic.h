/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel sees of a NIC's writes to its GPU's memory. Apart from the driver's calls, so that it is tested without
 * a GPU. */
#ifndef EP_CUDA_NIC_H
#define EP_CUDA_NIC_H

#include <stdbool.h>

struct ep_cuda_nic {
	int major;	       /* of the compute capability */
	bool orders;	       /* the driver says that a NIC's writes reach the GPU in order */
	bool host_page_tables; /* the GPU accesses host memory by the host's page tables: it hangs on C2C */
};

/*
 * Where NCCL flushes (ncclTopoNeedFlush): before sm_90 a CPU's store, seen by the GPU, says nothing about a NIC's
 * earlier writes; and on C2C the store comes by another way than a NIC's writes, which may use PCIe. The driver's
 * attribute speaks of the writes among each other only, so it does not count here.
 */
static inline bool ep_cuda_nic_flush(struct ep_cuda_nic nic)
{
	return nic.major < 9 || nic.host_page_tables;
}

/* Signals that the NIC writes itself need no flush, but on a GPU that needs flushes they are not relied on either. */
static inline bool ep_cuda_nic_ordered(struct ep_cuda_nic nic)
{
	return nic.orders && !ep_cuda_nic_flush(nic);
}

#endif
