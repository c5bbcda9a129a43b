/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_sparse [-g N] SPEC...: ranks that are connected to some others only (ep_net_sparse): puts and immediates between
 * these arrive, puts to others are refused with a message, no connection to them is made.
 * Threads, or N ranks in a process. 77: the first net has no device.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "test/rig/net_rig.h"
#include "util/error.h"

enum { BYTES = 8192, RANKS = 6, PUTS = 40 };

/* A path, and rank 4 to all: not equally many each, and no two sets alike. */
static bool is_peer(int a, int b)
{
	return a - b == 1 || b - a == 1 || a == 4 || b == 4;
}

struct tally {
	int from[RANKS];
};

static void imm_take(struct net_rank *me, uint32_t imm, void *arg)
{
	struct tally *tally = arg;

	EXPECT(me, imm / 100 < RANKS && imm % 100 == (uint32_t)me->rank);
	if (imm / 100 < RANKS)
		tally->from[imm / 100]++;
}

static bool all_came(const struct net_rank *me, const struct tally *tally)
{
	for (int r = 0; r < RANKS; r++)
		if (tally->from[r] != (r != me->rank && is_peer(me->rank, r) ? PUTS : 0))
			return false;
	return true;
}

/* Of loop between processes: its own queues once, of every peer a header and a slice. */
static int loop_maps(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (maps && fgets(line, sizeof(line), maps))
		n += strstr(line, "nccl_ep_loop") != NULL;
	if (maps)
		fclose(maps);
	return n;
}

static void exchange(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .flags = NCCL_EP_NET_IMM, .srcMr = me->mr, .dstMr = me->mr, .size = 64 };
	struct tally tally = { { 0 } };
	const char *why = "";
	int peers = 0;

	EXPECT(me, ep_net_sparse(me->net));
	memset(me->mem, 1 + me->rank, 64);
	put.dstOffset = 4096 + 64 * (uint64_t)me->rank;
	for (int i = 0; i < PUTS; i++)
		for (put.peer = 0; put.peer < RANKS; put.peer++) {
			put.imm = (uint32_t)(100 * me->rank + put.peer);
			if (put.peer != me->rank && is_peer(me->rank, put.peer))
				EXPECT(me, net_put(me, &put, imm_take, &tally) == 0);
		}
	NET_UNTIL(me, all_came(me, &tally), imm_take, &tally);
	for (int r = 0; r < RANKS; r++) {
		bool peer = r != me->rank && is_peer(me->rank, r);

		peers += peer;
		EXPECT(me, me->mem[4096 + 64 * r] == (peer ? 1 + r : 0));
		if (peer || r == me->rank) {
			EXPECT(me, me->net->ops.queryLastError(me->comm, r, &why) == 0);
			continue;
		}
		EXPECT(me, net_put_to(me, r) == -EREMOTEIO);
		EXPECT(me, me->net->ops.queryLastError(me->comm, r, &why) == -ENOTCONN && strstr(why, "not connected"));
	}
	if (me->test->each == 1 && !strcmp(me->test->spec, "loop"))
		EXPECT(me, loop_maps() == 1 + 2 * peers);
	net_meet(me);
}

int main(int argc, char **argv)
{
	int errors = 0, first = 1;
	struct net_case test = { .ranks = RANKS, .bytes = BYTES, .run = exchange, .peers = is_peer };

	if (argc > 2 && !strcmp(argv[1], "-g")) {
		test.each = atoi(argv[2]);
		first = 3;
	}
	if (first >= argc)
		return 2;
	if (net_absent(argv[first]))
		return 77;
	for (int i = first; i < argc; i++) {
		test.spec = argv[i];
		errors += net_run(&test);
	}
	return errors != 0;
}
