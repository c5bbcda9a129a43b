/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordered net that delivers what follows a failed put (net_leaky.c): the port stops, and says why. Over an unordered
 * one the receiver never sees a signal that follows the gap, and nothing else is affected. Exit status 0 or 1.
 */
#include <string.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define AREA 65536u
#define SIGNAL_AT(from) ((uint64_t)(from) * 16)
#define PAST 200u /* rounds: the lost put is among the first */

static bool wait_count(const int *count)
{
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	while (__atomic_load_n(count, __ATOMIC_ACQUIRE) == 0 && ep_now_ns() < end)
		usleep(100);
	return __atomic_load_n(count, __ATOMIC_ACQUIRE) != 0;
}

static void send_past(struct eng_rank *me, int peer)
{
	for (uint64_t k = 1; k <= PAST; k++) {
		CHECK(eng_put(me, peer, 4096 + k % 64 * 64, AREA, 32) == 0, "put");
		CHECK(eng_signal(me, peer, SIGNAL_AT(me->rank), k) == 0, "signal");
	}
}

static struct eng_rig *open_rig(const char *spec)
{
	struct eng_opts o = { .spec = spec,
			      .ranks = 3,
			      .entries = 1024,
			      .window = 1024,
			      .bytes = 2 * AREA,
			      .max_inline = ENG_INLINE_MAX };

	return eng_open(&o);
}

int main(int argc, char **argv)
{
	bool ordered = argc > 1 && !strcmp(argv[1], "ordered");
	struct eng_rig *rig = open_rig(ordered ? "leaky(loop)" : "leaky(loop:unordered=1)");
	struct eng_rank *me = &rig->rank[0];

	alarm(60);
	/* Completions come late: what follows the lost put is given to the net before the failure is known. */
	__atomic_store_n(&me->port[0].probe.slow, 100, __ATOMIC_RELAXED);
	send_past(me, 1);
	CHECK(wait_count(&me->peer_failed[1]) || me->failed, "the lost put was not reported");
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	if (ordered) {
		CHECK(wait_count(&me->failed), "what the net delivered after a failed put was not noticed");
		CHECK(me->failed_err == -EP_EINTERNAL && strstr(me->failed_why, "rule P3"), "%d: %s", me->failed_err,
		      me->failed_why);
	} else {
		send_past(me, 2);
		CHECK(eng_wait(&rig->rank[2], SIGNAL_AT(0), PAST), "rank 2 is affected");
		CHECK(!me->failed, "%s", me->failed_why);
		CHECK(eng_word(&rig->rank[1], SIGNAL_AT(0)) < 41, "signal %llu arrived after a gap",
		      eng_word(&rig->rank[1], SIGNAL_AT(0)) + 0ull);
	}
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error()); /* the probe frees requests that end */
	eng_close(rig);
	return check_result("engine_leaky");
}
