/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a rig: memory with guards around it, as an allocation of its own or part of a slab; plain, from
 * ncclMemAlloc, in a registered window, or pinned host memory (in an allocation of its own only).
 */
#ifndef EP_TEST_ORACLE_BUF_H
#define EP_TEST_ORACLE_BUF_H

#include "test/oracle/check.h"
#include "test/oracle/shim.h"
#include "test/oracle/world.h"

/* What the functions below need from a rig. */
struct buf_env {
	struct seat *seat;
	struct shim *shim;
	ncclComm_t comm;
	struct ll_verdict *verdict;
};

enum slab_kind { SLAB_PLAIN, SLAB_NCCL, SLAB_WINDOW, SLAB_PINNED };

struct slab {
	uint8_t *base; /* NULL: absent */
	size_t size, used;
	enum slab_kind kind;
	ncclWindow_t window;
};

struct buf {
	struct slab own;
	uint8_t *at;
	size_t size;	       /* maximum bytes of the tensor; 0: absent */
	size_t before, behind; /* guards */
	ncclWindow_t window;
	uint64_t offset; /* of the tensor in the window */
	uint8_t *mirror; /* host copy, if the host cannot read it */
};

/* Collective with windows. */
int slab_open(const struct buf_env *env, struct slab *slab, enum slab_kind kind, size_t size);
void slab_close(const struct buf_env *env, struct slab *slab);
/* Bytes of a slab that a buffer needs. */
size_t slab_piece(size_t size);

/* An allocation of its own; buf->size is set. The tensor starts `skew` bytes after a 256-byte boundary. */
int buf_open(const struct buf_env *env, struct buf *buf, enum slab_kind kind, size_t skew);
/* The same in a slab. */
int buf_carve(const struct buf_env *env, struct buf *buf, struct slab *slab, size_t skew);
void buf_close(const struct buf_env *env, struct buf *buf);

/* `size` bytes from `offset` on. */
int buf_put(const struct buf_env *env, struct buf *buf, size_t offset, const void *from, size_t size);
int buf_fill(const struct buf_env *env, struct buf *buf, size_t offset, int byte, size_t size);
/* The tensor in host memory, of which `size` bytes from `offset` on are up to date. NULL after a failure. */
const uint8_t *buf_get(const struct buf_env *env, struct buf *buf, size_t offset, size_t size);
/* Checks the guards. */
int buf_guards(const struct buf_env *env, struct buf *buf, const char *name);

#endif
