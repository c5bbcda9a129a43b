/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_gone [-t] [SPEC...]: peers that are killed or close, memory that cannot be shared, invalid handles: each gives a
 * message, and nothing hangs. -t: only cases that work with threads. Without a SPEC: loop, with its own cases. 77: the
 * first net has no device.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/rig/net_rig.h"
#include "util/error.h"

enum { BYTES = 8192 };

/* The last process, with all its ranks, is killed by the first rank. */
static void killed(struct net_rank *me)
{
	int first = me->nranks - me->test->each;

	EXPECT(me, net_put_to(me, me->nranks - 1) == 0);
	net_meet(me);
	while (me->rank >= first)
		pause();
	if (me->rank == 0) {
		for (int r = first; r < me->nranks; r++)
			net_leave(me);
		EXPECT(me, kill(net_pid(me, first), SIGKILL) == 0);
	}
	for (int r = first; r < me->nranks; r++)
		net_see_loss(me, r, !me->rank);
}

/* Rank 1 closes its comm before the others. */
static void closed(struct net_rank *me)
{
	EXPECT(me, net_put_to(me, 1) == 0);
	net_meet(me);
	if (me->rank == 1)
		net_close_early(me);
	else
		net_see_loss(me, 1, me->rank ? 0 : 2);
	net_meet(me);
}

/* Memory without a descriptor can be shared by threads; between processes it is refused with a message. */
static void hidden(struct net_rank *me)
{
	EXPECT(me, me->share_rc == (me->test->each ? -EPERM : 0));
	EXPECT(me, !me->share_rc || strstr(me->message, "without a descriptor"));
	EXPECT(me, net_put_to(me, 1) == (me->test->each ? -EINVAL : 0));
}

static void refused(struct net_rank *me)
{
	ncclEpNetMem_v1_t good = { .ptr = me->mem, .size = 4096, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 }, bad;
	uint8_t key[2][NCCL_EP_NET_KEY_SIZE], junk[NCCL_EP_NET_HANDLE_SIZE];
	void *mr = NULL, *other = NULL, *listener = NULL, *comm = NULL;
	const ncclEpNet_v1_t *ops = &me->net->ops;

	bad = good;
	bad.kind = NCCL_EP_NET_MEM_CUDA;
	if (!(me->props.memKinds & NCCL_EP_NET_MEM_CUDA))
		EXPECT(me, ops->regMr(me->comm, &bad, key[0], &mr) == -EPERM && strstr(ep_last_error(), "host memory"));
	bad = good;
	bad.size = 0;
	EXPECT(me, ops->regMr(me->comm, &bad, key[0], &mr) == -EINVAL);
	bad = good;
	bad.fd = 9999;
	if (!strcmp(me->test->spec, "loop")) /* other nets ignore the descriptor */
		EXPECT(me, ops->regMr(me->comm, &bad, key[0], &mr) == -EINVAL);
	if (!me->props.dmaBuf)
		EXPECT(me, !mr && ops->regMrDmaBuf(me->comm, &good, key[0], &mr) == -ENOTSUP && !mr);
	/* Sizes differ between ranks: a peer could write past the end of the smaller one. */
	EXPECT(me, ops->regMr(me->comm, &good, key[0], &mr) == 0);
	good.size = 2048;
	EXPECT(me, ops->regMr(me->comm, &good, key[1], &other) == 0);
	EXPECT(me, ops->shareMr(me->comm, mr, key) == -EREMOTEIO && strstr(ep_last_error(), "rank 1"));
	EXPECT(me, ops->deregMr(me->comm, mr) == 0 && ops->deregMr(me->comm, other) == 0);
	memset(junk, 0x5a, sizeof(junk));
	EXPECT(me, ops->listen(me->net->net, 0, 1, key, &listener) == 0);
	EXPECT(me, ops->connect(listener, junk, 1, 0, &comm) == -EREMOTEIO && !comm);
	EXPECT(me, ops->closeListen(listener) == 0);
	EXPECT(me, ops->createContext(me->comm, 1 << 20, &comm) == -EINVAL && !comm);
}

/* A receiver that does not poll: the sender has no room for a while, and nothing is lost. */
enum { UNSEEN = 4096, PUTS = 20000 }; /* the last is not quiet */
_Static_assert(PUTS % 16 == 0, "it covers");

static void count_take(struct net_rank *me, uint32_t imm, void *arg)
{
	unsigned *next = arg;

	EXPECT(me, !me->props.ordered || imm == *next);
	++*next;
}

static void deaf(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = {
		.peer = 1,
		.flags = NCCL_EP_NET_IMM,
		.srcMr = me->mr,
		.dstMr = me->mr,
		.dstOffset = 4096,
		.size = 8,
	};
	static void *requests[UNSEEN];
	unsigned next = 0, sent = 0;

	EXPECT(me, me->rank || net_put_to(me, 1) == 0); /* connects nets that do so by the first put */
	for (void *request = &put; me->rank == 0 && request && sent < UNSEEN; sent += request != NULL) {
		put.imm = sent;
		EXPECT(me, me->hot->iput(me->ctx, &put, &request) == 0);
		requests[sent] = request;
	}
	EXPECT(me, me->rank || (sent >= 128 && sent < UNSEEN));
	net_meet(me);
	for (unsigned i = 0; i < sent; i++)
		EXPECT(me, net_end(me, requests[i], NULL, NULL) == 0);
	for (; me->rank == 0 && sent < PUTS; sent++) {
		put.imm = sent;
		put.flags = NCCL_EP_NET_IMM | (sent % 16 == 15 ? 0 : NCCL_EP_NET_QUIET);
		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
	}
	if (me->rank == 1)
		NET_UNTIL(me, next == PUTS, count_take, &next);
}

/* spec NULL: the one on the command line. */
static const struct net_case cases[] = {
	{ .ranks = 3, .bytes = BYTES, .run = closed },
	{ .ranks = 2, .bytes = BYTES, .run = refused },
	{ .ranks = 2, .bytes = BYTES, .run = deaf },
	{ .spec = "loop", .ranks = 2, .bytes = BYTES, .run = hidden, .hidden = true },
	/* Processes. */
	{ .ranks = 3, .bytes = BYTES, .run = killed, .each = 1 },
	{ .ranks = 4, .bytes = BYTES, .run = killed, .each = 2 },
	{ .spec = "faulty(loop):reorder=4", .ranks = 3, .bytes = BYTES, .run = killed, .each = 1 },
	{ .ranks = 3, .bytes = BYTES, .run = closed, .each = 1 },
	{ .spec = "loop", .ranks = 2, .bytes = BYTES, .run = hidden, .hidden = true, .each = 1 },
	{ .ranks = 2, .bytes = BYTES, .run = deaf, .each = 1 },
};

/* own: also the cases for loop only. */
static int spec_run(const char *spec, bool threads, bool own)
{
	int errors = 0;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct net_case test = cases[i];

		if ((threads && test.each) || (test.spec && !own))
			continue;
		if (!test.spec)
			test.spec = spec;
		errors += net_run(&test);
	}
	return errors;
}

int main(int argc, char **argv)
{
	bool threads = argc > 1 && !strcmp(argv[1], "-t");
	int errors = 0, first = threads ? 2 : 1;

	if (first == argc)
		return spec_run("loop", threads, true) != 0;
	if (net_absent(argv[first]))
		return 77;
	for (int i = first; i < argc; i++)
		errors += spec_run(argv[i], threads, false);
	return errors != 0;
}
