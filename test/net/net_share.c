/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_share SPEC...: a rank that takes nothing, so that puts to it do not complete, leaves room to the others: puts to
 * them are accepted and complete. When it goes on, all puts to it do. 77: the first net has no device.
 */
#include <stdlib.h>
#include <unistd.h>

#include "test/rig/net_rig.h"
#include "util/error.h"

enum { BYTES = 8192, RANKS = 3, DEAF = 1, FILL = 20000, PUTS = 500, REFUSALS = 500 };

static int stage; /* atomic. 2: the deaf rank goes on; 3 + n: it has been put n */

struct tally {
	int came;
};

static void imm_take(struct net_rank *me, uint32_t imm, void *arg)
{
	struct tally *tally = arg;

	EXPECT(me, imm == (uint32_t)me->rank);
	tally->came++;
}

/* Until the net has refused many in a row; the requests. */
static int fill(struct net_rank *me, ncclEpNetPut_v1_t *put, void **request)
{
	struct tally none = { 0 };
	int n = 0;

	for (int refused = 0; n < FILL && refused < REFUSALS;) {
		EXPECT(me, me->hot->iput(me->ctx, put, &request[n]) == 0);
		refused = request[n] ? 0 : refused + 1;
		n += request[n] != NULL;
		net_step(me, imm_take, &none);
	}
	return n;
}

static void send(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .flags = NCCL_EP_NET_IMM, .srcMr = me->mr, .dstMr = me->mr, .size = 64 };
	void **request = calloc(FILL + 1, sizeof(*request));
	struct tally none = { 0 };
	int n;

	put.peer = DEAF;
	put.imm = DEAF;
	put.dstOffset = 4096;
	n = fill(me, &put, request);
	EXPECT(me, n < FILL); /* otherwise the net has no limit, and nothing is tested */
	put.peer = put.imm = 2;
	for (int i = 0; i < PUTS && !me->errors; i++)
		EXPECT(me, net_put(me, &put, imm_take, &none) == 0);
	printf("%s: %d puts to a rank that takes nothing, then %d to another\n", me->test->spec, n, PUTS);
	__atomic_store_n(&stage, 2, __ATOMIC_RELEASE);
	for (int i = 0; i < n; i++)
		EXPECT(me, net_end(me, request[i], imm_take, &none) == 0);
	/* How many the deaf rank must see. */
	__atomic_store_n(&stage, 3 + n, __ATOMIC_RELEASE);
	free(request);
}

static void share(struct net_rank *me)
{
	struct tally tally = { 0 };
	uint64_t end = ep_deadline_ms(NET_WAIT_MS);

	if (me->rank == 0)
		send(me);
	while (me->rank == DEAF && __atomic_load_n(&stage, __ATOMIC_ACQUIRE) < 2 && ep_now_ns() < end)
		usleep(100);
	if (me->rank == DEAF) {
		NET_UNTIL(me, __atomic_load_n(&stage, __ATOMIC_ACQUIRE) == 3 + tally.came, imm_take, &tally);
	} else if (me->rank == 2) {
		NET_UNTIL(me, tally.came == PUTS || __atomic_load_n(&stage, __ATOMIC_ACQUIRE) >= 2, imm_take, &tally);
		NET_UNTIL(me, tally.came == PUTS, imm_take, &tally);
	}
	net_meet(me);
}

int main(int argc, char **argv)
{
	struct net_case test = { .ranks = RANKS, .bytes = BYTES, .run = share };
	int errors = 0;

	if (argc < 2)
		return 2;
	if (net_absent(argv[1]))
		return 77;
	for (int i = 1; i < argc; i++) {
		test.spec = argv[i];
		stage = 0;
		errors += net_run(&test);
	}
	return errors != 0;
}
