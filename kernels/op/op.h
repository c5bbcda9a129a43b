/* SPDX-License-Identifier: Apache-2.0 */
/* Common to all operations between ranks: epoch, limits, failures reported to every rank, and work by ticket. */
#ifndef EP_KERNELS_OP_H
#define EP_KERNELS_OP_H

#include "kernels/gx/gx.h"
#include "kernels/op/args.h"
#include "kernels/op/far.h"

struct gx_op {
	uint32_t rank, nranks;
	uint32_t kind; /* enum ep_kernel_kind */
	uint64_t epoch;
	struct gx_limit limit;
	struct ep_kernel_report *report;
	uint32_t *errors;	  /* device memory; 0: the report is free */
	uint8_t *const *control;  /* [nranks]; NULL: a far rank */
	const struct ep_far *far; /* NULL: no far ranks */
	uint64_t *broken;	  /* set when this launch fails: limit.failed, where near ranks' failures do not end it;
				   * may be NULL */
	uint64_t failed_at;	  /* offset of the failed word in every control page, */
	uint64_t failed_afar;	  /* and where far ranks write it */
};

struct gx_blame {
	uint32_t code, phase;
	uint32_t rank, cause; /* as in the report */
};

/* One thread. The group's first failure stays in the report; 1 if this is it. */
GX_DEV uint32_t gx_op_note(const struct gx_op *op, struct gx_blame blame)
{
	struct ep_kernel_report *report = op->report;

	if (gx_dev_add_relaxed_u32(op->errors, 1) != 0)
		return 0;
	gx_st_relaxed_u32(&report->phase, blame.phase);
	gx_st_relaxed_u32(&report->rank, blame.rank);
	gx_st_relaxed_u32(&report->cause, blame.cause);
	gx_st_relaxed_u32(&report->kind, op->kind);
	gx_st_relaxed_u64(&report->epoch, op->epoch);
	gx_st_release_u32(&report->code, blame.code); /* pairs with the host's acquire of code */
	return 1;
}

GX_DEV uint32_t gx_op_report(const struct gx_op *op, uint32_t code, uint32_t rank, uint32_t phase)
{
	return gx_op_note(op, (struct gx_blame){ code, phase, rank, rank });
}

/* One thread. Notifies every rank, so that no rank waits in vain; a remote failure is forwarded unchanged. Far ranks
 * are told by gx_op_tell: a push may wait, and this is called inside divergent branches. */
GX_DEV void gx_op_blame(const struct gx_op *op, struct gx_blame blame)
{
	uint64_t word = EP_FAILED_WORD(blame.code == EP_KERR_REMOTE ? blame.rank : op->rank, blame.cause);

	if (!gx_op_note(op, blame))
		return;
	if (op->broken)
		gx_st_relaxed_u64(op->broken, word);
	for (uint32_t r = 0; r < op->nranks; r++)
		if (!op->far || op->control[r])
			gx_st_relaxed_u64((uint64_t *)(op->control[r] + op->failed_at), word);
}

/* In errors: the far ranks have been told. */
#define GX_OP_TOLD 0x80000000u

/* One warp, of a group with far ranks: the failed word of this rank. */
GX_SLOW void gx_op_tell_far(const struct ep_far *far, uint8_t *const *control, uint32_t nranks, uint64_t at,
			    uint64_t word, uint64_t deadline, const uint64_t *abort)
{
	struct gx_limit limit = { deadline, abort, NULL, NULL, NULL };

	for (uint32_t r0 = 0; r0 < nranks; r0 += GX_WARP) {
		uint32_t r = r0 + gx_lane(), far_one = 0;
		struct far_cmd to;

		if (r < nranks)
			far_one = !control[r] && far->seat[r].here != EP_SEAT_NONE;
		to = far_to(far, far_one ? r : FAR_NOBODY, far_signal(far, r, at, word));
		/* result ignored: if the ring does not take this, the ring is what failed */
		far_push(far, &to, &limit, 0);
	}
}

/*
 * One warp of the last block, after all other blocks have left: tells the far ranks of a failure of this launch. By
 * then the other warps of this rank, which see limit.failed in every wait, have given up: also those that wait for room
 * in a ring. That one is dead then, and the engine that finds it so tells its host.
 */
GX_DEV void gx_op_tell(const struct gx_op *op)
{
	uint64_t word = 0;

	if (!op->far)
		return;
	if (gx_lane() == 0) {
		uint32_t errors = gx_ld_relaxed_u32(op->errors);

		/* 0 also after a failure that every rank detects by itself. */
		if (errors != 0 && errors < GX_OP_TOLD)
			word = gx_ld_relaxed_u64(op->limit.failed);
		if (word != 0)
			gx_dev_add_relaxed_u32(op->errors, GX_OP_TOLD);
	}
	word = gx_shfl_u64(word, 0);
	if (word != 0)
		gx_op_tell_far(op->far, op->control, op->nranks, op->failed_afar, word, op->limit.deadline,
			       op->limit.abort);
}

