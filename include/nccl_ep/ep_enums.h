/* SPDX-License-Identifier: Apache-2.0 */
/* All enumerations. Values are fixed; new ones are added at the end. */
#ifndef NCCL_EP_ENUMS_H_
#define NCCL_EP_ENUMS_H_

/* For a size, count or mode: the library chooses. */
#define NCCL_EP_AUTO 0

typedef enum {
	NCCL_EP_ALGO_LOW_LATENCY = 0,	  /* few tokens, lowest latency */
	NCCL_EP_ALGO_HIGH_THROUGHPUT = 1, /* many tokens, highest bandwidth */
} ncclEpAlgorithm_t;

/* The order of received rows. EXPERT_MAJOR exists in both algorithms, RANK_MAJOR in LL, FLAT in HT. */
typedef enum {
	NCCL_EP_LAYOUT_UNSET = 0, /* never valid */
	NCCL_EP_LAYOUT_EXPERT_MAJOR = 1,
	NCCL_EP_LAYOUT_RANK_MAJOR = 2,
	NCCL_EP_LAYOUT_FLAT = 3,
} ncclEpLayout_t;

/* Forward or backward pass of training; BWD is HT only. */
typedef enum {
	NCCL_EP_FWD_PASS = 0,
	NCCL_EP_BWD_PASS = 1,
} ncclEpPassDir_t;

/* HT: more rows arrive than max_recv_tokens_per_rank. */
typedef enum {
	NCCL_EP_OVERFLOW_AUTO = NCCL_EP_AUTO, /* TRAP */
	NCCL_EP_OVERFLOW_TRAP = 1,	      /* the operation fails */
	NCCL_EP_OVERFLOW_DROP = 2,	      /* rows beyond the capacity are dropped */
} ncclEpOverflowPolicy_t;

/* Whether peers access the caller's tensors. */
typedef enum {
	NCCL_EP_ZERO_COPY_AUTO = NCCL_EP_AUTO, /* directly where they are mapped, else staged */
	NCCL_EP_ZERO_COPY_OFF = 1,	       /* always staged */
	NCCL_EP_ZERO_COPY_ON = 2,	       /* directly; tensors must be window-backed */
} ncclEpZeroCopyMode_t;

/* Numbering of experts in the topk_idx output of dispatch. */
typedef enum {
	NCCL_EP_EXPERT_ID_AUTO = NCCL_EP_AUTO, /* LOCAL */
	NCCL_EP_EXPERT_ID_LOCAL = 1,	       /* 0 .. experts of this rank - 1 */
	NCCL_EP_EXPERT_ID_GLOBAL = 2,	       /* 0 .. num_experts - 1 */
} ncclEpExpertIdKind_t;

typedef enum {
	NCCL_EP_DISP_QUANT_NONE = 0,
	NCCL_EP_DISP_QUANT_FWD = 1,	   /* quantised by the caller: tokens and scales are sent as bytes */
	NCCL_EP_DISP_QUANT_DS_FP8E3M4 = 2, /* bf16 in; e4m3 and one f32 scale per 128 channels out (LL) */
} ncclEpDispQuant_t;

typedef enum {
	NCCL_EP_COMB_QUANT_NONE = 0,
	NCCL_EP_COMB_QUANT_NVFP4 = 1, /* LL; not supported yet: ncclInvalidUsage */
	NCCL_EP_COMB_QUANT_MXFP8 = 2, /* HT; the same */
} ncclEpCombQuant_t;

#endif
