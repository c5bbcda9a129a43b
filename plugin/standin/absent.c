/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of NCCL's that the stand-in has not: they exist, so that programs and libraries that were linked for NCCL
 * load, and answer ncclInvalidUsage with their name.
 */
#include "plugin/standin/job.h"
#include "util/error.h"

/* As of a call that fails its checks: inside a group, ncclGroupEnd returns it too. */
static ncclResult_t absent(const char *call)
{
	struct ep_job none = { 0 };
	int rc = EP_FAIL(EP_COMM, EP_EUSAGE,
			 "%s is not part of AnyEP's stand-in for NCCL; run this program with NCCL itself", call);

	return (ncclResult_t)ep_result(ep_job_submit(rc, &none));
}

/* The arguments are not read: the caller passes and removes them, whatever they are, on every ABI we build for. So one
 * table of names is enough, and nccl.h has the prototypes. */
#define ABSENT(name)                                                               \
	ncclResult_t ep_absent_##name(void) __asm__(#name);                        \
	__attribute__((visibility("default"))) ncclResult_t ep_absent_##name(void) \
	{                                                                          \
		return absent(#name);                                              \
	}

/* clang-format off */
ABSENT(ncclAlltoAll)
ABSENT(ncclCommDeregister)
ABSENT(ncclCommGetUniqueId)
ABSENT(ncclCommGrow)
ABSENT(ncclCommMemStats)
ABSENT(ncclCommQueryProperties)
ABSENT(ncclCommRegister)
ABSENT(ncclCommResume)
ABSENT(ncclCommRevoke)
ABSENT(ncclCommShrink)
ABSENT(ncclCommSuspend)
ABSENT(ncclDevCommCreate)
ABSENT(ncclDevCommDestroy)
ABSENT(ncclGather)
ABSENT(ncclGetLsaDevicePointer)
ABSENT(ncclGetLsaMultimemDevicePointer)
ABSENT(ncclGetMultimemDevicePointer)
ABSENT(ncclGetPeerDevicePointer)
ABSENT(ncclGinBarrierCreateRequirement)
ABSENT(ncclGinInboxA2ACreateRequirement)
ABSENT(ncclGinOutboxCreateRequirement)
ABSENT(ncclGroupSimulateEnd)
ABSENT(ncclLLA2ACalcSlots)
ABSENT(ncclLLA2ACreateRequirement)
ABSENT(ncclLsaBarrierCreateRequirement)
ABSENT(ncclParamBind)
ABSENT(ncclParamDumpAll)
ABSENT(ncclParamGet)
ABSENT(ncclParamGetAllParameterKeys)
ABSENT(ncclParamGetI16)
ABSENT(ncclParamGetI32)
ABSENT(ncclParamGetI64)
ABSENT(ncclParamGetI8)
ABSENT(ncclParamGetParameter)
ABSENT(ncclParamGetStr)
ABSENT(ncclParamGetU16)
ABSENT(ncclParamGetU32)
ABSENT(ncclParamGetU64)
ABSENT(ncclParamGetU8)
ABSENT(ncclPutSignal)
ABSENT(ncclRecv)
ABSENT(ncclRedOpCreatePreMulSum)
ABSENT(ncclRedOpDestroy)
ABSENT(ncclReduce)
ABSENT(ncclResetDebugInit)
ABSENT(ncclScatter)
ABSENT(ncclSend)
ABSENT(ncclSignal)
ABSENT(ncclWaitSignal)
/* clang-format on */
