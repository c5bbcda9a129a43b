/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_share SPEC...: ranks that take nothing, so that puts to them do not complete, leave room to another: puts to it
 * are accepted and complete, also after quiet ones, which have no completion. When they go on, all puts to them do.
 * 77: the first net has no device.
 */
#include <stdlib.h>
#include <unistd.h>

#include "test/rig/net_rig.h"
#include "util/error.h"

enum { BYTES = 8192, RANKS = 8, ALIVE = 1, FILL = 20000, QUIET = 100, PUTS = 500, REFUSALS = 500 };

static int stage, filled[RANKS]; /* atomic. stage 1: the deaf ranks go on; 2: rank r has been put filled[r] */

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
static int fill(struct net_rank *me, ncclEpNetPut_v1_t *put, void **request, int most)
{
	struct tally none = { 0 };
	int n = 0;

	for (int refused = 0; n < most && refused < REFUSALS;) {
		EXPECT(me, me->hot->iput(me->ctx, put, &request[n]) == 0);
		refused = request[n] ? 0 : refused + 1;
		n += request[n] != NULL;
		net_step(me, imm_take, &none);
	}
	return n;
}

static void quiet_put(struct net_rank *me, ncclEpNetPut_v1_t put)
{
	struct tally none = { 0 };
	void *request = NULL;

	put.flags |= NCCL_EP_NET_QUIET;
	for (int n = 0; n < QUIET && !me->errors; n += request != NULL) {
		EXPECT(me, me->hot->iput(me->ctx, &put, &request) == 0);
		net_step(me, imm_take, &none);
	}
}

static void send(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .flags = NCCL_EP_NET_IMM, .srcMr = me->mr, .dstMr = me->mr, .size = 64 };
	void **request = calloc((size_t)FILL + RANKS, sizeof(*request));
	struct tally none = { 0 };
	int n = 0;

	put.dstOffset = 4096;
	put.peer = put.imm = ALIVE;
	quiet_put(me, put);
	for (int r = ALIVE + 1; r < RANKS; r++) {
		put.peer = r;
		put.imm = (uint32_t)r;
		filled[r] = fill(me, &put, request + n, FILL - n);
		n += filled[r];
	}
	EXPECT(me, n < FILL); /* otherwise the net has no limit, and nothing is tested */
	put.peer = put.imm = ALIVE;
	for (int i = 0; i < PUTS && !me->errors; i++)
		EXPECT(me, net_put(me, &put, imm_take, &none) == 0);
	printf("%s: %d puts to ranks that take nothing, %d to the first, then %d to another\n", me->test->spec, n,
	       filled[ALIVE + 1], PUTS);
	__atomic_store_n(&stage, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < n; i++)
		EXPECT(me, net_end(me, request[i], imm_take, &none) == 0);
	__atomic_store_n(&stage, 2, __ATOMIC_RELEASE);
	free(request);
}

static void share(struct net_rank *me)
{
	struct tally tally = { 0 };
	uint64_t end = ep_deadline_ms(NET_WAIT_MS);

	if (me->rank == 0)
		send(me);
	while (me->rank > ALIVE && !__atomic_load_n(&stage, __ATOMIC_ACQUIRE) && ep_now_ns() < end)
		usleep(100);
	if (me->rank > ALIVE)
		NET_UNTIL(me, __atomic_load_n(&stage, __ATOMIC_ACQUIRE) == 2 && tally.came == filled[me->rank],
			  imm_take, &tally);
	else if (me->rank == ALIVE)
		NET_UNTIL(me, tally.came == QUIET + PUTS, imm_take, &tally);
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
