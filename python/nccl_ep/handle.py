# SPDX-License-Identifier: Apache-2.0
"""Handles: one routing of tokens to experts, and the operations on it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _structs, bindings
from ._config import Configured, ptr_of
from .enums import CombineQuantizationRecipe, DispatchQuantizationRecipe, ExpertIdKind, PassDir, Scales
from .errors import NcclInvalid
from .stream import hold, stream_ptr
from .tensor import Tensor

__all__ = ['CombineConfig', 'CombineInputs', 'CombineOutputs', 'DispatchConfig', 'DispatchInputs', 'DispatchOutputs',
           'Handle', 'HandleConfig', 'LayoutInfo']


@dataclass(kw_only=True)
class HandleConfig(Configured):
    """dispatch_output_per_expert_alignment: HT expert-major, zones are padded to it; a power of two, or 0."""
    _STRUCT = _structs.HandleConfig
    dispatch_output_per_expert_alignment: int = 0


@dataclass(kw_only=True)
class DispatchConfig(Configured):
    """send_only (LL): only start the transfers, Handle.complete receives. round_scales: DS_FP8E3M4, powers of two."""
    _STRUCT = _structs.DispatchConfig
    send_only: int = 0
    round_scales: int = 0
    pass_direction: PassDir = PassDir.FWD
    quantization_recipe: DispatchQuantizationRecipe = DispatchQuantizationRecipe.NONE


@dataclass(kw_only=True)
class CombineConfig(Configured):
    """send_only (LL): only start the transfers, Handle.complete receives."""
    _STRUCT = _structs.CombineConfig
    send_only: int = 0
    pass_direction: PassDir = PassDir.FWD
    quantization_recipe: CombineQuantizationRecipe = CombineQuantizationRecipe.NONE


@dataclass(kw_only=True)
class LayoutInfo(Configured):
    """Counters that the library writes: HT at update (expert-major: at a forward dispatch too), LL at dispatch.

    expert_counters [El], src_rank_counters [R] (LL rank-major), expert_offsets [El] (HT expert-major),
    recv_total_counter [1] (HT). recv_topk_idx_kind: local or global ids in dispatch's topk_idx, or
    enums.EXPERT_ID_IN_PLACE (HT flat): local ones, in the columns of their source.
    """
    _STRUCT = _structs.LayoutInfo
    expert_counters: Tensor | None = None
    src_rank_counters: Tensor | None = None
    expert_offsets: Tensor | None = None
    recv_total_counter: Tensor | None = None
    recv_topk_idx_kind: ExpertIdKind | int = ExpertIdKind.AUTO


@dataclass(kw_only=True)
class DispatchInputs(Configured):
    """tokens [T, H]; topk_weights f32 [T, K], not in LL expert-major and BWD; scales with quantisation FWD."""
    _STRUCT = _structs.DispatchInputs
    tokens: Tensor | None = None
    topk_weights: Tensor | None = None
    scales: Tensor | None = None


@dataclass(kw_only=True)
class DispatchOutputs(Configured):
    """Rows are [El, R * Tmax] in LL expert-major, [R, Tmax] in LL rank-major, [N] in HT."""
    _STRUCT = _structs.DispatchOutputs
    tokens: Tensor | None = None
    topk_weights: Tensor | None = None
    scales: Tensor | None = None
    topk_idx: Tensor | None = None


@dataclass(kw_only=True)
class CombineInputs(Configured):
    """tokens in the order of dispatch's output; topk_weights in HT BWD; scales with quantisation NVFP4."""
    _STRUCT = _structs.CombineInputs
    tokens: Tensor | None = None
    topk_weights: Tensor | None = None
    scales: Tensor | None = None


@dataclass(kw_only=True)
class CombineOutputs(Configured):
    """tokens [T, H]; topk_weights f32 [T, K]: in LL expert-major the weights of the sum, read; in HT BWD written."""
    _STRUCT = _structs.CombineOutputs
    tokens: Tensor | None = None
    topk_weights: Tensor | None = None


