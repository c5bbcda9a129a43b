/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom a kernel that fails tells, and how often: ranks that it maps by a store, remote ranks that it puts to by a
 * command, and nobody else. A push that waits for room ends when its launch fails, long before the deadline, and blames
 * whoever failed, not the ring.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- a full ring ---- */

struct push {
	uint64_t deadline_ms;
	uint32_t result[GX_WARP];
};

static void push_kernel(const void *args)
{
	struct push *push = *(struct push *const *)args;
	uint8_t *const pages[RANKS] = { (uint8_t *)&control[0], (uint8_t *)&control[1] };
	struct ep_far far = { .ring = &ring, .seat = seats, .ports = 1, .lanes = 1 };
	struct gx_op op = { .rank = SELF, .nranks = RANKS, .report = &report, .errors = &errors };
	struct far_cmd to;
	uint32_t rc, peer = GX_WARP > 1 && gx_lane() == GX_WARP - 1 ? FAR_NOBODY : 3; /* the last lane pushes nothing */

	op.control = pages;
	op.far = &far;
	op.limit.deadline = gx_clock_ns() + push->deadline_ms * 1000000;
	op.limit.abort = &abort_word;
	op.limit.failed = &control[SELF];
	to = far_to(&far, peer, far_signal(&far, peer, 64, 7));
	rc = far_push(&far, &to, &op.limit, 1);
	push->result[gx_lane()] = rc;
	if (rc != 0)
		gx_op_fail_push(&op, rc, 3);
	gx_syncwarp();
	gx_op_tell(&op); /* does not wait for a dead ring */
}

static void *fail_later(void *word)
{
	usleep(30000);
	__atomic_store_n((uint64_t *)word, word == &abort_word ? 1 + 4 : EP_FAILED_WORD(0, 4), __ATOMIC_RELEASE);
	return NULL;
}

/* Nobody pops; the word is set after 30 ms, unless it is NULL. ms: how long the launch lasted. */
static uint32_t push_full(struct ep_ring *mine, void *pinned, uint64_t *word, uint64_t deadline_ms, double *ms)
{
	struct push push = { .deadline_ms = deadline_ms }, *arg = &push;
	uint64_t start;
	pthread_t thread;

	memset(pinned, 0, ep_cmd_pinned_size(EP_CMD_ENTRIES_MIN));
	memset(&head, 0, sizeof(head));
	CHECK(ep_ring_init(mine, pinned, EP_CMD_ENTRIES_MIN, 0) == 0, "ring");
	ring = ep_ring_for_device(mine, pinned, &head);
	head.claim = EP_CMD_ENTRIES_MIN; /* full */
	report = (struct ep_kernel_report){ 0 };
	errors = 0;
	abort_word = control[0] = control[1] = 0;
	start = ep_now_ns();
	if (word)
		pthread_create(&thread, NULL, fail_later, word);
	CHECK(gx_host_launch(push_kernel, &arg, 1, GX_WARP, 0) == 0, "launch");
	*ms = (double)(ep_now_ns() - start) / 1e6;
	if (word)
		pthread_join(thread, NULL);
	for (uint32_t i = 1; i + 1 < GX_WARP; i++)
		CHECK(push.result[i] == push.result[0], "lane %u: %u", i, push.result[i]);
	CHECK(GX_WARP == 1 || push.result[GX_WARP - 1] == 0, "a lane without a command: %u", push.result[GX_WARP - 1]);
	return push.result[0];
}

static void full_ring(struct ep_ring *mine, void *pinned)
{
	uint32_t result;
	double ms;

	result = push_full(mine, pinned, &control[SELF], 20000, &ms);
	CHECK(result == GX_FAILED && ms < 10000, "%u after %.1f ms", result, ms);
	CHECK(report.code == EP_KERR_REMOTE && report.rank == 0 && report.cause == 4, "a failed launch blames %u of %u",
	      report.code, report.rank);
	result = push_full(mine, pinned, &abort_word, 20000, &ms);
	CHECK(result == GX_ABORTED && ms < 10000, "%u after %.1f ms", result, ms);
	CHECK(report.code == EP_KERR_ABORTED && report.rank == 4, "an abort blames %u of %u", report.code, report.rank);
	result = push_full(mine, pinned, NULL, 50, &ms);
	CHECK(result == GX_TIMED_OUT && ms >= 50 && ms < 10000, "%u after %.1f ms", result, ms);
	CHECK(report.code == EP_KERR_RING && report.rank == 3, "a full ring blames %u of %u", report.code, report.rank);
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
	full_ring(&mine, pinned);
	free(pinned);
	return check_result("kernel_blame");
}
