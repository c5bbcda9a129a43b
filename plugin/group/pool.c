/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/pool.h"

#include <stdlib.h>

#include "util/error.h"

static int block_alloc(struct ep_pool *pool, size_t size, struct ep_pool_block *out)
{
	struct ep_pool_block block = { .used = true, .custom = pool->alloc.alloc_fn != NULL };
	int rc;

	if (!block.custom) {
		if ((rc = pool->dev->ops->mem_alloc(pool->dev, size, &block.mem)))
			return rc;
	} else {
		cudaError_t err = pool->alloc.alloc_fn(&block.mem.ptr, size, pool->alloc.context);

		if (err || !block.mem.ptr)
			return EP_FAIL(EP_HANDLE, ENOMEM, "config->alloc.alloc_fn returned error %d for %zu bytes",
				       (int)err, size);
		block.mem.size = size;
	}
	*out = block;
	return 0;
}

/* The block of this size that was returned longest ago: its last user's kernels are the likeliest to have ended. */
static struct ep_pool_block *take_retired(struct ep_pool *pool, size_t size)
{
	for (int i = 0; i < pool->count; i++) {
		struct ep_pool_block block = pool->block[i];

		if (block.used || block.mem.size != size)
			continue;
		for (int j = i; j + 1 < pool->count; j++)
			pool->block[j] = pool->block[j + 1];
		block.used = true;
		pool->block[pool->count - 1] = block;
		return &pool->block[pool->count - 1];
	}
	return NULL;
}

int ep_pool_get(struct ep_pool *pool, size_t size, void **out)
{
	struct ep_pool_block *block;
	int rc;

	size = (size + 255) / 256 * 256;
	if ((block = take_retired(pool, size))) {
		*out = block->mem.ptr;
		return 0;
	}
	if (pool->count == pool->room) {
		int room = pool->room ? 2 * pool->room : 8;
		void *grown = realloc(pool->block, (size_t)room * sizeof(*pool->block));

		if (!grown)
			return EP_FAIL(EP_HANDLE, ENOMEM, "out of memory: list of %d blocks", room);
		pool->block = grown;
		pool->room = room;
	}
	if ((rc = block_alloc(pool, size, &pool->block[pool->count])))
		return rc;
	/* A device may round up; later requests are compared with what was asked for. */
	pool->block[pool->count].mem.size = size;
	*out = pool->block[pool->count++].mem.ptr;
	return 0;
}

void ep_pool_put(struct ep_pool *pool, void *ptr)
{
	for (int i = 0; i < pool->count; i++) {
		struct ep_pool_block block = pool->block[i];

		if (block.mem.ptr != ptr || !block.used)
			continue;
		for (int j = i; j + 1 < pool->count; j++)
			pool->block[j] = pool->block[j + 1];
		block.used = false;
		pool->block[pool->count - 1] = block;
		return;
	}
}

void ep_pool_close(struct ep_pool *pool)
{
	for (int i = 0; i < pool->count; i++) {
		struct ep_pool_block *block = &pool->block[i];

		if (!block->custom)
			pool->dev->ops->mem_free(pool->dev, &block->mem);
		else if (pool->alloc.free_fn)
			pool->alloc.free_fn(block->mem.ptr, pool->alloc.context);
	}
	free(pool->block);
	pool->block = NULL;
	pool->count = pool->room = 0;
}
