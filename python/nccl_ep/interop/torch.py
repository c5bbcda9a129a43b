# SPDX-License-Identifier: Apache-2.0
"""Communicators from torch.distributed. Only the unique id crosses torch.distributed; tokens never do."""
from __future__ import annotations

from typing import Any

from ..core import Communicator, UniqueId, get_unique_id

__all__ = ['comm_ptr', 'get_nccl_comm_from_group']


def _group(group: Any) -> tuple[Any, Any]:
    """torch.distributed and the process group; imports torch, and only what the CPU build has too."""
    import torch.distributed as dist
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError('torch.distributed is not initialized: call init_process_group first')
    return dist, group if group is not None else dist.group.WORLD


def get_nccl_comm_from_group(group: Any = None) -> Communicator:
    """A fresh communicator of the stand-in with the members of a process group of any backend. Collective."""
    dist, group = _group(group)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    box = [get_unique_id(empty=rank != 0).as_bytes]
    dist.broadcast_object_list(box, src=dist.get_global_rank(group, 0), group=group)
    return Communicator.init(ranks, rank, UniqueId.from_bytes(box[0]))


def comm_ptr(group: Any = None) -> int:
    """The ncclComm_t of a process group whose backend is NCCL (RCCL on AMD), for the current device."""
    import torch
    dist, group = _group(group)
    backend = dist.get_backend(group)
    if 'nccl' not in backend:
        raise RuntimeError(f'the process group has backend {backend!r} and no communicator of NCCL; '
                           'get_nccl_comm_from_group makes one of the stand-in')
    native = group._get_backend(torch.device('cuda', torch.cuda.current_device()))
    pointer = native._comm_ptr()
    if not pointer:
        raise RuntimeError('the process group has not made its communicator yet: run a collective on it first, or pass '
                           'device_id to init_process_group')
    return int(pointer)
