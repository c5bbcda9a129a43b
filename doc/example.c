/* SPDX-License-Identifier: Apache-2.0 */
/* example [-t] RANKS: a group of expert-parallel ranks, as processes or threads; only NCCL's and NCCL EP's names. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl_ep.h>
#define TRY(call)                         \
	if ((rc = (call)) != ncclSuccess) \
	return fprintf(stderr, "%s: %s\n", #call, ncclGetErrorString(rc)), 1

static ncclUniqueId id;
static int ranks;

static int rank_main(int rank)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpHandle_t handle;
	ncclEpGroup_t group;
	ncclComm_t comm;
	ncclResult_t rc;

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
	return rank_main((int)(long)rank) ? (void *)1 : NULL;
}

int main(int argc, char **argv)
{
	int threads = argc > 2 && !strcmp(argv[1], "-t"), failed, status = 0;
	pthread_t thread[64];
	void *result = NULL;

	ranks = atoi(argc > 1 ? argv[argc - 1] : "1");
	if (ranks < 1 || ranks > 64 || ncclGetUniqueId(&id) != ncclSuccess)
		return fprintf(stderr, "usage: %s [-t] RANKS (1 to 64)\n", argv[0]), 2;
	for (long r = 1; r < ranks; r++)
		if (threads ? pthread_create(&thread[r], NULL, thread_main, (void *)r) : fork() == 0)
			return threads ? 1 : rank_main((int)r);
	failed = rank_main(0);
	for (long r = 1; r < ranks; r++, failed |= result || status)
		(void)(threads ? pthread_join(thread[r], &result) : wait(&status));
	return failed;
}
