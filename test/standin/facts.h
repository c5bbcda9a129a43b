/* SPDX-License-Identifier: Apache-2.0 */
/* What two nccl.h must agree on, as numbers; compiled once against ours and once against NVIDIA's. */
#ifndef EP_TEST_STANDIN_FACTS_H
#define EP_TEST_STANDIN_FACTS_H

struct fact {
	const char *name;
	long value;
};

/* Both end with a NULL name. */
extern const struct fact facts_ours[], facts_real[];

#define FACT(x) { #x, (long)(x) }
#define FIELD(f) { "ncclConfig_t." #f, (long)offsetof(ncclConfig_t, f) }

#define FACTS                                                                                                          \
	FACT(NCCL_MAJOR), FACT(NCCL_UNIQUE_ID_BYTES), FACT(NCCL_CONFIG_UNDEF_INT), FACT(NCCL_SPLIT_NOCOLOR),           \
		FACT(NCCL_WIN_DEFAULT), FACT(NCCL_WIN_COLL_SYMMETRIC), FACT(NCCL_VERSION(2, 8, 4)),                    \
		FACT(NCCL_VERSION(2, 28, 9)), FACT(sizeof(ncclUniqueId)), FACT(sizeof(ncclResult_t)),                  \
		FACT(sizeof(ncclDataType_t)), FACT(sizeof(ncclRedOp_t)), FACT(sizeof(ncclComm_t)),                     \
		FACT(sizeof(ncclWindow_t)), FACT(ncclSuccess), FACT(ncclUnhandledCudaError), FACT(ncclSystemError),    \
		FACT(ncclInternalError), FACT(ncclInvalidArgument), FACT(ncclInvalidUsage), FACT(ncclRemoteError),     \
		FACT(ncclInProgress), FACT(ncclInt8), FACT(ncclChar), FACT(ncclUint8), FACT(ncclInt32), FACT(ncclInt), \
		FACT(ncclUint32), FACT(ncclInt64), FACT(ncclUint64), FACT(ncclFloat16), FACT(ncclHalf),                \
		FACT(ncclFloat32), FACT(ncclFloat), FACT(ncclFloat64), FACT(ncclDouble), FACT(ncclBfloat16),           \
		FACT(ncclFloat8e4m3), FACT(ncclFloat8e5m2), FACT(ncclSum), FACT(ncclProd), FACT(ncclMax),              \
		FACT(ncclMin), FACT(ncclAvg), FACT(ncclNumOps), FACT(ncclMaxRedOp), FIELD(size), FIELD(magic),         \
		FIELD(version), FIELD(blocking), FIELD(cgaClusterSize), FIELD(minCTAs), FIELD(maxCTAs),                \
		FIELD(netName), FIELD(splitShare), FIELD(trafficClass), FIELD(commName), FIELD(collnetEnable),         \
		FIELD(CTAPolicy), FIELD(shrinkShare), FIELD(nvlsCTAs), FIELD(nChannelsPerNetPeer),                     \
		FIELD(nvlinkCentricSched)

#endif
