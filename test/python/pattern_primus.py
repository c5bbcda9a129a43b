#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The calls of Primus-Turbo's dispatcher with the backend DEEP_EP, in their order, without Primus: forward and backward,
with and without num_worst_tokens (its stages without a host wait)."""
import importlib.metadata
import inspect
import sys
import unittest

import torch
import torch.distributed as dist

import deep_ep

from deep_ranks import DEVICE, as_processes
from pattern_model import Batch, same, scaled
from ranks import main

TOPK, EXPERTS, HIDDEN = 4, 8, 256
LATER = {'async_finish': True, 'allocate_on_comm_stream': True}  # Primus-Turbo's defaults


def make_buffer(group, ranks):
    """Size hints as Megatron's; a parameter is_intranode would be passed if there were one."""
    assert 'is_intranode' not in inspect.signature(deep_ep.Buffer.__init__).parameters
    deep_ep.Buffer.set_num_sms(32)
    nvl = rdma = 0
    for config in (deep_ep.Buffer.get_dispatch_config(ranks), deep_ep.Buffer.get_combine_config(ranks)):
        nvl = max(nvl, config.get_nvl_buffer_size_hint(2 * HIDDEN, ranks))
        rdma = max(rdma, config.get_rdma_buffer_size_hint(2 * HIDDEN, ranks))
    return deep_ep.Buffer(group, nvl, rdma)


def rank_main(me):
    torch.set_default_device(DEVICE)
    buffer = make_buffer(dist.group.WORLD, me.ranks)
    me.buffers += 1
    for worst in (False, True):
        # Three layers go forward before the first goes backward. Without a bound, ranks may have any number of tokens.
        layers = [Batch([n if worst or r else 8 * step for r in range(me.ranks)], TOPK, HIDDEN, EXPERTS, step)
                  for step, n in enumerate((8, 70, 24))]
        handles = [forward(me.rank, buffer, batch, worst) for batch in layers]
        for batch, (handle, rows) in reversed(list(zip(layers, handles))):
            backward(me.rank, buffer, batch, handle, rows)


def event():
    """Found as Primus-Turbo finds them: in the module's utils."""
    return deep_ep.utils.EventOverlap(deep_ep.utils.EventHandle())


def forward(rank, buffer, batch, worst):
    most = batch.counts[rank] * batch.ranks if worst else 0
    per_rank, per_node, per_expert, in_rank, previous = buffer.get_dispatch_layout(batch.idx[rank], EXPERTS,
                                                                                   previous_event=event(), **LATER)
    x, idx, weights, counts, handle, after = buffer.dispatch(
        batch.x[rank], topk_idx=batch.idx[rank], topk_weights=batch.weights[rank], num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        num_worst_tokens=most, previous_event=previous, **LATER)
    after.current_stream_wait()
    want, want_idx, want_weights = batch.received(rank)
    n, who = len(want), f'rank {rank}, tokens {batch.counts}, worst {most}'
    assert len(x) == len(idx) == len(weights) == (most or n), f'{who}: {len(x)} rows'
    assert torch.tensor(counts).tolist() == ([] if worst else batch.model.counts(rank)), f'{who}: {counts}'
    same(f'{who}: rows', x[:n], want)
    same(f'{who}: ids', idx[:n], want_idx)
    same(f'{who}: weights', weights[:n], want_weights)
    assert (idx[n:] == -1).all(), f'{who}: ids after the last row'
    y = torch.full_like(x, float('nan'))  # what was not received must not be read
    y[:n] = scaled(x[:n], idx[:n], weights[:n], rank * batch.local)
    out, none, after = buffer.combine(y, handle=handle, topk_weights=None, previous_event=event(), **LATER)
    after.current_stream_wait()
    assert none is None
    same(f'{who}: combined', out, batch.combined(rank))
    return handle, len(x)


def backward(rank, buffer, batch, handle, rows):
    """combine's backward pass is a dispatch by the handle, dispatch's a combine with gradients of the weights."""
    dy = batch.x[rank] * 0.5
    got, *none, after = buffer.dispatch(dy, handle=handle, previous_event=event(), **LATER)
    after.current_stream_wait()
    want, want_idx, _ = batch.received(rank)
    n = len(want)
    assert none == [None] * 4 and len(got) == rows, f'rank {rank}: {len(got)} rows, must be {rows}'
    same(f'rank {rank}: gradients of rows', got[:n], want * 0.5)
    grads = torch.full((rows, batch.topk), float('nan'))
    grads[:n] = torch.where(want_idx >= 0, want_idx + rank * batch.local + 1.0, 0.0)
    dx, dw, after = buffer.combine(got, handle, topk_weights=grads, previous_event=event(), **LATER)
    after.current_stream_wait()
    idx = batch.idx[rank]
    owners = batch.model.owned[rank].sum(1)
    same(f'rank {rank}: gradients of tokens', dx, (dy.float() * owners[:, None]).bfloat16())
    same(f'rank {rank}: gradients of weights', dw, torch.where(idx >= 0, idx + 1.0, 0.0))


class Primus(unittest.TestCase):
    def test_distribution(self):
        """Primus's launcher asks pip for it by this name."""
        try:
            found = importlib.metadata.version('deep_ep')
        except importlib.metadata.PackageNotFoundError:
            self.skipTest('deep_ep was not installed by pip')
        self.assertEqual(found, deep_ep.__version__)

    def test_one_node(self):
        as_processes(rank_main, 2)

    def test_two_nodes(self):
        as_processes(rank_main, 4, NCCL_EP_RANKS_PER_NODE='2')


if __name__ == '__main__':
    main(sys.modules['__main__'])
