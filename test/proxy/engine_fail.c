/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A failure is reported once, with a message that names it, and affects nobody else: completions with an error, a lost
 * peer (also one that nothing is put to), a peer that violates the protocol, a ring whose producer gave up or pushes
 * invalid commands, an engine that stalled. In every case quiet ends.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define AREA 65536u
#define SIGNAL_AT(from) ((uint64_t)(from) * 16)

static struct eng_rig *open_rig(const char *spec, int ranks, int rings, uint32_t entries)
{
	struct eng_opts o = { .spec = spec,
			      .ranks = ranks,
			      .rings = rings,
			      .entries = entries,
			      .window = 64,
			      .bytes = 2 * AREA,
			      .max_inline = ENG_INLINE_MAX };

	return eng_open(&o);
}

static int failures(struct eng_rank *me, int peer)
{
	return __atomic_load_n(&me->peer_failed[peer], __ATOMIC_ACQUIRE);
}

static bool wait_count(const int *count)
{
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	while (__atomic_load_n(count, __ATOMIC_ACQUIRE) == 0 && ep_now_ns() < end)
		usleep(100);
	return __atomic_load_n(count, __ATOMIC_ACQUIRE) != 0;
}

static void send_some(struct eng_rank *me, int peer, int n, uint64_t value)
{
	for (int i = 0; i < n; i++)
		CHECK(eng_put(me, peer, 4096 + (uint64_t)(i % 64) * 64, AREA, 32) == 0, "put %d", i);
	CHECK(eng_signal(me, peer, SIGNAL_AT(me->rank), value) == 0, "signal");
}

static void check_message(const struct eng_rank *me, int peer, int err)
{
	char name[16];

	snprintf(name, sizeof(name), "rank %d", peer);
	CHECK(me->peer_err[peer] == err, "error %d, must be %d", me->peer_err[peer], err);
	CHECK(strstr(me->peer_why[peer], name), "\"%s\" does not name %s", me->peer_why[peer], name);
}

/* Everything pushed is completed or dropped. */
static void check_quiet(struct eng_rank *me, int peer)
{
	const struct ep_cmd_ring *ring = eng_ring_to(me, peer);

	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	CHECK(__atomic_load_n(&ring->tail->done, __ATOMIC_ACQUIRE) == ring->head->claim, "%llu of %llu",
	      ring->tail->done + 0ull, ring->head->claim + 0ull);
}

/* About one put in a thousand fails: every peer is lost in the end, independently. */
static void completions(const char *spec, int n)
{
	struct eng_rig *rig = open_rig(spec, 3, 1, 256);
	struct eng_rank *me = &rig->rank[0];

	for (int k = 0; k < 400 && (!failures(me, 1) || !failures(me, 2)); k++) {
		send_some(me, 1, n, (uint64_t)k + 1);
		send_some(me, 2, n, (uint64_t)k + 1);
	}
	check_quiet(me, 1);
	for (int peer = 1; peer < 3; peer++) {
		CHECK(failures(me, peer) == 1, "%s: rank %d failed %d times", spec, peer, failures(me, peer));
		check_message(me, peer, -EIO);
		send_some(me, peer, 20, 1000);
	}
	check_quiet(me, 1);
	CHECK(eng_counts(me).dropped >= 42, "%llu dropped", eng_counts(me).dropped + 0ull);
	CHECK(failures(me, 1) == 1 && failures(me, 2) == 1 && !failures(me, 0), "reported again");
	CHECK(me->failed == 0, "%s", me->failed_why);
	eng_close(rig);
}

/* The net takes five quiet puts, which a later completion would have covered, and then fails: nobody waits for them. */
static void uncovered(void)
{
	struct eng_rig *rig = open_rig("loop", 2, 1, 256);
	struct eng_rank *me = &rig->rank[0];
	struct eng_probe *probe = &me->port[0].probe;
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	ep_engine_detach(me->port[0].engine, me->port[0].port, ep_deadline_ms(ENG_WAIT_MS));
	__atomic_store_n(&probe->room, 6, __ATOMIC_RELEASE);
	send_some(me, 1, 10, 1);
	CHECK(ep_engine_attach(me->port[0].engine, me->port[0].port) == 0, "attach");
	while (__atomic_load_n(&probe->room, __ATOMIC_ACQUIRE) > 1 && ep_now_ns() < end)
		usleep(100);
	CHECK(ep_port_quiet(me->port[0].port, ep_deadline_ms(10)) == -EP_ETIMEOUT, "six commands are pending");
	CHECK(eng_counts(me).puts == 5, "%llu puts", eng_counts(me).puts + 0ull);
	__atomic_store_n(&probe->refusal, -EIO, __ATOMIC_RELAXED);
	CHECK(wait_count(&me->peer_failed[1]), "no failure was reported");
	check_quiet(me, 1);
	CHECK(eng_counts(me).puts == 5 && eng_counts(me).dropped == 6, "%llu puts, %llu dropped",
	      eng_counts(me).puts + 0ull, eng_counts(me).dropped + 0ull);
	check_message(me, 1, -EIO);
	eng_close(rig);
}

