/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How LL waits for words that the net writes: packed 16 to a line, each line read once per look, by the warp that holds
 * the lock and by no other. Counts the lines that are really read, with 1024 ranks of which 8 are near. With masks a
 * wait, for near or far ranks, ends early when its launch fails, and masks nobody; when another rank fails it goes on.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel_check.h"
#include "kernels/gx/gx.h"
#include "kernels/host/launch.h"

#define RANKS 1024u
#define NEAR 8u
#define LINES (RANKS * 20 / 16) /* more than the far page has */

static struct ep_ll_state *state;
static uint8_t *far_page;
static uint64_t far_size;
static uint32_t reads[LINES]; /* atomic: by line of the far page */
static uint32_t unlocked;     /* atomic: reads while no warp held a lock */

static uint64_t watched(const uint64_t *word);

#undef gx_ld_acquire_u64 /* under the emulator it is a macro */
#define gx_ld_acquire_u64(word) watched(word)
#include "kernels/ll/wait.h"
#undef gx_ld_acquire_u64

static uint64_t watched(const uint64_t *word)
{
	const uint8_t *at = (const uint8_t *)word;
	uint32_t held = 0;

	if (at >= far_page && at < far_page + far_size) {
		for (uint32_t i = 0; i < EP_LL_WORDS; i++)
			held |= gx_ld_relaxed_u32(&state->looking[i]);
		if (!held)
			__atomic_add_fetch(&unlocked, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&reads[(at - far_page) / EP_LL_FAR_LINE], 1, __ATOMIC_RELAXED);
	}
	return gx_ld_acquire_u64(word);
}

static struct ep_ll_args a;
static uint64_t abort_word;

static void set_up(void)
{
	static uint8_t *control[RANKS];
	static uint8_t here; /* what near ranks' entries point to */

	far_size = ep_ll_far_size(RANKS);
	a.shape.nranks = RANKS;
	state = calloc(1, ep_ll_state_size(&a.shape, 1));
	far_page = aligned_alloc(EP_LL_FAR_LINE, far_size);
	a.mine = calloc(1, ep_ll_control_size(RANKS));
	if (!state || !far_page || !a.mine)
		exit(1);
	memset(far_page, 0, far_size);
	for (uint32_t r = 0; r < NEAR; r++)
		control[r] = &here;
	a.state = state;
	a.control = control;
	a.far.control = far_page;
	a.far.control_pinned = 1;
	a.abort = &abort_word;
}

static uint64_t *far_word(uint64_t at)
{
	return (uint64_t *)(far_page + ep_ll_far_at(RANKS, at));
}

static uint64_t shown(uint64_t at)
{
	return __atomic_load_n((uint64_t *)(a.mine + at), __ATOMIC_ACQUIRE);
}

/* Lines read since the last call, and whether any was read twice. */
static uint32_t lines_read(uint32_t *twice)
{
	uint32_t n = 0, most = 0;

	for (uint32_t i = 0; i < LINES; i++) {
		uint32_t times = __atomic_exchange_n(&reads[i], 0, __ATOMIC_RELAXED);

		n += times > 0;
		most = times > most ? times : most;
	}
	*twice = most > 16; /* loads of its words, by one warp */
	return n;
}

static void look_kernel(const void *args)
{
	ll_look(&a, *(const uint32_t *)args);
}

static void look(uint32_t words)
{
	CHECK(gx_host_launch(look_kernel, &words, 1, GX_WARP, 0) == 0, "launch");
}

/* ---- what one look costs and shows ---- */

