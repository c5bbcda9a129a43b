/* SPDX-License-Identifier: Apache-2.0 */
/* anyEpGroupAllGather: every rank gets the bytes of all in rank order, between operations too; sizes are checked. Exit
 * status 0 or 1. */
#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

enum { RANKS = 5, MOST = 3000, ROUNDS = 20 };

static ncclEpGroup_t group_make(struct rank *me, ncclEpAlgorithm_t algorithm)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;

	c.algorithm = algorithm;
	c.num_experts = (unsigned)me->n;
	c.max_dispatch_tokens_per_rank = 4;
	c.max_token_bytes = 64;
	return ncclEpCreateGroup(&group, me->comm, &c) == ncclSuccess ? group : NULL;
}

static uint8_t byte_of(int rank, int round, size_t i)
{
	return (uint8_t)(rank * 31 + round * 7 + (int)i);
}

static int gather(struct rank *me, ncclEpGroup_t group, size_t bytes, int round)
{
	uint8_t mine[MOST], all[RANKS * MOST + 1];
	int bad = 0;

	for (size_t i = 0; i < bytes; i++)
		mine[i] = byte_of(me->rank, round, i);
	memset(all, 0xee, sizeof(all));
	EXPECT_OK(anyEpGroupAllGather(group, mine, all, bytes));
	for (int r = 0; r < me->n; r++)
		for (size_t i = 0; i < bytes; i++)
			bad += all[(size_t)r * bytes + i] != byte_of(r, round, i);
	EXPECT(all[(size_t)me->n * bytes] == 0xee);
	return bad;
}

static int run(struct rank *me)
{
	static const size_t sizes[] = { 1, 8, 72, MOST };
	ncclEpAlgorithm_t algorithm = *(ncclEpAlgorithm_t *)me->arg;
	ncclEpGroup_t group = group_make(me, algorithm);
	char word = 0;
	int bad = 0;

	EXPECT(group);
	if (bad)
		return bad;
	for (int round = 0; round < ROUNDS; round++)
		bad += gather(me, group, sizes[round % 4], round);
	EXPECT(anyEpGroupAllGather(group, NULL, &word, 1) == ncclInvalidArgument);
	EXPECT(anyEpGroupAllGather(group, &word, NULL, 1) == ncclInvalidArgument);
	EXPECT(anyEpGroupAllGather(group, &word, &word, 0) == ncclInvalidArgument);
	EXPECT(anyEpGroupAllGather(group, &word, &word, SIZE_MAX) == ncclInvalidArgument);
	EXPECT(strstr(anyEpGetLastError(), "bytes: is 18446744073709551615, must be 1 to"));
	bad += gather(me, group, 8, ROUNDS); /* refused calls took no turn */
	EXPECT_OK(ncclEpGroupDestroy(group));
	EXPECT(anyEpGroupAllGather(group, &word, &word, 1) == ncclInvalidArgument);
	return bad;
}

int main(void)
{
	static ncclEpAlgorithm_t algorithms[] = { NCCL_EP_ALGO_LOW_LATENCY, NCCL_EP_ALGO_HIGH_THROUGHPUT };
	int failed = 0;

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	for (int i = 0; i < 2; i++)
		for (int n = 1; n <= RANKS; n += 2) {
			int bad = ranks_threads(n, run, &algorithms[i]);

			printf("%s algorithm %d, %d ranks\n", bad ? "not ok" : "ok", i, n);
			failed += bad != 0;
		}
	return failed ? 1 : 0;
}
