/* SPDX-License-Identifier: Apache-2.0 */
/* A frame as it goes over the wire, reference-counted, shared by the send queues of several connections. Not atomic. */
#ifndef EP_PLUGIN_BOOT_BLOB_H
#define EP_PLUGIN_BOOT_BLOB_H

#include <stdint.h>
#include <sys/uio.h>

#include "plugin/boot/wire.h"

struct ep_blob {
	struct ep_blob *next; /* next piece of the same block, see gather.h */
	uint32_t refs;
	uint32_t pad;
	struct ep_frame frame; /* the wire bytes start here */
	uint8_t body[];
};
_Static_assert(sizeof(struct ep_blob) == 48, "frame and body are contiguous");

/* Copies frame->bytes of body; NULL when out of memory. The caller holds one reference. */
struct ep_blob *ep_blob_new(const struct ep_frame *frame, const void *body);
void ep_blob_put(struct ep_blob *blob);

static inline struct ep_blob *ep_blob_get(struct ep_blob *blob)
{
	blob->refs++;
	return blob;
}

static inline size_t ep_blob_size(const struct ep_blob *blob)
{
	return sizeof(blob->frame) + blob->frame.bytes;
}

/* Send queue of a connection. Zero-initialised is empty. */
struct ep_outq {
	struct ep_blob **ring;
	uint32_t head, count, room;
	size_t sent; /* bytes of the first blob already sent */
};

int ep_outq_push(struct ep_outq *q, struct ep_blob *blob); /* takes its own reference */
int ep_outq_fill(const struct ep_outq *q, struct iovec *iov, int max);
void ep_outq_sent(struct ep_outq *q, size_t bytes);
void ep_outq_clear(struct ep_outq *q);

#endif
