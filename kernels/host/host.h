/* SPDX-License-Identifier: Apache-2.0 */
/* The host row: host.c has the table and the launches, mem.c the memory. */
#ifndef EP_KERNELS_HOST_H
#define EP_KERNELS_HOST_H

#include <pthread.h>

#include "kernels/dev.h"

extern const struct ep_dev_ops ep_host_ops; /* host.c */

struct host_buffer;

struct host_dev {
	struct ep_dev dev; /* first */
	pthread_mutex_t lock;
	struct host_buffer *buffers; /* live allocations of mem_alloc */
	uint64_t last_id;
};

int host_mem_alloc(struct ep_dev *dev, size_t size, struct ep_mem *out);
void host_mem_free(struct ep_dev *dev, struct ep_mem *mem);
int host_mem_export(struct ep_dev *dev, const struct ep_mem *mem, struct ep_export *out, int *fd);
int host_mem_import(struct ep_dev *dev, const struct ep_export *from, int fd, struct ep_mem *out);
int host_peer_open(struct ep_dev *dev, int peer_ordinal, const struct ep_mem *mem);
int host_pinned_alloc(struct ep_dev *dev, size_t size, struct ep_pinned *out);
void host_pinned_free(struct ep_dev *dev, struct ep_pinned *mem);
int host_pin(struct ep_dev *dev, void *host, size_t size, struct ep_pinned *out);
void host_unpin(struct ep_dev *dev, struct ep_pinned *mem);
int host_buffer_id(struct ep_dev *dev, const void *ptr, size_t bytes, struct ep_buffer *out);

#endif
