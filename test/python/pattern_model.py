# SPDX-License-Identifier: Apache-2.0
"""A layer of a framework in plain torch: what every rank sends and must get, computed on each rank from all ranks' data.

Tokens are small integers, weights and the experts' factors powers of two, so that every sum is exact in bf16 in whatever
order it is taken: results are compared exactly.
"""
import torch

from deep_model import Input, Model
from deep_ranks import DEVICE


def factor(expert):
    """Expert e multiplies its rows by this."""
    return 2.0 ** (expert % 3)


def scaled(x, idx, weights, first=0):
    """Rows times the sum of their experts' factors, weighted; idx counts from expert `first`, -1 is none."""
    scale = torch.tensor([[factor(first + e) if e >= 0 else 0.0 for e in row] for row in idx.tolist()]).reshape(idx.shape)
    return (x.float() * (scale * weights).sum(1, keepdim=True)).bfloat16()


class Batch:
    """counts[r] tokens of rank r, topk experts each, some of them -1. Lists have one tensor per rank."""

    def __init__(self, counts, topk, hidden, experts, seed=0):
        self.counts, self.topk, self.ranks, self.local = counts, topk, len(counts), experts // len(counts)
        with torch.device('cpu'):
            everyone = [Input(rank, count, experts, topk, hidden, seed, whole=True) for rank, count in enumerate(counts)]
        for one in everyone:
            one.x, one.idx = one.x.to(DEVICE), one.idx.to(DEVICE)
            one.weights = torch.tensor([0.5] + [0.25] * (topk - 1)).repeat(len(one.x), 1)
        self.x, self.idx, self.weights = ([getattr(one, name) for one in everyone] for name in ('x', 'idx', 'weights'))
        self.model = Model(everyone, experts)

    def received(self, rank):
        """Rows, local ids and weights of a rank in HT."""
        return self.model.rows(rank, self.x), *self.model.topk(rank)

    def expert_rows(self, expert, arrived):
        """The rows of an expert in LL, whose order is free: in that of what has arrived, each found as the nearest."""
        want = torch.cat([x[(idx == expert).any(1)] for x, idx in zip(self.x, self.idx)])
        assert len(arrived) == len(want), f'expert {expert}: {len(arrived)} rows, must be {len(want)}'
        order = torch.cdist(arrived.float(), want.float()).argmin(1) if len(want) else torch.empty(0, dtype=torch.int64)
        assert sorted(order.tolist()) == list(range(len(want))), f'expert {expert}: rows are wrong'
        return want[order]

    def combined(self, rank):
        """The layer's output."""
        return scaled(self.x[rank], self.idx[rank], self.weights[rank])


def same(what, got, want):
    assert got.shape == want.shape and got.dtype == want.dtype, \
        f'{what}: {got.dtype} {list(got.shape)}, must be {want.dtype} {list(want.shape)}'
    wrong = (got.float() != want.float()).reshape(len(got), -1).any(1).nonzero()[:, 0].tolist() if got.numel() else []
    assert not wrong, f'{what}: {len(wrong)} of {len(got)} rows are wrong, the first is {wrong[0]}'
