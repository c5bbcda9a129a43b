/* SPDX-License-Identifier: Apache-2.0 */
/* How the kernels of an operation report a failure to the host and to other ranks. */
#ifndef EP_KERNELS_OP_ARGS_H
#define EP_KERNELS_OP_ARGS_H

#include "kernels/gx/both.h"

enum ep_kernel_error {
	EP_KERR_NONE,
	EP_KERR_TIMEOUT,  /* rank did not signal before the deadline */
	EP_KERR_ABORTED,  /* aborted by the host */
	EP_KERR_REMOTE,	  /* rank reported its failure in this rank's control page */
	EP_KERR_COUNT,	  /* more rows for or from rank than fit, or a malformed head */
	EP_KERR_BEHIND,	  /* this rank was masked and the others continued without it */
	EP_KERR_STAGED,	  /* staged operations hold every buffer */
	EP_KERR_OVERFLOW, /* more rows for this rank than its capacity */
	EP_KERR_SHORT,	  /* this rank's tensor has fewer rows than the routing assigns to it */
	EP_KERR_SHAPE,	  /* rank makes a different call */
	EP_KERR_UNROUTED, /* the handle's memory holds no routing, or that of another shape */
	EP_KERR_UNSENT,	  /* a combine across nodes before any dispatch of the routing */
	EP_KERR_RING,	  /* the engine did not take a command for rank, or the ring was dead already */
};

/* Where a kernel was when it failed. */
enum ep_kernel_phase {
	EP_KPHASE_START,
	EP_KPHASE_SEND, /* waiting for rank to give a buffer back, or writing to it */
	EP_KPHASE_RECV, /* waiting for rank's rows, or reading them */
};

enum ep_kernel_kind {
	EP_KIND_NONE,
	EP_KIND_DISPATCH,
	EP_KIND_COMBINE,
	EP_KIND_MASK,
	EP_KIND_ROWSIG,
	EP_KIND_UPDATE,
	EP_KIND_BARRIER,
};

/* Pinned, one per group: the first failure is kept. The kernel writes code last (release). */
struct ep_kernel_report {
	uint32_t code;
	uint32_t phase;
	uint32_t rank;
	uint32_t kind;
	uint64_t epoch;
	uint32_t cause; /* timeout: another silent rank; remote: the rank that caused rank's failure; else rank */
	uint32_t pad;
};
EP_SIZE_IS(ep_kernel_report, 32);

/*
 * The word in a control page by which a rank reports its failure to the others; never 0, and fits a signal's value. It
 * includes the rank that caused the failure: when a link is cut, the first rank to report is not always next to it.
 */
#define EP_FAILED_WORD(rank, cause) \
	((uint64_t)1 << 62 | (uint64_t)((rank) & 0x3fffffffu) << 32 | ((cause) & 0xffffffffu))
#define EP_FAILED_RANK(word) ((uint32_t)((word) >> 32 & 0x3fffffffu))
#define EP_FAILED_CAUSE(word) ((uint32_t)((word) & 0xffffffffu))

/* Flags a kernel raises for ncclEpGetAsyncError, in addition to the report. */
enum ep_async_flag {
	EP_ASYNC_TIMEOUT = 1, /* a rank was masked */
	EP_ASYNC_BAD_ID = 2,  /* an expert id outside [-1, experts) was dropped */
};

#endif
