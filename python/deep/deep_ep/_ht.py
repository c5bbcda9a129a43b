# SPDX-License-Identifier: Apache-2.0
"""The high-throughput calls over nccl_ep's flat layout, whose rows have DeepEP's order: by source rank, then by token.

A dispatch without experts, of a cached handle or where only the ranks of a token are known, is a backward pass of the
library: the one that has no top-k tensors.
"""
from __future__ import annotations

from typing import Any, Iterator

import torch

import nccl_ep
from nccl_ep import CombineInputs, CombineOutputs, DispatchInputs, DispatchOutputs, Tensor
from nccl_ep.enums import EXPERT_ID_IN_PLACE

from ._pool import Pool

__all__ = ['HtHandle', 'Route', 'Shape', 'combine', 'layout', 'plan', 'receive']

_UNIT = 16  # bytes: rows and scales of a dispatch are multiples
_IN_PLACE = nccl_ep.LayoutInfo(recv_topk_idx_kind=EXPERT_ID_IN_PLACE)
# By whether there are no experts, and no scales.
_CONFIGS = {(bare, plain): nccl_ep.DispatchConfig(
    pass_direction=nccl_ep.PassDir.BWD if bare else nccl_ep.PassDir.FWD,
    quantization_recipe=nccl_ep.DispatchQuantizationRecipe.NONE if plain else nccl_ep.DispatchQuantizationRecipe.FWD)
    for bare in (False, True) for plain in (False, True)}


class Route:
    """One routing: a handle of the library, and what its dispatches and combines need to know."""

    def __init__(self, handle: nccl_ep.Handle, tokens: int, rows: int):
        """rows: of outputs."""
        self.handle, self.tokens, self.rows = handle, tokens, rows

    def destroy(self) -> None:
        self.handle.destroy()

    def __del__(self) -> None:
        # Local, unlike the group's. At the interpreter's end modules may be gone already, and the process frees all.
        try:
            self.handle.destroy()
        except Exception:
            pass