/* Rank 1 is lost after so many puts, fewer than a window: otherwise its senders would wait for credits and never put
 * again, and so not notice. Traffic of rank 2 is complete in both directions. */
static void gone(const char *spec)
{
	struct eng_rig *rig = open_rig(spec, 3, 1, 256);
	struct eng_rank *me = &rig->rank[0];

	for (uint64_t k = 1; k <= 50; k++) {
		send_some(me, 1, 10, k);
		send_some(me, 2, 10, k);
		send_some(&rig->rank[2], 0, 10, k);
	}
	CHECK(eng_wait(&rig->rank[2], SIGNAL_AT(0), 50), "%s: rank 2 is affected", spec);
	CHECK(eng_wait(me, SIGNAL_AT(2), 50), "%s: rank 0 is affected", spec);
	check_quiet(me, 1);
	CHECK(failures(me, 1) == 1 && !failures(me, 2), "%s: %d and %d failures", spec, failures(me, 1),
	      failures(me, 2));
	check_message(me, 1, -EP_EREMOTE);
	CHECK(eng_counts(me).dropped > 0, "%s: nothing was dropped", spec);
	eng_close(rig);
}

/* Peers 0 and 2 use ring 0, peers 1 and 3 ring 1, which dies. */
static void dead_ring(const char *spec)
{
	struct eng_rig *rig = open_rig(spec, 4, 2, 256);
	struct eng_rank *me = &rig->rank[0];

	send_some(me, 1, 10, 1);
	eng_give_up(me, 1);
	CHECK(wait_count(&me->failed), "%s: no failure was reported", spec);
	CHECK(me->failed_err == -EP_ETIMEOUT && strstr(me->failed_why, "gave up"), "%d: %s", me->failed_err,
	      me->failed_why);
	CHECK(eng_wait(&rig->rank[1], SIGNAL_AT(0), 1), "%s: commands before the failure", spec);
	send_some(me, 2, 100, 7);
	CHECK(eng_wait(&rig->rank[2], SIGNAL_AT(0), 7), "%s: the other ring", spec);
	send_some(&rig->rank[1], 0, 100, 8);
	CHECK(eng_wait(me, SIGNAL_AT(1), 8), "%s: receiving", spec);
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	CHECK(me->failed == 1, "reported %d times", me->failed);
	eng_close(rig);
}

/* Invalid commands: what follows them in the ring is dropped. */
static void nonsense(struct ep_cmd cmd, const char *what)
{
	struct eng_rig *rig = open_rig("loop", 4, 2, 256);
	struct eng_rank *me = &rig->rank[0];

	send_some(me, 1, 3, 1);
	CHECK(eng_wait(&rig->rank[1], SIGNAL_AT(0), 1), "%s: commands before it", what);
	send_some(me, 2, 3, 1);
	CHECK(eng_push(me, 1, cmd) == 0, "push");
	CHECK(wait_count(&me->failed), "%s: accepted", what);
	CHECK(me->failed_err == -EP_EINTERNAL && strstr(me->failed_why, what), "%d: %s", me->failed_err,
	      me->failed_why);
	send_some(me, 1, 3, 2);
	send_some(me, 2, 3, 2);
	CHECK(eng_wait(&rig->rank[2], SIGNAL_AT(0), 2), "%s: the other ring", what);
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	CHECK(eng_word(&rig->rank[1], SIGNAL_AT(0)) == 1, "%s: the ring was used again", what);
	eng_close(rig);
}

