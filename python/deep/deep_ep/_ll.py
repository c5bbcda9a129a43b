# SPDX-License-Identifier: Apache-2.0
"""The low-latency calls over nccl_ep's expert-major layout, in which the rows of a source are contiguous in an expert.

A group has two handles per number of experts per token, used in turn and kept: that many results may be outstanding, and a
captured step finds its handle where it was.
"""
from __future__ import annotations

import functools
from typing import Any, Callable, Iterator

import torch

import nccl_ep
from nccl_ep import CombineInputs, CombineOutputs, DispatchConfig, DispatchInputs, DispatchOutputs, LayoutInfo, Tensor

from ._pool import Pool

__all__ = ['Dispatch', 'LlHandle', 'Slot', 'combine', 'dispatch_config', 'hook_of', 'slot_next']

_BLOCK = 128  # channels that share a scale
_SLOTS = 2
_PLAIN = nccl_ep.DispatchQuantizationRecipe.NONE
_FP8 = nccl_ep.DispatchQuantizationRecipe.DS_FP8E3M4


class Slot:
    """A handle of the library, and the memory that belongs to it."""

    def __init__(self, group: nccl_ep.Group, topk: int):
        self.handle = group.init_handle(nccl_ep.Layout.EXPERT_MAJOR, topk)
        self.uses = 0
        self.rows: torch.Tensor | None = None  # what get_next_low_latency_combine_buffer returns

    def destroy(self) -> None:
        self.handle.destroy()


class LlHandle(tuple):
    """(source tokens, ranges of sources, most tokens per rank, hidden, experts), for the combine.

    int32 [El, R * max], the token of each row at its source, and int64 [El, R], first row << 32 | rows: made when they are
    asked for, while the result is outstanding.
    """
    slot: Slot
    use: int
    pool: Pool

    @classmethod
    def made(cls, pool: Pool, slot: Slot, most: int, hidden: int, experts: int) -> LlHandle:
        handle = cls((None, None, most, hidden, experts))
        handle.pool, handle.slot, handle.use = pool, slot, slot.uses
        return handle

    def _sources(self) -> tuple[torch.Tensor, torch.Tensor]:
        slot, pool, local = self.checked(), self.pool, self[4] // self.pool.nranks
        tokens = torch.zeros(local, pool.nranks * self[2], dtype=torch.int32, device=pool.device)
        ranges = torch.empty(local, pool.nranks, dtype=torch.int64, device=pool.device)
        slot.handle.sources(Tensor(tokens), Tensor(ranges), stream=pool.lane.current())
        return tokens, ranges

    def __iter__(self) -> Iterator[Any]:
        return iter((*self._sources(), *tuple.__getitem__(self, slice(2, None))))

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self)[at]
        return self._sources()[at % 5] if at % 5 < 2 else tuple.__getitem__(self, at)

    def checked(self) -> Slot:
        if self.slot.uses != self.use:
            raise RuntimeError(f'the handle is too old: {_SLOTS} dispatches have followed, and no more results than that may '
                               'be outstanding')
        return self.slot


def slot_next(pool: Pool, group: nccl_ep.Group, topk: int) -> Slot:
    """Collective when the group has none for so many experts per token: its window may have to grow."""
    turn, slots = pool.slots.get((group, topk), (0, []))
    if not slots:
        slots = [Slot(group, topk) for _ in range(_SLOTS)]
        for slot in slots:
            pool.own(slot)
    pool.slots[group, topk] = (turn + 1) % _SLOTS, slots
    slots[turn].uses += 1
    return slots[turn]


def _columns(scales: torch.Tensor, out: torch.Tensor) -> None:
    """Scales by rows into memory by columns, of which out is the view by rows; int32: four exponents each."""
    if out.dtype == torch.int32:
        scales = (scales.view(torch.int32) >> 23).to(torch.uint8).view(torch.int32)
    out.copy_(scales)


class Dispatch:
    """One dispatch: its outputs, and what is done with them when they have arrived."""

    def __init__(self, pool: Pool, x: torch.Tensor, rows: int, experts: int, fp8: bool, packed: bool):
        local, hidden = experts // pool.nranks, x.shape[1]
        self.count = torch.empty(local, dtype=torch.int32, device=x.device)
        self.rows = x.new_empty(local, rows, hidden, dtype=torch.float8_e4m3fn if fp8 else x.dtype)
        self._raw: torch.Tensor | None = None  # scales as the library writes them, by rows
        self.scales: torch.Tensor | None = None
        if fp8:
            width = hidden // _BLOCK
            self._raw = torch.empty(local, rows, width, dtype=torch.float32, device=x.device)
            self.scales = torch.empty(local, width // 4 if packed else width, rows, device=x.device,
                                      dtype=torch.int32 if packed else torch.float32).transpose(1, 2)

    def send(self, slot: Slot, x: torch.Tensor, topk_idx: torch.Tensor, config: DispatchConfig, stream: Any) -> None:
        slot.handle.update(Tensor(topk_idx), stream=stream)
        slot.handle.dispatch(DispatchInputs(tokens=Tensor(x)),
                             DispatchOutputs(tokens=Tensor(self.rows), scales=None if self._raw is None else Tensor(self._raw)),
                             layout_info=LayoutInfo(expert_counters=Tensor(self.count)), config=config, stream=stream)

    def arrived(self, stats: torch.Tensor | None) -> None:
        if self._raw is not None and self.scales is not None:
            _columns(self._raw, self.scales)
        if stats is not None:
            stats.add_(self.count)


# Kept: making one costs as much as calling the library.
@functools.cache
def dispatch_config(fp8: bool, round_scale: bool, send_only: bool) -> DispatchConfig:
    return DispatchConfig(send_only=int(send_only), round_scales=int(fp8 and round_scale),
                          quantization_recipe=_FP8 if fp8 else _PLAIN)


@functools.cache
def _combine_config(send_only: bool) -> nccl_ep.CombineConfig:
    return nccl_ep.CombineConfig(send_only=int(send_only))


def combine(slot: Slot, x: torch.Tensor, topk_weights: torch.Tensor, out: torch.Tensor, send_only: bool, stream: Any) -> None:
    """The weighted sum of each token's rows, in the order of its experts, rounded once."""
    slot.handle.combine(CombineInputs(tokens=Tensor(x)),
                        CombineOutputs(tokens=Tensor(out), topk_weights=Tensor(topk_weights.contiguous())),
                        config=_combine_config(send_only), stream=stream)


def hook_of(slot: Slot, current: Callable[[], Any], then: Callable[[], None]) -> Callable[[], None]:
    """The receive half, on the stream that is current when it is called."""
    def hook() -> None:
        slot.handle.complete(stream=current())
        then()
    return hook
