#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The calls of SGLang's deepep dispatcher, in their order, without SGLang: one Buffer for normal and low-latency mode."""
import sys
import unittest

import torch
import torch.distributed as dist
from deep_ep import Buffer, Config

from deep_ranks import DEVICE, as_processes
from pattern_model import Batch, factor, same, scaled
from ranks import main

TOPK, EXPERTS, HIDDEN, MOST = 3, 8, 2048, 16
CONFIG = {'num_sms': 24, 'num_max_nvl_chunked_send_tokens': 8, 'num_max_nvl_chunked_recv_tokens': 256,
          'num_max_rdma_chunked_send_tokens': 16, 'num_max_rdma_chunked_recv_tokens': 128}


def make_buffer(ranks):
    nvl = rdma = 0
    for config in (Buffer.get_dispatch_config(ranks), Buffer.get_combine_config(ranks)):
        nvl = max(nvl, config.get_nvl_buffer_size_hint(2 * HIDDEN, ranks))
        rdma = max(rdma, config.get_rdma_buffer_size_hint(2 * HIDDEN, ranks))
    rdma = max(rdma, Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, ranks, EXPERTS))
    return Buffer(dist.group.WORLD, nvl, rdma, low_latency_mode=True, num_qps_per_rank=max(24, EXPERTS // ranks),
                  allow_mnnvl=True)


def rank_main(me):
    torch.set_default_device(DEVICE)
    rank, ranks = me.rank, me.ranks
    buffer = make_buffer(ranks)
    me.buffers += 1
    for step in range(2):
        for kind, concurrent in (('bf16', False), ('bf16', True), ('rows', True), ('columns', True), ('packed', False)):
            normal(rank, ranks, buffer, kind, concurrent, step)
        buffer.clean_low_latency_buffer(MOST, HIDDEN, EXPERTS)
        for hooks in (True, False):
            two_batches(rank, ranks, buffer, step, hooks)


def quantized(x, kind, rank):
    """What SGLang's quantisers give: f32 scales row-major or column-major, or four exponents in an int32."""
    groups = HIDDEN // (512 if kind == 'packed' else 128)
    scales = torch.arange(groups * len(x)).reshape(len(x), groups) + 1000 * rank
    scales = scales.to(torch.int32 if kind == 'packed' else torch.float32)
    if kind == 'columns':
        scales = scales.t().contiguous().t()
    return x.to(torch.float8_e4m3fn), scales


def normal(rank, ranks, buffer, kind, concurrent, seed):
    batch = Batch([(7, 16, 0, 3)[(r + seed) % 4] for r in range(ranks)], TOPK, HIDDEN, EXPERTS, seed)
    x, idx, weights = batch.x[rank], batch.idx[rank], batch.weights[rank]
    tokens = x if kind == 'bf16' else quantized(x, kind, rank)
    previous = Buffer.capture() if concurrent else None
    per_rank, per_node, per_expert, in_rank, previous = buffer.get_dispatch_layout(
        idx, EXPERTS, previous_event=previous, async_finish=concurrent, allocate_on_comm_stream=previous is not None)
    got, got_idx, got_weights, counts, handle, event = buffer.dispatch(
        tokens, topk_idx=idx, topk_weights=weights, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, previous_event=previous if concurrent else None,
        async_finish=concurrent, allocate_on_comm_stream=concurrent, expert_alignment=1 if kind == 'bf16' else 128,
        config=Config(**CONFIG))
    if concurrent:
        event.current_stream_wait()
    want, want_idx, want_weights = batch.received(rank)
    if kind != 'bf16':
        got, scales = got
        everyone = [quantized(batch.x[s], kind, s)[1] for s in range(ranks)]
        same(f'rank {rank}: scales by {kind}', scales, batch.model.rows(rank, everyone))
        got = got.bfloat16()
    unit = 1 if kind == 'bf16' else 128  # SGLang takes the sum of this list for the rows of its GEMM
    assert counts == batch.model.counts(rank, unit), f'rank {rank}: {counts}'
    same(f'rank {rank}: rows, {kind}', got, want)
    same(f'rank {rank}: ids', got_idx, want_idx)
    same(f'rank {rank}: weights', got_weights, want_weights)
    previous = Buffer.capture() if concurrent else None
    out, _, event = buffer.combine(scaled(got, got_idx, got_weights, rank * batch.local), handle,
                                   async_finish=concurrent, previous_event=previous,
                                   allocate_on_comm_stream=previous is not None, config=Config(**CONFIG))
    if concurrent:
        event.current_stream_wait()
    same(f'rank {rank}: combined, {kind}', out, batch.combined(rank))


def two_batches(rank, ranks, buffer, seed, hooks):
    """Two batches overlap: the second is sent before the first is received. With hooks receiving is a call, else an event."""
    batches = [Batch([(MOST, 2, 0, 5)[(r + i + 2 * seed) % 4] for r in range(ranks)], TOPK, HIDDEN, EXPERTS, 10 * seed + i)
               for i in (0, 3)]
    sent = [buffer.low_latency_dispatch(b.x[rank], b.idx[rank], MOST, EXPERTS, use_fp8=False, async_finish=not hooks,
                                        return_recv_hook=hooks) for b in batches]
    sums = []
    for b, (rows, counts, handle, event, hook) in zip(batches, sent):
        hook() if hooks else event.current_stream_wait()
        assert counts.tolist() == b.model.counts(rank), f'rank {rank}: {counts.tolist()}, must be {b.model.counts(rank)}'
        for e in range(b.local):
            n, expert = int(counts[e]), rank * b.local + e
            same(f'rank {rank}: expert {expert}', rows[e, :n], b.expert_rows(expert, rows[e, :n]))
            rows[e, :n] *= factor(expert)
        sums.append(buffer.low_latency_combine(x=rows, topk_idx=b.idx[rank], topk_weights=b.weights[rank], handle=handle,
                                               async_finish=not hooks, return_recv_hook=hooks))
    for b, (out, event, hook) in zip(batches, sums):
        hook() if hooks else event.current_stream_wait()
        same(f'rank {rank}: combined, hooks {hooks}', out, b.combined(rank))


class Sglang(unittest.TestCase):
    def test_both_modes(self):
        as_processes(rank_main, 2)

    def test_both_modes_two_nodes(self):
        as_processes(rank_main, 2, NCCL_EP_RANKS_PER_NODE='1')


if __name__ == '__main__':
    main(sys.modules['__main__'])
