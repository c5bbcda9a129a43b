# SPDX-License-Identifier: Apache-2.0
"""The high-throughput calls over nccl_ep's flat layout, whose rows have DeepEP's order: by source rank, then by token.

A dispatch without experts, of a cached handle or where only the ranks of a token are known, is a backward pass of the
library: the one that has no top-k tensors.
"""
from __future__ import annotations

from ctypes import addressof, byref, c_void_p
from typing import Any, Iterator, Sequence, cast

import torch

import nccl_ep
from nccl_ep import bindings
from nccl_ep.enums import EXPERT_ID_IN_PLACE

from ._calls import Spot, failed, struct_of
from ._pool import Pool

__all__ = ['Frame', 'HtHandle', 'Route', 'combine', 'frame_of', 'layout', 'plan', 'receive']

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
    __slots__ = ('pool', 'tokens', 'rows', 'sent', '_handle', '_sms')

    def __init__(self, pool: Pool, tokens: int, rows: int, sent: tuple[Sequence[int], int] | None):
        """rows: of outputs; sent: what ranks agreed on, and how many numbers of each."""
        self.pool, self._handle, self.tokens, self.rows, self.sent = pool, 0, tokens, rows, sent
        self._sms = [0, 0]

    def open(self, handle: int) -> None:
        """The first dispatch has made the library's handle."""
        self._handle = handle
        self.pool.routes.add(handle)

    def ask(self, op: int, sms: int) -> None:
        """Multiprocessors for dispatches (0) or combines (1) from now on; 0: as the library likes."""
        if self._sms[op] != sms:
            self._sms[op] = sms
            status = self.pool.c.anyEpHandleSms(self.handle, *self._sms)
            if status:
                failed(status, 'anyEpHandleSms')

    def bias(self, biases: Sequence[torch.Tensor]) -> None:
        """What combines add from now on."""
        spots = [Spot(bias.dtype, *bias.shape) for bias in biases]
        for spot, bias in zip(spots, biases):
            spot.fill(bias)
        status = self.pool.c.anyEpHandleBias(self.handle, (c_void_p * len(spots))(*(spot.ptr for spot in spots)), len(spots))
        if status:
            failed(status, 'anyEpHandleBias')

    @property
    def handle(self) -> int:
        if self._handle not in self.pool.routes:
            raise nccl_ep.NcclInvalid('the Buffer of this handle has been destroyed')
        return self._handle

    def __del__(self) -> None:
        # Local, unlike the group's. At the interpreter's end modules may be gone already, and the process frees all.
        try:
            self.pool.routes.remove(self._handle)  # KeyError: there is none
            self.pool.c.ncclEpHandleDestroy(self._handle)
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