static void one_look(void)
{
	uint32_t twice, n;

	*far_word(ep_ll_signal_at(9)) = 3;
	*far_word(ep_ll_signal_at(RANKS - 1)) = 7;
	*(uint64_t *)(a.mine + ep_ll_signal_at(500)) = 4; /* seen before: a word never goes back */
	*far_word(ep_ll_signal_at(500)) = 2;
	look(EP_LL_SIGNALS);
	n = lines_read(&twice);
	CHECK(n == RANKS / 16 && !twice, "%u lines for the signals of %u ranks", n, RANKS);
	CHECK(shown(ep_ll_signal_at(9)) == 3 && shown(ep_ll_signal_at(RANKS - 1)) == 7, "what arrived is not shown");
	CHECK(shown(ep_ll_signal_at(500)) == 4, "a word went back to %llu", shown(ep_ll_signal_at(500)) + 0ull);
	CHECK(shown(ep_ll_signal_at(10)) == 0 && state->looking[EP_LL_SIGNALS] == 0, "lock");

	*far_word(ep_ll_ack_at(RANKS, 1, 17)) = 5;
	look(EP_LL_ACKS_1);
	n = lines_read(&twice);
	CHECK(n == RANKS / 16 && !twice && shown(ep_ll_ack_at(RANKS, 1, 17)) == 5, "%u lines for acks", n);

	*far_word(ep_ll_clean_at(RANKS, 20) + EP_LL_CLEAN_NUMBER) = 6;
	look(EP_LL_CLEANS);
	n = lines_read(&twice);
	CHECK(n == RANKS / 8 && shown(ep_ll_clean_at(RANKS, 20) + EP_LL_CLEAN_NUMBER) == 6, "%u lines for cleans", n);

	*far_word(ep_ll_step_at(RANKS, 21, 7)) = 8;
	look(EP_LL_STEPS);
	n = lines_read(&twice);
	CHECK(n == RANKS * EP_LL_STEPS_EACH / 16 && !twice && shown(ep_ll_step_at(RANKS, 21, 7)) == 8,
	      "%u lines for steps", n);
	*far_word(ep_ll_counted_at(RANKS, 22)) = 9;
	look(EP_LL_COUNTED);
	n = lines_read(&twice);
	CHECK(n == RANKS / 16 && !twice && shown(ep_ll_counted_at(RANKS, 22)) == 9, "%u lines for counts", n);
	CHECK(EP_LL_STEPS_RANKS * EP_LL_STEPS_EACH <= RANKS, "more steps are looked at than signals of %u ranks",
	      RANKS);

	state->looking[EP_LL_SIGNALS] = 1;
	look(EP_LL_SIGNALS);
	CHECK(lines_read(&twice) == 0, "read while another warp looks");
	state->looking[EP_LL_SIGNALS] = 0;
}

/* ---- many warps wait, each for other ranks ---- */

#define WARPS (GX_WARP > 1 ? 2u : 1u)
#define BLOCKS (GX_WARP > 1 ? 2u : 1u) /* a scalar kernel is one thread */
#define LANES (BLOCKS * WARPS * GX_WARP)
#define FAR_ONE 12u
#define LATE (GX_WARP > 1 ? NEAR - 2 : FAR_ONE) /* the first two lanes wait for near ranks */

static uint32_t arrived; /* atomic: lanes */
static uint32_t stuck;	 /* atomic: what a warp waits for that looks no more was not shown to the others */

static void wait_kernel(const void *args)
{
	uint64_t deadline = gx_clock_ns() + *(const uint64_t *)args;
	uint32_t at = (LATE + gx_block() * gx_threads() + gx_tid()) % RANKS;
	/* The last lane waits for nobody. */
	uint32_t rank = GX_WARP > 1 && gx_lane() == GX_WARP - 1 ? LL_NOBODY : at;
	uint32_t result = ll_wait_far(&a, ep_ll_signal_at(at), 11, rank, deadline, 0);

	if (result == GX_ARRIVED)
		__atomic_add_fetch(&arrived, 1, __ATOMIC_RELAXED);
}

/* The near ranks when all warps but the first, which still waits for them, have what they wait for. */
static void *signal_all(void *arg)
{
	(void)arg;
	for (uint32_t r = NEAR; r < RANKS; r++) {
		if (r % 64 == 0)
			usleep(1000);
		__atomic_store_n(far_word(ep_ll_signal_at(r)), 11, __ATOMIC_RELEASE);
	}
	for (uint32_t ms = 0; __atomic_load_n(&arrived, __ATOMIC_RELAXED) + GX_WARP < LANES && !stuck; ms++) {
		usleep(1000);
		stuck = ms > 10000;
	}
	for (uint32_t r = 0; r < NEAR; r++)
		__atomic_store_n((uint64_t *)(a.mine + ep_ll_signal_at(r)), 11, __ATOMIC_RELEASE);
	return NULL;
}

static void many_waits(void)
{
	uint64_t ns = 20000000000;
	uint32_t twice;
	pthread_t thread;

	lines_read(&twice);
	pthread_create(&thread, NULL, signal_all, NULL);
	CHECK(gx_host_launch(wait_kernel, &ns, BLOCKS, WARPS * GX_WARP, 0) == 0, "launch");
	pthread_join(thread, NULL);
	CHECK(arrived == LANES, "%u of %u arrived", arrived, LANES);
	CHECK(!stuck, "a warp that waits for near ranks kept the lock");
	CHECK(unlocked == 0, "%u reads without the lock", unlocked);
	CHECK(state->looking[EP_LL_SIGNALS] == 0, "the lock was kept");
}

static void missing(void)
{
	uint64_t ns = 100000000;

	*far_word(ep_ll_signal_at(FAR_ONE)) = *(uint64_t *)(a.mine + ep_ll_signal_at(FAR_ONE)) = 2;
	arrived = 0;
	CHECK(gx_host_launch(wait_kernel, &ns, BLOCKS, WARPS * GX_WARP, 0) == 0, "launch");
	CHECK(arrived == LANES - 1, "%u arrived, one must not", arrived);
}

