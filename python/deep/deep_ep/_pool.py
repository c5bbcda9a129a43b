# SPDX-License-Identifier: Apache-2.0
"""The groups behind a Buffer.

A Buffer knows neither experts nor the size of rows, so groups are made when a call first needs them: with the same
arguments on all ranks, since making one is collective. They stay until the Buffer is destroyed, because handles may refer
to them and ranks drop handles at different times.
"""
from __future__ import annotations

import ctypes
import os
import struct
from typing import Any, Sequence

import torch
import torch.distributed as dist

import nccl_ep
from nccl_ep import bindings

from ._calls import failed
from ._lane import GpuLane, HostLane

__all__ = ['Pool', 'power_of_two']

_LEAST_TOKENS = 64  # of an HT group, so that the first few sizes of a job do not make a group each
_ROW_UNIT = 512     # bytes; rows of nearly the same size share a group


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _exchange(group: Any, comm: Any, mine: Any, ranks: int) -> list[Any]:
    """The only use of torch.distributed, or of mpi4py."""
    if comm is not None:
        return list(comm.allgather(mine))
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, mine, group)
    return everyone


def _gpu_use() -> None:
    """Makes torch's current GPU the current one of this thread, where there is one and it is wanted."""
    if torch.cuda.is_available() and os.environ.get('NCCL_EP_DEVICE', 'auto').lower() != 'host':
        torch.empty(1, device='cuda')


class Pool:
    """A communicator and its groups."""

    def __init__(self, group: Any, comm: Any, rank: int, ranks: int, masks: bool):
        _gpu_use()
        self.rank, self.nranks, self.masks = rank, ranks, masks
        mine = nccl_ep.get_unique_id().as_bytes if rank == 0 else None
        unique_id = nccl_ep.UniqueId.from_bytes(_exchange(group, comm, mine, ranks)[0])
        self.comm = nccl_ep.Communicator.init(ranks, rank, unique_id)
        self.lane = HostLane() if self.comm.device < 0 else GpuLane()
        self.device = torch.device('cpu') if self.comm.device < 0 else torch.device('cuda', self.comm.device)
        self._all: list[nccl_ep.Group] = []
        # Addresses, by the sizes that were asked for.
        self._ht: dict[tuple[int, int], tuple[int, int]] = {}
        self._fixed: dict[tuple[int, int, int], int] = {}
        self._ll: dict[tuple[int, int, int], nccl_ep.Group] = {}
        self.c = bindings.library()
        self.kinds: dict[Any, Any] = {}  # of _ll.py
        self.slots: dict[Any, Any] = {}
        self.frames: dict[Any, list[Any]] = {}  # of _ht.py, as are sums
        self.sums: dict[Any, list[Any]] = {}
        self.counts: tuple[Any, ...] | None = None  # of the last layout: per rank, per expert, and both, for the host
        self.one = torch.ones(1, dtype=torch.int32, device=self.device)
        self.routes: set[int] = set()  # the library's handles that are not destroyed
        self._masked = [0] * ranks  # by the caller; a group may have masked more
        self._handles: list[Any] = []
        self._rooms: dict[int, tuple[struct.Struct, struct.Struct, Any]] = {}
        control = self._create(algorithm=nccl_ep.Algorithm.HIGH_THROUGHPUT, num_experts=ranks,
                               max_dispatch_tokens_per_rank=1, max_token_bytes=16)
        self._control_ptr = control.ptr
        self.nodes = control.nodes()
        self.one_node = max(self.nodes) == 0

    def _create(self, **config: Any) -> nccl_ep.Group:
        group = nccl_ep.Group.create(self.comm, nccl_ep.GroupConfig(**config))
        self._all.append(group)
        return group

    def own(self, handle: Any) -> None:
        """An object with destroy(), which comes before that of its group."""
        self._handles.append(handle)

    def agree(self, mine: list[int]) -> Sequence[int]:
        """Collective: the numbers of every rank, equally many, one rank's after the other's."""
        n = len(mine)
        room = self._rooms.pop(n, None)  # not two threads' at a time
        if room is None:
            every = struct.Struct(f'{n * self.nranks}q')
            room = struct.Struct(f'{n}q'), every, ctypes.create_string_buffer(every.size)
        words, every, out = room
        status = self.c.anyEpGroupAllGather(self._control_ptr, words.pack(*mine), out, 8 * n)
        if status:
            failed(status, 'anyEpGroupAllGather')
        everyone = every.unpack(out)
        self._rooms[n] = room
        return everyone

    def _ht_make(self, experts: int, row_bytes: int, tokens: int, rows: int) -> int:
        return self._create(algorithm=nccl_ep.Algorithm.HIGH_THROUGHPUT, num_experts=experts, max_token_bytes=row_bytes,
                            max_dispatch_tokens_per_rank=tokens, max_recv_tokens_per_rank=rows).ptr

    def ht(self, experts: int, row_bytes: int, tokens: int) -> int:
        """Eager: outputs are as tall as what arrives. tokens: the most of any rank, as agreed."""
        row_bytes += -row_bytes % _ROW_UNIT
        found = self._ht.get((experts, row_bytes))
        if found is None or tokens > found[0]:
            most = max(power_of_two(tokens), _LEAST_TOKENS)
            found = self._ht[experts, row_bytes] = most, self._ht_make(experts, row_bytes, most, 0)
        return found[1]

    def ht_fixed(self, experts: int, row_bytes: int, rows: int) -> int:
        """For outputs of so many rows, whatever arrives: the host learns no counts."""
        row_bytes += -row_bytes % _ROW_UNIT
        key = experts, row_bytes, rows
        if key not in self._fixed:
            self._fixed[key] = self._ht_make(experts, row_bytes, max(rows // self.nranks, 1), rows)
        return self._fixed[key]

    def ll(self, experts: int, row_bytes: int, tokens: int) -> nccl_ep.Group:
        key = experts, row_bytes, tokens
        group = self._ll.get(key)
        if group is None:
            group = self._create(algorithm=nccl_ep.Algorithm.LOW_LATENCY, num_experts=experts, max_token_bytes=row_bytes,
                                 max_dispatch_tokens_per_rank=tokens, enable_mask=self.masks)
            if any(self._masked):
                self._mask_set(group, self._masked)
            self._ll[key] = group
        return group

    # ---- masks: here 1 is masked, in the library 1 is active ----

    def _mask_set(self, group: nccl_ep.Group, masked: Sequence[int]) -> None:
        active = torch.tensor([1 - m for m in masked], dtype=torch.int32)
        group.mask_update(nccl_ep.Tensor(active), self.lane.current())

    def mask_get(self) -> list[int]:
        """What any group has masked."""
        masked = list(self._masked)
        for group in self._ll.values():
            active = torch.empty(self.nranks, dtype=torch.int32, device=self.device)
            group.mask_query(nccl_ep.Tensor(active), self.lane.current())
            masked = [m | (1 - a) for m, a in zip(masked, active.tolist())]
        return masked

    def mask_one(self, rank: int, mask: bool) -> None:
        masked = self.mask_get()
        masked[rank] = self._masked[rank] = int(mask)
        for group in self._ll.values():
            self._mask_set(group, masked)

    def mask_clean(self) -> None:
        """Collective over the ranks that are not masked."""
        self._masked = [0] * self.nranks
        for group in self._ll.values():
            group.mask_clean(self.lane.current())

    def destroy(self) -> None:
        """Collective."""
        for handle in self._handles:
            handle.destroy()
        while self.routes:
            bindings.handle_destroy(self.routes.pop())
        for group in reversed(self._all):
            group.destroy()
        self.comm.destroy()
