/* SPDX-License-Identifier: Apache-2.0 */
/* The binary interface, pinned: every number below is written out from the contract, none is taken from a header. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "nccl_ep.h"
#include "nccl_ep_ext.h"
#include "nccl_ep_net.h"

TestSuite(abi, .timeout = 30);

struct row {
	const char *what;
	unsigned long long is, must;
};

static void rows_check(const struct row *row, size_t count)
{
	for (size_t i = 0; i < count; i++)
		cr_expect_eq(row[i].is, row[i].must, "%s is %llu, must be %llu", row[i].what, row[i].is, row[i].must);
}
#define CHECK(rows) rows_check(rows, sizeof(rows) / sizeof((rows)[0]))
/* clang-format off */
#define AT(type, field, must) { #type "." #field, offsetof(type, field), must }
#define SIZE(type, must) { "sizeof " #type, sizeof(type), must }
#define IS(name, must) { #name, (unsigned long long)(name), must }
/* clang-format on */
#define HEAD(type) AT(type, size, 0), AT(type, magic, 4)

Test(abi, structs)
{
	static const struct row rows[] = {
		SIZE(ncclEpTensor_t, 48),
		HEAD(ncclEpTensor_t),
		AT(ncclEpTensor_t, ndim, 8),
		AT(ncclEpTensor_t, datatype, 12),
		AT(ncclEpTensor_t, data, 16),
		AT(ncclEpTensor_t, win_hdl, 24),
		AT(ncclEpTensor_t, win_offset, 32),
		AT(ncclEpTensor_t, sizes, 40),
		SIZE(ncclEpTensorAllocConfig_t, 8),
		HEAD(ncclEpTensorAllocConfig_t),
		SIZE(ncclEpAllocConfig_t, 24),
		AT(ncclEpAllocConfig_t, alloc_fn, 0),
		AT(ncclEpAllocConfig_t, free_fn, 8),
		AT(ncclEpAllocConfig_t, context, 16),
		SIZE(ncclEpGroupConfig_t, 120),
		HEAD(ncclEpGroupConfig_t),
		AT(ncclEpGroupConfig_t, version, 8),
		AT(ncclEpGroupConfig_t, algorithm, 12),
		AT(ncclEpGroupConfig_t, num_experts, 16),
		AT(ncclEpGroupConfig_t, max_dispatch_tokens_per_rank, 20),
		AT(ncclEpGroupConfig_t, max_recv_tokens_per_rank, 24),
		AT(ncclEpGroupConfig_t, max_token_bytes, 28),
		AT(ncclEpGroupConfig_t, rdma_buffer_size, 32),
		AT(ncclEpGroupConfig_t, num_qp_per_rank, 40),
		AT(ncclEpGroupConfig_t, num_channels, 44),
		AT(ncclEpGroupConfig_t, max_num_sms, 48),
		AT(ncclEpGroupConfig_t, alloc, 56),
		AT(ncclEpGroupConfig_t, enable_mask, 80),
		AT(ncclEpGroupConfig_t, timeout_ns, 88),
		AT(ncclEpGroupConfig_t, zero_copy, 96),
		AT(ncclEpGroupConfig_t, overflow_policy, 100),
		AT(ncclEpGroupConfig_t, num_topk, 104),
		AT(ncclEpGroupConfig_t, padding_v2, 108),
		AT(ncclEpGroupConfig_t, dispatch_num_sms, 112),
		AT(ncclEpGroupConfig_t, combine_num_sms, 116),
		SIZE(ncclEpLayoutInfo_t, 48),
		HEAD(ncclEpLayoutInfo_t),
		AT(ncclEpLayoutInfo_t, expert_counters, 8),
		AT(ncclEpLayoutInfo_t, src_rank_counters, 16),
		AT(ncclEpLayoutInfo_t, expert_offsets, 24),
		AT(ncclEpLayoutInfo_t, recv_total_counter, 32),
		AT(ncclEpLayoutInfo_t, recv_topk_idx_kind, 40),
		AT(ncclEpLayoutInfo_t, padding_v2, 44),
		SIZE(ncclEpDispatchInputs_t, 32),
		HEAD(ncclEpDispatchInputs_t),
		AT(ncclEpDispatchInputs_t, tokens, 8),
		AT(ncclEpDispatchInputs_t, topk_weights, 16),
		AT(ncclEpDispatchInputs_t, scales, 24),
		SIZE(ncclEpDispatchOutputs_t, 40),
		HEAD(ncclEpDispatchOutputs_t),
		AT(ncclEpDispatchOutputs_t, tokens, 8),
		AT(ncclEpDispatchOutputs_t, topk_weights, 16),
		AT(ncclEpDispatchOutputs_t, scales, 24),
		AT(ncclEpDispatchOutputs_t, topk_idx, 32),
		SIZE(ncclEpCombineInputs_t, 32),
		HEAD(ncclEpCombineInputs_t),
		AT(ncclEpCombineInputs_t, tokens, 8),
		AT(ncclEpCombineInputs_t, topk_weights, 16),
		AT(ncclEpCombineInputs_t, scales, 24),
		SIZE(ncclEpCombineOutputs_t, 24),
		HEAD(ncclEpCombineOutputs_t),
		AT(ncclEpCombineOutputs_t, tokens, 8),
		AT(ncclEpCombineOutputs_t, topk_weights, 16),
		SIZE(ncclEpHandleConfig_t, 16),
		HEAD(ncclEpHandleConfig_t),
		AT(ncclEpHandleConfig_t, dispatch_output_per_expert_alignment, 8),
		SIZE(ncclEpDispatchConfig_t, 24),
		HEAD(ncclEpDispatchConfig_t),
		AT(ncclEpDispatchConfig_t, send_only, 8),
		AT(ncclEpDispatchConfig_t, round_scales, 12),
		AT(ncclEpDispatchConfig_t, pass_direction, 16),
		AT(ncclEpDispatchConfig_t, quant_recipe, 20),
		SIZE(ncclEpCombineConfig_t, 20),
		HEAD(ncclEpCombineConfig_t),
		AT(ncclEpCombineConfig_t, send_only, 8),
		AT(ncclEpCombineConfig_t, pass_direction, 12),
		AT(ncclEpCombineConfig_t, quant_recipe, 16),
		SIZE(ncclEpCompleteConfig_t, 8),
		HEAD(ncclEpCompleteConfig_t),
		SIZE(((ncclEpGroupConfig_t *)0)->rdma_buffer_size, 8),
		SIZE(((ncclEpGroupConfig_t *)0)->timeout_ns, 8),
		SIZE(((ncclEpGroupConfig_t *)0)->padding_v2, 4),
		SIZE(((ncclEpGroupConfig_t *)0)->dispatch_num_sms, 4),
		SIZE(((ncclEpGroupConfig_t *)0)->combine_num_sms, 4),
		SIZE(((ncclEpTensor_t *)0)->win_offset, 8),
		SIZE(((ncclEpLayoutInfo_t *)0)->padding_v2, 4),
	};

	CHECK(rows);
}

