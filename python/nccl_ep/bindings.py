# SPDX-License-Identifier: Apache-2.0
"""The C functions, one Python function each. Arguments are integers: addresses, counts, values of enumerations.

A failed call raises NCCLEpError with the library's message; a function that the loaded library lacks raises
FunctionNotFoundError at its first call. The structs are ctypes.Structure classes; `tensor_dtype`, `group_config_dtype`
and so on are numpy dtypes of them, where numpy is installed.
"""
from __future__ import annotations

import re
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p, create_string_buffer
from typing import Any, Sequence

from . import _load, _structs
from ._structs import (AllocConfig, CombineConfig, CombineInputs, CombineOutputs, CompleteConfig, DispatchConfig,
                       DispatchInputs, DispatchOutputs, GroupConfig, HandleConfig, LayoutInfo, NetCounts, NetTimes,
                       ReachCounts, Tensor, TensorAllocConfig, WaitStats)
from .errors import FunctionNotFoundError, NCCLEpError

__all__ = ['AllocConfig', 'CombineConfig', 'CombineInputs', 'CombineOutputs', 'CompleteConfig', 'DispatchConfig',
           'DispatchInputs', 'DispatchOutputs', 'FunctionNotFoundError', 'GroupConfig', 'HandleConfig', 'LayoutInfo',
           'NCCLEpError', 'NetCounts', 'NetTimes', 'ReachCounts', 'Tensor', 'TensorAllocConfig', 'WaitStats',
           'anyep_version', 'check_status', 'combine', 'complete', 'create_group', 'create_handle', 'dispatch', 'error_clear',
           'get_async_error', 'get_last_error', 'get_library_path', 'get_version', 'group_all_gather', 'group_barrier', 'group_destroy',
           'group_dump', 'group_net_counts', 'group_net_times', 'group_nodes', 'group_reach_counts', 'group_window_bytes',
           'handle_bias', 'handle_destroy', 'handle_mem_size', 'handle_scales', 'handle_sms', 'handle_sources', 'handle_wait_stats',
           'host_stream_create', 'host_stream_destroy', 'host_stream_synchronize', 'init_handle', 'mask_clean', 'mask_query',
           'mask_update', 'tensor_alloc', 'tensor_destroy', 'update_handle']

_P = c_void_p
PROTOTYPES: dict[str, Sequence[Any]] = {
    'ncclEpGetVersion': (c_int, POINTER(c_int)),
    'ncclEpTensorAlloc': (c_int, _P, c_uint, c_uint, _P, _P),
    'ncclEpTensorDestroy': (c_int, _P),
    'ncclEpCreateGroup': (c_int, _P, _P, _P),
    'ncclEpGroupDestroy': (c_int, _P),
    'ncclEpHandleMemSize': (c_int, _P, c_uint, _P, POINTER(c_size_t), c_int),
    'ncclEpInitHandle': (c_int, _P, _P, c_uint, _P, c_int, _P),
    'ncclEpUpdateHandle': (c_int, _P, _P, _P, _P),
    'ncclEpCreateHandle': (c_int, _P, _P, c_uint, _P, _P, _P, _P),
    'ncclEpHandleDestroy': (c_int, _P),
    'ncclEpDispatch': (c_int, _P, _P, _P, _P, _P, _P),
    'ncclEpCombine': (c_int, _P, _P, _P, _P, _P),
    'ncclEpComplete': (c_int, _P, _P, _P),
    'ncclEpMaskQuery': (c_int, _P, _P, _P),
    'ncclEpMaskUpdate': (c_int, _P, _P, _P),
    'ncclEpMaskClean': (c_int, _P, _P),
    'ncclEpGetAsyncError': (c_int, _P, POINTER(c_int)),
    'ncclEpErrorClear': (c_int, _P),
    'anyEpGetVersion': (c_int, POINTER(c_int)),
    'anyEpGetLastError': (c_char_p,),
    'anyEpGroupWindowBytes': (c_int, _P, POINTER(c_size_t)),
    'anyEpGroupAllGather': (c_int, _P, _P, _P, c_size_t),
    'anyEpGroupBarrier': (c_int, _P, _P),
    'anyEpGroupDump': (c_int, _P, c_char_p),
    'anyEpGroupNetCounts': (c_int, _P, POINTER(NetCounts)),
    'anyEpGroupNetTimes': (c_int, _P, POINTER(NetTimes)),
    'anyEpGroupReachCounts': (c_int, _P, POINTER(ReachCounts)),
    'anyEpGroupNodes': (c_int, _P, POINTER(c_int), c_size_t),
    'anyEpHandleSources': (c_int, _P, _P, _P, _P),
    'anyEpHandleWaitStats': (c_int, _P, _P),
    'anyEpHandleScales': (c_int, _P, c_uint),
    'anyEpHandleSms': (c_int, _P, c_uint, c_uint),
    'anyEpHandleBias': (c_int, _P, _P, c_int),
    'anyEpHostStreamCreate': (c_int, _P),
    'anyEpHostStreamSynchronize': (c_int, _P),
    'anyEpHostStreamDestroy': (c_int, _P),
}

