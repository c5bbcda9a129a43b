/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_order [-f] [-x] [-g] SPEC...: P3 of nccl_ep_net.h. A stream of numbered puts to a peer fails: every later put
 * fails too and, on an ordered net, what arrived is a prefix of the stream. The peer closes its comm; -f: the net fails
 * by itself. -g: processes. -x: the net must be found to break the rule. 77: the first net has no device.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/rig/net_rig.h"

enum { SLOTS = 16384, DEPTH = 32, FIRST = 512, MORE = 64, BYTES = 8 * SLOTS };

static bool by_itself; /* option -f */

struct stream {
	uint64_t words[SLOTS];
	void *open[DEPTH];
	unsigned put, tested; /* so many, in this order */
	unsigned failed;      /* the first that failed, or UINT32_MAX */
	unsigned known;	      /* puts made when that was known */
};

static void result_take(struct net_rank *me, struct stream *s, unsigned i, int rc)
{
	if (rc && s->failed == UINT32_MAX) {
		s->failed = i;
		s->known = s->put;
	}
	EXPECT(me, rc != -ETIMEDOUT);
	if (s->failed != UINT32_MAX && i > (me->props.ordered ? s->failed : s->known))
		EXPECT(me, rc != 0);
}

static void stream_test(struct net_rank *me, struct stream *s)
{
	void *request = s->open[s->tested % DEPTH];

	if (request)
		result_take(me, s, s->tested, net_end(me, request, NULL, NULL));
	s->tested++;
}

/* Each put has a word of its own until they run out. */
static void stream_put(struct net_rank *me, struct stream *s)
{
	uint64_t end = ep_deadline_ms(NET_WAIT_MS), at = s->put < SLOTS ? s->put : SLOTS - 1;
	ncclEpNetPut_v1_t put = { .peer = 1, .srcMr = me->mr, .dstMr = me->mr, .size = 8 };
	void *request = NULL;
	int rc = 0;

	if (s->put - s->tested == DEPTH)
		stream_test(me, s);
	put.srcOffset = put.dstOffset = 8 * at;
	while (!request && !rc && ep_now_ns() < end) {
		rc = me->hot->iput(me->ctx, &put, &request);
		if (!request && !rc)
			net_step(me, NULL, NULL);
	}
	s->open[s->put % DEPTH] = request;
	s->put++;
	if (!request)
		result_take(me, s, s->put - 1, rc ? rc : -ETIMEDOUT);
}

static void send_all(struct net_rank *me)
{
	static struct stream s;
	uint64_t end;

	s = (struct stream){ .failed = UINT32_MAX };
	for (uint64_t i = 0; i < SLOTS; i++)
		((uint64_t *)(void *)me->mem)[i] = i + 1;
	while (s.put < FIRST)
		stream_put(me, &s);
	net_meet(me);
	for (end = ep_deadline_ms(NET_WAIT_MS); s.failed == UINT32_MAX && ep_now_ns() < end; sched_yield()) {
		stream_put(me, &s);
		net_step(me, NULL, NULL);
	}
	EXPECT(me, s.failed != UINT32_MAX);
	for (int i = 0; i < MORE; i++)
		stream_put(me, &s);
	while (s.tested < s.put)
		stream_test(me, &s);
}

static uint64_t word(struct net_rank *me, unsigned i)
{
	return __atomic_load_n((uint64_t *)(void *)me->mem + i, __ATOMIC_ACQUIRE);
}

/* Puts may fail before the first ones have arrived only if the net fails by itself. */
static void receive(struct net_rank *me)
{
	if (!by_itself)
		NET_UNTIL(me, word(me, FIRST - 1), NULL, NULL);
	net_meet(me);
	if (!by_itself)
		net_close_early(me);
}

static void stream(struct net_rank *me)
{
	unsigned n = 0;

	if (me->rank == 0)
		send_all(me);
	else
		receive(me);
	net_meet(me);
	if (me->rank == 0 || !me->props.ordered)
		return;
	while (n < SLOTS && word(me, n) == n + 1)
		n++;
	EXPECT(me, n > 0);
	for (unsigned i = n; i < SLOTS; i++)
		EXPECT(me, word(me, i) == 0); /* or it arrived after a gap */
}

int main(int argc, char **argv)
{
	bool breaks = false;
	int errors = 0, each = 0, c;

	while ((c = getopt(argc, argv, "fxg")) != -1) {
		by_itself |= c == 'f';
		breaks |= c == 'x';
		each = c == 'g' ? 1 : each;
	}
	if (optind == argc)
		return 1;
	if (net_absent(argv[optind]))
		return 77;
	for (int i = optind; i < argc; i++) {
		struct net_case test = { .spec = argv[i], .ranks = 2, .each = each, .bytes = BYTES, .run = stream };
		int found = net_run(&test);

		errors += breaks ? !found : found;
	}
	return errors != 0;
}
