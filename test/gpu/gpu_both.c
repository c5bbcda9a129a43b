/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_both STAND-IN NCCL: both libraries in one process, in either order and with RTLD_LOCAL; a group on a communicator
 * of each at the same time. Exit 77 without NCCL.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <nccl.h>
#include <nccl_ep.h>
#include <nccl_ep_ext.h>

struct side {
	const char *name, *file;
	void *lib;
	ncclComm_t comm;
	ncclEpGroup_t group;
};

static int fail(const struct side *side, const char *what, const char *why)
{
	fprintf(stderr, "gpu_both: %s: %s: %s\n", side->name, what, why);
	return 1;
}

static int side_open(struct side *side)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclResult_t (*get_id)(ncclUniqueId *), (*init)(ncclComm_t *, int, ncclUniqueId, int);
	ncclUniqueId id;

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = 8;
	config.max_dispatch_tokens_per_rank = 16;
	config.max_token_bytes = 1024;
	*(void **)&get_id = dlsym(side->lib, "ncclGetUniqueId");
	*(void **)&init = dlsym(side->lib, "ncclCommInitRank");
	if (!get_id || !init)
		return fail(side, side->file, "lacks ncclGetUniqueId or ncclCommInitRank");
	if (get_id(&id) != ncclSuccess || init(&side->comm, 1, id, 0) != ncclSuccess)
		return fail(side, "ncclCommInitRank", "failed");
	if (ncclEpCreateGroup(&side->group, side->comm, &config) != ncclSuccess)
		return fail(side, "ncclEpCreateGroup", anyEpGetLastError());
	return 0;
}

static int side_close(struct side *side)
{
	ncclResult_t (*destroy)(ncclComm_t);

	*(void **)&destroy = dlsym(side->lib, "ncclCommDestroy");
	if (ncclEpGroupDestroy(side->group) != ncclSuccess)
		return fail(side, "ncclEpGroupDestroy", anyEpGetLastError());
	return destroy && destroy(side->comm) == ncclSuccess ? 0 : fail(side, "ncclCommDestroy", "failed");
}

int main(int argc, char **argv)
{
	struct side side[2] = { { .name = argv[1] }, { .name = argv[2] } };

	if (argc != 3)
		return fprintf(stderr, "usage: gpu_both FIRST.so SECOND.so\n"), 2;
	for (int i = 0; i < 2; i++) {
		side[i].file = side[i].name;
		side[i].lib = dlopen(side[i].file, RTLD_NOW | RTLD_LOCAL);
		if (!side[i].lib) {
			printf("gpu_both: skipped: %s\n", dlerror());
			return 77;
		}
	}
	for (int i = 0; i < 2; i++)
		if (side_open(&side[i]))
			return 1;
	for (int i = 0; i < 2; i++)
		if (side_close(&side[i]))
			return 1;
	printf("gpu_both: a group on each of %s and %s\n", argv[1], argv[2]);
	return 0;
}
