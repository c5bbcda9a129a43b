# SPDX-License-Identifier: Apache-2.0
"""The structs of nccl_ep.h and nccl_ep_ext.h.

Fields have the names of C, except that `size`, `ndim` and `data` carry an underscore at the end, as in NVIDIA's package.
Pointers are integers. test/python/abi.py compares every offset with the header.
"""
from __future__ import annotations

import ctypes
from ctypes import c_char, c_size_t, c_ubyte, c_uint, c_uint32, c_uint64, c_ulong
from typing import ClassVar

MAGIC = 0xC00FFFEE
TENSOR_MAGIC = 0xCAFECAFE
API_VERSION = 3

ADDRESS = c_size_t  # a pointer that reads as an integer
ENUM = c_uint


# Bytes of new structs. They are made for every call: with this and the plans of _config.py 2 us instead of 14.
_initial: dict[type, bytes] = {}


class Native(ctypes.Structure):
    """A struct of the C interface; made() sets what its _INIT macro sets."""
    C_NAME: ClassVar[str] = ''
    MAGIC: ClassVar[int] = MAGIC

    @classmethod
    def made(cls):
        initial = _initial.get(cls)
        if initial is None:
            initial = _initial[cls] = bytes(cls._first())
        return cls.from_buffer_copy(initial)

    @classmethod
    def _first(cls):
        struct = cls()
        names = [field[0] for field in cls._fields_]
        if 'size_' in names:
            struct.size_ = ctypes.sizeof(cls)
        if 'magic' in names:
            struct.magic = cls.MAGIC
        if 'version' in names:
            struct.version = API_VERSION
        return struct

    @property
    def ptr(self) -> int:
        """The address of the struct."""
        return ctypes.addressof(self)

    @classmethod
    def from_ptr(cls, ptr: int):
        """A view of the struct at this address; the memory stays the caller's."""
        return cls.from_address(ptr)

    @classmethod
    def from_data(cls, data):
        """A view of the struct in a writable buffer, for example a numpy array of the struct's dtype."""
        return cls.from_buffer(data)


def _headed(*fields):
    return [('size_', c_uint), ('magic', c_uint), *fields]


def _tensors(*names):
    return _headed(*((name, ADDRESS) for name in names))


class Tensor(Native):
    C_NAME = 'ncclEpTensor_t'
    MAGIC = TENSOR_MAGIC
    _fields_ = _headed(('ndim_', c_uint), ('datatype', ENUM), ('data_', ADDRESS), ('win_hdl', ADDRESS),
                       ('win_offset', c_uint64), ('sizes', ADDRESS))


class TensorAllocConfig(Native):
    C_NAME = 'ncclEpTensorAllocConfig_t'
    _fields_ = _headed()


class AllocConfig(Native):
    C_NAME = 'ncclEpAllocConfig_t'
    _fields_ = [('alloc_fn', ADDRESS), ('free_fn', ADDRESS), ('context', ADDRESS)]


class GroupConfig(Native):
    C_NAME = 'ncclEpGroupConfig_t'
    _fields_ = _headed(
        ('version', c_uint), ('algorithm', ENUM), ('num_experts', c_uint), ('max_dispatch_tokens_per_rank', c_uint),
        ('max_recv_tokens_per_rank', c_uint), ('max_token_bytes', c_uint), ('rdma_buffer_size', c_ulong),
        ('num_qp_per_rank', c_uint), ('num_channels', c_uint), ('max_num_sms', c_uint), ('alloc', AllocConfig),
        ('enable_mask', c_uint), ('timeout_ns', c_uint64), ('zero_copy', ENUM), ('overflow_policy', ENUM),
        ('num_topk', c_uint), ('padding_v2', c_ubyte * 4), ('dispatch_num_sms', c_uint), ('combine_num_sms', c_uint))


class HandleConfig(Native):
    C_NAME = 'ncclEpHandleConfig_t'
    _fields_ = _headed(('dispatch_output_per_expert_alignment', c_size_t))


class DispatchConfig(Native):
    C_NAME = 'ncclEpDispatchConfig_t'
    _fields_ = _headed(('send_only', c_uint), ('round_scales', c_uint), ('pass_direction', ENUM), ('quant_recipe', ENUM))


class CombineConfig(Native):
    C_NAME = 'ncclEpCombineConfig_t'
    _fields_ = _headed(('send_only', c_uint), ('pass_direction', ENUM), ('quant_recipe', ENUM))


class CompleteConfig(Native):
    C_NAME = 'ncclEpCompleteConfig_t'
    _fields_ = _headed()


class LayoutInfo(Native):
    C_NAME = 'ncclEpLayoutInfo_t'
    _fields_ = _tensors('expert_counters', 'src_rank_counters', 'expert_offsets', 'recv_total_counter') + [
        ('recv_topk_idx_kind', ENUM), ('padding_v2', c_ubyte * 4)]


class DispatchInputs(Native):
    C_NAME = 'ncclEpDispatchInputs_t'
    _fields_ = _tensors('tokens', 'topk_weights', 'scales')


class DispatchOutputs(Native):
    C_NAME = 'ncclEpDispatchOutputs_t'
    _fields_ = _tensors('tokens', 'topk_weights', 'scales', 'topk_idx')


class CombineInputs(Native):
    C_NAME = 'ncclEpCombineInputs_t'
    _fields_ = _tensors('tokens', 'topk_weights', 'scales')


class CombineOutputs(Native):
    C_NAME = 'ncclEpCombineOutputs_t'
    _fields_ = _tensors('tokens', 'topk_weights')


# ---- AnyEP's extensions: `size` is a size_t, and there is no magic ----

class NetCounts(Native):
    C_NAME = 'anyEpNetCounts_t'
    _fields_ = [('size_', c_size_t)] + [(name, c_uint64) for name in ('puts', 'bytes', 'signals', 'commands', 'joined')]


class NetTimes(Native):
    C_NAME = 'anyEpNetTimes_t'
    _fields_ = [('size_', c_size_t), ('net', c_char * 64), ('device', c_char * 64), ('ordered', c_uint32),
                ('direct', c_uint32), ('operations', c_uint64), ('popped', c_uint64), ('given', c_uint64),
                ('completed', c_uint64), ('ended', c_uint64), ('arrivals', c_uint64), ('arrived', c_uint64)]


class ReachCounts(Native):
    C_NAME = 'anyEpReachCounts_t'
    _fields_ = [('size_', c_size_t)] + [(name, c_uint64) for name in (
        'direct', 'staged', 'mapped', 'peak', 'unmapped', 'refused', 'evicted', 'crossedDispatch', 'crossedCombine')]


class WaitStats(Native):
    C_NAME = 'anyEpWaitStats_t'
    _fields_ = [('size_', c_size_t), ('dispatch', ADDRESS), ('combine', ADDRESS)]


STRUCTS = (Tensor, TensorAllocConfig, AllocConfig, GroupConfig, HandleConfig, DispatchConfig, CombineConfig, CompleteConfig,
           LayoutInfo, DispatchInputs, DispatchOutputs, CombineInputs, CombineOutputs, NetCounts, NetTimes, ReachCounts,
           WaitStats)
