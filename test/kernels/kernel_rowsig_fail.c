/* SPDX-License-Identifier: Apache-2.0 */
/* How an operation between ranks fails: by its deadline, naming the rank and the phase, and on every rank. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel_check.h"
#include "rowsig_order.h"
#include "rowsig_rank.h"
#include "util/clock.h"

#define RANKS 4
#define TIMEOUT_MS 600

static struct rowsig_world world = {
	.nranks = RANKS,
	.cap = 5,
	.row = 100,
	.grid = 2,
	.warps = 2,
	.slices = 16, /* many waits for one rank: one timeout each would exceed the limit below */
	.seed = 3,
	.timeout_ms = TIMEOUT_MS,
};
static struct rowsig_rank rank[RANKS];

static void open_all(void)
{
	void *window[RANKS];
	int bad = 0;

	for (int r = 0; r < RANKS; r++) {
		bad |= rowsig_open(&rank[r], &world, r);
		window[r] = rank[r].window.ptr;
	}
	for (int r = 0; r < RANKS; r++)
		bad |= rowsig_connect(&rank[r], window);
	CHECK(!bad, "set-up");
}

static void close_all(void)
{
	for (int r = 0; r < RANKS; r++)
		rowsig_close(&rank[r]);
}

static void *launch_once(void *arg)
{
	CHECK(rowsig_launch(arg, 1) == 0, "launch");
	return NULL;
}

/* Launches on the ranks of the mask concurrently; returns the time until all have returned, in ms. */
static double launch_ranks(unsigned mask, void (*meanwhile)(void))
{
	pthread_t thread[RANKS];
	uint64_t start = ep_now_ns();

	for (int r = 0; r < RANKS; r++)
		if (mask & 1u << r)
			pthread_create(&thread[r], NULL, launch_once, &rank[r]);
	if (meanwhile)
		meanwhile();
	for (int r = 0; r < RANKS; r++)
		if (mask & 1u << r)
			pthread_join(thread[r], NULL);
	return (double)(ep_now_ns() - start) / 1e6;
}

static const struct ep_kernel_report *report(int r)
{
	return rowsig_report(&rank[r]);
}

/* Rank 2 never calls: the others report it after one timeout, not one per wait. */
static void test_absent(void)
{
	double ms;
	int timed_out = 0;

	open_all();
	ms = launch_ranks(0xf & ~(1u << 2), NULL);
	CHECK(ms >= TIMEOUT_MS && ms < 3 * TIMEOUT_MS, "back after %.0f ms", ms);
	for (int r = 0; r < RANKS; r++) {
		if (r == 2)
			continue;
		timed_out += report(r)->code == EP_KERR_TIMEOUT;
		CHECK(report(r)->code == EP_KERR_TIMEOUT || report(r)->code == EP_KERR_REMOTE, "rank %d: code %u", r,
		      report(r)->code);
		CHECK(report(r)->code != EP_KERR_TIMEOUT || report(r)->rank == 2, "rank %d names rank %u", r,
		      report(r)->rank);
		CHECK(report(r)->code != EP_KERR_REMOTE || (report(r)->rank != 2 && report(r)->rank < RANKS),
		      "rank %d names rank %u", r, report(r)->rank);
		CHECK(report(r)->cause == 2, "rank %d blames rank %u", r,
		      report(r)->cause); /* whichever rank reported it */
		CHECK(report(r)->phase == EP_KPHASE_RECV && report(r)->epoch == 1, "rank %d: phase %u, epoch %llu", r,
		      report(r)->phase, (unsigned long long)report(r)->epoch);
	}
	CHECK(timed_out > 0, "no rank saw the timeout");
	/* A rank that calls late is notified at once; so is a second call of the others. */
	ms = launch_ranks(1u << 2 | 1, NULL);
	CHECK(ms < TIMEOUT_MS, "a rank of a failed group came back after %.0f ms", ms);
	CHECK(report(2)->code == EP_KERR_REMOTE && report(2)->rank != 2 && report(2)->cause == 2,
	      "rank 2: code %u, rank %u, cause %u", report(2)->code, report(2)->rank, report(2)->cause);
	close_all();
}

static void abort_rank_0(void)
{
	usleep(50000);
	__atomic_store_n(rowsig_abort(&rank[0]), 1, __ATOMIC_RELEASE);
}

/* The host aborts rank 0 while all wait for rank 3. */
static void test_abort(void)
{
	double ms;

	world.timeout_ms = 30000;
	open_all();
	ms = launch_ranks(0x7, abort_rank_0);
	CHECK(ms < 5000, "back after %.0f ms", ms);
	CHECK(report(0)->code == EP_KERR_ABORTED, "rank 0: code %u", report(0)->code);
	for (int r = 1; r < 3; r++)
		CHECK(report(r)->code == EP_KERR_REMOTE && report(r)->rank < 3, "rank %d: code %u, rank %u", r,
		      report(r)->code, report(r)->rank);
	close_all();
	world.timeout_ms = TIMEOUT_MS;
}

/* Rank 1 sends more rows than the windows hold. */
static void test_count(void)
{
	world.timeout_ms = 30000;
	open_all();
	rank[1].lie = world.cap + 1;
	launch_ranks(0xf, NULL);
	CHECK(report(1)->code == EP_KERR_COUNT && report(1)->phase == EP_KPHASE_SEND, "rank 1: code %u, phase %u",
	      report(1)->code, report(1)->phase);
	for (int r = 0; r < RANKS; r++)
		CHECK(report(r)->code != EP_KERR_NONE, "rank %d was not notified", r);
	close_all();
	world.timeout_ms = TIMEOUT_MS;
}

/* A peer's count is checked: rank 3 claims more rows than fit. */
static void test_peer_count(void)
{
	struct rowsig_rank *me = &rank[0];
	uint32_t lie = 1000000;
	uint64_t signal = 1, at;

	open_all();
	at = rowsig_window_bytes(&world) - ep_rowsig_window_size(world.row, world.cap, RANKS) +
	     3 * ep_rowsig_block(world.row, world.cap);
	CHECK(me->dev->ops->copy(me->dev, (uint8_t *)me->window.ptr + at, &lie, sizeof(lie), NULL) == 0 &&
		      me->dev->ops->copy(me->dev, (uint64_t *)me->window.ptr + 3, &signal, sizeof(signal), NULL) == 0,
	      "copy");
	launch_ranks(0x7, NULL);
	CHECK(report(0)->code == EP_KERR_COUNT && report(0)->rank == 3 && report(0)->phase == EP_KPHASE_RECV,
	      "code %u, rank %u, phase %u", report(0)->code, report(0)->rank, report(0)->phase);
	close_all();
}

int main(int argc, char **argv)
{
	int devices;

	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	world.kind = argc > 1 && strcmp(argv[1], "cuda") == 0 ? EP_DEV_CUDA : EP_DEV_HOST;
	if (ep_dev_row(world.kind)->count(&devices) != 0 || devices == 0)
		return 77;
	alarm(240);
	for (int pass = 0; pass < rowsig_orders(); pass++) {
		rowsig_order(pass);
		test_absent();
		test_abort();
		test_count();
		test_peer_count();
	}
	return check_result("kernel_rowsig_fail");
}
