/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/buf.h"

#include <stdlib.h>
#include <string.h>

/* Guard bytes before and after a tensor. None around an allocation under AddressSanitizer, which checks the bounds
 * itself, for reads too. */
#if defined(__SANITIZE_ADDRESS__)
#define OWN_GUARD 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OWN_GUARD 0
#endif
#endif
#ifndef OWN_GUARD
#define OWN_GUARD 256
#endif
#define GUARD 256
#define GUARD_BYTE 0xc3
#define SKEW_MAX 16

int slab_open(const struct buf_env *env, struct slab *slab, enum slab_kind kind, size_t size)
{
	ncclResult_t rc;

	*slab = (struct slab){ .size = size, .kind = kind };
	if (kind == SLAB_PLAIN || kind == SLAB_PINNED)
		return (kind == SLAB_PINNED ? env->shim->ops->pinned_alloc
					    : env->shim->ops->alloc)(env->shim, size, (void **)&slab->base)
			       ? seat_fail(env->seat, "%s", env->shim->text)
			       : 0;
	rc = ncclMemAlloc((void **)&slab->base, size);
	if (rc == ncclSuccess && kind == SLAB_WINDOW)
		rc = ncclCommWindowRegister(env->comm, slab->base, size, &slab->window, NCCL_WIN_COLL_SYMMETRIC);
	return rc != ncclSuccess ? seat_fail(env->seat, "a window of %zu bytes: %s", size, ncclGetLastError(env->comm))
				 : 0;
}

void slab_close(const struct buf_env *env, struct slab *slab)
{
	if (slab->window)
		ncclCommWindowDeregister(env->comm, slab->window);
	if (slab->base && slab->kind == SLAB_PINNED)
		env->shim->ops->pinned_free(env->shim, slab->base);
	else if (slab->base && slab->kind != SLAB_PLAIN)
		ncclMemFree(slab->base);
	else if (slab->base)
		env->shim->ops->free(env->shim, slab->base);
	*slab = (struct slab){ 0 };
}

size_t slab_piece(size_t size)
{
	return (GUARD + SKEW_MAX + size + GUARD + 255) / 256 * 256;
}

/* Pinned memory is written as its owner does: by the host, when the stream is idle. */
static int fill(const struct buf_env *env, const struct buf *buf, uint8_t *at, int byte, size_t size)
{
	bool pinned = buf->own.kind == SLAB_PINNED;
	int rc = pinned ? env->shim->ops->sync(env->shim, 60) : env->shim->ops->fill(env->shim, at, byte, size);

	if (rc)
		return seat_fail(env->seat, "%s", env->shim->text);
	if (pinned)
		memset(at, byte, size);
	return 0;
}

static int guards_make(const struct buf_env *env, struct buf *buf)
{
	if (shim_is_gpu(env->shim) && buf->own.kind != SLAB_PINNED && !(buf->mirror = malloc(buf->size)))
		return seat_fail(env->seat, "out of memory");
	return fill(env, buf, buf->at - buf->before, GUARD_BYTE, buf->before) ||
			       fill(env, buf, buf->at + buf->size, GUARD_BYTE, buf->behind)
		       ? -1
		       : 0;
}

int buf_open(const struct buf_env *env, struct buf *buf, enum slab_kind kind, size_t skew)
{
	if (slab_open(env, &buf->own, kind, OWN_GUARD + skew + buf->size + OWN_GUARD))
		return -1;
	buf->before = OWN_GUARD + skew;
	buf->behind = OWN_GUARD;
	buf->at = buf->own.base + buf->before;
	buf->window = buf->own.window;
	buf->offset = buf->before;
	return guards_make(env, buf);
}

int buf_carve(const struct buf_env *env, struct buf *buf, struct slab *slab, size_t skew)
{
	size_t piece = slab_piece(buf->size);

	if (skew > SKEW_MAX || piece > slab->size - slab->used)
		return seat_fail(env->seat, "the slab of a rig is too small");
	buf->before = GUARD + skew;
	buf->behind = GUARD;
	buf->offset = slab->used + buf->before;
	buf->at = slab->base + buf->offset;
	buf->window = slab->window;
	slab->used += piece;
	return guards_make(env, buf);
}

void buf_close(const struct buf_env *env, struct buf *buf)
{
	slab_close(env, &buf->own);
	free(buf->mirror);
	*buf = (struct buf){ 0 };
}

int buf_put(const struct buf_env *env, struct buf *buf, size_t offset, const void *from, size_t size)
{
	if (size && env->shim->ops->put(env->shim, buf->at + offset, from, size))
		return seat_fail(env->seat, "%s", env->shim->text);
	return 0;
}

int buf_fill(const struct buf_env *env, struct buf *buf, size_t offset, int byte, size_t size)
{
	return size ? fill(env, buf, buf->at + offset, byte, size) : 0;
}

const uint8_t *buf_get(const struct buf_env *env, struct buf *buf, size_t offset, size_t size)
{
	if (!buf->mirror)
		return buf->at;
	if (size && env->shim->ops->get(env->shim, buf->mirror + offset, buf->at + offset, size)) {
		seat_fail(env->seat, "%s", env->shim->text);
		return NULL;
	}
	return buf->mirror;
}

int buf_guards(const struct buf_env *env, struct buf *buf, const char *name)
{
	uint8_t bytes[2 * GUARD + SKEW_MAX];

	if (!buf->size)
		return 0;
	if (env->shim->ops->get(env->shim, bytes, buf->at - buf->before, buf->before) ||
	    env->shim->ops->get(env->shim, bytes + buf->before, buf->at + buf->size, buf->behind))
		return seat_fail(env->seat, "%s", env->shim->text);
	for (size_t i = 0; i < buf->before + buf->behind; i++)
		ll_wrong(env->verdict, bytes[i] != GUARD_BYTE, "rank %d: a byte %s %s was written",
			 seat_rank(env->seat), i < buf->before ? "before" : "behind", name);
	return 0;
}
