/* SPDX-License-Identifier: Apache-2.0 */
/* example [-t] RANKS: a group of expert-parallel ranks, as processes or (-t) as threads. Only NCCL's and NCCL EP's
 * names. cc example.c -I PREFIX/include -I PREFIX/include/standin -L PREFIX/lib -lnccl_ep -L PREFIX/lib/nccl_ep_standin
 * -l:libnccl.so.2 -lpthread */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl.h>
#include <nccl_ep.h>

#define TRY(call)                                                                              \
	do {                                                                                   \
		ncclResult_t rc_ = (call);                                                     \
		if (rc_ != ncclSuccess)                                                        \
			return fprintf(stderr, "%s: %s\n", #call, ncclGetErrorString(rc_)), 1; \
	} while (0)

static ncclUniqueId id;
static int ranks;

static int rank_main(int rank)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclComm_t comm;
	ncclEpGroup_t group;
	ncclEpHandle_t handle;

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = (unsigned)(8 * ranks);
	config.max_dispatch_tokens_per_rank = 128;
	config.max_token_bytes = 7168 * 2;
	TRY(ncclCommInitRank(&comm, ranks, id, rank));
	TRY(ncclEpCreateGroup(&group, comm, &config));
	TRY(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 8, NULL));
	printf("rank %d of %d: a group of %u experts\n", rank, ranks, config.num_experts);
	TRY(ncclEpHandleDestroy(handle));
	TRY(ncclEpGroupDestroy(group));
	TRY(ncclCommDestroy(comm));
	return 0;
}

static void *thread_main(void *rank)
{
	return (void *)(long)rank_main((int)(long)rank);
}

int main(int argc, char **argv)
{
	int threads = argc > 2 && !strcmp(argv[1], "-t"), failed = 0, status;
	pthread_t thread[64];

	ranks = argc > 1 ? atoi(argv[argc - 1]) : 1;
	if (ranks < 1 || ranks > 64)
		return fprintf(stderr, "usage: %s [-t] RANKS (1 to 64)\n", argv[0]), 2;
	TRY(ncclGetUniqueId(&id));
	for (long r = 1; r < ranks; r++)
		if (threads ? pthread_create(&thread[r], NULL, thread_main, (void *)r) : fork() == 0)
			return threads ? 1 : rank_main((int)r);
	failed = rank_main(0);
	for (long r = 1; r < ranks; r++) {
		void *result = NULL;

		if (threads)
			pthread_join(thread[r], &result);
		else if (wait(&status) < 0 || status)
			result = (void *)1;
		failed |= result != NULL;
	}
	return failed;
}
