/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A full ring without a consumer: producers wait until their deadline or the host's abort; then the ring is dead for
 * everybody and both sides report why. A consumer that only stalls loses nothing. "ring_full cuda" runs on a GPU.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/rig/ring_rig.h"
#include "util/clock.h"
#include "util/error.h"

/* Values of kernels/gx/wait.h, which host programs cannot include. */
enum { ARRIVED, TIMED_OUT, ABORTED, FAILED };

#define ENTRIES 128u

static enum ep_dev_kind kind;
static struct ring_rig rig;

static struct rig_job job_of(int index, uint32_t mode, uint32_t count, unsigned timeout_ms)
{
	struct rig_job job = { .rig = &rig, .index = index, .grid = 1, .warps = 1 };

	job.args = (struct ep_ring_push_args){
		.items = 1, .count = count, .batch = 1, .mode = mode, .timeout_ns = timeout_ms * 1000000ull
	};
	return job;
}

static void start(struct rig_job *job)
{
	CHECK(rig_start(job) == 0, "no thread");
}

/* How the push ended. */
static uint64_t join(struct rig_job *job)
{
	uint64_t failed;

	CHECK(rig_join(job, &failed) == 0, "%s", ep_last_error());
	return failed;
}

/* Pops until the ring is empty or fails; how many, and the result. */
static int drain(int *end)
{
	struct ep_cmd cmd[32];
	int n, all = 0;

	while ((n = ep_ring_pop(&rig.ring[0], cmd, 32)) > 0) {
		for (int i = 0; i < n; i++)
			CHECK(ep_cmd_src(&cmd[i]) / EP_CMD_UNIT == (uint64_t)all + (uint64_t)i, "command %d", all + i);
		all += n;
	}
	*end = n;
	return all;
}

static int open_rig(void)
{
	int rc = rig_open(&rig, kind, 1, ENTRIES, 0, 0);

	CHECK(rc == 0, "%s", ep_last_error());
	return rc;
}

static void deadline(void)
{
	struct rig_job one, two;
	uint64_t before;
	int end, n;

	if (open_rig())
		return;
	one = job_of(0, EP_PUSH_THREAD, ENTRIES + 5, 100);
	before = ep_now_ns();
	start(&one);
	CHECK(join(&one) == TIMED_OUT, "the kernel's report differs");
	CHECK(ep_now_ns() - before >= 100000000, "it gave up early");
	/* What was pushed is delivered, what was not is reported; and nobody waits again. */
	n = drain(&end);
	CHECK(n == (int)ENTRIES && end == -EP_ETIMEOUT, "%d popped, then %d", n, end);
	CHECK(strstr(ep_last_error(), "command 128 ") && strstr(ep_last_error(), "deadline"), "%s", ep_last_error());
	two = job_of(1, EP_PUSH_THREAD, 1, 20000);
	before = ep_now_ns();
	start(&two);
	CHECK(join(&two) == FAILED, "a push into a dead ring");
	CHECK(ep_now_ns() - before < 10000000000ull, "it waited");
	two = job_of(2, EP_PUSH_WARP, 1, 20000);
	start(&two);
	CHECK(join(&two) == FAILED, "a warp's push into a dead ring");
	two = job_of(3, EP_PUSH_LANES, 1, 20000);
	start(&two);
	CHECK(join(&two) == FAILED, "a push of lanes into a dead ring");
	/* The first reason stays. */
	n = drain(&end);
	CHECK(n == 0 && end == -EP_ETIMEOUT && strstr(ep_last_error(), "command 128 "), "%s", ep_last_error());
	rig_close(&rig);
}

/* Of two rings one is full: its lane waits, but what the other lane of the warp has for the other ring comes at once.
 * Were it kept back, two warps that push into both rings could wait for each other. */
