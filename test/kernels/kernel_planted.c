/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels with one bug each, and which build of the emulator must detect it: proves that the other tests under the
 * emulator can fail.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel_check.h"
#include "kernels/gx/gx.h"
#include "kernels/host/launch.h"
#include "kernels/simt/simt.h"

#define N 128
#define DATA 1024

struct planted {
	int *out; /* [N]; a correct kernel leaves N - 1 - thread */
	uint32_t *flag;
	int *data; /* [DATA] */
};

static const struct planted *the(const void *args)
{
	return args;
}

static void right(const void *args)
{
	GX_SHARED int s[N];
	int t = (int)gx_tid();

	s[t] = t;
	gx_syncthreads();
	the(args)->out[t] = s[N - 1 - t];
}

static void no_syncthreads(const void *args)
{
	GX_SHARED int s[N];
	int t = (int)gx_tid();

	s[t] = t;
	the(args)->out[t] = s[N - 1 - t];
}

/* Correct only by chance, if lane 0 runs first. */
static void no_syncwarp(const void *args)
{
	GX_SHARED int s[N];
	int t = (int)gx_tid(), w = t / (int)GX_WARP;

	if (gx_lane() == 0)
		s[w] = w + 1;
	the(args)->out[t] = s[w] == w + 1 ? N - 1 - t : -1;
}

/* The barrier's count is right, and many GPUs accept it. */
static void divergent_barrier(const void *args)
{
	int t = (int)gx_tid();

	if (t < 16)
		gx_syncthreads();
	else
		gx_syncthreads();
	the(args)->out[t] = N - 1 - t;
}

static void half_warp_shuffle(const void *args)
{
	int t = (int)gx_tid();
	uint32_t v = 0;

	if (gx_lane() + 1 <= GX_WARP / 2)
		v = gx_shfl_u32((uint32_t)t, 0);
	the(args)->out[t] = N - 1 - t + (int)(v & 0);
}

static void relaxed_publish(const void *args)
{
	const struct planted *p = the(args);
	int t = (int)gx_tid();

	if (gx_block() == 0) {
		for (int i = t; i < DATA; i += N)
			p->data[i] = i;
		gx_syncthreads();
		if (t == 0)
			gx_st_relaxed_u32(p->flag, 1);
		return;
	}
	for (uint32_t spin = 0; gx_ballot(t == 0 && gx_ld_relaxed_u32(p->flag) != 1) != 0; spin++)
		gx_pause(spin);
	gx_syncthreads();
	p->out[t] = N - 1 - p->data[t];
}

/* Block 0 raises the flag that block 1 waits for: a right kernel but for the branch the wait is in. */
static void raised(const struct planted *p)
{
	int t = (int)gx_tid();

	if (gx_block() == 0 && t == 0)
		gx_st_release_u32(p->flag, 1);
	gx_syncthreads();
	if (gx_block() == gx_blocks() - 1)
		p->out[t] = N - 1 - t;
}

/* The other lanes are at the block barrier meanwhile. */
static void lane_waits_alone(const void *args)
{
	const struct planted *p = the(args);

	for (uint32_t spin = 0; gx_block() == 1 && gx_tid() == 0 && (spin < 2 || gx_ld_acquire_u32(p->flag) != 1);
	     spin++)
		gx_pause(spin);
	raised(p);
}

/* The other lanes are at a warp operation. */
static void lane_waits_for_warp(const void *args)
{
	const struct planted *p = the(args);

	for (uint32_t spin = 0; gx_block() == 1 && gx_lane() == 0 && (spin < 2 || gx_ld_acquire_u32(p->flag) != 1);
	     spin++)
		gx_pause(spin);
	gx_syncwarp();
	raised(p);
}

/* The other lanes have ended. */
static void last_lane_waits(const void *args)
{
	const struct planted *p = the(args);

	raised(p);
	for (uint32_t spin = 0; gx_lane() == GX_WARP - 1 && spin < 2; spin++)
		gx_pause(spin);
}

/* Every lane has its own number of polls. */
static void lanes_wait_apart(const void *args)
{
	const struct planted *p = the(args);

	for (uint32_t spin = 0; spin < 2 + gx_lane(); spin++)
		gx_pause(spin);
	gx_syncwarp();
	raised(p);
}

static void hard_coded_32(const void *args)
{
	int t = (int)gx_tid(), first = t / 32 * 32;
	int v = (int)gx_shfl_u32((uint32_t)t, 0);

	the(args)->out[t] = v == first ? N - 1 - t : -1;
}

static void plain_increment(const void *args)
{
	GX_SHARED int s[N / 2];
	int t = (int)gx_tid(), d = t % (N / 2);

	s[d] = 0;
	gx_syncthreads();
	s[d] = s[d] + 1;
	gx_syncthreads();
	the(args)->out[t] = s[d] == 2 ? N - 1 - t : -1;
}

