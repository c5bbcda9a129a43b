/* SPDX-License-Identifier: Apache-2.0 */
#include "net/base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "util/clock.h"

#define PAGE ((size_t)4096)
#define RANKS_MAX (1 << 20)
#define STEP_MAX 1000000000ull /* ns */

/* ---- devices ---- */

int ep_base_devices(void *net, int *count)
{
	*count = ((const struct ep_base_net *)net)->count;
	return 0;
}

int ep_base_dev_check(const struct ep_base_net *net, int dev)
{
	if (dev >= 0 && dev < net->count)
		return 0;
	return EP_FAIL(EP_NET, EP_EARG, "%s: no device %d; there are %d", net->name, dev, net->count);
}

int ep_base_listen_check(const struct ep_base_net *net, int dev, int nranks)
{
	if (nranks < 1 || nranks > RANKS_MAX)
		return EP_FAIL(EP_NET, EP_EARG, "%s: invalid number of ranks %d", net->name, nranks);
	return ep_base_dev_check(net, dev);
}

/* ---- comms ---- */

int ep_base_comm_open(struct ep_base_comm *comm, const char *name, int nranks)
{
	*comm = (struct ep_base_comm){ .name = name, .nranks = nranks };
	comm->lost = EP_CALLOC(EP_NET, (size_t)nranks, sizeof(*comm->lost), "the record of lost peers");
	comm->why = EP_CALLOC(EP_NET, (size_t)nranks, sizeof(*comm->why), "the record of lost peers");
	return comm->lost && comm->why ? 0 : -ENOMEM;
}

void ep_base_comm_close(struct ep_base_comm *comm)
{
	free(comm->lost);
	free(comm->why);
	comm->lost = NULL;
	comm->why = NULL;
}

int ep_base_connect_check(const char *name, int listening, int nranks, int rank)
{
	if (!listening)
		return EP_FAIL(EP_NET, EP_EARG, "%s: this listener is connected already", name);
	if (nranks != listening || rank < 0 || rank >= nranks)
		return EP_FAIL(EP_NET, EP_EARG, "%s: connecting as rank %d of %d; the listener has %d ranks", name,
			       rank, nranks, listening);
	return 0;
}

int ep_base_ctx_take(struct ep_base_comm *comm, int index)
{
	if (index < 0 || index >= comm->contexts || comm->taken & 1u << index)
		return EP_FAIL(EP_NET, EP_EARG, "%s: context %d does not exist or is in use; option contexts=%d",
			       comm->name, index, comm->contexts);
	comm->taken |= 1u << index;
	return 0;
}

void ep_base_ctx_give(struct ep_base_comm *comm, int index)
{
	comm->taken &= ~(1u << index);
}

int ep_base_random(const char *name, void *out, size_t n)
{
	if (getrandom(out, n, 0) == (ssize_t)n)
		return 0;
	return EP_FAIL(EP_NET, EIO, "%s: getrandom failed", name);
}

/* ---- peers ---- */

bool ep_base_is_blank(const void *bytes, size_t n)
{
	const uint8_t *b = bytes;

	return !b[0] && !memcmp(b, b + 1, n - 1);
}

bool ep_base_handle_blank(const void *handles, int rank)
{
	return ep_base_is_blank(ep_base_handle(handles, rank), NCCL_EP_NET_HANDLE_SIZE);
}

void ep_base_peer_absent(struct ep_base_comm *comm, int peer)
{
	snprintf(comm->why[peer], sizeof(comm->why[peer]), "%s: rank %d is not connected to rank %d", comm->name,
		 comm->rank, peer);
	__atomic_store_n(&comm->lost[peer], ENOTCONN, __ATOMIC_RELEASE); /* R1 */
	comm->absent++;
}

