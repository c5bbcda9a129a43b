/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the CPU device: a worker thread that runs operations in the order they were enqueued.
 *
 * The handle crosses shared libraries (this one creates it, the stand-in communicator runs its collectives on it), so
 * it starts with a head that both know: a magic number and the operations as pointers. Neither library calls a symbol
 * of the other. The head does not change during the stream's life, so it may be read without a lock.
 */
#ifndef EP_KERNELS_HOST_STREAM_H
#define EP_KERNELS_HOST_STREAM_H

#include <stddef.h>
#include <stdint.h>

#define EP_HOST_STREAM_MAGIC 0x314d525453504541ull /* "AEPSTRM1": change the digit when the head changes */

typedef void (*ep_host_stream_fn)(void *arg);

struct ep_host_stream_head {
	uint64_t magic;
	/*
	 * Runs fn(arg) in the stream's thread after everything enqueued before; never blocks on the stream's work.
	 * 0: fn will be called exactly once and owns arg from now on; negative errno (-ENOMEM): never called.
	 * May be called from any thread, including from an fn of the same stream.
	 */
	int (*enqueue)(void *stream, ep_host_stream_fn fn, void *arg);
	/* Waits until everything enqueued before has returned; -ETIMEDOUT past the deadline (CLOCK_MONOTONIC, ns).
	 * -EDEADLK from an fn of the same stream. */
	int (*sync)(void *stream, uint64_t deadline_ns);
};

/*
 * The head of a host stream, or NULL if the handle is not one. CUDA's special handles (1 and 2) and anything else that
 * cannot point to a head are rejected without being read; of another library's pointer 8 bytes are read.
 */
static inline struct ep_host_stream_head *ep_host_stream_head(void *stream)
{
	struct ep_host_stream_head *head = (struct ep_host_stream_head *)stream;
	uintptr_t bits = (uintptr_t)stream;

	if (bits < 4096 || bits % sizeof(void *) != 0 || head->magic != EP_HOST_STREAM_MAGIC)
		return NULL;
	return head;
}

/* Used by anyEpHostStreamCreate and by the host row. */
int ep_host_stream_create(void **out);

/* Runs what is still enqueued, then ends the thread. stream may be NULL. Not from an fn of the same stream. */
void ep_host_stream_destroy(void *stream);

#endif