GX_DEV void gx_op_fail(const struct gx_op *op, uint32_t code, uint32_t rank, uint32_t phase)
{
	gx_op_blame(op, (struct gx_blame){ code, phase, rank, rank });
}

/* word: the failed word that another rank wrote. */
GX_DEV struct gx_blame gx_blame_remote(uint64_t word, uint32_t phase)
{
	return (struct gx_blame){ EP_KERR_REMOTE, phase, EP_FAILED_RANK(word), EP_FAILED_CAUSE(word) };
}

GX_DEV void gx_op_fail_remote(const struct gx_op *op, uint64_t word, uint32_t phase)
{
	gx_op_blame(op, gx_blame_remote(word, phase));
}

/* other: another silent rank, or rank if there is none. */
GX_DEV void gx_op_fail_wait(const struct gx_op *op, uint32_t result, uint32_t rank, uint32_t other, uint32_t phase)
{
	uint64_t word = 0;

	if (result == GX_TIMED_OUT) {
		gx_op_blame(op, (struct gx_blame){ EP_KERR_TIMEOUT, phase, rank, other });
		return;
	}
	if (result == GX_ABORTED) {
		/* Not the awaited rank: the host says whom it aborts for, and the others are told the same. */
		gx_op_fail(op, EP_KERR_ABORTED, (uint32_t)gx_ld_relaxed_u64(op->limit.abort) - 1, phase);
		return;
	}
	word = gx_ld_relaxed_u64(op->limit.failed);
	if (word == 0 && op->limit.afar)
		word = gx_ld_relaxed_u64(op->limit.afar);
	gx_op_fail_remote(op, word, phase);
}

/* One thread, whose push to a far peer was refused. A launch that fails gives up its pushes: then, and after an abort,
 * the ring is not to blame. */
GX_DEV void gx_op_fail_push(const struct gx_op *op, uint32_t result, uint32_t peer)
{
	struct gx_blame blame = { EP_KERR_RING, EP_KPHASE_SEND, peer, peer };
	uint64_t word = 0;

	if (result == GX_FAILED)
		word = gx_ld_relaxed_u64(op->limit.failed);
	if (word != 0) {
		blame.code = EP_KERR_REMOTE;
		blame.rank = EP_FAILED_RANK(word);
		blame.cause = EP_FAILED_CAUSE(word);
	} else if (result == GX_ABORTED) {
		blame.code = EP_KERR_ABORTED;
		blame.rank = blame.cause = (uint32_t)gx_ld_relaxed_u64(op->limit.abort) - 1;
	}
	gx_op_blame(op, blame);
}

/* The warp's next work item, in lane 0 only: it is broadcast when needed. */
GX_DEV uint32_t gx_op_take(uint32_t *counter)
{
	return gx_lane() == 0 ? gx_dev_add_relaxed_u32(counter, 1) : 0;
}

GX_DEV uint32_t gx_op_ticket(uint32_t *counter)
{
	return gx_shfl_u32(gx_op_take(counter), 0);
}

/* All lanes: whether this warp's n items were the last of all. R: its rows -> finished; pairs with A, the same counter.
 * Once per warp, when it finds no more work: a drain per row would leave the copy engine mostly idle. */
GX_DEV uint32_t gx_op_finished(struct gx_bulk *bulk, uint32_t *finished, uint32_t n, uint32_t items)
{
	uint32_t last = 0;

	if (n == 0)
		return 0;
	gx_bulk_drain(bulk);
	if (gx_lane() == 0)
		last = gx_dev_add_acqrel_u32(finished, n) == items - n;
	last = gx_shfl_u32(last, 0);
	gx_syncwarp();
	return last;
}

/* Whether this block is the last to leave. R: everything the block did -> left; pairs with A, the same counter. */
GX_DEV int gx_op_leave(uint32_t *left)
{
	GX_SHARED uint32_t last;

	gx_syncthreads();
	if (gx_tid() == 0)
		last = gx_dev_add_acqrel_u32(left, 1) == gx_blocks() - 1;
	gx_syncthreads();
	return last != 0;
}

/* All threads of the last block, last: what the host waits for before it frees memory (ep_launch_drain).
 * Counted by the device: an event after every launch would lengthen it. Launches in a graph are not counted: the host
 * does not know how often it is replayed. */
GX_DEV void gx_op_end(uint32_t counted, uint32_t *ended)
{
	if (counted != 0)
		gx_end(ended, counted);
}

#endif
