/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer sends is not trusted: credits for puts that were never made, numbers outside the window, unknown senders,
 * numbers that arrive twice. A rank that lies is lost with a message that names it, others are not affected. Also a net
 * context that fails, and ports that cannot be opened. Exit status 0 or 1.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proxy/order.h"
#include "proxy/port.h"
#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define AREA 65536u
#define WINDOW 64u
#define RANKS 3
#define SIGNAL_AT(from) ((uint64_t)(from) * 16)

static struct eng_rig *open_rig(void)
{
	struct eng_opts o = { .spec = "loop:unordered=1",
			      .ranks = RANKS,
			      .bytes = 2 * AREA,
			      .window = WINDOW,
			      .max_inline = ENG_INLINE_MAX };

	return eng_open(&o);
}

static bool wait_count(const int *count)
{
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	while (__atomic_load_n(count, __ATOMIC_ACQUIRE) == 0 && ep_now_ns() < end)
		usleep(100);
	return __atomic_load_n(count, __ATOMIC_ACQUIRE) != 0;
}

/* Rank 0 by hand, without its port: a letter in rank 1's mail, in the slot of its number. */
static void letter(struct eng_rig *rig, struct ep_order_put number, struct port_mail mail)
{
	struct eng_port *p = &rig->rank[0].port[0];
	struct ep_order order;
	ncclEpNetPut_v1_t put = { .peer = 1,
				  .flags = NCCL_EP_NET_INLINE | NCCL_EP_NET_IMM,
				  .src = &mail,
				  .dstMr = rig->rank[0].regions.region[1].mr,
				  .dstOffset = (number.seq % WINDOW) * sizeof(mail),
				  .size = sizeof(mail) };
	void *request = NULL;

	CHECK(ep_order_init(&order, RANKS, WINDOW, 0) == 0, "%s", ep_last_error());
	put.imm = ep_order_pack(&order, number);
	ep_order_free(&order);
	CHECK(rig->rank[0].net->hot.iput(p->probe.ctx, &put, &request) == 0 && request, "%s", ep_last_error());
}

static struct eng_rig *open_liar(void)
{
	struct eng_rig *rig = open_rig();
	struct eng_port *p = &rig->rank[0].port[0];

	CHECK(ep_engine_detach(p->engine, p->port, ep_deadline_ms(ENG_WAIT_MS)) == 0, "%s", ep_last_error());
	return rig;
}

static void close_liar(struct eng_rig *rig, int lost)
{
	struct eng_rank *me = &rig->rank[1];

	CHECK(eng_signal(&rig->rank[2], 1, SIGNAL_AT(2), 7) == 0, "push");
	CHECK(eng_wait(me, SIGNAL_AT(2), 7), "rank 2 is affected");
	CHECK(me->peer_failed[0] == lost && !me->peer_failed[2] && !me->failed, "%d and %d failures",
	      me->peer_failed[0], me->peer_failed[2]);
	eng_close(rig);
}

/* The message must contain `says`. */
static void lie(struct ep_order_put number, struct port_mail mail, const char *says)
{
	struct eng_rig *rig = open_liar();
	struct eng_rank *me = &rig->rank[1];

	letter(rig, number, mail);
	CHECK(wait_count(&me->peer_failed[0]), "accepted: %s", says);
	CHECK(strstr(me->peer_why[0], "rank 0") && strstr(me->peer_why[0], says), "%s", me->peer_why[0]);
	close_liar(rig, 1);
}