_once = _load.Once(lambda: _load.open_ep(PROTOTYPES))


def library() -> _load.Library:
    """libnccl_ep, which the first call opens."""
    return _once.get()


def get_last_error() -> str:
    """The message of this thread's last failure, '' if there is none or the library is not AnyEP."""
    try:
        text = library().anyEpGetLastError()
    except FunctionNotFoundError:
        return ''
    return text.decode(errors='replace') if text else ''


def check_status(status: int, function: str = '') -> None:
    """Raises NCCLEpError unless status is ncclSuccess."""
    if status:
        raise NCCLEpError(status, get_last_error(), function)


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_once.get(), name)(*arguments)
    if status:
        check_status(status, name)


def _made(name: str, *arguments: Any) -> int:
    """Calls a function whose first argument receives a pointer."""
    out = c_void_p()
    _call(name, byref(out), *arguments)
    return out.value or 0


def get_version() -> int:
    """NCCL_EP_VERSION_CODE of the library: the NCCL EP release whose interface it has."""
    out = c_int()
    _call('ncclEpGetVersion', byref(out))
    return out.value


def anyep_version() -> int:
    """ANYEP_VERSION_CODE of the library: its own release."""
    out = c_int()
    _call('anyEpGetVersion', byref(out))
    return out.value


def get_library_path() -> str | None:
    """The file that was loaded; None if the system does not tell."""
    return library().path or None


def tensor_alloc(tensor: int, ndim: int, datatype: int, sizes: int, config: int = 0) -> None:
    """tensor: the address of a pointer, which receives the descriptor's."""
    _call('ncclEpTensorAlloc', tensor, ndim, datatype, sizes, config)


def tensor_destroy(tensor: int) -> None:
    _call('ncclEpTensorDestroy', tensor)


def create_group(comm: int, config: int) -> int:
    """Collective over comm."""
    return _made('ncclEpCreateGroup', comm, config)


def group_destroy(group: int) -> None:
    """Collective."""
    _call('ncclEpGroupDestroy', group)


def handle_mem_size(group: int, layout: int, config: int, num_topk: int) -> int:
    out = c_size_t()
    _call('ncclEpHandleMemSize', group, layout, config, byref(out), num_topk)
    return out.value


def init_handle(group: int, layout: int, config: int, num_topk: int, handle_mem: int) -> int:
    return _made('ncclEpInitHandle', group, layout, config, num_topk, handle_mem)


def create_handle(group: int, layout: int, topk_idx: int, layout_info: int, config: int, stream: int) -> int:
    return _made('ncclEpCreateHandle', group, layout, topk_idx, layout_info, config, stream)


def update_handle(handle: int, topk_idx: int, layout_info: int, stream: int) -> None:
    _call('ncclEpUpdateHandle', handle, topk_idx, layout_info, stream)


