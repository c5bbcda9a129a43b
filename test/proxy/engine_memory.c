/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory for queued commands: the port fails once and with a message, the queue is dropped, producers and quiet
 * do not hang. Linked with --wrap=calloc to inject the failure.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define SLAB_NODES 256 /* of proxy/port.c; no other calloc here has this n */

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

static int ended; /* atomic: allocations fail */

void *__wrap_calloc(size_t n, size_t size)
{
	return n == SLAB_NODES && __atomic_load_n(&ended, __ATOMIC_RELAXED) ? NULL : __real_calloc(n, size);
}

/* Rank 1 receives nothing: after half a window everything is queued. The first slab is already allocated. */
static void waiting(void)
{
	struct eng_opts o = {
		.spec = "loop:unordered=1", .ranks = 3, .bytes = 65536, .window = 64, .max_inline = ENG_INLINE_MAX
	};
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0];
	struct eng_port *deaf = &rig->rank[1].port[0];
	const struct ep_cmd_ring *ring = eng_ring_to(me, 1);
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);
	struct ep_port_counts c;

	ep_engine_detach(deaf->engine, deaf->port, ep_deadline_ms(ENG_WAIT_MS));
	CHECK(eng_signal(me, 2, 0, 1) == 0 && eng_wait(&rig->rank[2], 0, 1), "before");
	__atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < 1000; i++)
		CHECK(eng_put(me, 1, 4096 + 64 * (i % 64), 32768, 32) == 0, "push %u", i);
	while (!__atomic_load_n(&me->failed, __ATOMIC_ACQUIRE) && ep_now_ns() < end)
		usleep(100);
	CHECK(me->failed == 1 && me->failed_err == -ENOMEM && strstr(me->failed_why, "out of memory"), "%d: %s",
	      me->failed, me->failed_why);
	CHECK(eng_signal(me, 2, 0, 2) == 0, "push");
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	c = eng_counts(me);
	CHECK(c.puts == 32 && c.signals == 1 && c.dropped == 1002 - 33, "%llu puts, %llu signals, %llu dropped",
	      c.puts + 0ull, c.signals + 0ull, c.dropped + 0ull);
	CHECK(__atomic_load_n(&ring->tail->done, __ATOMIC_ACQUIRE) == ring->head->claim, "%llu of %llu",
	      ring->tail->done + 0ull, ring->head->claim + 0ull);
	CHECK(eng_word(&rig->rank[2], 0) == 1, "more was sent");
	__atomic_store_n(&ended, 0, __ATOMIC_RELAXED);
	CHECK(ep_engine_attach(deaf->engine, deaf->port) == 0, "%s", ep_last_error());
	CHECK(eng_signal(&rig->rank[2], 1, 0, 3) == 0 && eng_wait(&rig->rank[1], 0, 3), "other ranks continue");
	CHECK(me->failed == 1 && !me->peer_failed[1] && !me->peer_failed[2], "reported again");
	eng_close(rig);
}

int main(void)
{
	alarm(60);
	waiting();
	return check_result("engine_memory");
}
