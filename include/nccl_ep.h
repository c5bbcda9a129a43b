/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert parallelism for mixture-of-experts layers: dispatch sends tokens to the ranks that own their experts, combine
 * returns them summed. Names, layouts and values are NCCL EP's, so that a program built against either header runs on
 * either library.
 *
 * In the comments: R ranks, T tokens of this rank in this call, Tmax = max_dispatch_tokens_per_rank, K = top-k,
 * H = hidden size, E experts, El = E / R experts of each rank (expert e lives on rank e / El), N rows received.
 *
 * Every struct begins with its size and a magic number; start from its _INIT macro. Structs only ever grow at the end:
 * the library reads what `size` covers and takes zero for the rest. ncclInvalidArgument: an argument is wrong;
 * ncclInvalidUsage: the call is valid, but not in this state or configuration. Outputs are written on success only,
 * except that *group and *handle become NULL on failure. anyEpGetLastError of nccl_ep_ext.h returns the message.
 */
#ifndef NCCL_EP_H_
#define NCCL_EP_H_

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_ep/ep_enums.h"

#define NCCL_EP_MAJOR 0
#define NCCL_EP_MINOR 2
#define NCCL_EP_PATCH 0
#define NCCL_EP_VERSION_CODE (NCCL_EP_MAJOR * 10000 + NCCL_EP_MINOR * 100 + NCCL_EP_PATCH)

/* The fields and rules a caller was compiled for. */
#define NCCL_EP_API_VERSION 3

#define NCCL_EP_MAGIC 0xC00FFFEEu
#define NCCL_EP_TENSOR_MAGIC 0xCAFECAFEu

/* Two fp4 values per byte; tensor dimensions count bytes, so the width is H / 2. */
#ifndef ncclFloat4x2
#define ncclFloat4x2 ((ncclDataType_t)12)
#endif

#define NCCL_EP_STRUCT_INIT(type, magic_number) ((type){ .size = (unsigned int)sizeof(type), .magic = (magic_number) })
/* The size of a struct whose last field is `field`. */
#define NCCL_EP_FIELD_END(type, field) ((unsigned int)(offsetof(type, field) + sizeof(((type *)0)->field)))
#define NCCL_EP_HAS_FIELD(ptr, type, field) ((ptr) != NULL && (ptr)->size >= NCCL_EP_FIELD_END(type, field))

