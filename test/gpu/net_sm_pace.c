/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_sm_pace OPTIONS [emulated]: the net sm keeps the times of its model. Bytes take their time on the sender's wire
 * and on the receiver's, which senders share; nothing is delivered before the latency has passed; words become visible
 * in turn, and without order puts overtake each other, but an immediate says that all bytes of its put are there. A
 * context with few bytes does not wait for all those of another one. Only lower bounds: how much later they are depends
 * on the machine. OPTIONS are passed on: host=1, or sms=8. A second argument says that warps are emulated: then a turn
 * takes longer than what it is compared with.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/rig/net_rig.h"

enum { RANKS = 3, PUT = 16384, PUTS = 32, ROUNDS = 200, BYTES = RANKS * PUTS * PUT, LARGE = 8 };
#define WIRE_NS ((uint64_t)PUTS * PUT * 8) /* of one rank's puts at 1 Gb/s */

static uint64_t least_ns; /* that the run must take */
static int targets[RANKS];
static unsigned overtaken;
static uint64_t began; /* when the first rank began to send */

struct arrivals {
	unsigned total, next, overtaken;
};

static void arrived(struct net_rank *me, uint32_t imm, void *arg)
{
	struct arrivals *in = arg;

	(void)me;
	in->overtaken += imm < in->next;
	in->next = imm;
	in->total++;
}

static void send(struct net_rank *me, uint32_t size, struct arrivals *in)
{
	for (uint32_t i = 0; i < PUTS; i++) {
		ncclEpNetPut_v1_t put = {
			.peer = targets[me->rank],
			.flags = NCCL_EP_NET_IMM | (i + 1 < PUTS ? NCCL_EP_NET_QUIET : 0),
			.imm = i,
			.srcMr = me->mr,
			.dstMr = me->mr,
			.srcOffset = (uint64_t)i * PUT,
			.dstOffset = ((uint64_t)me->rank * PUTS + i) * PUT,
			.size = size,
		};

		EXPECT(me, net_put(me, &put, arrived, in) == 0);
	}
}

static void run(struct net_rank *me, uint32_t size)
{
	struct arrivals in = { 0 };
	unsigned expected = 0;
	uint64_t none = 0;

	for (int r = 0; r < RANKS; r++)
		expected += targets[r] == me->rank ? PUTS : 0;
	net_meet(me);
	__atomic_compare_exchange_n(&began, &none, ep_now_ns(), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	if (targets[me->rank] >= 0)
		send(me, size, &in);
	NET_UNTIL(me, in.total == expected, arrived, &in);
	/* Receivers too: the immediates come with the bytes. */
	if (expected)
		EXPECT(me, ep_now_ns() - __atomic_load_n(&began, __ATOMIC_RELAXED) >= least_ns);
	__atomic_fetch_add(&overtaken, in.overtaken, __ATOMIC_RELAXED);
	net_meet(me);
}

static void run_rows(struct net_rank *me)
{
	run(me, PUT);
}

static void run_words(struct net_rank *me)
{
	run(me, 8);
}

static uint64_t word_get(struct net_rank *me, unsigned i)
{
	return __atomic_load_n((const uint64_t *)(const void *)me->mem + i, __ATOMIC_ACQUIRE);
}

/* Rank 1 takes no immediate before the last of many has been delivered. */
static void run_late(struct net_rank *me)
{
	struct arrivals in = { 0 };

	for (int i = 0; i < 4 && me->rank == 0; i++)
		send(me, 8, &in);
	net_meet(me);
	NET_UNTIL(me, in.total == (me->rank == 1 ? 4 * PUTS : 0), arrived, &in);
	net_meet(me);
}

/* Rank 1 polls words as a device would: when one is there, so are all before it. */
static void turns_check(struct net_rank *me, uint64_t round)
{
	int top = PUTS - 1;

	while (top >= 0 && word_get(me, (unsigned)top) != round)
		top--;
	for (int i = 0; i < top; i++)
		EXPECT(me, word_get(me, (unsigned)i) == round);
}

static void run_turns(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .peer = 1, .dstMr = me->mr, .size = 8 };

	for (uint64_t round = 1; round <= ROUNDS; round++) {
		net_meet(me);
		for (unsigned i = 0; i < PUTS && me->rank == 0; i++) {
			put.src = &round;
			put.flags = NCCL_EP_NET_INLINE | (i + 1 < PUTS ? NCCL_EP_NET_QUIET : 0);
			put.dstOffset = 8 * (uint64_t)i;
			EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
		}
		while (me->rank == 1 && word_get(me, PUTS - 1) != round && !me->errors)
			turns_check(me, round);
	}
	net_meet(me);
}

/* The first context's puts take their time on the wire: all but the last without a completion. */
static void *shares_begin(struct net_rank *me, ncclEpNetPut_v1_t *put)
{
	void *request = NULL;

	EXPECT(me, net_put(me, put, NULL, NULL) == 0); /* the kernel runs */
	put->size = BYTES;
	for (int i = 1; i <= LARGE; i++) {
		put->flags = i < LARGE ? NCCL_EP_NET_QUIET : 0;
		EXPECT(me, me->hot->iput(me->ctx, put, &request) == 0 && request);
	}
	put->size = PUT;
	usleep(5000); /* it has begun with them */
	return request;
}

