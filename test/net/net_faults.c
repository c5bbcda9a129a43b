/* SPDX-License-Identifier: Apache-2.0 */
/* faulty injects the faults its options name, no others, and the same ones with the same seed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "test/rig/net_rig.h"
#include "util/error.h"

enum { PUTS = 2000, BYTES = 65536, MASK = 511 };

/* What one rank that puts to itself observes: a single thread, so it must be reproducible. */
struct tale {
	uint32_t imm[2 * PUTS];
	unsigned count, failed, overtaken, twice;
	unsigned first; /* the first put that failed */
	unsigned late;	/* arrived or succeeded after that */
};

static struct tale tale; /* of the only rank */

static void tale_take(struct net_rank *me, uint32_t imm, void *arg)
{
	uint32_t word;

	(void)arg;
	EXPECT(me, tale.count < 2 * PUTS);
	if (tale.count >= 2 * PUTS)
		return;
	memcpy(&word, me->mem + 64 * (size_t)(imm & MASK), sizeof(word));
	EXPECT(me, (word & MASK) == (imm & MASK));
	tale.imm[tale.count++] = imm;
}

/* In the order of the puts. */
static void tale_end(uint32_t i, int rc)
{
	if (rc == -EIO && !tale.failed++)
		tale.first = i;
	tale.late += !rc && tale.failed;
}

/* Up to 64 puts in flight: more than any reorder window used here. */
static void tell(struct net_rank *me)
{
	void *open[64] = { NULL };

	for (uint32_t i = 0; i < PUTS + 64; i++) {
		ncclEpNetPut_v1_t put = {
			.flags = NCCL_EP_NET_IMM | NCCL_EP_NET_INLINE,
			.imm = i,
			.src = &i,
			.dstMr = me->mr,
			.dstOffset = 64 * (uint64_t)(i & MASK),
			.size = 4,
		};

		if (open[i % 64])
			tale_end(i - 64, net_end(me, open[i % 64], tale_take, NULL));
		open[i % 64] = NULL;
		if (i < PUTS)
			EXPECT(me, me->hot->iput(me->ctx, &put, &open[i % 64]) == 0 && open[i % 64]);
		if (i % 8 == 0)
			net_step(me, tale_take, NULL);
	}
	for (int i = 0; i < 200; i++)
		net_step(me, tale_take, NULL);
}

static int tale_tell(const char *spec, struct tale *out)
{
	static bool seen[PUTS];
	struct net_case test = { .spec = spec, .ranks = 1, .bytes = BYTES, .run = tell };
	int errors;

	memset(&tale, 0, sizeof(tale));
	memset(seen, 0, sizeof(seen));
	errors = net_run(&test);
	for (unsigned i = 0; i < tale.count; i++) {
		tale.overtaken += i && tale.imm[i] < tale.imm[i - 1];
		tale.twice += seen[tale.imm[i]];
		tale.late += tale.failed && tale.imm[i] > tale.first;
		seen[tale.imm[i]] = true;
	}
	*out = tale;
	return errors;
}

static int expect(const char *spec, bool ok)
{
	if (!ok)
		fprintf(stderr, "%s: %u arrived, %u overtaken, %u twice, %u failed from %u on, %u late\n", spec,
			tale.count, tale.overtaken, tale.twice, tale.failed, tale.first, tale.late);
	return !ok;
}