static void one_of_two(void)
{
	struct rig_job one, two;
	uint64_t until = ep_deadline_ms(10000);
	struct ep_cmd cmd;
	int n = 0, wide;

	CHECK(rig_open(&rig, kind, 2, ENTRIES, 0, 0) == 0, "%s", ep_last_error());
	wide = rig.dev->warp > 1;		       /* else one command at a time: the second is not pushed yet */
	one = job_of(0, EP_PUSH_WARP, ENTRIES, 20000); /* into ring 0 */
	start(&one);
	CHECK(join(&one) == ARRIVED, "the first commands were not taken");
	two = job_of(1, EP_PUSH_LANES, 2, 60000); /* ring 0, which is full, and ring 1 */
	start(&two);
	while (wide && n == 0 && ep_now_ns() < until)
		n = ep_ring_pop(&rig.ring[1], &cmd, 1);
	usleep(20000);
	CHECK(n == wide, "%d commands in the other ring", n);
	CHECK(!rig_ended(&two), "a full ring accepted more");
	__atomic_store_n(&rig_page(&rig)->abort, 1, __ATOMIC_RELEASE);
	CHECK(join(&two) == ABORTED, "the kernel's report differs");
	rig_close(&rig);
}

static void abort_word(uint32_t mode)
{
	struct rig_job one;
	uint64_t before;
	int end, n;

	if (open_rig())
		return;
	one = job_of(0, mode, 2 * ENTRIES, 60000);
	before = ep_now_ns();
	start(&one);
	usleep(50000);
	CHECK(!rig_ended(&one), "a full ring accepted more");
	__atomic_store_n(&rig_page(&rig)->abort, 1, __ATOMIC_RELEASE);
	CHECK(join(&one) == ABORTED, "the kernel's report differs");
	CHECK(ep_now_ns() - before < 20000000000ull, "the abort was ignored");
	n = drain(&end);
	CHECK(n == (int)ENTRIES && end == -EP_EREMOTE, "%d popped, then %d", n, end);
	rig_close(&rig);
}

static void stall(void)
{
	struct rig_job one;
	uint64_t until = ep_deadline_ms(30000);
	int end = 0, n = 0;
	struct ep_cmd cmd[16];

	if (open_rig())
		return;
	one = job_of(0, EP_PUSH_THREAD, 10 * ENTRIES, 60000);
	start(&one);
	sleep(1);
	CHECK(!rig_ended(&one), "a full ring accepted more");
	while (n < (int)(10 * ENTRIES) && ep_now_ns() < until) {
		end = ep_ring_pop(&rig.ring[0], cmd, 16);
		CHECK(end >= 0, "%s", ep_last_error());
		if (end < 0)
			break;
		n += end;
		if (end == 0)
			usleep(10);
	}
	CHECK(n == (int)(10 * ENTRIES), "%d came", n);
	CHECK(join(&one) == ARRIVED, "a push failed");
	rig_close(&rig);
}

/* Popped is not completed. */
static void quiet(void)
{
	struct ep_cmd cmd;
	struct rig_job one;
	uint64_t until = ep_deadline_ms(30000);

	if (open_rig())
		return;
	one = job_of(0, EP_PUSH_ECHO, 1, 60000);
	start(&one);
	while (ep_ring_pop(&rig.ring[0], &cmd, 1) == 0 && ep_now_ns() < until)
		usleep(100);
	usleep(50000);
	CHECK(!rig_ended(&one) && ep_ring_pending(&rig.ring[0]) == 1, "quiet with a command in flight");
	CHECK(ep_ring_complete(&rig.ring[0], 1) == 0, "%s", ep_last_error());
	CHECK(join(&one) == ARRIVED && ep_ring_pending(&rig.ring[0]) == 0, "quiet did not end");
	one = job_of(1, EP_PUSH_ECHO, 1, 100);
	start(&one);
	CHECK(join(&one) == TIMED_OUT, "quiet without an end");
	rig_close(&rig);
}

int main(int argc, char **argv)
{
	int count = 0;

	kind = argc > 1 && !strcmp(argv[1], "cuda") ? EP_DEV_CUDA : EP_DEV_HOST;
	alarm(240);
	setenv("NCCL_EP_DEBUG", "NONE", 1);
	if (kind == EP_DEV_CUDA && ep_dev_row(kind)->count(&count)) {
		printf("skipped: %s\n", ep_last_error());
		return 77;
	}
	deadline();
	one_of_two();
	abort_word(EP_PUSH_WARP);
	abort_word(EP_PUSH_LANES);
	stall();
	quiet();
	return check_result("ring_full");
}