int ep_base_peer_lost(struct ep_base_comm *comm, int peer, const char *fmt, ...)
{
	int *err = &comm->lost[peer];
	char text[256], *why = comm->why[peer];
	int none = 0;
	va_list args;

	/* Formatted first: an argument may be ep_last_error(). */
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	/* Several contexts may find out at once: the first writes the text, all return the same. */
	if (!__atomic_compare_exchange_n(err, &none, -1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return -EP_EREMOTE;
	snprintf(why, sizeof(comm->why[peer]), "%s: rank %d is lost: %s", comm->name, peer, text);
	/* R1: pairs with A1 in ep_base_queryLastError: the text is complete. */
	__atomic_store_n(err, EP_EREMOTE, __ATOMIC_RELEASE);
	if (comm->closing)
		return -EP_EREMOTE;
	return EP_FAIL(EP_NET, EP_EREMOTE, "%s", why);
}

int ep_base_queryLastError(void *c, int peer, const char **text)
{
	struct ep_base_comm *comm = c;
	int err;

	if (peer < 0 || peer >= comm->nranks)
		return ep_base_peer_refuse(comm, peer);
	/* A1: pairs with R1 in ep_base_peer_lost. */
	err = __atomic_load_n(&comm->lost[peer], __ATOMIC_ACQUIRE);
	*text = err > 0 ? comm->why[peer] : "";
	return err > 0 ? -err : 0;
}

int ep_base_peer_refuse(const struct ep_base_comm *comm, int peer)
{
	return EP_FAIL(EP_NET, EP_EARG, "%s: no rank %d; there are %d", comm->name, peer, comm->nranks);
}

uint64_t ep_base_clock_step(uint64_t *last)
{
	uint64_t now = ep_now_ns(), step = *last ? now - *last : 0;

	*last = now;
	return step < STEP_MAX ? step : STEP_MAX;
}

/* ---- memory ---- */

int ep_base_mem_check(const char *name, const ncclEpNetMem_v1_t *mem, bool dmabuf)
{
	if (!mem->ptr || !mem->size || (uintptr_t)mem->ptr + mem->size < mem->size || (dmabuf && mem->fd < 0))
		return EP_FAIL(EP_NET, EP_EARG, "%s: cannot register %zu bytes at %p, descriptor %d", name, mem->size,
			       mem->ptr, mem->fd);
	return 0;
}

void *ep_base_pages(const char *name, size_t size)
{
	size_t whole = (size + PAGE - 1) / PAGE * PAGE;
	void *bytes = aligned_alloc(PAGE, whole);

	if (bytes)
		return memset(bytes, 0, whole);
	EP_FAIL(EP_NET, ENOMEM, "%s: out of memory: %zu bytes in whole pages", name, whole);
	return NULL;
}

int ep_base_mr_share(struct ep_base_comm *comm, struct ep_base_mr *mr, const void *keys, size_t size_at,
		     ep_base_key_fn take)
{
	const uint8_t *key = keys;
	uint64_t size;
	int rc = 0;

	if (mr->shared)
		return EP_FAIL(EP_NET, EP_EUSAGE, "%s: this registration is shared already", comm->name);
	for (int r = 0; r < comm->nranks; r++) {
		memcpy(&size, key + (size_t)r * NCCL_EP_NET_KEY_SIZE + size_at, sizeof(size));
		if (size != mr->size && !ep_base_is_absent(comm, r))
			return EP_FAIL(EP_NET, EP_EREMOTE, "%s: rank %d registered %llu bytes, rank %d %zu", comm->name,
				       r, (unsigned long long)size, comm->rank, mr->size);
	}
	for (int r = 0; r < comm->nranks && !rc; r++)
		rc = ep_base_is_absent(comm, r) ? 0 : take(comm, mr, r, key + (size_t)r * NCCL_EP_NET_KEY_SIZE);
	mr->shared = !rc;
	return rc;
}

/* ---- puts ---- */

int ep_base_put_refuse(const struct ep_base_comm *comm, const ncclEpNetPut_v1_t *put, uint64_t max_inline)
{
	const struct ep_base_mr *dst = put->dstMr;
	unsigned long long size = put->size;

	if (!ep_base_mr_holds(dst, put->dstOffset, put->size) || !dst->shared)
		return EP_FAIL(EP_NET, EP_EARG, "%s: %llu bytes at offset %llu are outside a shared registration",
			       comm->name, size, (unsigned long long)put->dstOffset);
	if (put->flags & NCCL_EP_NET_INLINE)
		return EP_FAIL(EP_NET, EP_EARG, "%s: %llu bytes inline; the maximum is %llu", comm->name, size,
			       (unsigned long long)max_inline);
	return EP_FAIL(EP_NET, EP_EARG, "%s: %llu bytes at offset %llu are outside the source's registration",
		       comm->name, size, (unsigned long long)put->srcOffset);
}