static int tales(void)
{
	static const struct {
		const char *spec;
		unsigned overtaken, twice, failed; /* at least; 0: none */
	} rows[] = {
		{ "faulty(loop)", 0, 0, 0 },
		{ "faulty(loop):delay=7", 0, 0, 0 },
		{ "faulty(loop):reorder=1", 100, 0, 0 },
		{ "faulty(loop):seed=3,reorder=16,delay=9", 500, 0, 0 },
		{ "faulty(loop):dup=250000", 0, 400, 0 },
		{ "faulty(loop):seed=3,fail=1000", 0, 0, 100 },
		{ "faulty(loop):seed=7,reorder=32,delay=3,dup=100000,fail=1000", 100, 20, 100 },
	};
	static struct tale one, two;
	int errors = 0;

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *spec = rows[i].spec;

		errors += tale_tell(spec, &one) + tale_tell(spec, &two);
		errors += expect(spec, memcmp(&one, &two, sizeof(one)) == 0);
		errors += expect(spec, rows[i].overtaken ? one.overtaken >= rows[i].overtaken : !one.overtaken);
		errors += expect(spec, rows[i].twice ? one.twice >= rows[i].twice : !one.twice);
		errors += expect(spec, rows[i].failed ? one.failed >= rows[i].failed : !one.failed);
		errors += expect(spec, rows[i].failed || one.count - one.twice == PUTS);
	}
	errors += tale_tell("faulty(loop):seed=1,reorder=16", &one) + tale_tell("faulty(loop):seed=2,reorder=16", &two);
	return errors + expect("another seed", memcmp(&one, &two, sizeof(one)) != 0);
}

/* A failed put is the last that arrives, if it does: of the first to fail half do. Later ones fail. */
static int ends(const char *options)
{
	static struct tale one;
	unsigned arrived = 0, lost = 0;
	char spec[80];
	int errors = 0;

	for (int seed = 1; seed <= 20; seed++) {
		snprintf(spec, sizeof(spec), "faulty(loop):seed=%d,fail=3000%s", seed, options);
		errors += tale_tell(spec, &one);
		errors += expect(spec, one.failed == PUTS - one.first && !one.late);
		errors += expect(spec, one.count - one.twice == one.first || one.count - one.twice == one.first + 1);
		arrived += one.failed && one.count - one.twice == one.first + 1;
		lost += one.failed && one.count - one.twice == one.first;
	}
	return errors + expect(options, arrived > 2 && lost > 2);
}

static void none_take(struct net_rank *me, uint32_t imm, void *arg)
{
	unsigned *from = arg;

	(void)me;
	from[imm]++;
}

/* Rank 1 is lost after 10 puts: none reaches it, no immediate of it arrives, and the others are not affected. */
static void dropped(struct net_rank *me)
{
	unsigned from[3] = { 0 };
	const char *why = "";

	for (unsigned i = 0; i < 30; i++) {
		ncclEpNetPut_v1_t put = {
			.peer = (int)(i % 3),
			.flags = NCCL_EP_NET_IMM,
			.imm = (uint32_t)me->rank,
			.srcMr = me->mr,
			.dstMr = me->mr,
			.dstOffset = 4096 + 64 * (uint64_t)me->rank,
			.size = 8,
		};

		EXPECT(me, net_put(me, &put, none_take, from) == (i % 3 == 1 && i >= 10 ? -EREMOTEIO : 0));
	}
	NET_UNTIL(me, from[0] + from[2] == (me->rank == 1 ? 6u : 20u), none_take, from);
	EXPECT(me, from[1] <= 10);
	EXPECT(me, me->net->ops.queryLastError(me->comm, 1, &why) == -EREMOTEIO && strstr(why, "rank 1"));
	EXPECT(me, me->net->ops.queryLastError(me->comm, 2, &why) == 0);
}

/* The failure of a quiet put is reported by the next put that is not quiet, and by all after it. */
static void covered(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .srcMr = me->mr, .dstMr = me->mr, .dstOffset = 64, .size = 64 };

	for (int i = 0; i < 20; i++) {
		put.flags = NCCL_EP_NET_QUIET;
		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
		put.flags = 0;
		EXPECT(me, net_put(me, &put, NULL, NULL) == (i < 10 ? 0 : -EIO));
	}
}

static void some_take(struct net_rank *me, uint32_t imm, void *arg)
{
	bool *told = arg;

	(void)me;
	*told |= imm == UINT32_MAX;
}

