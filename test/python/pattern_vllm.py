#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The calls of vLLM's deepep_high_throughput and deepep_low_latency, in their order, without vLLM."""
import functools
import sys
import unittest

import torch
import torch.distributed as dist

import deep_ep
from deep_ranks import DEVICE, as_processes
from pattern_model import Batch, factor, same, scaled
from ranks import main

TOPK, EXPERTS = 3, 8


def high_throughput(me, nodes):
    torch.set_default_device(DEVICE)
    size = 1024 << 20  # VLLM_DEEPEP_BUFFER_SIZE_MB
    buffer = deep_ep.Buffer(group=dist.new_group(backend='gloo'), num_nvl_bytes=size, num_rdma_bytes=size if nodes > 1 else 0,
                            low_latency_mode=False, num_qps_per_rank=10 if nodes > 1 else 1, explicitly_destroy=True)
    me.buffers += 1
    for dbo in (False, True):
        if dbo:
            deep_ep.Buffer.set_num_sms(20)
        for kind in ('bf16', 'blocks', 'rows'):
            two_batches(me.rank, me.ranks, buffer, dbo, kind)
    buffer.destroy()


def two_batches(rank, ranks, buffer, dbo, kind):
    """Double batching: the second dispatch runs before the first combine, so two handles are outstanding."""
    batches = [Batch(counts[:ranks], TOPK, 256, EXPERTS, seed) for seed, counts in enumerate(((12, 7, 1, 5), (0, 9, 16, 3)))]
    config = buffer.get_dispatch_config(ranks)
    received = [ht_dispatch(rank, buffer, batch, dbo, kind, config) for batch in batches]
    for batch, (x, idx, weights, handle) in zip(batches, received):
        event = buffer.capture() if dbo else None
        y = scaled(x, idx, weights, rank * batch.local)
        out, none, event = buffer.combine(x=y, handle=handle, topk_weights=None, config=buffer.get_combine_config(ranks),
                                          previous_event=event, async_finish=not dbo, allocate_on_comm_stream=False)
        assert none is None and (event.event is None) == dbo
        if event.event is not None:
            event.current_stream_wait()
        same(f'rank {rank}: combined, {kind}', out, batch.combined(rank))


def ht_dispatch(rank, buffer, batch, dbo, kind, config):
    x, idx, weights = batch.x[rank], batch.idx[rank], batch.weights[rank]
    scales = [torch.full((n, 2 if kind == 'blocks' else 1), 2.0 + source) for source, n in enumerate(batch.counts)]
    tokens = x if kind == 'bf16' else (x.to(torch.float8_e4m3fn), scales[rank])
    event = buffer.capture() if dbo else None
    a, b, c, d, event = buffer.get_dispatch_layout(topk_idx=idx, num_experts=EXPERTS, previous_event=event, async_finish=False,
                                                   allocate_on_comm_stream=False)
    got, got_idx, got_weights, counts, handle, event = buffer.dispatch(
        x=tokens, handle=None, num_tokens_per_rank=a, num_tokens_per_rdma_rank=b, is_token_in_rank=d, num_tokens_per_expert=c,
        topk_idx=idx, topk_weights=weights, expert_alignment=1, config=config, previous_event=event, async_finish=not dbo,
        allocate_on_comm_stream=False)
    if event.event is not None:
        event.current_stream_wait()
    want, want_idx, want_weights = batch.received(rank)
    if kind != 'bf16':
        got, got_scales = got
        same(f'rank {rank}: scales', got_scales, batch.model.rows(rank, scales))
        assert got.dtype == torch.float8_e4m3fn
        got = got.bfloat16()
    same(f'rank {rank}: rows, {kind}', got, want)
    same(f'rank {rank}: ids', got_idx, want_idx)
    same(f'rank {rank}: weights', got_weights, want_weights)
    assert counts == batch.model.counts(rank), f'rank {rank}: {counts}, must be {batch.model.counts(rank)}'
    return got, got_idx, got_weights, handle


