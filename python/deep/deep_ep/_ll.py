# SPDX-License-Identifier: Apache-2.0
"""The low-latency calls over nccl_ep's expert-major layout, in which the rows of a source are contiguous in an expert.

A group has two handles per number of experts per token, used in turn and kept: that many results may be outstanding, and a
captured step finds its handle where it was.
"""
from __future__ import annotations

from ctypes import addressof
from typing import Any, Iterator

import torch

import nccl_ep
from nccl_ep import DispatchConfig, bindings

from ._calls import Spot, failed, struct_of
from ._pool import Pool

__all__ = ['Dispatch', 'Kind', 'LlHandle', 'Slot', 'Sum', 'complete']

_BLOCK = 128  # channels that share a scale
_SLOTS = 2
_PLAIN = nccl_ep.DispatchQuantizationRecipe.NONE
_FP8 = nccl_ep.DispatchQuantizationRecipe.DS_FP8E3M4
_COLUMNS, _EXPONENTS = nccl_ep.Scales.COLUMNS, nccl_ep.Scales.EXPONENTS


class Slot:
    """A handle of the library, and the memory that belongs to it."""

    def __init__(self, group: nccl_ep.Group, topk: int):
        self.handle = group.init_handle(nccl_ep.Layout.EXPERT_MAJOR, topk)
        self.uses = 0
        self.rows: torch.Tensor | None = None  # what get_next_low_latency_combine_buffer returns
        self.routing: Any = None               # the library reads it until the combine
        self.staged: Any = None                # tensors of a send half, until it is received
        self.sums: dict[Any, Sum] = {}
        self._waits: list[torch.Tensor | None] = [None, None]
        self._scales = nccl_ep.Scales.ROWS

    def scales(self, layout: nccl_ep.Scales) -> None:
        """Of dispatches from now on."""
        if self._scales is not layout:
            self.handle.scales(layout)
            self._scales = layout

    def watch(self, which: int, stats: torch.Tensor | None) -> None:
        """Dispatches (0) or combines (1) add the time that they wait for each rank to these from now on."""
        if self._waits[which] is not stats:
            waits = [stats if i == which else s for i, s in enumerate(self._waits)]
            dispatch, combine = (None if s is None else nccl_ep.Tensor(s) for s in waits)
            self.handle.wait_stats(dispatch=dispatch, combine=combine)
            self._waits = waits

    def destroy(self) -> None:
        self.handle.destroy()


class Slots:
    """Those of a group and a number of experts per token; the next one to use."""

    def __init__(self, pool: Pool, group: nccl_ep.Group, topk: int):
        self.turn, self.every = 0, [Slot(group, topk) for _ in range(_SLOTS)]
        for slot in self.every:
            pool.own(slot)


class LlHandle(tuple):
    """(source tokens, ranges of sources, most tokens per rank, hidden, experts), for the combine.

    int32 [El, R * max], the token of each row at its source, and int64 [El, R], first row << 32 | rows: made when they are
    asked for, while the result is outstanding. In their place are the slot, and which use of which pool's it was.
    """

    @classmethod
    def made(cls, pool: Pool, slot: Slot, most: int, hidden: int, experts: int) -> LlHandle:
        return cls((slot, (pool, slot.uses), most, hidden, experts))

    def _sources(self) -> tuple[torch.Tensor, torch.Tensor]:
        slot, pool = self.checked(), tuple.__getitem__(self, 1)[0]
        local = self[4] // pool.nranks
        tokens = torch.zeros(local, pool.nranks * self[2], dtype=torch.int32, device=pool.device)
        ranges = torch.empty(local, pool.nranks, dtype=torch.int64, device=pool.device)
        slot.handle.sources(nccl_ep.Tensor(tokens), nccl_ep.Tensor(ranges), stream=pool.lane.current())
        return tokens, ranges

    def __iter__(self) -> Iterator[Any]:
        return iter((*self._sources(), *tuple.__getitem__(self, slice(2, None))))

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self)[at]
        return self._sources()[at % 5] if at % 5 < 2 else tuple.__getitem__(self, at)

    def checked(self) -> Slot:
        slot, (_, use) = tuple.__getitem__(self, slice(0, 2))
        if slot.uses != use:
            raise RuntimeError(f'the handle is too old: {_SLOTS} dispatches have followed, and no more results than that may '
                               'be outstanding')
        return slot


class Kind:
    """Dispatches that differ in nothing but their tokens. Collective to make where the group or its slots are to be made:
    the window may have to grow."""

    def __init__(self, pool: Pool, key: tuple[Any, ...]):
        self.hidden, self.dtype, topk, ids, self.most, self.experts, self.fp8, round_scale, self.packed, send_only = key
        self.send_only = send_only
        self.local, self.rows = self.experts // pool.nranks, pool.nranks * self.most
        # Memory by columns, read by rows.
        self.layout = _EXPONENTS if self.packed else _COLUMNS
        self.scale_type = torch.int32 if self.packed else torch.float32
        self.width = self.hidden // _BLOCK // (4 if self.packed else 1)
        self.shape = self.local, self.rows, self.width
        self.strides = self.width * self.rows, 1, self.rows
        group = pool.ll(self.experts, 2 * self.hidden, self.most)
        if (group, topk) not in pool.slots:
            pool.slots[group, topk] = Slots(pool, group, topk)
        self.config = DispatchConfig(send_only=int(send_only), round_scales=int(self.fp8 and round_scale),
                                     quantization_recipe=_FP8 if self.fp8 else _PLAIN)
        self.slots: Slots = pool.slots[group, topk]
        self.sends = [_Send(self, slot, topk, ids) for slot in self.slots.every]

    def next(self) -> _Send:
        slots, turn = self.slots, self.slots.turn
        slots.turn = (turn + 1) % _SLOTS
        slots.every[turn].uses += 1
        return self.sends[turn]


