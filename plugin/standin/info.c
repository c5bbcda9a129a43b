/* SPDX-License-Identifier: Apache-2.0 */
/* Queries that involve no other rank. */
#include <stdio.h>

#include "plugin/standin/comm.h"
#include "plugin/standin/mem.h"
#include "plugin/standin/query.h"
#include "util/error.h"

/* NCCL's texts: programs and logs are searched for them. The message of a failure is ncclGetLastError's. */
static const char *const result_texts[ncclNumResults] = {
	[ncclSuccess] = "no error",
	[ncclUnhandledCudaError] = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
	[ncclSystemError] = "unhandled system error (run with NCCL_DEBUG=INFO for details)",
	[ncclInternalError] = "internal error - please report this issue to the NCCL developers",
	[ncclInvalidArgument] = "invalid argument (run with NCCL_DEBUG=WARN for details)",
	[ncclInvalidUsage] = "invalid usage (run with NCCL_DEBUG=WARN for details)",
	[ncclRemoteError] = "remote process exited or there was a network error",
	[ncclInProgress] = "NCCL operation in progress",
	[ncclTimeout] = "timeout",
};

const char *ncclGetErrorString(ncclResult_t result)
{
	return (unsigned)result < ncclNumResults ? result_texts[result] : "unknown result code";
}

ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return (ncclResult_t)ep_result(EP_FAIL(EP_COMM, EP_EARG, "ncclGetVersion: version is NULL"));
	*version = NCCL_VERSION_CODE;
	return ncclSuccess;
}

/* Returned through the thread's last error, which outlives the communicator. */
const char *ncclGetLastError(ncclComm_t comm)
{
	struct ncclComm *c = NULL;

	if (ep_sc_owns(comm) && !ep_sc_get(comm, "ncclGetLastError", &c)) {
		ep_sc_check(c);
		ep_sc_put(c);
	}
	return ep_last_error();
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
	struct ncclComm *c = NULL;
	int rc;

	if (!asyncError)
		return (ncclResult_t)ep_result(EP_FAIL(EP_COMM, EP_EARG, "ncclCommGetAsyncError: asyncError is NULL"));
	rc = ep_sc_get(comm, "ncclCommGetAsyncError", &c);
	if (rc)
		return (ncclResult_t)ep_result(rc);
	*asyncError = (ncclResult_t)ep_result(ep_sc_check(c));
	ep_sc_put(c);
	return ncclSuccess;
}

enum query { COUNT, DEVICE, RANK };

static ncclResult_t comm_query(ncclComm_t comm, enum query what, const char *call, int *out)
{
	struct ncclComm *c = NULL;
	int rc;

	if (!out)
		return (ncclResult_t)ep_result(EP_FAIL(EP_COMM, EP_EARG, "%s: the result pointer is NULL", call));
	rc = ep_sc_get(comm, call, &c);
	if (rc)
		return (ncclResult_t)ep_result(rc);
	const int answers[] = {
		[COUNT] = c->nranks,
		[DEVICE] = c->device.kind == EP_DEV_HOST ? -1 : c->device.ordinal,
		[RANK] = c->rank,
	};
	*out = answers[what];
	ep_sc_put(c);
	return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	return comm_query(comm, COUNT, "ncclCommCount", count);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	return comm_query(comm, DEVICE, "ncclCommCuDevice", device);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return comm_query(comm, RANK, "ncclCommUserRank", rank);
}

const struct ep_standin_query *ncclEpStandinQuery(void)
{
	static const struct ep_standin_query query = {
		.version = EP_STANDIN_QUERY_VERSION,
		.size = sizeof(query),
		.owns = ep_sc_owns,
		.count = ncclCommCount,
		.user_rank = ncclCommUserRank,
		.cu_device = ncclCommCuDevice,
		.allgather = ncclAllGather,
		.async_error = ncclCommGetAsyncError,
		.error_string = ncclGetErrorString,
		.win_user_ptr = ncclWinGetUserPtr,
		.window_info = ep_sc_window_find,
		.mem_export = ep_sc_mem_export,
		.mem_find = ep_sc_mem_find,
		.last_error = ncclGetLastError,
		.evidence = ep_sc_evidence,
		.waited = ep_sc_waited,
	};

	return &query;
}
