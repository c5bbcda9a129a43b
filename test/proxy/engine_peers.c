/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports that put to some ranks only, not equally many each: what peers exchange arrives, with as much mail as the rank
 * with most peers needs; tables grow with the peers; a command for another rank stops its ring with a message that
 * names it; puts of a sender that is no peer are ignored. Exit status 0 or 1.
 */
#include <string.h>
#include <unistd.h>

#include "proxy/port.h"
#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define RANKS 7
#define HUB 5 /* a peer of all others; they are peers by parity */
#define WINDOW 64u
#define ROUNDS 300 /* more than a window: credits must come back */
#define ROW 64u
#define WORD_AT(from) ((uint64_t)(from) * 16)
#define ROW_AT(from) (4096 + (uint64_t)(from) * ROW)
#define OUT_AT 8192u

static bool is_peer(int a, int b)
{
	return a != b && (a % 2 == b % 2 || a == HUB || b == HUB);
}

static bool wait_failed(struct eng_rank *me)
{
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	while (!__atomic_load_n(&me->failed, __ATOMIC_ACQUIRE) && ep_now_ns() < end)
		usleep(100);
	return __atomic_load_n(&me->failed, __ATOMIC_ACQUIRE) != 0;
}

static void rank_run(struct eng_rank *me)
{
	for (int i = 1; i <= ROUNDS; i++) {
		for (int r = 0; r < RANKS; r++) {
			if (!is_peer(me->rank, r))
				continue;
			memset(me->mem + OUT_AT + ROW * (uint64_t)r, 16 * me->rank + i, ROW);
			CHECK(eng_put(me, r, ROW_AT(me->rank), OUT_AT + ROW * (uint64_t)r, ROW) == 0 &&
				      eng_signal(me, r, WORD_AT(me->rank), (uint64_t)i) == 0,
			      "push to rank %d", r);
		}
		CHECK(eng_quiet(me) == 0, "rank %d: %s", me->rank, ep_last_error()); /* its rows are free */
	}
	for (int r = 0; r < RANKS; r++) {
		uint32_t wrong = 0;

		if (!is_peer(me->rank, r))
			continue;
		CHECK(eng_wait(me, WORD_AT(r), ROUNDS), "rank %d: no signal of rank %d", me->rank, r);
		for (uint32_t k = 0; k < ROW; k++)
			wrong += me->mem[ROW_AT(r) + k] != (uint8_t)(16 * r + ROUNDS);
		CHECK(!wrong, "rank %d: %u bytes of rank %d", me->rank, wrong, r);
	}
}

static struct eng_rig *rig_open(const char *spec, uint32_t max_inline)
{
	struct eng_opts o = { .spec = spec,
			      .ranks = RANKS,
			      .ports = 2,
			      .rings = 2,
			      .bytes = 16384,
			      .window = WINDOW,
			      .max_inline = max_inline,
			      .peers = is_peer };

	return eng_open(&o);
}

static void exchange(const char *spec, uint32_t max_inline)
{
	struct eng_rig *rig = rig_open(spec, max_inline);

	CHECK(eng_seats(rig) == RANKS - 1, "%u seats", eng_seats(rig));
	eng_run(rig, rank_run);
	for (int r = 0; r < RANKS; r++)
		CHECK(!rig->rank[r].failed, "rank %d: %s", r, rig->rank[r].failed_why);
	eng_close(rig);
}

/* Rank 0 has ranks 2, 4, 5 and 6. */
static void not_a_peer(void)
{
	struct eng_rig *rig = rig_open("loop", ENG_INLINE_MAX);
	struct eng_rank *me = &rig->rank[0];

	CHECK(eng_signal(me, 3, WORD_AT(0), 1) == 0, "push");
	CHECK(wait_failed(me), "a command for rank 3 is accepted");
	CHECK(strstr(me->failed_why, "rank 0: command for rank 3 of 7, which it does not put to"), "%s",
	      me->failed_why);
	CHECK(eng_word(&rig->rank[3], WORD_AT(0)) == 0, "and arrives");
	eng_close(rig);
}