class _Send:
    """The arguments of a kind's dispatches on a slot."""

    def __init__(self, kind: Kind, slot: Slot, topk: int, ids: torch.dtype):
        self.slot = slot
        self.idx, self.x = Spot(ids, 0, topk), Spot(kind.dtype, 0, kind.hidden)
        self.count = Spot(torch.int32, kind.local)
        self.rows = Spot(torch.float8_e4m3fn if kind.fp8 else kind.dtype, kind.local, kind.rows, kind.hidden)
        self.scales = Spot(kind.scale_type, kind.local, kind.width, kind.rows) if kind.fp8 else None
        self._structs = (struct_of(bindings.DispatchInputs, tokens=self.x),
                         struct_of(bindings.DispatchOutputs, tokens=self.rows, scales=self.scales),
                         struct_of(bindings.LayoutInfo, expert_counters=self.count), kind.config._lowpp)
        self.addresses = tuple(addressof(s) for s in self._structs)


class Dispatch:
    """One dispatch: its outputs, and what is done with them when they have arrived."""
    __slots__ = ('rows', 'scales', 'count', 'slot', '_kind', '_pool', '_stats', '_waits')

    def __init__(self, pool: Pool, kind: Kind, x: torch.Tensor, stats: torch.Tensor | None, waits: torch.Tensor | None):
        """stats: of rows per expert; waits: ns by rank."""
        local, rows = kind.local, kind.rows
        self._pool, self._kind, self._stats, self._waits = pool, kind, stats, waits
        self.count = x.new_empty(local, dtype=torch.int32)
        self.scales: torch.Tensor | None = None
        if kind.fp8:
            self.rows = x.new_empty(local, rows, kind.hidden, dtype=torch.float8_e4m3fn)
            self.scales = x.new_empty_strided(kind.shape, kind.strides, dtype=kind.scale_type)
        else:
            self.rows = x.new_empty(local, rows, kind.hidden)

    def send(self, x: torch.Tensor, topk_idx: torch.Tensor) -> None:
        """x and topk_idx are dense."""
        kind, scales = self._kind, self.scales
        call, c, stream = kind.next(), self._pool.c, self._pool.lane.current()
        self.slot = slot = call.slot
        handle = slot.handle.ptr
        slot.watch(0, self._waits)
        call.idx.fill(topk_idx)
        call.x.fill(x)
        call.count.native.data_ = self.count.data_ptr()
        call.rows.native.data_ = self.rows.data_ptr()
        if call.scales is not None and scales is not None:
            slot.scales(kind.layout)
            call.scales.native.data_ = scales.data_ptr()
        status = c.ncclEpUpdateHandle(handle, call.idx.ptr, None, stream)
        if status:
            failed(status, 'ncclEpUpdateHandle')
        slot.routing = topk_idx
        status = c.ncclEpDispatch(handle, *call.addresses, stream)
        if status:
            failed(status, 'ncclEpDispatch')
        if kind.send_only:
            slot.staged = x, self.count, self.rows, scales
        else:
            self._arrived()

    def receive(self) -> None:
        """The hook."""
        complete(self._pool, self.slot)
        self._arrived()

    def _arrived(self) -> None:
        if self._stats is not None:
            self._stats.add_(self.count)


class Sum:
    """The arguments of combines on a slot: the weighted sum of each token's rows, in the order of its experts, rounded
    once."""

    def __init__(self, key: tuple[Any, ...]):
        rows, out, weights, self._send_only = key
        self._rows, self._out, self._weights = Spot(rows, 0, 0, 0), Spot(out, 0, 0), Spot(weights, 0, 0)
        self._structs = (struct_of(bindings.CombineInputs, tokens=self._rows),
                         struct_of(bindings.CombineOutputs, tokens=self._out, topk_weights=self._weights),
                         nccl_ep.CombineConfig(send_only=int(self._send_only))._lowpp)
        self._addresses = tuple(addressof(s) for s in self._structs)

    @staticmethod
    def of(slot: Slot, key: tuple[Any, ...]) -> Sum:
        """key: the types of rows, result and weights, and whether it is only sent."""
        found = slot.sums.get(key)
        if found is None:
            found = slot.sums[key] = Sum(key)
        return found

    def send(self, pool: Pool, slot: Slot, x: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
        """x and weights are dense."""
        self._rows.fill(x)
        self._weights.fill(weights)
        self._out.fill(out)
        status = pool.c.ncclEpCombine(slot.handle.ptr, *self._addresses, pool.lane.current())
        if status:
            failed(status, 'ncclEpCombine')
        if self._send_only:
            slot.staged = x, weights, out


def complete(pool: Pool, slot: Slot) -> None:
    """The receive half, on the stream that is current when it is called."""
    status = pool.c.ncclEpComplete(slot.handle.ptr, None, pool.lane.current())
    if status:
        failed(status, 'ncclEpComplete')
    slot.staged = None
