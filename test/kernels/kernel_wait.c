/* SPDX-License-Identifier: Apache-2.0 */
/* gx_wait ends when the word arrives, at the deadline, when the host aborts or a peer has failed; and not otherwise. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "kernel_check.h"
#include "kernels/gx/gx.h"
#include "kernels/host/launch.h"

struct wait_job {
	uint64_t *word, value, timeout_ns, *abort, *failed;
	uint32_t *result;
};

static void wait_kernel(const void *args)
{
	const struct wait_job *job = args;
	struct gx_limit limit = { gx_clock_ns() + job->timeout_ns, job->abort, job->failed };

	uint32_t last = gx_tid() == gx_threads() - 1;
	enum gx_wait_result result = gx_wait(last ? job->word : NULL, job->value, &limit);

	if (last)
		*job->result = (uint32_t)result;
	else if (result != GX_ARRIVED)
		*job->result = 98; /* a lane that waits for nothing */
}

static uint64_t word, abort_word, failed;

static void *set_later(void *which)
{
	usleep(30000);
	__atomic_store_n((uint64_t *)which, 5, __ATOMIC_RELEASE);
	return NULL;
}

/* Waits for 5 at most ms, while another thread sets a word to 5; how it ended, and after how many ms. */
static uint32_t wait_for(uint64_t *set, unsigned ms, double *took)
{
	uint32_t result = 99;
	struct wait_job job = { &word, 5, (uint64_t)ms * 1000000, &abort_word, &failed, &result };
	uint64_t start = ep_now_ns();
	pthread_t thread;

	word = 4; /* one short */
	abort_word = failed = 0;
	if (set)
		pthread_create(&thread, NULL, set_later, set);
	CHECK(gx_host_launch(wait_kernel, &job, 1, GX_WARP, 0) == 0, "launch");
	*took = (double)(ep_now_ns() - start) / 1e6;
	if (set)
		pthread_join(thread, NULL);
	return result;
}

int main(void)
{
	double ms;

	alarm(120);
	CHECK(wait_for(&word, 20000, &ms) == GX_ARRIVED && ms < 10000, "arrival after %.1f ms", ms);
	CHECK(wait_for(&abort_word, 20000, &ms) == GX_ABORTED && ms < 10000, "abort after %.1f ms", ms);
	CHECK(wait_for(&failed, 20000, &ms) == GX_FAILED && ms < 10000, "failure after %.1f ms", ms);
	CHECK(wait_for(NULL, 50, &ms) == GX_TIMED_OUT && ms >= 50 && ms < 5000, "timeout after %.1f ms", ms);
	return check_result("kernel_wait");
}