def layout(pool: Pool, topk_idx: torch.Tensor, experts: int) -> tuple[Any, Any, Any, Any]:
    """Tokens per rank, per node (None on one), per expert, and which token goes to which rank."""
    ranks, nodes = pool.nranks, pool.nodes
    # What is no expert is the one behind all, of the rank behind all: both columns are dropped.
    at = topk_idx.clamp(-1, experts).long().remainder_(experts + 1)
    # One tensor, so that the host reads all counts in one copy, which begins here: dispatch finds it done.
    counts = at.new_zeros(ranks + experts + 1, dtype=torch.int32)
    counts[ranks:].scatter_add_(0, at.flatten(), pool.one.expand(at.numel()))
    owned = at.new_zeros(at.shape[0], ranks + 1, dtype=torch.bool)
    owned.scatter_(1, at.div(experts // ranks, rounding_mode='floor'), True)
    owned = owned[:, :ranks].contiguous()
    per_node = None
    if not pool.one_node:
        per_node = torch.stack([owned[:, [r for r in range(ranks) if nodes[r] == n]].any(1).sum(dtype=torch.int32)
                                for n in range(max(nodes) + 1)])
    per_rank, per_expert = counts[:ranks], counts[ranks:ranks + experts]
    torch.sum(owned, 0, dtype=torch.int32, out=per_rank)
    pool.counts = per_rank, per_expert, pool.lane.fetch(counts)
    return per_rank, per_node, per_expert, owned


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


def _scales(scales: torch.Tensor, width: int) -> torch.Tensor:
    """Any scales of four bytes as dense rows of whole units; the library takes floats, and leaves them alone."""
    if width != scales.shape[1] or not scales.is_contiguous() or scales.data_ptr() % _UNIT:
        packed = scales.new_empty(scales.shape[0], width)
        packed[:, :scales.shape[1]] = scales
        scales = packed
    return scales if scales.dtype == torch.float32 else scales.view(torch.float32)


class Frame:
    """A dispatch of tensors of one kind: the sizes of a row, and the arguments of its C calls, which it fills in."""

    def __init__(self, key: tuple[Any, ...]):
        """scaled: words of a row of scales, 0 without; k: 0 where there are no experts."""
        dtype, self.hidden, scaled, k, ids, weights = key
        size = dtype.itemsize
        self.key, self.tokens, self.k, self.sms = key, 0, k, 0
        self.group, self.routed = 0, cast(Any, None)  # of a handle that is still to be made
        self.width = self.hidden + -self.hidden * size % _UNIT // size
        self.scaled = -(-scaled * 4 // _UNIT) * _UNIT // 4
        # Also for a combine of what becomes of it in two bytes per channel.
        self.row_bytes = -(-self.hidden * max(size, 2) // _UNIT) * _UNIT + 4 * self.scaled
        self.plain = self.width == self.hidden and size > 1  # rows go as they are
        moved = dtype if size > 1 else torch.float8_e4m3fn
        self.routing, self.made = Spot(ids or torch.int64, 0, k), c_void_p()
        self.x, self.out = Spot(moved, 0, self.width), Spot(moved, 0, self.width)
        self.given = self.got = self.weighed = self.ids = self.weights = cast(Any, None)
        if scaled:
            self.given, self.got = Spot(torch.float32, 0, self.scaled), Spot(torch.float32, 0, self.scaled)
        if k:
            self.weighed, self.weights, self.ids = Spot(weights, 0, k), Spot(torch.float32, 0, k), Spot(torch.int64, 0, k)
        self._structs = (struct_of(bindings.DispatchInputs, tokens=self.x, scales=self.given, topk_weights=self.weighed),
                         struct_of(bindings.DispatchOutputs, tokens=self.out, scales=self.got, topk_weights=self.weights,
                                   topk_idx=self.ids))
        self.addresses = (*(addressof(s) for s in self._structs), _IN_PLACE.ptr if k else 0, _CONFIGS[not k, not scaled].ptr)


def frame_of(pool: Pool, x: torch.Tensor, scales: Any, topk_idx: Any, topk_weights: Any, sms: int) -> Frame:
    """One that no other thread has. It is given back by receive; one that was not, after a failure, is no loss."""
    tokens, hidden = x.shape
    words = 0 if scales is None else scales.shape[1]
    if topk_idx is None:
        key: tuple[Any, ...] = (x.dtype, hidden, words, 0, None, None)
    else:
        weights = torch.float32 if topk_weights is None else topk_weights.dtype
        key = x.dtype, hidden, words, topk_idx.shape[1], topk_idx.dtype, weights
    free = pool.frames.get(key)
    frame = free.pop() if free else Frame(key)
    frame.tokens, frame.sms = tokens, sms
    return frame


def _numbers(pool: Pool, tokens: int, counts: tuple[torch.Tensor, torch.Tensor]) -> list[int]:
    """What a rank tells the others: its tokens, those per rank, those per expert. Here the host waits for the GPU: once,
    where the counts are what layout has returned."""
    per_rank, per_expert = counts
    last = pool.counts
    if last is not None and per_rank is last[0] and per_expert is last[1]:
        numbers = [tokens, *last[2].tolist()]
        numbers.pop()
        return numbers
    return [tokens, *per_rank.tolist(), *per_expert.tolist()]


def plan(pool: Pool, frame: Frame, topk_idx: torch.Tensor | None, owned: torch.Tensor,
         counts: tuple[torch.Tensor, torch.Tensor], worst: int) -> tuple[Route, list[int]]:
    """Collective: a route, and the rows per local expert. counts: per rank, and per expert.

    With worst, which bounds the rows of every rank, the host waits for nothing and learns no counts.
    """
    ranks, tokens = pool.nranks, frame.tokens
    if topk_idx is not None:
        routing, experts = topk_idx.contiguous(), counts[1].numel()
    else:
        # One expert per rank: all that is known of a token is where it goes.
        routing, experts = torch.where(owned, torch.arange(ranks, device=owned.device), -1), ranks
    frame.routing.fill(routing)
    frame.routed = routing
    if worst:
        most = max(worst // ranks, 1)
        if tokens > most:
            raise ValueError(f'rank {pool.rank}: {tokens} tokens, but num_worst_tokens = {worst} allows {most} for each of '
                             f'{ranks} ranks')
        frame.group = pool.ht_fixed(experts, frame.row_bytes, worst)
        return Route(pool, tokens, worst, None), []
    # In lists: a handful of numbers, for which torch takes ten times as long.
    mine = _numbers(pool, tokens, counts)
    every, each = pool.agree(mine), len(mine)
    frame.group = pool.ht(experts, frame.row_bytes, max(every[::each]))
    local = (each - 1) // ranks - 1
    first = 1 + ranks + pool.rank * local
    by_source = [every[at:at + local] for at in range(first, len(every), each)]
    return Route(pool, tokens, sum(every[1 + pool.rank::each]), (every, each)), [sum(n) for n in zip(*by_source)]


def _open(pool: Pool, route: Route, frame: Frame) -> None:
    """Collective: makes the route's handle."""
    group, frame.group = frame.group, 0
    status = pool.c.ncclEpCreateHandle(byref(frame.made), group, _FLAT, frame.routing.ptr, None, None, pool.lane.turn())
    if status:
        failed(status, 'ncclEpCreateHandle')
    frame.routed = None
    route.open(frame.made.value or 0)


def receive(pool: Pool, route: Route, frame: Frame, x: torch.Tensor, scales: torch.Tensor | None, topk_idx: Any,
            topk_weights: torch.Tensor | None) -> tuple[Any, Any, Any, Any]:
    """Collective: sends x along the route; returns rows, scales, local experts and weights of what arrives here."""
    plain, tokens, n = frame.plain, frame.tokens, route.rows
    sent = x if plain and x.is_contiguous() and not x.data_ptr() % _UNIT else _rows(x)
    out = sent.new_empty(n, frame.width)
    frame.x.put(sent, tokens)
    frame.out.put(out, n)
    got = ids = weights = None
    if scales is not None:
        given = _scales(scales, frame.scaled)
        got = given.new_empty(n, frame.scaled)
        frame.given.put(given, scales.shape[0])
        frame.got.put(got, n)
    if topk_idx is not None:
        weighed = torch.zeros_like(topk_idx, dtype=torch.float32) if topk_weights is None else topk_weights.contiguous()
        ids, weights = x.new_empty(n, frame.k, dtype=torch.int64), x.new_empty(n, frame.k, dtype=torch.float32)
        if weighed.shape == topk_idx.shape:
            frame.weighed.put(weighed, tokens)
        else:
            frame.weighed.fill(weighed)  # which the library refuses
        frame.weights.put(weights, n)
        frame.ids.put(ids, n)
    # With nothing in between that could be done before: an operation of the CPU device leaves the caches cold.
    if frame.group:
        _open(pool, route, frame)
    route.ask(0, frame.sms)
    status = pool.c.ncclEpDispatch(route.handle, *frame.addresses, pool.lane.turn())
    if status:
        failed(status, 'ncclEpDispatch')
    _give_back(pool, frame)
    if not plain:
        out = (out if frame.width == frame.hidden else out[:, :frame.hidden].contiguous()).view(x.dtype)
    if got is not None and scales is not None:
        got = got[:, :scales.shape[1]].contiguous() if frame.scaled != scales.shape[1] else got
        got = got if scales.dtype == torch.float32 else got.view(scales.dtype)
    return out, got, ids, weights if topk_weights is not None else None


def _give_back(pool: Pool, frame: Frame) -> None:
    free = pool.frames.get(frame.key)
    if free is None:
        free = pool.frames[frame.key] = []
    free.append(frame)


class _Combine:
    """The arguments of ncclEpCombine."""

    def __init__(self, dtype: torch.dtype):
        self.x, self.out = Spot(dtype, 0, 0), Spot(dtype, 0, 0)
        self._structs = struct_of(bindings.CombineInputs, tokens=self.x), struct_of(bindings.CombineOutputs, tokens=self.out)
        self.addresses = tuple(addressof(s) for s in self._structs)


def _sum(pool: Pool, route: Route, x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(route.tokens, x.shape[1])
    free = pool.sums.get(x.dtype)
    if free is None:
        free = pool.sums[x.dtype] = []
    frame = free.pop() if free else _Combine(x.dtype)
    frame.x.fill(x)
    frame.out.fill(out)
    status = pool.c.ncclEpCombine(route.handle, *frame.addresses, None, pool.lane.turn())
    if status:
        failed(status, 'ncclEpCombine')
    free.append(frame)
    return out


def combine(pool: Pool, route: Route, x: torch.Tensor, topk_weights: torch.Tensor | None,
            biases: list[torch.Tensor]) -> tuple[Any, Any]:
    """Collective: rows go home and are summed in fp32, after the biases. Weights are summed like tokens, column by
    column."""
    if not biases:
        out = _sum(pool, route, x.contiguous())
    else:
        added = [bias.contiguous() for bias in biases]
        route.bias(added)
        try:
            out = _sum(pool, route, x.contiguous())
        finally:
            route.bias([])
    weights = None if topk_weights is None else _sum(pool, route, topk_weights.contiguous())
    return out, weights
