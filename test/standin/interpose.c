/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standin_interpose LIBRARY: this program owns NCCL's global names, as a real NCCL loaded before would; the stand-in,
 * opened with RTLD_LOCAL, must still call and return its own functions, and export nothing else.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "plugin/standin/query.h"

static int stolen;

/* Every name the stand-in might call through by mistake. Exported: the test is linked with -rdynamic. */
#define THIEF(name)                                                       \
	ncclResult_t name##_(void) __asm__(#name);                        \
	__attribute__((visibility("default"))) ncclResult_t name##_(void) \
	{                                                                 \
		stolen++;                                                 \
		return ncclInternalError;                                 \
	}

THIEF(ncclCommCount)
THIEF(ncclCommUserRank)
THIEF(ncclCommCuDevice)
THIEF(ncclAllGather)
THIEF(ncclBroadcast)
THIEF(ncclGetErrorString)
THIEF(ncclCommGetAsyncError)
THIEF(ncclWinGetUserPtr)
THIEF(ncclCommDestroy)
THIEF(ncclGroupEnd)

#define CHECK(cond)                                                           \
	do {                                                                  \
		if (!(cond)) {                                                \
			fprintf(stderr, "%d: not so: %s\n", __LINE__, #cond); \
			bad++;                                                \
		}                                                             \
	} while (0)

int main(int argc, char **argv)
{
	static const char *const hidden[] = { "ep_boot_open", "ep_sc_get", "ep_last_error", "ep_dev_row", "ep_reduce" };
	const struct ep_standin_query *q;
	ep_standin_query_fn query;
	ncclResult_t (*init)(ncclComm_t *, int, const int *), (*destroy)(ncclComm_t), async = ncclInternalError;
	ncclResult_t (*unique)(ncclUniqueId *);
	ncclUniqueId id;
	ncclComm_t comm = NULL;
	char in[4] = { 1, 2, 3, 4 }, out[8] = { 0 };
	int bad = 0, n[2] = { 0 };
	void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

	if (!lib) {
		fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "usage: standin_interpose LIBRARY");
		return 1;
	}
	*(void **)&query = dlsym(lib, EP_STANDIN_QUERY_NAME);
	*(void **)&init = dlsym(lib, "ncclCommInitAll");
	*(void **)&unique = dlsym(lib, "ncclGetUniqueId");
	*(void **)&destroy = dlsym(lib, "ncclCommDestroy");
	CHECK(dlsym(RTLD_DEFAULT, "ncclCommCount") != dlsym(lib, "ncclCommCount"));
	for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++)
		CHECK(!dlsym(lib, hidden[i]));
	q = query();
	CHECK(init(&comm, 1, NULL) == ncclSuccess);
	CHECK(q->owns(comm));
	CHECK(q->count(comm, &n[0]) == ncclSuccess && n[0] == 1);
	CHECK(q->cu_device(comm, &n[1]) == ncclSuccess);
	CHECK(q->allgather(in, out, 4, ncclInt8, comm, NULL) == ncclSuccess && !memcmp(in, out, 4));
	CHECK(q->async_error(comm, &async) == ncclSuccess && async == ncclSuccess);
	CHECK(q->error_string(ncclSuccess) != NULL);
	CHECK(destroy(comm) == ncclSuccess);
	CHECK(stolen == 0);
	CHECK(((ncclResult_t(*)(void))dlsym(RTLD_DEFAULT, "ncclCommCount"))() == ncclInternalError && stolen == 1);
	/* An id has a thread that waits for ranks: closing the library must not unmap its code. */
	CHECK(unique(&id) == ncclSuccess);
	dlclose(lib);
	nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
	return bad ? 1 : 0;
}