#ifdef __cplusplus
#define NCCL_EP_STATIC_ASSERT(cond, text) static_assert(cond, text)
#else
#define NCCL_EP_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif
/* Version v of a struct ends with its named last field; the newest version is the whole struct. */
#define NCCL_EP_ASSERT_VERSION(type, name, v)                                                          \
	NCCL_EP_STATIC_ASSERT(NCCL_EP_FIELD_END(type, name##_V##v##_LAST_FIELD) == name##_V##v##_SIZE, \
			      #type " has changed in version " #v)
#define NCCL_EP_ASSERT_NEWEST(type, name, v)                                                    \
	NCCL_EP_ASSERT_VERSION(type, name, v);                                                  \
	NCCL_EP_STATIC_ASSERT(name##_SIZE == name##_V##v##_SIZE && name##_CURRENT_VERSION == v, \
			      #type " has grown without a new version")

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclEpGroup *ncclEpGroup_t;
typedef struct ncclEpHandle *ncclEpHandle_t;

/* ---- tensors ---- */

/*
 * A dense row-major tensor in device memory: at `data` or, with win_hdl set, win_offset bytes (a multiple of 16) into a
 * window of ncclCommWindowRegister. The descriptor owns nothing: data and sizes[ndim] belong to the caller and must
 * outlive the calls that use them. data may be NULL if a dimension is 0.
 */
typedef struct ncclEpTensor {
	unsigned int size;
	unsigned int magic;
	unsigned int ndim;
	ncclDataType_t datatype;
	void *data;
	ncclWindow_t win_hdl;
	uint64_t win_offset;
	size_t *sizes;
} ncclEpTensor_t;

/* Inside an initialiser: { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, ... }. */
#define NCCL_EP_TENSOR_INIT_INLINE .size = (unsigned int)sizeof(ncclEpTensor_t), .magic = NCCL_EP_TENSOR_MAGIC
#define NCCL_EP_TENSOR_INIT ((ncclEpTensor_t){ NCCL_EP_TENSOR_INIT_INLINE })
#define NCCL_EP_TENSOR_SIZE ((unsigned int)sizeof(ncclEpTensor_t))
#define NCCL_EP_TENSOR_V1_SIZE 48u
#define NCCL_EP_TENSOR_V1_LAST_FIELD sizes
#define NCCL_EP_TENSOR_CURRENT_VERSION 1
NCCL_EP_ASSERT_NEWEST(ncclEpTensor_t, NCCL_EP_TENSOR, 1);

typedef struct {
	unsigned int size;
	unsigned int magic;
} ncclEpTensorAllocConfig_t;

#define NCCL_EP_TENSOR_ALLOC_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpTensorAllocConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_TENSOR_ALLOC_CONFIG_SIZE ((unsigned int)sizeof(ncclEpTensorAllocConfig_t))
#define NCCL_EP_TENSOR_ALLOC_CONFIG_V1_SIZE 8u
#define NCCL_EP_TENSOR_ALLOC_CONFIG_V1_LAST_FIELD magic
#define NCCL_EP_TENSOR_ALLOC_CONFIG_CURRENT_VERSION 1
NCCL_EP_ASSERT_NEWEST(ncclEpTensorAllocConfig_t, NCCL_EP_TENSOR_ALLOC_CONFIG, 1);

/* ---- groups ---- */

/* Allocator for the memory of handles; both functions or neither. context is passed to every call. */
typedef cudaError_t (*ncclEpAllocFn_t)(void **ptr, size_t bytes, void *context);
typedef cudaError_t (*ncclEpFreeFn_t)(void *ptr, void *context);

typedef struct {
	ncclEpAllocFn_t alloc_fn;
	ncclEpFreeFn_t free_fn;
	void *context;
} ncclEpAllocConfig_t;

#define NCCL_EP_ALLOC_CONFIG_INIT ((ncclEpAllocConfig_t){ .alloc_fn = NULL, .free_fn = NULL, .context = NULL })

/* Must be equal on all ranks, except alloc. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	unsigned int version; /* NCCL_EP_API_VERSION of the caller's header */
	ncclEpAlgorithm_t algorithm;
	unsigned int num_experts;		   /* E, a multiple of R */
	unsigned int max_dispatch_tokens_per_rank; /* Tmax */
	unsigned int max_recv_tokens_per_rank;	   /* HT: rows of outputs, >= Tmax; AUTO = eager. LL: ignored */
	unsigned int max_token_bytes;		   /* of a row with its scales; HT: a multiple of 16 */
	unsigned long rdma_buffer_size;		   /* LL: bytes of the window; AUTO = grows with the handles */
	unsigned int num_qp_per_rank;
	unsigned int num_channels;
	unsigned int max_num_sms; /* multiprocessors an operation may use */
	ncclEpAllocConfig_t alloc;
	unsigned int enable_mask; /* LL: a rank that does not answer is masked; the others continue */
	uint64_t timeout_ns;	  /* of every wait; 0 = about 100 s. NCCL_EP_TIMEOUT_MS overrides it */
	/* version 2 */
	ncclEpZeroCopyMode_t zero_copy;
	ncclEpOverflowPolicy_t overflow_policy;
	unsigned int num_topk; /* largest K of any handle; 0 = unknown */
	unsigned char padding_v2[4];
	/* version 3 */
	unsigned int dispatch_num_sms; /* in place of max_num_sms, for dispatch; at most what the device has */
	unsigned int combine_num_sms;  /* and for combine */
} ncclEpGroupConfig_t;

#define NCCL_EP_GROUP_CONFIG_INIT                                                  \
	((ncclEpGroupConfig_t){ .size = (unsigned int)sizeof(ncclEpGroupConfig_t), \
				.magic = NCCL_EP_MAGIC,                            \
				.version = NCCL_EP_API_VERSION })
#define NCCL_EP_GROUP_CONFIG_SIZE ((unsigned int)sizeof(ncclEpGroupConfig_t))
#define NCCL_EP_GROUP_CONFIG_V1_SIZE 96u
#define NCCL_EP_GROUP_CONFIG_V1_LAST_FIELD timeout_ns
#define NCCL_EP_GROUP_CONFIG_V2_SIZE 112u
#define NCCL_EP_GROUP_CONFIG_V2_LAST_FIELD padding_v2
#define NCCL_EP_GROUP_CONFIG_V3_SIZE 120u
#define NCCL_EP_GROUP_CONFIG_V3_LAST_FIELD combine_num_sms
#define NCCL_EP_GROUP_CONFIG_CURRENT_VERSION 3
NCCL_EP_ASSERT_VERSION(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 1);
NCCL_EP_ASSERT_VERSION(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 2);
NCCL_EP_ASSERT_NEWEST(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 3);

/* ---- arguments of operations ---- */

/* Counters that the library writes, in device or pinned host memory. HT: in UpdateHandle, and in a forward Dispatch of
 * the expert-major layout, which takes longer tensors too; LL: in Dispatch. NULL members are skipped. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *expert_counters;    /* [El] rows of each local expert */
	ncclEpTensor_t *src_rank_counters;  /* [R] rows from each rank; LL rank-major */
	ncclEpTensor_t *expert_offsets;	    /* [El] first row of each expert; HT expert-major */
	ncclEpTensor_t *recv_total_counter; /* [1] total rows; HT */
	/* version 2 */
	ncclEpExpertIdKind_t recv_topk_idx_kind;
	unsigned char padding_v2[4];
} ncclEpLayoutInfo_t;

#define NCCL_EP_LAYOUT_INFO_INIT NCCL_EP_STRUCT_INIT(ncclEpLayoutInfo_t, NCCL_EP_MAGIC)
#define NCCL_EP_LAYOUT_INFO_SIZE ((unsigned int)sizeof(ncclEpLayoutInfo_t))
#define NCCL_EP_LAYOUT_INFO_V1_SIZE 40u
#define NCCL_EP_LAYOUT_INFO_V1_LAST_FIELD recv_total_counter
#define NCCL_EP_LAYOUT_INFO_V2_SIZE 48u
#define NCCL_EP_LAYOUT_INFO_V2_LAST_FIELD padding_v2
#define NCCL_EP_LAYOUT_INFO_CURRENT_VERSION 2
NCCL_EP_ASSERT_VERSION(ncclEpLayoutInfo_t, NCCL_EP_LAYOUT_INFO, 1);
NCCL_EP_ASSERT_NEWEST(ncclEpLayoutInfo_t, NCCL_EP_LAYOUT_INFO, 2);

typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens;	      /* [T, H] */
	ncclEpTensor_t *topk_weights; /* [T, K] f32; not in LL expert-major, not in BWD */
	ncclEpTensor_t *scales;	      /* [T, any]; NCCL_EP_DISP_QUANT_FWD only */
} ncclEpDispatchInputs_t;

