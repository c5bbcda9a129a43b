/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that die or close, memory that cannot be shared, handles of nobody: a sentence each, and nobody waits for ever.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net_rig.h"
#include "util/error.h"

enum { BYTES = 8192 };

static int put_to(struct net_rank *me, int peer)
{
	ncclEpNetPut_v1_t put = { .peer = peer, .srcMr = me->mr, .dstMr = me->mr, .size = 64 };

	put.dstOffset = 4096 + 64 * (uint64_t)me->rank;
	return net_put(me, &put, NULL, NULL);
}

/* Puts to the lost rank fail in the end, puts to the other never do. */
static void loss_see(struct net_rank *me, int lost, int other)
{
	uint64_t end = ep_deadline_ms(NET_WAIT_MS);
	char name[32];
	const char *why = "";
	int rc = 0;

	snprintf(name, sizeof(name), "rank %d", lost);
	while (!rc && ep_now_ns() < end) {
		rc = put_to(me, lost);
		EXPECT(me, put_to(me, other) == 0);
		net_step(me, NULL, NULL);
	}
	EXPECT(me, rc == -EREMOTEIO);
	EXPECT(me, put_to(me, lost) == -EREMOTEIO);
	EXPECT(me, put_to(me, other) == 0);
	EXPECT(me, me->net->ops.queryLastError(me->comm, lost, &why) == -EREMOTEIO && strstr(why, name));
	EXPECT(me, me->net->ops.queryLastError(me->comm, other, &why) == 0);
}

/* The last process dies, with all its ranks; the first rank sees to it. */
static void killed(struct net_rank *me)
{
	int first = me->nranks - me->test->each;

	EXPECT(me, put_to(me, me->nranks - 1) == 0);
	net_meet(me);
	while (me->rank >= first)
		pause();
	if (me->rank == 0) {
		for (int r = first; r < me->nranks; r++)
			net_leave(me);
		EXPECT(me, kill(net_pid(me, first), SIGKILL) == 0);
	}
	for (int r = first; r < me->nranks; r++)
		loss_see(me, r, !me->rank);
}

/* Rank 1 closes its comm before the others do, alive and well. */
static void closed(struct net_rank *me)
{
	void *listener = NULL, *comm = NULL, *early = me->comm;
	uint8_t handle[NCCL_EP_NET_HANDLE_SIZE];

	EXPECT(me, put_to(me, 1) == 0);
	net_meet(me);
	if (me->rank != 1) {
		loss_see(me, 1, me->rank ? 0 : 2);
		net_meet(me);
		return;
	}
	/* One of its own takes the place, so that the rig has something to close. */
	EXPECT(me, me->net->ops.deregMr(me->comm, me->mr) == 0 && me->net->ops.destroyContext(me->ctx) == 0);
	me->ctx = NULL;
	EXPECT(me, me->net->ops.closeComm(early) == 0);
	EXPECT(me, me->net->ops.listen(me->net->net, 0, 1, handle, &listener) == 0);
	EXPECT(me, me->net->ops.connect(listener, handle, 1, 0, &comm) == 0 && comm);
	EXPECT(me, me->net->ops.closeListen(listener) == 0);
	me->comm = comm;
	net_meet(me);
	ncclEpNetMem_v1_t mem = { .ptr = me->mem, .size = BYTES, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	uint8_t key[NCCL_EP_NET_KEY_SIZE];

	EXPECT(me, me->net->ops.createContext(comm, 0, &me->ctx) == 0);
	EXPECT(me, me->net->ops.regMr(comm, &mem, key, &me->mr) == 0);
}

/* Without a descriptor threads can share, processes cannot, and a put then says so. */
static void hidden(struct net_rank *me)
{
	EXPECT(me, me->share_rc == (me->test->each ? -EPERM : 0));
	EXPECT(me, !me->share_rc || strstr(me->sentence, "without a descriptor"));
	EXPECT(me, put_to(me, 1) == (me->test->each ? -EINVAL : 0));
}

static void refused(struct net_rank *me)
{
	ncclEpNetMem_v1_t good = { .ptr = me->mem, .size = 4096, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 }, bad;
	uint8_t key[2][NCCL_EP_NET_KEY_SIZE], junk[NCCL_EP_NET_HANDLE_SIZE];
	void *mr = NULL, *other = NULL, *listener = NULL, *comm = NULL;
	const ncclEpNet_v1_t *ops = &me->net->ops;

	bad = good;
	bad.kind = NCCL_EP_NET_MEM_CUDA;
	EXPECT(me, ops->regMr(me->comm, &bad, key[0], &mr) == -EPERM && strstr(ep_last_error(), "host memory"));
	bad = good;
	bad.size = 0;
	EXPECT(me, ops->regMr(me->comm, &bad, key[0], &mr) == -EINVAL);
	bad = good;
	bad.fd = 9999;
	EXPECT(me, ops->regMr(me->comm, &bad, key[0], &mr) == -EINVAL);
	EXPECT(me, !mr && ops->regMrDmaBuf(me->comm, &good, key[0], &mr) == -ENOTSUP && !mr);
	/* Rank 0 says 4096, and rank 1 would write where there is less. */
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

/* A receiver that does not look: the sender is told to come again, and loses nothing. */
static void count_take(struct net_rank *me, ncclEpNetImm_v1_t imm, void *arg)
{
	unsigned *next = arg;

	EXPECT(me, imm.imm == *next);
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
	void *request = &put;
	unsigned next = 0, sent = 0;

	if (me->rank == 0) {
		while (request && sent < 100000) {
			put.imm = sent;
			EXPECT(me, me->hot->iput(me->ctx, &put, &request) == 0);
			sent += request != NULL;
		}
		EXPECT(me, sent >= 512 && sent < 100000);
	}
	net_meet(me);
	for (; me->rank == 0 && sent < 100000; sent++) {
		put.imm = sent;
		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
	}
	if (me->rank == 1)
		NET_UNTIL(me, next == 100000, count_take, &next);
}

int main(int argc, char **argv)
{
	bool threads = argc > 1 && !strcmp(argv[1], "-t");
	const struct net_case cases[] = {
		{ .spec = "loop", .ranks = 3, .bytes = BYTES, .run = closed },
		{ .spec = "loop", .ranks = 2, .bytes = BYTES, .run = hidden, .hidden = true },
		{ .spec = "loop", .ranks = 2, .bytes = BYTES, .run = refused },
		{ .spec = "loop", .ranks = 2, .bytes = BYTES, .run = deaf },
		/* From here on processes only. */
		{ .spec = "loop", .ranks = 3, .bytes = BYTES, .run = killed, .each = 1 },
		{ .spec = "loop", .ranks = 4, .bytes = BYTES, .run = killed, .each = 2 },
		{ .spec = "faulty(loop):reorder=4", .ranks = 3, .bytes = BYTES, .run = killed, .each = 1 },
		{ .spec = "loop", .ranks = 3, .bytes = BYTES, .run = closed, .each = 1 },
		{ .spec = "loop", .ranks = 2, .bytes = BYTES, .run = hidden, .hidden = true, .each = 1 },
		{ .spec = "loop", .ranks = 2, .bytes = BYTES, .run = deaf, .each = 1 },
	};
	int errors = 0, n = threads ? 4 : (int)(sizeof(cases) / sizeof(cases[0]));

	for (int i = 0; i < n; i++)
		errors += net_run(&cases[i]);
	return errors != 0;
}
