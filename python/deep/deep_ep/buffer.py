# SPDX-License-Identifier: Apache-2.0
"""Buffer: DeepEP's interface."""
from __future__ import annotations

from typing import Any

import torch

from . import _ht
from ._lane import flags_check
from ._pool import Pool
from .config import Config
from .utils.event import EventHandle, EventOverlap

__all__ = ['Buffer']

_Tensors = Any  # a tensor, or a pair of them


def _pair(x: _Tensors) -> tuple[torch.Tensor, torch.Tensor | None]:
    return x if isinstance(x, tuple) else (x, None)


class Buffer:
    """Expert-parallel communication among the ranks of a process group.

    group: of torch.distributed, any backend; only all_gather_object is called, here. Or comm, of mpi4py. The sizes are kept
    for those who read them, and bound get_local_buffer_tensor; the library sizes its own memory. Collective, as are the
    first call with new sizes and destroy().
    """
    num_sms: int = 20

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
                 num_qps_per_rank: int = 24, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False, *,
                 explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None, use_fabric: bool = False):
        if comm is not None:
            self.rank, self.group_size = comm.Get_rank(), comm.Get_size()
        else:
            self.rank, self.group_size = group.rank(), group.size()
        self.group = group
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy, self.enable_shrink = low_latency_mode, explicitly_destroy, enable_shrink
        self._scratch: dict[bool, torch.Tensor] = {}
        self.runtime: Pool | None = Pool(group, comm, self.rank, self.group_size, enable_shrink)

    def _pool(self) -> Pool:
        if self.runtime is None:
            raise RuntimeError(f'rank {self.rank}: the Buffer has been destroyed')
        return self.runtime

    def destroy(self) -> None:
        """Collective; only for a Buffer made with explicitly_destroy. A second call does nothing."""
        assert self.explicitly_destroy, 'explicitly_destroy was not set'
        pool, self.runtime = self.runtime, None
        if pool is not None:
            pool.destroy()
        self._scratch.clear()

    # ---- statics ----

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether fp8 in the low-latency calls is there: always."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """The number that the configurations name."""
        assert new_num_sms % 2 == 0, 'the number of SMs must be even'
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """This point of the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """For any number of ranks."""
        return _config(num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """For any number of ranks."""
        return _config(num_ranks)

    def get_comm_stream(self) -> Any:
        """The stream of communication; on the CPU device torch's only one."""
        return self._pool().lane.torch_stream()

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> torch.Tensor:
        """Scratch of num_rdma_bytes or num_nvl_bytes, from a byte offset; size: a prefix of it, in this shape."""
        if use_rdma_buffer not in self._scratch:
            nbytes = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
            self._scratch[use_rdma_buffer] = torch.empty(nbytes, dtype=torch.int8, device=self._pool().device)
        whole = self._scratch[use_rdma_buffer][offset:]
        whole = whole[:len(whole) // dtype.itemsize * dtype.itemsize].view(dtype)
        if size is None:
            return whole
        assert size.numel() <= len(whole), f'{tuple(size)} of {dtype} does not fit {len(whole) * dtype.itemsize} bytes'
        return whole[:size.numel()].view(size)

    # ---- high throughput ----

    def get_dispatch_layout(self, topk_idx: torch.Tensor, num_experts: int, previous_event: EventOverlap | None = None,
                            async_finish: bool = False, allocate_on_comm_stream: bool = False) -> tuple[Any, ...]:
        """(tokens per rank, per node or None, per expert, which token goes to which rank, event)."""
        pool = self._pool()
        flags_check(previous_event, async_finish, allocate_on_comm_stream)
        compute = pool.lane.enter(previous_event)
        try:
            made = _ht.layout(topk_idx, num_experts, pool.nodes)
        finally:
            pool.lane.leave(compute)
        return *made, pool.lane.done(compute, async_finish, [topk_idx], made)

    def dispatch(self, x: _Tensors, handle: _ht.HtHandle | None = None, num_tokens_per_rank: torch.Tensor | None = None,
                 num_tokens_per_rdma_rank: torch.Tensor | None = None, is_token_in_rank: torch.Tensor | None = None,
                 num_tokens_per_expert: torch.Tensor | None = None, topk_idx: torch.Tensor | None = None,
                 topk_weights: torch.Tensor | None = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
                 config: Config | None = None, previous_event: EventOverlap | None = None, async_finish: bool = False,
                 allocate_on_comm_stream: bool = False) -> tuple[Any, ...]:
        """Sends each token once to every rank that has one of its experts. Collective.

        x: [T, H], or a pair with scales [T, S] of four bytes each. Returns rows (or a pair), local experts, weights, rows
        per local expert, a handle and an event. With a handle: the same way again, without experts and weights.
        """
        pool = self._pool()
        flags_check(previous_event, async_finish, allocate_on_comm_stream)
        tokens, scales = _pair(x)
        compute = pool.lane.enter(previous_event)
        counts = None
        try:
            if handle is not None:
                assert topk_idx is None and topk_weights is None, 'with a handle the routing is known: pass no top-k'
                route, made_handle = handle.route, None
            else:
                assert num_tokens_per_rank is not None and is_token_in_rank is not None \
                    and num_tokens_per_expert is not None, 'without a handle the results of get_dispatch_layout are needed'
                shape = _ht.Shape(tokens, scales, topk_idx, is_token_in_rank, num_tokens_per_expert)
                route, counts, prefix = _ht.plan(pool, shape, num_tokens_per_rank, num_worst_tokens)
                made_handle = _ht.HtHandle.made(route, prefix, is_token_in_rank, pool.rank if max(pool.nodes) else None)
            rows, got, ids, weights = _ht.receive(pool, route, tokens, scales, topk_idx, topk_weights)
        finally:
            pool.lane.leave(compute)
        per_expert = None
        if handle is None:
            per_expert = [-(-n // expert_alignment) * expert_alignment for n in counts or []]
        event = pool.lane.done(compute, async_finish, [tokens, scales, topk_idx, topk_weights, is_token_in_rank],
                               [rows, got, ids, weights])
        return rows if got is None else (rows, got), ids, weights, per_expert, made_handle, event

    def combine(self, x: torch.Tensor, handle: _ht.HtHandle, topk_weights: torch.Tensor | None = None, bias: Any = None,
                config: Config | None = None, previous_event: EventOverlap | None = None, async_finish: bool = False,
                allocate_on_comm_stream: bool = False) -> tuple[Any, ...]:
        """Sums the rows of each token at its home rank. Collective. Returns (tokens, weights or None, event)."""
        pool = self._pool()
        flags_check(previous_event, async_finish, allocate_on_comm_stream)
        biases = [b for b in (bias if isinstance(bias, tuple) else (bias,)) if b is not None]
        compute = pool.lane.enter(previous_event)
        try:
            out, weights = _ht.combine(pool, handle.route, x, topk_weights, biases)
        finally:
            pool.lane.leave(compute)
        return out, weights, pool.lane.done(compute, async_finish, [x, topk_weights, *biases], [out, weights])


def _config(num_ranks: int) -> Config:
    assert num_ranks >= 1, f'{num_ranks} ranks'
    return Config(Buffer.num_sms, 6, 256, 6, 128)
