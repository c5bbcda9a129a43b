/* SPDX-License-Identifier: Apache-2.0 */
/* A program built against NVIDIA's nccl.h, not ours, runs on the stand-in by library path alone. */
#include "ranks.h"

static int everything(struct rank *me)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t same = NULL;
	int bad = 0, version = 0, all[4] = { 0 };
	float x = 0.5f;

	EXPECT_OK(ncclGetVersion(&version));
	EXPECT(version / 10000 == NCCL_MAJOR);
	EXPECT_OK(ncclCommSplit(me->comm, 0, me->rank, &same, &config));
	EXPECT_OK(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, same, NULL));
	EXPECT(x == 0.5f * (float)me->n);
	EXPECT_OK(ncclAllGather(&me->rank, all, 1, ncclInt, same, NULL));
	EXPECT(all[3] == 3);
	EXPECT_OK(ncclBroadcast(&me->rank, &all[0], 1, ncclInt, 2, same, NULL));
	EXPECT(all[0] == 2);
	EXPECT_OK(ncclCommFinalize(same));
	EXPECT_OK(ncclCommDestroy(same));
	return bad;
}

int main(void)
{
#ifdef ANYEP_STANDIN
	fprintf(stderr, "this is our own nccl.h\n");
	return 1;
#endif
	return ranks_threads(4, everything, NULL) || ranks_processes(4, everything, NULL) ? 1 : 0;
}