/* The extensions, with the struct that ncclEpGroupNetCounts keeps until 0.3. */
Test(abi, ext_structs)
{
	static const struct row rows[] = {
		SIZE(anyEpNetCounts_t, 48),
		AT(anyEpNetCounts_t, size, 0),
		AT(anyEpNetCounts_t, puts, 8),
		AT(anyEpNetCounts_t, bytes, 16),
		AT(anyEpNetCounts_t, signals, 24),
		IS(ANYEP_NET_COUNTS_V1_SIZE, 32),
		SIZE(ncclEpNetCounts_t, 64),
		AT(ncclEpNetCounts_t, puts, 0),
		AT(ncclEpNetCounts_t, bytes, 8),
		AT(ncclEpNetCounts_t, signals, 16),
		AT(ncclEpNetCounts_t, reserved, 24),
		SIZE(anyEpReachCounts_t, 80),
		AT(anyEpReachCounts_t, size, 0),
		AT(anyEpReachCounts_t, direct, 8),
		AT(anyEpReachCounts_t, staged, 16),
		AT(anyEpReachCounts_t, mapped, 24),
		AT(anyEpReachCounts_t, peak, 32),
		AT(anyEpReachCounts_t, unmapped, 40),
		AT(anyEpReachCounts_t, refused, 48),
		AT(anyEpReachCounts_t, evicted, 56),
		IS(ANYEP_REACH_COUNTS_V1_SIZE, 64),
		IS(ANYEP_REACH_COUNTS_V2_SIZE, 80),
		AT(anyEpReachCounts_t, crossedDispatch, 64),
		AT(anyEpReachCounts_t, crossedCombine, 72),
		SIZE(anyEpWaitStats_t, 24),
		AT(anyEpWaitStats_t, size, 0),
		AT(anyEpWaitStats_t, dispatch, 8),
		AT(anyEpWaitStats_t, combine, 16),
		IS(ANYEP_WAIT_STATS_V1_SIZE, 24),
		AT(anyEpNetCounts_t, commands, 32),
		IS(ANYEP_NET_COUNTS_V2_SIZE, 40),
		AT(anyEpNetCounts_t, joined, 40),
		IS(ANYEP_NET_COUNTS_V3_SIZE, 48),
		SIZE(anyEpNetTimes_t, 200),
		AT(anyEpNetTimes_t, size, 0),
		AT(anyEpNetTimes_t, net, 8),
		AT(anyEpNetTimes_t, device, 72),
		AT(anyEpNetTimes_t, ordered, 136),
		AT(anyEpNetTimes_t, direct, 140),
		AT(anyEpNetTimes_t, operations, 144),
		AT(anyEpNetTimes_t, popped, 152),
		AT(anyEpNetTimes_t, given, 160),
		AT(anyEpNetTimes_t, completed, 168),
		AT(anyEpNetTimes_t, ended, 176),
		AT(anyEpNetTimes_t, arrivals, 184),
		AT(anyEpNetTimes_t, arrived, 192),
		IS(ANYEP_NET_TIMES_V1_SIZE, 200),
	};
	anyEpNetCounts_t made = ANYEP_NET_COUNTS_INIT;
	anyEpNetTimes_t times = ANYEP_NET_TIMES_INIT;
	anyEpReachCounts_t reach = ANYEP_REACH_COUNTS_INIT;

	CHECK(rows);
	cr_expect(times.size == 200 && !times.net[0] && !times.operations && !times.arrived);
	cr_expect(made.size == 48 && !made.joined && !made.commands && !made.puts && !made.bytes && !made.signals);
	cr_expect(reach.size == 80 && !reach.direct && !reach.evicted);
}