/* ---- with masks ---- */

struct masked {
	uint64_t ns;
	uint32_t far; /* the group has far ranks */
};

static uint32_t async[8], *off; /* off: [RANKS] */
static struct ep_kernel_report report;
static uint64_t gone[RANKS];

static void masked_kernel(const void *args)
{
	const struct masked *m = args;
	uint32_t rank = m->far ? FAR_ONE : 3;
	struct ll ll;

	ll_begin(&ll, &a, EP_KIND_DISPATCH, m->far ? &a.far : NULL, 0);
	ll.op.limit.deadline = gx_clock_ns() + m->ns;
	ll.op.epoch = 99;
	ll_wait(&ll, ep_ll_signal_at(rank), 99, gx_lane() == 0 ? rank : LL_NOBODY, EP_KPHASE_SEND);
}

static void *break_later(void *word)
{
	usleep(30000);
	if (word == &state->broken)
		__atomic_store_n(&state->errors, 1, __ATOMIC_RELAXED); /* as gx_op_blame */
	__atomic_store_n((uint64_t *)word, EP_FAILED_WORD(0, 1), __ATOMIC_RELEASE);
	return NULL;
}

/* Milliseconds; the word is set after 30 of them. */
static double masked_wait(struct masked *m, uint64_t *word)
{
	uint64_t start = ep_now_ns();
	pthread_t thread;

	memset(off, 0, RANKS * sizeof(off[0]));
	state->broken = state->errors = report.code = 0;
	pthread_create(&thread, NULL, break_later, word);
	CHECK(gx_host_launch(masked_kernel, m, 1, GX_WARP, 0) == 0, "launch");
	start = ep_now_ns() - start;
	pthread_join(thread, NULL);
	return (double)start / 1e6;
}

static void masked(void)
{
	uint64_t *page = (uint64_t *)(a.mine + ep_ll_failed_at(RANKS));
	struct ll ll = { .a = &a };

	ll_arrays(&ll);
	off = ll.off;
	a.flags = EP_LL_MASK;
	a.async = async;
	a.gone = gone;
	a.report = &report;
	for (uint32_t far = 0; far < 2; far++) {
		struct masked m = { .ns = 20000000000, .far = far };
		uint32_t rank = far ? FAR_ONE : 3;
		double ms = masked_wait(&m, &state->broken);

		CHECK(ms < 10000 && !off[rank], "far %u: %.1f ms after its launch failed, masked %u", far, ms,
		      off[rank]);
		m.ns = 100000000;
		ms = masked_wait(&m, page);
		CHECK(ms >= 100 && off[rank] == 1 && report.code == 0, "far %u: %.1f ms after a rank failed, masked %u",
		      far, ms, off[rank]);
		*page = 0;
	}
}

/* ---- the layout ---- */

static void layout(uint32_t n)
{
	uint64_t size = ep_ll_far_size(n), failed = ep_ll_far_at(n, ep_ll_failed_at(n));
	uint8_t *used = calloc(1, size / 8);
	uint64_t words[6 + EP_LL_STEPS_EACH] = { 0 };

	for (uint32_t r = 0; used && r < n; r++) {
		words[0] = ep_ll_far_at(n, ep_ll_signal_at(r));
		words[1] = ep_ll_far_at(n, ep_ll_ack_at(n, 0, r));
		words[2] = ep_ll_far_at(n, ep_ll_ack_at(n, 1, r));
		words[3] = ep_ll_far_at(n, ep_ll_clean_at(n, r) + EP_LL_CLEAN_NUMBER);
		words[4] = ep_ll_far_at(n, ep_ll_jump_at(n, r));
		words[5] = ep_ll_far_at(n, ep_ll_counted_at(n, r));
		for (uint32_t step = 0; step < EP_LL_STEPS_EACH; step++)
			words[6 + step] = ep_ll_far_at(n, ep_ll_step_at(n, r, step));
		for (int i = 0; i < 6 + (int)EP_LL_STEPS_EACH; i++) {
			CHECK(words[i] % 8 == 0 && words[i] < size && words[i] / 128 != failed / 128 &&
				      !used[words[i] / 8]++,
			      "%u ranks: word %d of rank %u at %llu", n, i, r, words[i] + 0ull);
		}
		CHECK(words[0] / EP_LL_FAR_LINE == r / 16, "%u ranks: the signal of rank %u", n, r);
	}
	CHECK(used && failed < size, "failed word");
	free(used);
}

int main(void)
{
	static const uint32_t sizes[] = { 1, 2, 15, 16, 17, 33, RANKS };

	alarm(120);
	set_up();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		layout(sizes[i]);
	one_look();
	many_waits();
	missing();
	masked();
	return check_result("kernel_look");
}
