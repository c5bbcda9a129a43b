/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of handles. Freeing device memory waits for every running kernel (seen: cudaFree blocks on another
 * stream's spinning kernel, which may be waiting for this very rank), so nothing is freed before the group ends:
 * what a handle gives back is kept and handed to a later handle of the same size.
 */
#ifndef EP_PLUGIN_POOL_H
#define EP_PLUGIN_POOL_H

#include <stddef.h>

#include "kernels/dev.h"
#include "nccl_ep.h"

struct ep_pool_block {
	struct ep_mem mem;
	bool used;
	bool custom; /* from alloc_fn */
};

struct ep_pool {
	struct ep_dev *dev;
	ncclEpAllocConfig_t alloc; /* zero: the device's own */
	struct ep_pool_block *block;
	int count, room;
};

int ep_pool_get(struct ep_pool *pool, size_t size, void **out);
void ep_pool_put(struct ep_pool *pool, void *ptr);
/* Frees everything: after the final barrier only. */
void ep_pool_close(struct ep_pool *pool);

#endif