/* The table of transports, which plugins are compiled against: a published struct never changes. */
Test(abi, net_structs)
{
	static const struct row rows[] = {
		SIZE(ncclEpNetInit_v1_t, 32),
		AT(ncclEpNetInit_v1_t, log, 0),
		AT(ncclEpNetInit_v1_t, options, 8),
		AT(ncclEpNetInit_v1_t, inner, 16),
		AT(ncclEpNetInit_v1_t, innerNet, 24),
		SIZE(ncclEpNetFlow_v1_t, 16),
		AT(ncclEpNetFlow_v1_t, maxBytes, 0),
		AT(ncclEpNetFlow_v1_t, maxPuts, 8),
		AT(ncclEpNetFlow_v1_t, ringPuts, 12),
		SIZE(ncclEpNetProperties_v1_t, 112),
		AT(ncclEpNetProperties_v1_t, name, 0),
		AT(ncclEpNetProperties_v1_t, pciPath, 8),
		AT(ncclEpNetProperties_v1_t, numaNode, 16),
		AT(ncclEpNetProperties_v1_t, speed, 20),
		AT(ncclEpNetProperties_v1_t, linkLayer, 24),
		AT(ncclEpNetProperties_v1_t, ordered, 28),
		AT(ncclEpNetProperties_v1_t, memKinds, 32),
		AT(ncclEpNetProperties_v1_t, immBits, 36),
		AT(ncclEpNetProperties_v1_t, maxInline, 40),
		AT(ncclEpNetProperties_v1_t, maxPuts, 44),
		AT(ncclEpNetProperties_v1_t, maxContexts, 48),
		AT(ncclEpNetProperties_v1_t, dmaBuf, 52),
		AT(ncclEpNetProperties_v1_t, flushes, 56),
		AT(ncclEpNetProperties_v1_t, forceFlush, 60),
		AT(ncclEpNetProperties_v1_t, maxPutSize, 64),
		AT(ncclEpNetProperties_v1_t, maxRegSize, 72),
		AT(ncclEpNetProperties_v1_t, lowLatency, 80),
		AT(ncclEpNetProperties_v1_t, throughput, 96),
		SIZE(ncclEpNetMem_v1_t, 40),
		AT(ncclEpNetMem_v1_t, ptr, 0),
		AT(ncclEpNetMem_v1_t, size, 8),
		AT(ncclEpNetMem_v1_t, kind, 16),
		AT(ncclEpNetMem_v1_t, fd, 20),
		AT(ncclEpNetMem_v1_t, offset, 24),
		AT(ncclEpNetMem_v1_t, flags, 32),
		SIZE(ncclEpNetPut_v1_t, 64),
		AT(ncclEpNetPut_v1_t, peer, 0),
		AT(ncclEpNetPut_v1_t, flags, 4),
		AT(ncclEpNetPut_v1_t, imm, 8),
		AT(ncclEpNetPut_v1_t, reserved, 12),
		AT(ncclEpNetPut_v1_t, src, 16),
		AT(ncclEpNetPut_v1_t, srcMr, 24),
		AT(ncclEpNetPut_v1_t, dstMr, 32),
		AT(ncclEpNetPut_v1_t, srcOffset, 40),
		AT(ncclEpNetPut_v1_t, dstOffset, 48),
		AT(ncclEpNetPut_v1_t, size, 56),
		SIZE(ncclEpNetHot_v1_t, 32),
		AT(ncclEpNetHot_v1_t, iput, 0),
		AT(ncclEpNetHot_v1_t, iflush, 8),
		AT(ncclEpNetHot_v1_t, test, 16),
		AT(ncclEpNetHot_v1_t, progress, 24),
		SIZE(ncclEpNet_v1_t, 144),
		AT(ncclEpNet_v1_t, version, 0),
		AT(ncclEpNet_v1_t, size, 4),
		AT(ncclEpNet_v1_t, name, 8),
		AT(ncclEpNet_v1_t, hot, 16),
		AT(ncclEpNet_v1_t, init, 24),
		AT(ncclEpNet_v1_t, finalize, 32),
		AT(ncclEpNet_v1_t, devices, 40),
		AT(ncclEpNet_v1_t, getProperties, 48),
		AT(ncclEpNet_v1_t, listen, 56),
		AT(ncclEpNet_v1_t, connect, 64),
		AT(ncclEpNet_v1_t, closeListen, 72),
		AT(ncclEpNet_v1_t, closeComm, 80),
		AT(ncclEpNet_v1_t, createContext, 88),
		AT(ncclEpNet_v1_t, destroyContext, 96),
		AT(ncclEpNet_v1_t, regMr, 104),
		AT(ncclEpNet_v1_t, regMrDmaBuf, 112),
		AT(ncclEpNet_v1_t, shareMr, 120),
		AT(ncclEpNet_v1_t, deregMr, 128),
		AT(ncclEpNet_v1_t, queryLastError, 136),
	};

	CHECK(rows);
}

