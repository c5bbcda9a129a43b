/* SPDX-License-Identifier: Apache-2.0 */
/* ncclMemAlloc: memory other processes can map, from the device's allocator, looked up by address. */
#include "plugin/standin/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <nccl.h>

#include "plugin/standin/device.h"
#include "util/error.h"

struct block {
	struct block *next;
	struct ep_dev *dev;
	struct ep_mem mem;
	size_t size;
	uint64_t id;
};

static struct {
	pthread_mutex_t lock;
	struct block *head;
	uint64_t last_id;
} blocks = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int block_alloc(size_t size, struct block **out)
{
	struct block *b = EP_CALLOC(EP_DEV, 1, sizeof(*b), "ncclMemAlloc");
	struct ep_sc_device device;
	int rc;

	if (!b)
		return -ENOMEM;
	b->size = size;
	rc = ep_sc_device_pick(&device);
	if (rc)
		goto free_block;
	rc = ep_sc_device_open(&device, &b->dev);
	if (rc)
		goto free_block;
	rc = b->dev->ops->mem_alloc(b->dev, size, &b->mem);
	if (rc)
		goto close_device;
	*out = b;
	return 0;
close_device:
	ep_sc_device_close(b->dev);
free_block:
	free(b);
	return rc;
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
	struct block *b = NULL;
	int rc;

	if (!ptr)
		return (ncclResult_t)ep_result(EP_FAIL(EP_DEV, EP_EARG, "ncclMemAlloc: ptr is NULL"));
	*ptr = NULL;
	if (!size)
		return ncclSuccess; /* as cudaMalloc does for 0 bytes */
	rc = block_alloc(size, &b);
	if (rc)
		return (ncclResult_t)ep_result(rc);
	pthread_mutex_lock(&blocks.lock);
	b->id = ++blocks.last_id;
	b->next = blocks.head;
	blocks.head = b;
	pthread_mutex_unlock(&blocks.lock);
	*ptr = b->mem.ptr;
	return ncclSuccess;
}

ncclResult_t ncclMemFree(void *ptr)
{
	struct block **at, *b;

	if (!ptr)
		return ncclSuccess;
	pthread_mutex_lock(&blocks.lock);
	for (at = &blocks.head; (b = *at) && b->mem.ptr != ptr;)
		at = &b->next;
	if (b)
		*at = b->next;
	pthread_mutex_unlock(&blocks.lock);
	if (!b)
		return (ncclResult_t)ep_result(
			EP_FAIL(EP_DEV, EP_EARG, "ncclMemFree: %p is not from ncclMemAlloc", ptr));
	b->dev->ops->mem_free(b->dev, &b->mem);
	ep_sc_device_close(b->dev);
	free(b);
	return ncclSuccess;
}

/* Under the lock. */
static struct block *block_of(const void *ptr)
{
	struct block *b = blocks.head;

	while (b && (uintptr_t)ptr - (uintptr_t)b->mem.ptr >= b->size)
		b = b->next;
	return b;
}

int ep_sc_mem_find(const void *ptr, void **base, size_t *size, uint64_t *id)
{
	struct block *b;

	pthread_mutex_lock(&blocks.lock);
	b = block_of(ptr);
	if (b) {
		*base = b->mem.ptr;
		*size = b->size;
		*id = b->id;
	}
	pthread_mutex_unlock(&blocks.lock);
	return b ? 0 : -ENOENT;
}

int ep_sc_mem_export(const void *ptr, int *fd, uint64_t *offset, uint64_t *size)
{
	struct ep_export how;
	struct block *b;
	int rc = -ENOENT, file = -1;

	pthread_mutex_lock(&blocks.lock);
	b = block_of(ptr);
	if (b)
		rc = b->dev->ops->mem_export(b->dev, &b->mem, &how, &file);
	if (!rc && how.share != EP_SHARE_FD)
		rc = -ENOTSUP;
	if (!rc) {
		*fd = file;
		*offset = (uintptr_t)ptr - (uintptr_t)b->mem.ptr;
		*size = b->mem.size;
	}
	pthread_mutex_unlock(&blocks.lock);
	return rc;
}