/* Rank 0 puts one row by a second context after megabytes by the first, and it arrives before the last of them. */
static void run_shares(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .peer = 1, .srcMr = me->mr, .dstMr = me->mr, .size = PUT };
	void *first = me->ctx, *second = NULL, *request;
	int done = 0;

	if (me->rank == 0) /* before the first put: a kernel serves the contexts that were there at its start */
		EXPECT(me, me->net->ops.createContext(me->comm, 1, &second) == 0);
	net_meet(me);
	if (second) {
		request = shares_begin(me, &put);
		me->ctx = second;
		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
		me->ctx = first;
		net_step(me, NULL, NULL);
		EXPECT(me, me->hot->test(first, request, &done) == 0);
		__atomic_fetch_add(&overtaken, !done, __ATOMIC_RELAXED);
		EXPECT(me, done || net_end(me, request, NULL, NULL) == 0);
		EXPECT(me, me->net->ops.destroyContext(second) == 0);
	}
	net_meet(me);
}

/* Larger than what one warp copies, and its last piece is by far the smallest. */
enum { LONG = 5 * 131072 + 64, LONGS = 40 };

static void long_arrived(struct net_rank *me, uint32_t imm, void *arg)
{
	const uint64_t *word = (const uint64_t *)(const void *)(me->mem + BYTES / 2);
	bool all = true;

	for (size_t i = 0; i < LONG / 8; i++)
		all &= word[i] == imm;
	EXPECT(me, all);
	*(uint32_t *)arg = imm;
}

/* Each rank to the next one: contexts choose among the pieces differently. An immediate that came too early shows on a
 * GPU only: on the CPU device the copies are done before the host looks. */
static void run_long(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = {
		.peer = (me->rank + 1) % RANKS,
		.flags = NCCL_EP_NET_IMM,
		.srcMr = me->mr,
		.dstMr = me->mr,
		.dstOffset = BYTES / 2,
		.size = LONG,
	};
	uint32_t last = 0;

	for (put.imm = 1; put.imm <= LONGS; put.imm++) {
		for (size_t i = 0; i < LONG / 8; i++)
			((uint64_t *)(void *)me->mem)[i] = put.imm;
		net_meet(me);
		EXPECT(me, net_put(me, &put, long_arrived, &last) == 0);
		NET_UNTIL(me, last == put.imm, long_arrived, &last);
		net_meet(me);
	}
}

static const struct {
	const char *options;
	int targets[RANKS]; /* of each rank; -1: sends nothing */
	uint64_t least_ns;
	void (*run)(struct net_rank *);
	bool shuffled;
} cases[] = {
	/* latency, the sender's wire, both, the receiver's wire, a ring of wires; words in turn; a wire that two
	 * contexts share; no order, where the latency is the mean; immediates that nobody takes; puts of several
	 * pieces */
	{ "latency=3000000", { 1, -1, -1 }, 3000000, run_words, false },
	{ "rate=1", { 1, -1, -1 }, WIRE_NS, run_rows, false },
	{ "rate=1,latency=3000000", { 1, -1, -1 }, WIRE_NS + 3000000, run_rows, false },
	{ "rate=1", { 2, 2, -1 }, 2 * WIRE_NS, run_rows, false },
	{ "rate=1", { 1, 2, 0 }, WIRE_NS, run_rows, false },
	{ "latency=20000", { 1, -1, -1 }, 0, run_turns, false },
	{ "rate=1", { 1, -1, -1 }, 0, run_shares, true },
	{ "latency=20000000,unordered=1", { 1, -1, -1 }, 14999500, run_rows, true },
	{ "latency=20000000,unordered=1", { 1, -1, -1 }, 14999500, run_words, true },
	{ "unordered=1", { 1, -1, -1 }, 0, run_late, false },
	{ "unordered=1", { 1, 2, 0 }, 0, run_long, false },
	{ "latency=5000", { 1, 2, 0 }, 0, run_long, false },
};

/* Puts that come one by one, as on a busy machine, cannot overtake each other: one of so many runs must show it. */
#define TRIES 20

int main(int argc, char **argv)
{
	int errors = 0;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct net_case test = { .ranks = RANKS, .bytes = BYTES, .run = cases[i].run };
		char spec[128];
		int tries = 0;

		if (argc > 2 && cases[i].run == run_shares)
			continue;
		snprintf(spec, sizeof(spec), "sm:%s,%s", argc > 1 ? argv[1] : "host=1", cases[i].options);
		test.spec = spec;
		least_ns = cases[i].least_ns;
		memcpy(targets, cases[i].targets, sizeof(targets));
		overtaken = 0;
		do {
			began = 0;
			errors += net_run(&test);
		} while (cases[i].shuffled && !overtaken && !errors && ++tries < TRIES);
		if (cases[i].shuffled && !overtaken) {
			fprintf(stderr, "%s: puts arrived in order\n", spec);
			errors++;
		}
	}
	return errors != 0;
}