#define NCCL_EP_DISPATCH_INPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpDispatchInputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_DISPATCH_INPUTS_SIZE ((unsigned int)sizeof(ncclEpDispatchInputs_t))
#define NCCL_EP_DISPATCH_INPUTS_V1_SIZE 32u
#define NCCL_EP_DISPATCH_INPUTS_V1_LAST_FIELD scales
#define NCCL_EP_DISPATCH_INPUTS_CURRENT_VERSION 1
NCCL_EP_ASSERT_NEWEST(ncclEpDispatchInputs_t, NCCL_EP_DISPATCH_INPUTS, 1);

/* Rows are [El, R * Tmax] in LL expert-major, [R, Tmax] in LL rank-major, [N] in HT. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens;	      /* [rows, H] */
	ncclEpTensor_t *topk_weights; /* [rows, K] f32, [N] in HT expert-major; not in LL expert-major and BWD */
	ncclEpTensor_t *scales;	      /* [rows, width]; with quantisation only */
	ncclEpTensor_t *topk_idx;     /* [rows, K]: int32 in LL rank-major, int64 in HT flat; not in BWD */
} ncclEpDispatchOutputs_t;

#define NCCL_EP_DISPATCH_OUTPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpDispatchOutputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_DISPATCH_OUTPUTS_SIZE ((unsigned int)sizeof(ncclEpDispatchOutputs_t))
#define NCCL_EP_DISPATCH_OUTPUTS_V1_SIZE 40u
#define NCCL_EP_DISPATCH_OUTPUTS_V1_LAST_FIELD topk_idx
#define NCCL_EP_DISPATCH_OUTPUTS_CURRENT_VERSION 1
NCCL_EP_ASSERT_NEWEST(ncclEpDispatchOutputs_t, NCCL_EP_DISPATCH_OUTPUTS, 1);

typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens;	      /* [rows, H], in the order of dispatch's output */
	ncclEpTensor_t *topk_weights; /* HT BWD: [n, K] f32 in flat, [n] in expert-major */
	/* version 2 */
	ncclEpTensor_t *scales; /* with NVFP4 only, so NULL for now */
} ncclEpCombineInputs_t;

#define NCCL_EP_COMBINE_INPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpCombineInputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMBINE_INPUTS_SIZE ((unsigned int)sizeof(ncclEpCombineInputs_t))
#define NCCL_EP_COMBINE_INPUTS_V1_SIZE 24u
#define NCCL_EP_COMBINE_INPUTS_V1_LAST_FIELD topk_weights
#define NCCL_EP_COMBINE_INPUTS_V2_SIZE 32u
#define NCCL_EP_COMBINE_INPUTS_V2_LAST_FIELD scales
#define NCCL_EP_COMBINE_INPUTS_CURRENT_VERSION 2
NCCL_EP_ASSERT_VERSION(ncclEpCombineInputs_t, NCCL_EP_COMBINE_INPUTS, 1);
NCCL_EP_ASSERT_NEWEST(ncclEpCombineInputs_t, NCCL_EP_COMBINE_INPUTS, 2);

typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens;	      /* [T, H] */
	ncclEpTensor_t *topk_weights; /* [T, K] f32. LL expert-major: read, the weights of the sum. HT BWD: written */
} ncclEpCombineOutputs_t;

#define NCCL_EP_COMBINE_OUTPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpCombineOutputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMBINE_OUTPUTS_SIZE ((unsigned int)sizeof(ncclEpCombineOutputs_t))
#define NCCL_EP_COMBINE_OUTPUTS_V1_SIZE 24u
#define NCCL_EP_COMBINE_OUTPUTS_V1_LAST_FIELD topk_weights
#define NCCL_EP_COMBINE_OUTPUTS_CURRENT_VERSION 1
NCCL_EP_ASSERT_NEWEST(ncclEpCombineOutputs_t, NCCL_EP_COMBINE_OUTPUTS, 1);

/* ---- configurations; NULL in a call means defaults ---- */

typedef struct {
	unsigned int size;
	unsigned int magic;
	size_t dispatch_output_per_expert_alignment; /* HT expert-major: zones are padded to it; a power of two, or 0 */
} ncclEpHandleConfig_t;

#define NCCL_EP_HANDLE_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpHandleConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_HANDLE_CONFIG_SIZE ((unsigned int)sizeof(ncclEpHandleConfig_t))
#define NCCL_EP_HANDLE_CONFIG_V1_SIZE 16u
#define NCCL_EP_HANDLE_CONFIG_V1_LAST_FIELD dispatch_output_per_expert_alignment
#define NCCL_EP_HANDLE_CONFIG_CURRENT_VERSION 1
NCCL_EP_ASSERT_NEWEST(ncclEpHandleConfig_t, NCCL_EP_HANDLE_CONFIG, 1);