/* By hand, without a port: rank 1 signals to rank 0, which has peers 0 to 3, as its peer 4. */
static void stranger(void)
{
	struct eng_rig *rig = rig_open("loop:unordered=1", ENG_INLINE_MAX);
	struct port_mail mail = { WORD_AT(1), 9 };
	struct ep_order order;
	ncclEpNetPut_v1_t put = { .peer = 0,
				  .flags = NCCL_EP_NET_INLINE | NCCL_EP_NET_IMM,
				  .src = &mail,
				  .dstMr = rig->rank[1].regions.region[1].mr,
				  .dstOffset = 4 * WINDOW * sizeof(mail),
				  .size = sizeof(mail) };
	struct eng_port *port = &rig->rank[1].port[0];
	void *request = NULL;

	CHECK(ep_engine_detach(port->engine, port->port, ep_deadline_ms(ENG_WAIT_MS)) == 0, "%s", ep_last_error());
	CHECK(ep_order_init(&order, eng_seats(rig), WINDOW, 0) == 0, "%s", ep_last_error());
	put.imm = ep_order_pack(&order, (struct ep_order_put){ 4, 0, true });
	ep_order_free(&order);
	CHECK(rig->rank[1].net->hot.iput(port->probe.ctx, &put, &request) == 0 && request, "%s", ep_last_error());
	CHECK(eng_signal(&rig->rank[2], 0, WORD_AT(2), 1) == 0 && eng_wait(&rig->rank[0], WORD_AT(2), 1), "rank 2");
	CHECK(ep_port_look(rig->rank[0].port[0].port, ep_deadline_ms(ENG_WAIT_MS)) == 0, "%s", ep_last_error());
	CHECK(eng_word(&rig->rank[0], WORD_AT(1)) == 0 && !rig->rank[0].failed, "a stranger's signal was stored");
	eng_close(rig);
}

/* 63 peers of 512 ranks, as on 64 nodes of 8. */
static void tables(void)
{
	static struct ep_regions regions;
	static struct ep_port_peer peer[511];
	struct ep_port_opts o = { .nranks = 512, .peer = peer, .window = 512, .max_put = 4096, .regions = &regions };
	struct ep_port *few = NULL, *all = NULL;
	static uint8_t none;

	regions.count = 1;
	regions.region[0] = (struct ep_region){ .host = &none, .size = ep_port_mail_size(511, 512) };
	for (int i = 0; i < 511; i++)
		peer[i] = (struct ep_port_peer){ i + 1, 0 };
	o.peers = o.seats = 511;
	CHECK(ep_port_open(&o, &all) == 0, "%s", ep_last_error());
	o.peers = o.seats = 63;
	CHECK(ep_port_open(&o, &few) == 0, "%s", ep_last_error());
	if (!few || !all)
		return;
	printf("# 512 ranks: mail and tables of a port with 63 peers %zu + %zu KiB, with 511 %zu + %zu KiB\n",
	       ep_port_mail_size(63, 512) >> 10, ep_port_bytes(few) >> 10, ep_port_mail_size(511, 512) >> 10,
	       ep_port_bytes(all) >> 10);
	CHECK(ep_port_bytes(few) < 32 << 10 && ep_port_mail_size(63, 512) < 1 << 20, "%zu and %zu bytes",
	      ep_port_bytes(few), ep_port_mail_size(63, 512));
	ep_port_close(few);
	ep_port_close(all);
}

int main(void)
{
	exchange("loop", ENG_INLINE_MAX);
	exchange("loop:unordered=1", ENG_INLINE_MAX);
	exchange("loop:unordered=1", 0); /* signals leave from the mail region */
	exchange("faulty(loop):seed=4,reorder=16,delay=3", ENG_INLINE_MAX);
	not_a_peer();
	stranger();
	tables();
	return check_result("engine_peers");
}