static void overrun(const void *args)
{
	int t = (int)gx_tid();

	the(args)->out[t == N - 1 ? N : t] = N - 1 - t;
}

static void early_end(const void *args)
{
	int t = (int)gx_tid();

	the(args)->out[t] = N - 1 - t;
	if (t == N - 1)
		return;
	gx_syncthreads();
}

/* A shuffle exchanges values and does not order memory. */
static void shuffle_as_barrier(const void *args)
{
	GX_SHARED int s[N];
	int t = (int)gx_tid(), w = t / (int)GX_WARP;

	if (gx_lane() == 0)
		s[w] = w + 1;
	(void)gx_shfl_u32(0, 0);
	the(args)->out[t] = s[w] == w + 1 ? N - 1 - t : -1;
}

static void divergent_warp(const void *args)
{
	int t = (int)gx_tid();
	uint32_t v;

	if (gx_lane() + 1 <= GX_WARP / 2)
		v = gx_shfl_u32((uint32_t)t, 0);
	else
		v = gx_shfl_u32((uint32_t)t, 0);
	the(args)->out[t] = N - 1 - t + (int)(v & 0);
}

/* Half of a warp waits for the other half, which waits for the block. */
static void deadlock(const void *args)
{
	int t = (int)gx_tid();

	if (gx_lane() + 1 <= GX_WARP / 2)
		gx_syncwarp();
	gx_syncthreads();
	the(args)->out[t] = N - 1 - t;
}

static int deep(volatile char *above, int depth)
{
	volatile char frame[1024];

	frame[0] = above[0];
	return depth == 0 ? frame[0] : deep(frame, depth - 1) + frame[0];
}

static void stack_overflow(const void *args)
{
	volatile char zero = 0;
	int t = (int)gx_tid();

	the(args)->out[t] = N - 1 - t + deep(&zero, 4096);
}

/* A row over one that its reader has freed: block 0 frees it, block 1 copies. fence: the thread that makes the proxy
 * fence, if its warp's first, all or none. */
enum { FENCE_NONE, FENCE_FIRST, FENCE_ALL };

static void copies(const struct planted *p, int fence)
{
	struct gx_bulk bulk;
	int t = (int)gx_tid();

	gx_bulk_open(&bulk, NULL, 0);
	if (gx_block() == 0 && t == 0)
		gx_st_release_u32(p->flag, 1);
	if (gx_block() == 0)
		return;
	p->out[t] = N - 1 - t;
	gx_bulk_load_own(&bulk, p->data, 16);
	for (uint32_t spin = 0; gx_ballot(gx_lane() == 0 && gx_ld_acquire_u32(p->flag) != 1) != 0; spin++)
		gx_pause(spin);
	gx_syncwarp(); /* extends the acquire to the warp */
	if (fence == FENCE_ALL || (fence == FENCE_FIRST && gx_lane() == 0))
		gx_fence_proxy();
	gx_bulk_store(&bulk, p->data + 64 + 4 * gx_warp(), 0, 16);
	gx_bulk_drain(&bulk);
}

static void copy_fenced(const void *args)
{
	copies(the(args), FENCE_ALL);
}

static void copy_unfenced(const void *args)
{
	copies(the(args), FENCE_NONE);
}

static void copy_fenced_by_one(const void *args)
{
	copies(the(args), FENCE_FIRST);
}

/* The fence comes before the acquire. */
static void copy_fenced_early(const void *args)
{
	gx_fence_proxy();
	copies(the(args), FENCE_NONE);
}

/* Another warp acquires; the block barrier extends it. */
static void copy_after_barrier(const void *args)
{
	const struct planted *p = the(args);
	struct gx_bulk bulk;

	gx_bulk_open(&bulk, NULL, 0);
	if (gx_tid() == 0)
		gx_ld_acquire_u32(p->flag);
	gx_syncthreads();
	p->out[gx_tid()] = N - 1 - (int)gx_tid();
	if (gx_warp() == gx_warps() - 1)
		gx_bulk_load(&bulk, p->data, 16);
}

enum { W1 = 1, W32 = 2, W64 = 4, RANDOM = 8, TSAN = 16, ASAN = 32, ALL = 63 };

