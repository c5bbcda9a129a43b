# SPDX-License-Identifier: Apache-2.0
"""The high-throughput calls over nccl_ep's flat layout, whose rows have DeepEP's order: by source rank, then by token.

A dispatch without experts, of a cached handle or where only the ranks of a token are known, is a backward pass of the
library: the one that has no top-k tensors.
"""
from __future__ import annotations

from ctypes import addressof, byref, c_void_p
from typing import Any, Iterator

import torch

import nccl_ep
from nccl_ep import bindings
from nccl_ep.enums import EXPERT_ID_IN_PLACE

from ._calls import Spot, failed, struct_of
from ._pool import Pool

__all__ = ['HtHandle', 'Route', 'Shape', 'combine', 'layout', 'plan', 'receive']

_UNIT = 16  # bytes: rows and scales of a dispatch are multiples
_FLAT = int(nccl_ep.Layout.FLAT)
_IN_PLACE = nccl_ep.LayoutInfo(recv_topk_idx_kind=EXPERT_ID_IN_PLACE)
# By whether there are no experts, and no scales.
_CONFIGS = {(bare, plain): nccl_ep.DispatchConfig(
    pass_direction=nccl_ep.PassDir.BWD if bare else nccl_ep.PassDir.FWD,
    quantization_recipe=nccl_ep.DispatchQuantizationRecipe.NONE if plain else nccl_ep.DispatchQuantizationRecipe.FWD)
    for bare in (False, True) for plain in (False, True)}


class Route:
    """One routing: a handle of the library, and what its dispatches and combines need to know."""
    __slots__ = ('pool', 'tokens', 'rows', 'sent', '_handle')

    def __init__(self, pool: Pool, handle: int, tokens: int, rows: int):
        """rows: of outputs."""
        self.pool, self._handle, self.tokens, self.rows = pool, handle, tokens, rows
        self.sent: tuple[list[int], int] | None = None  # what ranks agreed on, and how many numbers of each
        pool.routes.add(handle)

    @property
    def handle(self) -> int:
        if self._handle not in self.pool.routes:
            raise nccl_ep.NcclInvalid('the Buffer of this handle has been destroyed')
        return self._handle

    def __del__(self) -> None:
        # Local, unlike the group's. At the interpreter's end modules may be gone already, and the process frees all.
        try:
            self.pool.routes.remove(self._handle)
            bindings.handle_destroy(self._handle)
        except Exception:
            pass


class HtHandle(tuple):
    """What dispatch returns for later calls: DeepEP's tuple in length and in what its tests read, the rest None.

    Item 0 on one node: int32 [R, R], rows of sources 0 to i for rank j; item -4 on several: this rank's column of it. They
    are made when they are asked for, and None after a dispatch that did not wait for counts.
    """
    route: Route
    _PREFIX = {6: 0, 10: 6}  # by length

    @classmethod
    def made(cls, route: Route, is_token_in_rank: torch.Tensor) -> HtHandle:
        handle = cls((None, None, None, None, is_token_in_rank, None) if route.pool.one_node else
                     (is_token_in_rank,) + (None,) * 9)
        handle.route = route
        return handle

    def _prefix(self) -> torch.Tensor | None:
        if self.route.sent is None:
            return None
        (words, each), pool = self.route.sent, self.route.pool
        matrix = torch.tensor(words).view(-1, each)[:, 1:1 + pool.nranks].cumsum(0).int().to(pool.device)
        return matrix if len(self) == 6 else matrix[:, pool.rank].contiguous()

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self)[at]
        if at in (self._PREFIX[len(self)], self._PREFIX[len(self)] - len(self)):
            return self._prefix()
        return tuple.__getitem__(self, at)