Test(abi, net_macros)
{
	static const struct row rows[] = {
		IS(NCCL_EP_NET_VERSION, 1),  IS(NCCL_EP_NET_HANDLE_SIZE, 512), IS(NCCL_EP_NET_KEY_SIZE, 256),
		IS(NCCL_EP_NET_MEM_HOST, 1), IS(NCCL_EP_NET_MEM_CUDA, 2),      IS(NCCL_EP_NET_MEM_HIP, 4),
		IS(NCCL_EP_NET_IMM, 1),	     IS(NCCL_EP_NET_INLINE, 2),	       IS(NCCL_EP_NET_MORE, 4),
		IS(NCCL_EP_NET_QUIET, 8),    IS(NCCL_EP_NET_WARN, 0),	       IS(NCCL_EP_NET_INFO, 1),
	};

	CHECK(rows);
	cr_expect_str_eq(NCCL_EP_NET_SYMBOL, "ncclEpNetPlugin_v1");
	cr_expect_eq(NCCL_EP_NET_QUIET_REQUEST, (void *)-1);
}

Test(abi, enums)
{
	static const struct row rows[] = {
		IS(NCCL_EP_ALGO_LOW_LATENCY, 0),
		IS(NCCL_EP_ALGO_HIGH_THROUGHPUT, 1),
		IS(NCCL_EP_LAYOUT_UNSET, 0),
		IS(NCCL_EP_LAYOUT_EXPERT_MAJOR, 1),
		IS(NCCL_EP_LAYOUT_RANK_MAJOR, 2),
		IS(NCCL_EP_LAYOUT_FLAT, 3),
		IS(NCCL_EP_FWD_PASS, 0),
		IS(NCCL_EP_BWD_PASS, 1),
		IS(NCCL_EP_OVERFLOW_AUTO, 0),
		IS(NCCL_EP_OVERFLOW_TRAP, 1),
		IS(NCCL_EP_OVERFLOW_DROP, 2),
		IS(NCCL_EP_ZERO_COPY_AUTO, 0),
		IS(NCCL_EP_ZERO_COPY_OFF, 1),
		IS(NCCL_EP_ZERO_COPY_ON, 2),
		IS(NCCL_EP_EXPERT_ID_AUTO, 0),
		IS(NCCL_EP_EXPERT_ID_LOCAL, 1),
		IS(NCCL_EP_EXPERT_ID_GLOBAL, 2),
		IS(NCCL_EP_DISP_QUANT_NONE, 0),
		IS(NCCL_EP_DISP_QUANT_FWD, 1),
		IS(NCCL_EP_DISP_QUANT_DS_FP8E3M4, 2),
		IS(NCCL_EP_COMB_QUANT_NONE, 0),
		IS(NCCL_EP_COMB_QUANT_NVFP4, 1),
		IS(NCCL_EP_COMB_QUANT_MXFP8, 2),
		SIZE(ncclEpAlgorithm_t, 4),
		SIZE(ncclEpLayout_t, 4),
		SIZE(ncclEpPassDir_t, 4),
		SIZE(ncclEpOverflowPolicy_t, 4),
		SIZE(ncclEpZeroCopyMode_t, 4),
		SIZE(ncclEpExpertIdKind_t, 4),
		SIZE(ncclEpDispQuant_t, 4),
		SIZE(ncclEpCombQuant_t, 4),
		SIZE(ncclResult_t, 4),
		SIZE(ncclDataType_t, 4),
		/* NCCL's own, which ours must not disagree with */
		IS(ncclSuccess, 0),
		IS(ncclUnhandledCudaError, 1),
		IS(ncclSystemError, 2),
		IS(ncclInternalError, 3),
		IS(ncclInvalidArgument, 4),
		IS(ncclInvalidUsage, 5),
		IS(ncclRemoteError, 6),
		IS(ncclInProgress, 7),
		IS(ncclInt8, 0),
		IS(ncclUint8, 1),
		IS(ncclInt32, 2),
		IS(ncclUint32, 3),
		IS(ncclInt64, 4),
		IS(ncclUint64, 5),
		IS(ncclFloat16, 6),
		IS(ncclFloat32, 7),
		IS(ncclFloat64, 8),
		IS(ncclBfloat16, 9),
		IS(ncclFloat8e4m3, 10),
		IS(ncclFloat8e5m2, 11),
		IS(ncclFloat4x2, 12),
		/* our extensions */
		IS(ANYEP_ASYNC_NONE, 0),
		IS(ANYEP_ASYNC_TIMEOUT, 1),
		IS(ANYEP_ASYNC_BAD_EXPERT, 2),
		IS(ANYEP_ASYNC_LIMIT, 3),
		IS(ANYEP_ASYNC_REMOTE, 4),
		IS(ANYEP_ASYNC_OTHER, 5),
		SIZE(anyEpAsyncCode_t, 4),
		/* their former names, until 0.3 */
		IS(NCCL_EP_ASYNC_NONE, 0),
		IS(NCCL_EP_ASYNC_TIMEOUT, 1),
		IS(NCCL_EP_ASYNC_BAD_EXPERT, 2),
		IS(NCCL_EP_ASYNC_LIMIT, 3),
		IS(NCCL_EP_ASYNC_REMOTE, 4),
		IS(NCCL_EP_ASYNC_OTHER, 5),
		SIZE(ncclEpAsyncCode_t, 4),
	};

	CHECK(rows);
}

