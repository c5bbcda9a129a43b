# SPDX-License-Identifier: Apache-2.0
"""What every rank sends and what it must receive, computed on each rank from all ranks' data, in plain torch.

Tokens are small integers, weights and the experts' factors powers of two, so that every sum is exact in bf16 in whatever
order it is taken: results are compared by torch.equal.
"""
import torch


def use_gpu():
    """Tensors are made on a GPU where torch has one, which the ranks share."""
    if torch.cuda.is_available():
        torch.cuda.set_device(0)
        torch.set_default_device('cuda')


def factor(expert):
    """Expert e multiplies its rows by this."""
    return 2.0 ** (expert % 3)


class Batch:
    """The tokens of all ranks: counts[r] tokens of rank r, topk experts each, one of them -1 in every fourth token."""

    def __init__(self, counts, topk, hidden, experts, seed=0):
        self.counts, self.topk, self.hidden, self.experts = counts, topk, hidden, experts
        self.ranks, self.local = len(counts), experts // len(counts)
        self.x, self.idx, self.weights = [], [], []
        for rank, count in enumerate(counts):
            g = torch.Generator('cpu').manual_seed(1000 * seed + rank)
            x = torch.randint(-8, 9, (count, hidden), generator=g, device='cpu').bfloat16()
            idx = torch.rand(count, experts, generator=g, device='cpu').argsort(1)[:, :topk].contiguous()
            idx[::4, topk - 1] = -1
            self.x.append(x.to(torch.get_default_device()))
            self.idx.append(idx.to(torch.get_default_device()))
            self.weights.append(torch.tensor([0.5] + [0.25] * (topk - 1)).repeat(count, 1))

    def rows_of(self, rank, source):
        """Which tokens of a source go to a rank."""
        return (self.idx[source] >= 0).logical_and(self.idx[source] // self.local == rank).any(1)

    def received(self, rank):
        """Rows, local ids and weights of a rank in HT: one row for each token and rank, by source, then by token."""
        picked = [self.rows_of(rank, source) for source in range(self.ranks)]
        x = torch.cat([self.x[s][m] for s, m in enumerate(picked)])
        idx = torch.cat([self.idx[s][m] for s, m in enumerate(picked)])
        weights = torch.cat([self.weights[s][m] for s, m in enumerate(picked)])
        here = (idx >= 0).logical_and(idx // self.local == rank)
        return x, torch.where(here, idx - rank * self.local, -1), torch.where(here, weights, 0.0)

    def expert_counts(self, rank):
        """Rows of each local expert."""
        return [sum(int((idx == rank * self.local + e).sum()) for idx in self.idx) for e in range(self.local)]

    def expert_rows(self, expert, arrived):
        """The rows of an expert in LL, whose order is free: in that of what has arrived, each found as the nearest."""
        want = torch.cat([x[(idx == expert).any(1)] for x, idx in zip(self.x, self.idx)])
        assert len(arrived) == len(want), f'expert {expert}: {len(arrived)} rows, must be {len(want)}'
        order = torch.cdist(arrived.float(), want.float()).argmin(1) if len(want) else torch.empty(0, dtype=torch.int64)
        assert sorted(order.tolist()) == list(range(len(want))), f'expert {expert}: rows are wrong'
        return want[order]

    def combined(self, rank):
        """The layer's output: every token times the sum of its weights and its experts' factors."""
        idx = self.idx[rank]
        scale = torch.tensor([[factor(e) if e >= 0 else 0.0 for e in row] for row in idx.tolist()]).reshape(idx.shape)
        return (self.x[rank].float() * (scale * self.weights[rank]).sum(1, keepdim=True)).bfloat16()


def run_experts(x, idx, weights, first):
    """The experts of a rank on rows as HT delivers them, weighted: what a framework gives to combine. first: the first of
    its experts."""
    scale = torch.tensor([[factor(first + e) if e >= 0 else 0.0 for e in row] for row in idx.tolist()]).reshape(idx.shape)
    return (x.float() * (scale * weights).sum(1, keepdim=True)).bfloat16()


def same(what, got, want):
    assert got.shape == want.shape and got.dtype == want.dtype, \
        f'{what}: {got.dtype} {list(got.shape)}, must be {want.dtype} {list(want.shape)}'
    wrong = (got.float() != want.float()).reshape(len(got), -1).any(1).nonzero()[:, 0].tolist() if got.numel() else []
    assert not wrong, f'{what}: {len(wrong)} of {len(got)} rows are wrong, the first is {wrong[0]}'
