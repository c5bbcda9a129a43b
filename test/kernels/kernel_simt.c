/* SPDX-License-Identifier: Apache-2.0 */
/* The emulator itself: indices, shared memory, warp operations, order, launches of several threads, forks. */
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel_check.h"
#include "kernels/gx/gx.h"
#include "kernels/host/launch.h"
#include "kernels/simt/simt.h"

enum { BLOCKS = 3, THREADS = 2 * 64, WARPS_MAX = THREADS };

struct job {
	uint32_t *out; /* [blocks][THREADS] */
	uint32_t *counter;
	uint32_t ticket;
};

/* Every primitive once; the result can be computed on the host. */
static void words(const void *args)
{
	GX_SHARED uint32_t fixed[THREADS];
	GX_DYN_SHARED(dynamic);
	const struct job *job = args;
	uint32_t t = gx_tid(), n = gx_threads(), v;
	uint64_t odd;

	fixed[t] = t + gx_block();
	((uint32_t *)dynamic)[n - 1 - t] = t;
	gx_syncthreads();
	v = fixed[n - 1 - t] - gx_block() + ((uint32_t *)dynamic)[t]; /* 2 * (n - 1 - t) */
	v = gx_shfl_u32(v, GX_WARP - 1 - gx_lane());		      /* of the mirrored lane */
	odd = gx_ballot((int)(gx_lane() & 1));
	gx_syncwarp();
	v += gx_popc(odd);
	v += (uint32_t)(gx_shfl_u64((uint64_t)gx_warp() << 40, 0) >> 40);
	job->out[gx_block() * n + t] = v;
	gx_dev_add_relaxed_u32(job->counter, 1);
}

static uint32_t words_answer(uint32_t t, uint32_t n)
{
	uint32_t lane = t % GX_WARP, mirror = t - lane + (GX_WARP - 1 - lane);

	return 2 * (n - 1 - mirror) + GX_WARP / 2 + t / GX_WARP;
}

static void words_check(unsigned grid, unsigned n)
{
	uint32_t counter = 0;
	struct job job = { calloc((size_t)grid * n, 4), &counter, 0 };

	CHECK(gx_host_launch(words, &job, grid, n, n * sizeof(uint32_t)) == 0, "launch");
	CHECK(counter == grid * n, "%u of %u threads ran", counter, grid * n);
	for (uint32_t i = 0; i < grid * n; i++)
		CHECK(job.out[i] == words_answer(i % n, n), "thread %u has %u, not %u", i, job.out[i],
		      words_answer(i % n, n));
	free(job.out);
}

static void test_words(void)
{
	words_check(1, 64);
	words_check(BLOCKS, THREADS); /* more blocks and threads than before */
	words_check(2, 64);	      /* and fewer */
}

/* Records the order in which the threads run. */
static void order(const void *args)
{
	const struct job *job = args;
	uint32_t at = gx_dev_add_relaxed_u32(job->counter, 1);

	job->out[at] = gx_tid();
}

static void order_take(uint64_t seed, uint32_t *out)
{
	struct simt_options options = { .seed = seed };
	uint32_t counter = 0;
	struct job job = { out, &counter, 0 };

	simt_configure(&options);
	CHECK(gx_host_launch(order, &job, 1, THREADS, 0) == 0, "launch");
}

static void *order_thread(void *out)
{
	order_take(7, out); /* a fresh thread: its launches count from the start */
	return NULL;
}

static void test_order(void)
{
	uint32_t a[THREADS], b[THREADS], in_order[THREADS];
	pthread_t thread;

	for (int i = 0; i < 2; i++) {
		pthread_create(&thread, NULL, order_thread, i ? b : a);
		pthread_join(thread, NULL);
	}
	CHECK(memcmp(a, b, sizeof(a)) == 0, "one seed gave two orders");
	order_take(8, b);
	CHECK(memcmp(a, b, sizeof(a)) != 0, "two seeds gave one order");
	order_take(0, in_order);
	for (uint32_t i = 0; i < THREADS; i++)
		CHECK(in_order[i] == i, "thread %u ran as number %u", in_order[i], i);
}

/* Block b waits for all blocks before it: needs them resident together. */
static void chain(const void *args)
{
	const struct job *job = args;

	for (uint32_t spin = 0; gx_ballot(gx_tid() == 0 && gx_ld_acquire_u32(job->counter) != gx_block()); spin++)
		gx_pause(spin);
	gx_syncthreads();
	if (gx_tid() == 0) {
		job->out[gx_block()] = gx_block() + 1;
		gx_dev_add_acqrel_u32(job->counter, 1);
	}
}

static void test_chain(void)
{
	uint32_t out[BLOCKS] = { 0 }, counter = 0;
	struct job job = { out, &counter, 0 };

	CHECK(gx_host_launch(chain, &job, BLOCKS, 64, 0) == 0, "launch");
	for (uint32_t i = 0; i < BLOCKS; i++)
		CHECK(out[i] == i + 1, "block %u", i);
}

/* Counts the blocks that run at once, and keeps the maximum. */
static void crowd(const void *args)
{
	const struct job *job = args;
	uint32_t inside = gx_tid() == 0 ? gx_dev_add_acqrel_u32(job->counter, 1) + 1 : 0;

	if (inside > gx_ld_relaxed_u32(job->out))
		gx_st_relaxed_u32(job->out, inside);
	for (uint32_t spin = 0; spin < 200; spin++)
		gx_pause(spin);
	if (gx_tid() == 0)
		gx_dev_add_acqrel_u32(job->counter, (uint32_t)-1);
}

static void test_resident(void)
{
	uint32_t most = 0, counter = 0;
	struct job job = { &most, &counter, 0 };

	simt_configure(&(struct simt_options){ .resident = 1 });
	CHECK(gx_host_launch(crowd, &job, BLOCKS, 64, 0) == 0, "launch");
	CHECK(most == 1, "%u blocks ran at once", most);
	simt_configure(&(struct simt_options){ .resident = 0 });
}

static void *launcher(void *arg)
{
	for (int i = 0; i < 20; i++)
		words_check(1 + (unsigned)i % BLOCKS, 64 + (unsigned)i % 2 * 64);
	return arg;
}

static int threads_now(void)
{
	DIR *dir = opendir("/proc/self/task");
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static void test_launchers(void)
{
	pthread_t thread[4];
	int before = threads_now(), after = 0;

	for (int i = 0; i < 4; i++)
		pthread_create(&thread[i], NULL, launcher, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	/* A joined thread may remain in /proc for a moment. */
	for (int i = 0; i < 100 && (after = threads_now()) > before; i++)
		usleep(10000);
	CHECK(after <= before, "%d threads before, %d after the launching threads have ended", before, after);
}

/* By default TSan does not allow threads in the forked child of a multi-threaded program. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0:atexit_sleep_ms=0";
}

/* The child has the crew's memory but none of its threads. */
static void test_fork(void)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		words_check(2, 64);
		_exit(atomic_load(&check_failures) > 0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "the child ended with status %x", status);
}

int main(void)
{
	alarm(300);
	for (uint64_t seed = 0; seed < 4; seed++) {
		simt_configure(&(struct simt_options){ .seed = seed });
		test_words();
		test_chain();
	}
	test_order();
	test_resident();
	test_launchers();
	test_fork();
	return check_result("kernel_simt");
}
