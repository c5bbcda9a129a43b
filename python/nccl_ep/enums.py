# SPDX-License-Identifier: Apache-2.0
"""Enumerations of NCCL EP, and NCCL's data types and results, with the values of the C headers."""
from __future__ import annotations

from enum import IntEnum

__all__ = ['Algorithm', 'AsyncError', 'CombineQuantizationRecipe', 'DispatchQuantizationRecipe', 'ExpertIdKind', 'Layout',
           'NcclDataType', 'NcclResult', 'OverflowPolicy', 'PassDir', 'Scales', 'ZeroCopyMode']


class Algorithm(IntEnum):
    """How a group moves tokens."""
    LOW_LATENCY = 0       # few tokens, lowest latency
    HIGH_THROUGHPUT = 1   # many tokens, highest bandwidth


class Layout(IntEnum):
    """The order of received rows. EXPERT_MAJOR exists in both algorithms, RANK_MAJOR in LL, FLAT in HT."""
    UNSET = 0   # never valid
    EXPERT_MAJOR = 1
    RANK_MAJOR = 2
    FLAT = 3


class PassDir(IntEnum):
    """Forward or backward pass of training; BWD is HT only."""
    FWD = 0
    BWD = 1


class OverflowPolicy(IntEnum):
    """HT: what happens when more rows arrive than max_recv_tokens_per_rank."""
    AUTO = 0   # TRAP
    TRAP = 1   # the operation fails
    DROP = 2   # rows beyond the capacity are dropped


class ZeroCopyMode(IntEnum):
    """Whether peers access the caller's tensors."""
    AUTO = 0   # directly where they are mapped, else staged
    OFF = 1    # always staged
    ON = 2     # directly; tensors must be window-backed


class ExpertIdKind(IntEnum):
    """Numbering of experts in the topk_idx output of dispatch."""
    AUTO = 0   # LOCAL
    LOCAL = 1
    GLOBAL = 2


# AnyEP's, in HT flat: local ids and weights in the columns of their source. No member, since NVIDIA's enumeration has none.
EXPERT_ID_IN_PLACE = 256


class DispatchQuantizationRecipe(IntEnum):
    """Quantisation on the way to the experts."""
    NONE = 0
    FWD = 1          # quantised by the caller: tokens and scales are sent as bytes
    DS_FP8E3M4 = 2   # bf16 in; e4m3 and one f32 scale per 128 channels out (LL)


class Scales(IntEnum):
    """AnyEP's: the output scales of an LL dispatch, S for each row; rank-major has [R, Tmax] for [El, R * Tmax]."""
    ROWS = 0        # [El, R * Tmax, S]
    COLUMNS = 1     # f32 [El, S, R * Tmax]
    EXPONENTS = 2   # int32 [El, S / 4, R * Tmax]: exponents of four scales, the first in the low byte


class CombineQuantizationRecipe(IntEnum):
    """Quantisation on the way back."""
    NONE = 0
    NVFP4 = 1
    MXFP8 = 2


class NcclDataType(IntEnum):
    """ncclDataType_t. FLOAT4X2 is two fp4 values in a byte: the width of such a tensor is counted in bytes."""
    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11
    FLOAT4X2 = 12

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 1)


class NcclResult(IntEnum):
    """ncclResult_t."""
    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7
    TIMEOUT = 8


class AsyncError(IntEnum):
    """What Group.get_async_error answers. NCCL EP defines NONE and TIMEOUT, the others are AnyEP's."""
    NONE = 0
    TIMEOUT = 1      # a rank did not answer in time; with enable_mask it is masked now
    BAD_EXPERT = 2   # an expert id outside [-1, num_experts) was dropped
    LIMIT = 3        # more rows than max_recv_tokens_per_rank (TRAP), or a third staged operation
    REMOTE = 4       # another rank failed or exited
    OTHER = 5        # the next call on the group fails with the message
