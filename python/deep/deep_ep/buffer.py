# SPDX-License-Identifier: Apache-2.0
"""Buffer: DeepEP's interface."""
from __future__ import annotations

import functools
from typing import Any

import torch

from . import _ht, _ll
from ._lane import flags_check
from ._pool import Pool
from .config import Config
from .utils.event import EventHandle, EventOverlap

__all__ = ['Buffer']

_Tensors = Any  # a tensor, or a pair of them


class Buffer:
    """Expert-parallel communication among the ranks of a process group.

    group: of torch.distributed, any backend; only all_gather_object is called, here. Or comm, of mpi4py. The sizes are kept
    for those who read them, and bound get_local_buffer_tensor; the library sizes its own memory. Collective, as are the
    first call with new sizes and destroy().
    """
    num_sms: int = 20
    _wanted_sms: int = 0  # set_num_sms has not been called: as the library likes

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
        """The number that the configurations name, and that the high-throughput calls without one use from now on."""
        assert new_num_sms % 2 == 0, 'the number of SMs must be even'
        Buffer.num_sms = Buffer._wanted_sms = new_num_sms

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

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                       num_experts: int) -> int:
        """num_rdma_bytes for the low-latency calls: two buffers, each for a row of every token in every expert."""
        assert num_experts % num_ranks == 0, f'{num_experts} experts on {num_ranks} ranks'
        row = 2 * hidden + 64
        return -(-2 * num_experts * num_max_dispatch_tokens_per_rank * row // 128) * 128

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
        if allocate_on_comm_stream:
            flags_check(previous_event, async_finish)
        compute = pool.lane.enter(previous_event, async_finish)
        try:
            made = _ht.layout(pool, topk_idx, num_experts)
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
        if allocate_on_comm_stream:
            flags_check(previous_event, async_finish)
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        lane, compute = pool.lane, pool.lane.enter(previous_event, async_finish)
        per_expert, made_handle = None, None
        try:
            frame = _ht.frame_of(pool, tokens, scales, topk_idx, topk_weights,
                                 config.num_sms if config is not None else Buffer._wanted_sms)
            if handle is not None:
                assert topk_idx is None and topk_weights is None, 'with a handle the routing is known: pass no top-k'
                route = handle.route
            else:
                assert num_tokens_per_rank is not None and is_token_in_rank is not None \
                    and num_tokens_per_expert is not None, 'without a handle the results of get_dispatch_layout are needed'
                route, per_expert = _ht.plan(pool, frame, topk_idx, is_token_in_rank,
                                             (num_tokens_per_rank, num_tokens_per_expert), num_worst_tokens)
                made_handle = _ht.HtHandle.made(route, is_token_in_rank)
            rows, got, ids, weights = _ht.receive(pool, route, frame, tokens, scales, topk_idx, topk_weights)
        finally:
            lane.leave(compute)
        if per_expert and expert_alignment != 1:
            per_expert = [-(-n // expert_alignment) * expert_alignment for n in per_expert]
        event = lane.done(compute, async_finish, (tokens, scales, topk_idx, topk_weights, is_token_in_rank),
                          (rows, got, ids, weights))
        return rows if got is None else (rows, got), ids, weights, per_expert, made_handle, event

    def combine(self, x: torch.Tensor, handle: _ht.HtHandle, topk_weights: torch.Tensor | None = None, bias: Any = None,
                config: Config | None = None, previous_event: EventOverlap | None = None, async_finish: bool = False,
                allocate_on_comm_stream: bool = False) -> tuple[Any, ...]:
        """Sums the rows of each token at its home rank. Collective. Returns (tokens, weights or None, event)."""
        pool = self._pool()
        if allocate_on_comm_stream:
            flags_check(previous_event, async_finish)
        biases = [b for b in (bias if isinstance(bias, tuple) else (bias,)) if b is not None]
        compute = pool.lane.enter(previous_event, async_finish)
        try:
            handle.route.ask(1, config.num_sms if config is not None else Buffer._wanted_sms)
            out, weights = _ht.combine(pool, handle.route, x, topk_weights, biases)
        finally:
            pool.lane.leave(compute)
        return out, weights, pool.lane.done(compute, async_finish, [x, topk_weights, *biases], [out, weights])

    # ---- low latency ----

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Before the first low-latency call of these sizes, which then makes nothing. Collective. There is no state to clean:
        both modes have memory of their own."""
        self._pool().ll(num_experts, 2 * hidden, num_max_dispatch_tokens_per_rank)

    def low_latency_dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, num_max_dispatch_tokens_per_rank: int,
                             num_experts: int, cumulative_local_expert_recv_stats: torch.Tensor | None = None,
                             dispatch_wait_recv_cost_stats: torch.Tensor | None = None, use_fp8: bool = True,
                             round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False) -> tuple[Any, ...]:
        """Sends each token to its experts, in fp8 with scales of 128 channels if wanted. Collective.

        Returns rows [El, R * max, H] (or a pair with scales, by columns), rows per expert, a handle, an event, and the hook
        that receives, or None. With a hook nothing has arrived before it is called. The wait statistics, int64 [R], are in
        ns, and those of this rank itself stay.
        """
        pool = self._pool()
        assert not (async_finish and return_recv_hook), 'the hook receives on the current stream: it has no event'
        assert round_scale or not use_ue8m0, 'use_ue8m0 needs round_scale: exponents are all that is left of a scale'
        stats = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        most, hidden, lane = num_max_dispatch_tokens_per_rank, x.shape[1], pool.lane
        key = (hidden, x.dtype, topk_idx.shape[1], topk_idx.dtype, most, num_experts, use_fp8, round_scale, use_ue8m0,
               return_recv_hook)
        kind = pool.kinds.get(key)
        if kind is None:
            kind = pool.kinds[key] = _ll.Kind(pool, key)
        if return_recv_hook:
            op = _ll.Dispatch(pool, kind, x, *stats)
            op.send(x.contiguous(), topk_idx.contiguous())
            event, hook = EventOverlap(), op.receive
        else:
            compute, hook = lane.enter(None, True), None
            try:
                op = _ll.Dispatch(pool, kind, x, *stats)
                op.send(x.contiguous(), topk_idx.contiguous())
            finally:
                lane.leave(compute)
            event = lane.done(compute, async_finish, [x, topk_idx, *stats],
                              [op.rows, op.scales, op.count])
        handle = _ll.LlHandle.made(pool, op.slot, most, hidden, num_experts)
        return op.rows if op.scales is None else (op.rows, op.scales), op.count, handle, event, hook

    def low_latency_combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: _ll.LlHandle,
                            use_logfmt: bool = False, zero_copy: bool = False, async_finish: bool = False,
                            return_recv_hook: bool = False, out: torch.Tensor | None = None,
                            combine_wait_recv_cost_stats: torch.Tensor | None = None) -> tuple[Any, ...]:
        """Sums the rows of each token with its weights. Collective. Returns (tokens, event, hook or None).

        topk_idx is that of the dispatch, whose own tensor is used. zero_copy: x is the tensor that
        get_next_low_latency_combine_buffer returned.
        """
        pool = self._pool()
        if use_logfmt:
            raise NotImplementedError('use_logfmt: rows are combined in the format they have')
        assert not (async_finish and return_recv_hook), 'the hook receives on the current stream: it has no event'
        slot, lane = handle.checked(), pool.lane
        if zero_copy:
            assert slot.rows is not None, 'zero_copy: call get_next_low_latency_combine_buffer and write to it first'
            x = slot.rows
        compute = None if return_recv_hook else lane.enter(None, True)
        try:
            result = out if out is not None else x.new_empty(topk_idx.shape[0], x.shape[2])
            slot.watch(1, combine_wait_recv_cost_stats)
            op = _ll.Sum.of(slot, (x.dtype, result.dtype, topk_weights.dtype, return_recv_hook))
            op.send(pool, slot, x.contiguous(), topk_weights.contiguous(), result)
        finally:
            if not return_recv_hook:
                lane.leave(compute)
        if return_recv_hook:
            return result, EventOverlap(), functools.partial(_ll.complete, pool, slot)
        return result, lane.done(compute, async_finish, [x, topk_idx, topk_weights, combine_wait_recv_cost_stats],
                                 [result]), None

    def get_next_low_latency_combine_buffer(self, handle: _ll.LlHandle) -> torch.Tensor:
        """bf16 [El, R * max, H], to be filled for a combine with zero_copy."""
        slot, pool = handle.checked(), self._pool()
        shape = handle[4] // pool.nranks, pool.nranks * handle[2], handle[3]
        if slot.rows is None or slot.rows.shape != shape:
            slot.rows = torch.empty(shape, dtype=torch.bfloat16, device=pool.device)
        return slot.rows

    # ---- masks: 1 = failed ----

    def _masks(self) -> Pool:
        assert self.enable_shrink, 'masks need a Buffer with enable_shrink'
        return self._pool()

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank, or takes the mask away: this rank neither sends to it nor waits for it."""
        self._masks().mask_one(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes int32 [R]: 1 for a rank that is masked, by a caller or because it did not answer."""
        mask_status.copy_(torch.tensor(self._masks().mask_get(), dtype=torch.int32))

    def low_latency_clean_mask_buffer(self) -> None:
        """No rank is masked any more. Collective over the ranks that were not."""
        self._masks().mask_clean()


def _config(num_ranks: int) -> Config:
    assert num_ranks >= 1, f'{num_ranks} ranks'
    return Config(Buffer.num_sms, 6, 256, 6, 128)
