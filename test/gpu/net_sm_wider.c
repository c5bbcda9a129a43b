/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_sm_wider OPTIONS: while the kernel of the net sm runs, ranks come whose ports it does not serve, on contexts that
 * it does, because others had them before: their puts arrive all the same. OPTIONS are passed on.
 */
#include "test/rig/net_rig.h"

enum { RANKS = 2, BYTES = 8192 };

static const char *spec;

static void put_next(struct net_rank *me)
{
	for (int i = 0; i < 3; i++)
		EXPECT(me, net_put_to(me, (me->rank + 1) % RANKS) == 0);
}

/* Each rank's second context is there when the kernel begins, and free when the other ranks come. */
static void run_first(struct net_rank *me)
{
	struct net_case later = { .spec = spec, .ranks = RANKS, .bytes = BYTES, .run = put_next };
	void *second = NULL;

	EXPECT(me, me->net->ops.createContext(me->comm, 1, &second) == 0);
	net_meet(me);
	put_next(me);
	EXPECT(me, me->net->ops.destroyContext(second) == 0);
	net_meet(me);
	if (me->rank == 0)
		EXPECT(me, net_run(&later) == 0);
	net_meet(me);
	put_next(me);
}

int main(int argc, char **argv)
{
	struct net_case first = { .ranks = RANKS, .bytes = BYTES, .run = run_first };
	char text[128];

	snprintf(text, sizeof(text), "sm:%s,idle=1000000000", argc > 1 ? argv[1] : "host=1");
	first.spec = spec = text;
	return net_run(&first) != 0;
}
