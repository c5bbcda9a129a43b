/* SPDX-License-Identifier: Apache-2.0 */
/* An operation that the host aborts reports the rank that the host names, not the one it waited for, and tells the
 * others the same. */
#include "kernel_check.h"
#include "kernels/gx/gx.h"
#include "kernels/host/launch.h"
#include "kernels/op/op.h"

#define RANKS 3
#define CULPRIT 2
#define AWAITED 1

static uint64_t word, abort_word = 1 + CULPRIT, control[RANKS];
static uint32_t errors;
static struct ep_kernel_report report;

static void wait_kernel(const void *args)
{
	uint8_t *const pages[RANKS] = { (uint8_t *)&control[0], (uint8_t *)&control[1], (uint8_t *)&control[2] };
	struct gx_op op = { .nranks = RANKS, .report = &report, .errors = &errors, .control = pages };
	enum gx_wait_result result;

	(void)args;
	op.limit.deadline = gx_clock_ns() + 20000000000ull;
	op.limit.abort = &abort_word;
	result = gx_wait(gx_tid() == 0 ? &word : NULL, 1, &op.limit);
	if (gx_tid() == 0)
		gx_op_fail_wait(&op, result, AWAITED, AWAITED, EP_KPHASE_RECV);
}

int main(void)
{
	CHECK(gx_host_launch(wait_kernel, NULL, 1, GX_WARP, 0) == 0, "launch");
	CHECK(report.code == EP_KERR_ABORTED && report.rank == CULPRIT, "code %u blames rank %u", report.code,
	      report.rank);
	for (int r = 0; r < RANKS; r++)
		CHECK(EP_FAILED_RANK(control[r]) == 0 && EP_FAILED_CAUSE(control[r]) == CULPRIT,
		      "rank %d is told that rank %u failed because of rank %u", r, EP_FAILED_RANK(control[r]),
		      EP_FAILED_CAUSE(control[r]));
	return check_result("kernel_abort");
}