def layout(topk_idx: torch.Tensor, experts: int, nodes: list[int]) -> tuple[Any, Any, Any, Any]:
    """Tokens per rank, per node (None on one), per expert, and which token goes to which rank."""
    ranks = len(nodes)
    # Of what is no expert, -1 is in front of all and the rest behind: both columns are dropped.
    at = topk_idx.clamp(-1, experts).long()
    counts = at.new_zeros(experts + 2, dtype=torch.int32)
    counts.scatter_add_(0, (at + 1).flatten(), at.new_ones(1, dtype=torch.int32).expand(at.numel()))
    owned = at.new_zeros(at.shape[0], ranks + 2, dtype=torch.bool)
    owned.scatter_(1, at.div(experts // ranks, rounding_mode='floor') + 1, True)
    owned = owned[:, 1:ranks + 1].contiguous()
    per_node = None
    if max(nodes):
        per_node = torch.stack([owned[:, [r for r in range(ranks) if nodes[r] == n]].any(1).sum(dtype=torch.int32)
                                for n in range(max(nodes) + 1)])
    return owned.sum(0, dtype=torch.int32), per_node, counts[1:experts + 1].clone(), owned


# ---- rows: dense, of whole units, and of a type that the library moves ----

def _rows(x: torch.Tensor) -> torch.Tensor:
    """x as the library takes it: dense, aligned, rows padded to whole units; one-byte integers as bytes of fp8."""
    size, width = x.element_size(), x.shape[1]
    if size == 1:
        x = x.view(torch.float8_e4m3fn)
    spare = -width * size % _UNIT // size
    if spare:
        wide = x.new_empty(x.shape[0], width + spare)
        wide[:, :width] = x
        return wide
    x = x.contiguous()
    return x if x.data_ptr() % _UNIT == 0 else x.clone()


def _width(scales: torch.Tensor) -> int:
    """Words of a row of scales on the way: whole units."""
    return -(-scales.shape[1] * 4 // _UNIT) * _UNIT // 4


def _send_bytes(x: torch.Tensor, scales: torch.Tensor | None) -> int:
    """Bytes of a row in a dispatch of x, and in a combine of what becomes of it in two bytes per channel."""
    row = -(-x.shape[1] * max(x.element_size(), 2) // _UNIT) * _UNIT
    return row + (4 * _width(scales) if scales is not None else 0)


def _scales(scales: torch.Tensor) -> torch.Tensor:
    """Any scales of four bytes as dense rows of whole units; the library takes floats, and leaves them alone."""
    packed = torch.empty(len(scales), _width(scales), dtype=scales.dtype, device=scales.device)
    packed[:, :scales.shape[1]] = scales
    return packed.view(torch.float32)


class Shape:
    """What a first dispatch is given, and its routing as the library takes it."""

    def __init__(self, x: torch.Tensor, scales: Any, topk_idx: Any, is_token_in_rank: torch.Tensor, per_expert: torch.Tensor):
        self.per_expert = per_expert
        if topk_idx is not None:
            self.routing, self.experts = topk_idx, per_expert.numel()
        else:
            # One expert per rank: all that is known of a token is where it goes.
            ranks = is_token_in_rank.shape[1]
            self.routing, self.experts = torch.where(is_token_in_rank, torch.arange(ranks, device=x.device), -1), ranks
        self.row_bytes = _send_bytes(x, scales)
        self.tokens = x.shape[0]


def plan(pool: Pool, shape: Shape, per_rank: torch.Tensor, worst: int) -> tuple[Route, list[int]]:
    """Collective: a route, and the rows per local expert.

    With worst, which bounds the rows of every rank, the host waits for nothing and learns no counts.
    """
    if worst:
        most = max(worst // pool.nranks, 1)
        if shape.tokens > most:
            raise ValueError(f'rank {pool.rank}: {shape.tokens} tokens, but num_worst_tokens = {worst} allows {most} for '
                             f'each of {pool.nranks} ranks')
        group = pool.ht_fixed(shape.experts, shape.row_bytes, worst)
        return _route(pool, group, shape, worst), []
    # In lists: a handful of numbers, for which torch takes ten times as long.
    mine = [shape.tokens, *per_rank.tolist(), *shape.per_expert.tolist()]
    every, each = pool.agree(mine), len(mine)
    group = pool.ht(shape.experts, shape.row_bytes, max(every[::each]))
    route = _route(pool, group, shape, sum(every[1 + pool.rank::each]))
    route.sent = every, each
    local = (each - 1) // pool.nranks - 1
    first = 1 + pool.nranks + pool.rank * local
    return route, [sum(every[first + e::each]) for e in range(local)]


def _frame(pool: Pool, kind: Any, key: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """A frame for a call of this kind, and where it belongs afterwards. Two threads do not share one."""
    free = pool.frames.get((kind, key))
    if free is None:
        free = pool.frames[kind, key] = []
    return free, free.pop() if free else kind(*key)


class _Routing:
    """The arguments of ncclEpCreateHandle."""

    def __init__(self, dtype: torch.dtype):
        self.idx, self.out = Spot(dtype, 0, 0), c_void_p()


def _route(pool: Pool, group: nccl_ep.Group, shape: Shape, rows: int) -> Route:
    routing = shape.routing.contiguous()
    free, frame = _frame(pool, _Routing, (routing.dtype,))
    frame.idx.fill(routing)
    status = pool.c.ncclEpCreateHandle(byref(frame.out), group.ptr, _FLAT, frame.idx.ptr, None, None, pool.lane.ptr)
    if status:
        failed(status, 'ncclEpCreateHandle')
    route = Route(pool, frame.out.value, shape.tokens, rows)
    free.append(frame)
    return route


class _Dispatch:
    """The arguments of ncclEpDispatch. scaled: with scales; weighed: the type of weights, None where there are no experts."""

    def __init__(self, dtype: torch.dtype, scaled: bool, weighed: torch.dtype | None):
        self.x, self.out = Spot(dtype, 0, 0), Spot(dtype, 0, 0)
        self.given = self.got = self.weighed = self.ids = self.weights = None
        if scaled:
            self.given, self.got = Spot(torch.float32, 0, 0), Spot(torch.float32, 0, 0)
        if weighed is not None:
            self.weighed, self.weights, self.ids = Spot(weighed, 0, 0), Spot(torch.float32, 0, 0), Spot(torch.int64, 0, 0)
        self._structs = (struct_of(bindings.DispatchInputs, tokens=self.x, scales=self.given, topk_weights=self.weighed),
                         struct_of(bindings.DispatchOutputs, tokens=self.out, scales=self.got, topk_weights=self.weights,
                                   topk_idx=self.ids))
        self.addresses = (*(addressof(s) for s in self._structs), 0 if weighed is None else _IN_PLACE.ptr,
                          _CONFIGS[weighed is None, not scaled].ptr)


def receive(pool: Pool, route: Route, x: torch.Tensor, scales: torch.Tensor | None, topk_idx: torch.Tensor | None,
            topk_weights: torch.Tensor | None) -> tuple[Any, Any, Any, Any]:
    """Collective: sends x along the route; returns rows, scales, local experts and weights of what arrives here."""
    sent, n = _rows(x), route.rows
    out = sent.new_empty(n, sent.shape[1])
    got = ids = weights = weighed = None
    if topk_idx is not None:
        weighed = torch.zeros_like(topk_idx, dtype=torch.float32) if topk_weights is None else topk_weights.contiguous()
        k = topk_idx.shape[1]
        ids, weights = x.new_empty(n, k, dtype=torch.int64), x.new_empty(n, k, dtype=torch.float32)
    free, frame = _frame(pool, _Dispatch, (sent.dtype, scales is not None, None if weighed is None else weighed.dtype))
    if scales is not None:
        given = _scales(scales)
        got = given.new_empty(n, given.shape[1])
        frame.given.fill(given)
        frame.got.fill(got)
    if ids is not None:
        frame.weighed.fill(weighed)
        frame.weights.fill(weights)
        frame.ids.fill(ids)
    frame.x.fill(sent)
    frame.out.fill(out)
    status = pool.c.ncclEpDispatch(route.handle, *frame.addresses, pool.lane.ptr)
    if status:
        failed(status, 'ncclEpDispatch')
    free.append(frame)
    if out.shape[1] != x.shape[1]:
        out = out[:, :x.shape[1]].contiguous()
    if got is not None and scales is not None:
        got = got[:, :scales.shape[1]].contiguous().view(scales.dtype)
    return out if out.dtype == x.dtype else out.view(x.dtype), got, ids, weights if topk_weights is not None else None


class _Combine:
    """The arguments of ncclEpCombine."""

    def __init__(self, dtype: torch.dtype):
        self.x, self.out = Spot(dtype, 0, 0), Spot(dtype, 0, 0)
        self._structs = struct_of(bindings.CombineInputs, tokens=self.x), struct_of(bindings.CombineOutputs, tokens=self.out)
        self.addresses = tuple(addressof(s) for s in self._structs)


def _sum(pool: Pool, route: Route, x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(route.tokens, x.shape[1])
    free, frame = _frame(pool, _Combine, (x.dtype,))
    frame.x.fill(x)
    frame.out.fill(out)
    status = pool.c.ncclEpCombine(route.handle, *frame.addresses, None, pool.lane.ptr)
    if status:
        failed(status, 'ncclEpCombine')
    free.append(frame)
    return out


def combine(pool: Pool, route: Route, x: torch.Tensor, topk_weights: torch.Tensor | None,
            biases: list[torch.Tensor]) -> tuple[Any, Any]:
    """Collective: rows go home and are summed in fp32. Weights are summed like tokens, column by column."""
    if not biases:
        out = _sum(pool, route, x.contiguous())
    else:
        # Rounded once, after the biases. In halves: rows of fp32 are twice as wide as what the group was made for.
        half = -(-x.shape[1] // 2)
        parts = [_sum(pool, route, part.float().contiguous()) for part in x.split(half, 1)]
        total = biases[0].float()
        for bias in biases[1:]:
            total = total + bias.float()
        out = (total + torch.cat(parts, 1)).to(x.dtype)
    weights = None if topk_weights is None else _sum(pool, route, topk_weights.contiguous())
    return out, weights