class HtHandle(tuple):
    """What dispatch returns for later calls: DeepEP's tuple in length and in what its tests read, the rest None.

    Item 0 on one node: int32 [R, R], rows of sources 0 to i for rank j; item -4 on several: this rank's column of it. They
    are made when they are asked for, and None after a dispatch that did not wait for counts.
    """
    route: Route
    sent: list[tuple[int, ...]] | None  # by source: rows for every rank
    rank: int
    _PREFIX = {6: 0, 10: 6}  # by length

    @classmethod
    def made(cls, route: Route, sent: list[tuple[int, ...]] | None, is_token_in_rank: torch.Tensor, pool: Pool) -> HtHandle:
        one_node = max(pool.nodes) == 0
        handle = cls((None,) * 4 + (is_token_in_rank, None) if one_node else (is_token_in_rank,) + (None,) * 9)
        handle.route, handle.sent, handle.rank = route, sent, pool.rank
        return handle

    def _prefix(self) -> torch.Tensor | None:
        if self.sent is None:
            return None
        matrix = torch.tensor(self.sent).cumsum(0).int().to(tuple.__getitem__(self, 4 if len(self) == 6 else 0).device)
        return matrix if len(self) == 6 else matrix[:, self.rank].contiguous()

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
    ranks, device = len(nodes), topk_idx.device
    per_rank = experts // ranks
    ids = torch.where((topk_idx >= 0) & (topk_idx < experts), topk_idx, experts).long()
    counts = torch.zeros(experts + 1, dtype=torch.int32, device=device)
    counts.scatter_add_(0, ids.flatten(), torch.ones(1, dtype=torch.int32, device=device).expand(ids.numel()))
    owned = torch.zeros(len(ids), ranks + 1, dtype=torch.bool, device=device)
    owned.scatter_(1, ids // per_rank, True)
    owned = owned[:, :ranks].contiguous()
    per_node = None
    if max(nodes):
        per_node = torch.stack([owned[:, [r for r in range(ranks) if nodes[r] == n]].any(1).sum(dtype=torch.int32)
                                for n in range(max(nodes) + 1)])
    return owned.sum(0, dtype=torch.int32), per_node, counts[:experts].clone(), owned


# ---- rows: dense, of whole units, and of a type that the library moves ----

def _rows(x: torch.Tensor) -> torch.Tensor:
    """x as the library takes it: dense, aligned, rows padded to whole units; one-byte integers as bytes of fp8."""
    if x.element_size() == 1:
        x = x.view(torch.float8_e4m3fn)
    spare = -x.shape[1] * x.element_size() % _UNIT // x.element_size()
    if spare:
        wide = x.new_empty(len(x), x.shape[1] + spare)
        wide[:, :x.shape[1]] = x
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
        ranks = is_token_in_rank.shape[1]
        self.per_expert = per_expert
        if topk_idx is not None:
            self.routing, self.experts = topk_idx, per_expert.numel()
        else:
            # One expert per rank: all that is known of a token is where it goes.
            self.routing, self.experts = torch.where(is_token_in_rank, torch.arange(ranks, device=x.device), -1), ranks
        self.row_bytes = _send_bytes(x, scales)
        self.tokens = len(x)


def plan(pool: Pool, shape: Shape, per_rank: torch.Tensor, worst: int) -> tuple[Route, list[int], Any]:
    """Collective: a route, the rows per local expert, and the rows that each rank sends to every other.

    With worst, which bounds the rows of every rank, the host waits for nothing and learns no counts.
    """
    if worst:
        most = max(worst // pool.nranks, 1)
        if shape.tokens > most:
            raise ValueError(f'rank {pool.rank}: {shape.tokens} tokens, but num_worst_tokens = {worst} allows {most} for '
                             f'each of {pool.nranks} ranks')
        group = pool.ht_fixed(shape.experts, shape.row_bytes, worst)
        return _route(pool, group, shape, worst), [], None
    # In lists: a handful of numbers, for which torch takes ten times as long.
    everyone = pool.agree([shape.tokens, *per_rank.tolist(), *shape.per_expert.tolist()])
    group = pool.ht(shape.experts, shape.row_bytes, max(words[0] for words in everyone))
    rows = sum(words[1 + pool.rank] for words in everyone)
    local = shape.per_expert.numel() // pool.nranks
    first = 1 + pool.nranks + pool.rank * local
    counts = [sum(column) for column in zip(*(words[first:first + local] for words in everyone))]
    return _route(pool, group, shape, rows), counts, [words[1:1 + pool.nranks] for words in everyone]


def _route(pool: Pool, group: nccl_ep.Group, shape: Shape, rows: int) -> Route:
    handle = group.create_handle(nccl_ep.Layout.FLAT, Tensor(shape.routing.contiguous()), stream=pool.lane.stream)
    route = Route(handle, shape.tokens, rows)
    pool.own(route)
    return route


def receive(pool: Pool, route: Route, x: torch.Tensor, scales: torch.Tensor | None, topk_idx: torch.Tensor | None,
            topk_weights: torch.Tensor | None) -> tuple[Any, Any, Any, Any]:
    """Collective: sends x along the route; returns rows, scales, local experts and weights of what arrives here."""
    sent, given, n = _rows(x), None, route.rows
    out, got = sent.new_empty(n, sent.shape[1]), None
    if scales is not None:
        given = _scales(scales)
        got = given.new_empty(n, given.shape[1])
    ids = weights = weighed = None
    if topk_idx is not None:
        weighed = torch.zeros_like(topk_idx, dtype=torch.float32) if topk_weights is None else topk_weights.contiguous()
        ids = torch.empty(n, topk_idx.shape[1], dtype=torch.int64, device=x.device)
        weights = torch.empty(n, topk_idx.shape[1], dtype=torch.float32, device=x.device)
    route.handle.dispatch(
        DispatchInputs(tokens=Tensor(sent), scales=_some(given), topk_weights=_some(weighed)),
        DispatchOutputs(tokens=Tensor(out), scales=_some(got), topk_weights=_some(weights), topk_idx=_some(ids)),
        layout_info=None if ids is None else _IN_PLACE, config=_CONFIGS[ids is None, got is None], stream=pool.lane.stream)
    if out.shape[1] != x.shape[1]:
        out = out[:, :x.shape[1]].contiguous()
    if got is not None and scales is not None:
        got = got[:, :scales.shape[1]].contiguous().view(scales.dtype)
    return out.view(x.dtype), got, ids, weights if topk_weights is not None else None


def _some(tensor: torch.Tensor | None) -> Tensor | None:
    return None if tensor is None else Tensor(tensor)


def _sum(pool: Pool, route: Route, x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(route.tokens, x.shape[1])
    route.handle.combine(CombineInputs(tokens=Tensor(x)), CombineOutputs(tokens=Tensor(out)), stream=pool.lane.stream)
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
