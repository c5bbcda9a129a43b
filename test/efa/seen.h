/* SPDX-License-Identifier: Apache-2.0 */
/* What the model of libfabric was asked for by this process; a test finds it by dlsym("ep_model_seen"). */
#ifndef EP_TEST_EFA_SEEN_H
#define EP_TEST_EFA_SEEN_H

#include <stdint.h>

struct model_seen {
	uint32_t endpoints;	      /* enabled, */
	uint32_t shared;	      /* of these with the provider's shared memory permitted, */
	uint32_t low_latency;	      /* with the low-latency traffic class */
	uint32_t receives, doorbells; /* receives posted, and doorbells rung for them */
	uint32_t by_address;	      /* registrations of device memory by address, */
	uint32_t by_dmabuf;	      /* attempts by dma-buf */
	uint32_t failed_receives;
	uint32_t unknown_peers; /* operations refused by R8 */
	uint32_t addresses;	/* inserted */
	uint32_t posted;	/* receives that are posted now */
	uint32_t mrs, cqs;	/* created, */
	uint32_t completions;	/* entries of the queues, */
	uint64_t mr_bytes;	/* bytes of the registrations */
};

#endif
