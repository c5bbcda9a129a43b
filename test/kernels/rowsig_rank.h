/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank that runs the rowsig kernel and checks every byte, through the device table only: the same code drives the
 * CPU device, the emulator and a GPU. Functions return 0, or print what failed.
 */
#ifndef EP_TEST_ROWSIG_RANK_H
#define EP_TEST_ROWSIG_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/args.h"
#include "kernels/dev.h"

/* Common to all ranks of a run. */
struct rowsig_world {
	enum ep_dev_kind kind;
	int nranks, epochs;
	uint32_t cap;
	uint64_t row;  /* bytes */
	uint32_t skew; /* offset of inputs and outputs from an aligned address */
	unsigned grid, warps, slices;
	uint32_t single; /* one buffer instead of two */
	uint32_t stage;	 /* bytes of shared memory per warp */
	uint32_t seed;	 /* of contents, counts and stalls */
	bool stalls;	 /* ranks sleep at random before a launch */
	int timeout_ms;	 /* of the kernel's waits */
};

struct rowsig_rank {
	const struct rowsig_world *world;
	int rank;
	uint32_t lie; /* added to the counts it passes to the kernel */
	struct ep_dev *dev;
	void *stream;
	struct ep_mem window; /* the control words, then the payload: what peers map */
	struct ep_mem state, tables, in, out, counts;
	struct ep_pinned pinned; /* report, then the abort word */
	struct ep_rowsig_args args;
	uint8_t *expect, *seen; /* host copies of in or out */
};

uint32_t rowsig_count(const struct rowsig_world *w, int source, int dest, int epoch);
uint64_t rowsig_window_bytes(const struct rowsig_world *w);

int rowsig_open(struct rowsig_rank *r, const struct rowsig_world *world, int rank);
/* window[i]: the address of rank i's window on this rank's device. */
int rowsig_connect(struct rowsig_rank *r, void *const *window);
/* One operation: new inputs, launch, wait. */
int rowsig_launch(struct rowsig_rank *r, int epoch);
int rowsig_verify(struct rowsig_rank *r, int epoch);
/* All operations of the world, with stalls. */
int rowsig_run(struct rowsig_rank *r);
void rowsig_close(struct rowsig_rank *r);

static inline struct ep_kernel_report *rowsig_report(const struct rowsig_rank *r)
{
	return r->pinned.host;
}

static inline uint64_t *rowsig_abort(const struct rowsig_rank *r)
{
	return (uint64_t *)(rowsig_report(r) + 1);
}

#endif
