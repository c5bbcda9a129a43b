# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism for mixture-of-experts layers, on any GPU, any NIC, or none: AnyEP's libnccl_ep.

The names and signatures are those of NVIDIA's nccl.ep; communicators, masks, async errors and counters come on top. Torch,
numpy and CUDA are used where they are, and none is needed. Importing the package opens no library and touches no device:
the first call does.

    uid = nccl_ep.get_unique_id()                             # on one rank; all are given it
    comm = nccl_ep.Communicator.init(nranks, rank, uid)       # or nccl_ep.interop.torch.get_nccl_comm_from_group()
    group = nccl_ep.Group.create(comm, nccl_ep.GroupConfig(num_experts=64, max_dispatch_tokens_per_rank=128,
                                                           max_token_bytes=2 * hidden))
    handle = group.create_handle(nccl_ep.Layout.EXPERT_MAJOR, nccl_ep.Tensor(topk_idx), stream=None)
    handle.dispatch(nccl_ep.DispatchInputs(tokens=nccl_ep.Tensor(x)), nccl_ep.DispatchOutputs(tokens=nccl_ep.Tensor(rows)),
                    layout_info=nccl_ep.LayoutInfo(expert_counters=nccl_ep.Tensor(counts)), stream=None)
"""
from __future__ import annotations

import pathlib as _pathlib
from typing import Any as _Any

from . import bindings as _bindings
from ._version import __version__, version_of as _version_of
from .allocator import AllocConfig, AllocFn, FreeFn
from .core import Communicator, RegisteredWindowHandle, UniqueId, get_unique_id, mem_alloc
from .enums import (Algorithm, AsyncError, CombineQuantizationRecipe, DispatchQuantizationRecipe, ExpertIdKind, Layout,
                    NcclDataType, NcclResult, OverflowPolicy, PassDir, Scales, ZeroCopyMode)
from .errors import FunctionNotFoundError, NCCLEpError, NCCLError, NcclInvalid
from .group import Group, GroupConfig, NetCounts, NetTimes, ReachCounts
from .handle import (CombineConfig, CombineInputs, CombineOutputs, DispatchConfig, DispatchInputs, DispatchOutputs, Handle,
                     HandleConfig, LayoutInfo)
from .stream import HostStream
from .tensor import Tensor

__all__ = [
    'Algorithm', 'AllocConfig', 'AllocFn', 'AsyncError', 'CombineConfig', 'CombineInputs', 'CombineOutputs',
    'CombineQuantizationRecipe', 'Communicator', 'DispatchConfig', 'DispatchInputs', 'DispatchOutputs',
    'DispatchQuantizationRecipe', 'ExpertIdKind', 'FreeFn', 'FunctionNotFoundError', 'Group', 'GroupConfig', 'Handle',
    'HandleConfig', 'HostStream', 'Layout', 'LayoutInfo', 'NCCLEpError', 'NCCLError', 'NcclDataType', 'NcclInvalid',
    'NcclResult', 'NetCounts', 'NetTimes', 'OverflowPolicy', 'PassDir', 'ReachCounts', 'RegisteredWindowHandle', 'Scales',
    'Tensor', 'UniqueId', 'ZeroCopyMode', '__version__', 'get_home', 'get_lib_path', 'get_lib_version', 'get_unique_id',
    'mem_alloc']


def get_lib_version() -> _Any:
    """The NCCL EP release whose interface the library has: packaging.version.Version, a tuple without packaging."""
    return _version_of(_bindings.get_version())


def get_lib_path() -> _pathlib.Path | None:
    """The libnccl_ep that is loaded, which this call does if need be."""
    path = _bindings.get_library_path()
    return _pathlib.Path(path) if path else None


def get_home() -> _pathlib.Path:
    """The folder with lib/ and include/ of the library in use: what NCCL_EP_HOME of other programs is set to."""
    path = get_lib_path()
    if path is None:
        raise RuntimeError('the path of libnccl_ep is not known')
    return path.parent.parent
