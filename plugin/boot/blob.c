/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/blob.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ep_blob *ep_blob_new(const struct ep_frame *frame, const void *body)
{
	struct ep_blob *blob = malloc(sizeof(*blob) + frame->bytes);

	if (!blob)
		return NULL;
	blob->next = NULL;
	blob->refs = 1;
	blob->frame = *frame;
	if (frame->bytes)
		memcpy(blob->body, body, frame->bytes);
	return blob;
}

void ep_blob_put(struct ep_blob *blob)
{
	if (blob && !--blob->refs)
		free(blob);
}

static int grow(struct ep_outq *q)
{
	uint32_t room = q->room ? q->room * 2 : 16;
	struct ep_blob **ring = malloc(room * sizeof(*ring));

	if (!ring)
		return -ENOMEM;
	for (uint32_t i = 0; i < q->count; i++)
		ring[i] = q->ring[(q->head + i) % q->room];
	free(q->ring);
	q->ring = ring;
	q->room = room;
	q->head = 0;
	return 0;
}

int ep_outq_push(struct ep_outq *q, struct ep_blob *blob)
{
	int rc = q->count == q->room ? grow(q) : 0;

	if (rc)
		return rc;
	q->ring[(q->head + q->count++) % q->room] = ep_blob_get(blob);
	return 0;
}

int ep_outq_fill(const struct ep_outq *q, struct iovec *iov, int max)
{
	int n = 0;

	for (uint32_t i = 0; i < q->count && n < max; i++, n++) {
		struct ep_blob *blob = q->ring[(q->head + i) % q->room];
		size_t skip = i ? 0 : q->sent;

		iov[n] = (struct iovec){ (char *)&blob->frame + skip, ep_blob_size(blob) - skip };
	}
	return n;
}

void ep_outq_sent(struct ep_outq *q, size_t bytes)
{
	q->sent += bytes;
	while (q->count && q->sent >= ep_blob_size(q->ring[q->head])) {
		q->sent -= ep_blob_size(q->ring[q->head]);
		ep_blob_put(q->ring[q->head]);
		q->head = (q->head + 1) % q->room;
		q->count--;
	}
}

void ep_outq_clear(struct ep_outq *q)
{
	while (q->count--)
		ep_blob_put(q->ring[(q->head + q->count) % q->room]);
	free(q->ring);
	*q = (struct ep_outq){ 0 };
}