static const struct {
	const char *name;
	void (*kernel)(const void *args);
	unsigned blocks;
	unsigned caught; /* by at least these */
	bool named;	 /* and by the emulator itself, with a message */
} bugs[] = {
	{ "missing block barrier", no_syncthreads, 1, ALL, false },
	{ "missing warp barrier", no_syncwarp, 1, RANDOM | TSAN, false },
	{ "divergent block barrier", divergent_barrier, 1, ALL, true },
	{ "shuffle in half a warp", half_warp_shuffle, 1, ALL & ~W1, true },
	{ "relaxed publish between blocks", relaxed_publish, 2, TSAN, false },
	{ "hard-coded 32", hard_coded_32, 1, W1 | W64, false },
	{ "non-atomic shared increment", plain_increment, 1, TSAN, false },
	{ "buffer overrun", overrun, 1, ASAN, false },
	{ "early end before a barrier", early_end, 1, ALL, true },
	{ "shuffle taken for a barrier", shuffle_as_barrier, 1, TSAN, false },
	{ "divergent warp operation", divergent_warp, 1, ALL & ~W1, true },
	{ "deadlock in a block", deadlock, 1, ALL & ~W1, true },
	{ "stack overflow", stack_overflow, 1, ALL, false },
	{ "wait of one lane, block barrier", lane_waits_alone, 2, ALL & ~W1, true },
	{ "wait of one lane, warp barrier", lane_waits_for_warp, 2, ALL & ~W1, true },
	{ "wait of the last lane left", last_lane_waits, 1, ALL & ~W1, true },
	{ "waits of different lengths", lanes_wait_apart, 1, ALL & ~W1, true },
	{ "copy without a proxy fence", copy_unfenced, 2, ALL, true },
	{ "proxy fence before the acquire", copy_fenced_early, 2, ALL, true },
	{ "proxy fence of one lane", copy_fenced_by_one, 2, ALL & ~W1, true },
	{ "no proxy fence after a barrier", copy_after_barrier, 1, ALL, true },
};

#if defined(__has_feature)
#define FEATURE(x) __has_feature(x)
#else
#define FEATURE(x) 0
#endif

static unsigned mode(bool random)
{
#if defined(__SANITIZE_THREAD__) || FEATURE(thread_sanitizer)
	return GX_WARP == 32 && !random ? TSAN : 0;
#elif defined(__SANITIZE_ADDRESS__) || FEATURE(address_sanitizer)
	return GX_WARP == 32 && !random ? ASAN : 0;
#else
	if (random)
		return GX_WARP == 32 ? RANDOM : 0;
	return GX_WARP == 1 ? W1 : GX_WARP == 32 ? W32 : W64;
#endif
}

/* The first report ends the child; its output is not this program's. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "halt_on_error=1:exitcode=66:atexit_sleep_ms=0";
}

enum { CHILD_WRONG = 2, CHILD_BROKEN = 3, CHILD_NAMED = 4 };

static void named(const char *message)
{
	(void)message;
	_exit(CHILD_NAMED);
}

static void child(void (*kernel)(const void *args), unsigned blocks)
{
	uint32_t flag = 0;
	struct planted p = { calloc(N, sizeof(int)), &flag, calloc(DATA, sizeof(int)) };
	int bad = 0;

	if (!freopen("/dev/null", "w", stderr))
		_exit(CHILD_BROKEN);
	alarm(60);
	if (gx_host_launch(kernel, &p, blocks, N, 0) != 0)
		_exit(CHILD_BROKEN);
	for (int i = 0; i < N; i++)
		bad += p.out[i] != N - 1 - i;
	_exit(bad ? CHILD_WRONG : 0);
}

/* 0: nothing was detected; else the child's exit status, or -1 if it was killed. */
static int noticed(void (*kernel)(const void *args), unsigned blocks)
{
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0)
		child(kernel, blocks);
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "fork or waitpid failed");
	CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != CHILD_BROKEN, "the child could not run the kernel");
	CHECK(!WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM, "the child hung");
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void run(uint64_t seed)
{
	struct simt_options options = { .seed = seed, .report = named };
	unsigned now = mode(seed != 0);

	simt_configure(&options);
	CHECK(noticed(right, 1) == 0, "a kernel without a bug was reported");
	CHECK(noticed(copy_fenced, 2) == 0, "a copy behind a proxy fence was reported");
	for (size_t i = 0; i < sizeof(bugs) / sizeof(bugs[0]); i++) {
		int how = noticed(bugs[i].kernel, bugs[i].blocks);

		printf("%-32s %s\n", bugs[i].name,
		       how == 0		    ? "-"
		       : how == CHILD_NAMED ? "named"
		       : how == CHILD_WRONG ? "wrong result"
					    : "died");
		if (!(bugs[i].caught & now))
			continue;
		CHECK(how != 0, "'%s' went unnoticed at width %u, seed %llu", bugs[i].name, (unsigned)GX_WARP,
		      (unsigned long long)seed);
		CHECK(how == CHILD_NAMED || !bugs[i].named, "'%s' was noticed, but not by the emulator", bugs[i].name);
	}
}

int main(void)
{
	printf("width %u, in order\n", (unsigned)GX_WARP);
	run(0);
	printf("width %u, random order\n", (unsigned)GX_WARP);
	run(42);
	return check_result("kernel_planted");
}
