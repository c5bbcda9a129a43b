/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a kernel that fails tells, and how often: ranks that it maps by a store, remote ranks that it puts to by a
 * command, and nobody else. */
#include <stdlib.h>
#include <string.h>

#include "kernel_check.h"
#include "kernels/gx/gx.h"
#include "kernels/host/launch.h"
#include "kernels/op/op.h"
#include "proxy/ring.h"

#define RANKS 6
#define SELF 1u
#define NEAR 2 /* ranks 0 and 1; 3 and 5 are put to, 2 and 4 are not */

static uint64_t control[NEAR], abort_word;
static uint32_t errors;
static struct ep_kernel_report report;
static struct ep_seat seats[RANKS] = {
	{ 0, 1 }, { 1, 1 }, { EP_SEAT_NONE, EP_SEAT_NONE }, { 0, 0 }, { EP_SEAT_NONE, EP_SEAT_NONE }, { 1, 0 }
};
static struct ep_cmd_head head;
static struct ep_cmd_ring ring;

static void fail_kernel(const void *args)
{
	uint8_t *const pages[RANKS] = { (uint8_t *)&control[0], (uint8_t *)&control[1] };
	struct ep_far far = { .ring = &ring, .seat = seats, .ports = 1, .lanes = 1 };
	struct gx_op op = { .rank = SELF, .nranks = RANKS, .report = &report, .errors = &errors };

	(void)args;
	op.control = pages;
	op.far = &far;
	op.failed_afar = 64;
	op.limit.deadline = gx_clock_ns() + 20000000000ull;
	op.limit.abort = &abort_word;
	op.limit.failed = &control[SELF];
	gx_op_tell(&op); /* nothing has failed yet */
	if (gx_tid() == 0)
		gx_op_fail(&op, EP_KERR_TIMEOUT, 5, EP_KPHASE_RECV);
	gx_syncwarp();
	gx_op_tell(&op);
	gx_op_tell(&op); /* they know */
}

int main(void)
{
	static const uint32_t told[] = { 3, 5 };
	void *pinned = aligned_alloc(128, ep_cmd_pinned_size(EP_CMD_ENTRIES_MIN));
	struct ep_cmd cmd[8];
	struct ep_ring mine;
	int n;

	if (!pinned)
		return 1;
	memset(pinned, 0, ep_cmd_pinned_size(EP_CMD_ENTRIES_MIN));
	CHECK(ep_ring_init(&mine, pinned, EP_CMD_ENTRIES_MIN, 0) == 0, "ring");
	ring = ep_ring_for_device(&mine, pinned, &head);
	CHECK(gx_host_launch(fail_kernel, NULL, 1, GX_WARP, 0) == 0, "launch");
	n = ep_ring_pop(&mine, cmd, 8);
	CHECK(n == 2, "%d commands", n);
	for (int i = 0; i < n && i < 2; i++) {
		CHECK(ep_cmd_channel(&cmd[i]) == told[i] && ep_cmd_op(&cmd[i]) == EP_CMD_SIGNAL &&
			      ep_cmd_dst(&cmd[i]) == 64,
		      "command %u for rank %u", ep_cmd_op(&cmd[i]), ep_cmd_channel(&cmd[i]));
		CHECK(ep_cmd_value(&cmd[i]) == EP_FAILED_WORD(SELF, 5), "%#llx", ep_cmd_value(&cmd[i]) + 0ull);
	}
	for (int r = 0; r < NEAR; r++)
		CHECK(control[r] == EP_FAILED_WORD(SELF, 5), "rank %d is told %#llx", r, control[r] + 0ull);
	free(pinned);
	return check_result("kernel_blame");
}