def low_latency(me):
    torch.set_default_device(DEVICE)
    rank, ranks = me.rank, me.ranks
    most, hidden, local = 16, 2048, EXPERTS // ranks
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank=most, hidden=hidden,
                                                         num_ranks=ranks, num_experts=EXPERTS)
    buffer = deep_ep.Buffer(group=dist.new_group(backend='gloo'), num_nvl_bytes=1024 << 20, num_rdma_bytes=size,
                            low_latency_mode=True, num_qps_per_rank=local, allow_nvlink_for_low_latency_mode=True,
                            allow_mnnvl=False, explicitly_destroy=True, enable_shrink=True)
    me.buffers += 1
    for layer in range(4):
        ll_layer(rank, ranks, buffer, most, hidden, layer)
        ll_layer(rank, ranks, buffer, most, hidden, layer, use_fp8=True, round_scale=layer > 1, use_ue8m0=layer > 1)
    failed = torch.full((ranks,), -1, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(failed)
    assert failed.tolist() == [0] * ranks, failed
    buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).zero_()
    buffer.low_latency_clean_mask_buffer()
    ll_layer(rank, ranks, buffer, most, hidden, 9)
    buffer.destroy()


def ll_layer(rank, ranks, buffer, most, hidden, layer, use_fp8=False, **fp8):
    batch = Batch([(most, 5, 0, 9)[(r + layer) % 4] for r in range(ranks)], TOPK, hidden, EXPERTS, layer)
    x, idx, weights = batch.x[rank], batch.idx[rank], batch.weights[rank]
    got, counts, handle, _, hook = buffer.low_latency_dispatch(
        x, idx, most, EXPERTS, use_fp8=use_fp8, async_finish=False, return_recv_hook=True,
        **(fp8 or {'round_scale': False, 'use_ue8m0': False}))
    hook()
    who = f'rank {rank}, layer {layer}, {"fp8" if use_fp8 else "bf16"}'
    assert counts.tolist() == batch.model.counts(rank), f'{who}: {counts.tolist()}, must be {batch.model.counts(rank)}'
    rows = values_of(*got) if use_fp8 else got
    assert rows.shape == (batch.local, ranks * most, hidden)
    y = torch.full_like(rows, float('nan'), dtype=torch.bfloat16)
    for e in range(batch.local):
        expert, n = rank * batch.local + e, int(counts[e])
        want = batch.expert_rows(expert, rows[e, :n])
        if use_fp8:  # e4m3 has three bits of mantissa; scales rounded up to a power of two cost no more
            assert ((rows[e, :n] - want.float()).abs() <= want.float().abs() / 16 + 1e-3).all(), f'{who}: expert {expert}'
        else:
            same(f'{who}: expert {expert}', rows[e, :n], want)
        y[e, :n] = want * factor(expert)
    out = torch.full((len(x), hidden), float('nan'), dtype=torch.bfloat16)
    done, _, hook = buffer.low_latency_combine(y, idx, weights, handle, async_finish=False, zero_copy=False,
                                               return_recv_hook=layer % 2 == 0, out=out)
    if hook is not None:
        hook()
    assert done.data_ptr() == out.data_ptr() and (hook is None) == (layer % 2 == 1), who
    same(f'{who}: combined', out, batch.combined(rank))


def values_of(rows, scales):
    """f32 of fp8 rows and their scales: f32, or four UE8M0 in an int32."""
    assert scales.stride(1) == 1, f'strides {scales.stride()}: DeepGEMM takes scales by columns'
    if scales.dtype == torch.int32:
        packed = scales.contiguous().view(torch.uint8).to(torch.int32)
        scales = (packed << 23).view(torch.float32)
    assert rows.dtype == torch.float8_e4m3fn and scales.shape == (*rows.shape[:2], rows.shape[2] // 128), scales.shape
    return rows.float() * scales.repeat_interleave(128, 2)


class Vllm(unittest.TestCase):
    def test_high_throughput(self):
        as_processes(functools.partial(high_throughput, nodes=1), 2)

    def test_high_throughput_two_nodes(self):
        as_processes(functools.partial(high_throughput, nodes=2), 4, NCCL_EP_RANKS_PER_NODE='2')

    def test_low_latency(self):
        as_processes(low_latency, 2)

    def test_low_latency_two_nodes(self):
        as_processes(low_latency, 2, NCCL_EP_RANKS_PER_NODE='1')


if __name__ == '__main__':
    main(sys.modules['__main__'])