def handle_destroy(handle: int) -> None:
    _call('ncclEpHandleDestroy', handle)


def dispatch(handle: int, inputs: int, outputs: int, layout_info: int, config: int, stream: int) -> None:
    _call('ncclEpDispatch', handle, inputs, outputs, layout_info, config, stream)


def combine(handle: int, inputs: int, outputs: int, config: int, stream: int) -> None:
    _call('ncclEpCombine', handle, inputs, outputs, config, stream)


def complete(handle: int, config: int, stream: int) -> None:
    _call('ncclEpComplete', handle, config, stream)


def mask_query(group: int, ptr: int, stream: int) -> None:
    _call('ncclEpMaskQuery', group, ptr, stream)


def mask_update(group: int, ptr: int, stream: int) -> None:
    _call('ncclEpMaskUpdate', group, ptr, stream)


def mask_clean(group: int, stream: int) -> None:
    _call('ncclEpMaskClean', group, stream)


def get_async_error(group: int) -> int:
    out = c_int()
    _call('ncclEpGetAsyncError', group, byref(out))
    return out.value


def error_clear(group: int) -> None:
    _call('ncclEpErrorClear', group)


# ---- AnyEP's extensions ----

def group_window_bytes(group: int) -> int:
    out = c_size_t()
    _call('anyEpGroupWindowBytes', group, byref(out))
    return out.value


def group_all_gather(group: int, mine: bytes, nranks: int) -> list[bytes]:
    """Collective: the bytes of every rank, as many on all."""
    out = create_string_buffer(nranks * len(mine))
    _call('anyEpGroupAllGather', group, mine, out, len(mine))
    return [out.raw[r * len(mine):(r + 1) * len(mine)] for r in range(nranks)]


def _filled(name: str, group: int, kind: type[_structs.Native]) -> Any:
    out = kind.made()
    _call(name, group, byref(out))
    return out


def group_barrier(group: int, stream: int) -> None:
    _call('anyEpGroupBarrier', group, stream)


def group_dump(group: int, why: str) -> None:
    _call('anyEpGroupDump', group, why.encode())


def group_net_counts(group: int) -> NetCounts:
    return _filled('anyEpGroupNetCounts', group, NetCounts)


def group_net_times(group: int) -> NetTimes:
    return _filled('anyEpGroupNetTimes', group, NetTimes)


def group_reach_counts(group: int) -> ReachCounts:
    return _filled('anyEpGroupReachCounts', group, ReachCounts)


def group_nodes(group: int, nranks: int) -> list[int]:
    out = (c_int * nranks)()
    _call('anyEpGroupNodes', group, out, nranks)
    return list(out)


def handle_sources(handle: int, tokens: int, ranges: int, stream: int) -> None:
    _call('anyEpHandleSources', handle, tokens, ranges, stream)


def handle_wait_stats(handle: int, stats: int) -> None:
    """stats: the address of a WaitStats, or 0."""
    _call('anyEpHandleWaitStats', handle, stats)


def handle_scales(handle: int, scales: int) -> None:
    _call('anyEpHandleScales', handle, scales)


def handle_sms(handle: int, dispatch: int, combine: int) -> None:
    _call('anyEpHandleSms', handle, dispatch, combine)


def handle_bias(handle: int, *bias: int) -> None:
    """bias: addresses of descriptors."""
    _call('anyEpHandleBias', handle, (c_void_p * len(bias))(*bias) if bias else None, len(bias))


def host_stream_create() -> int:
    return _made('anyEpHostStreamCreate')


def host_stream_synchronize(stream: int) -> None:
    _call('anyEpHostStreamSynchronize', stream)


def host_stream_destroy(stream: int) -> None:
    _call('anyEpHostStreamDestroy', stream)


_DTYPES = {re.sub(r'(?<!^)(?=[A-Z])', '_', s.__name__).lower() + '_dtype': s for s in _structs.STRUCTS}


def __getattr__(name: str) -> Any:
    if name not in _DTYPES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    import numpy
    return numpy.dtype(_DTYPES[name])