class Handle:
    """A routing of a group. Made by Group.create_handle or Group.init_handle; nothing destroys it but destroy().

    Tensors must live until the work that uses them is done on their stream. What the C library keeps beyond a call is kept
    here as well: the routing of the last update, and the tensors of a send_only operation until complete().
    """

    def __init__(self, ptr: int):
        self._ptr = int(ptr)
        self._keep: Any = None   # handle_mem
        self._routing: Any = None
        self._staged: list[Any] = []
        self._waits: Any = None  # tensors of wait_stats
        self._biases: Any = ()   # of bias

    def _live(self, operation: str) -> int:
        if not self._ptr:
            raise NcclInvalid(f'Cannot {operation}: Handle is not initialized or has been destroyed')
        return self._ptr

    @property
    def ptr(self) -> int:
        """The ncclEpHandle_t."""
        return self._live('access ptr')

    def update(self, topk_idx: Tensor, *, layout_info: LayoutInfo | None = None, stream: Any) -> None:
        """New routing. topk_idx: int32 or int64 [T, K], -1 = no expert. HT: collective, writes layout_info."""
        bindings.update_handle(self._live('update'), ptr_of(topk_idx, Tensor), ptr_of(layout_info, LayoutInfo),
                               stream_ptr(stream))
        hold(stream, topk_idx, layout_info, self._keep)
        self._routing = topk_idx

    def dispatch(self, inputs: DispatchInputs, outputs: DispatchOutputs, *, layout_info: LayoutInfo | None = None,
                 config: DispatchConfig | None = None, stream: Any) -> None:
        """Sends tokens to the ranks of their experts. Collective."""
        bindings.dispatch(self._live('dispatch'), ptr_of(inputs, DispatchInputs), ptr_of(outputs, DispatchOutputs),
                          ptr_of(layout_info, LayoutInfo), ptr_of(config, DispatchConfig), stream_ptr(stream))
        self._keep_until_done(stream, config, inputs, outputs, layout_info)

    def combine(self, inputs: CombineInputs, outputs: CombineOutputs, *, config: CombineConfig | None = None,
                stream: Any) -> None:
        """Returns rows to their home ranks, summed. Collective."""
        bindings.combine(self._live('combine'), ptr_of(inputs, CombineInputs), ptr_of(outputs, CombineOutputs),
                         ptr_of(config, CombineConfig), stream_ptr(stream))
        self._keep_until_done(stream, config, inputs, outputs, self._biases)

    def sources(self, tokens: Tensor, ranges: Tensor, *, stream: Any) -> None:
        """After an LL expert-major dispatch: tokens int32 [El, R * Tmax], each row's at its source; ranges int64 [El, R], the
        rows of a source in an expert as first << 32 | number."""
        bindings.handle_sources(self._live('get sources'), ptr_of(tokens, Tensor), ptr_of(ranges, Tensor), stream_ptr(stream))
        hold(stream, tokens, ranges)

    def wait_stats(self, *, dispatch: Tensor | None = None, combine: Tensor | None = None) -> None:
        """LL, from now on: int64 [R] to which operations add the ns that they waited for each rank. None: no more."""
        stats = _structs.WaitStats.made()
        stats.dispatch, stats.combine = ptr_of(dispatch, Tensor), ptr_of(combine, Tensor)
        bindings.handle_wait_stats(self._live('set wait statistics'), stats.ptr)
        self._waits = dispatch, combine

    def sms(self, *, dispatch: int = 0, combine: int = 0) -> None:
        """Multiprocessors for dispatches and combines from now on; 0: as the group's configuration says."""
        bindings.handle_sms(self._live('set multiprocessors'), dispatch, combine)

    def scales(self, layout: Scales) -> None:
        """LL: the layout of dispatches' output scales from now on. EXPONENTS needs scales that are powers of two."""
        bindings.handle_scales(self._live('set the layout of scales'), layout)

    def bias(self, *bias: Tensor) -> None:
        """HT, from now on: up to two tensors [T, H] of the tokens' type that combines add, before the rows and before they
        round. None given: no more."""
        bindings.handle_bias(self._live('set a bias'), *(ptr_of(b, Tensor) for b in bias))
        self._biases = bias

    def complete(self, *, config: Any = 0, stream: Any) -> None:
        """Receives for a send_only operation; does nothing if there is none. config: an address, or 0."""
        bindings.complete(self._live('complete'), ptr_of(config), stream_ptr(stream))
        hold(stream, self._staged)
        self._staged = []

    def _keep_until_done(self, stream: Any, config: Any, *arguments: Any) -> None:
        hold(stream, self._routing, self._keep, *arguments)
        if config is not None and config._lowpp.send_only:
            self._staged.append(arguments)

    def destroy(self) -> None:
        """Ends the handle; a second call does nothing. Work under way may still run, so handle_mem must outlive it."""
        if self._ptr:
            bindings.handle_destroy(self._ptr)
            self._ptr = 0
            self._keep = self._routing = self._waits = self._biases = None

    def __repr__(self) -> str:
        return f'<Handle ptr={self._ptr:#x}>' if self._ptr else '<Handle destroyed>'