/* Rank 1 does not poll: its queue fills up, puts to it are held, and rank 2 still receives its own. */
static void stalled(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .srcMr = me->mr, .dstMr = me->mr, .dstOffset = 64, .size = 64 };
	bool told = false;

	put.flags = NCCL_EP_NET_IMM | NCCL_EP_NET_QUIET;
	for (put.peer = 1, put.imm = 0; me->rank == 0 && put.imm < 600; put.imm++)
		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
	put.flags = NCCL_EP_NET_IMM;
	put.imm = UINT32_MAX;
	put.peer = 2;
	if (me->rank == 0)
		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
	if (me->rank == 2)
		NET_UNTIL(me, told, some_take, &told);
	net_meet(me);
	put.peer = 1;
	if (me->rank == 0)
		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
	if (me->rank == 1)
		NET_UNTIL(me, told, some_take, &told);
}

/* Only the put after the third blocks, on rank 1 only. */
static void slow(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .peer = me->rank, .srcMr = me->mr, .dstMr = me->mr, .dstOffset = 64, .size = 64 };

	for (int i = 0; i < 8; i++) {
		uint64_t start = ep_now_ns();
		bool late;

		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
		late = ep_now_ns() - start >= 300 * 1000000ull;
		EXPECT(me, late == (me->rank == 1 && i == 3));
	}
}

/* The rig's own registration is the first; on rank 1 the second fails and the third succeeds. */
static void refused(struct net_rank *me)
{
	ncclEpNetMem_v1_t mem = { .ptr = me->mem, .size = BYTES, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	uint8_t key[NCCL_EP_NET_KEY_SIZE];

	for (int i = 2; i < 5; i++) {
		void *mr = NULL;
		int rc = me->net->ops.regMr(me->comm, &mem, key, &mr);

		EXPECT(me, rc == (me->rank == 1 && i == 2 ? -ENOMEM : 0) && !mr == !!rc);
		EXPECT(me, !rc || strstr(ep_last_error(), "registration 2 of rank 1"));
		EXPECT(me, !mr || me->net->ops.deregMr(me->comm, mr) == 0);
	}
}

/* Puts of rank 0 fail some time after the 100th, those to the other peer later, those of rank 1 not at all. */
static void confined(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .srcMr = me->mr, .dstMr = me->mr, .size = 64 };
	int failed[2] = { 0 };

	put.dstOffset = 4096 + 64 * (uint64_t)me->rank; /* both put to the same peers */
	for (int i = 0; i < 400; i++) {
		int rc;

		put.peer = i % 2;
		rc = net_put(me, &put, NULL, NULL);
		EXPECT(me, rc == -EIO || (rc == 0 && !failed[put.peer]));
		failed[put.peer] += rc != 0;
		EXPECT(me, i >= 100 || !rc);
	}
	EXPECT(me, me->rank == 0 ? failed[0] && failed[1] && failed[0] != failed[1] : !failed[0] && !failed[1]);
}

int main(void)
{
	struct net_case slow_put = { .spec = "faulty(loop):stall=300,after=3,rank=1", .ranks = 2, .run = slow };
	struct net_case refuse = { .spec = "faulty(loop):refuse=2,rank=1", .ranks = 2, .run = refused };
	struct net_case confine = { .spec = "faulty(loop):seed=4,fail=50000,after=100,rank=0",
				    .ranks = 2,
				    .run = confined };
	struct net_case stall = { .spec = "faulty(loop)", .ranks = 3, .bytes = BYTES, .run = stalled };
	struct net_case drop = { .spec = "faulty(loop):drop=1,after=10", .ranks = 3, .bytes = BYTES, .run = dropped };
	struct net_case cover = {
		.spec = "faulty(loop):fail=1000000,after=20", .ranks = 1, .bytes = BYTES, .run = covered
	};

	slow_put.bytes = refuse.bytes = confine.bytes = BYTES;
	return tales() + ends("") + ends(",reorder=16,delay=5,dup=50000") + net_run(&drop) + net_run(&cover) +
		       net_run(&stall) + net_run(&slow_put) + net_run(&refuse) + net_run(&confine) !=
	       0;
}