typedef struct {
	unsigned int size;
	unsigned int magic;
	unsigned int send_only;	   /* LL: only start the transfers; ncclEpComplete receives */
	unsigned int round_scales; /* DS_FP8E3M4: scales are powers of two */
	ncclEpPassDir_t pass_direction;
	/* version 2 */
	ncclEpDispQuant_t quant_recipe;
} ncclEpDispatchConfig_t;

#define NCCL_EP_DISPATCH_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpDispatchConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_DISPATCH_CONFIG_SIZE ((unsigned int)sizeof(ncclEpDispatchConfig_t))
#define NCCL_EP_DISPATCH_CONFIG_V1_SIZE 20u
#define NCCL_EP_DISPATCH_CONFIG_V1_LAST_FIELD pass_direction
#define NCCL_EP_DISPATCH_CONFIG_V2_SIZE 24u
#define NCCL_EP_DISPATCH_CONFIG_V2_LAST_FIELD quant_recipe
#define NCCL_EP_DISPATCH_CONFIG_CURRENT_VERSION 2
NCCL_EP_ASSERT_VERSION(ncclEpDispatchConfig_t, NCCL_EP_DISPATCH_CONFIG, 1);
NCCL_EP_ASSERT_NEWEST(ncclEpDispatchConfig_t, NCCL_EP_DISPATCH_CONFIG, 2);

typedef struct {
	unsigned int size;
	unsigned int magic;
	unsigned int send_only;
	ncclEpPassDir_t pass_direction;
	/* version 2 */
	ncclEpCombQuant_t quant_recipe;
} ncclEpCombineConfig_t;

#define NCCL_EP_COMBINE_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpCombineConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMBINE_CONFIG_SIZE ((unsigned int)sizeof(ncclEpCombineConfig_t))
#define NCCL_EP_COMBINE_CONFIG_V1_SIZE 16u
#define NCCL_EP_COMBINE_CONFIG_V1_LAST_FIELD pass_direction
#define NCCL_EP_COMBINE_CONFIG_V2_SIZE 20u
#define NCCL_EP_COMBINE_CONFIG_V2_LAST_FIELD quant_recipe
#define NCCL_EP_COMBINE_CONFIG_CURRENT_VERSION 2
NCCL_EP_ASSERT_VERSION(ncclEpCombineConfig_t, NCCL_EP_COMBINE_CONFIG, 1);
NCCL_EP_ASSERT_NEWEST(ncclEpCombineConfig_t, NCCL_EP_COMBINE_CONFIG, 2);

typedef struct ncclEpCompleteConfig {
	unsigned int size;
	unsigned int magic;
} ncclEpCompleteConfig_t;

#define NCCL_EP_COMPLETE_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpCompleteConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMPLETE_CONFIG_SIZE ((unsigned int)sizeof(ncclEpCompleteConfig_t))
#define NCCL_EP_COMPLETE_CONFIG_V1_SIZE 8u
#define NCCL_EP_COMPLETE_CONFIG_V1_LAST_FIELD magic
#define NCCL_EP_COMPLETE_CONFIG_CURRENT_VERSION 1
NCCL_EP_ASSERT_NEWEST(ncclEpCompleteConfig_t, NCCL_EP_COMPLETE_CONFIG, 1);

/* ---- functions ---- */

/* NCCL_EP_VERSION_CODE of the library. */
ncclResult_t ncclEpGetVersion(int *version);

/* Allocates a descriptor with a copy of sizes; data is NULL, for the caller to set. */
ncclResult_t ncclEpTensorAlloc(ncclEpTensor_t **tensor, unsigned int ndim, ncclDataType_t datatype, const size_t *sizes,
			       const ncclEpTensorAllocConfig_t *config);