/* A struct of the first version only, and those that have grown. */
#define V1(name, v1) IS(name##_SIZE, v1), IS(name##_V1_SIZE, v1), IS(name##_CURRENT_VERSION, 1)
#define V2(name, v1, v2) \
	IS(name##_SIZE, v2), IS(name##_V1_SIZE, v1), IS(name##_V2_SIZE, v2), IS(name##_CURRENT_VERSION, 2)
#define V3(name, v1, v2, v3)                                                                         \
	IS(name##_SIZE, v3), IS(name##_V1_SIZE, v1), IS(name##_V2_SIZE, v2), IS(name##_V3_SIZE, v3), \
		IS(name##_CURRENT_VERSION, 3)
/* clang-format off */
#define LAST(type, name, v, must) \
	{ #name " last field of v" #v, NCCL_EP_FIELD_END(type, name##_V##v##_LAST_FIELD), must }
/* clang-format on */

Test(abi, macros)
{
	static const struct row rows[] = {
		IS(NCCL_EP_MAJOR, 0),
		IS(NCCL_EP_MINOR, 2),
		IS(NCCL_EP_PATCH, 0),
		IS(NCCL_EP_VERSION_CODE, 200),
		IS(NCCL_EP_API_VERSION, 3),
		IS(NCCL_EP_AUTO, 0),
		IS(NCCL_EP_MAGIC, 0xC00FFFEE),
		IS(NCCL_EP_TENSOR_MAGIC, 0xCAFECAFE),
		V1(NCCL_EP_TENSOR, 48),
		V1(NCCL_EP_TENSOR_ALLOC_CONFIG, 8),
		V3(NCCL_EP_GROUP_CONFIG, 96, 112, 120),
		V2(NCCL_EP_LAYOUT_INFO, 40, 48),
		V1(NCCL_EP_DISPATCH_INPUTS, 32),
		V1(NCCL_EP_DISPATCH_OUTPUTS, 40),
		V2(NCCL_EP_COMBINE_INPUTS, 24, 32),
		V1(NCCL_EP_COMBINE_OUTPUTS, 24),
		V1(NCCL_EP_HANDLE_CONFIG, 16),
		V2(NCCL_EP_DISPATCH_CONFIG, 20, 24),
		V2(NCCL_EP_COMBINE_CONFIG, 16, 20),
		V1(NCCL_EP_COMPLETE_CONFIG, 8),
		LAST(ncclEpTensor_t, NCCL_EP_TENSOR, 1, 48),
		LAST(ncclEpTensorAllocConfig_t, NCCL_EP_TENSOR_ALLOC_CONFIG, 1, 8),
		LAST(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 1, 96),
		LAST(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 2, 112),
		LAST(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 3, 120),
		LAST(ncclEpLayoutInfo_t, NCCL_EP_LAYOUT_INFO, 1, 40),
		LAST(ncclEpLayoutInfo_t, NCCL_EP_LAYOUT_INFO, 2, 48),
		LAST(ncclEpDispatchInputs_t, NCCL_EP_DISPATCH_INPUTS, 1, 32),
		LAST(ncclEpDispatchOutputs_t, NCCL_EP_DISPATCH_OUTPUTS, 1, 40),
		LAST(ncclEpCombineInputs_t, NCCL_EP_COMBINE_INPUTS, 1, 24),
		LAST(ncclEpCombineInputs_t, NCCL_EP_COMBINE_INPUTS, 2, 32),
		LAST(ncclEpCombineOutputs_t, NCCL_EP_COMBINE_OUTPUTS, 1, 24),
		LAST(ncclEpHandleConfig_t, NCCL_EP_HANDLE_CONFIG, 1, 16),
		LAST(ncclEpDispatchConfig_t, NCCL_EP_DISPATCH_CONFIG, 1, 20),
		LAST(ncclEpDispatchConfig_t, NCCL_EP_DISPATCH_CONFIG, 2, 24),
		LAST(ncclEpCombineConfig_t, NCCL_EP_COMBINE_CONFIG, 1, 16),
		LAST(ncclEpCombineConfig_t, NCCL_EP_COMBINE_CONFIG, 2, 20),
		LAST(ncclEpCompleteConfig_t, NCCL_EP_COMPLETE_CONFIG, 1, 8),
	};
	ncclEpDispatchConfig_t old = { .size = 20, .magic = NCCL_EP_MAGIC }, *none = NULL;

	CHECK(rows);
	cr_expect(NCCL_EP_HAS_FIELD(&old, ncclEpDispatchConfig_t, pass_direction));
	cr_expect_not(NCCL_EP_HAS_FIELD(&old, ncclEpDispatchConfig_t, quant_recipe));
	cr_expect_not(NCCL_EP_HAS_FIELD(none, ncclEpDispatchConfig_t, size));
}

#define INIT(type, name, bytes, number)                                                    \
	do {                                                                               \
		type made = name##_INIT;                                                   \
		unsigned char rest[sizeof(made)] = { 0 };                                  \
		cr_expect_eq(made.size, bytes, #name "_INIT: size is %u", made.size);      \
		cr_expect_eq(made.magic, number, #name "_INIT: magic is %x", made.magic);  \
		memcpy(rest, &made, 8);                                                    \
		if (!strcmp(#name, "NCCL_EP_GROUP_CONFIG"))                                \
			memcpy(rest + 8, &(unsigned){ 3 }, 4);                             \
		cr_expect_arr_eq(&made, rest, sizeof(made), #name "_INIT: rest not zero"); \
	} while (0)

Test(abi, initialisers)
{
	INIT(ncclEpTensor_t, NCCL_EP_TENSOR, 48, 0xCAFECAFE);
	INIT(ncclEpTensorAllocConfig_t, NCCL_EP_TENSOR_ALLOC_CONFIG, 8, 0xC00FFFEE);
	INIT(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 120, 0xC00FFFEE);
	INIT(ncclEpLayoutInfo_t, NCCL_EP_LAYOUT_INFO, 48, 0xC00FFFEE);
	INIT(ncclEpDispatchInputs_t, NCCL_EP_DISPATCH_INPUTS, 32, 0xC00FFFEE);
	INIT(ncclEpDispatchOutputs_t, NCCL_EP_DISPATCH_OUTPUTS, 40, 0xC00FFFEE);
	INIT(ncclEpCombineInputs_t, NCCL_EP_COMBINE_INPUTS, 32, 0xC00FFFEE);
	INIT(ncclEpCombineOutputs_t, NCCL_EP_COMBINE_OUTPUTS, 24, 0xC00FFFEE);
	INIT(ncclEpHandleConfig_t, NCCL_EP_HANDLE_CONFIG, 16, 0xC00FFFEE);
	INIT(ncclEpDispatchConfig_t, NCCL_EP_DISPATCH_CONFIG, 24, 0xC00FFFEE);
	INIT(ncclEpCombineConfig_t, NCCL_EP_COMBINE_CONFIG, 20, 0xC00FFFEE);
	INIT(ncclEpCompleteConfig_t, NCCL_EP_COMPLETE_CONFIG, 8, 0xC00FFFEE);

	ncclEpTensor_t inlined = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 3 };
	cr_expect(inlined.size == 48 && inlined.magic == 0xCAFECAFE && inlined.ndim == 3 && !inlined.sizes);
}

/* The 18 functions and ours, by their exact types: a changed signature does not compile. */
static ncclResult_t (*const version)(int *) = ncclEpGetVersion;
static ncclResult_t (*const tensor_alloc)(ncclEpTensor_t **, unsigned, ncclDataType_t, const size_t *,
					  const ncclEpTensorAllocConfig_t *) = ncclEpTensorAlloc;
static ncclResult_t (*const tensor_destroy)(ncclEpTensor_t *) = ncclEpTensorDestroy;
static ncclResult_t (*const group_create)(struct ncclEpGroup **, ncclComm_t,
					  const ncclEpGroupConfig_t *) = ncclEpCreateGroup;
static ncclResult_t (*const group_destroy)(struct ncclEpGroup *) = ncclEpGroupDestroy;
static ncclResult_t (*const mem_size)(struct ncclEpGroup *, ncclEpLayout_t, const ncclEpHandleConfig_t *, size_t *,
				      int) = ncclEpHandleMemSize;
static ncclResult_t (*const handle_init)(struct ncclEpHandle **, struct ncclEpGroup *, ncclEpLayout_t,
					 const ncclEpHandleConfig_t *, int, const ncclEpTensor_t *) = ncclEpInitHandle;
static ncclResult_t (*const handle_update)(struct ncclEpHandle *, const struct ncclEpTensor *,
					   const ncclEpLayoutInfo_t *, cudaStream_t) = ncclEpUpdateHandle;
static ncclResult_t (*const handle_create)(struct ncclEpHandle **, struct ncclEpGroup *, ncclEpLayout_t,
					   const ncclEpTensor_t *, const ncclEpLayoutInfo_t *,
					   const ncclEpHandleConfig_t *, cudaStream_t) = ncclEpCreateHandle;
static ncclResult_t (*const handle_destroy)(struct ncclEpHandle *) = ncclEpHandleDestroy;
static ncclResult_t (*const dispatch)(struct ncclEpHandle *, const ncclEpDispatchInputs_t *,
				      const ncclEpDispatchOutputs_t *, const ncclEpLayoutInfo_t *,
				      const ncclEpDispatchConfig_t *, cudaStream_t) = ncclEpDispatch;
static ncclResult_t (*const combine)(struct ncclEpHandle *, const ncclEpCombineInputs_t *,
				     const ncclEpCombineOutputs_t *, const ncclEpCombineConfig_t *,
				     cudaStream_t) = ncclEpCombine;
static ncclResult_t (*const complete)(struct ncclEpHandle *, const struct ncclEpCompleteConfig *,
				      cudaStream_t) = ncclEpComplete;
static ncclResult_t (*const mask_query)(struct ncclEpGroup *, int *, cudaStream_t) = ncclEpMaskQuery;
static ncclResult_t (*const mask_update)(struct ncclEpGroup *, const int *, cudaStream_t) = ncclEpMaskUpdate;
static ncclResult_t (*const mask_clean)(struct ncclEpGroup *, cudaStream_t) = ncclEpMaskClean;
static ncclResult_t (*const async_error)(struct ncclEpGroup *, int *) = ncclEpGetAsyncError;
static ncclResult_t (*const error_clear)(struct ncclEpGroup *) = ncclEpErrorClear;
static ncclResult_t (*const ext_version)(int *) = anyEpGetVersion;
static const char *(*const last_error)(void) = anyEpGetLastError;
static ncclResult_t (*const window_bytes)(struct ncclEpGroup *, size_t *) = anyEpGroupWindowBytes;
static ncclResult_t (*const net_counts)(struct ncclEpGroup *, anyEpNetCounts_t *) = anyEpGroupNetCounts;
static ncclResult_t (*const dump)(struct ncclEpGroup *, const char *) = anyEpGroupDump;
static ncclResult_t (*const net_times)(struct ncclEpGroup *, anyEpNetTimes_t *) = anyEpGroupNetTimes;
static ncclResult_t (*const stream_create)(cudaStream_t *) = anyEpHostStreamCreate;
static ncclResult_t (*const stream_sync)(cudaStream_t) = anyEpHostStreamSynchronize;
static ncclResult_t (*const stream_destroy)(cudaStream_t) = anyEpHostStreamDestroy;
/* Their former names, until 0.3. volatile: a compiler may assume that two names have two addresses. */
static const char *(*volatile old_last_error)(void) = ncclEpGetLastError;
static ncclResult_t (*volatile old_window_bytes)(struct ncclEpGroup *, size_t *) = ncclEpGroupWindowBytes;
static ncclResult_t (*volatile old_net_counts)(struct ncclEpGroup *, ncclEpNetCounts_t *) = ncclEpGroupNetCounts;
static ncclResult_t (*volatile old_stream_create)(cudaStream_t *) = ncclEpHostStreamCreate;
static ncclResult_t (*volatile old_stream_sync)(cudaStream_t) = ncclEpHostStreamSynchronize;
static ncclResult_t (*volatile old_stream_destroy)(cudaStream_t) = ncclEpHostStreamDestroy;
static ncclEpAllocFn_t alloc_type = (cudaError_t(*)(void **, size_t, void *))NULL;
static ncclEpFreeFn_t free_type = (cudaError_t(*)(void *, void *))NULL;

Test(abi, functions)
{
	int code = -1;

	cr_expect(tensor_alloc && tensor_destroy && group_create && group_destroy && mem_size && handle_init);
	cr_expect(handle_update && handle_create && handle_destroy && dispatch && combine && complete);
	cr_expect(mask_query && mask_update && mask_clean && async_error && error_clear);
	cr_expect(!alloc_type && !free_type);
	cr_expect_eq(version(&code), ncclSuccess);
	cr_expect_eq(code, 200);
}

Test(abi, ext_functions)
{
	cr_expect(net_counts && old_net_counts && net_times && dump);
	cr_expect_eq(old_last_error, last_error);
	cr_expect_eq(old_window_bytes, window_bytes);
	cr_expect_eq(old_stream_create, stream_create);
	cr_expect_eq(old_stream_sync, stream_sync);
	cr_expect_eq(old_stream_destroy, stream_destroy);
}

/* One version of ours: of the build, of the header, in its three forms, and of the library. */
Test(abi, ext_version)
{
	char text[32];
	int code = -1;

	cr_expect_str_eq(ANYEP_VERSION, EP_VERSION);
	snprintf(text, sizeof(text), "%d.%d.%d", ANYEP_MAJOR, ANYEP_MINOR, ANYEP_PATCH);
	cr_expect_str_eq(text, EP_VERSION);
	cr_expect_eq(ext_version(&code), ncclSuccess);
	cr_expect_eq(code, ANYEP_MAJOR * 10000 + ANYEP_MINOR * 100 + ANYEP_PATCH);
}
