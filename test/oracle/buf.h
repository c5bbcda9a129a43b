/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a rig: memory with guards around it, in an allocation of its own or a piece of a slab, plain, from
 * ncclMemAlloc, or in a registered window.
 */
#ifndef EP_TEST_ORACLE_BUF_H
#define EP_TEST_ORACLE_BUF_H

#include "test/oracle/check.h"
#include "test/oracle/shim.h"
#include "test/oracle/world.h"

/* What the functions below need of a rig. */
struct buf_env {
	struct seat *seat;
	struct shim *shim;
	ncclComm_t comm;
	struct ll_verdict *verdict;
};

enum slab_kind { SLAB_PLAIN, SLAB_NCCL, SLAB_WINDOW };

struct slab {
	uint8_t *base; /* NULL: not there */
	size_t size, used;
	enum slab_kind kind;
	ncclWindow_t window;
};

struct buf {
	struct slab own;
	uint8_t *at;
	size_t size;	       /* of the tensor at its largest; 0: not there */
	size_t before, behind; /* guards */
	ncclWindow_t window;
	uint64_t offset; /* of the tensor in the window */
	uint8_t *mirror; /* host copy, where the device is not the host */
};

/* Collective with windows. */
int slab_open(const struct buf_env *env, struct slab *slab, enum slab_kind kind, size_t size);
void slab_close(const struct buf_env *env, struct slab *slab);
/* Bytes a buffer takes of a slab. */
size_t slab_piece(size_t size);

/* buf->size is set. An allocation of its own; the tensor starts `skew` bytes after where 256 bytes would be aligned. */
int buf_open(const struct buf_env *env, struct buf *buf, enum slab_kind kind, size_t skew);
/* A piece of a slab instead. */
int buf_carve(const struct buf_env *env, struct buf *buf, struct slab *slab, size_t skew);
void buf_close(const struct buf_env *env, struct buf *buf);

/* `size` bytes from `offset` on. */
int buf_put(const struct buf_env *env, struct buf *buf, size_t offset, const void *from, size_t size);
int buf_fill(const struct buf_env *env, struct buf *buf, size_t offset, int byte, size_t size);
/* The tensor in host memory, of which `size` bytes from `offset` on are up to date. NULL after a failure. */
const uint8_t *buf_get(const struct buf_env *env, struct buf *buf, size_t offset, size_t size);
/* Nothing may have been written around the tensor. */
int buf_guards(const struct buf_env *env, struct buf *buf, const char *name);

#endif
