/* SPDX-License-Identifier: Apache-2.0 */
/* Invalid arguments: an error code and a message that names the call; no crash, no hang. */
#include <criterion/criterion.h>

#include <nccl_device.h>

#include "ranks.h"

TestSuite(standin_args, .timeout = 30);

static ncclComm_t comm;

static void one_rank(void)
{
	cr_assert(ncclCommInitAll(&comm, 1, NULL) == ncclSuccess);
}

static void no_rank(void)
{
	cr_expect(ncclCommDestroy(comm) == ncclSuccess);
}

#define REFUSED(name, call)                                                                               \
	do {                                                                                              \
		cr_expect((call) == ncclInvalidArgument, "%s", #call);                                    \
		cr_expect(strstr(ncclGetLastError(NULL), name), "%s: %s", #call, ncclGetLastError(NULL)); \
	} while (0)

Test(standin_args, init)
{
	ncclConfig_t good = NCCL_CONFIG_INITIALIZER, config = good;
	ncclUniqueId id, ids[1], zero = { { 0 } };
	ncclComm_t c = (ncclComm_t)&id;

	cr_assert(ncclGetUniqueId(&id) == ncclSuccess);
	ids[0] = id;
	REFUSED("ncclGetVersion", ncclGetVersion(NULL));
	REFUSED("ncclGetUniqueId", ncclGetUniqueId(NULL));
	REFUSED("ncclCommInitRank", ncclCommInitRank(NULL, 1, id, 0));
	REFUSED("ncclCommInitRank", ncclCommInitRank(&c, 0, id, 0));
	cr_expect(c == NULL, "no communicator after a failure");
	REFUSED("ncclCommInitRank", ncclCommInitRank(&c, -1, id, 0));
	REFUSED("ncclCommInitRank", ncclCommInitRank(&c, 1 << 30, id, 0));
	REFUSED("ncclCommInitRank", ncclCommInitRank(&c, 2, id, 2));
	REFUSED("ncclCommInitRank", ncclCommInitRank(&c, 2, id, -1));
	cr_expect(ncclCommInitRank(&c, 1, zero, 0) == ncclInvalidArgument);
	config.magic = 0;
	REFUSED("ncclCommInitRankConfig", ncclCommInitRankConfig(&c, 1, id, 0, &config));
	config = good;
	config.size = 8;
	REFUSED("ncclCommInitRankConfig", ncclCommInitRankConfig(&c, 1, id, 0, &config));
	config = good;
	config.blocking = 2;
	REFUSED("ncclCommInitRankConfig", ncclCommInitRankConfig(&c, 1, id, 0, &config));
	REFUSED("ncclCommInitRankScalable", ncclCommInitRankScalable(&c, 1, 0, 1, NULL, NULL));
	REFUSED("ncclCommInitRankScalable", ncclCommInitRankScalable(&c, 1, 0, 0, ids, NULL));
	REFUSED("ncclCommInitRankScalable", ncclCommInitRankScalable(&c, 1, 1, 1, ids, NULL));
	REFUSED("ncclCommInitRankScalable", ncclCommInitRankScalable(NULL, 1, 0, 1, ids, NULL));
	REFUSED("ncclCommInitAll", ncclCommInitAll(NULL, 1, NULL));
	REFUSED("ncclCommInitAll", ncclCommInitAll(&c, 0, NULL));
	REFUSED("ncclCommInitAll", ncclCommInitAll(&c, -1, NULL));
	cr_expect(ncclCommInitRankConfig(&c, 1, id, 0, NULL) == ncclSuccess, "the id is still good");
	cr_expect(ncclCommDestroy(c) == ncclSuccess);
}

Test(standin_args, device)
{
	ncclComm_t c;

	setenv("NCCL_EP_DEVICE", "toaster", 1);
	REFUSED("toaster", ncclCommInitAll(&c, 1, NULL));
	setenv("NCCL_EP_DEVICE", "host", 1);
	cr_expect(ncclCommInitAll(&c, 1, (const int[]){ 5 }) == ncclSuccess, "devlist is not read on the host");
	cr_expect(ncclCommDestroy(c) == ncclSuccess);
}

/* Every call that takes a communicator, with NULL, with other memory, and with a destroyed one. */
static void every_call_refuses(ncclComm_t c)
{
	ncclResult_t res;
	ncclComm_t other;
	ncclWindow_t win;
	ncclTeam_t team = ncclTeamLsa(c);
	char x[8] = { 0 };
	void *p;
	int n;

	REFUSED("ncclCommCount", ncclCommCount(c, &n));
	REFUSED("ncclCommUserRank", ncclCommUserRank(c, &n));
	REFUSED("ncclCommCuDevice", ncclCommCuDevice(c, &n));
	REFUSED("ncclCommGetAsyncError", ncclCommGetAsyncError(c, &res));
	REFUSED("ncclCommSplit", ncclCommSplit(c, 0, 0, &other, NULL));
	REFUSED("ncclAllGather", ncclAllGather(x, x, 1, ncclInt8, c, NULL));
	REFUSED("ncclAllReduce", ncclAllReduce(x, x, 1, ncclInt8, ncclSum, c, NULL));
	REFUSED("ncclReduceScatter", ncclReduceScatter(x, x, 1, ncclInt8, ncclSum, c, NULL));
	REFUSED("ncclBroadcast", ncclBroadcast(x, x, 1, ncclInt8, 0, c, NULL));
	REFUSED("ncclBroadcast", ncclBcast(x, 1, ncclInt8, 0, c, NULL));
	REFUSED("ncclCommWindowRegister", ncclCommWindowRegister(c, x, 8, &win, 0));
	REFUSED("ncclCommWindowDeregister", ncclCommWindowDeregister(c, (ncclWindow_t)x));
	REFUSED("ncclWinGetUserPtr", ncclWinGetUserPtr(c, (ncclWindow_t)x, &p));
	cr_expect(team.nRanks == 1 && team.rank == 0 && team.stride == 1);
	cr_expect(ncclGetLastError(c) != NULL);
	if (!c)
		return; /* as in NCCL, NULL can be destroyed */
	REFUSED("ncclCommFinalize", ncclCommFinalize(c));
	REFUSED("ncclCommDestroy", ncclCommDestroy(c));
	REFUSED("ncclCommAbort", ncclCommAbort(c));
}

Test(standin_args, no_communicator)
{
	char memory[4096] = { 0 };
	ncclComm_t c;

	every_call_refuses(NULL);
	cr_expect(ncclCommDestroy(NULL) == ncclSuccess && ncclCommAbort(NULL) == ncclSuccess);
	cr_expect(ncclCommFinalize(NULL) == ncclSuccess);
	every_call_refuses((ncclComm_t)memory);
	every_call_refuses((ncclComm_t)(uintptr_t)0x10);
	cr_assert(ncclCommInitAll(&c, 1, NULL) == ncclSuccess);
	cr_assert(ncclCommDestroy(c) == ncclSuccess);
	every_call_refuses(c);
	cr_assert(ncclCommInitAll(&c, 1, NULL) == ncclSuccess);
	cr_assert(ncclCommAbort(c) == ncclSuccess);
	every_call_refuses(c);
}

Test(standin_args, questions, .init = one_rank, .fini = no_rank)
{
	ncclComm_t c = NULL;

	REFUSED("ncclCommCount", ncclCommCount(comm, NULL));
	REFUSED("ncclCommUserRank", ncclCommUserRank(comm, NULL));
	REFUSED("ncclCommCuDevice", ncclCommCuDevice(comm, NULL));
	REFUSED("ncclCommGetAsyncError", ncclCommGetAsyncError(comm, NULL));
	REFUSED("ncclCommSplit", ncclCommSplit(comm, 0, 0, NULL, NULL));
	REFUSED("ncclCommSplit", ncclCommSplit(comm, -2, 0, &c, NULL));
	cr_expect(c == NULL);
	REFUSED("ncclCommSplit", ncclCommSplit(comm, 0, 0, &c, &(ncclConfig_t){ .size = sizeof(ncclConfig_t) }));
}

Test(standin_args, collectives, .init = one_rank, .fini = no_rank)
{
	char x[16] = { 0 };
	uint64_t not_a_stream[8] = { 0 };
	cudaStream_t stream = (cudaStream_t)(void *)not_a_stream;

	for (int t = -1; t < 2; t++) {
		ncclDataType_t bad = (ncclDataType_t)(t < 0 ? -1 : ncclNumTypes + t);

		REFUSED("ncclAllGather", ncclAllGather(x, x, 1, bad, comm, NULL));
		REFUSED("ncclAllReduce", ncclAllReduce(x, x, 1, bad, ncclSum, comm, NULL));
		REFUSED("ncclReduceScatter", ncclReduceScatter(x, x, 1, bad, ncclSum, comm, NULL));
		REFUSED("ncclBroadcast", ncclBroadcast(x, x, 1, bad, 0, comm, NULL));
		REFUSED("ncclBroadcast", ncclBcast(x, 1, bad, 0, comm, NULL));
	}
	REFUSED("ncclAllReduce", ncclAllReduce(x, x, 1, ncclInt8, ncclNumOps, comm, NULL));
	REFUSED("ncclAllReduce", ncclAllReduce(x, x, 1, ncclInt8, (ncclRedOp_t)-1, comm, NULL));
	REFUSED("ncclReduceScatter", ncclReduceScatter(x, x, 1, ncclInt8, ncclNumOps, comm, NULL));
	REFUSED("root", ncclBroadcast(x, x, 1, ncclInt8, 1, comm, NULL));
	REFUSED("root", ncclBcast(x, 1, ncclInt8, -1, comm, NULL));
	REFUSED("sendbuff", ncclAllGather(NULL, x, 1, ncclInt8, comm, NULL));
	REFUSED("recvbuff", ncclAllGather(x, NULL, 1, ncclInt8, comm, NULL));
	REFUSED("sendbuff", ncclAllReduce(NULL, x, 1, ncclInt8, ncclSum, comm, NULL));
	REFUSED("recvbuff", ncclAllReduce(x, NULL, 1, ncclInt8, ncclSum, comm, NULL));
	REFUSED("sendbuff", ncclReduceScatter(NULL, x, 1, ncclInt8, ncclSum, comm, NULL));
	REFUSED("sendbuff", ncclBroadcast(NULL, x, 1, ncclInt8, 0, comm, NULL));
	REFUSED("sendbuff", ncclBcast(NULL, 1, ncclInt8, 0, comm, NULL));
	REFUSED("exceed the address space", ncclAllGather(x, x, SIZE_MAX, ncclInt64, comm, NULL));
	REFUSED("exceed the address space", ncclAllReduce(x, x, SIZE_MAX / 8, ncclInt64, ncclSum, comm, NULL));
	REFUSED("stream", ncclAllGather(x, x, 1, ncclInt8, comm, stream));
	cr_expect(ncclAllGather(NULL, NULL, 0, ncclInt8, comm, NULL) == ncclSuccess);
	cr_expect(ncclAllReduce(NULL, NULL, 0, ncclInt8, ncclAvg, comm, NULL) == ncclSuccess);
	cr_expect(ncclReduceScatter(NULL, NULL, 0, ncclInt8, ncclMin, comm, NULL) == ncclSuccess);
	cr_expect(ncclBroadcast(NULL, NULL, 0, ncclInt8, 0, comm, NULL) == ncclSuccess);
	for (uintptr_t s = 0; s < 3; s++) /* the handles of CUDA's default streams */
		cr_expect(ncclAllGather(x, x, 1, ncclInt8, comm, (cudaStream_t)s) == ncclSuccess);
}

Test(standin_args, memory, .init = one_rank, .fini = no_rank)
{
	ncclWindow_t win = (ncclWindow_t)(uintptr_t)8;
	char x[16];
	void *p = x;

	REFUSED("ncclMemAlloc", ncclMemAlloc(NULL, 1));
	cr_expect(ncclMemAlloc(&p, 0) == ncclSuccess && p == NULL);
	cr_expect(ncclMemAlloc(&p, SIZE_MAX - 5) != ncclSuccess && p == NULL);
	cr_expect(ncclMemFree(NULL) == ncclSuccess);
	REFUSED("ncclMemFree", ncclMemFree(x));
	REFUSED("ncclCommWindowRegister", ncclCommWindowRegister(comm, NULL, 16, &win, 0));
	cr_expect(win == NULL);
	REFUSED("ncclCommWindowRegister", ncclCommWindowRegister(comm, x, 0, &win, 0));
	REFUSED("ncclCommWindowRegister", ncclCommWindowRegister(comm, x, SIZE_MAX, &win, 0));
	REFUSED("ncclCommWindowRegister", ncclCommWindowRegister(comm, x, 16, NULL, 0));
	REFUSED("ncclCommWindowRegister", ncclCommWindowRegister(comm, x, 16, &win, 4));
	REFUSED("ncclCommWindowDeregister", ncclCommWindowDeregister(comm, NULL));
	cr_assert(ncclCommWindowRegister(comm, x, 16, &win, 0) == ncclSuccess);
	REFUSED("ncclWinGetUserPtr", ncclWinGetUserPtr(comm, win, NULL));
	REFUSED("ncclWinGetUserPtr", ncclWinGetUserPtr(comm, (ncclWindow_t)x, &p));
	cr_assert(ncclCommWindowDeregister(comm, win) == ncclSuccess);
	REFUSED("ncclCommWindowDeregister", ncclCommWindowDeregister(comm, win));
	REFUSED("ncclWinGetUserPtr", ncclWinGetUserPtr(comm, win, &p));
}

#define ABSENT(name, call)                                                                                \
	do {                                                                                              \
		cr_expect((call) == ncclInvalidUsage, "%s", #call);                                       \
		cr_expect(strstr(ncclGetLastError(NULL), name), "%s: %s", #call, ncclGetLastError(NULL)); \
	} while (0)

/* Calls of NCCL's that the stand-in has not: a clear error, and inside a group the group's. */
Test(standin_args, calls_that_are_not_there, .init = one_rank, .fini = no_rank)
{
	ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
	ncclParamHandle_t param;
	ncclUniqueId id;
	ncclComm_t other;
	uint64_t bytes;
	char x[8] = { 0 };
	void *p;

	ABSENT("ncclSend", ncclSend(x, 1, ncclInt8, 0, comm, NULL));
	ABSENT("ncclRecv", ncclRecv(x, 1, ncclInt8, 0, comm, NULL));
	ABSENT("ncclAlltoAll", ncclAlltoAll(x, x, 1, ncclInt8, comm, NULL));
	ABSENT("ncclReduce", ncclReduce(x, x, 1, ncclInt8, ncclSum, 0, comm, NULL));
	ABSENT("ncclPutSignal", ncclPutSignal(x, 1, ncclInt8, 0, NULL, 0, 0, 0, 0, comm, NULL));
	ABSENT("ncclCommShrink", ncclCommShrink(comm, NULL, 0, &other, NULL, NCCL_SHRINK_DEFAULT));
	ABSENT("ncclCommGrow", ncclCommGrow(comm, 2, &id, -1, &other, NULL));
	ABSENT("ncclCommRegister", ncclCommRegister(comm, x, 8, &p));
	ABSENT("ncclCommMemStats", ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
	ABSENT("ncclGroupSimulateEnd", ncclGroupSimulateEnd(&info));
	ABSENT("ncclParamBind", ncclParamBind(&param, "DEBUG"));
	cr_expect(ncclGroupStart() == ncclSuccess);
	ABSENT("ncclSend", ncclSend(x, 1, ncclInt8, 0, comm, NULL));
	cr_expect(ncclGroupEnd() == ncclInvalidUsage);
	cr_expect(ncclAllGather(x, x, 1, ncclInt8, comm, NULL) == ncclSuccess, "the communicator is unharmed");
}