/* A signal into the mail region: the receiver rejects it and names the sender. */
static void lies(uint64_t dst)
{
	struct eng_rig *rig = open_rig("loop:unordered=1", 3, 1, 256);
	struct eng_rank *me = &rig->rank[1];
	char address[24];

	CHECK(eng_signal(&rig->rank[0], 1, dst, 77) == 0, "push");
	CHECK(wait_count(&me->peer_failed[0]), "a signal to %#llx was accepted", dst + 0ull);
	check_message(me, 0, -EP_EREMOTE);
	snprintf(address, sizeof(address), "%#llx", dst + 0ull);
	CHECK(strstr(me->peer_why[0], address), "%s", me->peer_why[0]);
	send_some(&rig->rank[0], 1, 5, 5);
	send_some(&rig->rank[2], 1, 5, 5);
	CHECK(eng_wait(me, SIGNAL_AT(2), 5), "rank 2 is affected");
	usleep(20000);
	CHECK(eng_word(me, SIGNAL_AT(0)) == 0, "the peer was trusted again");
	CHECK(failures(me, 0) == 1 && !failures(me, 2), "%d failures", failures(me, 0));
	eng_close(rig);
}

/* The ring fills up, producers wait, nothing is dropped. */
static void stalled(const char *spec)
{
	struct eng_rig *rig = open_rig(spec, 2, 1, 128);
	struct eng_rank *me = &rig->rank[0];
	uint64_t start = ep_now_ns();

	__atomic_store_n(&me->port[0].probe.stall_ms, 1000, __ATOMIC_RELAXED);
	send_some(me, 1, 1000, 9);
	CHECK(ep_now_ns() - start > 900000000ull, "%s: the engine did not stall", spec);
	CHECK(eng_wait(&rig->rank[1], SIGNAL_AT(0), 9), "%s", spec);
	check_quiet(me, 1);
	CHECK(!failures(me, 1) && !me->failed && eng_counts(me).dropped == 0, "%s: a stall was reported as a failure",
	      spec);
	eng_close(rig);
}

/* No traffic with a peer: polling the net finds that it is lost. */
static void unseen(const char *spec)
{
	struct eng_rig *rig = open_rig(spec, 3, 1, 256);
	struct eng_rank *me = &rig->rank[0];

	snprintf(me->net_why, sizeof(me->net_why), "injected loss of rank 2");
	__atomic_store_n(&me->net_lost[2], true, __ATOMIC_RELEASE);
	CHECK(wait_count(&me->peer_failed[2]), "the net was not polled");
	check_message(me, 2, -EP_EREMOTE);
	CHECK(strstr(me->peer_why[2], "injected loss"), "\"%s\" is not the net's message", me->peer_why[2]);
	send_some(me, 1, 5, 7);
	send_some(me, 2, 5, 7);
	CHECK(eng_wait(&rig->rank[1], SIGNAL_AT(0), 7), "the other peer");
	check_quiet(me, 2);
	usleep(20000); /* polled again, reported once */
	CHECK(failures(me, 2) == 1 && !failures(me, 1), "reported %d and %d times", failures(me, 2), failures(me, 1));
	CHECK(eng_word(&rig->rank[2], SIGNAL_AT(0)) == 0, "something was sent to the lost peer");
	eng_close(rig);
}

int main(void)
{
	alarm(300);
	completions("faulty(loop):seed=11,fail=1000,delay=2", 20);
	completions("faulty(loop):seed=12,fail=1000,reorder=16", 20);
	completions("faulty(loop):seed=13,fail=100,delay=40", 1500); /* more than the net has room for */
	uncovered();
	gone("faulty(loop):drop=1,after=100");
	gone("faulty(loop):drop=1,after=20,reorder=16,delay=3");
	unseen("loop");
	unseen("loop:unordered=1");
	dead_ring("loop");
	dead_ring("loop:unordered=1");
	nonsense(ep_cmd_put(4, 0, 0, 16), "rank 4 of 4");
	nonsense(ep_cmd_put(2, 4096, AREA, 16), "must be one ring");
	nonsense(ep_cmd_put(1, 2 * AREA - 16, AREA, 32), "outside");
	nonsense(ep_cmd_put(1, 4096, 2 * AREA, 16), "outside");
	nonsense(ep_cmd_signal(1, EP_REGION_AT(2, 0), 3), "outside");
	nonsense((struct ep_cmd){ { 9 << 1, 0 } }, "invalid opcode 9");
	lies(EP_REGION_AT(1, 0));
	stalled("loop");
	stalled("loop:unordered=1");
	return check_result("engine_fail");
}
