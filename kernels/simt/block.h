/* SPDX-License-Identifier: Apache-2.0 */
/* A block: its threads as fibers, and which of them may run. */
#ifndef EP_SIMT_BLOCK_H
#define EP_SIMT_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/gx/env.h"
#include "kernels/host/launch.h"
#include "kernels/simt/fiber.h"

enum simt_state { SIMT_RUN, SIMT_SPIN, SIMT_AT_WARP, SIMT_AT_BLOCK, SIMT_DONE, SIMT_STATES };

struct simt_thread {
	struct simt_fiber fiber;
	struct simt_where where;
	enum simt_state state;
	unsigned acquired; /* 1: an acquire came, and no proxy fence since */
};

/* A barrier or warp operation: how many threads have arrived, and what and where it is for the first. The two sync
 * bytes are TSan's sync objects of this one and the next: the fastest thread may enter the next before the slowest
 * leaves. */
struct simt_meet {
	unsigned arrived, turn;
	const char *what, *where;
	char sync[2];
	unsigned acquired[2]; /* by any of the threads: a barrier extends it to all */
};

struct simt_warp {
	struct simt_meet meet;
	unsigned lanes, gone;
	unsigned polls;		   /* operations since the last pause */
	uint64_t slot[2][GX_WARP]; /* the lanes' values in a shuffle; two sets, as with sync */
};

struct simt_block {
	struct simt_fiber main;
	struct simt_thread *thread;
	struct simt_fiber **fiber; /* of each thread */
	struct simt_warp *warp;
	unsigned cap;
	void *map;
	unsigned n, alive, idle;
	struct simt_meet meet;
	uint64_t random; /* 0: in order */
	gx_host_fn fn;
	const void *args;
	void *shared;
	size_t shared_cap;
	char start, end; /* TSan's sync objects of the launch's start and end */
	void (*report)(const char *message);
};

/* Room for n threads and some dynamic shared memory; 0 or -ENOMEM. */
int simt_block_reserve(struct simt_block *b, unsigned n, size_t shared);
void simt_block_free(struct simt_block *b);
/* In the block's thread: runs all its fibers to completion. */
void simt_block_run(struct simt_block *b, unsigned block, unsigned blocks, unsigned threads);

/* A barrier and what threads have acquired: before the meeting, then after it with the same turn. */
void simt_acquired_bring(struct simt_meet *m, const struct simt_thread *me);
void simt_acquired_take(const struct simt_meet *m, unsigned turn, struct simt_thread *me);

/* For warp.c. */
struct simt_block *simt_block_now(void);
struct simt_thread *simt_thread_now(void);
void simt_meet_check(struct simt_block *b, struct simt_meet *m, const char *what, const char *where);
void simt_wait_check(struct simt_block *b, const struct simt_thread *me, const char *where);
void simt_rest(struct simt_block *b, struct simt_thread *me);
void simt_wait(struct simt_block *b, struct simt_thread *me, enum simt_state state);
void simt_wake(struct simt_block *b, unsigned first, unsigned n, enum simt_state state);
_Noreturn void simt_die(struct simt_block *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