/* Ignored: neither is a lie for certain. The first letter of a number counts, the second does not. */
static void odd(void)
{
	struct eng_rig *rig = open_liar();
	struct eng_rank *me = &rig->rank[1];

	letter(rig, (struct ep_order_put){ RANKS, 0, true }, (struct port_mail){ SIGNAL_AT(0), 1 });
	letter(rig, (struct ep_order_put){ 0, 0, true }, (struct port_mail){ SIGNAL_AT(0), 5 });
	CHECK(eng_wait(me, SIGNAL_AT(0), 5), "a letter of rank 0");
	letter(rig, (struct ep_order_put){ 0, 0, true }, (struct port_mail){ SIGNAL_AT(0), 9 });
	letter(rig, (struct ep_order_put){ 0, 1, true }, (struct port_mail){ SIGNAL_AT(1), 6 });
	CHECK(eng_wait(me, SIGNAL_AT(1), 6), "the next letter");
	CHECK(eng_word(me, SIGNAL_AT(0)) == 5, "a number was used twice");
	close_liar(rig, 0);
}

/* The context fails: the port stops and says so once; what is pushed later is dropped. */
static void context_fails(const char *text)
{
	struct eng_rig *rig = open_rig();
	struct eng_rank *me = &rig->rank[0];

	me->port[0].probe.text = text;
	__atomic_store_n(&me->port[0].probe.progress_rc, -EIO, __ATOMIC_RELEASE);
	CHECK(wait_count(&me->failed), "no failure was reported");
	CHECK(me->failed_err == -EIO && strstr(me->failed_why, text ? text : "rank 0: network context failed"),
	      "%d: %s", me->failed_err, me->failed_why);
	for (int i = 0; i < 10; i++)
		CHECK(eng_put(me, 1, 4096, AREA, 32) == 0, "push");
	CHECK(eng_quiet(me) == 0 && eng_counts(me).dropped == 10, "%llu dropped", eng_counts(me).dropped + 0ull);
	CHECK(me->failed == 1, "reported %d times", me->failed);
	eng_close(rig);
}

/* Each wrong in one thing. */
static void ports_refused(void)
{
	static uint8_t memory[1 << 20];
	static struct ep_regions regions = { .count = 1, .region = { { .host = memory, .size = sizeof(memory) } } };
	static const struct ep_port_peer peer[] = { { 0, 0 }, { 1, 1 } };
	static const struct ep_port_peer beyond[] = { { 0, 0 }, { 2, 1 } }, twice[] = { { 1, 0 }, { 1, 1 } };
	static const struct ep_port_peer elsewhere[] = { { 0, 0 }, { 1, 2 } };
	const struct ep_port_opts good = {
		.nranks = 2, .peer = peer, .peers = 2, .seats = 2, .window = 64, .max_put = 4096, .regions = &regions
	};
	struct ep_port_opts bad[12];
	struct ep_port *port = NULL;

	for (int i = 0; i < 12; i++)
		bad[i] = good;
	bad[0].nranks = 0;
	bad[1].rank = 2;
	bad[2].nranks = EP_CMD_CHANNELS + 1;
	bad[3].rings = -1;
	bad[4].max_put = 8;
	bad[5].window = 96;
	bad[6].mail = 1;
	bad[7].window = 1u << 20; /* more mail than the region holds */
	bad[8].peer = beyond;
	bad[9].peer = twice;
	bad[10].peer = elsewhere;
	bad[11].seats = 1;
	for (int i = 0; i < 12; i++) {
		ep_last_error_set("");
		CHECK(ep_port_open(&bad[i], &port) == -EP_EARG && !port && ep_last_error()[0], "case %d", i);
	}
	CHECK(ep_port_open(&good, &port) == 0, "%s", ep_last_error());
	ep_port_close(port);
}

int main(void)
{
	alarm(120);
	lie((struct ep_order_put){ 0, 0, true }, (struct port_mail){ PORT_CREDIT, 1000 }, "acknowledged 1000 puts");
	lie((struct ep_order_put){ 0, WINDOW, false }, (struct port_mail){ 0, 0 }, "outside the window");
	lie((struct ep_order_put){ 0, 0, true }, (struct port_mail){ SIGNAL_AT(0) + 4, 1 }, "invalid address");
	odd();
	context_fails(NULL);
	context_fails("injected: the NIC is gone");
	ports_refused();
	return check_result("engine_lies");
}