/* For tensors of ncclEpTensorAlloc only; does not free the data. */
ncclResult_t ncclEpTensorDestroy(ncclEpTensor_t *tensor);

/* Collective over comm, which must outlive the group. An invalid configuration on one rank fails all ranks. */
ncclResult_t ncclEpCreateGroup(ncclEpGroup_t *group, ncclComm_t comm, const ncclEpGroupConfig_t *config);
/* Collective; all handles must have been destroyed. Waits for the operations launched on the group, at most its
 * timeout; if they have not ended by then it is an error, and the group's memory stays mapped. Replays of a captured
 * graph are not waited for: synchronise with them first. */
ncclResult_t ncclEpGroupDestroy(ncclEpGroup_t group);

/* Bytes of handle_mem that ncclEpInitHandle needs. num_topk -1 (HT): the group's num_topk, else E. */
ncclResult_t ncclEpHandleMemSize(ncclEpGroup_t group, ncclEpLayout_t layout, const ncclEpHandleConfig_t *config,
				 size_t *size, int num_topk);
/*
 * handle_mem: NULL, or uint8 [bytes] of the caller that outlives the handle. In HT it holds the complete routing and is
 * not cleared: a second handle over it may run BWD dispatch and combine without an Update of its own. In LL with
 * rdma_buffer_size AUTO the call is collective if the window has to grow.
 */
ncclResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t group, ncclEpLayout_t layout,
			      const ncclEpHandleConfig_t *config, int num_topk, const ncclEpTensor_t *handle_mem);
/* topk_idx: [T, K] int32 or int64, -1 = no expert. LL keeps the descriptor, so the buffer must live until combine, and
 * layout_info must be NULL. HT copies it and is collective. */
ncclResult_t ncclEpUpdateHandle(ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream);
/* Init with K from topk_idx, then Update. */
ncclResult_t ncclEpCreateHandle(ncclEpHandle_t *handle, ncclEpGroup_t group, ncclEpLayout_t layout,
				const ncclEpTensor_t *topk_idx, const ncclEpLayoutInfo_t *layout_info,
				const ncclEpHandleConfig_t *config, cudaStream_t stream);
/* Operations launched with the handle may still run: memory that it owns is kept until ncclEpGroupDestroy; memory and
 * tensors of the caller must outlive them. */
ncclResult_t ncclEpHandleDestroy(ncclEpHandle_t handle);

/* Collective. layout_info must be NULL in a backward pass. */
ncclResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *inputs,
			    const ncclEpDispatchOutputs_t *outputs, const ncclEpLayoutInfo_t *layout_info,
			    const ncclEpDispatchConfig_t *config, cudaStream_t stream);
/* Collective. */
ncclResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *inputs,
			   const ncclEpCombineOutputs_t *outputs, const ncclEpCombineConfig_t *config,
			   cudaStream_t stream);
/* Receives for a send_only operation; succeeds if there is none. */
ncclResult_t ncclEpComplete(ncclEpHandle_t handle, const ncclEpCompleteConfig_t *config, cudaStream_t stream);

/* Masks (enable_mask): one int per rank, 1 active, 0 masked. mask is device memory in Query, host memory in Update. */
ncclResult_t ncclEpMaskQuery(ncclEpGroup_t group, int *mask, cudaStream_t stream);
ncclResult_t ncclEpMaskUpdate(ncclEpGroup_t group, const int *mask, cudaStream_t stream);
/* Collective over the ranks that are left: a barrier, then all masks are 1 again. */
ncclResult_t ncclEpMaskClean(ncclEpGroup_t group, cudaStream_t stream);

/* A failure after a call had returned: 0 none, 1 timeout, else a code of nccl_ep_ext.h. */
ncclResult_t ncclEpGetAsyncError(ncclEpGroup_t group, int *error);
ncclResult_t ncclEpErrorClear(ncclEpGroup_t group);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
